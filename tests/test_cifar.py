"""CIFAR and its relatives, on files written here and, where they are there, on the real ones."""

import hashlib
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vri import data
from vri.data.catalogue import CATALOGUE
from vri.data.pickles import read_pickle, read_torch, write_pickle
from vri.data.sets.cifar import CIFAR10, CIFAR100
from vri.data.sets.cifar_n import CIFAR10N, CIFAR100N

REAL_HOME, REAL_DATA = str(Path.home()), os.environ.get("VRI_DATA")
BESIDE = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data sets."""
    monkeypatch.delenv("VRI_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """Where to look for the real files first: beside the project, then where `vri data get` puts them."""
    monkeypatch.setenv("HOME", REAL_HOME)
    if REAL_DATA:
        monkeypatch.setenv("VRI_DATA", REAL_DATA)
    return BESIDE if BESIDE.is_dir() else None


def pictures(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 3072), dtype=np.uint8)


def save_torch(path: Path, content: Any) -> None:
    """A file as `torch.save` writes it: a zip with a pickle of protocol 2 in it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        archive.writestr("archive/version", "3\n")


@pytest.fixture
def small10(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10 of four images a file, all its sizes and checksums set accordingly."""
    folder = nowhere / "root" / CIFAR10.folder
    folder.mkdir(parents=True)
    content = {}
    for i, name in enumerate(CIFAR10.rows):
        images, labels = pictures(4, i), [i, (i + 1) % 10, 9, 0]
        write_pickle(folder / name, {b"batch_label": b"some", b"labels": labels, b"data": images})
        content[name] = hashlib.sha256(images.tobytes() + bytes(labels)).hexdigest()
    write_pickle(folder / "batches.meta", {b"label_names": [f"class {k}".encode() for k in range(10)]})
    known = replace(CIFAR10, rows=dict.fromkeys(CIFAR10.rows, 4), content=content)
    monkeypatch.setitem(CATALOGUE, "cifar10", known)
    monkeypatch.setitem(CATALOGUE, "cifar10n", replace(CIFAR10N, images=known))
    return nowhere / "root"


@pytest.fixture
def part100(nowhere: Path) -> Path:
    """A part of CIFAR-100: two training images and one test image of each class."""
    folder = nowhere / "root" / CIFAR100.folder
    folder.mkdir(parents=True)
    for name, each in (("train", 2), ("test", 1)):
        labels = [k for _ in range(each) for k in range(100)]
        content = {b"data": pictures(len(labels), each), b"fine_labels": labels, b"coarse_labels": [0] * len(labels)}
        write_pickle(folder / name, content)
    write_pickle(folder / "meta", {b"fine_label_names": [f"class {k}".encode() for k in range(100)]})
    np.save(folder / "train_index.npy", np.arange(200, dtype=np.int32) * 7 + 3)
    return nowhere / "root"


# pickles


@pytest.mark.parametrize("encoding", ["bytes", "latin1"])
def test_written_pickles_are_read_by_python_as_the_official_ones(tmp_path: Path, encoding: str) -> None:
    images = pictures(3, 0)
    write_pickle(tmp_path / "file", {b"labels": [3, 1, 70_000], b"data": images, b"long": b"\xff" * 300})
    raw = (tmp_path / "file").read_bytes()
    found = pickle.loads(raw, encoding=encoding)
    key = (lambda k: k.encode()) if encoding == "bytes" else (lambda k: k)
    assert found[key("labels")] == [3, 1, 70_000]
    assert found[key("data")].dtype == np.uint8
    np.testing.assert_array_equal(found[key("data")], images)
    assert found[key("long")] == (b"\xff" * 300 if encoding == "bytes" else "\xff" * 300)
    assert raw[:2] == b"\x80\x02"  # protocol 2


@pytest.mark.parametrize(
    "array", [pictures(3, 1), np.asfortranarray(pictures(5, 2)), np.arange(5), np.arange(4, dtype=np.int32)]
)
def test_reader_agrees_with_python(tmp_path: Path, array: np.ndarray) -> None:
    content = {b"data": array, "labels": [1, 2], b"name": b"\xe9t\xe9"}
    (tmp_path / "file").write_bytes(pickle.dumps(content, protocol=2))
    found = read_pickle(tmp_path / "file")
    np.testing.assert_array_equal(found["data"], array)
    assert found["data"].dtype == array.dtype
    assert found["data"].flags.writeable
    assert (found["labels"], found["name"]) == ([1, 2], b"\xe9t\xe9")


class Evil:
    """Its pickle calls a function when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def write_raw(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)


def write_zipped(path: Path, raw: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", raw)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(("write", "read"), [(write_raw, read_pickle), (write_zipped, read_torch)])
def test_a_pickle_runs_nothing(
    tmp_path: Path, protocol: int, write: Callable[[Path, bytes], None], read: Callable[[Path], Any]
) -> None:
    path, victim = tmp_path / "file", tmp_path / "victim"
    raw = pickle.dumps({b"data": Evil(os.mkdir, str(victim))}, protocol=protocol)
    write(path, raw)
    message = (
        f"{path} asks for posix.mkdir; expected only arrays, lists and strings: "
        "refused, because it could run any code; fetch the file from its authors"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(path)
    assert not victim.exists()
    pickle.loads(raw)  # which is what it would have done
    assert victim.exists()


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps({b"data": np.array([{}], dtype=object)}, protocol=2),  # pointers
        pickle.dumps({b"data": np.zeros(2, dtype=[("a", "O")])}, protocol=2),
        pickle.dumps({b"data": np.zeros(2, dtype=">i8")}, protocol=2),  # another byte order
        pickle.dumps({b"data": np.zeros(2)}, protocol=2)[:-9],
        b"\x80\x02c_codecs\nencode\n}U\x08__name__U\x01xsb.",  # tries to change str.encode itself
        b"\x80\x02cnumpy\ndtype\n}U\x08__init__U\x01xsb.",  # or our stand-in
        b"\x80\x02(cnumpy\ndtype\nU\x02u1o}U\x01aU\x01bsb.",
        b"",
        b"not a pickle",
    ],
)
def test_a_damaged_or_strange_pickle_is_an_error(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))}/file (cannot be read|asks for) .*expected "):
        read_pickle(tmp_path / "file")


