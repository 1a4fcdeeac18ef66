"""`vri apply` with the files that `vri clean` wrote, without a page."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fake_classifier import arguments, installed, read
from vri.cli import main

COLUMNS = ("id", "given_label", "predicted_label", "is_label_issue", "predicted_probability")


def apply(folder: Path, decisions: str, *more: str) -> int:
    call = ["apply", str(folder / "t.csv"), str(folder / decisions), "--label", "y", "--id", "key"]
    return main([*call, "--out", str(folder / "new"), *more])


@pytest.mark.parametrize("decisions", ["out/corrected.csv", "out"])
def test_corrected_csv_gives_the_labels_in_it(
    decisions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    installed(monkeypatch)
    assert main(arguments(tmp_path, "--quiet")) == 0
    capsys.readouterr()
    assert apply(tmp_path, decisions) == 0
    assert capsys.readouterr().out.startswith("2 labels changed, 0 samples dropped, 0 kept as they are, 10 not decided")
    corrected = [row["label"].removeprefix("'") for row in read(tmp_path / "out" / "corrected.csv")]
    assert [row["y"] for row in read(tmp_path / "new" / "t.csv")] == corrected


@pytest.mark.parametrize("decisions", ["out/corrected.csv", "out", "out/label_issues.csv"])
def test_how_the_source_was_read_is_known(
    decisions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    installed(monkeypatch)
    assert main(arguments(tmp_path, "--quiet")) == 0  # --label y --id key
    auto = ["--auto", "precision=0.5"] if "issues" in decisions else []
    assert apply(tmp_path, decisions, *auto, f"--out={tmp_path}/given") == 0
    call = ["apply", str(tmp_path / "t.csv"), str(tmp_path / decisions), *auto]
    assert main([*call, "--out", str(tmp_path / "known")]) == 0
    assert (tmp_path / "known" / "t.csv").read_bytes() == (tmp_path / "given" / "t.csv").read_bytes()
    capsys.readouterr()
    # what is given counts, and another source is not read in the same way
    assert main([*call, "--id", "x", "--out", str(tmp_path / "x")]) == 2
    assert "column 'x' has 3 ids more than once" in capsys.readouterr().err
    (tmp_path / "t.csv").rename(tmp_path / "u.csv")
    assert main(["apply", str(tmp_path / "u.csv"), *call[2:], "--out", str(tmp_path / "u")]) == 2
    assert "--label is missing; " in capsys.readouterr().err
    (tmp_path / "u.csv").rename(tmp_path / "t.csv")
    for content in ("{", "[]", '{"source": "t.csv"}', '{"source": "t.csv", "read_with": 5}'):
        (tmp_path / "out" / "summary.json").write_text(content)
        assert main([*call, "--out", str(tmp_path / "x")]) == 2
        assert "--label is missing; " in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_files_of_labels_and_ids_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    installed(monkeypatch)
    monkeypatch.chdir(tmp_path)
    given = np.array([0, 1, 2, 0, 1, 2, 1, 0])
    np.save("X.npy", np.stack([given, given], 1) + np.array([[0]] * 6 + [[-1], [1]]))
    np.save("y.npy", given)
    np.save("ids.npy", np.array([f"k{n}" for n in range(8)]))
    assert main(["clean", "X.npy", "--labels", "y.npy", "--ids", "ids.npy", "--out", "out", "--quiet"]) == 0
    assert main(["apply", "X.npy", "out", "--out", "new"]) == 0
    corrected = [int(row["label"]) for row in read(tmp_path / "out" / "corrected.csv")]
    assert np.load("new/y.npy").tolist() == corrected != given.tolist()
    Path("y.npy").rename("labels.npy")
    capsys.readouterr()
    assert main(["apply", "X.npy", "out", "--out", "more"]) == 2
    assert capsys.readouterr().err == (
        "vri apply: --label is missing; X.npy has the embeddings only: name the .npy file of their labels\n"
    )


def scored(folder: Path, probabilities: list[float]) -> None:
    """A table of as many rows, and the label_issues.csv of a run on it, with one label that is no issue."""
    (folder / "t.csv").write_text("key,y\n" + "".join(f"k{n},a\n" for n in range(len(probabilities) + 1)))
    rows = [f"k{n},a,b,true,{p}" for n, p in enumerate(probabilities)]
    (folder / "label_issues.csv").write_text("\n".join([",".join(COLUMNS), *rows, "k9,a,b,false,1.0"]))


def test_auto_takes_as_many_as_keep_the_mean_probability(tmp_path: Path, capsys: Any) -> None:
    scored(tmp_path, [0.85, 0.99, 0.97, 0.7, 0.93])
    for precision, changed in ((0.95, [1, 2, 4]), (0.99, [1]), (0.999, []), (0.88, [0, 1, 2, 3, 4])):
        # 0.99, 0.98, 0.963, 0.935, 0.888 are the means of the first ones
        assert (
            apply(tmp_path, "label_issues.csv", "--auto", f"precision={precision}", f"--out={tmp_path}/{precision}")
            == 0
        )
        labels = [row["y"] for row in read(tmp_path / str(precision) / "t.csv")]
        assert [n for n, label in enumerate(labels) if label == "b"] == changed
        printed = capsys.readouterr().out
        assert printed.startswith(f"{len(changed)} labels changed")
        assert f"\n{5 - len(changed)} more labels look wrong and stay as they are" in printed


@pytest.mark.parametrize(
    ("decisions", "auto", "message"),
    [
        ("label_issues.csv", None, "has no decisions; expected --auto precision=P, to take the surest"),
        ("t.csv", "0.9", "--auto needs the label_issues.csv that vri clean wrote, or its folder, and"),
        ("label_issues.csv", "1.5", "--auto is precision=1.5; expected more than 0, and at most 1"),
        (".", None, "has no corrected.csv in it; expected the folder that vri clean wrote to"),
        ("lost.csv", None, "is not there; expected the review.csv that the page of vri clean exports"),
    ],
)
def test_what_is_refused(decisions: str, auto: str | None, message: str, tmp_path: Path, capsys: Any) -> None:
    scored(tmp_path, [0.9])
    assert apply(tmp_path, decisions, *(["--auto", f"precision={auto}"] if auto else [])) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_auto_that_is_none(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        apply(tmp_path, "out", "--auto", "0.95")
    assert "'0.95' is not of the form precision=0.95" in capsys.readouterr().err


def test_parts_of_a_streamed_file(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", np.array([0, 1, 0, 1]))
    issues = pd.DataFrame(
        {
            "row": [0, 1, 2, 3],
            "id": ["a", "b", "c", "d"],
            "given_label": [0, 1, 0, 1],
            "predicted_label": [1, 0, 1, 1],
            "is_label_issue": [True, True, False, False],
            "predicted_probability": [0.99, 0.6, 0.99, 0.9],
        }
    )
    corrected = pd.DataFrame({"row": [0, 1, 2, 3], "label": [1, 1, 0, 1], "given_label": [0, 1, 0, 1]})
    corrected["changed"] = corrected["label"] != corrected["given_label"]
    for name, frame in (("label_issues", issues), ("corrected", corrected)):
        (tmp_path / "out" / name).mkdir(parents=True)
        for part in range(2):
            frame[2 * part : 2 * part + 2].to_parquet(tmp_path / "out" / name / f"part-0000{part}.parquet")
    calls = {"out": [], "out/corrected": [], "out/label_issues": ["--auto", "precision=0.9"]}
    for number, (decisions, more) in enumerate(calls.items()):
        new = tmp_path / f"new{number}"
        call = ["apply", str(tmp_path / "X.npy"), str(tmp_path / decisions), "--labels", str(tmp_path / "y.npy")]
        assert main([*call, "--out", str(new), *more]) == 0
        assert np.load(new / "y.npy").tolist() == [1, 1, 0, 1]
