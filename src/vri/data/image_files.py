"""Labelled image files as a data set: each is read, cut to size and turned into a tensor on demand."""

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from vri.data.images import to_float

# Random cuts draw from torch's global generator, the only one a data set has access to; `vri.data.batches` seeds it for
# each sample and restores it.

_AREA = (0.08, 1.0)  # share of the image that a random resized crop shows, as usual for ImageNet
_RATIO = (3 / 4, 4 / 3)  # its width over its height


@dataclass(frozen=True)
class Preparation:
    """How an image file becomes a tensor.

    Attributes:
        size: side of the square that comes out.
        resize: the shorter side is resized to this length before the square is cut out.
        keep_ratio: False resizes both sides to `resize`: the picture is distorted, but nothing is cut off.
        augment: random augmentation in training: a name in `AUGMENTATIONS`.
        mean: subtracted from each channel on the scale of [0, 1]; ImageNet's by default.
        std: each channel is divided by it; ImageNet's by default.
        on_broken: "raise" stops at a file that can't be read; "skip" takes the next readable sample instead.
        max_pixels: larger images count as broken, before they are decoded: a small file can unpack to
            gigabytes. Pillow's own limit of 179 million pixels stays.
    """

    size: int = 224
    resize: int = 256
    keep_ratio: bool = True
    augment: str = "crop"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    on_broken: str = "raise"
    max_pixels: int = 50_000_000

    def __post_init__(self) -> None:
        checks = (
            (self.size >= 1, f"size={self.size} (expected 1 or more)"),
            (self.resize >= self.size, f"resize={self.resize} (expected {self.size} or more, the square cut out)"),
            (self.augment in AUGMENTATIONS, f"augment={self.augment!r} (expected one of {', '.join(AUGMENTATIONS)})"),
            (
                len(self.mean) == len(self.std) == 3 and min(self.std) > 0,
                f"mean={self.mean} and std={self.std} (expected three numbers each, std above 0)",
            ),
            (self.on_broken in ("raise", "skip"), f"on_broken={self.on_broken!r} (expected raise or skip)"),
            (self.max_pixels >= 1, f"max_pixels={self.max_pixels} (expected 1 or more)"),
        )
        if wrong := [text for right, text in checks if not right]:
            raise ValueError("Preparation got options it can't use: " + "; ".join(wrong))


class BrokenImage(ValueError):
    """An image file can't be read."""


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Image files with their labels: sample i is (float tensor of 3 x size x size, label).

    Images become RGB (transparency is dropped, 16 bits become 8) and are rotated as their EXIF orientation says, which
    is how people saw them when they labelled them.

    Paths are kept in one block of bytes: a million of 40 letters take 48 MB, which worker processes share, and
    the labels 8 MB.

    With ``on_broken="skip"`` the next readable sample, with its own label, replaces a broken one. There is one warning
    for each broken file, and `broken` lists it, even if a loading process found it. A sample's number may then belong
    to another sample: to find wrong labels or to follow single samples, leave out the files that `scan` names.

    Args:
        root: folder that the paths start from.
        paths: of the images, relative to `root`.
        labels: class of each image.
        prepare: how an image becomes a tensor.
        training: whether to cut randomly; otherwise the square is the middle of the image.

    Attributes:
        targets: the labels, a list; change them here to give samples other labels.
    """

    def __init__(
        self,
        root: str | Path,
        paths: Sequence[str],
        labels: Sequence[int],
        prepare: Preparation | None = None,
        *,
        training: bool = False,
    ) -> None:
        if len(paths) != len(labels):
            raise ValueError(f"there are {len(paths)} paths and {len(labels)} labels; expected one label per path")
        if len(paths) == 0:
            raise ValueError(f"there are no images for {root}; expected at least one path")
        self.root, self.training = Path(root), training
        self.prepare = prepare if prepare is not None else Preparation()
        self.targets = [int(label) for label in labels]
        encoded = [path.encode("utf-8", "surrogateescape") for path in paths]
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        self._bytes = b"".join(encoded)
        self._is_broken = self._none_broken()

    def changed(self, *, training: bool | None = None, **preparation: Any) -> "ImageFiles":
        """The same files, prepared differently: ``files.changed(training=False, size=128)``."""
        other = copy.copy(self)  # shares the paths
        other.training = self.training if training is None else training
        other.prepare = replace(self.prepare, **preparation)
        other.targets = list(self.targets)
        other._is_broken = other._none_broken()
        return other

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Tensor and label of a sample."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"sample {index} of {count}")
        if self.prepare.on_broken == "raise":
            return self._sample(index)
        for place in ((index + step) % count for step in range(count)):
            if self._is_broken[place]:
                continue
            try:
                return self._sample(place)
            except BrokenImage as error:
                self._is_broken[place] = True
                warnings.warn(f"{error}; the next readable sample takes its place", stacklevel=2)
        raise BrokenImage(
            f"none of the {count} images under {self.root} can be read; expected at least one: "
            "check the folder, and one file by hand"
        )

    def path(self, index: int) -> Path:
        """File of a sample."""
        return self.root / self.relative_path(index)

    def relative_path(self, index: int) -> str:
        """Path of a sample's file, relative to `root`."""
        index = range(len(self))[index]
        start = int(self._ends[index - 1]) if index else 0
        return self._bytes[start : int(self._ends[index])].decode("utf-8", "surrogateescape")

    @property
    def broken(self) -> list[str]:
        """Files that could not be read so far, as paths relative to `root`."""
        return [self.relative_path(i) for i in self._is_broken.nonzero().flatten().tolist()]

    def scan(self) -> list[tuple[str, str]]:
        """Read all images; return the paths, relative to `root`, of those that can't be read, and why."""
        found = []
        for index in range(len(self)):
            try:
                read_image(self.path(index), self.prepare.max_pixels)
            except BrokenImage as error:
                found.append((self.relative_path(index), str(error)))
        return found

    def _none_broken(self) -> Tensor:
        """In shared memory: what one loading process finds is known to the others and the main process."""
        marks = torch.zeros(len(self), dtype=torch.bool)
        return marks.share_memory_() if self.prepare.on_broken == "skip" else marks

    def _sample(self, index: int) -> tuple[Tensor, int]:
        image = read_image(self.path(index), self.prepare.max_pixels)
        cut = AUGMENTATIONS[self.prepare.augment] if self.training else centre
        pixels = torch.from_numpy(np.array(cut(image, self.prepare))).permute(2, 0, 1)  # 3 x size x size
        return to_float(pixels, self.prepare.mean, self.prepare.std).contiguous(), self.targets[index]


