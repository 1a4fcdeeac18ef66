"""Checks of what the user passes: each error says what came, what was expected and how to fix it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = Any  # (inputs, labels) or longer; inputs: a tensor, a tuple (positional) or a mapping (by keyword)


class DivergenceError(FloatingPointError):
    """Training produced NaN or Inf."""


def unpack(
    batch: Batch, what: str, num_classes: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Any, Tensor]:
    """Inputs and labels of a batch, on `device`; labels checked, soft ones in `dtype`."""
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        got = (
            f"{type(batch).__name__} of length {len(batch)}"
            if isinstance(batch, (tuple, list))
            else type(batch).__name__
        )
        raise ValueError(
            f"the {what} batch has no labels: got a {got}, expected a pair (inputs, labels); "
            "let the data set return both"
        )
    inputs, labels = batch[0], batch[1]
    check_labels(labels, num_classes, what)
    size = _length(inputs)
    if size != len(labels):
        raise ValueError(
            f"the {what} batch has {size} inputs but {len(labels)} labels; expected one label for each input"
        )
    kind = dtype if labels.is_floating_point() else torch.long
    if labels.dtype != kind or labels.device != device:
        labels = labels.to(device, kind, non_blocking=True)
    return to_device(inputs, device), labels


def check_labels(labels: Any, num_classes: int, what: str) -> None:
    """Labels are class indices (n,) or probability vectors (n, num_classes).

    Values are checked in main memory only: on a GPU every check would force a synchronisation. `vri.train` checks all
    labels of its sets once, before they are moved.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"the {what} labels are a {type(labels).__name__}, expected a torch.Tensor of class indices; "
            "convert them with torch.as_tensor(labels)"
        )
    if labels.ndim == 0 or len(labels) == 0:
        raise ValueError(f"the {what} batch is empty: expected at least one sample; check the data set and its filter")
    if labels.is_floating_point():
        if labels.ndim != 2 or labels.shape[1] != num_classes:
            raise ValueError(
                f"the {what} labels are {str(labels.dtype).removeprefix('torch.')} of shape "
                f"{tuple(labels.shape)}: expected class indices (integers, shape (n,)) or probability vectors "
                f"(shape (n, {num_classes})); if they are indices, convert them with labels.long()"
            )
        if labels.is_cuda:
            return
        if bool((labels < 0).any()) or not torch.allclose(labels.sum(1), labels.new_ones(len(labels)), atol=1e-3):
            raise ValueError(
                f"the {what} labels are vectors that are not probabilities: expected rows that are "
                "non-negative and sum to 1; normalise them first"
            )
        return
    if labels.dtype == torch.bool or labels.is_complex():
        raise TypeError(
            f"the {what} labels are {str(labels.dtype).removeprefix('torch.')}, expected class indices; "
            "convert them with labels.long()"
        )
    if labels.ndim != 1:
        raise ValueError(
            f"the {what} labels have shape {tuple(labels.shape)}, expected class indices of shape (n,); "
            "one-hot labels must be floating point"
        )
    if labels.is_cuda:
        return
    low, high = map(int, labels.aminmax())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"the {what} labels run from {low} to {high}, but num_classes={num_classes} allows 0 to "
            f"{num_classes - 1}; map the labels to 0..{num_classes - 1} or raise num_classes"
        )


def check_meta_labels(labels: Tensor, num_classes: int, every_class: bool = True) -> None:
    """Check that the trusted set is not empty and, with `every_class`, has every class."""
    if len(labels) == 0:
        raise ValueError(
            "the meta set is empty: VRI learns to rectify from a few samples with right labels; "
            "give at least one sample of each class"
        )
    check_labels(labels, num_classes, "meta")
    present = (labels.sum(0) > 0).nonzero() if labels.is_floating_point() else labels.unique()
    missing = sorted(set(range(num_classes)) - set(present.flatten().tolist()))
    if missing and every_class:
        raise ValueError(
            f"the meta set lacks {'class' if len(missing) == 1 else 'classes'} "
            f"{', '.join(map(str, missing))}: expected at least one clean sample of each of the "
            f"{num_classes} classes; add some, or lower num_classes"
        )


def check_finite(outputs: Tensor, what: str) -> None:
    """Check that the networks read no NaN or Inf."""
    if not bool(torch.isfinite(outputs).all()):
        bad = int((~torch.isfinite(outputs)).flatten(1).any(1).sum())
        raise DivergenceError(
            f"the {what} of {bad} of {len(outputs)} samples contain NaN or Inf, expected finite numbers; "
            "clean the inputs, or lower the learning rate if this came up during training"
        )


def on_leaves(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply a function to a tensor, or to each in a tuple or mapping of them; `others` are nested in the same way."""
    if isinstance(first, Mapping):
        return {key: on_leaves(function, value, *(other[key] for other in others)) for key, value in first.items()}
    if isinstance(first, (tuple, list)):
        return tuple(on_leaves(function, *parts) for parts in zip(first, *others, strict=True))
    return function(first, *others)


def to_device(inputs: Any, device: torch.device) -> Any:
    """Move a tensor, or a tuple or mapping of them."""

    def move(leaf: Any) -> Any:
        stays = not isinstance(leaf, Tensor) or leaf.device == device
        return leaf if stays else leaf.to(device, non_blocking=True)

    return on_leaves(move, inputs)


def _length(inputs: Any) -> int:
    first = inputs
    while isinstance(first, (tuple, list, Mapping)):
        first = next(iter(first.values())) if isinstance(first, Mapping) else first[0]
    return len(first)
