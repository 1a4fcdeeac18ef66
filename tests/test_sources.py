"""Sources of `vri clean`: read exactly what is there, and every mistake is told in one clear line."""

import builtins
import csv
import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.feature_extraction.text import TfidfVectorizer

from vri.cleaning.cells import escape, unescape, write_rows
from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import Source, open_source
from vri.encoders import Encoder

CPU = torch.device("cpu")


def inputs(source: Source, cache: Path = Path("none")) -> Any:
    return source.make_inputs(cache, CPU)


def said(kind: type[Exception], message: str) -> Any:
    return pytest.raises(kind, match=rf"^{re.escape(message)}$")


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def table(folder: Path, text: str, name: str = "t.csv") -> Path:
    return write(folder / name, text)


# cells


def test_formulas_survive_the_way_there_and_back() -> None:
    signs = ["=", "+", "-", "@", "\t", "\r", "'", "a", '"', ",", "\n", "é"]
    cells = ["", *("".join(letters) for n in (1, 2, 3) for letters in itertools.product(signs, repeat=n))]
    for cell in cells:
        there = escape(cell)
        assert unescape(there) == cell
        assert there[:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert escape("=1+1") == "'=1+1"
    assert escape("'=1") == "''=1"
    assert escape("it's") == "it's"
    assert unescape("'quoted'") == "'quoted'"


def test_written_rows_read_back(tmp_path: Path) -> None:
    rows = [["a,b", 'say "hi"'], ["line\nbreak", "cr\rhere"], ["é", ""]]
    write_rows(tmp_path / "x.csv", ("one", "two"), rows)
    with (tmp_path / "x.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["one", "two"], *rows]
    assert [p.name for p in tmp_path.iterdir()] == ["x.csv"]


# tables


def test_numbers_are_taken_as_they_are_and_gaps_filled_with_the_median(tmp_path: Path) -> None:
    path = table(tmp_path, "a,b,y\n1,2.5,u\n3,,u\n5,-1e3,v\n7,NA,v\n")
    source = open_source(path, SourceOptions(label="y"))
    assert source.ids == ["0", "1", "2", "3"]
    assert source.labels == ["u", "u", "v", "v"]
    median = (2.5 - 1e3) / 2
    expected = [[1, 2.5, 0], [3, median, 1], [5, -1e3, 0], [7, median, 1]]
    np.testing.assert_array_equal(inputs(source), expected)


def test_few_values_become_one_hot_and_text_is_left_out_and_named(tmp_path: Path) -> None:
    rows = [
        (colour, f"a text number {n}", "uv"[n % 2])
        for n, colour in enumerate(["red", "blue", "red", "", "red", "blue"])
    ]
    path = table(tmp_path, "colour,note,y\n" + "".join(f"{','.join(row)}\n" for row in rows))
    source = open_source(path, SourceOptions(label="y"))
    order = ["", "blue", "red"]
    np.testing.assert_array_equal(inputs(source), [[float(row[0] == c) for c in order] for row in rows])
    assert source.notes == [
        "learning from colour (1 columns)",
        "column 'note' is not used: it is text (6 different values in 6 rows)",
    ]
    assert source.describe(1)["fields"] == {"colour": "blue", "note": "a text number 1"}


def test_a_single_column_of_text_is_used_and_as_scikit_learn_does(tmp_path: Path) -> None:
    texts = ["good film", "a good film", "bad film indeed", "bad film", "so bad", "so good a film"]
    path = table(tmp_path, "review,y\n" + "".join(f"{t},{'np'['good' in t]}\n" for t in texts))
    expected = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True).fit_transform(texts).toarray()
    for options in (SourceOptions(label="y"), SourceOptions(label="y", text="review")):
        source = open_source(path, options)
        np.testing.assert_allclose(inputs(source).toarray(), expected, rtol=1e-6)
        assert source.describe(2)["text"] == "bad film indeed"
        assert source.describe(2)["fields"] is None


def test_text_beside_named_columns_is_projected(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "n,t,gt,y\n" + "".join(f"{n},red {('apple', 'plum', 'pear')[n % 3]} pie,q,{n % 2}\n" for n in range(8)),
    )
    alone = open_source(path, SourceOptions(label="y", text="t"))
    assert alone.notes[1:] == ["not used beside the text: n, gt (name them with --features to use them)"]
    both = inputs(open_source(path, SourceOptions(label="y", text="t", features=("n",))))
    np.testing.assert_array_equal(both[:, 0], np.arange(8))
    # distances between texts are those of TF-IDF: all of it fits into the numbers it is projected to
    terms = inputs(alone).toarray()
    np.testing.assert_allclose(both[:, 1:] @ both[:, 1:].T, terms @ terms.T, atol=1e-5)


def test_labels_of_all_kinds_become_text(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    x = np.arange(4.0)
    for values, expected in (
        ([1.0, 2.0, 1.0, 2.0], ["1", "2", "1", "2"]),
        ([1, 2, 1, 2], ["1", "2", "1", "2"]),
        ([True, False, True, False], ["True", "False", "True", "False"]),
        (["a ", "b", "a", "b"], ["a", "b", "a", "b"]),
        ([0.5, 1.0, 0.5, 1.0], ["0.5", "1.0", "0.5", "1.0"]),
    ):
        pd.DataFrame({"x": x, "y": values}).to_parquet(path)
        assert open_source(path, SourceOptions(label="y")).labels == expected
    source = open_source(table(tmp_path, "x,y\n1,007\n2,7\n3,007\n4,7\n"), SourceOptions(label="y"))
    assert source.labels == ["007", "7", "007", "7"]  # codes, not numbers
    source = open_source(table(tmp_path, "x,y\n1,1.0\n2,2\n3,1\n4,2.0\n"), SourceOptions(label="y"))
    assert source.labels == ["1", "2", "1", "2"]


def test_parquet_and_csv_of_one_table_agree(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"key": [f"k{n}" for n in range(6)], "n": [1.5, None, 2, 3, 4, 5], "c": list("xyxyxy"), "y": list("ababab")}
    )
    frame["ok"] = [True, False, False, True, False, False]
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    options = SourceOptions(label="y", id="key", trusted="ok")
    one, two = (open_source(tmp_path / name, options) for name in ("t.csv", "t.parquet"))
    np.testing.assert_array_equal(inputs(one), inputs(two))
    assert one.ids == two.ids == frame["key"].tolist()
    assert one.labels == two.labels
    assert one.trusted is not None
    assert two.trusted is not None
    assert one.trusted.tolist() == two.trusted.tolist() == frame["ok"].tolist()
    assert inputs(one).shape == (6, 4)  # n, its gaps, x, y: neither key nor ok


def test_cells_with_quotes_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = '\ufeffn,y,note\r\n0,u,"two\r\nlines, and ""more"""\r\n\r\n1,v,b\r\n2,u,c\r\n3,v,d\r\n'
    source = open_source(table(tmp_path, text), SourceOptions(label="y"))
    assert source.describe(0)["fields"] == {"note": 'two\r\nlines, and "more"', "n": "0"}
    assert source.ids == ["0", "1", "2", "3"]  # an empty line is no row
    np.testing.assert_array_equal(inputs(source), [[0], [1], [2], [3]])


def test_other_encodings_and_long_cells(tmp_path: Path) -> None:
    long = "é" * 200_000
    path = write(tmp_path / "t.csv", f"n,y,note\n1,ä,{long}\n2,b,\n3,ä,x\n4,b,z\n", "latin-1")
    source = open_source(path, SourceOptions(label="y", encoding="latin-1"))
    assert source.labels == ["ä", "b", "ä", "b"]
    fields = source.describe(0)["fields"]
    assert fields is not None
    assert fields["note"] == "é" * 299 + "…"
    assert csv.field_size_limit() == 131072  # as Python had it
    write(tmp_path / "t.tsv", "n\ty\n1\ta,c\n2\tb\n3\ta,c\n4\tb\n")
    assert open_source(tmp_path / "t.tsv", SourceOptions(label="y")).labels == ["a,c", "b", "a,c", "b"]


# embeddings


def test_embeddings_are_read_as_they_are(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2])
    np.savez(tmp_path / "e.npz", X=x, y=y)
    source = open_source(tmp_path / "e.npz", SourceOptions())
    assert inputs(source).dtype == np.float32
    np.testing.assert_array_equal(inputs(source), x)
    assert source.labels == ["0", "1", "2", "0", "1", "2"]
    assert source.ids == ["0", "1", "2", "3", "4", "5"]
    assert source.trusted is None
    assert source.describe(3)["fields"] == {f"X[{k}]": f"{x[3, k]:.4g}" for k in range(8)}


