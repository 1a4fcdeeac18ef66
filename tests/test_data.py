"""Splits, the idx reader on files written here, and the data sets that are on the machine."""

import gzip
import hashlib
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from vri import data
from vri.data.sets.fashion_mnist import FASHION_MNIST, read_idx


def counts(labels: Tensor, indices: Tensor, num_classes: int) -> list[int]:
    return torch.bincount(labels[indices], minlength=num_classes).tolist()


def unequal_labels() -> Tensor:
    """Ten classes of 40 to 49 samples, shuffled."""
    labels = torch.repeat_interleave(torch.arange(10), torch.arange(40, 50))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]


def test_split_is_disjoint_balanced_and_of_the_sizes_asked() -> None:
    y = unequal_labels()
    parts = data.split(y, sizes={"train": 200, "clean": 30, "validation": 100}, num_classes=10, seed=0)
    assert list(parts) == ["train", "clean", "validation"]
    for name, each in (("train", 20), ("clean", 3), ("validation", 10)):
        assert parts[name].dtype == torch.int64
        assert counts(y, parts[name], 10) == [each] * 10
        assert torch.equal(parts[name], parts[name].sort().values)
    together = torch.cat(list(parts.values()))
    assert len(set(together.tolist())) == len(together) == 330


def test_split_remainder_goes_to_classes_in_seeded_order() -> None:
    y = unequal_labels()
    favoured = set()
    for seed in range(20):
        parts = data.split(y, sizes={"a": 103, "b": 57}, num_classes=10, seed=seed)
        assert sorted(counts(y, parts["a"], 10)) == [10] * 7 + [11] * 3
        assert sorted(counts(y, parts["b"], 10)) == [5] * 3 + [6] * 7
        favoured |= {k for k, n in enumerate(counts(y, parts["a"], 10)) if n == 11}
    assert favoured == set(range(10))


def test_split_finds_the_only_remainder_there_is() -> None:
    # After one sample each, class 0 has nothing left, class 1 one sample and class 2 two.
    y = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])
    for seed in range(20):
        parts = data.split(y, sizes={"a": 4, "b": 5}, num_classes=3, seed=seed)
        assert counts(y, parts["b"], 3) == [1, 2, 2]
        assert counts(y, parts["a"], 3) == [1, 1, 2]


def test_split_rest_takes_all_that_is_left() -> None:
    y = unequal_labels()
    parts = data.split(y, sizes={"rest": -1, "clean": 100, "none": 0}, num_classes=10, seed=0)
    assert list(parts) == ["rest", "clean", "none"]
    assert counts(y, parts["clean"], 10) == [10] * 10
    assert len(parts["none"]) == 0
    assert counts(y, parts["rest"], 10) == list(range(30, 40))
    assert torch.cat(list(parts.values())).sort().values.tolist() == list(range(len(y)))


def test_split_depends_on_the_seed_and_leaves_the_global_rng() -> None:
    y, state = unequal_labels(), torch.get_rng_state()
    first, again, other = (
        data.split(y.tolist(), sizes={"a": 50, "b": -1}, num_classes=10, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first["a"], again["a"])
    assert torch.equal(first["b"], again["b"])
    assert not torch.equal(first["a"], other["a"])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("labels", "sizes", "message"),
    [
        (
            [0, 0, 0, 1],
            {"a": 4, "b": -1},
            "class 1 has 1 samples; a balanced split into {'a': 4} expected at least 2: ask for smaller parts",
        ),
        (
            [0, 0, 0],
            {"a": 2},
            "class 1 has 0 samples; a balanced split into {'a': 2} expected at least 1: ask for smaller parts",
        ),
        (
            [0, 0, 1, 1],
            {"a": 3, "b": 3},
            "class 0 has 2 samples; a balanced split into {'a': 3, 'b': 3} expected at least 3: ask for smaller parts",
        ),
        (
            [0, 1],
            {"a": -2},
            "sizes are {'a': -2}; expected 0 or more, or -1 for the rest: correct the sizes",
        ),
        (
            [0, 1],
            {"a": -1, "b": -1},
            "sizes are {'a': -1, 'b': -1}; expected -1 for at most one part: give the others a size",
        ),
        (
            [0, 2],
            {"a": 1},
            "labels run from 0 to 2; expected 0 to 1 for num_classes=2: recode them or change num_classes",
        ),
    ],
)
def test_split_errors(labels: list[int], sizes: dict[str, int], message: str) -> None:
    # In the third case either class may come up short, by the seeded order; seed 0 decides.
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.split(labels, sizes=sizes, num_classes=2, seed=0)


