"""CoDis: two networks learn from samples with small losses and different predictions."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics
from vri.methods.losses import sample_losses
from vri.methods.options import option
from vri.methods.two_networks import SmallLoss, smallest


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """½ KL(p ‖ m) + ½ KL(q ‖ m) with m = (p + q) / 2, of each sample (n,) from both networks' logits."""
    log_p, log_q = F.log_softmax(first, dim=1), F.log_softmax(second, dim=1)
    log_m = torch.logaddexp(log_p, log_q) - torch.log(log_p.new_tensor(2.0))
    return 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(1)


class CoDis(SmallLoss):
    """Train two networks, each on the samples the other chose: a small loss, and predictions that differ.

    ℓ_k = CE(f_k, y) − λ·JS(p₁, p₂) for network k = 1, 2. Each network marks the share R(T) of the batch where its ℓ is
    smallest, and the other takes a step on its own mean ℓ over these. R(T) = 1 − τ·min(T / T_k, 1) in epoch T, counted
    from 0. Only the first network predicts.

    τ is the share of wrong labels; as in co-teaching, you must give or guess it. λ = 0.15 and T_k = 10 are the
    defaults of the authors' code (Adam with learning rate 0.001, 200 epochs). That code has the divergences of JS the
    other way round (KL(m ‖ p)); here it is JS, as its name and the paper say.

    Args:
        noise_rate: τ.
        num_gradual: T_k, epochs over which the dropped share grows to τ.
        discrepancy_weight: λ; 0 is co-teaching.
    """

    name = "codis"
    paper = (
        "Xia, Han, Zhan, Yu, Gong, Gong, Liu, Combating Noisy Labels with Sample Selection by Mining High-Discrepancy "
        "Examples (ICCV 2023)"
    )
    cost = Cost(2.0, 2.0)

    noise_rate: float = option(0.2, "a number in [0, 1)")
    num_gradual: int = option(10, "at least 1")
    discrepancy_weight: float = option(0.15, "0 or more")

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network on what the other chose."""
        inputs, labels = self.classifier.unpack(batch, "training")
        forwards = self.forwards(inputs)
        logits = [forward.detached.logits for forward in forwards]

        losses = partial(self._losses, labels)
        mine, others = (smallest(losses(b, a), self.forget) for a, b in (logits, logits[::-1]))
        chosen = zip((others, mine), logits[::-1], strict=True)
        means = [partial(_mean_at, kept, partial(losses, other)) for kept, other in chosen]
        discrepancy = jensen_shannon(logits[0], logits[1]).mean()
        kept = len(mine) / len(labels)
        return self.descend_both(forwards, means, logits, labels, kept=kept, discrepancy=discrepancy)

    def _losses(self, labels: Tensor, other: Tensor, logits: Tensor) -> Tensor:
        """ℓ of one network (n,), given the other's logits."""
        return sample_losses(logits, labels) - self.discrepancy_weight * jensen_shannon(logits, other)


def _mean_at(kept: Tensor, losses: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    return losses(logits)[kept].mean()
