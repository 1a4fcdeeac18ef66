"""Co-teaching and co-teaching+: two networks choose samples for each other."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates, accuracy, read_metrics
from vri.methods.losses import sample_losses
from vri.methods.options import option
from vri.methods.two_networks import SmallLoss, disagreement, smallest


class CoTeaching(SmallLoss):
    """Train two networks, each on the samples that the other finds easy.

    Each network marks the share R(T) of a batch with the smallest cross-entropy, and the other takes a step on
    these; R(T) = 1 − τ·min(T^c / T_k, 1) in epoch T, counted from 0. Only the first network predicts.

    τ is the share of wrong labels. The paper assumes that it is known; here you must give or guess it. The default 0.2
    is just the first of the paper's settings. In your own loop call `begin_epoch`, which sets R.

    Args:
        noise_rate: τ.
        num_gradual: T_k, epochs over which the dropped share grows to τ (at c = 1).
        exponent: c.
    """

    name = "co-teaching"
    paper = (
        "Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama, Co-teaching: Robust Training of Deep Neural Networks with "
        "Extremely Noisy Labels (NeurIPS 2018)"
    )
    cost = Cost(2.1, 2.0)
    tuned: Rates | None = Rates((0.05, 5e-3), (0.05, 5e-3))

    noise_rate: float = option(0.2, "a number in [0, 1)")
    num_gradual: int = option(10, "at least 1")
    exponent: float = option(1.0, "more than 0")

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network on the other's small-loss samples."""
        inputs, labels = self.classifier.unpack(batch, "training")
        forwards = self.forwards(inputs)
        logits = [forward.detached.logits for forward in forwards]
        mine, others = (smallest(sample_losses(z, labels), self.forget) for z in logits)
        losses = [partial(_loss_at, kept, labels) for kept in (others, mine)]
        return self.descend_both(forwards, losses, logits, labels, kept=len(mine) / len(labels))


class CoTeachingPlus(CoTeaching):
    """Co-teaching among the samples that the two networks predict differently.

    In the first `warmup_epochs` it is co-teaching. Then each network marks the share R(T) with the smallest
    cross-entropy among D = {i : argmax f₁(xᵢ) ≠ argmax f₂(xᵢ)}, and the other takes a step on these; where D is empty,
    none does. R(T) is that of co-teaching with c = 1.

    20 epochs of warm-up of 200 and T_k = 10 are the authors' for CIFAR-10; 5 for CIFAR-100, 0 for MNIST. Their code
    applies the softmax twice after the warm-up, divides mean losses by the number of samples once more, and takes a
    step on the whole batch where D is empty in the first 5000 steps; here it is as in the paper. `loss` reports the
    first network's cross-entropy of the whole batch, since D may be empty.

    Args:
        warmup_epochs: epochs of plain co-teaching.
    """

    name = "co-teaching+"
    paper = (
        "Yu, Han, Yao, Niu, Tsang, Sugiyama, How does Disagreement Help Generalization against Label Corruption? (ICML "
        "2019)"
    )
    cost = Cost(2.1, 2.0)

    tuned = None

    warmup_epochs: int = option(20, "0 or more")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.warming = self.warmup_epochs > 0
        self.saved += ["warming"]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set the share of a batch to leave out, and whether all of it counts."""
        super().begin_epoch(epoch, epochs)
        self.warming = epoch < self.warmup_epochs

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network on the other's small-loss samples, among those of disagreement."""
        if self.warming:
            return super().step(batch, meta_batch)
        inputs, labels = self.classifier.unpack(batch, "training")
        forwards = self.forwards(inputs)
        logits = [forward.detached.logits for forward in forwards]
        places = disagreement(logits).nonzero().squeeze(1)
        losses = [sample_losses(z, labels) for z in logits]
        mine, others = (places[smallest(loss[places], self.forget)] for loss in losses)
        metrics = read_metrics(
            forwards[0],
            loss=losses[0].mean(),
            second_loss=losses[1].mean(),
            accuracy=accuracy(logits[0], labels),
            kept=len(mine) / len(labels),
            disagreement=len(places) / len(labels),
        )
        for classifier, forward, kept in zip(self.classifiers, forwards, (others, mine), strict=True):
            chosen = torch.zeros_like(losses[0]).index_fill(0, kept, 1.0)  # (n,)
            if float(classifier.batch_mean(chosen)) > 0:
                _, gradient = classifier.loss_gradient(forward, partial(self._loss_where, chosen, labels))
                classifier.update(gradient)
        return metrics

    def _loss_where(self, chosen: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
        return self.mean_where(sample_losses(logits, labels), chosen)


def _loss_at(kept: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    return objective.cross_entropy(logits[kept], labels[kept])
