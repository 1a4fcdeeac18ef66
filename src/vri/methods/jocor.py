"""JoCoR: two networks with a joint loss that pulls their predictions together."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates, accuracy, read_metrics
from vri.methods.options import option
from vri.methods.two_networks import SmallLoss, disagreement, smallest


def joint_loss(first: Tensor, second: Tensor, labels: Tensor, co_weight: float) -> Tensor:
    """(1 − λ)·(CE₁ + CE₂) + λ·(KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)) of each sample, from both networks' logits: (n,)."""
    supervised = F.cross_entropy(first, labels, reduction="none") + F.cross_entropy(second, labels, reduction="none")
    log_p, log_q = F.log_softmax(first, dim=1), F.log_softmax(second, dim=1)
    contrastive = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(1)  # both divergences in one sum
    return (1 - co_weight) * supervised + co_weight * contrastive


class JoCoR(SmallLoss):
    """Train two networks together on the samples for which both agree with the label and with each other.

    ℓ = (1 − λ)·(CE₁ + CE₂) + λ·(KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)); both take a step on its mean over the share R(T) of the
    batch where it is smallest. R(T) = 1 − τ·min(T / T_k, 1) in epoch T, counted from 0. Only the first network
    predicts.

    τ is the share of wrong labels among all samples. (The authors' code halves the rate of its asymmetric noise, which
    flips only half of the classes.) The paper assumes that τ is known; here you must give or guess it. The default 0.2
    is just the first of the paper's settings. In your own loop call `begin_epoch`, which sets R.

    Loss and selection agree with the authors' code; its share reaches τ an epoch earlier. λ = 0.9 is what they report
    for CIFAR-10 with their CNN and Adam; they name 0.5 to 0.9 as the range to search, and ask to search again for
    another network. It matters: on digits with an MLP (40 % flips, 70 epochs, 3 seeds) λ = 0.9 reaches 53 % and λ = 0.5
    75 %, where cross-entropy has 69 % and co-teaching 75 %. With SGD, cross-entropy counts (1 − λ) times, so raise the
    learning rate accordingly; but the divergence then counts more, too, which holds both networks at their common
    start.

    Args:
        noise_rate: τ.
        num_gradual: T_k, epochs over which the dropped share grows to τ.
        co_weight: λ, how strongly the networks are pulled together. The paper chooses it on clean validation data;
            try 0.5 first where the network is small or the training short.
    """

    name = "jocor"
    paper = (
        "Wei, Feng, Chen, An, Combating Noisy Labels by Agreement: A Joint Training Method with Co-Regularization "
        "(CVPR 2020)"
    )
    cost = Cost(2.2, 2.0)
    tuned = Rates((0.2, 5e-4), (0.2, 5e-4), (1.0, 5e-5))
    rate_scale = 10.0  # cross-entropy has a tenth of the weight in its loss

    noise_rate: float = option(0.2, "a number in [0, 1)")
    num_gradual: int = option(10, "at least 1")
    co_weight: float = option(0.9, "a number in [0, 1)")

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of both networks on the samples of small joint loss."""
        inputs, labels = self.classifier.unpack(batch, "training")
        forwards = self.forwards(inputs)
        leaves = [forward.detached.logits.requires_grad_() for forward in forwards]
        losses = joint_loss(leaves[0], leaves[1], labels, self.co_weight)  # (n,)
        kept = smallest(losses.detach(), self.forget)
        loss = losses[kept].mean()
        output_gradients = torch.autograd.grad(loss, leaves)
        metrics = read_metrics(
            forwards[0],
            loss=loss,
            accuracy=accuracy(leaves[0], labels),
            kept=len(kept) / len(labels),
            disagreement=disagreement(leaves).double().mean(),
        )
        for classifier, forward, found in zip(self.classifiers, forwards, output_gradients, strict=True):
            names = list(classifier.parameters)
            classifier.update(classifier.gradient(forward, (found, None), names, keep=False))
        return metrics
