"""Judging labels by what a sample of others showed: `quality.Calibration`, which streaming relies on."""

import torch

from vri import quality


def beliefs(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = (3 * torch.randn(rows, 4, generator=generator, dtype=torch.float64)).softmax(1)
    given = torch.where(
        torch.rand(rows, generator=generator) < 0.7,
        probabilities.argmax(1),
        torch.randint(4, (rows,), generator=generator),
    )
    return probabilities, given


def test_calibration_says_of_its_own_sample_what_judge_said() -> None:
    probabilities, given = beliefs(500, 0)
    verdict = quality.judge(probabilities, given)
    calibration = quality.Calibration.learn(probabilities, given, verdict)
    assert len(calibration.scores) == 500  # no ties
    right, classes = calibration.judge(probabilities, given)
    assert torch.equal(right, verdict.label_quality)
    assert torch.equal(classes, verdict.beliefs)
    piece, _ = calibration.judge(probabilities[7:9], given[7:9])
    assert torch.equal(piece, verdict.label_quality[7:9])


def test_calibration_between_beside_and_among_ties() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    calibration = quality.Calibration(
        eye, torch.ones(2, 2, dtype=torch.float64), *torch.tensor([[0.2, 0.6], [0.1, 0.5]], dtype=torch.float64)
    )
    p = torch.tensor([0.0, 0.2, 0.3, 0.6, 0.9], dtype=torch.float64)  # lifts of 1: the score is the probability
    right, _ = calibration.judge(torch.stack([p, 1 - p], 1), torch.zeros(5, dtype=torch.int64))
    torch.testing.assert_close(right, torch.tensor([0.1, 0.1, 0.2, 0.5, 0.5], dtype=torch.float64))
    alone = quality.Calibration(eye, calibration.lifts, calibration.scores[:1], calibration.qualities[:1])
    assert alone.judge(torch.stack([p, 1 - p], 1), torch.zeros(5, dtype=torch.int64))[0].tolist() == [0.1] * 5

    probabilities, given = beliefs(50, 1)
    twice, labels = probabilities.repeat(2, 1), given.repeat(2)
    verdict = quality.judge(twice, labels)
    shared, _ = quality.Calibration.learn(twice, labels, verdict).judge(twice, labels)
    torch.testing.assert_close(shared[:50], (verdict.label_quality[:50] + verdict.label_quality[50:]) / 2)
    assert torch.equal(shared[:50], shared[50:])
