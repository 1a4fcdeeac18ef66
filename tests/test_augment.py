"""Augmentation against Pillow, image by image, and against loops that spell out each window."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vri.bench.data import MEAN as CIFAR_MEAN
from vri.bench.data import STD as CIFAR_STD
from vri.bench.data import _pillow_batches, measure_data, pillow_operation
from vri.bench.timing import Sizes
from vri.data import image_operations as op
from vri.data import load, to_float
from vri.data.augment import OPERATIONS, Augment, apply_operations, mixup, rand_augment, random_crop, random_flip

GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int, channels: int, height: int = 20, width: int = 24) -> Tensor:
    """Smooth colours, plain noise, few levels and one constant image: what histograms and edges may meet."""
    g = generator(channels)
    noise = torch.randint(0, 256, (n, channels, height, width), dtype=torch.uint8, generator=g)
    ramp = torch.linspace(20, 230, height * width).view(height, width).to(torch.uint8)
    noise[1::4] = ramp // torch.arange(1, channels + 1, dtype=torch.uint8)[:, None, None]
    noise[2::4] = noise[2::4] // 64 * 50 + 7
    noise[3] = 77
    return noise


def to_pillow(image: Tensor) -> Image.Image:
    pixels = image.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))


def from_pillow(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def one_operation(x: Tensor, name: str, sign: int, magnitude: float) -> Tensor:
    chosen = torch.full((len(x), 1), OPERATIONS.index(name))
    return apply_operations(x, chosen, torch.full_like(chosen, int(sign < 0)), magnitude)


def by_pillow(x: Tensor, name: str, sign: int, magnitude: float) -> Tensor:
    return torch.stack([from_pillow(pillow_operation(to_pillow(image), name, sign, magnitude)) for image in x])


def agree(ours: Tensor, theirs: Tensor) -> bool:
    """Whether all but a thousandth of the pixels are equal: processors round differently."""
    return ours.shape == theirs.shape and float((ours == theirs).double().mean()) > 0.999


def test_the_operations_are_those_of_the_paper() -> None:
    named = "identity autocontrast equalize rotate solarize color posterize contrast brightness sharpness"
    assert sorted(OPERATIONS) == sorted([*named.split(), "shear-x", "shear-y", "translate-x", "translate-y"])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in GEOMETRIC])
def test_changes_of_colour_are_pillows(name: str, channels: int) -> None:
    x = pictures(12, channels)
    changed = False
    for sign, magnitude in ((1, 9), (-1, 9), (1, 30), (-1, 30), (1, 0), (-1, 17)):
        ours = one_operation(x, name, sign, magnitude)
        assert agree(ours, by_pillow(x, name, sign, magnitude)), (sign, magnitude)
        changed |= not torch.equal(ours, x)
    assert changed == (name != "identity" and (name, channels) != ("color", 1))


@pytest.mark.parametrize("side", [8, 28])
def test_changes_of_colour_on_real_images(side: int) -> None:
    x = load("digits").test_x[:60]
    x = x.repeat_interleave(4, 2).repeat_interleave(4, 3)[..., :side, :side]
    for name in OPERATIONS:
        if name not in GEOMETRIC:
            assert agree(one_operation(x, name, 1, 9), by_pillow(x, name, 1, 9)), name


def source(name: str, sign: int, magnitude: float, height: int, width: int) -> np.ndarray[Any, Any]:
    """Where the centre of each pixel comes from: 2 x h x w, (column, row)."""
    level = sign * magnitude / 30
    row, column = np.mgrid[:height, :width] + 0.5
    angle = math.radians(30 * level)
    x, y = column - width / 2, row - height / 2
    return np.stack(
        {
            "rotate": (
                x * math.cos(angle) - y * math.sin(angle) + width / 2,
                x * math.sin(angle) + y * math.cos(angle) + height / 2,
            ),
            "shear-x": (column + 0.3 * level * row, row),
            "shear-y": (column, row + 0.3 * level * column),
            "translate-x": (column + 150 / 331 * level * width, row),
            "translate-y": (column, row + 150 / 331 * level * height),
        }[name]
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_movements_are_pillows_nearest_wherever_rounding_does_not_decide(name: str, channels: int) -> None:
    x = pictures(4, channels)
    for sign, magnitude in ((1, 9), (-1, 9), (1, 30), (-1, 30), (1, 4.3)):
        ours, theirs = one_operation(x, name, sign, magnitude), by_pillow(x, name, sign, magnitude)
        place = source(name, sign, magnitude, *x.shape[2:])
        # Pillow counts in steps of 2^-16: on an edge between pixels it may take the other side
        clear = torch.from_numpy((abs(place - place.round()) > 1e-3).all(0))
        assert clear.double().mean() > 0.9
        assert agree(ours[..., clear], theirs[..., clear]), (sign, magnitude)
        assert not torch.equal(ours, x)


def test_movement_by_zero_and_by_whole_pixels() -> None:
    x = pictures(4, 3)
    for name in GEOMETRIC:
        assert torch.equal(one_operation(x, name, 1, 0), x)
    matrix = torch.tensor([[1.0, 0, 3], [0, 1, -2], [0, 0, 1]]).expand(4, 3, 3)
    moved = op.affine(x, matrix, fill=9)
    assert torch.equal(moved[..., 2:, :-3], x[..., :-2, 3:])
    assert (moved[..., :2, :] == 9).all()
    assert (moved[..., -3:] == 9).all()


def test_each_image_has_its_own_operations_one_after_the_other() -> None:
    """All pairs of operations with all signs in one batch, shuffled, against Pillow one by one."""
    pairs = [(a, b, s, t) for a in range(14) for b in range(14) for s in (0, 1) for t in (0, 1)]
    order = torch.randperm(len(pairs), generator=generator()).tolist()
    pairs = [pairs[i] for i in order]
    x = pictures(len(pairs), 3, 12, 12)
    chosen, negative = torch.tensor([p[:2] for p in pairs]), torch.tensor([p[2:] for p in pairs])
    before = x.clone()
    ours = apply_operations(x, chosen, negative, 9)
    assert torch.equal(x, before)
    by_hand: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {}
    for image, result, (a, b, s, t) in zip(x, ours, pairs, strict=True):
        names = OPERATIONS[a], OPERATIONS[b]
        if names[0] in GEOMETRIC and names[1] in GEOMETRIC:
            continue  # one sampling, tested below
        expected = to_pillow(image)
        for name, sign in zip(names, (s, t), strict=True):
            expected = pillow_operation(expected, name, -1 if sign else 1, 9)
        by_hand.setdefault(names, []).append((result, from_pillow(expected)))
    # also for movements: at this size and magnitude no source lies on an edge between pixels
    assert [n for n, found in by_hand.items() if not agree(*map(torch.stack, zip(*found, strict=True)))] == []


def test_movements_in_a_row_are_one_sampling() -> None:
    x = pictures(6, 1)
    there_and_back = [OPERATIONS.index("translate-x")] * 2
    chosen, negative = torch.tensor([there_and_back] * 6), torch.tensor([[0, 1]] * 6)
    assert torch.equal(apply_operations(x, chosen, negative, 30), x)  # in two samplings half of it were lost
    # rotation first, then a shear: the source of a pixel is the rotation's of the shear's
    names = ("rotate", "shear-x", "color")
    chosen = torch.tensor([[OPERATIONS.index(name) for name in names]] * 6)
    ours = apply_operations(x, chosen, torch.zeros_like(chosen), 9, fill=1)
    row, column = np.mgrid[:20, :24] + 0.5
    column = column + 0.3 * 0.3 * row
    angle = math.radians(9)
    across, down = column - 12, row - 10
    column = across * math.cos(angle) - down * math.sin(angle) + 12
    row = across * math.sin(angle) + down * math.cos(angle) + 10
    expected = torch.ones_like(x)
    near = np.zeros((20, 24), dtype=bool)
    for i in range(20):
        for j in range(24):
            r, c = math.floor(row[i, j]), math.floor(column[i, j])
            near[i, j] = min(abs(row[i, j] - round(row[i, j])), abs(column[i, j] - round(column[i, j]))) < 1e-3
            if 0 <= r < 20 and 0 <= c < 24:
                expected[..., i, j] = x[..., r, c]
    clear = torch.from_numpy(~near)
    assert agree(ours[..., clear], expected[..., clear])


def test_rand_augment_draws_every_operation_and_sign_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "vri.data.augment.apply_operations", lambda x, chosen, negative, *_: seen.append((chosen, negative)) or x
    )
    n = 7000
    rand_augment(torch.zeros(n, 1, 2, 2, dtype=torch.uint8), generator(), operations=3)
    ((chosen, negative),) = seen
    assert chosen.shape == negative.shape == (n, 3)
    for counts, share in ((chosen.flatten().bincount(minlength=14), 1 / 14), (negative.flatten().bincount(), 0.5)):
        assert (abs(counts / (3 * n) - share) < 5 * math.sqrt(share * (1 - share) / (3 * n))).all()
    assert abs((chosen[:, 0] == chosen[:, 1]).double().mean() - 1 / 14) < 5 * math.sqrt(1 / 14 / n)


def windows_of(image: Tensor, padding: int) -> list[bytes]:
    """All crops of an image, by numpy's own padding."""
    padded = np.pad(image.numpy(), ((0, 0), (padding, padding), (padding, padding)), mode="reflect")
    height, width = image.shape[1:]
    places = range(2 * padding + 1)
    return [padded[:, i : i + height, j : j + width].tobytes() for i in places for j in places]


