"""Out-of-sample evidence about every label: several classifiers, cross-fitted, and pooled by how well they predict."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from vri.training.progress import portion

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Fold = tuple[Labels, Labels]  # rows to learn from, rows held out
Fit = Callable[[Labels, Labels, Floats, int], Floats]  # (rows, held, targets of all, number of the fold) → (held, c)
AsLabels = Callable[[str, Floats, Floats], Floats]

_FLOOR = 0.01  # of every class's share, in every member's probabilities: none is ever certain
_RIDGE = 10.0  # samples' worth of belief that all members are as good
_BIAS_RIDGE = 5.0
_FEW = 0.03  # share of the weights below which a member is left out after the first fold
_RACE = 60  # held-out samples from which on that can be told


@dataclass(frozen=True, eq=False)
class Pool:
    """Members' probabilities, pooled: softmax(Σ w_m log p_m + b).

    A member's weight is also how far its probabilities are sharpened, so that one that is too sure or not sure enough
    is put right.

    Attributes:
        weights: (m,) w.
        bias: (c,) b.
        sizes: (c,) shares of the classes, which every member's probabilities are mixed with.
    """

    weights: Floats
    bias: Floats
    sizes: Floats

    @classmethod
    def fit(cls, probabilities: Sequence[Floats], targets: Floats) -> "Pool":
        """The weights that make targets (n, c) most likely; the problem is convex."""
        count, classes = targets.shape
        members = len(probabilities)
        sizes = (targets.sum(0) + 1) / (count + classes)
        logs = np.stack([_logs(p, sizes) for p in probabilities])  # (m, n, c)

        def loss(values: Floats) -> tuple[float, Floats]:
            weights, bias = values[:members], values[members:]
            found = _log_softmax(np.tensordot(weights, logs, 1) + bias)
            error = np.exp(found) - targets
            unequal = weights - 1 / members
            penalty = _RIDGE * unequal @ unequal + _BIAS_RIDGE * bias @ bias
            slope = np.concatenate(
                [np.tensordot(logs, error, 2) + 2 * _RIDGE * unequal, error.sum(0) + 2 * _BIAS_RIDGE * bias]
            )
            return (penalty - float((targets * found).sum())) / count, slope / count

        start = np.concatenate([np.full(members, 1 / members), np.zeros(classes)])
        bounds = [*[(0, None)] * members, *[(None, None)] * classes]
        best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 100}).x
        return cls(best[:members], best[members:], sizes)

    def __call__(self, probabilities: Sequence[Floats]) -> Floats:
        """(n, c)."""
        logs = np.stack([_logs(p, self.sizes) for p in probabilities])
        return np.exp(_log_softmax(np.tensordot(self.weights, logs, 1) + self.bias))


def folds_of(labels: Labels, count: int, seed: int) -> list[Fold]:
    """Rows divided into `count` parts, each with every label where there are enough of it."""
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(min(count, len(labels)), shuffle=True, random_state=seed % 2**32)
    with warnings.catch_warnings():  # a label with fewer samples than folds is judged all the same
        warnings.simplefilter("ignore", UserWarning)
        if np.bincount(labels).max() < splitter.n_splits:
            splitter = StratifiedKFold(int(np.bincount(labels).max()), shuffle=True, random_state=seed % 2**32)
        return list(splitter.split(np.zeros(len(labels)), labels))


def cross_fit(
    members: dict[str, Fit], targets: Floats, folds: list[Fold], as_labels: AsLabels | None = None
) -> dict[str, Floats]:
    """Probabilities (n, c) of every sample by members that never saw it.

    After the first fold, members that add nothing to the others are left out: they cost time and say nothing.
    `as_labels` is how to compare with targets what a member says of them (its name, its probabilities, the targets).
    """
    found: dict[str, Floats] = {}
    rows, held = folds[0]
    first = {}
    for place, (name, fit) in enumerate(members.items()):
        with portion(place / len(members) / len(folds), (place + 1) / len(members) / len(folds)):
            first[name] = fit(rows, held, targets, 0)
    names = list(first)
    if len(held) >= _RACE and len(names) > 1 and len(folds) > 1:
        said = [p if as_labels is None else as_labels(name, p, targets[held]) for name, p in first.items()]
        weights = Pool.fit(said, targets[held]).weights
        names = [name for name, w in zip(first, weights, strict=True) if w >= _FEW * weights.sum()]
    share = (1 - 1 / len(folds)) / max(1, len(names) * (len(folds) - 1))  # of the work, for each that is left
    for place, name in enumerate(names):
        found[name] = np.zeros_like(targets)
        found[name][held] = first[name]
        for number, (rows_, held_) in enumerate(folds[1:], 1):
            begin = 1 / len(folds) + share * (place * (len(folds) - 1) + number - 1)
            with portion(begin, begin + share):
                found[name][held_] = members[name](rows_, held_, targets, number)
    return found


def _logs(probabilities: Floats, sizes: Floats) -> Floats:
    found: Floats = np.log((1 - _FLOOR) * probabilities + _FLOOR * sizes)
    return found


def _log_softmax(values: Floats) -> Floats:
    shifted = values - values.max(1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found
