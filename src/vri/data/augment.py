"""Augmentation of small images in memory, a whole batch at a time, on the images' device.

Images are uint8, n x channels x height x width. Random choices are made on the CPU, from the given generator, and then
moved to the device: the same generator state gives the same images on every device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from vri.data import image_operations as op

MAGNITUDES = 30  # the scale of RandAugment's magnitude
FILL = 128  # pixel value where a moved image leaves the frame

# The operations of Cubuk et al. (2020), ordered by how they are computed: those of one kind run together.
_GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
_BY_TABLE = ("autocontrast", "equalize", "solarize", "posterize", "contrast", "brightness")
OPERATIONS = ("identity", *_GEOMETRIC, *_BY_TABLE, "color", "sharpness")

# What magnitude 30 means, as in AutoAugment (Cubuk et al. 2019).
_DEGREES = 30.0
_SHEAR = 0.3
_TRANSLATE = 150 / 331  # of the image's side
_FACTOR = 0.9  # away from 1
_BITS = 4  # dropped


def random_crop(x: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Pad each image by reflection and cut out a random window of the original size, a different one for each."""
    _check_images(x)
    _check_padding(x, padding)
    return _crop(x, *_draw_crop(len(x), padding, generator), padding)


def random_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image, left to right, with probability 1/2."""
    _check_images(x)
    flipped = _draw_flip(len(x), generator).to(x.device)
    return torch.where(flipped[:, None, None, None] == 1, x.flip(3), x)


def rand_augment(
    x: Tensor, generator: torch.Generator, operations: int = 2, magnitude: float = 9, fill: int = FILL
) -> Tensor:
    """Apply random operations, drawn separately for each image: RandAugment, Cubuk et al. (2020).

    Consecutive geometric operations become one sampling by the product of their matrices, so the second can move back
    what the first moved out of the frame.

    Args:
        x: images with one or three channels.
        generator: on the CPU.
        operations: how many per image, drawn with replacement from `OPERATIONS`.
        magnitude: how strong, 0 to 30; its sign is random for operations that have one.
        fill: value of pixels from outside the image.
    """
    _check_images(x, channels=(1, 3))
    _check_magnitude(magnitude)
    chosen = torch.randint(len(OPERATIONS), (len(x), operations), generator=generator)
    negative = torch.randint(2, (len(x), operations), generator=generator)
    return apply_operations(x, chosen, negative, magnitude, fill)


def apply_operations(x: Tensor, chosen: Tensor, negative: Tensor, magnitude: float, fill: int = FILL) -> Tensor:
    """Apply to image i the operations chosen[i, 0], chosen[i, 1], ...: indices into `OPERATIONS`, n x k.

    `negative`, n x k, is 1 where the magnitude is negated. Both are on the CPU.
    """
    level = magnitude / MAGNITUDES
    matrices = _matrices(level, *x.shape[2:])[chosen, negative]  # n x k x 3 x 3
    factors = 1 + _FACTOR * level * (1 - 2 * negative)  # n x k
    geometric = (chosen >= 1) & (chosen <= len(_GEOMETRIC))
    for k in range(chosen.shape[1]):
        now = chosen[:, k]
        if k + 1 < chosen.shape[1]:
            waits = geometric[:, k] & geometric[:, k + 1]
            now = now.masked_fill(waits, 0)
            matrices[waits, k + 1] = matrices[waits, k] @ matrices[waits, k + 1]
        x = _apply_one_each(x, now, matrices[:, k], factors[:, k], level, fill)
    return x


def mixup(x: Tensor, y: Tensor, num_classes: int, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix each sample with a random other one: mixup, Zhang et al. (2018).

    Args:
        x: inputs, floating point, n x anything.
        y: labels, class indices (n) or probability vectors (n x num_classes).
        num_classes: number of classes.
        alpha: the share of the first sample is drawn from Beta(alpha, alpha), one per pair; 0 mixes nothing.
        generator: on the CPU.

    Returns:
        Mixed inputs, and mixed labels as probability vectors, n x num_classes.
    """
    if not x.is_floating_point():
        raise ValueError(f"x is {x.dtype}; expected floating point: mix after normalising")
    if alpha < 0:
        raise ValueError(f"alpha is {alpha}; expected 0 or more: 0 mixes nothing")
    partner = torch.randperm(len(x), generator=generator).to(x.device)
    share = _draw_beta(len(x), alpha, generator).to(x.device, x.dtype)
    labels = y if y.is_floating_point() else torch.nn.functional.one_hot(y, num_classes).to(x.dtype)
    first = share.view(-1, *[1] * (x.ndim - 1))
    mixed_labels = share[:, None] * labels + (1 - share)[:, None] * labels[partner]
    return first * x + (1 - first) * x[partner], mixed_labels