@pytest.mark.parametrize(("channels", "height", "width", "padding"), [(3, 8, 8, 4), (1, 5, 9, 2), (1, 6, 5, 3)])
def test_crops_are_windows_of_the_padded_image_each_equally_often(
    channels: int, height: int, width: int, padding: int
) -> None:
    image = torch.randint(0, 256, (channels, height, width), dtype=torch.uint8, generator=generator())
    windows = windows_of(image, padding)
    n = 100 * len(windows)
    crops = random_crop(image.expand(n, -1, -1, -1), generator(5), padding)
    counts = dict.fromkeys(windows, 0)
    for crop in crops:
        counts[crop.numpy().tobytes()] += 1  # a KeyError is an image that is no window
    assert len(counts) == (2 * padding + 1) ** 2
    assert sum((c - 100) ** 2 / 100 for c in counts.values()) < len(counts) + 5 * math.sqrt(2 * len(counts))


def test_half_of_the_images_are_mirrored() -> None:
    x = torch.arange(12, dtype=torch.uint8).view(1, 2, 2, 3).expand(1000, -1, -1, -1)
    flipped = random_flip(x, generator())
    mirrored = (flipped == x.flip(3)).flatten(1).all(1)
    assert (mirrored | (flipped == x).flatten(1).all(1)).all()
    assert abs(int(mirrored.sum()) - 500) < 5 * math.sqrt(250)


MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def test_with_nothing_switched_on_it_normalises() -> None:
    x = pictures(5, 3)
    ours = Augment(MEAN, STD)(x, 3)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, to_float(x, MEAN, STD), rtol=0, atol=2e-6)
    torch.testing.assert_close(Augment(0.5, 0.25)(x[:, :1]), to_float(x[:, :1], 0.5, 0.25), rtol=0, atol=2e-6)
    torch.testing.assert_close(Augment(MEAN, 0.25)(x), to_float(x, MEAN, 0.25), rtol=0, atol=2e-6)
    torch.testing.assert_close(Augment()(x), x / 255)
    assert torch.equal(Augment((), ())(x), Augment()(x))


def test_a_call_is_crop_then_flip_then_rand_augment_from_one_generator() -> None:
    x, normalise = pictures(40, 3), Augment(MEAN, STD)
    steps: dict[str, tuple[dict[str, Any], Callable[[Tensor, torch.Generator], Tensor]]] = {
        "crop": ({"crop": 3}, lambda x, g: random_crop(x, g, 3)),
        "flip": ({"flip": True}, random_flip),
        "rand_augment": ({"rand_augment": 2, "magnitude": 12}, lambda x, g: rand_augment(x, g, 2, 12)),
    }
    for names in (["crop"], ["flip"], ["crop", "flip"], ["flip", "rand_augment"], list(steps)):
        g, expected = generator(11), x
        for name in names:
            expected = steps[name][1](expected, g)
        options = {key: value for name in names for key, value in steps[name][0].items()}
        assert torch.equal(Augment(MEAN, STD, **options)(x, 11), normalise(expected))


