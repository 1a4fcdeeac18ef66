"""Batches with several views of each sample: how to join and split them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vri.core.checks import on_leaves


def split_views(inputs: Any, count: int) -> tuple[Any, ...]:
    """The views of a batch: a tuple of `count`, as the loop provides them; anything else serves as every view."""
    if isinstance(inputs, (tuple, list)) and len(inputs) == count:
        return tuple(inputs)
    return (inputs,) * count


def concatenate(parts: Sequence[Any]) -> Any:
    """Inputs concatenated along the samples: tensors, or tuples or mappings of them."""
    return on_leaves(lambda *tensors: torch.cat(tensors), *parts)


def take_rows(inputs: Any, rows: Tensor) -> Any:
    """Some samples of a tensor, or of each in a tuple or mapping."""
    return on_leaves(lambda tensor: tensor[rows], inputs)
