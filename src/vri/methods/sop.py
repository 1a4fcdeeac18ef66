"""Sparse over-parameterisation: learn for each sample how wrong its label is, together with the network."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, accuracy, read_metrics
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot
from vri.methods.options import option
from vri.methods.views import concatenate, split_views

_LEAST = 1e-4  # of a probability, as in the authors' code
_BATCH = 128  # of the authors: their rates are those of a mean over so many samples


def corrected(logits: Tensor, noise: Tensor) -> Tensor:
    """Predictions (n, c) with the noise added: max(p + s, 1e-4), divided by its sum."""
    shifted = (F.softmax(logits, dim=1) + noise).clamp_min(_LEAST)
    return (shifted / shifted.sum(1, keepdim=True)).clamp_min(_LEAST)


class SOP(CrossEntropy):
    """Train on predictions with a sparse noise s = u²·y − v²·(1 − y) of each sample added.

    L = −Σ y·log q with q = max(p + s, 1e-4) / Σ trains the network and u (n, 1); ‖onehot(argmax p) + s − y‖² trains
    v (n, c). Both start near 0 and grow only where a label contradicts the network for a long time: gradient descent
    from there prefers few large entries. u and v are trained by plain gradient descent with their own rates, which
    don't change during training. The network predicts without s.

    Departures: u and v start all at the same small number, where the authors draw it. Their gradients are those of a
    mean over 128 samples, the authors' batch, whatever the batch is, so that a rate means the same with any. A
    sample's u and v move once per epoch and need tens of epochs to grow. A batch ends with the numbers of its samples;
    in a loop of your own call `begin_training(size, None)` first. The authors' learning rate is 0.02.

    Args:
        lr_u: rate of u; 0 with lr_v = 0 is plain cross-entropy. The authors' example for 40 % of flips on CIFAR-100 has
            1 in the paper's form.
        lr_v: rate of v; 100 in that example, and 10 for uniform noise, in 300 epochs.
        start: what u and v start at; 1e-8 is the authors' standard deviation.
    """

    needs_index = True
    name = "sop"
    paper = "Liu, Zhu, Qu, You, Robust Training under Label Noise by Over-parameterization (ICML 2022)"
    cost = Cost(1.0, 1.0)

    lr_u: float = option(1.0, "0 or more")
    lr_v: float = option(100.0, "0 or more")
    start: float = option(1e-8, "a number in [0, 1)")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.u = self.remember("u", 1, fill=self.start)
        self.v = self.remember("v", num_classes, fill=self.start)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of the network, and of u and v of the batch's samples."""
        inputs, labels = self.classifier.unpack(batch, "training")
        index = self.u.index(batch)
        forward = self.forward(concatenate(split_views(inputs, len(self.views))))
        outputs = forward.detached.logits.requires_grad_()
        logits, given = outputs[: len(labels)], one_hot(labels, outputs)
        u, v = self.u[index].requires_grad_(), self.v[index].requires_grad_()
        up, down = (u**2 * given).clamp(0, 1), (v**2 * (1 - given)).clamp(0, 1)
        q = corrected(logits, up - down.detach())
        fit = -(given * q.log()).sum(1)  # (n,)
        predicted = one_hot(logits.detach().argmax(1), logits)
        misfit = (predicted + up.detach() - down - given).square().sum(1)
        loss = fit.mean() + self.regulariser(outputs, q)
        (of_logits,) = torch.autograd.grad(loss, outputs, retain_graph=True)
        of_u, of_v = torch.autograd.grad((fit + misfit).sum() / _BATCH, (u, v))
        metrics = read_metrics(
            forward,
            loss=loss,
            accuracy=accuracy(logits, labels),
            noise=(up - down).detach().abs().sum(1).mean(),
        )
        self.u[index], self.v[index] = u - self.lr_u * of_u, v - self.lr_v * of_v
        self.descend_outputs(forward, of_logits)
        return metrics

    def regulariser(self, outputs: Tensor, q: Tensor) -> Tensor:
        """What is added to the loss, from the logits of all views and the corrected predictions of the first."""
        return outputs.new_zeros(())


class SOPPlus(SOP):
    """SOP with two more terms, λ_C·KL(p ‖ p′) and −λ_B·Σ_k 1/c·log q̄_k.

    The first lets the prediction p′ of a strong view follow that of the weak one, p, which gets no gradient from it.
    The second lets the mean q̄ of the corrected predictions over the batch fill all classes alike.

    Args:
        consistency: λ_C; like λ_B that of the authors' configuration for CIFAR-100.
        balance: λ_B.
    """

    name = "sop+"
    cost = Cost(2.4, 2.0)
    views = ("weak", "strong")

    consistency: float = option(0.9, "0 or more")
    balance: float = option(0.1, "0 or more")

    def regulariser(self, outputs: Tensor, q: Tensor) -> Tensor:
        """Consistency of the views, and balance of the classes."""
        weak, strong = (F.log_softmax(logits, dim=1) for logits in outputs.chunk(2))
        divergence = F.kl_div(strong, weak.detach(), reduction="batchmean", log_target=True)
        share = self.classifier.batch_mean(q).clamp_min(_LEAST)  # (c,)
        return self.consistency * divergence - self.balance * share.log().mean()