def test_the_seed_decides_and_nothing_else() -> None:
    x = pictures(30, 1)
    before, state = x.clone(), torch.get_rng_state()
    augment = Augment(0.5, 0.5, crop=4, flip=True, rand_augment=2)
    first = augment(x, 1)
    torch.rand(3)
    assert torch.equal(augment(x, 1), first)
    assert not torch.equal(augment(x, 2), first)
    assert torch.equal(x, before)
    torch.set_rng_state(state)
    augment(x, 4)
    mixup(first, torch.zeros(30, dtype=torch.int64), 2, 1.0, generator())
    assert torch.equal(torch.get_rng_state(), state)


def test_an_image_is_treated_alike_whatever_is_beside_it() -> None:
    x = pictures(16, 3)
    augment = Augment(MEAN, STD, crop=4, flip=True, rand_augment=2)
    other = x.clone()
    other[1:] = 255 - other[1:]
    assert torch.equal(augment(x, 5)[0], augment(other, 5)[0])


def test_mixup_is_the_formula() -> None:
    n, classes = 2000, 3
    x = torch.randn(n, 2, 2, dtype=torch.float64, generator=generator())
    y = torch.arange(n) % classes
    mixed, labels = mixup(x, y, classes, 0.4, generator(1))
    torch.testing.assert_close(labels.sum(1), torch.ones(n, dtype=torch.float64))
    # the generator's first draw is the partner; the inputs then give away the share
    partner = torch.randperm(n, generator=generator(1))
    far = ((x - x[partner]).flatten(1)[:, 0].abs() > 0.05).nonzero().squeeze(1)
    share = ((mixed - x[partner]) / (x - x[partner])).flatten(1)[:, 0]
    hot = torch.eye(classes, dtype=torch.float64)
    for i in far[:200].tolist():
        expected_x = share[i] * x[i] + (1 - share[i]) * x[partner[i]]
        torch.testing.assert_close(mixed[i], expected_x)
        torch.testing.assert_close(labels[i], share[i] * hot[y[i]] + (1 - share[i]) * hot[y[partner[i]]])
    # moments of Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1))
    share = share[far]
    assert abs(float(share.mean()) - 0.5) < 5 * math.sqrt(1 / 7.2 / len(share))
    assert float(share.var()) == pytest.approx(1 / 7.2, rel=0.1)
    soft_x, soft = mixup(x, hot[y], classes, 0.4, generator(1))
    assert torch.equal(soft_x, mixed)
    assert torch.equal(soft, labels)


def test_mixup_of_nothing() -> None:
    x, y = torch.randn(4, 3, generator=generator()), torch.tensor([0, 1, 1, 0])
    mixed, labels = mixup(x, y, 2, 0.0, generator())
    assert torch.equal(mixed, x)
    assert labels.tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]


