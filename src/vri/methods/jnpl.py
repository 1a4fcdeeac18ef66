"""Joint negative and positive learning: what a sample is not, and what it is where the network is sure."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics
from vri.methods.losses import sample_losses
from vri.methods.options import Configured, option

_LEAST = 1e-7  # of 1 − p, so that its logarithm stays finite


def negative_loss(logits: Tensor, complementary: Tensor) -> Tensor:
    """NL+ of each sample (n,): −(1 − p_ȳ)·log(1 − p_ȳ), the factor without gradient."""
    p = F.softmax(logits, dim=1).gather(1, complementary.unsqueeze(1)).squeeze(1)
    return -(1 - p).detach() * (1 - p).clamp_min(_LEAST).log()


def positive_loss(logits: Tensor, labels: Tensor, order: int) -> Tensor:
    """PL+ of each sample (n,): −Π_n (1 + p̂^(2^n))·log p_y for n = 0..N and p̂ = max p, the factor without gradient."""
    top = F.softmax(logits.detach(), dim=1).max(1).values
    factor = torch.stack([1 + top ** (2**n) for n in range(order + 1)]).prod(0)
    return factor * sample_losses(logits, labels)


def stands_out(logits: Tensor) -> Tensor:
    """Which samples (n,) have no class but the first at 1/c or above."""
    second = F.softmax(logits, dim=1).topk(2, dim=1).values[:, 1]
    return second < 1 / logits.shape[1]


class JNPL(Configured):
    """Train on "is not ȳ" for a random other class ȳ, and on the label where one class stands out.

    L = NL+ + λ·PL+. NL+ = −(1 − p_ȳ)·log(1 − p_ȳ) with ȳ drawn from all classes but the label, at every step. PL+ =
    −Π_{n=0..N} (1 + p̂^(2^n))·log p_y with p̂ = max_c p_c, for samples whose other classes all lie below 1/c, each of
    them taken with probability p̂. The factors carry no gradient; that of NL+ in the other logits is −p_ȳ·p_i, and that
    of PL+ in the label's is −(1 − p_y^(2^(N + 1))) where the label is the class that stands out. Means over the batch.
    λ = 0.01 and N = 3 are the paper's for all data sets.

    There is no code of the authors. Equations and values are from a public summary of the paper, and agree in NL+, λ,
    the bound 1/c and the target of PL+ with a public implementation by others. PL+ on the predicted class instead was
    tried and is worse. The paper's next stage is left out: a second training with pseudo-labels on the samples that
    this one found right.

    A complementary label teaches little in one step: the gradient is about c times smaller than that of cross-entropy,
    and the paper trains for 1000 epochs at a learning rate of 0.01. Use long training or larger steps. For a soft
    label, ȳ is not the largest class.

    Args:
        weight: λ.
        order: N.
    """

    name = "jnpl"
    paper = "Kim, Yun, Shon, Kim, Joint Negative and Positive Learning for Noisy Labels (CVPR 2021)"
    cost = Cost(1.0, 1.0)
    rate_scale = 10.0  # for ten classes

    weight: float = option(0.01, "0 or more")
    order: int = option(3, "a whole number from 0 to 9", lambda m: 0 <= m.order <= 9)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of negative and positive learning."""
        count = len(batch[1])
        # normal numbers, since these are drawn alike for any share of a batch
        others, sure = self.classifier.normal(2, count, self.generator)  # (n, c)
        chance = torch.special.ndtr(sure[:, 0])  # uniform in [0, 1]

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            given = labels.argmax(1) if labels.is_floating_point() else labels
            complementary = others.scatter(1, given.unsqueeze(1), -torch.inf).argmax(1)
            with torch.no_grad():
                chosen = stands_out(logits) & (chance < F.softmax(logits, dim=1).max(1).values)
            positive = chosen * positive_loss(logits, labels, self.order)
            losses: Tensor = negative_loss(logits, complementary) + self.weight * positive
            return losses.mean()

        return self.descend(batch, loss)
