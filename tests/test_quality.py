"""What a classifier tells about the labels."""

import torch

from vri import noise
from vri.quality import transition_matrix


def test_perfect_beliefs_give_the_counted_matrix() -> None:
    true = torch.tensor([0, 0, 0, 0, 1, 1])
    noisy = torch.tensor([0, 0, 0, 1, 1, 0])
    beliefs = torch.nn.functional.one_hot(true, 2).float()
    expected = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(transition_matrix(beliefs, noisy), expected)


def test_soft_beliefs_count_by_their_share() -> None:
    beliefs = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    noisy = torch.tensor([0, 1])
    # class 0: 0.5 for label 0, 0.25 for label 1; class 1: 0.5 and 0.75
    expected = torch.tensor([[2 / 3, 1 / 3], [0.4, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(transition_matrix(beliefs, noisy), expected)


def test_known_noise_is_recovered_and_an_absent_class_keeps_its_identity_row() -> None:
    true = torch.arange(20_000) % 4
    drawn = noise.pair(None, true, num_classes=5, rate=0.3, seed=0)
    beliefs = torch.nn.functional.one_hot(true, 5).double()
    estimate = transition_matrix(beliefs, drawn.labels)
    torch.testing.assert_close(estimate[:4], drawn.matrix[:4], atol=0.03, rtol=0)
    assert estimate[4].tolist() == [0, 0, 0, 0, 1]