def test_what_is_no_dict_or_no_zip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(pickle.dumps([1], protocol=2))
    with pytest.raises(ValueError, match=r"file holds a list; expected a dict: fetch the file again$"):
        read_pickle(path)
    with pytest.raises(ValueError, match=r"file cannot be read \(File is not a zip file\); expected a file of torch"):
        read_torch(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(ValueError, match=r"file cannot be read \(no data.pkl in it\); expected a file of torch.save"):
        read_torch(path)


# CIFAR-10


def test_cifar10_content(small10: Path) -> None:
    images = data.load("cifar10", small10)
    assert images.train_x.shape == (20, 3, 32, 32)
    assert images.test_x.shape == (4, 3, 32, 32)
    assert images.train_x.dtype == torch.uint8
    assert images.train_y.dtype == torch.int64
    assert images.train_y.tolist() == [0, 1, 9, 0, 1, 2, 9, 0, 2, 3, 9, 0, 3, 4, 9, 0, 4, 5, 9, 0]
    assert images.test_y.tolist() == [5, 6, 9, 0]
    # By channel, then row, then column.
    assert int(images.train_x[6, 2, 5, 7]) == pictures(4, 1)[2, 2 * 1024 + 5 * 32 + 7]
    assert images.class_names[9] == "class 9"
    assert (images.name, images.num_classes) == ("cifar10", 10)
    assert images.mean == (0.4914, 0.4822, 0.4465)


def test_cifar10_is_found_in_its_folders(small10: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data.load("cifar10", small10).train_x
    for place in (nowhere / "home/.cache/vri", nowhere / "home/.cache/vri/cifar10", nowhere / "env"):
        shutil.copytree(small10, place, dirs_exist_ok=True)
        monkeypatch.setenv("VRI_DATA", str(nowhere / "env"))
        assert torch.equal(data.load("cifar10").train_x, first)
        shutil.rmtree(place)
    assert torch.equal(data.load("cifar10", small10 / CIFAR10.folder).train_x, first)  # the folder itself


def test_cifar10_missing_says_what_to_do(nowhere: Path) -> None:
    root, home = nowhere / "root", nowhere / "home/.cache/vri"
    root.mkdir()
    places = [f"{base}{end}" for base in (root, home) for name in ("", "/cifar10") for end in places_in(name)]
    message = (
        "cifar10 not found; expected data_batch_1, data_batch_2, data_batch_3, data_batch_4, data_batch_5, test_batch, "
        f"batches.meta together in one of {', '.join(places)}: "
        f"run vri data get cifar10 --root {root}, or put the files there"
    )
    with pytest.raises(data.DatasetMissing, match=f"^{re.escape(message)}$"):
        data.load("cifar10", root)


def places_in(name: str) -> list[str]:
    return [f"{name}/cifar-10-batches-py", name]


def test_root_one_too_high_is_told(small10: Path, nowhere: Path) -> None:
    message = f" (they are in {small10 / CIFAR10.folder}: pass this as root)"
    with pytest.raises(data.DatasetMissing, match=f"{re.escape(message)}$"):
        data.load("cifar10", nowhere)


def test_root_that_is_the_archive_is_told(nowhere: Path) -> None:
    archive = nowhere / "cifar-10-python.tar.gz"
    archive.write_bytes(b"")
    message = (
        f"root is {archive}, a file; expected the folder that holds the files of cifar10: "
        f"pass {nowhere}; an archive in it is unpacked by vri data get cifar10 --root {nowhere}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.load("cifar10", archive)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"labels": [0] * 4}, "has labels; expected data and labels: fetch the file again"),
        (
            {b"labels": [0] * 3, b"data": pictures(4, 0)},
            "has uint8 images of shape (4, 3072) and 3 labels; expected uint8 of n x 3072 and n: fetch the file again",
        ),
        ({b"labels": [0] * 5, b"data": pictures(5, 0)}, "has 5 rows; expected 4: fetch the file again"),
        ({b"labels": [0, 1, 2, 10], b"data": pictures(4, 0)}, "has labels outside 0..9: fetch the file again"),
    ],
)
def test_cifar10_refuses_a_damaged_file(small10: Path, content: dict[bytes, Any], message: str) -> None:
    path = small10 / CIFAR10.folder / "data_batch_2"
    write_pickle(path, content)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path} {message}')}$"):
        data.load("cifar10", small10)
    checks = data.check("cifar10", small10)
    assert [c.status for c in checks] == ["ok", "damaged", "ok", "ok", "ok", "ok", "ok"]
    assert checks[1].reason == message


