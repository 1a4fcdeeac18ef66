"""MC: VRI without prior and KL term, the Monte-Carlo variant that its paper compares with."""

from typing import Any

import torch
from torch import nn

from vri.checks import Batch
from vri.methods.base import Metrics
from vri.methods.meta import useless
from vri.methods.vri import VRI


class MC(VRI):
    """VRI with the meta network alone: no prior, no KL term.

    The defaults are VRI's, so that the two differ in nothing else. The prior network is there, since the class is
    VRI's, but nothing trains or reads it.

    Args:
        options: those of `VRI`, but for `kl_weight` and `kl_route`.
    """

    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels: the MC variant"

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        wrong = useless(options, ("kl_weight", "kl_route"), "there is no KL term")
        if wrong:
            raise ValueError("MC got options it can't use: " + "; ".join(wrong))
        super().__init__(model, num_classes, optimizer, **options, kl_weight=0.0)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """A step of VRI; the divergence from a prior that isn't one is left out."""
        metrics = super().step(batch, meta_batch)
        return {name: value for name, value in metrics.items() if name != "kl"}
