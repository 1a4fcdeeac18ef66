"""Plain cross-entropy: the three baselines that belong in every table."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.options import Configured


class CrossEntropy(Configured):
    """Train on the noisy labels as if they were right."""

    name = "cross-entropy"
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.02, 5e-3), (0.05, 5e-3))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on the noisy batch."""
        return self.descend(batch, objective.cross_entropy)


class CleanOnly(CrossEntropy):
    """Train on the trusted samples only and ignore the noisy ones."""

    name = "clean-only"
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.05, 5e-3), (0.05, 5e-3))

    needs_trusted = True

    @property
    def meta_due(self) -> bool:
        """Trusted samples at every step."""
        return True

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on the trusted batch."""
        return self.descend(meta_batch, objective.cross_entropy, "meta")


class FineTuned(CrossEntropy):
    """Train on the noisy labels, then fine-tune on the trusted samples.

    The learning-rate schedule runs through once in each phase; in the second it is multiplied by `tune_lr`.
    """

    name = "fine-tuned"
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.02, 5e-3), (0.05, 5e-4))

    needs_trusted = True

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        tune_share: float = 0.3,
        tune_lr: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        if not 0 < tune_share < 1:
            raise ValueError(f"tune_share={tune_share} is outside (0, 1): it is the share of epochs spent fine-tuning")
        self.tune_share, self.tune_lr = tune_share, tune_lr
        self._switch = 1 - tune_share  # share of the training after which fine-tuning starts
        self.tuning = False

    def settings(self) -> dict[str, Any]:
        """The two phases."""
        return {"tune_share": self.tune_share, "tune_lr": self.tune_lr}

    @property
    def meta_due(self) -> bool:
        """Trusted samples in the second phase."""
        return self.tuning

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Switch to the trusted samples for the last `tune_share` of the epochs (at least one)."""
        first = min(round((1 - self.tune_share) * epochs), epochs - 1)
        self.tuning, self._switch = epoch >= first, first / epochs

    def lr_scale(self, progress: float, schedule: Callable[[float], float]) -> float:
        """The schedule from its start in each phase."""
        if not self.tuning:
            return schedule(progress / max(self._switch, 1e-12))
        return self.tune_lr * schedule((progress - self._switch) / (1 - self._switch))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on the batch of the phase."""
        chosen, what = (meta_batch, "meta") if self.tuning else (batch, "training")
        return self.descend(chosen, objective.cross_entropy, what)
