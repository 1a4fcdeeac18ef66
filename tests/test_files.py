"""Image files as data sets: what is decoded, cut, skipped and refused, on small folders in the published layouts."""

import json
import pickle
import re
import shutil
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

from vri import VRI, train
from vri.backbones import build
from vri.data.animal10n import animal10n, check_animal10n
from vri.data.batches import Batches, SeededItems, read_labels
from vri.data.clothing1m import check_clothing1m, clothing1m
from vri.data.files import BrokenImage, FileData, ImageFiles, Preparation, image_folder, manifest
from vri.data.food101n import check_food101n, food101n
from vri.data.places import DatasetMissing, FileCheck

PLAIN = Preparation(size=8, resize=8, augment="none", mean=(0, 0, 0), std=(1, 1, 1))


def picture(width: int = 12, height: int = 10, seed: int = 0) -> Image.Image:
    """Noise: no two places look alike."""
    generator = np.random.default_rng(seed)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def save(path: Path, image: Image.Image | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (picture() if image is None else image).save(path, **options)
    return path


def cut_off(path: Path) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def only(folder: Path, name: str, prepare: Preparation = PLAIN, training: bool = False) -> ImageFiles:
    return ImageFiles(folder, [name], [0], prepare, training=training)


def said(kind: type[Exception], message: str) -> Any:
    return pytest.raises(kind, match=rf"^{re.escape(message)}$")


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
        "Preparation got options it can't use: resize=8 (expected 99 or more, the size of the square cut out)",
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
            "there are 2 paths and 1 labels; expected one label a path",
        ),
        (lambda: ImageFiles("x", [], []), "there are no images for x; expected at least one path"),
        (
            lambda: Preparation(size=0, resize=-1, augment="blur", std=(0, 1, 1), on_broken="ignore", max_pixels=0),
            "Preparation got options it can't use: size=0 (expected 1 or more); "
            "resize=-1 (expected 0 or more, the size of the square cut out); "
            "augment='blur' (expected one of none, flip, crop, resized_crop); "
            "mean=(0.485, 0.456, 0.406) and std=(0, 1, 1) (expected three numbers each, std above 0); "
            "on_broken='ignore' (expected raise or skip); max_pixels=0 (expected 1 or more)",
        ),
    ],
)
def test_errors_at_the_border(make: Callable[[], Any], message: str) -> None:
    with said(ValueError, message):
        make()


# folders of classes


def summary(files: ImageFiles | None) -> list[tuple[str, int]]:
    return [] if files is None else [(files.relative_path(i), y) for i, y in enumerate(files.targets)]


def test_image_folder(tmp_path: Path) -> None:
    for name in ("cat/2.jpg", "cat/10.PNG", "ant/1.jpeg", "cat/.hidden.jpg", "cat/notes.txt", ".git/1.jpg", "top.jpg"):
        path = tmp_path / "train" / name
        if name.endswith("txt"):
            path.write_text("no image")
        else:
            save(path)
    save(tmp_path / "train" / "cat" / "inner" / "3.jpg")
    save(tmp_path / "test" / "cat" / "5.jpg")
    save(tmp_path / "clean" / "ant" / "6.jpg")
    data = image_folder(tmp_path / "train", test=tmp_path / "test", clean=str(tmp_path / "clean"), prepare=PLAIN)
    assert (data.name, data.class_names, data.num_classes) == ("train", ("ant", "cat"), 2)
    assert summary(data.train) == [("ant/1.jpeg", 0), ("cat/10.PNG", 1), ("cat/2.jpg", 1)]
    assert summary(data.test) == [("cat/5.jpg", 1)]
    assert summary(data.clean) == [("ant/6.jpg", 0)]
    assert data.validation is None
    assert trained(data) == {"train": True, "clean": True, "test": False}
    assert data.train[0][0].shape == (3, 8, 8)


def trained(data: FileData) -> dict[str, bool]:
    """Parts, and whether random cuts are made on them."""
    parts = {name: getattr(data, name) for name in ("train", "clean", "validation", "test")}
    return {name: files.training for name, files in parts.items() if files is not None}


