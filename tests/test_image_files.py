"""Single image files and data sets of them: what is decoded, cut, skipped and refused."""

import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from pictures import PLAIN, cut_off, only, picture, said, save, tensor
from vri.data.batches import Batches, SeededItems, read_labels
from vri.data.files import image_folder
from vri.data.image_files import BrokenImage, ImageFiles, Preparation

# one image


def test_evaluation_cuts_the_middle_of_the_resized_image(tmp_path: Path) -> None:
    image = picture(31, 20)
    save(tmp_path / "a.png", image)
    prepare = Preparation(size=8, resize=10, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    x, y = ImageFiles(tmp_path, ["a.png"], [3], prepare)[0]
    middle = image.resize((15, 10), Image.Resampling.BILINEAR).crop((4, 1, 12, 9))  # 31 * 10 // 20 = 15
    expected = (tensor(middle) - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([0.5, 1, 2])[
        :, None, None
    ]
    torch.testing.assert_close(x, expected)
    assert (x.dtype, x.shape, x.is_contiguous(), y) == (torch.float32, (3, 8, 8), True, 3)


def test_imagenet_statistics_and_224_are_the_default(tmp_path: Path) -> None:
    save(tmp_path / "a.png", Image.new("RGB", (300, 260), (255, 0, 51)))
    x, _ = ImageFiles(tmp_path, ["a.png"], [0])[0]
    assert x.shape == (3, 224, 224)
    expected = torch.tensor([(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (0.2 - 0.406) / 0.225])
    torch.testing.assert_close(x, expected[:, None, None].expand(3, 224, 224))


def test_an_image_of_the_right_size_is_left_as_it_is(tmp_path: Path) -> None:
    save(tmp_path / "a.png", image := picture(8, 8))
    assert torch.equal(only(tmp_path, "a.png")[0][0], tensor(image))


def test_without_its_ratio_the_whole_image_is_squeezed(tmp_path: Path) -> None:
    save(tmp_path / "a.png", image := picture(30, 11))
    prepare = Preparation(size=8, resize=8, keep_ratio=False, mean=(0, 0, 0), std=(1, 1, 1))
    expected = tensor(image.resize((8, 8), Image.Resampling.BILINEAR))
    assert torch.equal(only(tmp_path, "a.png", prepare)[0][0], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_the_camera_is_respected(tmp_path: Path, orientation: int) -> None:
    stored = picture(8, 8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(tmp_path / "a.png", stored, exif=exif.tobytes())
    # What the eight values mean, from the EXIF standard: where row 0 and column 0 of the stored image belong.
    pixels = np.array(stored)
    upright = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: pixels.transpose(1, 0, 2)[:, ::-1],
        7: pixels.transpose(1, 0, 2)[::-1, ::-1],
        8: pixels.transpose(1, 0, 2)[::-1],
    }[orientation]
    assert torch.equal(only(tmp_path, "a.png")[0][0], tensor(Image.fromarray(upright)))


def test_damaged_exif_data_does_no_harm(tmp_path: Path) -> None:
    save(tmp_path / "a.png", image := picture(8, 8), exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\xff")
    assert torch.equal(only(tmp_path, "a.png")[0][0], tensor(image))


def test_images_that_are_not_rgb(tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    three = np.stack([grey] * 3, axis=2)
    kinds = {
        "grey.png": Image.fromarray(grey),
        "grey16.png": Image.fromarray(grey.astype(np.uint16) * 256 + 7),
        "grey16.tif": Image.fromarray(grey.astype(np.uint16) * 256 + 7),
        "alpha.png": Image.fromarray(np.dstack([three, np.full((8, 8), 100, np.uint8)])),
        "palette.png": Image.fromarray(three).quantize(64, dither=Image.Dither.NONE),
        "palette.gif": Image.fromarray(three).quantize(64, dither=Image.Dither.NONE),
        "bits.png": Image.fromarray(grey > 100),
        "cmyk.tif": Image.fromarray(three).convert("CMYK"),
    }
    for name, image in kinds.items():
        options = {"transparency": b"\x80" * 64} if name == "palette.png" else {}  # one for each colour
        save(tmp_path / name, image, **options)
        x = only(tmp_path, name)[0][0]
        expected = tensor(Image.fromarray(three))
        if name == "bits.png":
            expected = (expected > 100 / 255).float()
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "bmp", "gif", "webp", "tif", "tiff"])
def test_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    smooth = Image.linear_gradient("L").resize((8, 8)).convert("RGB")
    save(tmp_path / "class" / f"a.{suffix}", smooth)
    data = image_folder(tmp_path, prepare=PLAIN)
    torch.testing.assert_close(data.train[0][0], tensor(smooth), rtol=0, atol=0.06)


# random cuts


def coordinates(width: int, height: int) -> Image.Image:
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([columns, rows, 0 * rows], axis=2).astype(np.uint8))


def draws(folder: Path, prepare: Preparation, count: int, training: bool = True) -> list[Tensor]:
    items = SeededItems(only(folder, "a.png", prepare, training))
    return [(x * 255).round() for x, _ in items.__getitems__([(0, seed) for seed in range(count)])]


def test_random_crops_are_squares_of_the_image_and_reach_all_places(tmp_path: Path) -> None:
    save(tmp_path / "a.png", coordinates(7, 6))
    prepare = Preparation(size=4, resize=6, augment="crop", mean=(0, 0, 0), std=(1, 1, 1))
    seen = set()
    for x in draws(tmp_path, prepare, 400):
        columns, rows = x[0, 0].tolist(), x[1, :, 0].tolist()
        mirrored = columns[0] > columns[-1]
        left, top = min(columns), rows[0]
        square = np.array(coordinates(7, 6))[int(top) : int(top) + 4, int(left) : int(left) + 4]
        expected = torch.from_numpy((square[:, ::-1] if mirrored else square).copy()).permute(2, 0, 1).float()
        assert torch.equal(x, expected)
        seen.add((left, top, mirrored))
    # 4 columns, 3 rows, mirrored or not: 24 of equal chance, each missed by 400 draws with (23/24)^400 < 1e-7
    assert seen == {(left, top, mirrored) for left in range(4) for top in range(3) for mirrored in (False, True)}


def test_flip_mirrors_half_of_the_images(tmp_path: Path) -> None:
    save(tmp_path / "a.png", image := picture(8, 8))
    prepare = Preparation(size=8, resize=8, augment="flip", mean=(0, 0, 0), std=(1, 1, 1))
    plain = (tensor(image) * 255).round()
    found = [torch.equal(x, plain) for x in draws(tmp_path, prepare, 200)]
    mirrored = [torch.equal(x, plain.flip(2)) for x in draws(tmp_path, prepare, 200)]
    assert all(a != b for a, b in zip(found, mirrored, strict=True))
    assert 70 < sum(found) < 130  # four standard deviations of 100 are 28


def test_resized_crops_keep_to_their_area_and_shape(tmp_path: Path) -> None:
    width, height = 250, 200
    save(tmp_path / "a.png", coordinates(width, height))
    prepare = Preparation(size=50, resize=50, augment="resized_crop", mean=(0, 0, 0), std=(1, 1, 1))
    areas, ratios, mirrored = [], [], []
    for x in draws(tmp_path, prepare, 300):
        # Between the centres of the first and last of 50 pixels lie 49/50 of the part; rounding adds one at most.
        w = float(x[0, 25].max() - x[0, 25].min()) * 50 / 49
        h = float(x[1, :, 25].max() - x[1, :, 25].min()) * 50 / 49
        areas.append(w * h / (width * height))
        ratios.append(w / h)
        mirrored.append(bool(x[0, 0, 0] > x[0, 0, -1]))
    assert 0.06 < min(areas) < 0.2
    assert 0.75 < max(areas) <= 1.02
    assert 0.72 < min(ratios) < 0.85
    assert 1.2 < max(ratios) < 1.4
    assert 110 < sum(mirrored) < 190
    # Areas are drawn evenly from 8 to 100 %; those that don't fit are drawn anew, which favours small ones.
    assert 0.4 < float(np.mean(areas)) < 0.56


@pytest.mark.parametrize(("width", "height", "box"), [(200, 2, (98, 0, 101, 2)), (2, 200, (0, 98, 2, 101))])
def test_a_resized_crop_of_a_strip_falls_back_to_its_middle(
    tmp_path: Path, width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    save(tmp_path / "a.png", image := coordinates(width, height))
    prepare = Preparation(size=6, resize=6, augment="resized_crop", mean=(0, 0, 0), std=(1, 1, 1))
    middle = (tensor(image.resize((6, 6), Image.Resampling.BILINEAR, box=box)) * 255).round()
    found = [torch.equal(x, middle) or torch.equal(x, middle.flip(2)) for x in draws(tmp_path, prepare, 30)]
    assert sum(found) > 15  # where ten draws in a row did not fit, nearly always


def test_nothing_is_random_outside_of_training(tmp_path: Path) -> None:
    save(tmp_path / "a.png", picture(20, 30))
    for augment in ("none", "flip", "crop", "resized_crop"):
        prepare = Preparation(size=8, resize=10, augment=augment, mean=(0, 0, 0), std=(1, 1, 1))
        first, *others = draws(tmp_path, prepare, 8, training=False)
        assert all(torch.equal(first, x) for x in others)
        if augment != "none":
            first, *others = draws(tmp_path, prepare, 8)
            assert not all(torch.equal(first, x) for x in others)


# broken files


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Five files: 0 and 3 sound, 1 cut off, 2 no image, 4 not there."""
    save(tmp_path / "0.png", picture(8, 8, seed=0))
    cut_off(save(tmp_path / "1.jpg", picture(64, 64, seed=1)))
    (tmp_path / "2.jpg").write_text("<html>not found</html>")
    save(tmp_path / "3.png", picture(8, 8, seed=3))
    return tmp_path


NAMES = ["0.png", "1.jpg", "2.jpg", "3.png", "4.jpg"]
SKIP = Preparation(size=8, resize=8, augment="flip", mean=(0, 0, 0), std=(1, 1, 1), on_broken="skip")


def test_a_broken_file_is_named(mixed: Path) -> None:
    files = ImageFiles(mixed, NAMES, range(5), PLAIN)
    assert files[0][1] == 0
    fix = 'fetch it again, leave it out, or pass Preparation(on_broken="skip")'
    with pytest.raises(BrokenImage, match="truncated") as caught:
        files[1]
    assert str(caught.value).startswith(
        f"{mixed / '1.jpg'} can't be read as an image (OSError: image file is truncated"
    )
    assert str(caught.value).endswith(f"); {fix}")
    with said(
        BrokenImage,
        f"{mixed / '2.jpg'} can't be read as an image (UnidentifiedImageError: cannot identify image file "
        f"'{mixed / '2.jpg'}'); {fix}",
    ):
        files[2]
    with said(BrokenImage, f"{mixed / '4.jpg'} is not there; expected an image file: put it back, or correct its path"):
        files[4]


def test_skipping_puts_the_next_readable_sample_in_its_place(mixed: Path) -> None:
    files = ImageFiles(mixed, NAMES, [10, 11, 12, 13, 14], SKIP)
    with pytest.warns(UserWarning, match="; the next readable sample takes its place$") as warned:
        samples = [files[i] for i in (*range(5), *range(5))]
    assert [y for _, y in samples] == [10, 13, 13, 13, 10] * 2
    assert torch.equal(samples[1][0], tensor(picture(8, 8, seed=3)))
    assert [str(w.message).partition(" ")[0] for w in warned] == [str(mixed / NAMES[i]) for i in (1, 2, 4)]
    assert files.broken == ["1.jpg", "2.jpg", "4.jpg"]


def test_workers_tell_of_broken_files(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said_by_workers = mixed / "warnings.txt"

    def warn(message: str, stacklevel: int) -> None:
        with said_by_workers.open("a") as file:
            file.write(f"{message}\n")

    monkeypatch.setattr(warnings, "warn", warn)
    files = ImageFiles(mixed, NAMES, range(5), SKIP)
    for _ in range(2):
        loader = DataLoader(files, batch_size=1, num_workers=2)
        assert [int(y) for _, y in loader] == [0, 3, 3, 3, 0]
    assert files.broken == ["1.jpg", "2.jpg", "4.jpg"]
    # Two workers may meet a file at the same moment; in the second pass nobody warns.
    shown = said_by_workers.read_text()
    assert [1 <= shown.count(f"{mixed / name} ") <= 2 for name in files.broken] == [True] * 3


@pytest.mark.filterwarnings("ignore:.* the next readable sample takes its place")
def test_all_files_broken(mixed: Path) -> None:
    files = ImageFiles(mixed, ["1.jpg", "4.jpg"], [0, 1], SKIP)
    message = (
        f"none of the 2 images under {mixed} can be read; expected at least one: check the folder, and one file by hand"
    )
    for _ in range(2):
        with said(BrokenImage, message):
            files[1]


def test_scan_names_what_can_not_be_read(mixed: Path) -> None:
    found = ImageFiles(mixed, NAMES, range(5), PLAIN).scan()
    assert [name for name, _ in found] == ["1.jpg", "2.jpg", "4.jpg"]
    assert all(reason.startswith(str(mixed / name)) for name, reason in found)


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "bomb.png", Image.new("1", (3000, 2000)))
    assert path.stat().st_size < 5000
    prepare = Preparation(size=8, resize=8, max_pixels=5_999_999)
    with monkeypatch.context() as patch:
        patch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
        with said(
            BrokenImage,
            f"{path} has 6,000,000 pixels; expected at most 5,999,999: "
            "shrink it, leave it out, or raise Preparation(max_pixels=...) if it is to be trusted",
        ):
            only(tmp_path, "bomb.png", prepare)[0]
    assert only(tmp_path, "bomb.png", Preparation(size=8, resize=8, max_pixels=6_000_000))[0][0].shape == (3, 8, 8)
    # Above Pillow's own limit its error comes through.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    with pytest.raises(BrokenImage, match="DecompressionBombError"):
        only(tmp_path, "bomb.png", prepare)[0]


# as a data set


def folder_of(tmp_path: Path, count: int) -> ImageFiles:
    names = [f"{i % 3}/{i}.jpg" for i in range(count)]
    for i, name in enumerate(names):
        save(tmp_path / name, picture(20 + i, 16, seed=i))
    prepare = Preparation(size=8, resize=10, augment="resized_crop")
    return ImageFiles(tmp_path, names, [i % 3 for i in range(count)], prepare, training=True)


def test_batches_are_the_same_with_and_without_workers(tmp_path: Path) -> None:
    files = folder_of(tmp_path, 11)
    state = torch.get_rng_state()
    alone, shared = (list(Batches(files, 4, seed=5, num_workers=workers).epoch(1)) for workers in (0, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(alone) == 3
    for (x, y), (x_shared, y_shared) in zip(alone, shared, strict=True):
        assert torch.equal(x, x_shared)
        assert torch.equal(y, y_shared)
    other = list(Batches(files, 4, seed=5).epoch(2))
    assert not torch.equal(alone[0][0], other[0][0])


@pytest.mark.filterwarnings("ignore:.* the next readable sample takes its place")
def test_batches_with_broken_files_are_the_same_with_and_without_workers(mixed: Path) -> None:
    def batches(workers: int) -> list[tuple[Tensor, Tensor]]:
        files = ImageFiles(mixed, NAMES, range(5), SKIP, training=True)
        return list(Batches(files, 2, seed=5, num_workers=workers).epoch(0))

    alone, shared = batches(0), batches(2)
    assert len(alone) == 2
    for (x, y), (x_shared, y_shared) in zip(alone, shared, strict=True):
        assert torch.equal(x, x_shared)
        assert torch.equal(y, y_shared)


def test_labels_are_read_without_opening_files() -> None:
    files = ImageFiles("/nowhere", ["a.jpg", "b.jpg", "c.jpg"], np.array([2, 0, 1]))
    assert files.targets == [2, 0, 1]
    labels = read_labels(files)
    assert labels is not None
    assert labels.tolist() == [2, 0, 1]


def test_new_labels_take_effect(tmp_path: Path) -> None:
    files = folder_of(tmp_path, 3)
    files.targets[1] = 7
    assert [files[i][1] for i in range(3)] == [0, 7, 2]


def test_changed_files_leave_the_first_as_they_were(mixed: Path) -> None:
    files = ImageFiles(mixed, NAMES, range(5), PLAIN, training=True)
    other = files.changed(training=False, size=4, on_broken="skip")
    other.targets[3] = 9
    with pytest.warns(UserWarning, match="2.jpg can't be read"):
        x, y = other[2]
    assert (x.shape, y, other.broken) == ((3, 4, 4), 9, ["2.jpg"])
    assert (files.training, files.prepare, files.targets, files.broken) == (True, PLAIN, [0, 1, 2, 3, 4], [])
    assert other.changed().training is False
    with said(
        ValueError,
        "Preparation got options it can't use: resize=8 (expected 99 or more, the square cut out)",
    ):
        files.changed(size=99)


def test_indices(tmp_path: Path) -> None:
    files = folder_of(tmp_path, 3)
    assert files.relative_path(-1) == "2/2.jpg"
    assert files.path(1) == tmp_path / "1" / "1.jpg"
    assert files[-1][1] == 2
    for index in (3, -4):
        with said(IndexError, f"sample {index} of 3"):
            files[index]


def test_paths_of_any_letters_survive_pickling() -> None:
    names = ["ä/猫.jpg", "plain.jpg", "latin\udce4.jpg", "a b,c.png"]
    files = pickle.loads(pickle.dumps(ImageFiles("/nowhere", names, range(4), SKIP)))
    assert [files.relative_path(i) for i in range(4)] == names
    assert files.targets == [0, 1, 2, 3]


def test_a_million_paths_are_light() -> None:
    names = [f"images/{i % 10}/{i:032x}.jpg" for i in range(100_000)]  # 45 letters
    files = ImageFiles("/nowhere", names, [i % 14 for i in range(100_000)])
    held = sys.getsizeof(files._bytes) + files._ends.nbytes + files._is_broken.nbytes + sys.getsizeof(files.targets)
    assert held < 100_000 * (45 + 8 + 1 + 9)
    assert files.relative_path(99_999) == names[-1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ImageFiles("x", ["a", "b"], [1]),
            "there are 2 paths and 1 labels; expected one label per path",
        ),
        (lambda: ImageFiles("x", [], []), "there are no images for x; expected at least one path"),
        (
            lambda: Preparation(size=0, resize=-1, augment="blur", std=(0, 1, 1), on_broken="ignore", max_pixels=0),
            "Preparation got options it can't use: size=0 (expected 1 or more); "
            "resize=-1 (expected 0 or more, the square cut out); "
            "augment='blur' (expected one of none, flip, crop, resized_crop); "
            "mean=(0.485, 0.456, 0.406) and std=(0, 1, 1) (expected three numbers each, std above 0); "
            "on_broken='ignore' (expected raise or skip); max_pixels=0 (expected 1 or more)",
        ),
    ],
)
def test_errors_at_the_border(make: Callable[[], Any], message: str) -> None:
    with said(ValueError, message):
        make()
