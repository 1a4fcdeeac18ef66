"""Plain cross-entropy: the three baselines that belong in every table."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vri.core import objective
from vri.core.checks import Batch
from vri.core.model import Classifier
from vri.core.randomness import draw_seed
from vri.methods.base import Method, Metrics, accuracy
from vri.training import distributed as parallel


class CrossEntropy(Method):
    """Train on the noisy labels as if they were right."""

    on_workers = True

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        generator: torch.Generator | None = None,
        head: str | None = None,
        feature_dim: int | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.classifier = Classifier(model, num_classes, optimizer, head, feature_dim, autocast)
        self.model, self.num_classes, self.optimizer = model, num_classes, optimizer
        self.generator = generator if generator is not None else torch.Generator().manual_seed(0)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on the noisy batch."""
        return self._step(batch, "training")

    def state_dict(self) -> dict[str, Any]:
        """The classifier, its optimizer and the generator."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())

    def _step(self, batch: Batch | None, what: str) -> Metrics:
        inputs, labels, part = self.classifier.unpack(batch, what)
        forward = self.classifier.forward(inputs, draw_seed(self.generator))
        leaf = forward.outputs.logits.detach().requires_grad_()
        loss = part.scale(objective.cross_entropy(leaf, labels))
        (output_gradient,) = torch.autograd.grad(loss, leaf)
        names = list(self.classifier.parameters)
        self.classifier.update(self.classifier.gradient(forward, (output_gradient, None), names, keep=False))
        right = accuracy(leaf.detach(), labels)
        return parallel.sums({"loss": float(loss.detach())} | part.of({"accuracy": right}))


class CleanOnly(CrossEntropy):
    """Train on the clean samples alone and ignore the noisy ones."""

    needs_clean = True

    @property
    def meta_due(self) -> bool:
        """Clean samples at every step."""
        return True

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on the clean batch."""
        return self._step(meta_batch, "meta")


class FineTuned(CrossEntropy):
    """Train on the noisy labels, then fine-tune on the clean samples.

    The learning-rate schedule runs through once in each phase; in the second it is multiplied by `tune_lr`.
    """

    needs_clean = True

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
        """Clean samples in the second phase."""
        return self.tuning

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Switch to the clean samples for the last `tune_share` of the epochs (one at least)."""
        first = min(round((1 - self.tune_share) * epochs), epochs - 1)
        self.tuning, self._switch = epoch >= first, first / epochs

    def lr_scale(self, progress: float, schedule: Callable[[float], float]) -> float:
        """The schedule from its start in each phase."""
        if not self.tuning:
            return schedule(progress / max(self._switch, 1e-12))
        return self.tune_lr * schedule((progress - self._switch) / (1 - self._switch))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on the batch of the phase."""
        return self._step(meta_batch, "meta") if self.tuning else self._step(batch, "training")
