"""What a classifier tells about the labels."""

import math

import pytest
import torch

from vri import noise
from vri.quality import judge, lift, outlier_score, sharpen, threshold, transition_matrix, true_class


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


def test_calibrated_qualities_give_the_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(50_000, generator=generator, dtype=torch.float64) ** 0.3
    wrong = torch.rand(50_000, generator=generator, dtype=torch.float64) > right
    named = right < threshold(right, 0.7)
    assert float(wrong[named].double().mean()) == pytest.approx(0.7, abs=0.03)


def doubtful(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Beliefs that are right as often as they say, about three classes of which two look alike; and the classes."""
    generator = torch.Generator().manual_seed(seed)
    sure = torch.rand(count, generator=generator, dtype=torch.float64)
    beliefs = torch.stack([sure, 1 - sure, torch.zeros_like(sure)], 1)
    beliefs[::3] = torch.tensor([0.02, 0.02, 0.96], dtype=torch.float64)
    return beliefs, torch.multinomial(beliefs, 1, generator=generator).squeeze(1)


def test_rounds_tell_doubts_from_confused_labels() -> None:
    beliefs, true = doubtful(30_000, 0)
    labels = true.clone()
    moved = (true == 2) & (torch.rand(30_000, generator=torch.Generator().manual_seed(1)) < 0.3)
    labels[moved] = 0
    exact = torch.tensor([[1, 0, 0], [0, 1, 0], [0.3, 0, 0.7]], dtype=torch.float64)
    plain, better = transition_matrix(beliefs, labels), transition_matrix(beliefs, labels, rounds=200)
    assert float((plain - exact).abs().max()) > 0.2  # classes 0 and 1 seem to be confused
    assert float((better - exact).abs().max()) < 0.05


def test_lift_is_one_where_the_doubts_explain_the_labels() -> None:
    beliefs, true = doubtful(60_000, 0)
    drawn = torch.multinomial(beliefs, 1, generator=torch.Generator().manual_seed(5)).squeeze(1)
    torch.testing.assert_close(lift(beliefs, drawn), torch.ones(3, 3, dtype=torch.float64), atol=0.12, rtol=0)
    moved = torch.where(true == 2, 0, drawn)
    assert float(lift(beliefs, moved)[2, 0]) > 5


def test_wrong_labels_are_judged_so() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(4000) % 4
    labels = noise.pair(None, true, num_classes=4, rate=0.25, seed=0).labels
    logits = 3 * torch.nn.functional.one_hot(true, 4).double() + torch.randn(4000, 4, generator=generator)
    verdict = judge(logits.softmax(1), labels)
    wrong = labels != true
    assert verdict.noise_rate == pytest.approx(float(wrong.double().mean()), abs=0.03)
    low, high = verdict.noise_interval
    assert low < float(wrong.double().mean()) < high
    assert float((verdict.label_quality < 0.5)[wrong].double().mean()) > 0.9
    assert float((verdict.label_quality < 0.5)[~wrong].double().mean()) < 0.05
    torch.testing.assert_close(verdict.beliefs.sum(1), torch.ones(4000, dtype=torch.float64))
    # probabilities come from the transitions, their order from the lift
    own = true_class(sharpen(logits.softmax(1), 2.0), labels, verdict.transitions).gather(1, labels[:, None]).squeeze(1)
    torch.testing.assert_close(verdict.label_quality.sort().values, own.sort().values)
    order = true_class(logits.softmax(1), labels, lift(sharpen(logits.softmax(1), 2.0), labels))
    assert torch.equal(
        verdict.label_quality.argsort(stable=True), order.gather(1, labels[:, None]).squeeze(1).argsort()
    )


def test_outliers_look_like_many_classes() -> None:
    one, two, all_alike = [1.0] + [0.0] * 9, [0.5, 0.5] + [0.0] * 8, [0.1] * 10
    score = outlier_score(torch.tensor([one, two, all_alike], dtype=torch.float64))
    expected = torch.tensor([0, (math.log(2) / math.log(10)) ** 2, 1], dtype=torch.float64)
    torch.testing.assert_close(score, expected)
