"""What is examined at the end of a run, besides its accuracy."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vri.bench.timing import take_turns
from vri.core.model import evaluating
from vri.data.batches import Batches
from vri.methods import VRI, CrossEntropy
from vri.methods.base import Method
from vri.paper.prepare import Prepared

BINS = 60  # of the losses' histogram
LARGEST = 12.0  # loss at its right end; larger ones count there
_DRAWS = 8  # of the rectifying vector, per sample
_ROUNDS = 40  # of timed steps
_BATCH = 500


def rectification(method: Method, sets: Prepared) -> dict[str, Any]:
    """Losses of the training samples before and after rectification, and the transition matrices (fig:vis).

    The matrices are P(given label | class), where the class is the true one, the one predicted from the rectified
    logits (as in the paper) and the one predicted by the classifier alone.
    """
    assert isinstance(method, VRI)
    assert sets.true_labels is not None
    before, after, plain, rectified, given = [], [], [], [], []
    device = method.classifier.device
    batches = Batches(
        sets.train, _BATCH, seed=0, shuffle=False, drop_last=False, device=device, transform=sets.test_transform
    )
    with evaluating(method.model), torch.no_grad():
        for inputs, labels, *_ in batches.epoch(0):
            logits, features = method.classifier.at({}, inputs, 0)
            corrected = method.rectify(logits, features, labels, _DRAWS)  # (draws, n, c)
            draws = corrected.flatten(0, 1)
            losses = functional.cross_entropy(draws, labels.repeat(_DRAWS), reduction="none").view(_DRAWS, -1)
            before.append(functional.cross_entropy(logits, labels, reduction="none").cpu())
            after.append(losses.mean(0).cpu())
            plain.append(logits.argmax(1).cpu())
            rectified.append(corrected.softmax(2).mean(0).argmax(1).cpu())
            given.append(labels.cpu())
    labels, classes = torch.cat(given), method.num_classes
    lower = torch.cat(after) < torch.cat(before)
    return {
        "largest": LARGEST,
        "before": _histogram(torch.cat(before)),
        "after": _histogram(torch.cat(after)),
        "mean_before": float(torch.cat(before).mean()),
        "mean_after": float(torch.cat(after).mean()),
        "lowered": float(lower.double().mean()),
        "true": _transitions(sets.true_labels.cpu(), labels, classes),
        "rectified": _transitions(torch.cat(rectified), labels, classes),
        "classifier": _transitions(torch.cat(plain), labels, classes),
    }


def step_time(method: Method, sets: Prepared) -> dict[str, Any]:
    """Time of a step relative to plain cross-entropy on the same model; both take turns, so a busy machine slows both.

    This continues the training, so it comes last.
    """
    batch, meta_batch = (_first_batch(method, sets, part) for part in ("train", "clean"))
    classifier = method.classifier
    plain = CrossEntropy(method.model, method.num_classes, method.optimizer, autocast=classifier.autocast)
    device = str(classifier.device)
    rounds = take_turns({"plain": plain, "method": method}, batch, meta_batch, _ROUNDS, 2, device)
    ratios = [a / b for a, b in zip(rounds["method"], rounds["plain"], strict=True)]
    return {
        "step_seconds": statistics.median(rounds["method"]),
        "times_cross_entropy": statistics.median(ratios),
    }


def _first_batch(method: Method, sets: Prepared, part: str) -> Any:
    chosen, transform = (sets.train, sets.transform) if part == "train" else (sets.clean, sets.meta_transform)
    assert chosen is not None
    device = method.classifier.device
    return next(iter(Batches(chosen, 100, seed=0, device=device, transform=transform).epoch(0)))


def _histogram(losses: Tensor) -> list[int]:
    counts = losses.double().clamp(0, LARGEST).histc(BINS, 0, LARGEST)
    return [int(count) for count in counts]


def _transitions(classes: Tensor, labels: Tensor, count: int) -> list[list[float]]:
    table = torch.zeros(count, count, dtype=torch.float64)
    table.index_put_((classes, labels), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    return [[round(float(v), 4) for v in row] for row in table / table.sum(1, keepdim=True).clamp_min(1)]


# name: what it does with the trained method and its data
EXAMINATIONS: dict[str, Callable[[Method, Prepared], dict[str, Any]]] = {
    "rectification": rectification,
    "step-time": step_time,
}
