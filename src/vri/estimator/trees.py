"""Decision trees as plain arrays: what is left of scikit-learn's forests and boosting once they are grown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_CHUNK = 2000  # rows that go down all trees together


@dataclass(frozen=True, eq=False)
class Trees:
    """Nodes of all trees, one after the other.

    Attributes:
        roots: (t,) the place of each tree's first node.
        feature: (nodes,) the column that a node asks for; -1 in a leaf.
        threshold: (nodes,) a row goes left if its cell is at most this.
        left: (nodes,) place of the left child.
        right: (nodes,) place of the right child.
        gaps_left: (nodes,) whether a row without a value goes left.
        values: (nodes, c) what a leaf says.
        start: (c,) added to the sum over all trees.
        logits: whether the sum is of logits, or of probabilities.
    """

    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    gaps_left: NDArray[np.bool_]
    values: Floats
    start: Floats
    logits: bool

    def predict(self, x: NDArray[np.float32]) -> Floats:
        """(n, c) class probabilities."""
        parts = [self._sum(x[first : first + _CHUNK]) for first in range(0, len(x), _CHUNK)]
        total: Floats = np.concatenate(parts) + self.start
        if self.logits:
            total = np.exp(total - total.max(1, keepdims=True))
        found: Floats = total / total.sum(1, keepdims=True)
        return found

    def _sum(self, x: NDArray[np.float32]) -> Floats:
        rows = np.arange(len(x))
        total = np.zeros((len(x), self.values.shape[1]))
        for root in self.roots:
            place = np.full(len(x), root)
            going = rows
            while len(going):
                here = place[going]
                feature = self.feature[here]
                inner = feature >= 0
                going, here, feature = going[inner], here[inner], feature[inner]
                cell = x[going, feature]
                left = np.where(np.isnan(cell), self.gaps_left[here], cell <= self.threshold[here])
                place[going] = np.where(left, self.left[here], self.right[here])
            total += self.values[place]
        return total

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, by name."""
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """From `arrays`."""
        return cls(**{**arrays, "logits": bool(arrays["logits"])})  # type: ignore[arg-type]


def of_forest(model: Any, num_classes: int) -> Trees:
    """The trees of a fitted forest of scikit-learn, whose classes are numbers below `num_classes`."""
    grown = [tree.tree_ for tree in model.estimators_]
    offsets = np.concatenate([[0], np.cumsum([tree.node_count for tree in grown])])
    shares = [tree.value[:, 0, :] / tree.value[:, 0, :].sum(1, keepdims=True) for tree in grown]
    values = np.zeros((offsets[-1], num_classes))
    values[:, model.classes_] = np.concatenate(shares)
    leaf = np.concatenate([tree.children_left for tree in grown]) < 0
    return Trees(
        offsets[:-1],
        np.where(leaf, -1, np.concatenate([tree.feature for tree in grown])).astype(np.int64),
        np.concatenate([tree.threshold for tree in grown]),
        np.concatenate([tree.children_left + first for tree, first in zip(grown, offsets, strict=False)]),
        np.concatenate([tree.children_right + first for tree, first in zip(grown, offsets, strict=False)]),
        np.concatenate([tree.missing_go_to_left.astype(bool) for tree in grown]),
        values,
        np.zeros(num_classes),
        logits=False,
    )


def of_boosting(model: Any, num_classes: int) -> Trees:
    """The trees of a fitted HistGradientBoostingClassifier without categories."""
    grown = [(tree.nodes, place) for round_ in model._predictors for place, tree in enumerate(round_)]
    two = len(model.classes_) == 2
    offsets = np.concatenate([[0], np.cumsum([len(nodes) for nodes, _ in grown])])
    nodes = np.concatenate([nodes for nodes, _ in grown])
    values = np.zeros((len(nodes), num_classes))
    for (own, place), first in zip(grown, offsets, strict=False):
        values[first : first + len(own), model.classes_[1 if two else place]] = own["value"]
    shift = np.repeat(offsets[:-1], np.diff(offsets))
    start = np.full(num_classes, -np.inf)
    start[model.classes_] = 0.0
    start[model.classes_[1:] if two else model.classes_] = model._baseline_prediction.ravel()
    return Trees(
        offsets[:-1],
        np.where(nodes["is_leaf"], -1, nodes["feature_idx"]).astype(np.int64),
        nodes["num_threshold"].astype(np.float64),
        nodes["left"].astype(np.int64) + shift,
        nodes["right"].astype(np.int64) + shift,
        nodes["missing_go_to_left"].astype(bool),
        values,
        start,
        logits=True,
    )