@dataclass(frozen=True)
class Augment:
    """Augmentation and normalisation of a batch: ``augment(x, seed)`` gives float32 on the device of `x`.

    The same images and seed give the same result. With nothing switched on it only normalises, as needed for
    evaluation.

    Attributes:
        mean: one number, or one per channel, on the scale of [0, 1]: subtracted at the end; () subtracts nothing.
        std: likewise; the divisor at the end; () doesn't divide.
        crop: reflection padding of `random_crop`; 0 crops nothing.
        flip: whether images are mirrored at random.
        rand_augment: operations per image, after crop and flip; 0 for none.
        magnitude: of these, 0 to 30.
        fill: pixel value where a moved image leaves the frame.
    """

    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    crop: int = 0
    flip: bool = False
    rand_augment: int = 0
    magnitude: float = 9
    fill: int = FILL

    def __post_init__(self) -> None:
        for name in ("crop", "rand_augment"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more: 0 switches it off")
        _check_magnitude(self.magnitude)
        if not all(s > 0 for s in _numbers(self.std)):
            raise ValueError(f"std is {self.std}; expected numbers above 0: pass the channels' standard deviations")

    def __call__(self, x: Tensor, seed: int = 0) -> Tensor:
        """Augment the uint8 images `x` with choices drawn from `seed`, and normalise them."""
        _check_images(x, channels=(1, 3) if self.rand_augment else None)
        _check_padding(x, self.crop)
        generator = torch.Generator().manual_seed(seed)
        if self.crop:
            rows, columns = _draw_crop(len(x), self.crop, generator)
            flipped = _draw_flip(len(x), generator) if self.flip else None
            x = _crop(x, rows, columns, self.crop, flipped)  # both in one pass
        elif self.flip:
            x = random_flip(x, generator)
        if self.rand_augment:
            x = rand_augment(x, generator, self.rand_augment, self.magnitude, self.fill)
        return self._normalise(x)

    def _normalise(self, x: Tensor) -> Tensor:
        mean, std = tuple(_numbers(self.mean)) or (0.0,), tuple(_numbers(self.std)) or (1.0,)
        for name, numbers in (("mean", mean), ("std", std)):
            if len(numbers) not in (1, x.shape[1]):
                raise ValueError(
                    f"{name} has {len(numbers)} numbers for images with {x.shape[1]} channels; "
                    "expected one number or one per channel: match the channels"
                )
        scale, shift = _scale_and_shift(mean, std, x.device)
        return x.to(torch.float32).mul_(scale).add_(shift)


@cache
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(x / 255 - mean) / std as x * scale + shift: each c x 1 x 1."""
    means, stds = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
    return (1 / (255 * stds)).to(device, torch.float32), (-means / stds).to(device, torch.float32)


def _crop(x: Tensor, top: Tensor, left: Tensor, padding: int, flipped: Tensor | None = None) -> Tensor:
    """Cut out the windows that begin at (top, left) of the padded images, mirrored where `flipped` is 1.

    A row of pixels with its mirror image on both sides contains every window and every window's mirror image as one
    contiguous piece. So bytes are copied a window at a time, three times as fast as pixel by pixel.
    """
    n, channels, height, width = x.shape
    mirrored = x.flip(3)
    lines = x.new_empty(n, channels, height, 3 * width - 2)
    lines[..., :width] = mirrored
    lines[..., width - 1 : 2 * width - 1] = x  # reflection shares the outermost pixels
    lines[..., 2 * width - 2 :] = mirrored

    rows, columns = _window_starts(height, width, padding)
    choice = left if flipped is None else left + flipped * (2 * padding + 1)
    in_image = rows.index_select(0, top) + columns.index_select(0, choice)  # n x h
    first = _line_starts(n, channels, height * lines.shape[3]) + in_image[:, None]  # n x c x h
    windows = lines.as_strided((lines.numel() - width + 1, width), (1, 1))  # one begins at each pixel
    return windows.index_select(0, first.flatten().to(x.device)).view_as(x)


@cache
def _window_starts(height: int, width: int, padding: int) -> tuple[Tensor, Tensor]:
    """Where in an image of lines its windows begin: each row for each top, and each left, then again mirrored.

    2 padding + 1 x height and 4 padding + 2 x 1; cached, since computing them takes longer than the crop.
    """
    row = (torch.arange(-padding, height + padding)).abs()
    row = torch.where(row < height, row, 2 * (height - 1) - row).unfold(0, height, 1)
    shift = torch.arange(-padding, padding + 1)
    mirrored = torch.where(shift < 0, -shift, 2 * width - 2 - shift)
    return row * (3 * width - 2), torch.cat([width - 1 + shift, mirrored])[:, None]


@lru_cache(maxsize=8)
def _line_starts(n: int, channels: int, size: int) -> Tensor:
    """Where the lines of each image and channel begin: n x c x 1."""
    return torch.arange(0, n * channels * size, size).view(n, channels, 1)


def _draw_crop(n: int, padding: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    top, left = torch.randint(2 * padding + 1, (2, n), generator=generator)
    return top, left


def _draw_flip(n: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (n,), generator=generator)


def _draw_beta(n: int, alpha: float, generator: torch.Generator) -> Tensor:
    if alpha == 0:
        return torch.ones(n)
    # torch's public Beta draws from the global generator only
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, n))


def _apply_one_each(x: Tensor, chosen: Tensor, matrices: Tensor, factors: Tensor, level: float, fill: int) -> Tensor:
    """Apply operation chosen[i] to image i: sort the images by operation, run each kind at once, sort back."""
    order = chosen.argsort(stable=True)
    counts = dict(zip(OPERATIONS, chosen.bincount(minlength=len(OPERATIONS)).tolist(), strict=True))
    images, factors = x.index_select(0, order.to(x.device)), factors[order].to(x.device)
    done, start = [], 0

    def take(*names: str) -> slice:
        nonlocal start
        found = slice(start, start + sum(counts[name] for name in names))
        start = found.stop
        return found

    done.append(images[take("identity")])
    if len(part := images[(moved := take(*_GEOMETRIC))]):
        done.append(op.affine(part, matrices[order[moved]], fill))
    first, tables = start, []
    for name in _BY_TABLE:
        if len(part := images[(rows := take(name))]):
            tables.append(_TABLES[name](part, factors[rows], level))
    if tables:
        done.append(op.look_up(images[first:start], torch.cat(tables)))
    for name, operation in (("color", op.color), ("sharpness", op.sharpness)):
        if len(part := images[(rows := take(name))]):
            done.append(operation(part, factors[rows]))
    return torch.cat(done).index_select(0, order.argsort().to(x.device))


_TABLES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {  # images, factors, level: n x c x 256
    "autocontrast": lambda x, factors, level: op.autocontrast_table(x),
    "equalize": lambda x, factors, level: op.equalize_table(x),
    "solarize": lambda x, factors, level: op.solarize_table(x, 256 * (1 - level)),
    "posterize": lambda x, factors, level: op.posterize_table(x, 8 - round(_BITS * level)),
    "contrast": lambda x, factors, level: op.contrast_table(x, factors),
    "brightness": lambda x, factors, level: op.brightness_table(x, factors),
}


@cache
def _matrices(level: float, height: int, width: int) -> Tensor:
    """From a pixel of the result to its source, for each operation and sign: 14 x 2 x 3 x 3.

    Rotation is about the centre; shearing keeps the upper left corner in place.
    """
    found = torch.eye(3).repeat(len(OPERATIONS), 2, 1, 1)
    for negative, sign in enumerate((1, -1)):
        by_name = {name: found[OPERATIONS.index(name), negative] for name in _GEOMETRIC}
        angle = sign * math.radians(_DEGREES * level)
        cos, sin = math.cos(angle), math.sin(angle)
        x, y = width / 2, height / 2
        by_name["rotate"][:2] = torch.tensor(
            [[cos, -sin, x - cos * x + sin * y], [sin, cos, y - sin * x - cos * y]]  # counter-clockwise
        )
        by_name["shear-x"][0, 1] = by_name["shear-y"][1, 0] = sign * _SHEAR * level
        by_name["translate-x"][0, 2] = sign * _TRANSLATE * level * width
        by_name["translate-y"][1, 2] = sign * _TRANSLATE * level * height
    return found


def _numbers(value: float | Sequence[float]) -> list[float]:
    return [float(value)] if isinstance(value, (int, float)) else [float(v) for v in value]


def _check_images(x: Tensor, channels: tuple[int, ...] | None = None) -> None:
    if x.dtype != torch.uint8:
        raise ValueError(f"x is {x.dtype}; expected torch.uint8 with values 0 to 255: pass the raw images")
    if x.ndim != 4:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected n x channels x height x width: add the missing axes")
    if channels is not None and x.shape[1] not in channels:
        raise ValueError(f"x has {x.shape[1]} channels; RandAugment expected 1 (grey) or 3 (RGB): switch it off")


def _check_padding(x: Tensor, padding: int) -> None:
    if not 0 <= padding < min(x.shape[2:]):
        raise ValueError(
            f"the padding is {padding} for images of {x.shape[2]} x {x.shape[3]}; reflection expected 0 or more and "
            "less than a side: choose a smaller crop"
        )


def _check_magnitude(magnitude: float) -> None:
    if not 0 <= magnitude <= MAGNITUDES:
        raise ValueError(f"magnitude is {magnitude}; expected 0 to {MAGNITUDES}: the published setting is 9")
