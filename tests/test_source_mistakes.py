"""Mistakes in sources of `vri clean`: each is reported in one clear line."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import open_source

CPU = torch.device("cpu")


def said(kind: type[Exception], message: str) -> Any:
    return pytest.raises(kind, match=rf"^{re.escape(message)}$")


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def table(folder: Path, text: str, name: str = "t.csv") -> Path:
    return write(folder / name, text)


def picture(seed: int, width: int = 20, height: int = 14) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def image_source(folder: Path, each: int = 3) -> Path:
    root = folder / "photos"
    for number, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for k in range(each):
            picture(10 * number + k).save(root / name / f"{k}.png")
    return root


GOOD = "a,b,y\n1,2,u\n2,3,v\n3,4,u\n4,5,v\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (GOOD, {}, "--label is missing; PATH has the columns a, b, y: name the one with the labels"),
        (
            GOOD,
            {"label": "Y"},
            "--label is 'Y', and PATH has the columns a, b, y; expected one of them: did you mean 'y'?",
        ),
        ("a,y\n", {"label": "y"}, "PATH has no rows; expected at least two, with labels that differ"),
        ("", {"label": "y"}, "PATH has no header; expected the names of the columns in its first line"),
        (
            "a,y\n1,u\n2,v,w\n",
            {"label": "y"},
            "PATH, line 3 has 3 cells and the header has 2; expected as many: put cells with commas or line breaks in "
            "quotes",
        ),
        (
            'a,y\n1,"u\n',
            {"label": "y"},
            "PATH, line 2 can't be read (unexpected end of data); expected cells with commas between them and quotes "
            "in pairs",
        ),
        ("a,a,y\n1,2,u\n", {"label": "y"}, "PATH has columns of one name: a; expected each once: rename one"),
        (
            "a,y\n1,u\n2,\n3,v\n4, \n",
            {"label": "y"},
            "PATH: column 'y' has no label in 2 of 4 rows: 1, 3 (from 0); expected one in each: fill them in, remove "
            "the rows, or have them predicted with --unlabelled",
        ),
        (
            "a,y\n1,u\n2,u\n",
            {"label": "y"},
            "all 2 samples of PATH have the label 'u'; expected at least two classes",
        ),
        (
            "a,y\n1,u\n2,u\n3,v\n",
            {"label": "y"},
            "only one label of PATH comes more than once, 'u'; expected at least two classes with several samples each",
        ),
        (
            GOOD,
            {"label": "a"},
            "PATH has 4 different labels in 4 samples, such as 1, 2, 3, 4; expected classes with several samples each: "
            "is it the column of the labels?",
        ),
        (
            "a,k,y\n1,p,u\n2,p,v\n3,q,u\n4,q,v\n",
            {"label": "y", "id": "k"},
            "PATH: column 'k' has 2 ids more than once: p, q; expected each once: choose another column, or leave --id "
            "out to count the rows",
        ),
        (
            GOOD,
            {"label": "y", "features": ("a", "y")},
            "y can't be a feature: it is the label, the id or trusted; leave it out",
        ),
        (
            GOOD,
            {"label": "y", "features": ("a", "B")},
            "--features is 'B', and PATH has the columns a, b, y; expected one of them: did you mean 'b'?",
        ),
        (
            "t,y\none,u\ntwo,v\nthree,u\nfour,v\n",
            {"label": "y", "features": ("t",)},
            "--features names 't', which is text (4 different values in 4 rows); expected numbers, or at most 100 "
            "different values: leave it out, or pass a column of text as --text",
        ),
        (
            "t,y\none,u\ntwo,v\nthree,u\nfour,v\n",
            {"label": "y"},
            "no two rows of column 't' share a word; expected text: choose another column",
        ),
        (
            "s,t,y\none,a b,u\ntwo,b c,v\nthree,c d,u\nfour,d e,v\n",
            {"label": "y"},
            "PATH has no columns to learn from beside y; column 's' is not used: it is text (4 different values in 4 "
            "rows); column 't' is not used: it is text (4 different values in 4 rows); expected numbers or categories, "
            "or text: name a column of text with --text",
        ),
        (
            "a,y\n1,u\ninf,v\n2,u\n3,v\n",
            {"label": "y"},
            "column 'a' is infinite in 1 rows: 1 (from 0); expected numbers: correct them, or leave the cells empty",
        ),
        (
            GOOD,
            {"label": "y", "trusted": "c"},
            "--trusted is 'c', which is neither a column of PATH (a, b, y) nor a file; expected one with true or false "
            "in each row, or a file with one id per line",
        ),
        (
            GOOD,
            {"label": "y", "trusted": "b"},
            "PATH: column 'b' is '2' in row 0 (from 0); expected true or false (or 1 or 0, yes or no) in each",
        ),
        (
            "a,ok,y\n1,no,u\n2,0,v\n3,False,u\n4,no,v\n",
            {"label": "y", "trusted": "ok"},
            "--trusted marks no sample; expected at least one: mark some, or leave it out",
        ),
        (
            GOOD,
            {"label": "y", "encoding": "utf-9"},
            "--encoding is 'utf-9', which Python does not know; expected one such as latin-1",
        ),
        (
            GOOD,
            {"label": "y", "weights": Path("w"), "image_size": 64},
            "--image-size, --weights can't be used with a .csv table; leave it out",
        ),
    ],
)
def test_mistakes_in_tables(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    path = table(tmp_path, text)
    with said(ValueError, message.replace("PATH", str(path))):
        open_source(path, SourceOptions(**options))


def test_a_table_in_another_encoding_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "n,y\n1,ä\n", "latin-1")
    message = f"{path} is not utf-8 (byte 6 is 0xe4); save it as UTF-8, or pass its encoding, such as --encoding cp1252"
    with said(ValueError, message):
        open_source(path, SourceOptions(label="y"))


def test_unknown_trusted_rows_are_named(tmp_path: Path) -> None:
    path, names = table(tmp_path, GOOD), write(tmp_path / "ids.txt", "0\n4\nfive\n")
    unknown = f"{names} names 2 samples that are not there: 4, five"
    message = f"{unknown}; expected the number of a row from 0, such as 0, in each line"
    with said(ValueError, message):
        open_source(path, SourceOptions(label="y", trusted=str(names)))


def test_sources_that_are_none(tmp_path: Path) -> None:
    lost = tmp_path / "lost.csv"
    tables = ".csv, .tsv, .jsonl, .ndjson, .parquet, .pq"
    expected = f"expected a folder of images by class, a table ({tables}), an .npz or an .npy file, or a list of "
    expected += "images (.json)"
    with said(FileNotFoundError, f"{lost} is not there; {expected}"):
        open_source(lost, SourceOptions())
    sheet = write(tmp_path / "t.xlsx", "")
    with said(ValueError, f"{sheet} ends in '.xlsx'; {expected}"):
        open_source(sheet, SourceOptions())


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError("none here")
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    path = write(tmp_path / "t.parquet", "")
    with said(ImportError, f"{path} needs pyarrow, which is not installed: pip install vri[parquet]"):
        open_source(path, SourceOptions(label="y"))


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", "no parquet, but long enough to be looked at")
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))} can't be read as Parquet \(.*\); expected a whole"):
        open_source(path, SourceOptions(label="y"))


X, Y = np.ones((4, 2)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"Z": X, "y": Y},
            "PATH has the arrays Z (4, 2), y (4,); expected one named X or embeddings or features: "
            "name it with --features",
        ),
        ({"X": X}, "PATH has the arrays X (4, 2); expected one named y or labels: name it with --label"),
        ({"X": X[:3], "y": Y}, "PATH: X has 3 rows and y 4; expected one label per row"),
        (
            {"X": np.ones((4, 2, 2)), "y": Y},
            "PATH: X has shape (4, 2, 2) and type float64; expected numbers of shape (n, d), one row per sample: "
            "reshape it",
        ),
        (
            {"X": X, "y": np.eye(4)},
            "PATH: y has shape (4, 4) and type float64; expected one class per sample, shape (n,), as numbers or text",
        ),
        (
            {"X": np.array([[1.0, np.nan], [1, 1], [np.inf, 0], [0, 0]]), "y": Y},
            "PATH: X has NaN or Inf in 2 rows: 0, 2 (from 0); expected finite numbers: correct or remove them",
        ),
        ({"X": X[:0], "y": Y[:0]}, "PATH has no rows; expected at least two, with labels that differ"),
        ({"X": X, "y": Y, "ids": np.arange(3)}, "PATH: ids has shape (3,); expected (4,), one per sample"),
        (
            {"X": X, "y": Y, "ids": np.array([1, 1, 2, 3])},
            "PATH: array 'ids' has 1 ids more than once: 1; expected each once: choose another column, or leave --id "
            "out to count the rows",
        ),
        (
            {"X": X, "y": np.array(["a", None, "b", "c"], dtype=object)},
            "PATH: array 'y' holds Python objects, which could run code when read; expected numbers or text: save it "
            "as one, such as labels.astype(str)",
        ),
    ],
)
def test_mistakes_in_embeddings(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "e.npz"
    np.savez(path, **arrays)
    with said(ValueError, message.replace("PATH", str(path))):
        open_source(path, SourceOptions())


def test_a_file_that_is_no_npz(tmp_path: Path) -> None:
    path = write(tmp_path / "e.npz", "no zip")
    with pytest.raises(
        ValueError, match=rf"^{re.escape(str(path))} can't be read as \.npz \(.*\); expected what numpy"
    ):
        open_source(path, SourceOptions())


def test_mistakes_in_folders(tmp_path: Path) -> None:
    root = image_source(tmp_path)
    one = tmp_path / "one"
    (one / "cat").mkdir(parents=True)
    picture(0).save(one / "cat" / "a.png")
    with said(ValueError, f"all 1 samples of {one} have the label 'cat'; expected at least two classes"):
        open_source(one, SourceOptions())
    with said(ValueError, "--label can't be used with a folder of images; leave it out"):
        open_source(root, SourceOptions(label="y"))
    with said(ValueError, "--image-size is 4; expected 8 or more pixels"):
        open_source(root, SourceOptions(image_size=4))
    with pytest.raises(ValueError, match=r"^backbone is 'resnet33'; expected one of .*: did you mean 'resnet34'\?$"):
        open_source(root, SourceOptions(backbone="resnet33"))


def test_a_class_with_one_sample_is_told(tmp_path: Path) -> None:
    source = open_source(table(tmp_path, GOOD + "5,6,w\n"), SourceOptions(label="y"))
    assert source.notes[-1] == "classes with a single sample, whose label can't be judged: w"