def test_cifar10_check_finds_one_wrong_pixel_and_missing_files(small10: Path) -> None:
    folder = small10 / CIFAR10.folder
    assert all(check.ok for check in data.check("cifar10", small10))
    raw = bytearray((folder / "data_batch_3").read_bytes())
    raw[-100] ^= 1  # in the last image
    (folder / "data_batch_3").write_bytes(raw)
    (folder / "test_batch").unlink()
    checks = data.check("cifar10", small10)
    assert [c.status for c in checks] == ["ok", "ok", "damaged", "ok", "ok", "missing", "ok"]
    assert re.fullmatch(r"images and labels have sha256 \w{64}; expected \w{64}", checks[2].reason)


def test_cifar10_as_installed(real: Path | None) -> None:
    if CIFAR10.find(real) is None:
        pytest.skip("CIFAR-10 is not there: vri data get cifar10")
    images = data.load("cifar10", real)
    assert torch.bincount(images.train_y).tolist() == [5000] * 10
    assert torch.bincount(images.test_y).tolist() == [1000] * 10
    for k in range(3):
        pixels = images.train_x[:, k].float().div_(255)
        assert float(pixels.mean()) == pytest.approx(images.mean[k], abs=5e-5)
        assert float(pixels.std()) == pytest.approx(images.std[k], abs=5e-5)


