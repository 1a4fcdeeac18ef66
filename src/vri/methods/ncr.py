"""Neighbour consistency: samples with similar features should have similar predictions."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, accuracy, read_metrics
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.options import option

_LEAST = 1e-12


def neighbour_divergence(logits: Tensor, features: Tensor, neighbours: int, temperature: float) -> Tensor:
    """Mean of T²·KL(Σ_j s_ij·σ(z_j / T) ‖ σ(z_i / T)) over the samples i of a batch.

    j are the `neighbours` of i with the largest cosine of features, s_ij these cosines, at least 0 and divided by their
    sum. A sample without a neighbour of positive cosine adds nothing.
    """
    count = len(logits)
    if count < 2:
        return 0 * logits.sum()
    unit = F.normalize(features, dim=1)
    cosines = (unit @ unit.T).masked_fill(torch.eye(count, dtype=torch.bool, device=logits.device), -1.0)
    near, index = cosines.topk(min(neighbours, count - 1), dim=1)  # (n, k)
    near = near.clamp_min(0)
    shares = near / near.sum(1, keepdim=True).clamp_min(_LEAST)
    scaled = logits / temperature
    targets = (shares.unsqueeze(2) * F.softmax(scaled, dim=1)[index]).sum(1)  # (n, c)
    divergence = (targets * (targets.clamp_min(_LEAST).log() - F.log_softmax(scaled, dim=1))).sum(1)
    return temperature**2 * divergence.mean()


class NCR(CrossEntropy):
    """Train with a penalty on predictions that differ from those of the nearest neighbours in the batch.

    L = (1 − α)·CE + α·`neighbour_divergence`, after a start with CE alone. Neighbours are found among the inputs of the
    last layer. As in the authors' code, the gradient also flows through the neighbours and their weights.

    Departures: when to start is given as a share of the epochs. With several workers, each looks for neighbours in its
    own part of the batch. The paper's forms with mixup are `vri.train(..., mixup=...)`. The authors' learning rate is
    0.1.

    Args:
        weight: α; 0 is plain cross-entropy.
        neighbours: k; at most all others in the batch. Like the other defaults that of the authors' configuration for
            40 % of web labels in mini-ImageNet, where batches have 128 samples.
        temperature: T.
        start_share: share of the epochs with CE alone; the authors use 10 epochs of 130.
    """

    name = "ncr"
    paper = "Iscen, Valmadre, Arnab, Schmid, Learning with Neighbor Consistency for Noisy Labels (CVPR 2022)"
    cost = Cost(1.0, 1.0)

    weight: float = option(0.3, "a number in [0, 1]")
    neighbours: int = option(100, "at least 1")
    temperature: float = option(2.0, "more than 0")
    start_share: float = option(1 / 13, "a number in [0, 1]")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.consistent = True  # past the start

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Leave the neighbours out at the start."""
        self.consistent = epoch >= round(self.start_share * epochs)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step on cross-entropy and divergence."""
        inputs, labels = self.classifier.unpack(batch, "training")
        forward = self.forward(inputs)
        logits, features = (output.requires_grad_() for output in forward.detached)
        weight = self.weight if self.consistent else 0.0
        divergence = neighbour_divergence(logits, features, self.neighbours, self.temperature)
        loss = (1 - weight) * objective.cross_entropy(logits, labels) + weight * divergence
        of_outputs = torch.autograd.grad(loss, (logits, features))
        metrics = read_metrics(forward, loss=loss, accuracy=accuracy(logits, labels), divergence=divergence)
        names = list(self.classifier.parameters)
        self.classifier.update(self.classifier.gradient(forward, of_outputs, names, keep=False))
        return metrics
