"""Files of noise and splits: what comes back, what is refused; and `vri noise`, which writes them."""

import csv
import dataclasses
import hashlib
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vri import data, noise
from vri.cli import main
from vri.data import split
from vri.data.splits import load_split, save_split, split_hash
from vri.noise import NOISES, Noise

Y = torch.arange(60) % 3


def refused(message: str) -> Any:
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


def example() -> Noise:
    return noise.pair(None, Y, num_classes=3, rate=0.4, seed=2)


def rewrite(path: Path, **changes: Any) -> None:
    """Change arrays of a file, None removes one; the file itself stays sound."""
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays |= changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


@pytest.mark.parametrize("name", [*NOISES, "human"])
def test_a_file_gives_back_the_noise(name: str, tmp_path: Path) -> None:
    x = torch.randint(0, 256, (60, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = Y + 1 if name.startswith("open") else Y
    if name == "human":
        saved = noise.human(None, y, num_classes=3, labels=y.flip(0))
    else:
        saved = NOISES[name](x, y, num_classes=3, rate=0.4, seed=2)
    path = tmp_path / "new folder" / "noise.npz"
    saved.save(path)
    for found in (noise.load(path), noise.load(str(path), y), noise.load(path, y.numpy())):
        for field in dataclasses.fields(Noise):
            value, expected = getattr(found, field.name), getattr(saved, field.name)
            assert type(value) is type(expected)
            if isinstance(expected, Tensor):
                assert value.dtype == expected.dtype
                assert torch.equal(value, expected)
            else:
                assert value == expected
    assert [file.name for file in path.parent.iterdir()] == ["noise.npz"]  # no temporary file is left


def test_the_hash_is_sha256_of_64_bit_little_endian_labels() -> None:
    labels = example().labels.tolist()
    assert example().hash == hashlib.sha256(struct.pack("<60q", *labels)).hexdigest()
    assert example().hash != noise.pair(None, Y, num_classes=3, rate=0.4, seed=3).hash


def test_the_file_holds_what_is_promised(tmp_path: Path) -> None:
    path, saved = tmp_path / "noise.npz", example()
    saved.save(path)
    with np.load(path, allow_pickle=False) as archive:
        assert {"labels", "mask", "matrix", "rate", "hash", "name", "seed", "num_classes"} <= set(archive.files)
        assert archive["labels"].tolist() == saved.labels.tolist()
        assert archive["mask"].tolist() == saved.changed.tolist()
        assert float(archive["rate"]) == saved.rate
        assert str(archive["hash"]) == saved.hash


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "noise.npz"
    example().save(path)
    before = path.read_bytes()

    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space left"):
        example().save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


class Planted:
    """An object whose unpickling would leave a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('code from the file ran')",))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


def pickled(path: Path) -> None:
    rewrite(path, labels=np.array([Planted()], dtype=object))


def text(path: Path) -> None:
    path.write_text("label\n0\n1\n")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lone_array(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize("spoil", [truncated, damaged, pickled, text, empty, lone_array])
def test_damaged_and_foreign_files(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "noise.npz"
    example().save(path)
    spoil(path)
    with refused(
        f"{path} cannot be read as arrays without code; expected a whole file of the format 'vri noise 1': "
        "it is damaged or of another program, write it again"
    ):
        noise.load(path)


def test_no_file(tmp_path: Path) -> None:
    path = tmp_path / "nose.npz"
    message = f"there is no file {path}; expected one of the format 'vri noise 1': check its name"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        noise.load(path)


FIX = "write it again with `vri noise`"
LABELS = example().labels.numpy()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"labels": (LABELS + 1) % 3},
            f"{{}} holds labels whose hash is not the one beside them; expected them unchanged: {FIX}",
        ),
        (
            {"hash": np.str_("0" * 64)},
            f"{{}} holds labels whose hash is not the one beside them; expected them unchanged: {FIX}",
        ),
        (
            {"mask": np.zeros(60, bool)},
            f"{{}} holds a mask that is not of its rate {example().rate}; expected it unchanged: {FIX}",
        ),
        (
            {"mask": np.zeros(59, bool)},
            "{} holds labels of shape (60,), a mask of shape (59,) and a matrix of shape (3, 3); "
            f"expected n, n and 3 x 3: {FIX}",
        ),
        (
            {"matrix": np.eye(4)},
            "{} holds labels of shape (60,), a mask of shape (60,) and a matrix of shape (4, 4); "
            f"expected n, n and 3 x 3: {FIX}",
        ),
        (
            {"num_classes": np.int64(2), "matrix": np.eye(2)},
            "labels run from 0 to 2; expected 0 to 1 for num_classes=2: recode them or change num_classes",
        ),
        ({"mask": LABELS}, "{} holds no proper mask; expected a file as it was written: write it again"),
        (
            {"mask": None, "labels": LABELS[None]},
            "{} holds no proper labels, mask; expected a file as it was written: write it again",
        ),
        ({"extra": LABELS}, "{} holds no proper extra; expected a file as it was written: write it again"),
        (
            {"format": np.str_("vri noise 2")},
            "{} is of the format 'vri noise 2'; expected 'vri noise 1': it is for something else, or of another "
            "version, write it again",
        ),
        (
            {"format": None},
            "{} is of the format 'None'; expected 'vri noise 1': it is for something else, or of another "
            "version, write it again",
        ),
    ],
)
def test_files_that_were_tampered_with(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "noise.npz"
    example().save(path)
    rewrite(path, **changes)
    with refused(message.format(path)):
        noise.load(path)


def test_noise_of_other_labels(tmp_path: Path) -> None:
    path = tmp_path / "noise.npz"
    example().save(path)
    with refused(
        f"{path} holds 60 labels for a data set with 59; expected as many: use the data set and limit it was made for"
    ):
        noise.load(path, Y[1:])
    other = Y.clone()
    other[:7] = (other[:7] + 1) % 3
    changed, labels = example().changed[:7], example().labels[:7]
    wrong = int((changed != (labels != other[:7])).sum())
    assert wrong > 0
    with refused(
        f"{path} belongs to other labels: {wrong} of 60 disagree about what was changed; "
        "use the data set and limit it was made for"
    ):
        noise.load(path, other)


# splits


def test_a_file_gives_back_the_split(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    parts = split(Y, sizes={"clean": 6, "train": -1, "none": 0}, num_classes=3, seed=1)
    save_split(path, parts)
    found = load_split(path)
    assert list(found) == list(parts)
    for name, index in parts.items():
        assert found[name].dtype == torch.int64
        assert torch.equal(found[name], index)
    assert split_hash(found) == split_hash(parts) == split_hash(dict(reversed(parts.items())))
    assert split_hash({**parts, "clean": parts["clean"] + 1}) != split_hash(parts)
    # a sample more here and one less there is another split
    assert split_hash({"a": torch.tensor([1, 2]), "b": torch.tensor([3])}) != split_hash(
        {"a": torch.tensor([1]), "b": torch.tensor([2, 3])}
    )


def test_splits_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    with refused("the split has sample 3 in a and in b; expected disjoint parts: split again"):
        save_split(path, {"a": torch.tensor([1, 3]), "b": torch.tensor([3, 4])})
    with refused("the split has a part a with a sample twice or below 0; expected each once: split again"):
        save_split(path, {"a": torch.tensor([1, 1])})
    assert not path.exists()
    save_split(path, {"a": torch.tensor([1, 2]), "b": torch.tensor([3, 4])})
    rewrite(path, **{"part b": np.array([3, 5])})
    with refused(f"{path} holds parts whose hash is not the one beside them; expected them unchanged: write it again"):
        load_split(path)
    shared = {"a": torch.tensor([1, 2]), "b": torch.tensor([2, 4])}
    rewrite(path, **{"part b": np.array([2, 4]), "hash": np.str_(split_hash(shared))})
    with refused(f"{path} has sample 2 in a and in b; expected disjoint parts: split again"):
        load_split(path)
    rewrite(path, **{"part b": np.array([2.0, 4.0])})
    with refused(f"{path} holds no proper part b; expected a file as it was written: write it again"):
        load_split(path)
    example().save(path)
    with refused(
        f"{path} is of the format 'vri noise 1'; expected 'vri split 1': it is for something else, or of another "
        "version, write it again"
    ):
        load_split(path)


# the command


def test_the_command_writes_labels_picture_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "digits.npz"
    assert main(["noise", "digits", "--type", "pair", "--rate", "0.4", "--seed", "3", "--out", str(out)]) == 0
    images = data.load("digits")
    expected = noise.pair(None, images.train_y, num_classes=10, rate=0.4, seed=3)
    found = noise.load(out, images.train_y)
    assert torch.equal(found.labels, expected.labels)
    assert sorted(file.name for file in out.parent.iterdir()) == ["digits.csv", "digits.npz", "digits.png"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    header, *rows = csv.reader(out.with_suffix(".csv").read_text().splitlines())
    assert header == ["true class", *"0123456789"]
    assert [row[0] for row in rows] == list("0123456789")
    np.testing.assert_allclose(np.array([row[1:] for row in rows], float), expected.matrix.numpy(), atol=1e-6)

    # the most confused pair, counted by hand
    counts = {i: int(((images.train_y == i) & (expected.labels == (i + 1) % 10)).sum()) for i in range(10)}
    worst = max(counts, key=lambda i: counts[i])
    size = int((images.train_y == worst).sum())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{expected.rate:.2%} of 1437 labels are wrong"
    assert lines[1] == f"hash of the labels: {expected.hash}"
    assert lines[2] == "most confused:"
    assert lines[3] == (f"  {worst} -> {(worst + 1) % 10}: {counts[worst]} ({counts[worst] / size:.1%} of {worst})")
    assert len(lines) == 9
    assert lines[-1] == f"wrote {out}, digits.png and digits.csv"


def test_the_command_with_a_limit(tmp_path: Path) -> None:
    out = tmp_path / "noise.npz"
    assert main(["noise", "digits", "--type", "instance", "--rate", "0.3", "--limit", "100", "--out", str(out)]) == 0
    images = data.load("digits")
    expected = noise.instance(images.train_x[:100], images.train_y[:100], num_classes=10, rate=0.3)
    assert noise.load(out, images.train_y[:100]).hash == expected.hash


def small(**changes: Any) -> data.ImageData:
    """Three classes with a round of human labels."""
    labels = torch.arange(30) % 3
    human = {"aggre": labels.flip(0)}
    pictures = torch.zeros(30, 1, 2, 2, dtype=torch.uint8)
    images = data.ImageData("small", pictures, labels, pictures, labels, ("cat", "dog", "fox"), human_labels=human)
    return dataclasses.replace(images, **changes)


def test_the_command_with_human_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "load", lambda name, root: small())
    out = tmp_path / "noise.npz"
    assert main(["noise", "small", "--type", "aggre", "--out", str(out)]) == 0
    found = noise.load(out, small().train_y)
    assert found.name == "aggre"
    assert found.matrix.tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert capsys.readouterr().out.splitlines()[3:5] == [
        "  cat -> fox: 10 (100.0% of cat)",
        "  fox -> cat: 10 (100.0% of fox)",
    ]


def test_the_command_on_an_open_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = small(class_names=("cat", "dog"), human_labels={}, open_set=small().train_y == 2)
    monkeypatch.setattr(data, "load", lambda name, root: images)
    out = tmp_path / "noise.npz"
    assert main(["noise", "small", "--type", "open-pair", "--rate", "0", "--out", str(out)]) == 0
    assert noise.load(out, images.train_y).rate == pytest.approx(1 / 3)
    assert "10 of them are on images of no class" in capsys.readouterr().out
    assert main(["noise", "small", "--type", "flip", "--rate", "0.2", "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        "vri noise: --type is flip, but some images of small belong to none of its classes: "
        "use open-uniform or open-pair\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--type", "flip", "--rate", "1.5"],
            "--rate is 1.5; expected 0 to 1: pass a share, such as 0.4 for 40 %",
        ),
        (
            ["--type", "flip", "--rate", "-0.1"],
            "--rate is -0.1; expected 0 to 1: pass a share, such as 0.4 for 40 %",
        ),
        (
            ["--type", "flip", "--rate", "nan"],
            "--rate is nan; expected 0 to 1: pass a share, such as 0.4 for 40 %",
        ),
        (["--type", "flip"], "--rate is missing; flip noise expected a share, 0 to 1: pass --rate 0.4 for 40 %"),
        (
            ["--type", "flop", "--rate", "0.4"],
            "--type is 'flop'; expected one of uniform, flip, pair, instance, open-uniform, open-pair: "
            "did you mean 'flip'?",
        ),
        (
            ["--type", "worse"],
            "--type is worse, a round of human labels that digits does not have; expected a data set that has it: "
            "use cifar10n",
        ),
        (
            ["--type", "noisy"],
            "--type is noisy, a round of human labels that digits does not have; expected a data set that has it: "
            "use cifar100n",
        ),
        (
            ["--type", "open-pair", "--rate", "0.4"],
            "--type is open-pair, but all images of digits belong to its classes: use another type",
        ),
        (
            ["--type", "flip", "--rate", "0.4", "--limit", "0"],
            "--limit is 0; expected 1 or more samples: raise it or leave it out",
        ),
        (
            ["--type", "flip", "--rate", "0.4", "--out", "noise.txt"],
            "--out is noise.txt; expected a name that ends in .npz: rename it",
        ),
    ],
)
def test_mistakes(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["noise", "digits", *arguments]) == 2
    assert capsys.readouterr().err == f"vri noise: {message}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "value"), [("rate", "0.4"), ("seed", "1")])
def test_human_labels_are_not_drawn(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "load", lambda name, root: small())
    assert main(["noise", "small", "--type", "aggre", f"--{option}", value]) == 2
    assert capsys.readouterr().err == (
        f"vri noise: --{option} was given with human labels, which are as they are: leave it out\n"
    )
