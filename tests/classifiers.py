"""What the tests of classifiers share."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vri.backbones import BACKBONES


def images(n: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@cache
def built(name: str) -> nn.Module:
    """A network built once, for tests that don't mind what BatchNorm has seen."""
    return BACKBONES[name](7, 2, seed=3)


def on_meta(factory: Callable[..., nn.Module], *args: int) -> nn.Module:
    """Shapes without numbers: enough to count with, and quick."""
    with torch.device("meta"):
        return factory(*args)


def with_used_statistics(model: nn.Module) -> nn.Module:
    """Give BatchNorm statistics and weights other than 0 and 1, so that a misplaced norm shows."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
            nn.init.normal_(module.bias, generator=generator)
    return model.eval()


def saved(folder: Path, content: Any, name: str = "weights.pth") -> Path:
    torch.save(content, folder / name)
    return folder / name


def norm_relu(x: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.BatchNorm2d)
    mean, var = norm.running_mean, norm.running_var
    return functional.batch_norm(x, mean, var, norm.weight, norm.bias).clamp(min=0)
