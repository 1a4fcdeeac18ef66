"""Progressive label correction: relabel where the network is sure, with a bound that moves."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, accuracy
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot
from vri.methods.options import option

_FEW = 1e-3  # relabelling a smaller share of the samples than this moves the bound


def label_ratio(probabilities: Tensor, labels: Tensor) -> Tensor:
    """f_y / max f of each sample (n,): how the label compares with the class the network prefers."""
    return (probabilities * labels).sum(1) / probabilities.max(1).values


class PLC(CrossEntropy):
    """Train with cross-entropy on labels that are replaced, permanently, where the network is sure of another one.

    f is the mean of a sample's predictions in the last `window` epochs, each taken when the sample was trained on.
    From epoch `warmup_epochs` on, after each epoch, a sample with f_y / max f < δ gets the label argmax f. If fewer
    than a thousandth of the samples were relabelled, δ grows by `increment`, up to `most`.

    Defaults are those of the authors' code for CIFAR (180 epochs of SGD with learning rate 0.01). There δ becomes
    max(δ + increment, 0.9) as soon as few samples are relabelled, so it jumps, and continues past 1. The paper's
    algorithm moves it step by step, as is done here; 0.9 is the last value. A soft label counts by its mean of f, and
    is replaced by a hard one. A batch ends with the numbers of its samples; in your own loop call
    `begin_training(size, None)`, and `begin_epoch` and `survey` before each epoch.

    Args:
        delta: δ at the start; 0 is plain cross-entropy, if `increment` is 0 too.
        increment: by how much δ grows.
        most: largest δ.
        warmup_epochs: epochs without relabelling.
        window: epochs of which predictions are averaged.
    """

    needs_index = True
    name = "plc"
    paper = (
        "Zhang, Zheng, Wu, Goswami, Chen, Learning with Feature-Dependent Label Noise: A Progressive Approach (ICLR "
        "2021)"
    )
    cost = Cost(1.0, 1.0)

    delta: float = option(0.3, "a number in [0, 1]")
    increment: float = option(0.1, "0 or more")
    most: float = option(0.9, "a number from delta to 1", lambda m: m.delta <= m.most <= 1)
    warmup_epochs: int = option(8, "0 or more")
    window: int = option(5, "at least 1")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.bound = self.delta  # δ now
        self.labels = self.remember("labels", num_classes)  # to train on; a row of zeros: the given one
        self.predictions = self.remember("predictions", self.window, num_classes)
        self._place = 0  # of this epoch in the window
        self.saved += ["bound"]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Find the place of this epoch's predictions."""
        self._place = epoch % self.window

    def survey(self, epoch: int) -> None:
        """Relabel, and move the bound."""
        if epoch <= self.warmup_epochs:
            return
        assert self.labels.values is not None
        assert self.predictions.values is not None
        labels, f = self.labels.values, self.predictions.values.mean(1)
        seen = labels.sum(1) > 0
        rows = (seen & (label_ratio(f, labels) < self.bound)).nonzero().squeeze(1)
        if len(rows):
            labels[rows] = one_hot(f[rows].argmax(1), f)
        if len(rows) < _FEW * len(labels):
            self.bound = min(self.bound + self.increment, self.most)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on the current labels."""
        inputs, given = self.classifier.unpack(batch, "training")
        index = self.labels.index(batch)
        forward = self.forward(inputs)
        logits = forward.detached.logits
        held, given = self.labels[index], one_hot(given, logits)
        labels = torch.where(held.sum(1, keepdim=True) > 0, held, given)
        predictions = self.predictions[index]
        predictions[:, self._place] = F.softmax(logits, dim=1)
        self.labels[index], self.predictions[index] = labels, predictions
        return self.descend_forward(
            forward,
            lambda z: objective.cross_entropy(z, labels),
            accuracy=accuracy(logits, given),
            relabelled=(labels.argmax(1) != given.argmax(1)).double().mean(),
            bound=self.bound,
        )
