"""The classifiers that have a say beside the network: small, fast, and of different minds.

Each learns from soft targets, a row of class probabilities for each sample: a label that is in doubt counts for several
classes. What a member has learned is a handful of arrays, so that a file can hold it without code.
"""

import warnings
from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from vri.estimator.discriminant import LinearDiscriminant
from vri.estimator.kernel import Kernel
from vri.estimator.trees import Trees, of_boosting, of_forest

Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]

_LEAST = 0.02  # of a sample's targets below which a class is left out: rows would double for nothing
_LIKELIEST = 3  # classes of a sample that count at most
_STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # inverse regularisation of logistic regression; chosen on held-out samples
_TRIED = 4000  # samples at most to choose it on
_TREES, _LEAF = 100, 3
_GROWN = 100_000  # samples at most that trees grow from
_NEIGHBOURS = 15
_COPIES = 3


class Member(Protocol):
    """A classifier that learns from soft targets.

    Attributes:
        raw: whether it wants wide sparse inputs as they are, not projected to few columns.
    """

    raw: bool

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Learn from inputs (n, d) and class probabilities (n, c)."""

    def predict(self, x: Any) -> Floats:
        """Class probabilities (n, c)."""

    def again(self) -> Self:
        """One that has not learned yet, with the settings that this one has found."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was learned."""

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """The member as `arrays` described it."""


class Linear:
    """Logistic regression. The strength of its regularisation is chosen by the likelihood of held-out targets."""

    raw = True

    def __init__(self, strength: float | None = None) -> None:
        self.strength = strength

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Learn; the strength is kept for the next time."""
        if self.strength is None:
            self.strength = self._best(x, targets, seed)
        self._learn(x, targets)
        return self

    def _best(self, x: Any, targets: Floats, seed: int) -> float:
        some = np.random.default_rng(seed).permutation(len(targets))[:_TRIED]
        x, targets = x[some], targets[some]
        held = np.arange(len(some)) % 4 == 0
        if not held.any() or len(np.unique(targets[~held].argmax(1))) < 2:
            return _STRENGTHS[2]
        wide = 10.0 if sparse.issparse(x) else 1.0  # rows of texts have length 1, not √d
        found = []
        for strength in _STRENGTHS:
            self.strength = strength * wide
            self._learn(x[~held], targets[~held])
            found.append(float((targets[held] * np.log(self.predict(x[held]) + 1e-3)).sum()))
        return _STRENGTHS[int(np.argmax(found))] * wide

    def _learn(self, x: Any, targets: Floats) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        rows, labels, weights = _rows(targets)
        count = targets.shape[1]
        self.coefficients = np.zeros((x.shape[1], count))
        self.intercept = np.full(count, -np.inf)
        present = np.unique(labels)
        if len(present) == 1:
            self.intercept[present] = 0.0
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=self.strength or 1.0, tol=1e-3, max_iter=100).fit(
                x[rows], labels, sample_weight=weights
            )
        if len(present) == 2:  # scikit-learn has one row of coefficients for two classes
            self.coefficients[:, present[1]] = model.coef_[0]
            self.intercept[present] = 0.0, model.intercept_[0]
        else:
            self.coefficients[:, present] = model.coef_.T
            self.intercept[present] = model.intercept_

    def predict(self, x: Any) -> Floats:
        """Softmax of the logits."""
        logits = np.asarray(x @ self.coefficients, np.float64) + self.intercept
        raised = np.exp(logits - logits.max(1, keepdims=True))
        found: Floats = raised / raised.sum(1, keepdims=True)
        return found

    def again(self) -> Self:
        """With the same strength."""
        return type(self)(self.strength)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Coefficients and intercept."""
        return {"coefficients": self.coefficients, "intercept": self.intercept}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """As saved."""
        found = cls()
        found.coefficients, found.intercept = arrays["coefficients"], arrays["intercept"]
        return found


