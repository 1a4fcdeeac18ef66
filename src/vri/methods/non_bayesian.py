"""Non-Bayesian VRI: the meta network gives the rectifying vector itself."""

from typing import Any

import torch
from torch import Tensor, nn

from vri.methods.base import Metrics
from vri.methods.meta import useless
from vri.methods.vri import VRI, Rectification


class NonBayesian(VRI):
    """VRI with v = μ: nothing is drawn, and there is no prior and no KL term.

    The paper multiplies "the features computed by the classification network" in this variant; we read that as its
    logits, as in VRI itself. The network is VRI's and gives log-variances too, but nothing trains or reads them.

    Args:
        options: those of `VRI`, but for what concerns distributions: `samples`, `kl_weight`, `kl_route` and
            `log_var_bound`.
    """

    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels: the non-Bayesian form"
    has_prior = False

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        wrong = useless(options, ("samples", "kl_weight", "kl_route", "log_var_bound"), "nothing is drawn")
        if wrong:
            raise ValueError("NonBayesian got options it can't use: " + "; ".join(wrong))
        super().__init__(model, num_classes, optimizer, **options, samples=1)

    def finish(self, correction: Rectification, labels: Tensor) -> Metrics:
        """Nothing: there is no distribution to tell of."""
        return {}

    def _noise(self, count: int, samples: int) -> Tensor:
        device, dtype = self.classifier.device, self.classifier.dtype
        return torch.zeros(samples, count, self.num_classes, device=device, dtype=dtype)