def test_image_folder_errors(tmp_path: Path) -> None:
    what = "a folder with one folder of images a class"
    with said(DatasetMissing, f"{tmp_path / 'no'} is not there; expected {what}"):
        image_folder(tmp_path / "no")
    path = save(tmp_path / "flat" / "1.jpg")
    with said(NotADirectoryError, f"{path} is a file; expected {what}"):
        image_folder(path)
    flat = path.parent
    with said(
        ValueError,
        f"{flat} has no folders in it; expected one a class, {flat}/CLASS/IMAGE.jpg: sort the images into them",
    ):
        image_folder(flat)
    for name in ("train/cat/1.jpg", "test/dog/2.jpg"):
        save(tmp_path / "splits" / name)
    splits = tmp_path / "splits"
    with said(
        ValueError,
        f"{splits} has classes without images: test, train; expected files that end in .jpg, .jpeg, .png, .bmp, .gif, "
        f".webp, .tif, .tiff in each: remove the folder, or pass the folder that holds the classes, such as "
        f"{splits / 'test'}",
    ):
        image_folder(splits)
    with said(
        ValueError,
        f"{splits / 'test'} has classes that {splits / 'train'} has not: dog; "
        "expected some of cat: rename or remove them",
    ):
        image_folder(splits / "train", test=splits / "test")


# manifests


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., Path]:
    """Images a.png to f.png, and a CSV file of the lines given."""
    for name in "abcdef":
        save(tmp_path / "images" / f"{name}.png", picture(8, 8))

    def write(*lines: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / "list.csv"
        path.write_text("\n".join(lines) + "\n", encoding=encoding)
        return path

    return write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_manifest(listed: Callable[..., Path], encoding: str) -> None:
    path = listed(
        "Path,label, trusted ,note,split",
        'images/a.png,"Katze, groß",no,,train',
        "./images/b.png,ant,YES,x,train",
        f"{listed().parent}/images/c.png,ant,0,,train",
        "",
        "images/x/../d.png,ant,true,,test",
        "images/e.png,ant,False,,validation",
        "images/f.png,bee,1,,Train",
        encoding=encoding,
    )
    data = manifest(path, prepare=PLAIN)
    assert (data.name, data.class_names) == ("list", ("Katze, groß", "ant", "bee"))
    assert summary(data.train) == [("images/a.png", 0), ("images/c.png", 1)]
    assert summary(data.clean) == [("images/b.png", 1), ("images/f.png", 2)]
    assert summary(data.test) == [("images/d.png", 1)]
    assert summary(data.validation) == [("images/e.png", 1)]
    assert trained(data) == {"train": True, "clean": True, "validation": False, "test": False}
    assert data.train[1][0].shape == (3, 8, 8)


def test_manifest_without_optional_columns(listed: Callable[..., Path]) -> None:
    path = listed("label,path", "10,a.png", "9,b.png", "10,a.png")
    data = manifest(path, path.parent / "images")
    assert data.class_names == ("9", "10")  # by value
    assert summary(data.train) == [("a.png", 1), ("b.png", 0), ("a.png", 1)]
    assert (data.clean, data.validation, data.test) == (None, None, None)


def test_manifest_with_given_classes(listed: Callable[..., Path]) -> None:
    path = listed("path,label", "images/a.png,cat", "images/b.png,ant")
    data = manifest(path, class_names=["dog", "cat", "ant"])
    assert (data.class_names, data.train.targets) == (("dog", "cat", "ant"), [1, 2])
    with said(
        ValueError,
        f"{path}, line 3: label is 'ant'; expected one of class_names ('dog', 'cat'): correct the row or add the class",
    ):
        manifest(path, class_names=["dog", "cat"])


def test_manifest_names_missing_images_at_once(listed: Callable[..., Path]) -> None:
    path = listed("path,label", "images/a.png,0", *(f"images/{i}.png,1" for i in range(7)))
    shown = ", ".join(f"images/{i}.png" for i in range(5))
    with said(
        DatasetMissing,
        f"7 of the images that {path} names are not under {path.parent}: {shown}, ...; "
        "unpack them there, or correct the paths",
    ):
        manifest(path)
    assert len(manifest(path, check_files=False).train) == 8


A, B = "images/a.png,x", "images/b.png,x"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "{} has the columns none; expected path and label, and if wanted trusted and split: "
             "add path and label to the first line"),
        (["file,label", A], "{} has the columns file, label; expected path and label, and if wanted trusted and "
                            "split: add path to the first line"),
        (["path,label"], "{} has no rows; expected one an image below the header"),
        (["path,label,trused", f"{A},1"], "{} has a column 'trused'; did you mean 'trusted'? Rename it"),
        (["path,label,label", f"{A},x"], "{} has a column twice: path, label, label; expected each once: remove one"),
        (["path,label", "images/a,b.png,x"],
         "{}, line 2 has another number of cells than the header; expected as many: put cells with commas in quotes"),
        (["path,label", A, "images/b.png"],
         "{}, line 3 has another number of cells than the header; expected as many: put cells with commas in quotes"),
        (["path,label", A, "images/b.png, "], "{}, line 3: label is empty; fill it in or remove the row"),
        (["path,label", ",x"], "{}, line 2: path is empty; fill it in or remove the row"),
        (["path,label,trusted", f"{A},maybe"],
         "{}, line 2: trusted is 'maybe'; expected one of true, 1, yes, false, 0, no"),
        (["path,label,trusted", f"{A},"], "{}, line 2: trusted is ''; expected one of true, 1, yes, false, 0, no"),
        (["path,label,split", f"{A},dev"], "{}, line 2: split is 'dev'; expected one of train, validation, test"),
        (["path,label,trusted", f"{A},0", f"{B},no"],
         "{} has the column trusted, but no training row is trusted; expected some with true: mark them, or remove the "
         "column"),
        (["path,label,trusted", f"{A},1"],
         "{} leaves no row to train on; expected some with split train that are not trusted"),
        (["path,label", "images/../../a.png,x"],
         "{}, line 2: path 'images/../../a.png' leaves the root {root}; expected a file under it"),
        (["path,label", "/etc/passwd,x"],
         "{}, line 2: path '/etc/passwd' leaves the root {root}; expected a file under it"),
        (["path,label,trusted", f"{A},0", f"{B},1", "images/./a.png,x,1"],
         "{}: images/a.png is in line 2 (train) and line 4 (clean); expected an image in one part only: "
         "remove one of the rows"),
    ],
)  # fmt: skip
def test_manifest_errors(listed: Callable[..., Path], lines: list[str], message: str) -> None:
    path = listed(*lines)
    with said(ValueError, message.format(path, root=path.parent)):
        manifest(path)


