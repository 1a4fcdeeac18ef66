"""What a method keeps for each training sample: targets, predictions, weights."""

import torch
from torch import Tensor

from vri.core.checks import Batch
from vri.core.model import Classifier


class SampleMemory:
    """A row of numbers for each training sample, found by the sample's number.

    Each worker writes the rows of its own samples; the loop merges them after every epoch and before a checkpoint
    (`touched` marks the rows to take). An epoch contains each sample once, so no worker reads an outdated row.
    `owner` is the method's name, for errors; `shape` that of a row, and `fill` its value before it is written.
    """

    def __init__(self, owner: str, shape: tuple[int, ...], classifier: Classifier, fill: float) -> None:
        self._owner, self._shape, self._fill, self._classifier = owner, shape, fill, classifier
        self.values: Tensor | None = None  # (size, *shape)
        self.touched = torch.empty(0, dtype=torch.bool)  # rows written since the last merge

    def make_room(self, size: int) -> None:
        """Fill all rows, for this many samples."""
        device, dtype = self._classifier.device, self._classifier.dtype
        self.values = torch.full((size, *self._shape), self._fill, device=device, dtype=dtype)
        self.touched = torch.zeros(size, dtype=torch.bool, device=device)

    def __getitem__(self, index: Tensor) -> Tensor:
        return self._room()[index]

    def __setitem__(self, index: Tensor, rows: Tensor) -> None:
        values = self._room()
        values[index] = rows.detach().to(values.dtype)
        self.touched[index] = True

    def index(self, batch: Batch) -> Tensor:
        """The numbers of the samples of a batch (inputs, labels, index), checked."""
        values, count = self._room(), len(batch[1])
        index = batch[-1] if len(batch) > 2 else None
        if not isinstance(index, Tensor) or index.shape != (count,) or index.is_floating_point():
            got = "nothing" if index is None else f"a {type(index).__name__}"
            if isinstance(index, Tensor):
                got = f"{str(index.dtype).removeprefix('torch.')} of shape {tuple(index.shape)}"
            raise ValueError(
                f"{self._owner} needs the numbers of the samples as last part of a batch, integers of shape "
                f"({count},), and got {got}; give batches (inputs, labels, index)"
            )
        if not index.is_cuda:  # on a GPU, reading two numbers would force a synchronisation
            low, high, size = int(index.min()), int(index.max()), len(values)
            if low < 0 or high >= size:
                raise ValueError(
                    f"the sample numbers run from {low} to {high}, but there are {size} training samples; number them "
                    f"0..{size - 1}, or call begin_training with their count"
                )
        return index.to(values.device, torch.long)

    def restore(self, values: Tensor | None) -> None:
        """Restore saved rows."""
        self.values = None if values is None else values.to(self._classifier.device, copy=True)
        if self.values is not None:
            self.touched = torch.zeros(len(self.values), dtype=torch.bool, device=self.values.device)

    def _room(self) -> Tensor:
        if self.values is None:
            raise ValueError(
                f"{self._owner} keeps something for each training sample, but doesn't know how many there are; call "
                "begin_training(size, None) before the first step, or train with vri.train"
            )
        return self.values
