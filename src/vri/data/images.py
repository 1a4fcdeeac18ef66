"""Images in memory with their labels, and their conversion to float."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images with their labels, in a training and a test part.

    Attributes:
        name: name of the data set.
        train_x: training images, uint8, n x channels x height x width.
        train_y: training labels, int64, n.
        test_x: test images, as `train_x`.
        test_y: test labels, as `train_y`.
        class_names: what the labels 0, 1, ... stand for.
        mean: mean of each channel on the scale of [0, 1]; empty if none is published.
        std: standard deviation of each channel, likewise.
        human_labels: what people answered for the training images, by the name of the round; each int64, n.
        open_set: marks training images that belong to none of the classes, bool, n; None if all do.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    human_labels: Mapping[str, Tensor] = field(default_factory=dict)
    open_set: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def to_float(
    x: Tensor, mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None
) -> Tensor:
    """Turn uint8 images into float32 in [0, 1], then subtract `mean` and divide by `std`.

    Args:
        x: images, uint8, (n x) channels x height x width.
        mean: one number, or one per channel, on the scale of [0, 1]; if not given, nothing is subtracted.
        std: likewise; if not given, nothing is divided.
    """
    if x.dtype != torch.uint8:
        raise ValueError(f"x is {x.dtype}; expected torch.uint8 with values 0 to 255: pass the raw images")
    out = x.to(torch.float32).div_(255)
    if mean is not None:
        out -= _per_channel("mean", mean, x)
    if std is not None:
        scale = _per_channel("std", std, x)
        if not (scale > 0).all():
            raise ValueError(f"std is {std}; expected numbers above 0: pass the channels' standard deviations")
        out /= scale
    return out


def _per_channel(name: str, value: float | Sequence[float], x: Tensor) -> Tensor:
    """Shape one number, or one per channel, so that it broadcasts over images."""
    numbers = torch.as_tensor(value, dtype=torch.float32, device=x.device)
    if numbers.ndim == 0:
        return numbers
    if x.ndim < 3 or numbers.shape != x.shape[-3:-2]:
        raise ValueError(
            f"{name} has shape {tuple(numbers.shape)} for images of shape {tuple(x.shape)}; "
            "expected one number or one per channel: match the channels"
        )
    return numbers[:, None, None]  # c x 1 x 1
