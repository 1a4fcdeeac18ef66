"""The interface of a method: what the loop needs, and nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vri.core.checks import Batch

Metrics = dict[str, float]


class Method(ABC):
    """A way to train a classifier on noisy labels.

    A method owns the model, its optimizer and whatever else it learns, and does one step at a time. A new one is
    a class with `step`, `state_dict` and `load_state_dict` in a file of its own, and an entry in `METHODS`.
    """

    model: nn.Module  # the classifier: all that runs at test time
    optimizer: torch.optim.Optimizer  # of the classifier; the loop sets its learning rate
    num_classes: int
    needs_clean: bool = False  # whether it can't do without clean samples
    can_select: bool = False  # whether selected samples may stand in for clean ones; it then has `warm_up`
    needs_index: bool = False  # whether a training batch ends with the samples' numbers
    on_workers: bool = False  # whether steps of several workers, each on its part of a batch, are one on the whole
    networks: int = 1  # classifiers it trains; only `model` runs at test time
    paper: str = ""  # where it comes from

    @abstractmethod
    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        """Every method is built in this way; `generator` is the source of all its randomness."""

    @property
    def meta_due(self) -> bool:
        """Whether the next step reads a clean batch."""
        return False

    @abstractmethod
    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """Train on one noisy batch, with the help of a clean one where the method uses it."""

    def warm_up(self, batch: Batch) -> Metrics:
        """One step of plain cross-entropy, before clean or selected samples are used; if the method `can_select`."""
        raise NotImplementedError

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that must be saved to go on exactly; plain containers, numbers and tensors."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()` of a method built in the same way."""

    def settings(self) -> dict[str, Any]:
        """Options that must be the same when a run goes on; plain values."""
        return {}

    def begin_training(  # noqa: B027 (an optional hook)
        self, size: int, clean_batches: Callable[[], Iterable[Batch]] | None
    ) -> None:
        """Called by the loop once, before it loads a checkpoint.

        Args:
            size: number of training samples.
            clean_batches: each call goes through all clean samples once, in order; None if there are none.
        """

    def begin_epoch(self, epoch: int, epochs: int) -> None:  # noqa: B027 (an optional hook)
        """Called by the loop before each epoch, counted from 0, and again on resuming inside one."""

    def lr_scale(self, progress: float, schedule: Callable[[float], float]) -> float:
        """Factor on the learning rate at this share of the training; `schedule` maps [0, 1] to a factor."""
        return schedule(progress)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose largest logit is the label, or the largest part of a soft one."""
    target = labels.argmax(1) if labels.is_floating_point() else labels
    return float((logits.argmax(1) == target).double().mean())