def test_manifest_files_that_are_none(listed: Callable[..., Path]) -> None:
    path = listed("path,label", A)
    with said(DatasetMissing, f"{path}x is not there; expected a CSV file with the columns path and label"):
        manifest(f"{path}x")
    root = path.parent / "no"
    with said(DatasetMissing, f"root is {root}, which is no folder; expected the one that the paths begin from"):
        manifest(path, root)
    path = listed("path,label", "images/ä.png,x", encoding="latin-1")
    with pytest.raises(ValueError, match=r" is not UTF-8 \(.*\); save it as UTF-8$"):
        manifest(path)
    path = listed("path,label", 'images/a.png,"x')
    with pytest.raises(ValueError, match=r" is no sound CSV file \(.*\); expected commas between cells and quotes"):
        manifest(path)


# Clothing1M


CLOTHES = ["T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket"]
CLOTHES += ["Downcoat", "Suit", "Shawl", "Dress", "Vest", "Underwear"]


def clothes(root: Path, lists: str) -> Path:
    keys = {
        "noisy_train": ["images/0/00/n1.jpg", "images/0/01/n2.jpg", "images/1/00/both.jpg", "images/9/99/n3.jpg"],
        "clean_train": ["images/2/00/c1.jpg"],
        "clean_val": ["images/3/00/v1.jpg", "images/1/00/both.jpg"],
        "clean_test": ["images/4/00/t1.jpg"],
    }
    noisy = {"images/0/00/n1.jpg": 13, "images/0/01/n2.jpg": 0, "images/1/00/both.jpg": 5, "images/9/99/n3.jpg": 2}
    clean = {"images/2/00/c1.jpg": 1, "images/3/00/v1.jpg": 7, "images/1/00/both.jpg": 6, "images/4/00/t1.jpg": 12}
    folder = root / lists
    folder.mkdir(parents=True, exist_ok=True)
    for name, listed in keys.items():
        (folder / f"{name}_key_list.txt").write_text("".join(f"{key}\n" for key in listed))
        for key in listed:
            save(root / key)
    for name, labels in {"noisy": noisy, "clean": clean}.items():
        (folder / f"{name}_label_kv.txt").write_text("".join(f"{key} {label}\n" for key, label in labels.items()))
    (folder / "category_names_eng.txt").write_text("\n".join(CLOTHES))
    return root


