"""Linear discriminant analysis on soft targets: closed form, and hard to lead astray by wrong labels."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

Floats = NDArray[np.float64]

_RANGE = np.log(0.02), np.log(2.0)  # of the logarithm of the factor on the logits


class LinearDiscriminant:
    """Classes as normal distributions of one covariance; Fisher (1936).

    Wrong labels pull the means of all classes towards each other, and so hardly turn the directions between them.
    The covariance of d columns is shrunk towards one that is the same in all directions, by 2d / (2d + n) for n
    samples. The logits of so many columns are far too sure: a factor is found by the likelihood of held-out targets.
    """

    raw = False

    def __init__(self, factor: float | None = None) -> None:
        self.factor = factor

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Learn; the factor is kept for the next time."""
        x = np.asarray(x, np.float32)
        if self.factor is None:
            self.factor = _factor(x, targets, seed)
        coefficients, intercept = discriminant(x, targets)
        self.coefficients, self.intercept = self.factor * coefficients, self.factor * intercept
        return self

    def predict(self, x: Any) -> Floats:
        """Softmax of the logits."""
        return _softmax(np.asarray(np.asarray(x, np.float32) @ self.coefficients, np.float64) + self.intercept)

    def again(self) -> Self:
        """With the same factor."""
        return type(self)(self.factor)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Coefficients and intercept."""
        return {"coefficients": self.coefficients, "intercept": self.intercept}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """As saved."""
        found = cls()
        found.coefficients, found.intercept = arrays["coefficients"], arrays["intercept"]
        return found


def discriminant(x: NDArray[np.float32], targets: Floats, shrinkage: float | None = None) -> tuple[Floats, Floats]:
    """Coefficients (d, c) and intercept (c,) of the logits."""
    count, width = x.shape
    if shrinkage is None:
        shrinkage = 2 * width / (2 * width + count)
    sizes = targets.sum(0) + 1e-6  # (c,)
    means = np.asarray(x.T @ targets.astype(np.float32), np.float64).T / sizes[:, None]  # (c, d)
    covariance = (np.asarray(x.T @ x, np.float64) - (means.T * sizes) @ means) / count
    level = max(float(np.trace(covariance)) / width, 1e-9)
    shrunk = (1 - shrinkage) * covariance + shrinkage * level * np.eye(width)
    coefficients = np.linalg.solve(shrunk, means.T)
    return coefficients, np.log(sizes / sizes.sum()) - 0.5 * (means.T * coefficients).sum(0)


def _factor(x: NDArray[np.float32], targets: Floats, seed: int) -> float:
    """Of the logits, by a quarter of the samples."""
    order = np.random.default_rng(seed).permutation(len(targets))
    held, kept = order[::4], np.delete(order, np.s_[::4])
    if not len(kept):
        return 1.0
    coefficients, intercept = discriminant(x[kept], targets[kept])
    logits = x[held] @ coefficients + intercept

    def loss(log_factor: float) -> float:
        return -float((targets[held] * np.log(_softmax(np.exp(log_factor) * logits) + 1e-6)).sum())

    return float(np.exp(minimize_scalar(loss, bounds=_RANGE, method="bounded", options={"xatol": 0.02}).x))


def _softmax(logits: Floats) -> Floats:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    found: Floats = raised / raised.sum(1, keepdims=True)
    return found
