"""The result of a noise model: noisy labels and what is known about them; and its file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vri.files import read_arrays, write_arrays

ArrayLike = Tensor | npt.NDArray[Any] | Sequence[Any]

_FORMAT = "vri noise 1"  # of the file; the number is raised whenever the meaning of its content changes
_FIELDS = {  # kind and number of axes of each array in the file
    "labels": ("i", 1),
    "mask": ("b", 1),
    "matrix": ("f", 2),
    "rate": ("f", 0),
    "hash": ("U", 0),
    "name": ("U", 0),
    "asked_rate": ("f", 1),
    "seed": ("i", 1),
    "num_classes": ("i", 0),
}


@dataclass(frozen=True, eq=False)
class Noise:
    """Noisy labels and what is known about them.

    Attributes:
        labels: noisy labels, int64, n.
        changed: where the noisy label differs from the given one, bool, n.
        matrix: transition matrix, float64, c x c; row i is P(noisy = j | true = i).
        rate: realised share of changed labels, the mean of `changed`.
        name: of the model in `NOISES`, or "human".
        asked_rate: the rate the model was given; None for human labels.
        seed: likewise.
    """

    labels: Tensor
    changed: Tensor
    matrix: Tensor
    rate: float
    name: str
    asked_rate: float | None = None
    seed: int | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.matrix)

    @property
    def hash(self) -> str:
        """SHA-256 of the noisy labels as 64-bit little-endian integers, in hexadecimal."""
        return hashlib.sha256(self.labels.numpy().astype("<i8").tobytes()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write it to a ``.npz`` file, whole or not at all; `vri.noise.load` reads it."""
        write_arrays(
            path,
            _FORMAT,
            labels=self.labels.numpy(),
            mask=self.changed.numpy(),
            matrix=self.matrix.numpy(),
            rate=np.float64(self.rate),
            hash=np.str_(self.hash),
            name=np.str_(self.name),
            # empty for None, which .npz can't hold without pickle
            asked_rate=np.array([] if self.asked_rate is None else [self.asked_rate], np.float64),
            seed=np.array([] if self.seed is None else [self.seed], np.int64),
            num_classes=np.int64(self.num_classes),
        )


def load(path: str | Path, y: ArrayLike | None = None) -> Noise:
    """Read what `Noise.save` wrote, and check it: against itself, and against the right labels `y` if given."""
    arrays = read_arrays(path, _FORMAT, _FIELDS)
    labels, mask, matrix = (arrays[name] for name in ("labels", "mask", "matrix"))
    classes, fix = int(arrays["num_classes"]), "write it again with `vri noise`"
    if labels.shape != mask.shape or matrix.shape != (classes, classes):
        raise ValueError(
            f"{path} holds labels of shape {labels.shape}, a mask of shape {mask.shape} and a matrix of shape "
            f"{matrix.shape}; expected n, n and {classes} x {classes}: {fix}"
        )
    found = Noise(
        as_labels(labels, classes),
        torch.from_numpy(mask),
        torch.from_numpy(matrix.astype(np.float64)),
        float(arrays["rate"]),
        str(arrays["name"]),
        *(values[0].item() if len(values) else None for values in (arrays["asked_rate"], arrays["seed"])),
    )
    if found.hash != str(arrays["hash"]):
        raise ValueError(f"{path} holds labels whose hash is not the one beside them; expected them unchanged: {fix}")
    if found.rate != found.changed.double().mean().item():
        raise ValueError(f"{path} holds a mask that is not of its rate {found.rate}; expected it unchanged: {fix}")
    if y is None:
        return found
    true_labels, fix = as_labels(y, None), "use the data set and limit it was made for"
    if len(labels) != len(true_labels):
        raise ValueError(
            f"{path} holds {len(labels)} labels for a data set with {len(true_labels)}; expected as many: {fix}"
        )
    if wrong := int((found.changed != (found.labels != true_labels)).sum()):
        raise ValueError(
            f"{path} belongs to other labels: {wrong} of {len(true_labels)} disagree about what was changed; {fix}"
        )
    return found


def as_labels(y: ArrayLike, num_classes: int | None) -> Tensor:
    """Copy labels into a 1-D int64 tensor on the CPU, or say what is wrong with them.

    Without `num_classes` there is no upper limit.
    """
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.size == 0:
        raise ValueError("labels are empty; expected at least one label")
    if array.ndim != 1:
        raise ValueError(f"labels have shape {array.shape}; expected one axis: pass one class index per sample")
    if array.dtype.kind not in "iu":
        raise ValueError(f"labels are {array.dtype}; expected integers: convert them to class indices first")
    labels = torch.from_numpy(array.astype(np.int64))
    low, high = int(labels.min()), int(labels.max())
    if low < 0 and num_classes is None:
        raise ValueError(f"labels run from {low} to {high}; expected 0 or more: recode them")
    if num_classes is not None and not 0 <= low <= high < num_classes:
        raise ValueError(
            f"labels run from {low} to {high}; expected 0 to {num_classes - 1} "
            f"for num_classes={num_classes}: recode them or change num_classes"
        )
    return labels