@pytest.mark.parametrize("lists", [".", "annotations"])
def test_clothing1m(tmp_path: Path, lists: str) -> None:
    data = clothing1m(clothes(tmp_path, lists))
    assert (data.name, data.class_names) == ("clothing1m", tuple(CLOTHES))
    # Without the image that is in the clean part as well.
    assert summary(data.train) == [("images/0/00/n1.jpg", 13), ("images/0/01/n2.jpg", 0), ("images/9/99/n3.jpg", 2)]
    assert summary(data.clean) == [("images/3/00/v1.jpg", 7), ("images/1/00/both.jpg", 6)]
    assert data.validation is None
    assert summary(data.test) == [("images/4/00/t1.jpg", 12)]
    assert trained(data) == {"train": True, "clean": True, "test": False}
    assert data.test is not None
    assert data.test[0][0].shape == (3, 224, 224)


def test_clothing1m_with_its_clean_training_images(tmp_path: Path) -> None:
    data = clothing1m(clothes(tmp_path, "."), clean="train", prepare=PLAIN)
    assert summary(data.clean) == [("images/2/00/c1.jpg", 1)]
    assert summary(data.validation) == [("images/3/00/v1.jpg", 7), ("images/1/00/both.jpg", 6)]
    assert len(data.train) == 3
    assert trained(data) == {"train": True, "clean": True, "validation": False, "test": False}
    with said(ValueError, "clean is 'all'; expected validation or train"):
        clothing1m(tmp_path, clean="all")


def test_clothing1m_squeezes_its_images(tmp_path: Path) -> None:
    image = picture(40, 30)
    save(clothes(tmp_path, ".") / "images/4/00/t1.png", image)
    shutil.move(tmp_path / "images/4/00/t1.png", tmp_path / "images/4/00/t1.jpg")  # a PNG by any name
    data = clothing1m(tmp_path)
    assert data.test is not None
    middle = tensor(image.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240)))
    mean, std = torch.tensor(data.test.prepare.mean), torch.tensor(data.test.prepare.std)
    torch.testing.assert_close(data.test[0][0], (middle - mean[:, None, None]) / std[:, None, None])


