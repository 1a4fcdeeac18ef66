"""Loading and augmenting for `vri bench`: whole batches compared with image by image in Pillow."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vri.bench.report import Bar, Measurement
from vri.bench.timing import (
    Layout,
    Sizes,
    alternate,
    one_thread,
    ratios,
    resnet_method,
)
from vri.data.augment import FILL, MAGNITUDES, OPERATIONS, Augment
from vri.data.batches import Batches

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10
_POOL = 5000  # images to draw batches from
_PADDING = 4
_BLOCK = 5  # batches that each side makes per turn
_WAYS = {  # name: operations of RandAugment
    "crop + flip": 0,
    "crop + flip + RandAugment": 2,
}


def measure_data(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """Images per second through load, crop, flip and RandAugment, and their share of a step of ResNet-32.

    The images are random bytes of CIFAR's shape. Both sides have the same task: uint8 images in memory in, a normalised
    float batch on the device out.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (_POOL, 3, sizes.image, sizes.image), dtype=torch.uint8, generator=generator)
    y = torch.arange(_POOL) % 10
    ours = {name: _batches(x, y, operations, sizes, device) for name, operations in _WAYS.items()}
    theirs = {name: _pillow_batches(x, operations, sizes.batch, device) for name, operations in _WAYS.items()}

    rows, raw = [], {}
    bars = {"crop + flip": Bar(">=", 10), "crop + flip + RandAugment": Bar(">=", 3)}
    heading = f"images per second, batches of {sizes.batch}, 3 x {sizes.image} x {sizes.image}, one thread each"
    for name in _WAYS:
        sides = {"vri": _take(ours[name], _BLOCK), "Pillow": _take(theirs[name], _BLOCK)}
        with one_thread():
            seconds = raw[name] = alternate(sides, 2 * sizes.rounds, 1, device, sizes.budget / 6)
        count = _BLOCK * sizes.batch
        rows += [
            Measurement(heading, f"{name}: {side}", [count / s for s in values]) for side, values in seconds.items()
        ]
        rows.append(Measurement(heading, f"{name}: vri / Pillow", ratios(seconds, "Pillow", "vri"), "", bars[name]))

    method = resnet_method("jvp", Layout(), device)
    batch, meta_batch = (next(ours["crop + flip"]) for _ in range(2))
    sides = {"step": lambda: method.step(batch, meta_batch), **{name: _take(ours[name], 2) for name in _WAYS}}
    seconds = raw["share of a step"] = alternate(sides, sizes.rounds, 1, device, sizes.budget / 3)
    heading = "loading both batches of a VRI step (jvp, ResNet-32), share of the step"
    rows += [
        Measurement(heading, name, [100 * s for s in ratios(seconds, name, "step")], "%", Bar("<", 5)) for name in _WAYS
    ]
    return rows, raw


def _take(batches: Iterator[Any], count: int) -> Callable[[], object]:
    """Make this many batches and drop each, as a training loop does, so that the next one reuses its memory."""
    return lambda: deque(islice(batches, count), maxlen=0)


def _batches(x: Tensor, y: Tensor, operations: int, sizes: Sizes, device: str) -> Iterator[Any]:
    augment = Augment(MEAN, STD, crop=_PADDING, flip=True, rand_augment=operations)
    return Batches((x, y), sizes.batch, seed=0, device=torch.device(device), transform=augment).endless()


# the same with Pillow


def _pillow_batches(x: Tensor, operations: int, size: int, device: str) -> Iterator[Tensor]:
    """Normalised batches, one image after the other."""
    images = np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())  # n x h x w x c, as Pillow expects
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (MEAN, STD))
    rng = np.random.default_rng(0)
    while True:
        batch = []
        for i in rng.integers(len(images), size=size):
            image = _pillow_image(images[i], operations, rng)
            pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
            batch.append(torch.from_numpy((pixels - mean) / std))
        yield torch.stack(batch).to(device)


def _pillow_image(pixels: npt.NDArray[np.uint8], operations: int, rng: np.random.Generator) -> Image.Image:
    height, width = pixels.shape[:2]
    around = (_PADDING, _PADDING)
    image = Image.fromarray(np.pad(pixels, (around, around, (0, 0)), mode="reflect"))  # Pillow has no reflection
    top, left, flipped = (int(v) for v in rng.integers((2 * _PADDING + 1, 2 * _PADDING + 1, 2)))
    image = image.crop((left, top, left + width, top + height))
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for place, negative in rng.integers((len(OPERATIONS), 2), size=(operations, 2)).tolist():
        image = pillow_operation(image, OPERATIONS[place], -1 if negative else 1, 9)
    return image


def pillow_operation(image: Image.Image, name: str, sign: int, magnitude: float, fill: int = FILL) -> Image.Image:
    """One operation of RandAugment on one image."""
    level = magnitude / MAGNITUDES
    signed, factor = sign * level, 1 + 0.9 * sign * level
    colour = fill if image.mode == "L" else (fill,) * 3
    ways: dict[str, Callable[[], Image.Image]] = {
        "identity": lambda: image,
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "rotate": lambda: image.rotate(30 * signed, fillcolor=colour),
        "solarize": lambda: ImageOps.solarize(image, 256 * (1 - level)),  # type: ignore[arg-type]  # any number will do
        "color": lambda: ImageEnhance.Color(image).enhance(factor),
        "posterize": lambda: ImageOps.posterize(image, 8 - round(4 * level)),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
    }
    if name in ways:
        return ways[name]()
    matrix = {
        "shear-x": (1, 0.3 * signed, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, 0.3 * signed, 1, 0),
        "translate-x": (1, 0, 150 / 331 * signed * image.width, 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, 150 / 331 * signed * image.height),
    }[name]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=colour)
