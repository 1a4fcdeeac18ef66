"""Symmetric cross-entropy: cross-entropy plus its reverse."""

import math

from torch import Tensor
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot
from vri.methods.options import option


def reverse_cross_entropy(logits: Tensor, labels: Tensor, log_zero: float) -> Tensor:
    """Mean of −Σ_c p_c log y_c, with no logarithm below A; −A·(1 − p_y) for hard labels."""
    log_y = one_hot(labels, logits).clamp_min(math.exp(log_zero)).log()
    return -(F.softmax(logits, dim=1) * log_y).sum(1).mean()


def symmetric_cross_entropy(logits: Tensor, labels: Tensor, alpha: float, beta: float, log_zero: float) -> Tensor:
    """α·CE + β·RCE."""
    reverse = reverse_cross_entropy(logits, labels, log_zero)
    return alpha * objective.cross_entropy(logits, labels) + beta * reverse


class SCE(CrossEntropy):
    """Train with cross-entropy plus a reverse cross-entropy that tolerates noise.

    L = α·CE(y, p) + β·CE(p, y), where log 0 in the second term is A. Defaults are the paper's for CIFAR-10; for
    CIFAR-100 it takes α = 6, β = 0.1.

    Args:
        alpha: α, weight of cross-entropy.
        beta: β, weight of reverse cross-entropy.
        log_zero: A, below 0. In a soft label every logarithm below it is raised to it.
    """

    name = "sce"
    paper = "Wang, Ma, Chen, Luo, Yi, Bailey, Symmetric Cross Entropy for Robust Learning with Noisy Labels (ICCV 2019)"
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.02, 5e-3), (0.05, 5e-3))

    alpha: float = option(0.1, "0 or more")
    beta: float = option(1.0, "0 or more, and not 0 like alpha", lambda m: m.beta >= 0 and m.alpha + m.beta > 0)
    log_zero: float = option(-4.0, "less than 0", lambda m: m.log_zero < 0)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of the symmetric cross-entropy."""
        return self.descend(
            batch,
            lambda z, y: symmetric_cross_entropy(z, y, self.alpha, self.beta, self.log_zero),
        )
