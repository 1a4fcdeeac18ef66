"""What a classifier tells about the labels."""

import pytest
import torch

from vri import noise
from vri.quality import noise_rate, outlier_score, sharpen, threshold, transition_matrix, true_class


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


def test_the_true_class_by_bayes_rule() -> None:
    # a sample that looks 30 to 70 like class 0 and 1, with label 0; labels of class 1 become 0 in one case of ten
    probabilities = torch.tensor([[0.3, 0.7], [0.3, 0.7]])
    transitions = torch.tensor([[0.8, 0.2], [0.1, 0.9]])
    expected = torch.tensor([[0.24 / 0.31, 0.07 / 0.31], [0.06 / 0.69, 0.63 / 0.69]], dtype=torch.float64)
    torch.testing.assert_close(true_class(probabilities, torch.tensor([0, 1]), transitions), expected)
    # what is impossible stays so, and nothing is divided by 0
    never = true_class(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), torch.eye(2))
    assert never.tolist() == [[0.0, 0.0]]


def test_sharpening_is_a_power() -> None:
    p = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(sharpen(p, 3.0), p**3 / (p**3).sum())
    torch.testing.assert_close(sharpen(p, 1.0), p)
    assert sharpen(torch.tensor([[1.0, 0.0]]), 3.0).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("qualities", "precision", "named"),
    [
        ([0.0, 0.1, 0.3, 0.45, 0.9], 0.8, 3),  # mean probability of being wrong: 1, 0.95, 0.87, 0.79
        ([0.0, 0.1, 0.3, 0.45, 0.9], 0.75, 4),
        ([0.0, 0.0, 0.0, 0.6, 0.9], 0.5, 3),  # more probably right than wrong: never named
        ([0.4, 0.45], 0.8, 0),
        ([0.1], 0.8, 1),
    ],
)
def test_the_threshold_keeps_the_expected_precision(qualities: list[float], precision: float, named: int) -> None:
    quality = torch.tensor(qualities).flip(0)
    assert int((quality < threshold(quality, precision)).sum()) == named


def test_calibrated_qualities_give_the_precision_and_the_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(50_000, generator=generator, dtype=torch.float64) ** 0.3
    wrong = torch.rand(50_000, generator=generator, dtype=torch.float64) > right
    named = right < threshold(right, 0.7)
    assert float(wrong[named].double().mean()) == pytest.approx(0.7, abs=0.03)
    beliefs = torch.stack([right, 1 - right], 1)
    estimate, (low, high) = noise_rate(right, beliefs, torch.zeros(50_000, dtype=torch.int64))
    assert estimate == pytest.approx(float(wrong.double().mean()), abs=0.01)
    assert low < float(wrong.double().mean()) < high


def test_samples_far_from_their_class_are_outliers() -> None:
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(900) % 3
    features = torch.randn(900, 5, generator=generator) + 4 * torch.eye(5)[classes]
    features[:9] = 12 * torch.randn(9, 5, generator=generator)
    score = outlier_score(features, classes)
    assert ((score >= 0) & (score <= 1)).all()
    assert float((score[:9] > 0.5).double().mean()) > 0.8
    assert float((score[9:] > 0.5).double().mean()) < 0.01
    # a constant feature, and a class with one sample, do no harm
    odd = torch.cat([features, torch.ones(900, 1)], 1)
    assert outlier_score(odd, torch.cat([classes[:-1], torch.tensor([7])])).isfinite().all()