# human labels


def human10(root: Path, **changes: np.ndarray) -> dict[str, np.ndarray]:
    """Write human labels for the small CIFAR-10."""
    clean = data.load("cifar10", root).train_y.numpy()
    keys = ["aggre_label", "random_label1", "random_label2", "random_label3", "worse_label"]
    content = {"clean_label": clean, **{key: (clean + i) % 10 for i, key in enumerate(keys)}, **changes}
    save_torch(root / "CIFAR-10_human.pt", content)
    return content


def test_cifar10n_content(small10: Path) -> None:
    content = human10(small10)
    images = data.load("cifar10n", small10)
    assert images.name == "cifar10n"
    assert list(images.human_labels) == ["aggre", "random1", "random2", "random3", "worse"]
    assert images.human_labels["worse"].dtype == torch.int64
    for name, key in (("aggre", "aggre_label"), ("random2", "random_label2"), ("worse", "worse_label")):
        assert images.human_labels[name].tolist() == content[key].tolist()
    assert torch.equal(images.train_x, data.load("cifar10", small10).train_x)


def test_cifar10n_refuses_labels_of_other_images(small10: Path) -> None:
    clean = data.load("cifar10", small10).train_y.numpy().copy()
    clean[[3, 5, 8]] = 7
    human10(small10, clean_label=clean)
    message = (
        f"{small10 / 'CIFAR-10_human.pt'}: clean_label differs from the labels of cifar10 in 3 of 20 places; "
        "expected none: fetch both again"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        data.load("cifar10n", small10)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(19) % 10, "worse_label is int64 of shape (19,); expected 20 integers: fetch the file again"),
        (np.arange(20), "worse_label has labels outside 0..9: fetch the file again"),
        (None, "worse_label is missing; expected 20 integers: fetch the file again"),
    ],
)
def test_cifar10n_refuses_damaged_labels(small10: Path, labels: Any, message: str) -> None:
    human10(small10, worse_label=labels)
    with pytest.raises(ValueError, match=f"^{re.escape(str(small10 / 'CIFAR-10_human.pt'))}: {re.escape(message)}$"):
        data.load("cifar10n", small10)


def test_cifar10n_without_its_labels_says_what_to_do(small10: Path) -> None:
    with pytest.raises(
        data.DatasetMissing, match=r"^cifar10n not found; expected CIFAR-10_human\.pt .*: run vri data "
    ):
        data.load("cifar10n", small10)


def test_cifar10n_check(small10: Path) -> None:
    content = human10(small10)
    expected = hashlib.sha256(b"".join(array.astype(np.uint8).tobytes() for array in content.values())).hexdigest()
    known = replace(CATALOGUE["cifar10n"], content=expected)
    assert [c.status for c in known.check(small10)] == ["ok"] * 8
    content["worse_label"][4] += 1
    human10(small10, **content)
    assert known.check(small10)[-1].status == "damaged"
    (small10 / known.file).unlink()
    assert known.check(small10)[-1].status == "missing"


# CIFAR-100


def test_part_of_cifar100(part100: Path) -> None:
    images = data.load("cifar100", part100)
    assert images.train_x.shape == (200, 3, 32, 32)
    assert torch.equal(images.train_x.reshape(200, 3072), torch.from_numpy(pictures(200, 2)))
    assert images.train_y.tolist() == [*range(100), *range(100)]
    assert images.test_y.tolist() == [*range(100)]
    assert images.num_classes == 100
    assert images.open_set is None
    assert [c.status for c in data.check("cifar100", part100)] == ["ok"] * 4


