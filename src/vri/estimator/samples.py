"""Inputs of a network: a tensor, several in a tuple or dict, or a data set that is read sample by sample."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from vri.data.batches import Data, length, read_labels

_LABELS = ("labels", "label")  # keys of a mapping that are not inputs


class Items(Dataset[Any]):
    """Samples of a data set: their inputs, and labels that come from elsewhere.

    Attributes:
        dataset: of inputs, of (inputs, label), or of mappings, which may have a key "labels".
        rows: numbers of the samples.
        targets: a label for each of them; None for inputs alone.
    """

    def __init__(self, dataset: Any, rows: Tensor, targets: Tensor | None = None) -> None:
        self.dataset, self.rows, self.targets = dataset, rows, targets

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        inputs = _leaves(split(self.dataset[int(self.rows[index])])[0])
        return inputs if self.targets is None else (inputs, self.targets[index])


def several(X: Any) -> bool:
    """Whether these are inputs that only a network of the user's own can take."""
    if sparse.issparse(X):  # one kind of which is a mapping
        return False
    if isinstance(X, (Dataset, Mapping)) or hasattr(X, "set_format"):  # the last is a data set of Hugging Face
        return True
    return isinstance(X, tuple) and bool(X) and all(isinstance(part, (np.ndarray, Tensor)) for part in X)


def prepare(X: Any) -> tuple[Any, Any]:
    """Inputs as tensors or `Items`, and the labels that came with them, or None."""
    if type(X) is TensorDataset:
        tensors = X.tensors
        paired = len(tensors) == 2 and tensors[1].ndim == 1
        inputs = tensors[0] if paired or len(tensors) == 1 else tensors
        return prepare(inputs if isinstance(inputs, tuple) else (inputs,))[0], tensors[1] if paired else None
    if isinstance(X, Mapping):
        labels = next((X[key] for key in _LABELS if key in X), None)
        named = {key: _tensor(value, f"X[{key!r}]") for key, value in X.items() if key not in _LABELS}
        return _same_length(named), labels
    if isinstance(X, tuple):
        return _same_length(tuple(_tensor(value, f"X[{i}]") for i, value in enumerate(X))), None
    return Items(X, torch.arange(length(X))), None


def labels_of(X: Items) -> Any:
    """The labels in a data set of (inputs, label), or None if it has none."""
    found = read_labels(X.dataset)
    if found is not None:
        return found.numpy()
    labels = [split(X.dataset[i])[1] for i in range(len(X))]
    return None if any(label is None for label in labels) else labels


def split(item: Any) -> tuple[Any, Any]:
    """Inputs of a sample, and its label or None.

    A pair is (inputs, label) if its second part is a single number or a string; else both parts are inputs.
    """
    if isinstance(item, Mapping):
        label = next((item[key] for key in _LABELS if key in item), None)
        return {key: value for key, value in item.items() if key not in _LABELS}, _plain(label)
    if isinstance(item, (tuple, list)) and len(item) == 2 and (isinstance(item[1], str) or np.ndim(item[1]) == 0):
        return item[0], _plain(item[1])
    return item, None


def count(inputs: Any) -> int:
    """Number of samples."""
    if isinstance(inputs, Mapping):
        return count(next(iter(inputs.values())))
    return count(inputs[0]) if isinstance(inputs, tuple) else len(inputs)


def part(inputs: Any, rows: Tensor) -> Any:
    """The samples of these numbers."""
    if isinstance(inputs, Items):
        return Items(inputs.dataset, inputs.rows[rows])
    if isinstance(inputs, Mapping):
        return {key: part(value, rows) for key, value in inputs.items()}
    return tuple(part(value, rows) for value in inputs) if isinstance(inputs, tuple) else inputs[rows]


def with_labels(inputs: Any, labels: Tensor | None = None) -> Data:
    """A data set to learn from; zeros for labels where only the inputs matter."""
    if labels is None:
        labels = torch.zeros(count(inputs), dtype=torch.int64)
    return Items(inputs.dataset, inputs.rows, labels) if isinstance(inputs, Items) else (inputs, labels)


def _same_length(inputs: Any) -> Any:
    named = list(inputs.items() if isinstance(inputs, dict) else enumerate(inputs))
    if not named:
        raise ValueError("X has no inputs; expected at least one array")
    sizes = {len(value) for _, value in named}
    if len(sizes) > 1:
        shown = ", ".join(f"X[{key!r}] has {len(value)}" for key, value in named)
        raise ValueError(f"the parts of X have different numbers of samples ({shown}); expected as many in each")
    if not isinstance(inputs, dict) and len(inputs) == 1:
        return inputs[0]
    return inputs


def _tensor(value: Any, name: str) -> Tensor:
    """A tensor that networks take: 32-bit floats, 64-bit integers, the rest as it is."""
    try:
        found = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} can't be made a tensor; expected an array of numbers with as many values for each sample "
            "(pad token ids to one length)"
        ) from None
    if found.dtype == torch.float64:
        found = found.float()
    if found.is_floating_point() and not bool(found.isfinite().all()):
        raise ValueError(f"{name} contains NaN or infinity; expected finite numbers")
    return found.long() if found.dtype in (torch.int8, torch.int16, torch.int32) else found


def _leaves(inputs: Any) -> Any:
    """Inputs of a sample with lists and arrays made tensors, so that they can be stacked."""
    if isinstance(inputs, Mapping):
        return {key: _leaves(value) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_leaves(value) for value in inputs)
    if isinstance(inputs, (list, np.ndarray)):
        inputs = torch.as_tensor(np.asarray(inputs))
    return inputs.float() if isinstance(inputs, Tensor) and inputs.dtype == torch.float64 else inputs


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, (Tensor, np.generic)) and np.ndim(label) == 0 else label