def test_digits_are_those_of_scikit_learn_split_into_balanced_fifths() -> None:
    digits = data.load("digits")
    assert digits.name == "digits"
    assert digits.class_names == tuple("0123456789")
    assert digits.train_x.shape == (1437, 1, 8, 8)
    assert digits.test_x.shape == (360, 1, 8, 8)
    assert digits.train_x.dtype == torch.uint8
    assert digits.train_y.dtype == torch.int64
    assert torch.bincount(digits.test_y).tolist() == [36] * 10

    def rows(x: Tensor, y: Tensor) -> list[tuple[int, ...]]:
        return [(*image, label) for image, label in zip(x.flatten(1).tolist(), y.tolist(), strict=True)]

    source = load_digits()
    expected = [
        (*(round(v * 255 / 16) for v in image), label)
        for image, label in zip(source.data.tolist(), source.target.tolist(), strict=True)
    ]
    found = rows(digits.train_x, digits.train_y) + rows(digits.test_x, digits.test_y)
    assert sorted(found) == sorted(expected)
    assert torch.equal(digits.test_x, data.load("digits").test_x)


def test_digits_statistics_and_check() -> None:
    digits = data.load("digits")
    pixels = data.to_float(torch.cat([digits.train_x, digits.test_x]))
    assert float(pixels.mean()) == pytest.approx(digits.mean[0], abs=5e-5)
    assert float(pixels.std()) == pytest.approx(digits.std[0], abs=5e-4)
    assert digits.num_classes == 10
    assert dict(digits.human_labels) == {}
    assert digits.open_set is None
    (check,) = data.check("digits")
    assert check.ok
    assert check.path.name == "digits.csv.gz"


def test_to_float_scales_then_normalises_each_channel() -> None:
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1)
    torch.testing.assert_close(data.to_float(x).flatten(), torch.tensor([0.0, 0.2, 1.0]))
    torch.testing.assert_close(data.to_float(x, 0.5, 0.5).flatten(), torch.tensor([-1.0, -0.6, 1.0]))
    by_channel = data.to_float(x, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 0.5))
    torch.testing.assert_close(by_channel.flatten(), torch.tensor([-0.1, 0.0, 1.4]))
    torch.testing.assert_close(data.to_float(x[0], std=(1.0, 2.0, 4.0)).flatten(), torch.tensor([0, 0.1, 0.25]))
    assert by_channel.dtype == torch.float32
    assert x.flatten().tolist() == [0, 51, 255]


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (
            torch.zeros(1, 3, 2, 2),
            {},
            "x is torch.float32; expected torch.uint8 with values 0 to 255: pass the raw images",
        ),
        (
            torch.zeros(1, 3, 2, 2, dtype=torch.uint8),
            {"mean": (0.1, 0.2)},
            "mean has shape (2,) for images of shape (1, 3, 2, 2); "
            "expected one number or one per channel: match the channels",
        ),
        (
            torch.zeros(1, 3, 2, 2, dtype=torch.uint8),
            {"std": 0.0},
            "std is 0.0; expected numbers above 0: pass the channels' standard deviations",
        ),
    ],
)
def test_to_float_errors(x: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.to_float(x, **options)


def idx_bytes(shape: tuple[int, ...], values: bytes) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def test_read_idx(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes((2, 3, 300), bytes(i % 251 for i in range(1800)))))
    found = read_idx(path)
    assert found.dtype == torch.uint8
    assert torch.equal(found, (torch.arange(1800) % 251).to(torch.uint8).reshape(2, 3, 300))
    path.write_bytes(gzip.compress(idx_bytes((0, 3), b"")))
    assert read_idx(path).shape == (0, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx_bytes((2, 2), b"abc"), "holds 3 values; expected 4 for shape (2, 2): fetch the file again"),
        (idx_bytes((2, 2), b"abcde"), "holds 5 values; expected 4 for shape (2, 2): fetch the file again"),
        (
            b"\0\0\x0d\x01\0\0\0\x01abcd",  # 0x0d is the code of 32-bit floats
            "starts with 00 00 0d 01; expected the idx header 00 00 08 and an axis count: fetch the file again",
        ),
        (
            b"PNG!more",
            "starts with 50 4e 47 21; expected the idx header 00 00 08 and an axis count: fetch the file again",
        ),
        (
            b"",
            "starts with nothing; expected the idx header 00 00 08 and an axis count: fetch the file again",
        ),
        (b"\0\0\x08\x03\0\0", "ends after 6 bytes; expected a header of 16: fetch the file again"),
    ],
)
def test_read_idx_refuses_damaged_content(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} {message}')}$"):
        read_idx(path)


