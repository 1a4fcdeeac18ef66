"""`vri clean` by probabilities of the user's own, with missing labels, odd classes, copies of the label, and cards."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fake_classifier import FakeClassifier, installed, read, table
from review_pages import summary as make_summary
from test_clean import Texts
from vri import find_label_issues
from vri.cleaning import stream
from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import open_source
from vri.cleaning.work import contradiction
from vri.cli import main


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClassifier]:
    def predict_proba(self: Any, X: Any) -> np.ndarray:
        return np.where(np.eye(len(self.classes_))[self._places(X)] == 1, 0.96, 0.04 / (len(self.classes_) - 1))

    monkeypatch.setattr(FakeClassifier, "predict_proba", predict_proba, raising=False)
    return installed(monkeypatch)


# probabilities of the user's own


def probabilities(given: list[str], classes: list[str]) -> np.ndarray:
    """Sure of the given class, but for every sixth sample, for which it is sure of the next."""
    place = np.array([classes.index(name) for name in given])
    place[::6] = (place[::6] + 1) % len(classes)
    found = np.full((len(given), len(classes)), 0.05)
    found[np.arange(len(given)), place] = 1 - 0.05 * (len(classes) - 1)
    return found


def labels_only(folder: Path) -> tuple[Path, list[str]]:
    given = ["b", "c", "a"] * 20
    path = folder / "t.csv"
    path.write_text("key,y\n" + "".join(f"k{n},{label}\n" for n, label in enumerate(given)), encoding="utf-8")
    return path, given


@pytest.mark.parametrize("kind", ["npy", "csv", "csv with ids"])
def test_labels_are_judged_by_given_probabilities(
    kind: str, tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    path, given = labels_only(tmp_path)
    found = probabilities(given, ["a", "b", "c"])
    file = tmp_path / f"p.{kind[:3]}"
    if kind == "npy":
        np.save(file, found)
    else:  # in another order of the classes, and of the samples
        rows = [[f"k{n}"] * kind.endswith("ids") + [*row[[2, 0, 1]]] for n, row in enumerate(found)]
        with file.open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow([*["id"] * kind.endswith("ids"), "c", "a", "b"])
            writer.writerows(rows[::-1] if kind.endswith("ids") else rows)
    call = ["clean", str(path), "--label", "y", "--id", "key", "--pred-probs", str(file), "--quiet"]
    assert main([*call, "--out", str(tmp_path / "out")]) == 0
    assert not fake.fitted
    expected = find_label_issues(np.array(given), found, classes=["a", "b", "c"])
    assert expected["is_label_issue"].sum() == 10
    rows_ = {row["id"]: row for row in read(tmp_path / "out" / "label_issues.csv")}
    for n, (_, each) in enumerate(expected.iterrows()):
        row = rows_[f"k{n}"]
        assert (row["predicted_label"], row["is_label_issue"] == "true") == (
            each["predicted_label"],
            each["is_label_issue"],
        )
        assert float(row["label_quality"]) == pytest.approx(each["label_quality"], abs=1e-6)
    out = capsys.readouterr().out
    assert "wrote label_issues.csv, corrected.csv, summary.json and report.html to" in out
    assert main([*call, "--out", str(tmp_path / "out")]) == 0  # again
    np.save(tmp_path / "other.npy", found[:, ::-1])
    again = [*call[:-2], str(tmp_path / "other.npy"), "--quiet", "--out", str(tmp_path / "out")]
    assert main(again) == 2
    assert "holds a run with other settings: pred_probs was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("p.npy", np.ones((60, 2)) / 2, "has shape (60, 2) and type float64; expected (60, 3): a row for each sample"),
        ("p.npy", np.ones((60, 3)), "row 0 of pred_probs sums to 3; expected probabilities from 0 to 1 that sum to 1"),
        ("p.csv", "a,b\n" + "0.5,0.5\n" * 60, "has the columns a, b, and none for c; expected one for each label, by"),
        ("p.csv", "a,b,c\n1,0,0\n", "has 1 rows, and there are 60 samples; expected as many, in the same order, or"),
        ("p.csv", "a,b,c\n" + "1,0,x\n" * 60, "column 'c' (could not convert string to float: 'x'); expected a"),
        ("p.csv", "id,a,b,c\nk1,1,0,0\n", "has no row for 59 of 60 samples: k0, k2, k3, k4, k5, ...; expected"),
        ("p.txt", "1", "expected an .npy or a .csv file"),
        ("lost.npy", None, "which is not there; check the name"),
        ("p.npy", "no array", "can't be read ("),
    ],
)
def test_probabilities_that_are_none(file: str, content: Any, message: str, tmp_path: Path, capsys: Any) -> None:
    path, _ = labels_only(tmp_path)
    if isinstance(content, str):
        (tmp_path / file).write_text(content)
    elif content is not None:
        np.save(tmp_path / file, content)
    call = ["clean", str(path), "--label", "y", "--id", "key", "--pred-probs", str(tmp_path / file)]
    assert main([*call, "--quiet", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--cross-fit", "3"], "--cross-fit"),
        (["--encoder", "auto"], "--encoder"),
        (["--device", "cpu", "--seed", "1", "--features", "x"], "--features, --seed, --device"),
        (
            ["--weights", "w.pt", "--backbone", "resnet50", "--image-size", "64", "--epochs", "3", "--compare"],
            "--backbone, --image-size, --weights, --epochs, --compare",
        ),
        (["--sample", "10"], "--sample"),
    ],
)
def test_options_of_training_go_without_given_probabilities(
    more: list[str], named: str, tmp_path: Path, capsys: Any
) -> None:
    path, _ = labels_only(tmp_path)
    np.save(tmp_path / "p.npy", np.full((60, 3), 1 / 3))
    call = ["clean", str(path), "--label", "y", "--pred-probs", str(tmp_path / "p.npy"), "--quiet", *more]
    assert main([*call, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"vri clean: {named} can't be used with --pred-probs, which trains nothing; leave it out\n"
    )
    assert not (tmp_path / "out").exists()


def test_no_encoder_is_fine_with_given_probabilities(tmp_path: Path) -> None:
    path, given = labels_only(tmp_path)
    np.save(tmp_path / "p.npy", probabilities(given, ["a", "b", "c"]))
    call = ["clean", str(path), "--label", "y", "--pred-probs", str(tmp_path / "p.npy"), "--quiet"]
    assert main([*call, "--encoder", "none", "--out", str(tmp_path / "out")]) == 0


def test_rows_too_many_for_the_memory_are_judged_by_given_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = np.tile([1, 2, 0], 20)
    found = probabilities([str(label) for label in given], ["0", "1", "2"])
    for name, array in (("X", np.full((60, 4), np.nan)), ("y", given), ("p", found)):  # embeddings are only shown
        np.save(tmp_path / f"{name}.npy", array)
    monkeypatch.setattr(stream, "_memory", lambda: 1000)
    call = ["clean", str(tmp_path / "X.npy"), "--labels", str(tmp_path / "y.npy"), "--quiet"]
    assert main([*call, "--pred-probs", str(tmp_path / "p.npy"), "--out", str(tmp_path / "out")]) == 0
    expected = find_label_issues(given, found)
    rows = read(tmp_path / "out" / "label_issues.csv")
    assert {int(row["id"]) for row in rows if row["is_label_issue"] == "true"} == set(
        np.flatnonzero(expected["is_label_issue"])
    )


# missing labels


def test_samples_without_label_are_predicted_and_not_judged(
    tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    path = table(tmp_path)
    text = path.read_text().replace("k0,0.1,yes,=a", "k0,0.1,yes,").replace("k5,2.1,no,c", "k5,2.1,no,")
    path.write_text(text)
    call = ["clean", str(path), "--label", "y", "--id", "key", "--features", "x", "--quiet"]
    assert main([*call, "--out", str(tmp_path / "out")]) == 2
    assert "has no label in 2 of 12 rows: 0, 5 (from 0)" in capsys.readouterr().err
    assert main([*call, "--out", str(tmp_path / "out"), "--unlabelled"]) == 0
    assert [len(y) for _, y, _ in fake.fitted] == [10]
    issues = {row["id"]: row for row in read(tmp_path / "out" / "label_issues.csv")}
    for name, label in (("k0", "'=a"), ("k5", "c")):
        row = issues[name]
        assert (row["given_label"], row["predicted_label"], row["label_quality"]) == ("", label, "")
        assert (row["is_label_issue"], row["predicted_probability"]) == ("false", "0.960000")
    corrected = {row["id"]: row for row in read(tmp_path / "out" / "corrected.csv")}
    assert (corrected["k5"]["label"], corrected["k5"]["changed"]) == ("c", "true")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["samples"], summary["unlabelled"]) == (10, 2)
    assert "2 samples have no label" in summary["remarks"][-1]
    assert (
        main(["apply", str(path), str(tmp_path / "out"), "--label", "y", "--id", "key", "--out", str(tmp_path / "n")])
        == 0
    )
    assert [row["y"] for row in read(tmp_path / "n" / "t.csv")][::5] == ["=a", "c", "b"]


# remarks


def test_odd_classes_and_copies_are_remarked_on(tmp_path: Path, capsys: Any, fake: type[FakeClassifier]) -> None:
    labels = ["cat", "dog"] * 30 + ["Cat."]
    rows = [f"{['dog', 'cat'].index(label.strip('.').lower())},{n % 7},{label}" for n, label in enumerate(labels)]
    path = tmp_path / "t.csv"
    path.write_text("copy,x,y\n" + "\n".join(rows), encoding="utf-8")
    assert main(["clean", str(path), "--label", "y", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    remarks = json.loads((tmp_path / "out" / "summary.json").read_text())["remarks"]
    assert any("'Cat.' (1 sample) is spelled almost like 'cat' (30)" in remark for remark in remarks)
    assert any(remark.startswith("column 'copy' gives away every label") for remark in remarks)
    printed = capsys.readouterr().out
    page = Texts()
    page.feed((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    for remark in remarks:
        assert f"look at: {remark}\n" in printed
        assert any(json.dumps(remark)[1:-1] in block for block in page.blocks)


@pytest.mark.parametrize(
    ("rate", "interval", "accuracy", "said"),
    [
        (0.01, (0.0, 0.02), 0.70, "differs from 30.0% of the labels that it has not learned from"),
        (0.30, (0.25, 0.35), 0.95, "predicts 95.0% of the labels that it has not learned from"),
        (0.20, (0.15, 0.25), 0.78, None),
        (0.20, (0.15, 0.25), None, None),
    ],
)
def test_an_estimate_against_the_accuracy_is_not_given(
    rate: float, interval: tuple[float, float], accuracy: float | None, said: str | None
) -> None:
    partly = "9 samples held out, against their given labels, which are partly wrong"
    summary = make_summary(noise_rate=rate, noise_interval=interval, accuracy_after=accuracy, accuracy_on=partly)
    found = contradiction(summary)
    assert found is None if said is None else said in str(found)
    assert contradiction(replace(summary, accuracy_on="40 trusted samples held out")) is None


# cards


def test_cards_show_images_and_texts_of_embeddings(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for k in range(6):
        Image.new("RGB", (20, 10), (40 * k, 0, 0)).save(tmp_path / "pictures" / f"{k}.png")
    (tmp_path / "pictures" / "5.png").write_bytes(b"broken")
    paths = np.array([f"pictures/{k}.png" for k in range(6)])
    X, y = np.arange(12.0).reshape(6, 2), np.array([0, 1] * 3)
    np.savez(tmp_path / "e.npz", X=X, y=y, files=paths, said=np.array([f"text {k}" for k in range(6)]))
    found = open_source(tmp_path / "e.npz", SourceOptions(images="files", text="said")).describe(2)
    assert found["image"].startswith(b"\xff\xd8")
    assert found["text"] == "text 2"
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "paths.txt").write_text("\n".join(paths))
    (tmp_path / "texts.txt").write_text("\n".join(f"text {k}" for k in range(6)))
    options = SourceOptions(
        label=str(tmp_path / "y.npy"), images=str(tmp_path / "paths.txt"), text=str(tmp_path / "texts.txt")
    )
    source = open_source(tmp_path / "X.npy", options)
    assert {name: source.describe(2)[name] for name in ("image", "text")} == {
        name: found[name] for name in ("image", "text")
    }
    assert "image" not in source.describe(5)
    assert source.describe(5)["fields"]["image"] == "pictures/5.png (can't be read)"
    rows = "".join(f"{k},pictures/{k}.png,{'ab'[k % 2]}\n" for k in range(5))
    (tmp_path / "t.csv").write_text("x,file,y\n" + rows + "5,pictures/lost.png,a\n")
    with pytest.raises(FileNotFoundError, match=r"^--images names 1 files that are not in .*: pictures/lost.png; exp"):
        open_source(tmp_path / "t.csv", SourceOptions(label="y", images="file", features=("x",)))
    with pytest.raises(FileNotFoundError, match=r"^--images is 'no', which is neither a column of .* nor a file; exp"):
        open_source(tmp_path / "t.csv", SourceOptions(label="y", images="no", features=("x",)))
    (tmp_path / "short.txt").write_text("one\n")
    with pytest.raises(ValueError, match=r"short.txt has 1 entries, and there are 6 samples; expected one for each$"):
        open_source(tmp_path / "e.npz", SourceOptions(text=str(tmp_path / "short.txt")))
