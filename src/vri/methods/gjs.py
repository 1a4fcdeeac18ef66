"""Generalised Jensen–Shannon divergence: a loss between cross-entropy and absolute error, with consistency."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, accuracy
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot
from vri.methods.options import option
from vri.methods.views import concatenate, split_views


def jensen_shannon(views: tuple[Tensor, ...], labels: Tensor, label_weight: float) -> Tensor:
    """Mean over the samples of Σ_i π_i·KL(p_i ‖ m) / Z, with m = Σ_i π_i·p_i.

    p₁ are the labels, with π₁ = `label_weight`, the others the views' predictions (from logits) with equal weights.
    Z = −(1 − π₁)·log(1 − π₁). π₁ → 0 is cross-entropy, averaged over the views, if they agree; π₁ → 1 is the absolute
    error 1 − p_y.
    """
    given, weight = one_hot(labels, views[0]), (1 - label_weight) / len(views)
    log_p = [F.log_softmax(logits, dim=1) for logits in views]
    mean = label_weight * given + weight * sum(log.exp() for log in log_p)
    log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
    total = label_weight * (torch.xlogy(given, given) - given * log_mean).sum(1)  # (n,)
    for log in log_p:
        total = total + weight * (log.exp() * (log - log_mean)).sum(1)
    return total.mean() / -((1 - label_weight) * math.log(1 - label_weight))


class GJS(CrossEntropy):
    """Pull the label and the predictions of two views of a sample together.

    L = GJS_π(y, p⁽¹⁾, p⁽²⁾) / Z, see `jensen_shannon`: it falls as the predictions approach the label and each other,
    so that samples with wrong labels are fitted late. Both views go through the network
    in one batch. The authors' learning rate is 0.1.

    Args:
        label_weight: π₁. The authors' scripts use 0.3 for flips on CIFAR-10, 0.9 for 40 % of uniform noise there, and
            0.1 for WebVision: more for uniform noise.
    """

    name = "gjs"
    paper = (
        "Englesson, Azizpour, Generalized Jensen-Shannon Divergence Loss for Learning with Noisy Labels (NeurIPS 2021)"
    )
    cost = Cost(2.2, 2.0)
    views = ("strong", "strong")

    label_weight: float = option(0.3, "a number in (0, 1)")

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step on both views."""
        inputs, labels = self.classifier.unpack(batch, "training")
        forward = self.forward(concatenate(split_views(inputs, 2)))
        first, second = forward.detached.logits.chunk(2)
        return self.descend_forward(
            forward,
            lambda logits: jensen_shannon(logits.chunk(2), labels, self.label_weight),
            accuracy=accuracy(first, labels),
            agreement=(first.argmax(1) == second.argmax(1)).double().mean(),
        )