class Bayes:
    """Naive Bayes with multinomial counts, for texts: closed form, and hard to lead astray."""

    raw = True
    _SMOOTHING = 0.1

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Count words by class."""
        counts = np.asarray((x.T @ targets).T) + self._SMOOTHING  # (c, d)
        self.words = np.log(counts / counts.sum(1, keepdims=True)).T
        sizes = targets.sum(0)
        with np.errstate(divide="ignore"):
            self.sizes = np.log(sizes / sizes.sum())
        return self

    def predict(self, x: Any) -> Floats:
        """By Bayes' rule."""
        logits = np.asarray(x @ self.words) + self.sizes
        raised = np.exp(logits - logits.max(1, keepdims=True))
        found: Floats = raised / raised.sum(1, keepdims=True)
        return found

    def again(self) -> Self:
        """A new one."""
        return type(self)()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Logarithms of the shares of words and classes."""
        return {"words": self.words, "sizes": self.sizes}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """As saved."""
        found = cls()
        found.words, found.sizes = arrays["words"], arrays["sizes"]
        return found


class Neighbours:
    """The targets of the nearest samples, the nearer the more."""

    raw = False

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Remember."""
        self.samples, self.targets = np.asarray(x, np.float32), targets
        self._search: Any = None
        return self

    def predict(self, x: Any) -> Floats:
        """Mean of the neighbours' targets, weighted by the inverse of their distance."""
        from sklearn.neighbors import NearestNeighbors

        if self._search is None:
            count = min(_NEIGHBOURS, len(self.samples))
            self._search = NearestNeighbors(n_neighbors=count).fit(self.samples)
        distance, index = self._search.kneighbors(np.asarray(x, np.float32))
        weights = 1 / np.maximum(distance, 1e-6)
        weights /= weights.sum(1, keepdims=True)
        found: Floats = np.einsum("nk,nkc->nc", weights, self.targets[index])
        return found

    def again(self) -> Self:
        """A new one."""
        return type(self)()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The samples and their targets."""
        return {"samples": self.samples, "targets": self.targets}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """As saved."""
        return cls().fit(arrays["samples"], arrays["targets"], 0)


class _OfTrees:
    """What forest and boosting share: they end as trees.

    Turning scikit-learn's model into trees takes longer than growing them if classes are many, so a model that is
    asked only once, as in cross-fitting, is asked itself.
    """

    raw = False
    _model: Any = None
    _trees: Trees | None = None
    _count = 0  # of classes; the model may have seen fewer

    def _convert(self) -> Trees:
        raise NotImplementedError

    @staticmethod
    def _some(x: Any, targets: Floats, seed: int) -> tuple[NDArray[np.float32], Floats]:
        """Not more samples than trees need."""
        x = np.asarray(x, np.float32)
        if len(x) <= _GROWN:
            return x, targets
        chosen = np.random.default_rng(seed).permutation(len(x))[:_GROWN]
        return x[chosen], targets[chosen]

    @property
    def trees(self) -> Trees:
        """What was learned."""
        if self._trees is None:
            self._trees = self._convert()
        return self._trees

    def predict(self, x: Any) -> Floats:
        """What the trees say together."""
        x = np.asarray(x, np.float32)
        if self._model is None:
            return self.trees.predict(x)
        found: Floats = np.zeros((len(x), self._count))
        found[:, self._model.classes_] = self._model.predict_proba(x)
        return found

    def again(self) -> Self:
        """A new one."""
        return type(self)()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Of the trees."""
        return self.trees.arrays()

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """As saved."""
        found = cls()
        found._trees = Trees.from_arrays(arrays)
        return found


class Forest(_OfTrees):
    """Extremely randomised trees."""

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Grow."""
        from sklearn.ensemble import ExtraTreesClassifier

        x, targets = self._some(x, targets, seed)
        rows, labels, weights = _rows(targets)
        # by weight: samples, not rows, which soft targets make more of. A hair less, for sums that are rounded
        least = min(0.5, (_LEAF - 1e-6) / len(targets))
        model = ExtraTreesClassifier(_TREES, min_weight_fraction_leaf=least, random_state=seed % 2**31)
        self._model = model.fit(x[rows], labels, sample_weight=weights)
        self._count = targets.shape[1]
        return self

    def _convert(self) -> Trees:
        return of_forest(self._model, self._count)


class Boosting(_OfTrees):
    """Gradient boosting on histograms; gaps in the inputs are a branch of their own."""

    def fit(self, x: Any, targets: Floats, seed: int) -> Self:
        """Boost."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        x, targets = self._some(x, targets, seed)
        x = np.where(np.isnan(x).all(0), np.float32(0), x)  # scikit-learn can't bin a column without any value
        model = HistGradientBoostingClassifier(
            max_iter=_TREES, max_leaf_nodes=15, l2_regularization=1.0, early_stopping=False, random_state=seed % 2**31
        )
        labels = _copies(targets)  # not weights: to bin weighted samples, scikit-learn takes longer than for all else
        self._model = model.fit(np.concatenate([x] * len(labels)), labels.ravel())
        self._count = targets.shape[1]
        return self

    def _convert(self) -> Trees:
        return of_boosting(self._model, self._count)


MEMBERS: dict[str, type[Linear | LinearDiscriminant | Kernel | Bayes | Neighbours | Forest | Boosting]] = {
    "linear": Linear,
    "gaussian": LinearDiscriminant,
    "kernel": Kernel,
    "bayes": Bayes,
    "neighbours": Neighbours,
    "forest": Forest,
    "boosting": Boosting,
}


def _copies(targets: Floats) -> NDArray[np.int64]:
    """(copies, n) soft targets as labels of copies of every sample, in proportion; one copy where none is in doubt."""
    doubtful = bool((targets.max(1) < 1 - 0.5 / _COPIES).any())
    levels = (np.arange(_COPIES) + 0.5) / _COPIES if doubtful else np.array([0.5])
    ends = targets.cumsum(1) / targets.sum(1, keepdims=True)
    found: NDArray[np.int64] = (ends[None] < levels[:, None, None]).sum(2).clip(max=targets.shape[1] - 1)
    return found


def _rows(targets: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Soft targets as rows with a label and a weight each, which all of scikit-learn understands."""
    least = np.full(len(targets), _LEAST)
    if targets.shape[1] > _LIKELIEST:
        least = np.maximum(least, -np.partition(-targets, _LIKELIEST - 1)[:, _LIKELIEST - 1])
    kept = np.where(targets < least[:, None], 0.0, targets)
    kept /= kept.sum(1, keepdims=True)
    rows, labels = np.nonzero(kept)
    return rows, labels, kept[rows, labels]
