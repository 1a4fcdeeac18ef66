"""`vri apply`: the corrected copy is exactly what was decided, and nothing else changes."""

import csv
import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vri.cleaning import apply as module
from vri.cleaning.apply import Applied, apply
from vri.cleaning.options import SourceOptions
from vri.cli import main

HEADER = ("id", "given_label", "suggested_label", "decision", "new_label")


def said(kind: type[Exception], message: str) -> Any:
    return pytest.raises(kind, match=rf"^{re.escape(message)}$")


def review(folder: Path, *rows: Sequence[str]) -> Path:
    path = folder / "review.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def counts(done: Applied) -> tuple[int, int, int, int]:
    return done.kept, done.changed, done.dropped, done.untouched


def read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


# tables


TABLE = (
    b"\xef\xbb\xbfid,note,label\r\n"
    b'7,"one, ""quoted""",cat\r\n'
    b'8,  spaced ,"dog"\r\n'
    b"\r\n"
    b'9,"two\r\nlines",cat\r\n'
    b"10,=1+1,dog\r\n"
    b"11,last,cat"
)


def test_csv_changes_in_the_decided_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(TABLE)
    decisions = review(
        tmp_path,
        ["7", "cat", "dog", "accept", "dog"],
        ["8", "dog", "cat", "keep", "dog"],
        ["10", "dog", "cat", "drop", ""],
        ["11", "cat", "dog", "other", "a, fox"],
    )
    done = apply(path, decisions, tmp_path / "out", SourceOptions(label="label", id="id"))
    assert counts(done) == (1, 2, 1, 1)
    expected = (
        TABLE.replace(b'"one, ""quoted""",cat', b'"one, ""quoted""",dog')
        .replace(b"10,=1+1,dog\r\n", b"")
        .replace(b"11,last,cat", b'11,last,"a, fox"')
    )
    assert (tmp_path / "out" / "t.csv").read_bytes() == expected
    assert path.read_bytes() == TABLE
    assert sorted(os.listdir(tmp_path)) == ["out", "review.csv", "t.csv"]


def test_labels_keep_the_form_they_have_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("x\ty\n1\t1.0\n2\t2.0\n3\t1.0\n", encoding="utf-16")
    decisions = review(tmp_path, ["0", "1", "2", "accept", "2"], ["2", "1", "2", "other", "3"])
    apply(tmp_path / "t.tsv", decisions, tmp_path / "out", SourceOptions(label="y", encoding="utf-16"))
    assert (tmp_path / "out" / "t.tsv").read_text(encoding="utf-16") == "x\ty\n1\t2.0\n2\t2.0\n3\t3\n"


def test_formula_labels_and_ids_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("k,y\n=a,-1\n'=b,+1\n@c,-1\n", encoding="utf-8")
    decisions = review(tmp_path, ["'=a", "'-1", "'+1", "accept", "'+1"], ["''=b", "'+1", "'-1", "accept", "'-1"])
    apply(tmp_path / "t.csv", decisions, tmp_path / "out", SourceOptions(label="y", id="k"))
    assert (tmp_path / "out" / "t.csv").read_text(encoding="utf-8") == "k,y\n=a,+1\n'=b,-1\n@c,-1\n"


@pytest.mark.parametrize(
    ("values", "kind", "new", "expected"),
    [
        (["a", "b", "a"], pa.string(), "c", "c"),
        ([1, 2, 1], pa.int8(), "3", 3),
        ([1.0, 2.0, 1.0], pa.float32(), "3", 3.0),
        ([True, False, True], pa.bool_(), "False", False),
        (["a", "b", "a"], pa.dictionary(pa.int32(), pa.string()), "c", "c"),
    ],
)
def test_parquet_keeps_its_types(tmp_path: Path, values: list[Any], kind: Any, new: str, expected: Any) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table(
        {"when": pa.array([1, 2, 3], pa.timestamp("ms")), "y": pa.array(values, kind), "v": [[1.0], [], None]},
        metadata={"made": "by hand"},
    )
    pq.write_table(table, path, compression="gzip")
    table = pq.read_table(path)
    first = str(values[0]).removesuffix(".0")
    decisions = review(tmp_path, ["0", first, "x", "drop", ""], ["2", first, "x", "other", new])
    done = apply(path, decisions, tmp_path / "out", SourceOptions(label="y"))
    assert counts(done) == (0, 1, 1, 1)
    found = pq.read_table(tmp_path / "out" / "t.parquet")
    assert found.schema.equals(table.schema, check_metadata=True)
    assert found.column("y").to_pylist() == [values[1], expected]
    assert found.drop(["y"]).equals(table.drop(["y"]).slice(1))
    assert pq.ParquetFile(tmp_path / "out" / "t.parquet").metadata.row_group(0).column(0).compression == "GZIP"