def read_image(path: str | Path, max_pixels: int) -> Image.Image:
    """Decode an image file into RGB, upright; raises `BrokenImage` if that fails."""
    try:
        with Image.open(path) as image:
            pixels = image.width * image.height  # known from the header: nothing is decoded yet
            if pixels <= max_pixels:
                image.load()
                return _rgb(_upright(image))
    except FileNotFoundError as error:
        raise BrokenImage(f"{path} is not there; expected an image file: put it back, or correct its path") from error
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise BrokenImage(
            f"{path} can't be read as an image ({type(error).__name__}: {error}); "
            'fetch it again, leave it out, or pass Preparation(on_broken="skip")'
        ) from error
    raise BrokenImage(
        f"{path} has {pixels:,} pixels; expected at most {max_pixels:,}: "
        "shrink it, leave it out, or raise Preparation(max_pixels=...) if it is to be trusted"
    )


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data in an intact image
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:  # Pillow warns unless such a palette is converted through RGBA
        image = image.convert("RGBA")
    return image.convert("RGB")


# Ways to cut the square out of an image


def centre(image: Image.Image, prepare: Preparation) -> Image.Image:
    """Resize, then cut out the middle."""
    return _square(_resized(image, prepare), prepare.size, lambda spare: round(spare / 2))


def flip(image: Image.Image, prepare: Preparation) -> Image.Image:
    """As `centre`, then mirror half of the images."""
    return _flipped(centre(image, prepare))


def crop(image: Image.Image, prepare: Preparation) -> Image.Image:
    """Resize, cut out a square anywhere, then mirror half of the images."""
    return _flipped(_square(_resized(image, prepare), prepare.size, lambda spare: _below(spare + 1)))


def resized_crop(image: Image.Image, prepare: Preparation) -> Image.Image:
    """Cut out a random part of 8 to 100 % of the area, resize it, then mirror half of the images.

    Szegedy et al., "Going deeper with convolutions" (2015). `resize` is not used.
    """
    box = _random_part(image.width, image.height)
    return _flipped(image.resize((prepare.size, prepare.size), Image.Resampling.BILINEAR, box=box))


AUGMENTATIONS: dict[str, Callable[[Image.Image, Preparation], Image.Image]] = {
    "none": centre,
    "flip": flip,
    "crop": crop,
    "resized_crop": resized_crop,
}


def _resized(image: Image.Image, prepare: Preparation) -> Image.Image:
    width, height = (prepare.resize * side // min(image.size) for side in image.size)
    sides = (width, height) if prepare.keep_ratio else (prepare.resize, prepare.resize)
    return image if image.size == sides else image.resize(sides, Image.Resampling.BILINEAR)


def _square(image: Image.Image, size: int, place: Callable[[int], int]) -> Image.Image:
    """Cut out a square; `place` returns where it begins, given by how much a side is longer."""
    left, top = place(image.width - size), place(image.height - size)
    return image.crop((left, top, left + size, top + size))


def _random_part(width: int, height: int) -> tuple[int, int, int, int]:
    """A box of random area and shape inside the image: left, top, right, bottom."""
    low, high = np.log(_RATIO)
    for _ in range(10):  # a wide box may not fit into a tall image: try again
        area = width * height * _uniform(*_AREA)
        ratio = np.exp(_uniform(low, high))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = _below(width - w + 1), _below(height - h + 1)
            return left, top, left + w, top + h
    # the largest part in the middle whose shape is allowed
    w, h = min(width, round(height * _RATIO[1])), min(height, round(width / _RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _flipped(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if _below(2) else image


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _below(count: int) -> int:
    return int(torch.randint(count, ()))
