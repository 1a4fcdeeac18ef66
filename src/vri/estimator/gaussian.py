"""Linear discriminant analysis on soft targets: closed form, and hard to lead astray by wrong labels."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

Floats = NDArray[np.float64]

_TRIED = 4000  # samples at most to choose settings on
_SHRINKAGES = (0.1, 0.3, 0.8)  # towards a covariance that is the same in all directions; chosen on held-out samples
_COLDEST, _WARMEST = np.log(0.02), np.log(2.0)  # range of the temperature


class Gaussian:
    """Classes as normal distributions of one covariance; Fisher (1936).

    Wrong labels pull the means of all classes towards each other, and so hardly turn the directions between them.
    The covariance is shrunk (Ledoit and Wolf 2004), and the logits of so many columns, which depend on each other, are
    far too sure: both the shrinkage and a factor on the logits are chosen by the likelihood of held-out targets.
    """

    raw = False

    def __init__(self, settings: tuple[float, float] | None = None) -> None:
        self.settings = settings

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Learn; shrinkage and factor are kept for the next time."""
        x = np.asarray(x, np.float32)
        if self.settings is None:
            self.settings = self._best_settings(x, targets, seed)
        shrinkage, factor = self.settings
        self.coefficients, self.intercept = _Moments(x, targets).solve(shrinkage)
        self.coefficients *= factor
        self.intercept *= factor
        return self

    def _best_settings(self, x: NDArray[np.float32], targets: Floats, seed: int) -> tuple[float, float]:
        some = np.random.default_rng(seed).permutation(len(targets))[:_TRIED]
        held, kept = some[::4], np.delete(some, np.s_[::4])
        if not len(kept):
            return _SHRINKAGES[-1], 1.0
        moments = _Moments(x[kept], targets[kept])
        found = []
        for shrinkage in _SHRINKAGES:
            coefficients, intercept = moments.solve(shrinkage)
            logits = x[held] @ coefficients + intercept

            def loss(log_factor: float, logits: Floats = logits) -> float:
                return -float((targets[held] * np.log(_softmax(np.exp(log_factor) * logits) + 1e-6)).sum())

            best = minimize_scalar(loss, bounds=(_COLDEST, _WARMEST), method="bounded", options={"xatol": 0.02})
            found.append((float(best.fun), shrinkage, float(np.exp(best.x))))
        return min(found)[1:]

    def predict(self, x: Any) -> Floats:
        """Softmax of the logits."""
        return _softmax(np.asarray(np.asarray(x, np.float32) @ self.coefficients, np.float64) + self.intercept)

    def again(self) -> Self:
        """With the same shrinkage and factor."""
        return type(self)(self.settings)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Coefficients and intercept."""
        return {"coefficients": self.coefficients, "intercept": self.intercept}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """As saved."""
        found = cls()
        found.coefficients, found.intercept = arrays["coefficients"], arrays["intercept"]
        return found


class _Moments:
    """What the closed form needs of the samples."""

    def __init__(self, x: NDArray[np.float32], targets: Floats) -> None:
        self.sizes = targets.sum(0) + 1e-6  # (c,)
        self.means = np.asarray(x.T @ targets.astype(np.float32), np.float64).T / self.sizes[:, None]  # (c, d)
        squares = np.asarray(x.T @ x, np.float64)
        self.covariance = (squares - (self.means.T * self.sizes) @ self.means) / len(x)

    def solve(self, shrinkage: float) -> tuple[Floats, Floats]:
        """Coefficients (d, c) and intercept (c,) of the logits."""
        width = len(self.covariance)
        level = max(float(np.trace(self.covariance)) / width, 1e-9)
        shrunk = (1 - shrinkage) * self.covariance + shrinkage * level * np.eye(width)
        coefficients = np.linalg.solve(shrunk, self.means.T)
        priors = np.log(self.sizes / self.sizes.sum())
        return coefficients, priors - 0.5 * (self.means.T * coefficients).sum(0)


def _softmax(logits: Floats) -> Floats:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    found: Floats = raised / raised.sum(1, keepdims=True)
    return found