def test_a_parquet_column_that_cannot_hold_a_label(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"y": pa.array([1, 2], pa.int8())}), path)
    for new in ("300", "cat"):
        message = f"{path}: column 'y' is of type int8, which can't hold the new label {new!r}; choose another label"
        with said(ValueError, message):
            apply(path, review(tmp_path, ["0", "1", "2", "other", new]), tmp_path / "out", SourceOptions(label="y"))
    assert not (tmp_path / "out").exists()


def test_a_frame_of_pandas_reads_back(tmp_path: Path) -> None:
    kinds = pd.Categorical(["a", "b", "a"], categories=["c", "b", "a"], ordered=True)
    pd.DataFrame({"x": [1, 2, 3], "y": kinds}).to_parquet(tmp_path / "t.parquet")
    decisions = review(tmp_path, ["1", "b", "a", "drop", ""], ["2", "a", "b", "accept", "b"])
    apply(tmp_path / "t.parquet", decisions, tmp_path / "out", SourceOptions(label="y"))
    found = pd.read_parquet(tmp_path / "out" / "t.parquet")
    assert found["x"].tolist() == [1, 3]
    assert found["y"].tolist() == ["a", "b"]
    assert found["y"].dtype == kinds.dtype


# embeddings


def test_npz_changes_labels_and_drops_rows_of_all_arrays(tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    names = np.array(["p", "q", "r", "s"])
    y = np.array([3, 4, 3, 4], dtype=np.uint8)
    np.savez_compressed(tmp_path / "e.npz", X=x, y=y, ids=names, about=np.array("of nothing"), mean=np.ones(2))
    decisions = review(
        tmp_path, ["q", "4", "3", "drop", ""], ["s", "4", "3", "accept", "3"], ["p", "3", "4", "other", "9"]
    )
    done = apply(tmp_path / "e.npz", decisions, tmp_path / "out", SourceOptions())
    assert counts(done) == (0, 2, 1, 1)
    with np.load(tmp_path / "out" / "e.npz", allow_pickle=False) as found:
        assert sorted(found.files) == ["X", "about", "ids", "mean", "y"]
        np.testing.assert_array_equal(found["X"], x[[0, 2, 3]])
        assert found["y"].dtype == np.uint8
        assert found["y"].tolist() == [9, 3, 3]
        assert found["ids"].tolist() == ["p", "r", "s"]
        assert found["about"] == "of nothing"
        assert found["mean"].tolist() == [1, 1]
    with zipfile.ZipFile(tmp_path / "out" / "e.npz") as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_DEFLATED}


def test_npz_with_labels_of_text_takes_longer_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", vectors=np.ones((2, 1)), y=np.array(["a", "b"]))
    apply(tmp_path / "e.npz", review(tmp_path, ["0", "a", "b", "other", "longer"]), tmp_path / "out", SourceOptions())
    assert np.load(tmp_path / "out" / "e.npz")["y"].tolist() == ["longer", "b"]