def test_the_benchmark_in_small() -> None:
    sizes = Sizes(batch=4, image=8, rounds=1, budget=0.0)
    threads = torch.get_num_threads()
    rows, raw = measure_data(sizes, "cpu")
    assert torch.get_num_threads() == threads
    assert {row.name: str(row.bar) for row in rows if row.bar} == {
        "crop + flip: vri / Pillow": ">= 10",
        "crop + flip + RandAugment: vri / Pillow": ">= 3",
        "crop + flip": "< 5",
        "crop + flip + RandAugment": "< 5",
    }
    for name in ("crop + flip", "crop + flip + RandAugment"):
        seconds = raw[name]
        ratio = next(row for row in rows if row.name == f"{name}: vri / Pillow")
        assert ratio.samples == [b / a for a, b in zip(seconds["vri"], seconds["Pillow"], strict=True)]
        speed = next(row for row in rows if row.name == f"{name}: vri")
        assert speed.samples == [20 / s for s in seconds["vri"]]
        share = next(row for row in rows if row.name == name)
        step = raw["share of a step"]
        assert share.samples == [100 * (a / b) for a, b in zip(step[name], step["step"], strict=True)]


def test_the_pillow_side_of_the_benchmark_does_the_same_work() -> None:
    """Over many draws of one image both sides show the same windows, and on average the same augmented image."""
    image = pictures(4, 3, 8, 8)[:1]
    windows = {*windows_of(image[0], 4), *windows_of(image[0].flip(2), 4)}
    mean, std = (torch.tensor(v)[:, None, None] for v in (CIFAR_MEAN, CIFAR_STD))
    crops = (255 * (next(_pillow_batches(image, 0, 200, "cpu")) * std + mean)).round().to(torch.uint8)
    assert {crop.numpy().tobytes() for crop in crops} <= windows
    ours = Augment(CIFAR_MEAN, CIFAR_STD, crop=4, flip=True, rand_augment=2)(image.expand(3000, -1, -1, -1), 0)
    theirs = next(_pillow_batches(image, 2, 3000, "cpu"))
    spread = torch.sqrt((ours.var(0) + theirs.var(0)) / 3000)
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * spread).all()
    torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.03, atol=0)


GREY = torch.zeros(2, 1, 6, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Augment()(GREY.float()),
            "x is torch.float32; expected torch.uint8 with values 0 to 255: pass the raw images",
        ),
        (
            lambda: random_flip(GREY[0], generator()),
            "x has shape (1, 6, 8); expected n x channels x height x width: add the missing axes",
        ),
        (
            lambda: rand_augment(GREY.expand(2, 2, 6, 8), generator()),
            "x has 2 channels; RandAugment expected 1 (grey) or 3 (RGB): switch it off",
        ),
        (
            lambda: Augment(crop=6)(GREY),
            "the padding is 6 for images of 6 x 8; reflection expected 0 or more and less than a side: "
            "choose a smaller crop",
        ),
        (
            lambda: random_crop(GREY, generator(), -1),
            "the padding is -1 for images of 6 x 8; reflection expected 0 or more and less than a side: "
            "choose a smaller crop",
        ),
        (lambda: Augment(crop=-1), "crop is -1; expected 0 or more: 0 switches it off"),
        (lambda: Augment(rand_augment=-2), "rand_augment is -2; expected 0 or more: 0 switches it off"),
        (lambda: Augment(magnitude=31), "magnitude is 31; expected 0 to 30: the published setting is 9"),
        (
            lambda: Augment(std=(0.1, 0.0)),
            "std is (0.1, 0.0); expected numbers above 0: pass the channels' standard deviations",
        ),
        (
            lambda: Augment(MEAN, STD)(GREY),
            "mean has 3 numbers for images with 1 channels; expected one number or one per channel: match the channels",
        ),
        (
            lambda: mixup(GREY, torch.zeros(2), 2, 1.0, generator()),
            "x is torch.uint8; expected floating point: mix after normalising",
        ),
        (
            lambda: mixup(GREY.float(), torch.zeros(2), 2, -1.0, generator()),
            "alpha is -1.0; expected 0 or more: 0 mixes nothing",
        ),
    ],
)
def test_errors(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
