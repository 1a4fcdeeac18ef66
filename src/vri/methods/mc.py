"""MC: VRI without prior and KL term, the Monte-Carlo variant that its paper compares VRI with."""

from typing import Any

import torch
from torch import nn

from vri.methods.base import Cost, Rates
from vri.methods.options import refuse, useless
from vri.methods.vri import VRI


class MC(VRI):
    """VRI with the meta network alone: no prior, no KL term.

    The defaults are VRI's, so there is no other difference.

    Args:
        options: those of `VRI`, except `kl_weight` and `kl_route`.
    """

    name = "mc"
    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels: the MC variant"
    cost = Cost(2.3, 2.3)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))
    has_prior = False

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        refuse("MC", useless(options, ("kl_weight", "kl_route"), "there is no KL term"))
        super().__init__(model, num_classes, optimizer, **options)