def test_embeddings_with_names_of_their_own(tmp_path: Path) -> None:
    x, ids = np.ones((4, 2)), np.array(["p", "q", "r", "s"])
    marks = np.array([0, 1, 0, 1])
    np.savez(tmp_path / "e.npz", vectors=x, target=np.array(list("abab")), ids=ids, trusted=marks, title=ids)
    source = open_source(tmp_path / "e.npz", SourceOptions(label="target", features=("vectors",)))
    assert (source.labels, source.ids) == (list("abab"), list("pqrs"))
    assert source.trusted is not None
    assert source.trusted.tolist() == [False, True, False, True]
    assert source.describe(2)["fields"] == {"title": "r"}
    write(tmp_path / "ids.txt", "q\n\nr\n")
    options = SourceOptions(label="target", features=("vectors",), trusted=str(tmp_path / "ids.txt"))
    trusted = open_source(tmp_path / "e.npz", options).trusted
    assert trusted is not None
    assert trusted.tolist() == [False, True, True, False]


# images


def picture(seed: int, width: int = 20, height: int = 14) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def image_source(folder: Path, each: int = 3) -> Path:
    root = folder / "photos"
    for number, name in enumerate(("cat", "dog")):
        (root / name).mkdir(parents=True)
        for k in range(each):
            picture(10 * number + k).save(root / name / f"{k}.png")
    return root


