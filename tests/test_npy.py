"""Embeddings in .npy files: reading some rows of them, judging them in memory, and what is refused."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npy_files import call, digits
from vri.cleaning import npy
from vri.cleaning.npy import NpyFile
from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import open_source
from vri.cli import main


@pytest.mark.parametrize("kind", ["<f2", ">f4", "<f8", "<i8", "|u1"])
def test_rows_are_those_of_numpy(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).normal(100, 10, (100, 3)).astype(kind)
    np.save(tmp_path / "x.npy", array)
    monkeypatch.setattr(npy, "_WINDOW", 10 * array[0].nbytes)
    monkeypatch.setattr(npy, "_CHUNK", 33 * array[0].nbytes)
    file = NpyFile.open(tmp_path / "x.npy")
    np.testing.assert_array_equal(file.read(10, 20), array[10:20])
    rows = np.array([0, 1, 9, 10, 55, 99])
    np.testing.assert_array_equal(file.take(rows), array[rows])
    assert file.take(rows).dtype.isnative
    assert len(file.take(rows[:0])) == 0
    pieces = list(npy.chunks(file))
    assert [start for start, _ in pieces] == [0, 33, 66, 99]
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), array)


def test_texts_are_those_of_numpy(tmp_path: Path) -> None:
    array = np.array(["a", "bcd", "ü"])
    np.save(tmp_path / "x.npy", array)
    assert NpyFile.open(tmp_path / "x.npy").take(np.array([1, 2])).tolist() == ["bcd", "ü"]


def test_a_small_file_is_the_same_source_as_an_npz(tmp_path: Path) -> None:
    given, true = digits(tmp_path, np.float32)
    trusted, ids = given == true, np.array([f"k{n}" for n in range(len(given))])
    names = {"y": given, "ids": ids, "trusted": trusted}
    for name, array in names.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", X=np.load(tmp_path / "X.npy"), **names)
    options = SourceOptions(
        label=str(tmp_path / "y.npy"), id=str(tmp_path / "ids.npy"), trusted=str(tmp_path / "trusted.npy")
    )
    one, two = open_source(tmp_path / "X.npy", options), open_source(tmp_path / "all.npz", SourceOptions())
    assert (one.ids, one.labels) == (two.ids, two.labels)
    assert one.describe(7) == two.describe(7)
    np.testing.assert_array_equal(one.trusted, two.trusted)
    np.testing.assert_array_equal(*(source.make_inputs(tmp_path, None) for source in (one, two)))
    assert main(call(tmp_path, "--epochs", "2")) == 0
    assert (tmp_path / "out" / "label_issues.csv").exists()


def test_a_number_too_large_is_found_in_the_sample(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path, np.float64)
    X = np.load(tmp_path / "X.npy")
    X[5] = 1e300
    np.save(tmp_path / "X.npy", X)
    assert main(call(tmp_path)) == 2
    assert "too large for single precision in row 5 (from 0)" in capsys.readouterr().err


def save(path: Path, array: Any) -> Path:
    np.save(path, array, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("y", np.arange(6) % 2, "{y} has 6 entries and the embeddings 4 rows; expected one per row"),
        (
            "y",
            np.array([0j, 1, 0, 1]),
            "{y} has shape (4,) and type complex128; expected one class per sample, as numbers or text, shape (n,)",
        ),
        (
            "y",
            np.array(["a", None, "b", "a"], object),
            "{y} can't be read (Array can't be memory-mapped: Python objects in dtype); expected a whole .npy file of "
            "numbers or text: write it again with numpy.save",
        ),
        (
            "y",
            np.array(["a", "b", " ", "b"]),
            "{y} has no label in row 2 (from 0); expected one in each: fill it in, remove the row, or have it "
            "predicted with --unlabelled",
        ),
        (
            "y",
            np.array([0.0, 1, 0, np.nan]),
            "{y} has no label in row 3 (from 0); expected one in each: fill it in, remove the row, or have it "
            "predicted with --unlabelled",
        ),
        ("y", np.ones(4, int), "all 4 samples of {y} have the label '1'; expected at least two classes"),
        (
            "X",
            np.ones(4),
            "{X} has shape (4,) and type float64; expected numbers of shape (n, d), one row per sample: reshape it",
        ),
        (
            "X",
            np.array([["a"]] * 4),
            "{X} has shape (4, 1) and type <U1; expected numbers of shape (n, d), one row per sample: reshape it",
        ),
        ("X", np.ones((0, 3)), "{X} has no rows; expected at least two, with labels that differ"),
        (
            "X",
            np.asfortranarray(np.ones((4, 3))),
            "{X} is written column by column; expected row by row: save numpy.ascontiguousarray(array)",
        ),
        (
            "ok",
            np.array([0, 1, 0, 1]),
            "{ok} has shape (4,) and type int64; expected true or false for each sample, type bool, shape (n,)",
        ),
        ("ok", np.zeros(4, bool), "--trusted marks no sample; expected at least one: mark some, or leave it out"),
        (
            "ids",
            np.array([0.5, 1, 2, 3]),
            "{ids} has shape (4,) and type float64; expected one id per sample, as whole numbers or text, shape (n,)",
        ),
    ],
)
def test_files_that_are_refused(tmp_path: Path, capsys: Any, name: str, array: Any, message: str) -> None:
    arrays = {"X": np.ones((4, 2)), "y": np.array([0, 1, 0, 1])} | {name: array}
    files = {key: save(tmp_path / f"{key}.npy", value) for key, value in arrays.items()}
    options = {"ids": "--ids", "ok": "--trusted"}
    extra = [word for key in files if key in options for word in (options[key], str(files[key]))]
    assert main(call(tmp_path, *extra)) == 2
    assert capsys.readouterr().err == f"vri clean: {message.format(**files)}\n"
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_refused(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path)
    X = tmp_path / "X.npy"
    whole = X.read_bytes()

    def refused() -> str:
        assert main(call(tmp_path)) == 2
        assert not (tmp_path / "out").exists()
        return str(capsys.readouterr().err)

    for content in (whole[:-1], b"\x93NUMPY", b"no array", b""):
        X.write_bytes(content)
        assert re.fullmatch(
            rf"vri clean: {re.escape(str(X))} can't be read \(.*\); expected a whole \.npy file of numbers or text: "
            "write it again with numpy.save\n",
            refused(),
        )
    X.write_bytes(whole)
    y = tmp_path / "y.npy"
    y.unlink()
    assert refused() == f"vri clean: {y} is not there; expected an .npy file: check the name\n"


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    file = NpyFile.open(save(tmp_path / "x.npy", np.ones((10, 2))))
    os.truncate(tmp_path / "x.npy", 200)
    with pytest.raises(ValueError, match=r"x\.npy got shorter while it was read; write it again$"):
        file.read(5, 10)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--text", "a", "--features", "b"], "--features can't be used with an .npy file; leave it out"),
        (["--sample", "1"], "--sample is 1; expected 2 or more rows to learn from"),
        (["--confidence", "2"], "--confidence is 2; expected 0 to 1"),
        (
            ["--labels", "labels.csv"],
            "--label is 'labels.csv'; expected an .npy file with one entry per row: save it as one",
        ),
    ],
)
def test_options_that_are_refused(tmp_path: Path, capsys: Any, more: list[str], message: str) -> None:
    digits(tmp_path)
    assert main(call(tmp_path, *more)) == 2
    assert capsys.readouterr().err == f"vri clean: {message}\n"
    assert sorted(os.listdir(tmp_path)) == ["X.npy", "y.npy"]


def test_labels_must_be_named_and_a_sample_is_for_npy_files(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path)
    X = tmp_path / "X.npy"
    assert main(["clean", str(X), "--out", str(tmp_path / "out"), "--quiet"]) == 2
    assert capsys.readouterr().err == (
        f"vri clean: --label is missing; {X} has the embeddings only: name the .npy file of their labels\n"
    )
    (tmp_path / "t.csv").write_text("x,y\n1,a\n")
    assert main(["clean", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out"), "--sample", "5"]) == 2
    assert capsys.readouterr().err == "vri clean: --sample can only be used with an .npy file; leave it out\n"


def test_too_many_labels(tmp_path: Path, capsys: Any) -> None:
    save(tmp_path / "X.npy", np.ones((6000, 1), np.float16))
    save(tmp_path / "y.npy", np.arange(6000) // 2)
    assert main(call(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"vri clean: {tmp_path / 'y.npy'} has more than 2,000 different labels; expected fewer classes: "
        "is it the file of the labels?\n"
    )
