"""Batches with several views of each sample: how to join and split them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def split_views(inputs: Any, count: int) -> tuple[Any, ...]:
    """The views of a batch: a tuple of `count`, as the loop provides them; anything else serves as every view."""
    if isinstance(inputs, (tuple, list)) and len(inputs) == count:
        return tuple(inputs)
    return (inputs,) * count


def concatenate(parts: Sequence[Any]) -> Any:
    """Inputs concatenated along the samples: tensors, or tuples or mappings of them."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(concatenate(members) for members in zip(*parts, strict=True))
    return torch.cat(list(parts))


def take_rows(inputs: Any, rows: Tensor) -> Any:
    """Some samples of a tensor, or of each in a tuple or mapping."""
    if isinstance(inputs, Mapping):
        return {key: take_rows(value, rows) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(take_rows(value, rows) for value in inputs)
    return inputs[rows]