def test_read_idx_refuses_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    packed = gzip.compress(idx_bytes((100,), bytes(range(100))))
    broken = packed[:30] + bytes([packed[30] ^ 0xFF]) + packed[31:]
    for content in (packed[:-20], b"not gzip at all", broken):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"file\.gz cannot be unpacked \(.+\); expected a whole gzip file: "):
            read_idx(path)


def write_fashion(folder: Path, shade: int, *, train_labels: bytes = b"\x09\x00\x03") -> None:
    """Write a Fashion-MNIST of three training images and one test image, all of one shade."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {
        "train-images-idx3-ubyte.gz": idx_bytes((3, 28, 28), bytes([shade]) * 3 * 784),
        "train-labels-idx1-ubyte.gz": idx_bytes((len(train_labels),), train_labels),
        "t10k-images-idx3-ubyte.gz": idx_bytes((1, 28, 28), bytes([shade]) * 784),
        "t10k-labels-idx1-ubyte.gz": idx_bytes((1,), b"\x05"),
    }.items():
        (folder / name).write_bytes(gzip.compress(content))


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Fashion-MNIST: home and the system's folder are empty, VRI_DATA is not set."""
    monkeypatch.delenv("VRI_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "system"))
    return tmp_path


def test_fashion_mnist_folders_in_their_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shade(root: Path | None = None) -> int:
        return int(data.load("fashion-mnist", root).train_x[0, 0, 0, 0])

    write_fashion(nowhere / "system/datasets/fashion-mnist", 1)
    assert shade() == 1
    write_fashion(nowhere / "home" / ".cache" / "vri" / "fashion-mnist", 2)
    assert shade() == 2
    monkeypatch.setenv("VRI_DATA", str(nowhere / "env"))
    write_fashion(nowhere / "env" / "fashion-mnist", 3)
    assert shade() == 3
    write_fashion(nowhere / "root", 4)
    assert shade() == 3
    assert shade(nowhere / "root") == 4
    # A folder with some of the files only is passed over.
    (nowhere / "root" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert shade(nowhere / "root") == 3


def test_fashion_mnist_content(nowhere: Path) -> None:
    write_fashion(nowhere / "root", 7)
    fashion = data.load("fashion-mnist", nowhere / "root")
    assert fashion.train_x.shape == (3, 1, 28, 28)
    assert fashion.test_x.shape == (1, 1, 28, 28)
    assert fashion.train_y.tolist() == [9, 0, 3]
    assert fashion.train_y.dtype == torch.int64
    assert [fashion.class_names[k] for k in fashion.train_y] == ["Ankle boot", "T-shirt/top", "Dress"]
    assert fashion.test_y.tolist() == [5]


def test_fashion_mnist_refuses_files_that_do_not_belong_together(nowhere: Path) -> None:
    write_fashion(nowhere, 7, train_labels=b"\x00\x01")
    message = (
        f"{nowhere / 'train-images-idx3-ubyte.gz'} has shape (3, 28, 28) "
        "and train-labels-idx1-ubyte.gz (2,); "
        "expected n x h x w images and n labels: fetch the files again"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.load("fashion-mnist", nowhere)


def test_fashion_mnist_missing_says_what_to_do(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRI_DATA", "/nowhere/env")
    root = nowhere / "root"
    root.mkdir()
    message = (
        "fashion-mnist not found; expected train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
        "t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz together in one of "
        f"{root}, {root}/fashion-mnist, /nowhere/env, /nowhere/env/fashion-mnist, "
        f"{nowhere}/home/.cache/vri, {nowhere}/home/.cache/vri/fashion-mnist, "
        f"{nowhere}/system/datasets/fashion-mnist: "
        "run vri data get fashion-mnist, apt-get install dataset-fashion-mnist, or put the files there"
    )
    with pytest.raises(data.DatasetMissing, match=f"^{re.escape(message)}$") as caught:
        data.load("fashion-mnist", root)
    assert isinstance(caught.value, FileNotFoundError)


def test_fashion_mnist_in_part_says_what_is_missing(nowhere: Path) -> None:
    write_fashion(nowhere / "root", 4)
    (nowhere / "root" / "t10k-labels-idx1-ubyte.gz").unlink()
    message = f" ({nowhere}/root has some, but lacks t10k-labels-idx1-ubyte.gz)"
    with pytest.raises(data.DatasetMissing, match=f"{re.escape(message)}$"):
        data.load("fashion-mnist", nowhere / "root")


def test_root_that_does_not_exist(nowhere: Path) -> None:
    # found without root: a mistyped one is a mistake all the same
    write_fashion(nowhere / "system/datasets/fashion-mnist", 1)
    message = (
        "root is /nowhere/root, which does not exist; expected the folder that holds the files of fashion-mnist: "
        f"correct it, or leave it out to look in {nowhere}/home/.cache/vri"
    )
    with pytest.raises(data.DatasetMissing, match=f"^{re.escape(message)}$"):
        data.load("fashion-mnist", "/nowhere/root")


def test_fashion_mnist_check_names_each_file(nowhere: Path) -> None:
    write_fashion(nowhere / "root" / "fashion-mnist", 4)
    folder = nowhere / "root" / "fashion-mnist"
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"not gzip")
    checks = data.check("fashion-mnist", nowhere / "root")
    assert [(c.path, c.status) for c in checks] == [
        (folder / "train-images-idx3-ubyte.gz", "damaged"),
        (folder / "train-labels-idx1-ubyte.gz", "missing"),
        (folder / "t10k-images-idx3-ubyte.gz", "damaged"),
        (folder / "t10k-labels-idx1-ubyte.gz", "damaged"),
    ]
    content = idx_bytes((1, 28, 28), bytes([4]) * 784)
    assert checks[2].reason == (
        f"sha256 {hashlib.sha256(content).hexdigest()} once unpacked; "
        "expected 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
    )
    assert checks[3].reason == (
        "cannot be unpacked (Not a gzipped file (b'no')); expected a whole gzip file: fetch the file again"
    )


def test_fashion_mnist_as_installed() -> None:
    if FASHION_MNIST.find() is None:
        pytest.skip("Fashion-MNIST is not there: vri data get fashion-mnist, or apt-get install dataset-fashion-mnist")
    fashion = data.load("fashion-mnist")
    assert fashion.train_x.shape == (60000, 1, 28, 28)
    assert fashion.test_x.shape == (10000, 1, 28, 28)
    assert torch.bincount(fashion.train_y).tolist() == [6000] * 10
    assert torch.bincount(fashion.test_y).tolist() == [1000] * 10
    assert all(each.ok for each in data.check("fashion-mnist"))
    # The mean and standard deviation everyone normalises with.
    pixels = data.to_float(fashion.train_x)
    assert float(pixels.mean()) == pytest.approx(0.2860, abs=5e-5)
    assert float(pixels.std()) == pytest.approx(0.3530, abs=5e-5)
    assert (fashion.mean, fashion.std) == ((0.2860,), (0.3530,))


def test_each_data_set_has_its_own_way_to_be_loaded() -> None:
    assert {*data.DATASETS, *data.FILE_DATASETS} == set(data.CATALOGUE)
    assert not {*data.DATASETS} & {*data.FILE_DATASETS}
    with pytest.raises(ValueError, match=r"^clothing1m is too large for memory: expected load_files\('clothing1m'\)"):
        data.load("clothing1m")
    with pytest.raises(ValueError, match=r"^digits is read into memory: expected load\('digits'\)$"):
        data.load_files("digits")
    with pytest.raises(ValueError, match=r"^data set is 'animal'; expected one of .*: did you mean 'animal10n'\?$"):
        data.load_files("animal")


@pytest.mark.parametrize(
    ("name", "nearest"), [("fashion_mnist", "fashion-mnist"), ("Digit", "digits"), ("digit", "digits")]
)
def test_unknown_name_suggests_the_nearest(name: str, nearest: str) -> None:
    known = ", ".join(data.CATALOGUE)
    message = f"data set is {name!r}; expected one of {known}: did you mean {nearest!r}?"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.load(name)