def test_clothing1m_errors(tmp_path: Path) -> None:
    root = clothes(tmp_path, "annotations")
    lists = root / "annotations"
    (root / "images/4/00/t1.jpg").unlink()
    with said(
        DatasetMissing,
        f"1 of the images that the lists in {lists} names are not under {root}: images/4/00/t1.jpg; "
        "unpack them there, or correct the paths",
    ):
        clothing1m(root)
    assert len(clothing1m(root, check_files=False).train) == 3
    (lists / "noisy_label_kv.txt").write_text("images/0/00/n1.jpg 14\n")
    with said(
        ValueError,
        f"{lists / 'noisy_label_kv.txt'}, entry 1 is 'images/0/00/n1.jpg 14'; expected a path, a space and a class "
        "from 0 to 13: fetch it again",
    ):
        clothing1m(root)
    (lists / "noisy_label_kv.txt").write_text("images/0/00/n1.jpg 3\n")
    with said(
        ValueError,
        f"{lists / 'noisy_train_key_list.txt'} names 2 images without a label in noisy_label_kv.txt: "
        "images/0/01/n2.jpg, images/9/99/n3.jpg; fetch both files again",
    ):
        clothing1m(root, check_files=False)
    (lists / "clean_val_key_list.txt").write_text("images/../../x.jpg\n")
    with said(
        ValueError,
        f"{lists / 'clean_val_key_list.txt'} names 'images/../../x.jpg', outside of its folder; fetch it again",
    ):
        clothing1m(root)
    (lists / "category_names_eng.txt").write_text("Shirt\n")
    with said(ValueError, f"{lists / 'category_names_eng.txt'} has 1 names; expected 14: fetch it again"):
        clothing1m(root)
    (lists / "clean_test_key_list.txt").unlink()
    (lists / "noisy_label_kv.txt").unlink()
    with said(
        DatasetMissing,
        f"clothing1m is not whole in {root}: clean_test_key_list.txt, noisy_label_kv.txt not found there or in "
        f"{lists}; unpack the authors' annotations there",
    ):
        clothing1m(root)


def table(found: list[FileCheck], root: Path) -> dict[str, tuple[str, str]]:
    rows = {str(check.path.relative_to(root)): (check.status, check.reason) for check in found}
    assert len(rows) == len(found)
    return rows


def test_check_clothing1m(tmp_path: Path) -> None:
    root = clothes(tmp_path, "annotations")
    found = table(check_clothing1m(root, decode=True), root)
    assert {status for status, _ in found.values()} == {"ok"}
    assert found["annotations/noisy_train_key_list.txt"][1] == "4 images; 1,000,000 were published"
    assert found["annotations/clean_label_kv.txt"][1] == "4 labels"
    assert found["annotations/category_names_eng.txt"][1] == "14 classes"
    assert found["images"][1] == "7 images"  # one is in two lists
    assert len(found) == 8

    (root / "annotations/noisy_label_kv.txt").write_text("images/0/00/n1.jpg 3\nimages/0/01/n2.j")
    (root / "annotations/clean_val_key_list.txt").unlink()
    (root / "images/4/00/t1.jpg").unlink()
    cut_off(root / "images/2/00/c1.jpg")
    found = table(check_clothing1m(root), root)
    assert found["annotations/clean_val_key_list.txt"] == ("missing", "")
    assert found["annotations/noisy_label_kv.txt"][0] == "damaged"
    assert "entry 2 is 'images/0/01/n2.j'" in found["annotations/noisy_label_kv.txt"][1]
    assert found["images"] == ("missing", "1 of 6 images: images/4/00/t1.jpg")
    assert "images/2/00/c1.jpg" not in found
    found = table(check_clothing1m(root, decode=True), root)
    assert found["images/2/00/c1.jpg"][0] == "damaged"
    assert len(found) == 9


def test_checks_of_an_empty_folder(tmp_path: Path) -> None:
    for check in (check_clothing1m, check_food101n, check_animal10n):
        assert {entry.status for entry in check(tmp_path, decode=True)} == {"missing"}


# Food-101N


