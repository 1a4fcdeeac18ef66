"""Small image data sets read from files already on the machine: digits and Fashion-MNIST."""

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vri.data.splits import split

_DIGITS_TEST_SIZE = 360  # 36 of each class, a fifth of the 1,797 images
_DIGITS_SPLIT_SEED = 0  # part of the data set's definition: results are comparable only on one split

_FASHION_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FASHION_SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")


class DatasetMissing(FileNotFoundError):
    """A data set's files are in none of the folders looked in."""


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
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    class_names: tuple[str, ...]


def digits(root: str | Path | None = None) -> ImageData:
    """Read scikit-learn's 1,797 handwritten digits of 8x8 pixels; `root` is not needed.

    The set has no test part of its own: a fixed, class-balanced fifth (360 images) is set aside.
    """
    # Imported here because scikit-learn takes a second to load and only this function needs it.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images)  # n x 8 x 8, values 0..16
    x = (pixels * 255 / 16).round().to(torch.uint8)[:, None]  # n x 1 x 8 x 8
    y = torch.from_numpy(bunch.target).long()
    parts = split(y, sizes={"test": _DIGITS_TEST_SIZE, "train": -1}, num_classes=10, seed=_DIGITS_SPLIT_SEED)
    train, test = parts["train"], parts["test"]
    return ImageData("digits", x[train], y[train], x[test], y[test], tuple("0123456789"))


def fashion_mnist(root: str | Path | None = None) -> ImageData:
    """Read Fashion-MNIST, 60,000 + 10,000 images of 28x28 pixels, from its four idx.gz files.

    Looks in `root`, in the folder the environment variable VRI_DATA names (in both also in their subfolder
    ``fashion-mnist``), in ``~/.cache/vri/fashion-mnist`` and where Debian's package puts the files.
    """
    folders = _fashion_folders(root)
    folder = next((f for f in folders if all((f / name).is_file() for name in _FASHION_FILES)), None)
    if folder is None:
        raise DatasetMissing(
            f"fashion-mnist not found; expected {', '.join(_FASHION_FILES)} together in one of "
            f"{', '.join(map(str, folders))}: apt-get install dataset-fashion-mnist, or put the files there"
        )
    train_x, train_y = _read_pair(folder / _FASHION_FILES[0], folder / _FASHION_FILES[1])
    test_x, test_y = _read_pair(folder / _FASHION_FILES[2], folder / _FASHION_FILES[3])
    return ImageData("fashion-mnist", train_x, train_y, test_x, test_y, _FASHION_CLASSES)


def read_idx(path: str | Path) -> Tensor:
    """Read a gzipped idx file of unsigned bytes into a uint8 tensor.

    The format: two zero bytes, the type (8 is unsigned byte), the number of axes, each axis' length as a
    big-endian 32-bit integer, then the values in row-major order.
    """
    fix = "fetch the file again"
    try:
        with gzip.open(path) as file:
            content = bytearray(file.read())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}); expected a whole gzip file: {fix}") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        start = content[:4].hex(" ") or "nothing"
        raise ValueError(f"{path} starts with {start}; expected the idx header 00 00 08 and an axis count: {fix}")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise ValueError(f"{path} ends after {len(content)} bytes; expected a header of {header}: {fix}")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    found, expected = len(content) - header, math.prod(shape)
    if found != expected:
        raise ValueError(f"{path} holds {found} values; expected {expected} for shape {tuple(shape)}: {fix}")
    if expected == 0:  # torch.frombuffer refuses to read nothing
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def to_float(
    x: Tensor, mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None
) -> Tensor:
    """Turn uint8 images into float32 in [0, 1], then subtract `mean` and divide by `std`.

    Args:
        x: images, uint8, (n x) channels x height x width.
        mean: one number, or one a channel, on the scale of [0, 1]; nothing is subtracted without it.
        std: likewise; nothing is divided without it.
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
    """Shape one number, or one a channel, so that it broadcasts over images."""
    numbers = torch.as_tensor(value, dtype=torch.float32, device=x.device)
    if numbers.ndim == 0:
        return numbers
    if x.ndim < 3 or numbers.shape != x.shape[-3:-2]:
        raise ValueError(
            f"{name} has shape {tuple(numbers.shape)} for images of shape {tuple(x.shape)}; "
            "expected one number or one a channel: match the channels"
        )
    return numbers[:, None, None]  # c x 1 x 1


def _fashion_folders(root: str | Path | None) -> list[Path]:
    """List the folders to look in, first come first served."""
    chosen = [folder for folder in (root, os.environ.get("VRI_DATA")) if folder]
    folders = []
    for folder in map(Path, chosen):
        folders += [folder, folder / "fashion-mnist"]
    return [*folders, Path.home() / ".cache" / "vri" / "fashion-mnist", _FASHION_SYSTEM_FOLDER]


def _read_pair(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    """Read an image and a label file that belong together."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"{images_path} has shape {tuple(images.shape)} and {labels_path.name} {tuple(labels.shape)}; "
            "expected n x h x w images and n labels: fetch the files again"
        )
    return images[:, None], labels.long()  # n x 1 x h x w, n
