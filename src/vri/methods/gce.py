"""Generalised cross-entropy: a loss between cross-entropy and the mean absolute error."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot
from vri.methods.options import option


def generalised_cross_entropy(logits: Tensor, labels: Tensor, q: float) -> Tensor:
    """Mean of (1 − p_y^q) / q; for a soft label, the mean under it."""
    log_p = F.log_softmax(logits, dim=1)
    loss = -torch.expm1(q * log_p) / q  # stays accurate as q → 0
    return (one_hot(labels, logits) * loss).sum(1).mean()


class GCE(CrossEntropy):
    """Train with the generalised cross-entropy, which reduces the influence of wrong labels.

    L = (1 − p_y^q) / q: cross-entropy as q → 0, the mean absolute error 1 − p_y at q = 1. The gradient is that of
    cross-entropy times p_y^q, so a label that the network finds unlikely counts little.

    This is the plain L_q; the paper's truncated variant, which prunes samples with p_y ≤ k, is left out.

    Args:
        q: between cross-entropy (0) and the mean absolute error (1).
    """

    name = "gce"
    paper = "Zhang, Sabuncu, Generalized Cross Entropy Loss for Training Deep Networks with Noisy Labels (NeurIPS 2018)"
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.05, 5e-4), (0.05, 5e-4))

    q: float = option(0.7, "a number in (0, 1]; 'cross-entropy' is q → 0", lambda m: 0 < m.q <= 1)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of the generalised cross-entropy."""
        return self.descend(batch, lambda z, y: generalised_cross_entropy(z, y, self.q))
