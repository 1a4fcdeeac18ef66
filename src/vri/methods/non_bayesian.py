"""Non-Bayesian VRI: the meta network outputs the rectifying vector itself."""

from typing import Any

import torch
from torch import Tensor, nn

from vri.core.objective import Gaussian
from vri.methods.base import Cost, Rates
from vri.methods.options import refused
from vri.methods.vri import VRI


class NonBayesian(VRI):
    """VRI with v = μ: nothing is drawn, and there is no prior and no KL term.

    The paper multiplies "the features computed by the classification network" in this variant; we read that as its
    logits, as in VRI itself. The network is VRI's and outputs log-variances too, but nothing trains or reads them.
    """

    name = "non-bayesian"
    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels: the non-Bayesian form"
    cost = Cost(2.2, 2.0)
    tuned = Rates((0.05, 5e-3), (0.02, 5e-3))
    has_prior = False
    samples = kl_weight = kl_route = log_var_bound = refused("nothing is drawn")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.samples = 1

    def draw(self, count: int) -> Tensor:
        """No ε: v is the mean."""
        device, dtype = self.classifier.device, self.classifier.dtype
        return torch.zeros(1, count, self.num_classes, device=device, dtype=dtype)

    def spread(self, posterior: Gaussian) -> dict[str, Tensor]:
        """Nothing: there is no distribution to report on."""
        return {}
