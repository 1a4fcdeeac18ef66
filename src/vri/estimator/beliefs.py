"""What a classifier believed of some samples, averaged over the epochs of its training."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vri.data.batches import Transform
from vri.estimator.samples import with_labels
from vri.files import atomic_write
from vri.training.evaluation import predict
from vri.training.progress import Row

_SKIPPED = 10  # one of so many epochs, the first ones, has not learned enough to count


class Beliefs:
    """Mean probabilities (n, c) of samples over the later epochs: the doubts on the way are worth knowing, too.

    With a file, they are there again when a training goes on.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, epochs: int, transform: Transform | None, path: Path | None
    ) -> None:
        self._model, self._inputs, self._transform, self._path = model, inputs, transform, path
        self._first = epochs // _SKIPPED + 1
        self._epoch, self._count, self._sum = 0, 0, torch.zeros(0)
        if path is not None and path.exists():
            with np.load(path, allow_pickle=False) as saved:
                self._epoch, self._count = int(saved["epoch"]), int(saved["count"])
                self._sum = torch.from_numpy(saved["sum"])

    def note(self, row: Row) -> None:
        """Take an epoch into the mean."""
        epoch = int(row["epoch"] or 0)
        if epoch <= self._epoch or epoch < self._first:
            return
        now = self._now()
        self._sum = now if self._count == 0 else self._sum + now
        self._epoch, self._count = epoch, self._count + 1
        if self._path is not None:
            with atomic_write(self._path) as file:
                np.savez(file, epoch=self._epoch, count=self._count, sum=self._sum.numpy())

    def mean(self) -> Tensor:
        """(n, c); of the model as it is, where no epoch counted."""
        found = self._sum / self._count if self._count else self._now()
        return found.double()

    def _now(self) -> Tensor:
        found = predict(self._model, with_labels(self._inputs), transform=self._transform)
        return torch.cat([logits.float().softmax(1).cpu() for logits, _ in found])