def test_cifar80n_keeps_the_open_set_in_training_only(part100: Path) -> None:
    images = data.load("cifar80n", part100)
    assert images.name == "cifar80n"
    assert images.num_classes == 80
    assert images.train_y.tolist() == [*range(100), *range(100)]
    assert images.open_set is not None
    assert images.open_set.dtype == torch.bool
    assert images.open_set.nonzero().flatten().tolist() == [*range(80, 100), *range(180, 200)]
    assert images.test_y.tolist() == [*range(80)]
    assert torch.equal(images.test_x, data.load("cifar100", part100).test_x[:80])


def test_cifar100n_takes_the_labels_of_the_part(part100: Path) -> None:
    clean = np.zeros(50_000, dtype=np.int64)
    places = np.arange(200) * 7 + 3
    clean[places] = [*range(100), *range(100)]
    noisy = np.random.default_rng(0).integers(0, 100, 50_000)
    save_torch(part100 / "CIFAR-100_human.pt", {"clean_label": clean, "noisy_label": noisy})
    images = data.load("cifar100n", part100)
    assert list(images.human_labels) == ["noisy"]
    assert images.human_labels["noisy"].tolist() == noisy[places].tolist()


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            None,
            "train has 200 rows; expected 50000, or fewer beside a train_index.npy with their places: fetch the file ",
        ),
        (np.arange(199), "train_index.npy is int64 of shape (199,); expected 200 integers, one per image"),
        (np.arange(200.0), "train_index.npy is float64 of shape (200,); expected 200 integers, one per image"),
        (np.zeros(200, dtype=int), "train_index.npy has places outside 0..49999 or twice the same; expected distinct "),
        (np.arange(200) + 49_801, "train_index.npy has places outside 0..49999 or twice the same; expected distinct "),
        (np.array([{}]), "train_index.npy cannot be read (Object arrays cannot be loaded when allow_pickle=False); "),
    ],
)
def test_part_of_cifar100_needs_its_places(part100: Path, places: Any, message: str) -> None:
    path = part100 / CIFAR100.folder / "train_index.npy"
    path.unlink() if places is None else np.save(path, places, allow_pickle=True)
    with pytest.raises(ValueError, match=re.escape(f"{path.parent}/{message}")):
        data.load("cifar100", part100)
    assert not all(check.ok for check in data.check("cifar100", part100))


def test_whole_cifar100_is_checked_by_the_published_md5(part100: Path) -> None:
    (part100 / CIFAR100.folder / "train_index.npy").unlink()
    known = replace(CIFAR100, rows={"train": 200, "test": 100})
    checks = known.check(part100)
    assert [c.status for c in checks] == ["damaged"] * 3
    found = hashlib.md5((part100 / CIFAR100.folder / "test").read_bytes()).hexdigest()
    assert checks[1].reason == f"md5 {found}; expected f0ef6b0ae62326f3e7ffdfab6717acfc"


def test_real_cifar100(real: Path | None) -> None:
    """The whole set, or the part of it beside the project."""
    if CIFAR100N.find(real) is None:
        pytest.skip("CIFAR-100N is not there: vri data get cifar100n")
    images = data.load("cifar100n", real)
    for labels in (images.train_y, images.test_y):
        assert len(torch.bincount(labels, minlength=100).unique()) == 1
    assert images.class_names[:3] == ("apple", "aquarium_fish", "baby")
    wrong = (images.human_labels["noisy"] != images.train_y).double().mean()
    assert float(wrong) == pytest.approx(0.402, abs=0.01)  # 40.2 % of all 50,000
    means = images.train_x[:2000].double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor(images.mean).double(), atol=0.01, rtol=0)


def test_real_human_labels(real: Path | None) -> None:
    if CIFAR10N.find(real) is None:
        pytest.skip("CIFAR-10N is not there: vri data get cifar10n")
    assert all(check.ok for check in CIFAR10N.check(real))
    images = data.load("cifar10n", real)  # compares the clean labels with those of the images
    rates = {name: float((labels != images.train_y).double().mean()) for name, labels in images.human_labels.items()}
    # The rates its authors publish.
    published = {"aggre": 0.0903, "random1": 0.1723, "random2": 0.1812, "random3": 0.1764, "worse": 0.4021}
    assert rates == pytest.approx(published, abs=5e-4)