def test_npy_files_are_written_under_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ROWS", 2)  # copied in several steps
    x, names = np.arange(10, dtype=np.float16).reshape(5, 2), np.array(list("pqrst"))
    for name, array in (("X", x), ("y", np.array([3, 4, 3, 4, 3], np.uint8)), ("names", names)):
        np.save(tmp_path / f"{name}.npy", array)
    decisions = review(tmp_path, ["q", "4", "3", "drop", ""], ["s", "4", "3", "other", "9"])
    options = SourceOptions(label=str(tmp_path / "y.npy"), id=str(tmp_path / "names.npy"))
    done = apply(tmp_path / "X.npy", decisions, tmp_path / "out", options)
    assert counts(done) == (0, 1, 1, 3)
    assert done.written == f"{tmp_path / 'out'} (X.npy, names.npy, y.npy)"
    kept = [0, 2, 3, 4]
    for name, expected in (("X", x[kept]), ("y", np.array([3, 3, 9, 3], np.uint8)), ("names", names[kept])):
        found = np.load(tmp_path / "out" / f"{name}.npy")
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize(("new", "dtype"), [("cat", np.int64), ("300", np.uint8), ("maybe", np.bool_)])
def test_labels_that_the_type_cannot_hold(tmp_path: Path, new: str, dtype: Any) -> None:
    path = tmp_path / "e.npz"
    np.savez(path, X=np.ones((2, 1)), y=np.array([0, 1]).astype(dtype))
    given = "False" if dtype is np.bool_ else "0"
    message = (
        f"{path}: array 'y' is of type {np.dtype(dtype)}, which can't hold the new label {new!r}; choose another label"
    )
    with said(ValueError, message):
        apply(path, review(tmp_path, ["0", given, "1", "other", new]), tmp_path / "out", SourceOptions())
    assert not (tmp_path / "out").exists()


# folders


def photos(folder: Path) -> Path:
    root = folder / "photos"
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/3.jpg", "dog/notes.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(f"pixels of {name}".encode())  # never decoded
    return root


REVIEW = (
    ["cat/1.jpg", "cat", "dog", "accept", "dog"],
    ["cat/2.jpg", "cat", "dog", "keep", "cat"],
    ["dog/3.jpg", "dog", "cat", "other", "fox"],
)


@pytest.mark.parametrize("way", ["auto", "hard", "symbolic", "copy"])
def test_images_go_to_their_new_classes(tmp_path: Path, way: str) -> None:
    root, out = photos(tmp_path), tmp_path / "new" / "out"
    done = apply(root, review(tmp_path, *REVIEW), out, SourceOptions(), way)
    assert counts(done) == (1, 2, 0, 1)
    expected = {  # dog/1.jpg is taken
        "dog/1-from-cat.jpg": "cat/1.jpg",
        "cat/2.jpg": "cat/2.jpg",
        "dog/1.jpg": "dog/1.jpg",
        "fox/3.jpg": "dog/3.jpg",
    }
    files = {str(p.relative_to(out)) for p in out.rglob("*") if not p.is_dir()}
    assert files == {*expected, "labels.csv"}
    for new, old in expected.items():
        assert (out / new).read_bytes() == (root / old).read_bytes()
        assert (out / new).is_symlink() == (way == "symbolic")
        assert (out / new).samefile(root / old) == (way != "copy")
    assert read_rows(out / "labels.csv") == [
        ["path", "label", "original", "given_label"],
        ["dog/1-from-cat.jpg", "dog", "cat/1.jpg", "cat"],
        ["cat/2.jpg", "cat", "cat/2.jpg", "cat"],
        ["dog/1.jpg", "dog", "dog/1.jpg", "dog"],
        ["fox/3.jpg", "fox", "dog/3.jpg", "dog"],
    ]
    how = {"auto": "hard links", "hard": "hard links", "symbolic": "symbolic links", "copy": "copies"}[way]
    assert done.written == f"{out} (4 {how}) and its labels.csv"


def test_where_links_are_not_possible_images_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    root = photos(tmp_path)
    done = apply(root, review(tmp_path, *REVIEW), tmp_path / "out", SourceOptions())
    assert "(4 copies)" in done.written
    with pytest.raises(OSError, match="cross-device"):  # asked for, not possible
        apply(root, review(tmp_path, *REVIEW), tmp_path / "other", SourceOptions(), "hard")
    assert sorted(os.listdir(tmp_path)) == ["out", "photos", "review.csv"]


