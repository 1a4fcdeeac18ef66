"""ELR+: early-learning regularisation between two networks, with averaged weights and mixup."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.averaged import Averaged
from vri.methods.base import Cost, Metrics, accuracy
from vri.methods.elr import early_learning_penalty
from vri.methods.losses import one_hot
from vri.methods.mixup import draw_mixture, mix
from vri.methods.options import option
from vri.methods.two_networks import TwoNetworks

_STEPS = 391  # in an epoch of the authors: 50,000 samples in batches of 128


class ELRPlus(TwoNetworks):
    """Train two networks, each kept close to the past predictions of the other's averaged weights.

    For each network tᵢ ← β·tᵢ + (1 − β)·p̄ᵢ, where p̄ is the prediction of the other's running average of weights on
    the unmixed sample. Samples, labels and targets are mixed with one λ per batch, at least ½: x̃ = λ·x + (1 − λ)·x′,
    and L = CE(f(x̃), ỹ) + w·mean log(1 − ⟨f(x̃), t̃⟩). The average of the weights has γ₁·exp(−5·(1 − min(e / E, 1))²) in
    epoch e, so it follows fast at first. Both networks predict together.

    γ₁ is that of an epoch of 391 steps, as the authors' have. With s steps it becomes γ₁^(391/s), so that the average
    always goes back about an epoch: otherwise, in an epoch of 48 steps, it would go back seven.

    Departures: 1 − ⟨p, t⟩ is kept at 1e-4 or above, see `ELR`. Both networks see the same batch, mixed
    differently. γ changes from epoch to epoch, not at every step, and reaches γ₁ after a share of the training. The
    averages run in evaluation mode, with averaged statistics of BatchNorm. Prediction averages probabilities,
    the authors' code logits. A batch ends with the numbers of its samples; in a loop of your own call
    `begin_training(size, None)` first, and `begin_epoch`. The authors' learning rate is 0.02.

    Args:
        weight: w; like the others that of the authors' configuration for CIFAR-10. For CIFAR-100 they have 7.
        beta: β, memory of the targets; 0.9 for CIFAR-100.
        alpha: λ comes from Beta(α, α); 0 mixes nothing.
        decay: γ₁.
        ramp_share: E / epochs; the authors' 40,000 steps are half of 200 epochs.
    """

    name = "elr+"
    paper = (
        "Liu, Niles-Weed, Razavian, Fernandez-Granda, Early-Learning Regularization Prevents Memorization of Noisy "
        "Labels (NeurIPS 2020)"
    )
    cost = Cost(2.8, 2.0)
    needs_index = True
    ensemble = True

    weight: float = option(3.0, "0 or more")
    beta: float = option(0.7, "a number in [0, 1)")
    alpha: float = option(1.0, "0 or more")
    decay: float = option(0.997, "a number in [0, 1)")
    ramp_share: float = option(0.5, "a number in [0, 1]")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.targets = self.remember("targets", num_classes), self.remember("second_targets", num_classes)
        self.average, self.second_average = Averaged(self.model), Averaged(self.second_model)
        self.steps, self.taken = _STEPS, 0  # in the previous epoch, and in this one
        self.saved += ["average", "second_average", "steps", "taken"]
        self.ramp = 1.0  # γ / γ₁

    @property
    def following(self) -> float:
        """γ of a step."""
        return float(self.ramp * self.decay ** (_STEPS / self.steps))

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set how far γ has come."""
        done = 1.0 if self.ramp_share == 0 else min(epoch / (self.ramp_share * epochs), 1.0)
        self.ramp = math.exp(-5 * (1 - done) ** 2)

    def survey(self, epoch: int) -> None:
        """Note how many steps the previous epoch had."""
        if self.taken:
            self.steps, self.taken = self.taken, 0

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network, and of its average."""
        inputs, labels = self.classifier.unpack(batch, "training")
        index = self.targets[0].index(batch)
        given = one_hot(labels, self.targets[0][index])
        draws = [draw_mixture(self.alpha, len(labels), self.generator, self.classifier.device) for _ in range(2)]
        shares = [max(share, 1 - share) for share, _ in draws]
        orders = [order for _, order in draws]
        averages = self.average, self.second_average
        teachers = [average.beliefs(inputs, self.classifier.dtype) for average in reversed(averages)]
        forwards = self.forwards(*(mix(inputs, order, share) for order, share in zip(orders, shares, strict=True)))
        losses = []
        for memory, teacher, order, share in zip(self.targets, teachers, orders, shares, strict=True):
            targets = self.beta * memory[index] + (1 - self.beta) * teacher
            memory[index] = targets
            losses.append(partial(self._loss, *(s.lerp(s[order], 1 - share) for s in (given, targets))))
        right = {"accuracy": accuracy(teachers[1], labels), "target_accuracy": accuracy(self.targets[0][index], labels)}
        metrics = self.descend_both(forwards, losses, [f.detached.logits for f in forwards], labels, **right)
        for classifier, average in zip(self.classifiers, averages, strict=True):
            average.update(classifier.model, self.following)
        self.taken += 1
        return metrics

    def _loss(self, labels: Tensor, targets: Tensor, logits: Tensor) -> Tensor:
        return objective.cross_entropy(logits, labels) + self.weight * early_learning_penalty(logits, targets)
