"""Weight averaging: a copy of a network that follows it slowly."""

import copy

import torch
from torch import nn


class Averaged(nn.Module):
    """The running average of a network's weights, which predicts like the network.

    It is always in evaluation mode, and nothing in it is trained. BatchNorm's statistics are averaged too; tensors that
    aren't floating point are copied.

    Args:
        model: the network; the average starts from its current weights.
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

    def forward(self, *inputs: object, **named: object) -> object:
        """What the network returns."""
        return self.network(*inputs, **named)