def test_names_that_differ_in_case_and_two_that_clash(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("a/X.jpg", "b/x.jpg", "c/x.jpg", "d/y.jpg"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(name.encode())
    rows = [[f"{c}/{n}", c, "d", "accept", "d"] for c, n in (("a", "X.jpg"), ("b", "x.jpg"), ("c", "x.jpg"))]
    apply(root, review(tmp_path, *rows), tmp_path / "out", SourceOptions())
    found = {p.name: p.read_bytes() for p in (tmp_path / "out" / "d").iterdir()}
    assert found == {
        "X.jpg": b"a/X.jpg",
        "x-from-b.jpg": b"b/x.jpg",
        "x-from-c.jpg": b"c/x.jpg",
        "y.jpg": b"d/y.jpg",
    }


def test_links_in_the_source_are_followed(tmp_path: Path) -> None:
    root = photos(tmp_path)
    (root / "cat" / "9.jpg").symlink_to("2.jpg")
    apply(root, review(tmp_path, ["cat/9.jpg", "cat", "dog", "accept", "dog"]), tmp_path / "out", SourceOptions())
    assert (tmp_path / "out" / "dog" / "9.jpg").read_bytes() == b"pixels of cat/2.jpg"


@pytest.mark.parametrize(
    "name", ["../up", "a/b", ".hidden", "..", "ends.", "tab\there", "a:b", "labels.csv", "x" * 201]
)
def test_new_classes_must_be_names_of_folders(tmp_path: Path, name: str) -> None:
    root, path = photos(tmp_path), review(tmp_path, ["cat/1.jpg", "cat", "dog", "other", name])
    message = (
        f"the new label {name!r} can't be the name of a folder; expected letters without "
        'control characters and / \\ < > : " | ? *, no dot in front, and no dot or space at the end'
    )
    with said(ValueError, message):
        apply(root, path, tmp_path / "out", SourceOptions())
    assert sorted(os.listdir(tmp_path)) == ["photos", "review.csv"]


# mistakes


def test_reviews_of_other_data_are_refused(tmp_path: Path) -> None:
    root = photos(tmp_path)
    path = review(tmp_path, ["../secret.jpg", "cat", "dog", "keep", "cat"], ["cat/8.jpg", "cat", "dog", "drop", ""])
    message = (
        f"{path} decides about 2 samples that are not in {root}: ../secret.jpg, cat/8.jpg; is this the review of "
        "another version? Pass the same SOURCE and --id as to vri clean"
    )
    with said(ValueError, message):
        apply(root, path, tmp_path / "out", SourceOptions())
    path = review(tmp_path, ["cat/1.jpg", "dog", "fox", "keep", "dog"])
    message = (
        f"{path} was made for other labels than {root} has: cat/1.jpg is 'cat' and was 'dog'; "
        "is this the review of another version?"
    )
    with said(ValueError, message):
        apply(root, path, tmp_path / "out", SourceOptions())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "PATH has no decisions; expected at least one: decide on the page, then export"),
        ([["a", "b"]], "PATH, line 2 has 2 cells; expected 5, as in the header"),
        (
            [["cat/1.jpg", "cat", "dog", "maybe", "dog"]],
            "PATH, line 2: decision is 'maybe'; expected one of keep, accept, drop, other",
        ),
        (
            [["cat/1.jpg", "cat", "dog", "keep", "dog"]],
            "PATH, line 2: decision is keep and new_label 'dog'; expected the given label, 'cat'",
        ),
        (
            [["cat/1.jpg", "cat", "dog", "accept", "cat"]],
            "PATH, line 2: decision is accept and new_label 'cat'; expected the suggested label, 'dog'",
        ),
        (
            [["cat/1.jpg", "cat", "dog", "drop", "dog"]],
            "PATH, line 2: decision is drop and new_label 'dog'; expected nothing",
        ),
        (
            [["cat/1.jpg", "cat", "dog", "other", " "]],
            "PATH, line 2: decision is other and new_label ' '; expected a label",
        ),
        (
            [["cat/1.jpg", "cat", "dog", "drop", ""]] * 2,
            "PATH, line 3: 'cat/1.jpg' is decided twice; remove one row",
        ),
    ],
)
def test_mistakes_in_reviews(tmp_path: Path, rows: list[list[str]], message: str) -> None:
    path = review(tmp_path, *rows)
    with said(ValueError, message.replace("PATH", str(path))):
        apply(photos(tmp_path), path, tmp_path / "out", SourceOptions())
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_reviews(tmp_path: Path) -> None:
    root, path = photos(tmp_path), tmp_path / "review.csv"
    with said(FileNotFoundError, f"{path} is not there; expected the review.csv that the page of vri clean exports"):
        apply(root, path, tmp_path / "out", SourceOptions())
    path.write_text("id;given_label\n")
    columns = "id, given_label, suggested_label, decision, new_label"
    message = f"{path} has the columns id;given_label; expected {columns}: export it again from the page of vri clean"
    with said(ValueError, message):
        apply(root, path, tmp_path / "out", SourceOptions())
    path.write_bytes(b"\xff\xfe")
    with said(ValueError, f"{path} is not UTF-8; save it as UTF-8, or export it again"):
        apply(root, path, tmp_path / "out", SourceOptions())


