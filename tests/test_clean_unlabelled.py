"""`vri clean --unlabelled` on images and embeddings, and a label that stands for none: predicted, not judged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fake_classifier import FakeClassifier, installed, read
from npy_files import call, digits
from vri import VRIClassifier
from vri.cleaning import stream
from vri.cleaning.arrow import read_parquet
from vri.cli import main


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClassifier]:
    """Sure of the class that the first number (of an image: its first pixel / 100) is the place of."""

    def places(self: Any, X: Any) -> np.ndarray:
        first = np.asarray(X).reshape(len(X), -1)[:, 0]
        return np.round(first / (100 if np.ndim(X) == 4 else 1)).astype(int)

    def predict_proba(self: Any, X: Any) -> np.ndarray:
        sure = np.where(np.arange(len(X)) % 2, 0.7, 0.96)[:, None]
        return np.where(np.eye(len(self.classes_))[places(self, X)] == 1, sure, (1 - sure) / (len(self.classes_) - 1))

    monkeypatch.setattr(FakeClassifier, "predict_proba", predict_proba, raising=False)
    monkeypatch.setattr(FakeClassifier, "_places", places)
    return installed(monkeypatch)


def photos(folder: Path) -> Path:
    """Ten images of each of two classes; three in `unknown` and two in no folder, of class b but the first."""
    root = folder / "photos"
    paths = [f"{name}/{k}.png" for name in "ab" for k in range(10)] + [f"unknown/{k}.png" for k in range(3)]
    for path in (*paths, "0.png", "x.png"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shade = 0 if path.startswith(("a/", "unknown/0")) else 100
        Image.new("RGB", (16, 16), (shade,) * 3).save(root / path)
    return root


def test_images_in_no_folder_of_a_class(tmp_path: Path, fake: type[FakeClassifier], capsys: Any) -> None:
    root, out = photos(tmp_path), tmp_path / "out"
    assert main(["clean", str(root), "--unlabelled=unknown", "--out", str(out), "--quiet"]) == 0
    assert [len(y) for _, y, _ in fake.fitted] == [20]
    assert fake.fitted[0][1].tolist() == ["a"] * 10 + ["b"] * 10
    issues = {row["id"]: row for row in read(out / "label_issues.csv")}
    corrected = {row["id"]: row for row in read(out / "corrected.csv")}
    assert len(issues) == len(corrected) == 25
    names = ["unknown/0.png", "unknown/1.png", "unknown/2.png", "0.png", "x.png"]
    for number, (name, label) in enumerate(zip(names, "abbbb", strict=True)):
        row, sure = issues[name], (0.96, 0.7)[number % 2]
        assert (row["given_label"], row["predicted_label"], row["label_quality"]) == ("", label, "")
        assert (row["is_label_issue"], float(row["predicted_probability"])) == ("false", sure)
        assert corrected[name]["label"] == (label if sure > 0.9 else "")
        assert corrected[name]["changed"] == ("true" if sure > 0.9 else "false")
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["samples"], summary["unlabelled"], summary["classes"]) == (20, 5, ["a", "b"])
    remark = (
        "5 samples have no label: label_issues.csv has a predicted one for each, and corrected.csv the 3 that are at "
    )
    assert summary["remarks"] == [f"{remark}least 90% sure"]
    assert summary["command"].endswith("--unlabelled=unknown")
    assert main(["apply", str(root), str(out), "--out", str(tmp_path / "new"), "--copy"]) == 0
    made = {row["original"]: row["path"] for row in read(tmp_path / "new" / "labels.csv")}
    assert {name: made[name] for name in names} == {
        "unknown/0.png": "a/0-from-unlabelled.png",  # a/0.png is taken
        "unknown/1.png": "unknown/1.png",
        "unknown/2.png": "b/2-from-unlabelled.png",
        "0.png": "0.png",
        "x.png": "b/x.png",
    }
    for original, path in made.items():
        assert (tmp_path / "new" / path).read_bytes() == (root / original).read_bytes()


def test_images_in_no_folder_are_left_out_unless_they_are_wanted(
    tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    root, out = photos(tmp_path), tmp_path / "out"
    assert main(["clean", str(root), "--out", str(out)]) == 0
    note = (
        "2 images are in no folder of a class and are left out: 0.png, x.png; --unlabelled takes them as samples "
        "without label"
    )
    assert note in capsys.readouterr().err
    assert json.loads((out / "summary.json").read_text())["notes"][0] == note
    assert {row["given_label"] for row in read(out / "label_issues.csv")} == {"a", "b", "unknown"}
    assert main(["clean", str(root), "--out", str(tmp_path / "more"), "--unlabelled", "--quiet"]) == 0
    found = {row["id"]: row["given_label"] for row in read(tmp_path / "more" / "label_issues.csv")}
    assert [name for name, given in found.items() if not given] == ["0.png", "x.png"]


@pytest.mark.parametrize(
    ("labels", "option"),
    [
        (lambda y: np.where(np.arange(8) < 3, np.nan, y), "--unlabelled"),
        (lambda y: np.where(np.arange(8) < 3, -1, y), "--unlabelled=-1"),
        (lambda y: np.where(np.arange(8) < 3, -1.0, y), "--unlabelled=-1"),
        (lambda y: np.where(np.arange(8) < 3, "", y.astype(str)), "--unlabelled"),
        (lambda y: np.where(np.arange(8) < 3, "?", y.astype(str)), "--unlabelled=?"),
        (lambda y: np.where(np.arange(8) < 3, ["?", " ", "?"] * 2 + [""] * 2, y.astype(str)), "--unlabelled=?"),
    ],
)
@pytest.mark.parametrize("kind", ["npz", "npy", "csv"])
def test_missing_labels_of_embeddings(
    labels: Any, option: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: type[FakeClassifier]
) -> None:
    monkeypatch.chdir(tmp_path)
    true = np.array([1, 0, 1, 0, 0, 1, 1, 1])
    y, X = labels(np.array([9, 9, 9, 0, 0, 1, 1, 0])), np.stack([true, true], 1).astype(float)
    source = {"npz": ["e.npz"], "npy": ["e.npy", "--labels", "y.npy"], "csv": ["e.csv", "--label", "y"]}[kind]
    np.savez("e.npz", X=X, y=y)
    np.save("e.npy", X)
    np.save("y.npy", y)
    pd.DataFrame({"x": X[:, 0], "y": y}).to_csv("e.csv", index=False)
    assert main(["clean", *source, option, "--out", "out", "--quiet"]) == 0
    assert fake.fitted[0][1].tolist() == ["0", "0", "1", "1", "0"]
    corrected = read(Path("out/corrected.csv"))
    assert [row["given_label"] for row in corrected] == ["", "", "", "0", "0", "1", "1", "0"]
    assert [row["label"] for row in corrected[:3]] == ["1", "", "1"]  # the second isn't sure
    assert [row["changed"] for row in corrected[:3]] == ["true", "false", "true"]
    assert main(["apply", source[0], "out", "--out", "new"]) == 0
    if kind == "csv":
        before, after = (pd.read_csv(path, dtype=str, keep_default_na=False)["y"] for path in ("e.csv", "new/e.csv"))
    else:
        before, after = y, np.load("new/e.npz")["y"] if kind == "npz" else np.load("new/y.npy")
        assert after.dtype.kind == y.dtype.kind
    assert [float(after[0]), float(after[2])] == [1, 1]
    same = [1, 3, 4, 5, 6]
    np.testing.assert_array_equal(after[same], before[same])


@pytest.mark.parametrize(
    ("names", "more", "message"),
    [
        (
            ["a", "b", "?", "a", "b"],
            ["--unlabelled=unkown"],
            "--unlabelled is 'unkown', and y.npy has the labels ?, a, b; expected the one that stands for no label: "
            "check the name, or leave it out",
        ),
        (
            [""] * 5,
            ["--unlabelled"],
            "no sample of y.npy has a label; expected labels of at least two classes to learn from",
        ),
        (
            ["a", "b", "", "a", "b"],
            ["--unlabelled", "--trusted", "ok.npy"],
            "--trusted marks 1 samples without label: 2; expected labels that are known to be right: fill them in, or "
            "don't trust them",
        ),
    ],
)
def test_what_is_refused(
    names: list[str], more: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", np.arange(10.0).reshape(5, 2))
    np.save("y.npy", np.array(names))
    np.save("ok.npy", np.arange(5) == 2)
    assert main(["clean", "X.npy", "--labels", "y.npy", "--out", "out", *more]) == 2
    assert capsys.readouterr().err == f"vri clean: {message}\n"
    assert not Path("out").exists()


def test_a_folder_that_is_not_there_and_a_table_without_labels(tmp_path: Path, capsys: Any) -> None:
    root = photos(tmp_path)
    assert main(["clean", str(root), "--unlabelled=unkown", "--out", str(tmp_path / "out"), "--quiet"]) == 2
    assert capsys.readouterr().err == (
        f"vri clean: --unlabelled is 'unkown', and {root} has the labels a, b, unknown; expected the one that stands "
        "for no label: did you mean 'unknown'?\n"
    )
    (tmp_path / "t.csv").write_text("x,y\n1,\n2,\n")
    call = ["clean", str(tmp_path / "t.csv"), "--label", "y", "--unlabelled", "--quiet"]
    assert main([*call, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"vri clean: no sample of {tmp_path / 't.csv'} has a label; expected labels of at least two classes to learn "
        "from\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["nan", "-1", "?"])
def test_missing_labels_of_a_streamed_file(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_PART", 500 * 1024)
    given, _ = digits(tmp_path)
    blank = np.arange(1797) % 9 == 4
    if missing == "?":
        labels = np.where(blank, "?", given.astype(str))
    else:
        labels = np.where(blank, float(missing), given) if missing == "nan" else np.where(blank, -1, given)
    np.save(tmp_path / "y.npy", labels)
    option = "--unlabelled" if missing == "nan" else f"--unlabelled={missing}"
    command = call(tmp_path, "--sample", "600", "--epochs", "3", "--confidence", "0.8", option)
    assert main(command) == 0
    parts = {
        name: pd.concat([read_parquet(path).to_pandas() for path in sorted((tmp_path / "out" / name).iterdir())])
        for name in ("label_issues", "corrected")
    }
    issues, corrected = parts["label_issues"], parts["corrected"]
    np.testing.assert_array_equal(issues["given_label"].isna(), blank)
    np.testing.assert_array_equal(issues["label_quality"].isna(), blank)
    assert not issues["is_label_issue"][blank].any()
    classifier = VRIClassifier.load(tmp_path / "out" / "classifier.safetensors")
    assert classifier.classes_.tolist() == [str(k) for k in range(10)]
    probabilities = classifier.predict_proba(np.load(tmp_path / "X.npy")[blank])
    np.testing.assert_array_equal(issues["predicted_label"][blank].astype(int), probabilities.argmax(1))
    np.testing.assert_allclose(issues["predicted_probability"][blank], probabilities.max(1), atol=1e-5)
    sure = issues["predicted_probability"] >= 0.8
    np.testing.assert_array_equal(corrected["changed"][blank], sure[blank])
    np.testing.assert_array_equal(corrected["label"].isna(), blank & ~sure)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["samples"], summary["unlabelled"], summary["not_judged"]) == (
        1797 - blank.sum(),
        *[blank.sum()] * 2,
    )
    assert summary["noise_rate"] == pytest.approx(1 - issues["label_quality"].mean(), abs=1e-6)
    assert summary["changed"] == corrected["changed"].sum()
    assert summary["remarks"][-1] == (
        f"{blank.sum()} samples have no label: label_issues has a predicted one for each, and corrected the "
        f"{(blank & sure).sum()} that are at least 80% sure"
    )
    assert main(["apply", str(tmp_path / "X.npy"), str(tmp_path / "out"), "--out", str(tmp_path / "new")]) == 0
    after = np.load(tmp_path / "new" / "y.npy")
    filled = (blank & sure).to_numpy()
    np.testing.assert_array_equal(after[filled].astype(float), corrected["label"][filled].astype(float))
    np.testing.assert_array_equal(after[blank & ~filled], labels[blank & ~filled])
