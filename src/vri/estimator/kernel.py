"""Regression of the classes on Gaussian functions, in closed form: for few samples of many columns, and for so many
samples that others take too long.

What costs time are sums over samples of products of functions. They don't depend on the labels: `shared` has them once
for all folds and for all looks at the labels.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack

from vri.estimator.evidence import Fit, Floats, Fold, Labels

Inputs = NDArray[np.float32]

_MOST = 1500  # samples that functions are centred on
_TRIED = 1000  # samples at most to choose settings on
_WIDTHS = (0.25, 1.0, 4.0)  # of the kernel, times the median squared distance of two samples
_RIDGES = (0.03, 0.3, 3.0)  # variance of a label beside that of the function
_SLOPES = (2.0, 4.0, 8.0, 16.0)  # from the regression's values to logits
_JITTER = 1e-8
_CHUNK = 10_000  # rows whose functions are in memory together, where they are not kept


class Kernel:
    """Ridge regression of the targets on Gaussian functions, and a softmax of what it says.

    Width, ridge and slope are chosen by the likelihood of targets left out one by one, which the inverse of the
    kernel matrix gives without fitting again. Many samples share the functions of some (Nyström's approximation).
    """

    raw = False

    def __init__(self, width: float | None = None, ridge: float = 1.0, slope: float = 4.0) -> None:
        self.width, self.ridge, self.slope = width, ridge, slope

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Learn; the settings are kept for the next time."""
        x = np.asarray(x, np.float32)
        some = self._begin(x, targets, seed)
        if len(some) == len(x):
            system = self._near(self.centres).astype(np.float64)  # (m, m)
            system[np.diag_indices_from(system)] += self.ridge
            self.coefficients: Floats = cho_solve(cho_factor(system, overwrite_a=True), (targets - self.sizes)[some])
            return self
        products = np.zeros((len(self.centres), len(self.centres)))
        wanted = np.zeros((len(self.centres), targets.shape[1]))
        for first in range(0, len(x), _CHUNK):
            near = self._near(x[first : first + _CHUNK])  # (n, m)
            products += near.T @ near
            wanted += near.T @ (targets[first : first + _CHUNK] - self.sizes).astype(np.float32)
        self._solve(products, wanted)
        return self

    def _begin(self, x: Inputs, targets: Floats, seed: int) -> Labels:
        """Centres, sizes of the classes and settings; the rows of the centres."""
        some = np.random.default_rng(seed).permutation(len(x))[:_MOST]
        self.centres, self.sizes = x[some], targets.mean(0)
        if self.width is None:
            self._choose(self.centres[:_TRIED], targets[some[:_TRIED]])
        return some

    def _solve(self, products: Floats, wanted: Floats) -> None:
        system = products + self.ridge * self._near(self.centres)
        more = _JITTER * float(np.trace(system))  # the products are rounded, relative to the largest eigenvalue
        while True:
            system[np.diag_indices_from(system)] += more
            try:
                self.coefficients = cho_solve(cho_factor(system), wanted)
                return
            except LinAlgError:
                more *= 10

    def _choose(self, x: Inputs, targets: Floats) -> None:
        usual = _usual(x)
        rest = targets - self.sizes
        best = -np.inf
        for width in _WIDTHS:
            near = _similar(x, x, width * usual).astype(np.float64)
            for ridge in _RIDGES:
                left_out = rest - _solved_and_scaled(near, ridge, rest)
                for slope in _SLOPES:
                    found = float((targets * np.log(self._probabilities(left_out, slope) + 1e-3)).sum())
                    if found > best:
                        best, self.width, self.ridge, self.slope = found, width * usual, ridge, slope

    def _near(self, x: Inputs) -> Inputs:
        assert self.width is not None
        return _similar(x, self.centres, self.width)

    def _probabilities(self, values: Floats, slope: float) -> Floats:
        logits = slope * values + np.log(self.sizes + 1e-12)
        raised = np.exp(logits - logits.max(1, keepdims=True))
        found: Floats = raised / raised.sum(1, keepdims=True)
        return found

    def predict(self, x: Any) -> Floats:
        """Softmax of the regression's values, from the classes' sizes on."""
        x = np.asarray(x, np.float32)
        parts = [self._near(x[first : first + _CHUNK]) @ self.coefficients for first in range(0, len(x), _CHUNK)]
        return self._probabilities(np.concatenate(parts), self.slope)

    def again(self) -> Self:
        """With the same settings."""
        return type(self)(self.width, self.ridge, self.slope)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Centres, coefficients, sizes of the classes and settings."""
        settings = np.array([self.width, self.slope])
        return {
            "centres": self.centres,
            "coefficients": self.coefficients,
            "sizes": self.sizes,
            "settings": settings,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """As saved."""
        found = cls(float(arrays["settings"][0]), slope=float(arrays["settings"][1]))
        found.centres, found.coefficients, found.sizes = arrays["centres"], arrays["coefficients"], arrays["sizes"]
        return found


def shared(x: Inputs, folds: list[Fold], seed: int) -> Fit:
    """Cross-fitting of a `Kernel` whose sums over samples are made once.

    Centres come from all samples, without their labels; settings are found with the first targets.
    """
    member = Kernel()
    parts: list[Inputs] = []
    products: list[Floats] = []

    def fit(rows: Labels, held: Labels, targets: Floats, number: int) -> Floats:
        if not parts:
            member._begin(x, targets, seed)
            parts.extend(member._near(x[part]) for _, part in folds)
            products.extend((near.T @ near).astype(np.float64) for near in parts)
        member.sizes = targets[rows].mean(0)
        total, wanted = np.zeros_like(products[0]), np.zeros((len(products[0]), targets.shape[1]))
        for place, (_, part) in enumerate(folds):
            if place != number:
                total += products[place]
                wanted += parts[place].T @ (targets[part] - member.sizes).astype(np.float32)
        member._solve(total, wanted)
        return member._probabilities(parts[number] @ member.coefficients, member.slope)

    return fit


def _usual(x: Inputs) -> float:
    """The width to begin with: the median squared distance."""
    squares = (x * x).sum(1)
    found = float(np.median(squares[:, None] - 2 * x @ x.T + squares))
    return found if found > 1e-5 * float(squares.mean()) else 1.0  # samples that are all the same


def _solved_and_scaled(near: Floats, ridge: float, values: Floats) -> Floats:
    """A⁻¹ values / diag(A⁻¹) for A = near + ridge·I: how far each value is from what the others predict for it."""
    system = near.copy(order="F")
    system[np.diag_indices_from(system)] += ridge
    factor, failed = lapack.dpotrf(system, lower=1, overwrite_a=1)
    if failed:
        raise LinAlgError("the kernel matrix is not positive definite")
    solved: Floats = lapack.dpotrs(factor, values, lower=1)[0]
    # diag(A⁻¹) from the inverse of the factor alone: a third of the work of inverting A
    half, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
    diagonal: Floats = np.square(np.tril(half)).sum(0)
    return solved / diagonal[:, None]


def _similar(a: Inputs, b: Inputs, width: float) -> Inputs:
    """(n, m) exp(-‖a - b‖² / width)."""
    found: Inputs = a @ b.T
    found *= 2
    found -= (a * a).sum(1)[:, None]
    found -= (b * b).sum(1)
    np.minimum(found, 0, out=found)
    found /= np.float32(width)
    return np.exp(found, out=found)