def test_the_folder_for_the_copy(tmp_path: Path) -> None:
    root, path = photos(tmp_path), review(tmp_path, *REVIEW)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    message = f"--out is {out}, which is there already; expected a new or empty folder: give another name"
    with said(FileExistsError, message):
        apply(root, path, out, SourceOptions())
    assert os.listdir(out) == ["mine"]
    inside = root / "new"
    with said(ValueError, f"--out is {inside}, inside {root}, which is never changed; expected a folder outside of it"):
        apply(root, path, inside, SourceOptions())
    (out / "mine").unlink()
    apply(root, path, out, SourceOptions())
    assert (out / "fox" / "3.jpg").exists()


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, path = photos(tmp_path), review(tmp_path, *REVIEW)
    real, made = shutil.copy2, []

    def third_fails(source: Path, target: Path) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(real(source, target))

    monkeypatch.setattr(module.shutil, "copy2", third_fails)
    with pytest.raises(KeyboardInterrupt):
        apply(root, path, tmp_path / "out", SourceOptions(), "copy")
    assert len(made) == 2
    assert sorted(os.listdir(tmp_path)) == ["photos", "review.csv"]


def test_encodings_that_lack_a_letter_of_a_new_label(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,ä\n2,b\n", encoding="latin-1")
    decisions = review(tmp_path, ["1", "b", "ä", "other", "☃"])
    message = f"a new label has '☃', which the encoding latin-1 of {path} does not know; save it as UTF-8"
    with said(ValueError, message):
        apply(path, decisions, tmp_path / "out", SourceOptions(label="y", encoding="latin-1"))
    assert sorted(os.listdir(tmp_path)) == ["review.csv", "t.csv"]


# the command


def test_the_command_reports_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, path, out = photos(tmp_path), review(tmp_path, *REVIEW), tmp_path / "out"
    assert main(["apply", str(root), str(path), "--out", str(out), "--link=symbolic"]) == 0
    assert capsys.readouterr().out == (
        "2 labels changed, 0 samples dropped, 1 kept as they are, 1 not decided about and left as they are\n"
        f"wrote {out} (4 symbolic links) and its labels.csv\n"
    )
    assert main(["apply", str(root), str(path), "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"vri apply: --out is {out}, which is there already; ")
    table = tmp_path / "t.csv"
    table.write_text("x,y\n1,a\n")
    assert main(["apply", str(table), str(path), "--out", str(tmp_path / "o"), "--label", "y", "--copy"]) == 2
    assert capsys.readouterr().err == (
        f"vri apply: --link and --copy are for folders of images, and {table} is a file; leave them out\n"
    )
