"""Common parts of the classifier factories: the head, He initialisation, the seed, checks of sizes."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from vri.core.randomness import seeded

Module = TypeVar("Module", bound=nn.Module)


def pooled_head(width: int, num_classes: int) -> list[nn.Module]:
    """Mean over the image, then the linear layer that computes the logits."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)]


def he_init(model: Module) -> Module:
    """Redraw all convolution weights, He normal."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def seeded_init(seed: int | None, **sizes: int | Sequence[int]) -> AbstractContextManager[None]:
    """Within this context, initial weights come from `seed`, or from the global RNG if it is None.

    Sizes of the classifier below 1 are refused.
    """
    for name, given in sizes.items():
        for size in [given] if isinstance(given, int) else given:
            if size < 1:
                raise ValueError(f"{name} is {size}; expected 1 or more: pass the size of the data")
    return nullcontext() if seed is None else seeded(seed, torch.device("cpu"))