def food(root: Path, header: bool = True, as_json: bool = False, food101: str = "food-101") -> Path:
    release, other = root / "Food-101N_release", root / food101
    keys = ["pie/1.jpg", "pie/2.jpg", "pie/3.jpg", "soup/4.jpg", "soup/5.jpg", "soup/6.jpg", "soup/7.jpg"]
    for key in keys:
        save(release / "images" / key)
    (release / "meta").mkdir()
    (release / "meta/classes.txt").write_text(("class_name\n" if header else "") + "soup\npie\n")
    tables = {
        "imagelist": keys,
        "verified_train": ["pie/1.jpg\t1", "soup/4.jpg\t0"],
        "verified_val": ["pie/2.jpg\t1", "soup/5.jpg\t1", "soup/6.jpg\t0"],
    }
    for name, rows in tables.items():
        first = "class_name/key" + ("" if name == "imagelist" else "\tverification_label")
        (release / f"meta/{name}.tsv").write_text("\n".join([first, *rows]) + "\n")
    (other / "meta").mkdir(parents=True)
    if as_json:
        (other / "meta/test.json").write_text(json.dumps({"pie": ["pie/100"], "soup": ["soup/200"]}))
    else:
        (other / "meta/test.txt").write_text("pie/100\nsoup/200\n")
    for key in ("pie/100.jpg", "soup/200.jpg"):
        save(other / "images" / key)
    return root


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("inner", ["", "Food-101N_release"])
def test_food101n(tmp_path: Path, header: bool, as_json: bool, inner: str) -> None:
    data = food101n(food(tmp_path, header, as_json) / inner, prepare=PLAIN)
    assert (data.name, data.class_names) == ("food-101n", ("soup", "pie"))
    # Verified training images keep the class they came with, also the wrong one.
    assert summary(data.train) == [("images/pie/1.jpg", 1), ("images/soup/4.jpg", 0)]
    assert summary(data.clean) == [("images/pie/2.jpg", 1), ("images/soup/5.jpg", 0)]
    assert summary(data.test) == [("images/pie/100.jpg", 1), ("images/soup/200.jpg", 0)]
    assert data.validation is None
    assert data.test is not None
    assert data.test[1][0].shape == (3, 8, 8)
    assert trained(data) == {"train": True, "clean": True, "test": False}


def test_food101n_with_all_images(tmp_path: Path) -> None:
    data = food101n(food(tmp_path, food101="elsewhere/food-101"), train="all", food101_root=tmp_path / "elsewhere")
    expected = ["images/pie/1.jpg", "images/pie/3.jpg", "images/soup/4.jpg", "images/soup/7.jpg"]
    assert [name for name, _ in summary(data.train)] == expected
    assert food101n(tmp_path, food101_root=tmp_path / "elsewhere/food-101").test is not None
    with said(ValueError, "train is 'clean'; expected verified or all"):
        food101n(tmp_path, train="clean")


def test_food101n_errors(tmp_path: Path) -> None:
    root = food(tmp_path)
    release, meta = root / "Food-101N_release", root / "Food-101N_release" / "meta"
    (root / "food-101/images/pie/100.jpg").unlink()
    with said(
        DatasetMissing,
        f"1 of the images that the list in {root / 'food-101/meta'} names are not under {root / 'food-101'}: "
        "images/pie/100.jpg; unpack them there, or correct the paths",
    ):
        food101n(root)
    assert len(food101n(root, check_files=False).train) == 2
    (root / "food-101/meta/test.txt").write_text("sushi/1\n")
    with said(
        ValueError,
        f"{root / 'food-101/meta/test.txt'} names 'sushi/1'; expected CLASS/NUMBER with a class of Food-101N: "
        "fetch it again",
    ):
        food101n(root)
    (meta / "verified_val.tsv").write_text("class_name/key\tverification_label\npie/2.jpg\t2\n")
    with said(
        ValueError,
        f"{meta / 'verified_val.tsv'}, entry 2 is 'pie/2.jpg\\t2'; expected CLASS/FILE, with a class of "
        "meta/classes.txt, a tab and 0 or 1: fetch it again",
    ):
        food101n(root)
    shutil.rmtree(root / "food-101")
    with said(
        DatasetMissing,
        "the test images of food-101n are those of Food-101, and there is no food-101/meta/test.txt in "
        f"{release} and {root}; unpack food-101.tar.gz there, or pass food101_root=",
    ):
        food101n(root)
    (meta / "classes.txt").unlink()
    with said(
        DatasetMissing,
        f"food-101n is not whole in {release}: meta/classes.txt not found; "
        "fetch it from https://kuanghuei.github.io/Food-101N/",
    ):
        food101n(root)