def test_images_are_what_pillow_makes_of_them(tmp_path: Path) -> None:
    root = image_source(tmp_path)
    (root / "cat" / "broken.jpg").write_bytes(b"no image")
    (root / "cat" / "notes.txt").write_text("passed over")
    source = open_source(root, SourceOptions(image_size=8))
    paths = [f"{name}/{k}.png" for name in ("cat", "dog") for k in range(3)]
    assert source.ids == paths
    assert source.labels == ["cat"] * 3 + ["dog"] * 3
    resized = [Image.open(root / p).resize((8, 8), Image.Resampling.BILINEAR) for p in paths]
    expected = np.stack([np.asarray(image).transpose(2, 0, 1) for image in resized])
    assert inputs(source).dtype == np.uint8
    np.testing.assert_array_equal(inputs(source), expected)
    broken = root / "cat" / "broken.jpg"
    assert len(source.notes) == 2
    assert source.notes[1].startswith("learning from pixels, by a small network")
    assert source.notes[0].startswith(f"left out: {broken} can't be read as an image (UnidentifiedImageError: ")
    assert source.module is not None
    assert source.module(2)(torch.zeros(5, 3, 8, 8)).shape == (5, 2)


def test_thumbnails_are_small_jpegs_of_the_image(tmp_path: Path) -> None:
    root = image_source(tmp_path)
    Image.new("RGB", (640, 320), (200, 30, 40)).save(root / "cat" / "0.png")
    seen = open_source(root, SourceOptions(image_size=8)).describe(0)["image"]
    assert seen is not None
    image = Image.open(io.BytesIO(seen))
    assert (image.format, image.size) == ("JPEG", (160, 80))
    assert np.abs(np.asarray(image, float) - [200, 30, 40]).max() < 4


def test_weights_give_features_that_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vri.backbones import small_cnn

    root = image_source(tmp_path)
    model = small_cnn(7, 3, seed=3).eval()
    torch.save(model.state_dict(), tmp_path / "w.pth")
    options = SourceOptions(backbone="small_cnn", weights=tmp_path / "w.pth", image_size=14)
    source = open_source(root, options)
    assert source.module is None
    found = inputs(source, tmp_path)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    rows = []
    for name in source.ids:  # 20 x 14 to the shorter side of 16, then the middle
        image = Image.open(root / name).resize((22, 16), Image.Resampling.BILINEAR).crop((4, 1, 18, 15))
        rows.append(((torch.from_numpy(np.array(image)) / 255 - mean) / std).permute(2, 0, 1))
    with torch.no_grad():
        expected = model[:-1](torch.stack(rows))
    torch.testing.assert_close(torch.from_numpy(np.array(found)), expected, rtol=1e-4, atol=1e-5)

    monkeypatch.setattr(Encoder, "checked", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(inputs(source, tmp_path), found)
    assert open_source(root, options).fingerprint == source.fingerprint
    picture(99).save(root / "cat" / "1.png")
    assert open_source(root, options).fingerprint != source.fingerprint


def test_trusted_images_by_path(tmp_path: Path) -> None:
    root = image_source(tmp_path)
    names = write(tmp_path / "trusted.txt", "dog/2.png\ncat/0.png\n")
    trusted = open_source(root, SourceOptions(trusted=str(names), image_size=8)).trusted
    assert trusted is not None
    assert np.flatnonzero(trusted).tolist() == [0, 5]


def test_reading_leaves_the_source_and_the_global_generators_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = image_source(tmp_path)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*.png")}
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    opened: list[tuple[Any, str]] = []
    real = builtins.open
    monkeypatch.setattr(
        builtins, "open", lambda f, mode="r", *a, **k: opened.append((f, mode)) or real(f, mode, *a, **k)
    )
    source = open_source(root, SourceOptions(image_size=8))
    source.describe(0)
    assert {mode for _, mode in opened} <= {"rb", "r"}
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*.png")} == before
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
