"""Tables as they come: any separator, odd cells, JSON Lines, and folders of Hugging Face's datasets."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from test_apply import review
from vri.cleaning.apply import apply
from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import Source, open_source
from vri.cleaning.tables import read_table
from vri.cli import main


def opened(path: Path, **options: Any) -> tuple[Source, np.ndarray]:
    source = open_source(path, SourceOptions(**({"label": "y"} | options)))
    return source, np.asarray(source.make_inputs(path.parent, None))  # type: ignore[arg-type]


# separators


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_the_separator_is_found(separator: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    rows = [["x", "note", "y"], ["1", '"a, b; c\td | e"', "cat"], ["2", '"two\nlines"', "dog"]]
    path.write_text("\n".join(separator.join(row) for row in rows), encoding="utf-8")
    assert read_table(path).columns == {"x": ["1", "2"], "note": ["a, b; c\td | e", "two\nlines"], "y": ["cat", "dog"]}


def test_a_separator_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x:y\n1:a\n2:b\n3:a\n4:b\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has the columns x:y"):
        opened(path)
    assert opened(path, separator=":")[0].labels == ["a", "b", "a", "b"]
    with pytest.raises(ValueError, match=r"^--separator is '::'; expected one character between the cells, such as"):
        opened(path, separator="::")


def test_a_row_too_long_does_not_hide_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y\n1,5;a\n2;b;c\n", encoding="utf-8")
    message = "line 3 has 3 cells and the header has 2; expected as many: put cells with semicolons or line breaks in"
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_numbers_with_commas_among_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y\n1,5;a\n-2,25;b\n3;a\n1.5;b\n", encoding="utf-8")
    assert opened(path)[1].ravel().tolist() == [1.5, -2.25, 3, 1.5]


def test_apply_keeps_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y\n1,5;a\n2,5;b\n", encoding="utf-8")
    apply(path, review(tmp_path, ["1", "b", "a", "other", "a;c"]), tmp_path / "out", SourceOptions(label="y"))
    assert (tmp_path / "out" / "t.csv").read_text(encoding="utf-8") == 'x;y\n1,5;a\n2,5;"a;c"\n'


# odd cells


def test_odd_cells_among_numbers_are_told_and_count_as_missing(tmp_path: Path) -> None:
    cells = [str(k) for k in range(20)]
    cells[3], cells[7] = "n/a?", ""
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{cell},{'ab'[k % 2]}\n" for k, cell in enumerate(cells)), encoding="utf-8")
    source, x = opened(path)
    assert "column 'x' has no number in 1 of 20 rows ('n/a?'); treated as missing" in source.notes
    numbers = [k for k in range(20) if k not in (3, 7)]
    np.testing.assert_array_equal(x[:, 0], [k if k in numbers else np.median(numbers) for k in range(20)])
    np.testing.assert_array_equal(np.flatnonzero(x[:, 1]), [3, 7])


def test_more_than_a_few_odd_cells_make_categories(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,a\nlow,b\n" * 5, encoding="utf-8")
    source, x = opened(path)
    assert x.shape == (10, 2)
    assert len(source.notes) == 1  # no word of odd cells


# JSON Lines


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        '{"x": 1, "y": 0, "v": [1, 2]}',
        "",
        '{"y": 1, "v": [3, 4]}',
        '{"x":3,"y":0,"v":[5,6]}',
        '{"y": 1, "v": [7, 8]}',
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    source, x = opened(path)
    assert source.labels == ["0", "1", "0", "1"]
    np.testing.assert_array_equal(x, [[1, 0, 1, 2], [2, 1, 3, 4], [3, 0, 5, 6], [2, 1, 7, 8]])
    decisions = review(tmp_path, ["1", "1", "0", "accept", "0"], ["2", "0", "1", "other", "7"])
    apply(path, decisions, tmp_path / "out", SourceOptions(label="y"))
    found = (tmp_path / "out" / "t.jsonl").read_text(encoding="utf-8").splitlines()
    assert [found[0], found[4]] == [lines[0], lines[4]]  # the same to the letter
    assert [json.loads(found[2]), json.loads(found[3])] == [{"y": 0, "v": [3, 4]}, {"x": 3, "y": 7, "v": [5, 6]}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "line 2 is [1, 2]; expected an object in each line"),
        ('{"x": 1', "line 2 is no JSON (Expecting ',' delimiter"),
    ],
)
def test_broken_json_lines(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"x": 1, "y": 0}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        opened(path)


# Hugging Face's datasets


def dataset(folder: Path, labels: list[int]) -> Path:
    """A folder as `save_to_disk` writes it: two Arrow streams, the features in JSON, the names of the classes there."""
    features = {
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["bad", "good"], "_type": "ClassLabel"},
    }
    words = ["awful plot", "lovely film", "awful film", "lovely plot"]
    texts = [f"{words[(2 * k) % 4 + label % 2]} number {k % 3}" for k, label in enumerate(labels)]
    schema = pa.schema(
        [("text", pa.string()), ("label", pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    folder.mkdir(parents=True)
    half, names = len(labels) // 2, [f"data-0000{k}-of-00002.arrow" for k in range(2)]
    for name, part in zip(names, (slice(half), slice(half, None)), strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            stream.write_table(pa.table({"text": texts[part], "label": labels[part]}, schema=schema))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0" * 16, "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    labels = [0, 1, 1, 0] * 3
    path = dataset(tmp_path / "reviews", labels)
    source, x = opened(path, label="label")
    assert source.labels == [["bad", "good"][label] for label in labels]
    assert source.describe(3)["text"] == "awful film number 0"
    assert x.shape == ()  # a sparse matrix: of the text, the only other column
    decisions = review(tmp_path, ["1", "good", "bad", "accept", "bad"], ["7", "bad", "good", "drop", ""])
    done = apply(path, decisions, tmp_path / "out", SourceOptions(label="label"))
    assert done.written == str(tmp_path / "out")
    again = open_source(tmp_path / "out", SourceOptions(label="label"))
    assert again.labels == ["bad", "bad", *source.labels[2:7], *source.labels[8:]]
    assert again.describe(7) == source.describe(8)
    (file,) = (tmp_path / "out").glob("*.arrow")
    with pa.memory_map(str(file)) as stream:
        table = pa.ipc.open_stream(stream).read_all()
    assert table.schema.field("label").type == pa.int64()
    assert table.column("label").to_pylist() == [0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0]
    state = json.loads((tmp_path / "out" / "state.json").read_text())
    assert state["_data_files"] == [{"filename": file.name}]
    assert state["_fingerprint"] != "0" * 16
    assert state["_split"] == "train"


def test_what_a_dataset_cannot_hold(tmp_path: Path, capsys: Any) -> None:
    path = dataset(tmp_path / "reviews" / "train", [0, 1] * 4)
    with pytest.raises(ValueError, match="column 'label' has the classes bad, good, and not fine; choose one of them"):
        apply(
            path,
            review(tmp_path, ["0", "bad", "good", "other", "fine"]),
            tmp_path / "new",
            SourceOptions(label="label"),
        )
    assert not (tmp_path / "new").exists()
    (path.parent / "dataset_dict.json").write_text('{"splits": ["train"]}')
    call = ["clean", str(path.parent), "--label", "label", "--out", str(tmp_path / "out"), "--quiet"]
    assert main(call) == 2
    expected = f"vri clean: {path.parent} has the splits train; expected one of them, such as {path}\n"
    assert capsys.readouterr().err == expected
    (path / "data-00001-of-00002.arrow").write_bytes(b"\0" * 100)
    with pytest.raises(
        ValueError, match=r"can't be read as a Hugging Face data set .*: write it again with save_to_disk"
    ):
        open_source(path, SourceOptions(label="label"))
    with pytest.raises(ValueError, match="--separator can't be used with a Hugging Face data set; leave it out"):
        open_source(path, SourceOptions(label="label", separator=";"))