def test_check_food101n(tmp_path: Path) -> None:
    root = food(tmp_path)
    found = table(check_food101n(root, decode=True), root)
    assert {status for status, _ in found.values()} == {"ok"}
    at = "Food-101N_release"
    assert found[f"{at}/meta/verified_val.tsv"][1] == "3 images, 2 of them right; 4,741 were published"
    assert found[f"{at}/images"][1] == "7 images"
    assert found["food-101/meta/test.txt"][1] == "2 images; 25,250 were published"

    cut_off(root / at / "images/soup/7.jpg")
    (root / "food-101/images/pie/100.jpg").unlink()
    (root / at / "meta/verified_train.tsv").write_text("nothing")
    found = table(check_food101n(root, decode=True), root)
    wrong = {name: status for name, (status, _) in found.items() if status != "ok"}
    assert wrong == {
        f"{at}/meta/verified_train.tsv": "damaged",
        f"{at}/images/soup/7.jpg": "damaged",
        "food-101/images": "missing",
    }


# ANIMAL-10N


@pytest.mark.parametrize("inner", ["", "raw_image"])
def test_animal10n(tmp_path: Path, inner: str) -> None:
    for name in ("training/0_12.jpg", "training/9_3.jpg", "training/5_7.jpg", "testing/4_1.jpg"):
        save(tmp_path / inner / name, picture(64, 64))
    data = animal10n(tmp_path)
    assert summary(data.train) == [("training/0_12.jpg", 0), ("training/5_7.jpg", 5), ("training/9_3.jpg", 9)]
    assert summary(data.test) == [("testing/4_1.jpg", 4)]
    assert (data.clean, data.validation, data.num_classes) == (None, None, 10)
    assert [data.class_names[i] for i in (0, 5, 9)] == ["cat", "jaguar", "guinea pig"]
    assert trained(data) == {"train": True, "test": False}
    assert data.train[0][0].shape == (3, 64, 64)

    found = table(check_animal10n(tmp_path, decode=True), tmp_path / inner)
    assert found == {
        "training": ("ok", "3 images; 50,000 were published"),
        "testing": ("ok", "1 images; 5,000 were published"),
    }
    cut_off(tmp_path / inner / "training/5_7.jpg")
    assert table(check_animal10n(tmp_path, decode=True), tmp_path / inner)["training/5_7.jpg"][0] == "damaged"


def test_animal10n_errors(tmp_path: Path) -> None:
    with said(
        DatasetMissing,
        f"animal-10n is not whole in {tmp_path}: training/, testing/ not found; "
        "fetch it from https://dm.kaist.ac.kr/datasets/animal-10n",
    ):
        animal10n(tmp_path)
    save(tmp_path / "training/0_12.jpg")
    save(tmp_path / "training/cat.jpg")
    (tmp_path / "testing").mkdir()
    rest = "expected names that begin with a class from 0 to 9 and _, such as 4_12345.jpg: fetch the archive again"
    with said(ValueError, f"{tmp_path / 'training'} has 1 images without a label: cat.jpg; {rest}"):
        animal10n(tmp_path)
    (tmp_path / "training/cat.jpg").unlink()
    with said(ValueError, f"{tmp_path / 'testing'} has no images; {rest}"):
        animal10n(tmp_path)
    assert [check.status for check in check_animal10n(tmp_path)] == ["ok", "damaged"]


# in the loop


def test_a_method_trains_on_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, count in (("train", 24), ("clean", 6), ("test", 8)):
        for i in range(count):
            colour = i % 2
            pixels = generator.integers(0, 80, (10, 12, 3), dtype=np.uint8)
            pixels[:, :, colour] += 150
            wrong = part == "train" and i % 6 == 0  # a sixth: red ones called green
            save(tmp_path / part / ("green" if colour or wrong else "red") / f"{i}.png", Image.fromarray(pixels))
    prepare = Preparation(size=8, resize=9, augment="crop")
    data = image_folder(tmp_path / "train", clean=tmp_path / "clean", test=tmp_path / "test", prepare=prepare)
    model = build("small_cnn", num_classes=data.num_classes, seed=0)
    method = VRI(
        model, data.num_classes, torch.optim.SGD(model.parameters(), lr=0.05), hypergradient="finite_difference"
    )
    history = train(method, data.train, data.clean, epochs=3, batch_size=8, test_set=data.test, progress=False)
    assert len(history) == 3
    assert history[-1]["test_accuracy"] == 1.0
