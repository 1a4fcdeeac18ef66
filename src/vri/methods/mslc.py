"""Meta soft label corrector: a label mixed from the given one and the classifier's predictions."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.core import objective
from vri.core.checks import Batch
from vri.core.model import Outputs
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.losses import one_hot, sample_losses
from vri.methods.meta import LossNetwork, MetaMethod
from vri.methods.options import option


class Corrected(NamedTuple):
    """Corrected labels of a batch, (n, c) both."""

    targets: Tensor  # to train on
    soft: Tensor  # to remember


class MSLC(MetaMethod):
    """Train on a·y + (1 − a)·(b·previous + (1 − b)·current), with a and b learned from the trusted samples.

    y is the given label, `current` the current prediction and `previous` what was remembered when the sample was last
    seen: its corrected label or, in the first phase, its prediction. a and b are MLPs 1-100-1 with a sigmoid of the
    losses L(z, y) and L(z, previous). A first phase trains on the given labels. No gradient passes to the classifier
    through the corrected label.

    It needs the samples' numbers as the third part of each training batch, and `begin_training` before the first step;
    the loop does both. For a sample without a memory yet, the current prediction serves as the previous one.

    Departures: the paper's text was not available to us, only its abstract and the settings of its public code. The
    authors use Adam with learning rate 1e-3 and weight decay 1e-4.

    Args:
        warmup_share: share of the epochs that the first phase takes; the authors use 80 of 120.
        hard: take the most probable class of `previous` and `current` in the loss, as the public code does. With
            probabilities (False) `current` has no gradient: its cross-entropy with itself is at its minimum. What is
            remembered is soft in both cases.
        hidden: width of the hidden layers.
    """

    name = "mslc"
    paper = "Wu et al. 2021, Learning to Purify Noisy Labels via Meta Soft Label Corrector, AAAI"
    cost = Cost(3.6, 2.0)
    tuned = Rates((0.02, 5e-3), (0.05, 5e-4))
    needs_index = True

    warmup_share: float = option(2 / 3, "a number in [0, 1)")
    hard: bool = option(True)
    hidden: int = option(100, "at least 1")
    meta_weight_decay = 1e-4

    label_share: LossNetwork
    previous_share: LossNetwork

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.warming = False  # in the first phase
        self.memory = self.remember("memory", num_classes)  # row of zeros: nothing remembered
        self._index = torch.empty(0, dtype=torch.long)  # of the current batch
        names = ("label_share", "previous_share")
        self.learn_with(lambda: {name: LossNetwork(self.hidden, torch.sigmoid) for name in names})

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Correct labels once the first phase is over."""
        self.warming = epoch < round(self.warmup_share * epochs)

    @property
    def meta_due(self) -> bool:
        """No trusted samples in the first phase."""
        return not self.warming and super().meta_due

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step, which also remembers the corrected labels."""
        self._index = self.memory.index(batch)
        return super().step(batch, meta_batch)

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Any) -> Corrected:
        """Mix the three labels."""
        given, current = one_hot(labels, outputs.logits), F.softmax(outputs.logits, dim=1)
        if self.warming:
            return Corrected(given, current)
        previous = self.memory[self._index]
        previous = torch.where(previous.sum(1, keepdim=True) > 0, previous, current)
        pseudo = [self._harden(previous), self._harden(current)]
        a = self.label_share(sample_losses(outputs.logits, given)).unsqueeze(1)  # (n, 1)
        b = self.previous_share(sample_losses(outputs.logits, pseudo[0])).unsqueeze(1)
        mixed = [a * given + (1 - a) * (b * p + (1 - b) * q) for p, q in (pseudo, (previous, current))]
        return Corrected(*mixed)

    def loss(self, logits: Tensor, labels: Tensor, correction: Corrected) -> Tensor:
        """Cross-entropy with the corrected labels."""
        return objective.cross_entropy(logits, correction.targets)

    def finish(self, correction: Corrected, labels: Tensor) -> dict[str, Tensor]:
        """Remember the labels; report the share of samples whose most probable class is not the given one."""
        self.memory[self._index] = correction.soft
        given = one_hot(labels, correction.targets).argmax(1)
        return {"relabelled": (correction.targets.argmax(1) != given).double().mean()}

    def settings(self) -> dict[str, Any]:
        """Those of all meta methods, the first phase and the kind of pseudo-label."""
        return super().settings() | {"warmup_share": self.warmup_share, "hard": self.hard}

    def _harden(self, labels: Tensor) -> Tensor:
        return one_hot(labels.argmax(1), labels) if self.hard else labels
