"""Decision trees as plain arrays: what is left of scikit-learn's forests and boosting once they are grown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Floats = NDArray[np.float64]
Places = NDArray[np.int32]
_CHUNK = 2000  # rows that go down all trees together


@dataclass(frozen=True, eq=False)
class Trees:
    """Nodes of all trees, one after the other, and what their leaves say.

    A leaf speaks of few classes, so only those values are kept that are not 0: the leaves are the rows of a sparse
    matrix (leaves, c), whose three arrays are `values`, `classes` and `ends`.

    Attributes:
        roots: (t,) the place of each tree's first node.
        feature: (nodes,) the column that a node asks for; -1 in a leaf.
        threshold: (nodes,) a row goes left if its cell is at most this.
        left: (nodes,) place of the left child; of a leaf, its number among the leaves.
        right: (nodes,) place of the right child.
        gaps_left: (nodes,) whether a row without a value goes left.
        values: what the leaves say.
        classes: of which class.
        ends: (leaves + 1,) where a leaf's values begin and end.
        start: (c,) added to the sum over all trees.
        logits: whether the sum is of logits, or of probabilities.
    """

    roots: NDArray[np.int64]
    feature: Places
    threshold: Floats
    left: Places
    right: Places
    gaps_left: NDArray[np.bool_]
    values: Floats
    classes: Places
    ends: NDArray[np.int64]
    start: Floats
    logits: bool

    @classmethod
    def of(cls, nodes: Sequence[Mapping[str, Any]], said: sparse.csr_array, start: Floats, logits: bool) -> Self:
        """From the nodes of each tree, and the values (leaves, c) of all leaves in their order."""
        sizes = [len(tree["feature"]) for tree in nodes]
        roots = np.cumsum([0, *sizes])[:-1]
        whole = {name: np.concatenate([tree[name] for tree in nodes]) for name in nodes[0]}
        leaf, shift = whole["leaf"], np.repeat(roots, sizes)
        return cls(
            roots,
            np.where(leaf, -1, whole["feature"]).astype(np.int32),
            whole["threshold"].astype(np.float64),
            np.where(leaf, np.cumsum(leaf) - 1, whole["left"] + shift).astype(np.int32),
            (whole["right"] + shift).astype(np.int32),
            whole["gaps_left"].astype(bool),
            said.data,
            said.indices.astype(np.int32),
            said.indptr.astype(np.int64),
            start,
            logits,
        )

    def predict(self, x: NDArray[np.float32]) -> Floats:
        """(n, c) class probabilities."""
        said = sparse.csr_array((self.values, self.classes, self.ends), (len(self.ends) - 1, len(self.start)))
        parts = [self._sum(x[first : first + _CHUNK], said) for first in range(0, len(x), _CHUNK)]
        total: Floats = np.concatenate(parts) + self.start
        if self.logits:
            total = np.exp(total - total.max(1, keepdims=True))
        found: Floats = total / total.sum(1, keepdims=True)
        return found

    def _sum(self, x: NDArray[np.float32], said: sparse.csr_array) -> Floats:
        rows, trees = len(x), len(self.roots)
        leaves = np.empty((rows, trees), np.int32)
        for number, root in enumerate(self.roots):
            place = np.full(rows, root)
            going = np.arange(rows)
            while len(going):
                here = place[going]
                feature = self.feature[here]
                inner = feature >= 0
                going, here, feature = going[inner], here[inner], feature[inner]
                cell = x[going, feature]
                left = np.where(np.isnan(cell), self.gaps_left[here], cell <= self.threshold[here])
                place[going] = np.where(left, self.left[here], self.right[here])
            leaves[:, number] = self.left[place]
        ends = np.arange(0, rows * trees + 1, trees)
        reached = sparse.csr_array((np.ones(rows * trees), leaves.ravel(), ends), (rows, said.shape[0]))
        found: Floats = (reached @ said).toarray()
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it, by name."""
        return {name: np.asarray(value) for name, value in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """From `arrays`."""
        return cls(**{**arrays, "logits": bool(arrays["logits"])})  # type: ignore[arg-type]


def of_forest(model: Any, num_classes: int) -> Trees:
    """The trees of a fitted forest of scikit-learn, whose classes are numbers below `num_classes`."""
    nodes, said = [], []
    for tree in (estimator.tree_ for estimator in model.estimators_):
        leaf = tree.children_left < 0
        nodes.append(
            {
                "leaf": leaf,
                "feature": tree.feature,
                "threshold": tree.threshold,
                "left": tree.children_left,
                "right": tree.children_right,
                "gaps_left": tree.missing_go_to_left,
            }
        )
        shares = tree.value[leaf, 0, :]
        said.append(sparse.csr_array(shares / shares.sum(1, keepdims=True)))
    return Trees.of(nodes, _of_all(sparse.vstack(said), model.classes_, num_classes), np.zeros(num_classes), False)


def of_boosting(model: Any, num_classes: int) -> Trees:
    """The trees of a fitted HistGradientBoostingClassifier without categories."""
    two = len(model.classes_) == 2
    nodes, values, places = [], [], []
    for place, tree in ((place, tree.nodes) for round_ in model._predictors for place, tree in enumerate(round_)):
        leaf = tree["is_leaf"].astype(bool)
        nodes.append(
            {
                "leaf": leaf,
                "feature": tree["feature_idx"],
                "threshold": tree["num_threshold"],
                "left": tree["left"].astype(np.int64),
                "right": tree["right"].astype(np.int64),
                "gaps_left": tree["missing_go_to_left"],
            }
        )
        values.append(tree["value"][leaf])
        places.append(np.full(leaf.sum(), 1 if two else place))
    data, indices = np.concatenate(values), np.concatenate(places)
    said = sparse.csr_array((data, indices, np.arange(len(data) + 1)), (len(data), len(model.classes_)))
    start = np.full(num_classes, -np.inf)
    start[model.classes_] = 0.0
    start[model.classes_[1:] if two else model.classes_] = model._baseline_prediction.ravel()
    return Trees.of(nodes, _of_all(said, model.classes_, num_classes), start, logits=True)


def _of_all(said: sparse.csr_array, known: NDArray[np.int64], num_classes: int) -> sparse.csr_array:
    """Values (leaves, classes that the model has seen) as values of all classes."""
    return sparse.csr_array((said.data, known[said.indices], said.indptr), (said.shape[0], num_classes))
