"""For methods with a teacher: a network whose weights are the running average of those that are trained."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core.model import logits_of


class Averaged(nn.Module):
    """The running average of a network's weights, which predicts like the network.

    It starts from the network's current weights, is always in evaluation mode, and nothing in it is trained.
    BatchNorm's statistics are averaged too; tensors that aren't floating point are copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(model).requires_grad_(False)
        super().train(False)

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """a ← γ·a + (1 − γ)·θ with γ = `decay`; 0 is a copy."""
        for average, value in zip(self.network.state_dict().values(), model.state_dict().values(), strict=True):
            if average.is_floating_point():
                average.lerp_(value, 1 - decay)
            else:
                average.copy_(value)

    def train(self, mode: bool = True) -> "Averaged":
        """Stays in evaluation mode."""
        return self

    @torch.no_grad()
    def beliefs(self, inputs: Any, dtype: torch.dtype) -> Tensor:
        """Probabilities (n, c) of a batch."""
        return F.softmax(logits_of(self, inputs).to(dtype), dim=1)

    def forward(self, *inputs: object, **named: object) -> object:
        """What the network returns."""
        return self.network(*inputs, **named)
