"""`vri clean`: what it writes, how it goes on after a stop, and what it refuses."""

import csv
import json
import os
import re
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from vri import METHODS
from vri.cleaning import pipeline as run
from vri.cleaning.sources import SourceOptions, open_source
from vri.cleaning.state import Findings
from vri.cli import main

FILES = ["classifier.safetensors", "corrected.csv", "label_issues.csv", "report.html", "state", "summary.json"]


class FakeClassifier:
    """Believes that the first feature, rounded, is the place of the true class; keeps what it was asked."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012
    fitted: list[tuple[np.ndarray, np.ndarray, Any]] = []  # noqa: RUF012

    def __init__(self, module: Any = None, **settings: Any) -> None:
        self.settings = settings | {"module": module}
        FakeClassifier.asked.append(self.settings)

    def fit(self, X: Any, y: Any, trusted: Any = None) -> "FakeClassifier":
        FakeClassifier.fitted.append((X, y, trusted))
        self.classes_ = np.unique(y)
        self.given, self.true = y, self._places(X)
        right = self.classes_[self.true] == y
        noise = np.linspace(0, 0.05, len(y))
        self.label_quality_ = np.where(right, 0.9, 0.1) + noise
        self.trusted = np.zeros(len(y), bool) if trusted is None else trusted
        self.label_quality_[self.trusted] = 1.0
        self.confidence = np.where(right, 0.05, np.where(np.arange(len(y)) % 2, 0.95, 0.85))
        self.fold_ = np.arange(len(y)) % 2
        self.out_of_sample_proba_ = np.eye(len(self.classes_))[self.true]
        self.transition_matrix_ = np.arange(len(self.classes_) ** 2).reshape(len(self.classes_), -1) / 100
        self.noise_rate_, self.noise_rate_interval_, self.threshold_ = 0.25, (0.2, 0.3), 0.5
        return self

    def _places(self, X: Any) -> np.ndarray:
        return np.asarray(X)[:, 0].round().astype(int)

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), self.classes_[0])  # the plain one knows nothing

    def find_label_issues(self) -> pd.DataFrame:
        other = (np.searchsorted(self.classes_, self.given) + 1) % len(self.classes_)
        wrong = self.classes_[self.true] != self.given
        return pd.DataFrame(
            {
                "given_label": self.given,
                "predicted_label": self.classes_[np.where(wrong, self.true, other)],
                "label_quality": self.label_quality_,
                "is_label_issue": self.label_quality_ < 0.5,
                "predicted_probability": self.confidence,
                "outlier_score": np.linspace(0, 1, len(self.given)),
            }
        )

    def save(self, path: Path) -> None:
        path.write_bytes(b"weights")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClassifier]:
    FakeClassifier.asked, FakeClassifier.fitted = [], []
    monkeypatch.setattr(run, "VRIClassifier", FakeClassifier)
    return FakeClassifier


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(folder: Path) -> Path:
    """12 rows; the true classes are =a, b, c by turns, and rows 1, 4 and 9 are labelled as the next one."""
    rows = []
    for n in range(12):
        true = n % 3
        given = (true + 1) % 3 if n in (1, 4, 9) else true
        rows.append(f"k{n},{true}.1,{'yes' if n in (0, 9) else 'no'},{('=a', 'b', 'c')[given]}")
    path = folder / "t.csv"
    path.write_text("key,x,ok,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        "clean",
        str(table(folder)),
        "--label",
        "y",
        "--id",
        "key",
        "--features",
        "x",
        "--cross-fit",
        "5",
        "--out",
        str(folder / "out"),
        *more,
    ]


# what it writes


def test_files_say_what_the_classifier_found(tmp_path: Path, fake: type[FakeClassifier], capsys: Any) -> None:
    assert main(arguments(tmp_path)) == 0
    out = tmp_path / "out"
    assert sorted(os.listdir(out)) == FILES

    issues = read(out / "label_issues.csv")
    assert list(issues[0]) == [
        "id",
        "given_label",
        "predicted_label",
        "label_quality",
        "is_label_issue",
        "predicted_probability",
        "outlier_score",
    ]
    assert [row["id"] for row in issues] == ["k1", "k4", "k9", "k0", "k2", "k3", "k5", "k6", "k7", "k8", "k10", "k11"]
    quality = 0.1 + np.linspace(0, 0.05, 12)[4]
    assert issues[1] == {
        "id": "k4",
        "given_label": "c",
        "predicted_label": "b",
        "label_quality": f"{quality:.6f}",
        "is_label_issue": "true",
        "predicted_probability": "0.850000",
        "outlier_score": f"{4 / 11:.6f}",
    }
    assert [row["is_label_issue"] for row in issues] == ["true"] * 3 + ["false"] * 9
    assert issues[2]["predicted_label"] == "'=a"  # a spreadsheet would calculate =a

    corrected = read(out / "corrected.csv")
    assert [row["id"] for row in corrected] == [f"k{n}" for n in range(12)]
    # 0.85 for k4 is below 0.9
    assert {row["id"]: (row["given_label"], row["label"]) for row in corrected if row["changed"] == "true"} == {
        "k1": ("c", "b"),
        "k9": ("b", "'=a"),
    }
    assert all(row["label"] == row["given_label"] for row in corrected if row["changed"] == "false")

    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["classes"] == ["=a", "b", "c"]
    assert (summary["samples"], summary["issues"], summary["trusted"], summary["changed"]) == (12, 3, 0, 2)
    assert summary["pair_counts"] == [[0, 0, 0], [1, 0, 0], [0, 2, 0]]
    assert summary["quality_counts"] == np.histogram(fake_quality(), 40, (0, 1))[0].tolist()
    assert summary["transition_matrix"] == (np.arange(9).reshape(3, 3) / 100).tolist()
    assert summary["accuracy_on"] == "6 samples held out, against their given labels"
    # rows 0, 2, 4, 6, 8, 10 are fold 0: =a, c, (b, given c), =a, c, b
    assert summary["accuracy_before"] == pytest.approx(2 / 6)
    assert summary["accuracy_after"] == pytest.approx(5 / 6)
    assert summary["command"].startswith("vri clean ")
    assert main(summary["command"].split()[1:]) == 0  # it is the command

    printed = capsys.readouterr().out.split("\n")
    assert printed[:8] == [
        "12 labels of 3 classes",
        "estimated to be wrong: 25.0% (between 20.0% and 30.0%)",
        "issues found: 3",
        "most often:",
        "  labelled c, looks like b: 2",
        "  labelled b, looks like =a: 1",
        "accuracy: 33.3% by plain training, 83.3% by vri (6 samples held out, against their given labels)",
        f"wrote label_issues.csv, corrected.csv, classifier.safetensors, summary.json and report.html to {out}/",
    ]


def fake_quality() -> np.ndarray:
    return np.where(np.isin(np.arange(12), (1, 4, 9)), 0.1, 0.9) + np.linspace(0, 0.05, 12)


def test_the_classifier_gets_what_was_asked_for(tmp_path: Path, fake: type[FakeClassifier]) -> None:
    assert (
        main(arguments(tmp_path, "--cross-fit", "3", "--epochs", "7", "--seed", "5", "--trusted", "ok", "--quiet")) == 0
    )
    state = tmp_path / "out" / "state"
    common = {"module": None, "epochs": 7, "random_state": 5, "device": "cpu", "verbose": 0}
    if torch.cuda.is_available():
        common["device"] = "cuda"
    assert fake.asked == [
        common | {"method": "vri", "cross_fit": 3, "checkpoint_dir": state / "vri"},
        common | {"method": "cross-entropy", "cross_fit": None, "checkpoint_dir": state / "plain"},
    ]
    (x, y, trusted), (plain_x, plain_y, plain_trusted) = fake.fitted
    np.testing.assert_allclose(x[:, 0], [n % 3 + 0.1 for n in range(12)])
    assert trusted.tolist() == [n in (0, 9) for n in range(12)]
    np.testing.assert_array_equal(plain_x, x[1::2])  # without fold 0
    np.testing.assert_array_equal(plain_y, y[1::2])
    assert plain_trusted is None
    corrected = {row["id"]: row["changed"] for row in read(tmp_path / "out" / "corrected.csv")}
    assert corrected["k9"] == "false"  # trusted


def test_accuracy_is_measured_on_trusted_samples_where_there_are_enough(
    tmp_path: Path, fake: type[FakeClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "ENOUGH_TRUSTED", 1)
    assert main(arguments(tmp_path, "--trusted", "ok", "--quiet")) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["accuracy_on"] == "1 trusted samples held out"
    assert (summary["accuracy_before"], summary["accuracy_after"]) == (1.0, 1.0)  # row 0, the first class


def test_without_cross_fitting_a_fifth_is_held_out(tmp_path: Path, fake: type[FakeClassifier]) -> None:
    assert main(arguments(tmp_path, "--cross-fit", "0", "--trusted", "ok", "--quiet")) == 0
    state = tmp_path / "out" / "state"
    assert [(asked["method"], asked["cross_fit"], asked["checkpoint_dir"]) for asked in fake.asked] == [
        ("vri", None, state / "vri"),
        ("vri", None, state / "held-out"),
        ("cross-entropy", None, state / "plain"),
    ]
    (_, y, _), (part_x, part_y, part_trusted), (plain_x, plain_y, _) = fake.fitted
    counts, left = (np.unique(labels, return_counts=True)[1] for labels in (y, part_y))
    assert (counts - left).tolist() == [-(-count // 5) for count in counts.tolist()]  # a fifth, rounded up
    held = 12 - len(part_x)
    assert len(part_trusted) == len(part_x)
    np.testing.assert_array_equal(part_x, plain_x)
    np.testing.assert_array_equal(part_y, plain_y)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["accuracy_on"] == f"{held} samples held out, against their given labels"
    # the fake predicts the first class
    assert summary["accuracy_before"] == summary["accuracy_after"] == pytest.approx((counts - left)[0] / held)


def test_the_only_sample_of_a_class_is_not_judged(tmp_path: Path, fake: type[FakeClassifier], capsys: Any) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text() + "k12,0.1,no,alone\n")
    out = tmp_path / "out"
    assert (
        main(
            [
                "clean",
                str(path),
                "--label",
                "y",
                "--id",
                "key",
                "--features",
                "x",
                "--cross-fit",
                "2",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert "  classes with a single sample, whose label can't be judged: alone\n" in capsys.readouterr().err
    assert all(len(y) == n for (_, y, _), n in zip(fake.fitted, (12, 6), strict=True))
    last = read(out / "label_issues.csv")[-1]
    assert list(last.values()) == ["k12", "alone", "", "", "false", "", ""]
    assert read(out / "corrected.csv")[-1]["label"] == "alone"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["classes"] == ["=a", "alone", "b", "c"]
    assert summary["transition_matrix"][1] == [0, 1, 0, 0]
    assert summary["transition_matrix"][2] == [0.03, 0, 0.04, 0.05]
    assert summary["not_judged"] == 1
    assert sum(summary["quality_counts"]) == 12


def test_classes_that_are_numbers_are_sorted_by_value(tmp_path: Path, fake: type[FakeClassifier]) -> None:
    y = np.array([2, 10, 9] * 4)
    x = np.array([["10", "2", "9"].index(str(label)) for label in y], float)  # the fake sorts text by letter
    np.savez(tmp_path / "e.npz", X=x[:, None], y=y)
    assert main(["clean", str(tmp_path / "e.npz"), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["classes"] == ["2", "9", "10"]
    assert summary["issues"] == 0
    by_letter = np.arange(9).reshape(3, 3) / 100
    assert summary["transition_matrix"] == by_letter[np.ix_([1, 2, 0], [1, 2, 0])].tolist()


class Texts(HTMLParser):
    """The data blocks of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.blocks.append(data)


def test_images_reach_the_page_most_suspicious_first_and_capped(
    tmp_path: Path, fake: type[FakeClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(run, "write_report", lambda path, summary, suspects: seen.extend([summary, *suspects]))
    monkeypatch.setattr(fake, "_places", lambda self, X: (X[:, 0, 0, 0] > 127).astype(int))
    root = tmp_path / "photos"
    for name, value in (("a/0", 0), ("a/<script>", 255), ("a/2", 255), ("b/0", 255), ("b/1", 0), ("b/2", 255)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (300, 200), value).save(root / f"{name}.png")
    assert main(["clean", str(root), "--out", str(tmp_path / "out"), "--max-suspects", "2", "--quiet"]) == 0
    summary, *suspects = seen
    assert (summary.issues, summary.source) == (3, "photos")
    assert [(s.id, s.given, s.suggested) for s in suspects] == [("a/2.png", "a", "b"), ("a/<script>.png", "a", "b")]
    assert all(s.image.startswith(b"\xff\xd8") for s in suspects)
    assert fake.fitted[0][0].shape == (6, 3, 32, 32)
    assert fake.asked[0]["module"](2)(torch.zeros(1, 3, 32, 32)).shape == (1, 2)


# going on


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_finished_run_is_written_anew_without_training(
    tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    assert main(arguments(tmp_path)) == 0
    first = snapshot(tmp_path / "out")
    (tmp_path / "out" / "corrected.csv").unlink()
    trained = len(fake.fitted)
    capsys.readouterr()
    assert main(arguments(tmp_path)) == 0
    assert len(fake.fitted) == trained
    assert "everything was trained before" in capsys.readouterr().err
    assert snapshot(tmp_path / "out") == first
    assert main(arguments(tmp_path, "--confidence", "0.8")) == 0  # needs no training either
    assert len(fake.fitted) == trained
    assert [r["id"] for r in read(tmp_path / "out" / "corrected.csv") if r["changed"] == "true"] == ["k1", "k4", "k9"]


def test_findings_survive_the_disk(tmp_path: Path, fake: type[FakeClassifier]) -> None:
    assert main(arguments(tmp_path, "--quiet")) == 0
    found = Findings.load(tmp_path / "out")
    assert found is not None
    found.save(tmp_path / "out")
    again = Findings.load(tmp_path / "out")
    assert again is not None
    for name, value in vars(found).items():
        np.testing.assert_array_equal(value, getattr(again, name))
    np.testing.assert_array_equal(found.quality, fake_quality())
    assert found.noise_interval == again.noise_interval == (0.2, 0.3)


def test_other_settings_are_refused_and_fresh_starts_anew(
    tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    out = tmp_path / "out"
    assert main(arguments(tmp_path, "--quiet")) == 0
    first = snapshot(out)
    capsys.readouterr()
    assert main(arguments(tmp_path, "--quiet", "--seed", "1", "--cross-fit", "3")) == 2
    assert capsys.readouterr().err == (
        f"vri clean: {out} holds a run with other settings: seed was 0 and is 1; cross_fit was 5 and is 3; use the "
        "same to go on, give another --out, or pass --fresh to start anew\n"
    )
    assert snapshot(out) == first
    (out / "notes.txt").write_text("mine")
    assert main(arguments(tmp_path, "--quiet", "--seed", "1", "--cross-fit", "3", "--fresh")) == 0
    assert fake.asked[-1]["random_state"] == 1
    assert (out / "notes.txt").read_text() == "mine"
    assert json.loads((out / "state" / "settings.json").read_text())["cross_fit"] == 3


def test_a_folder_that_a_killed_start_left_can_be_used(tmp_path: Path, fake: type[FakeClassifier]) -> None:
    (tmp_path / "out" / "state").mkdir(parents=True)
    (tmp_path / "out" / "state" / ".settings.json.1.tmp").write_text("{")
    assert main(arguments(tmp_path, "--quiet")) == 0


def test_a_source_that_changed_is_noticed(tmp_path: Path, fake: type[FakeClassifier], capsys: Any) -> None:
    assert main(arguments(tmp_path, "--quiet")) == 0
    call = arguments(tmp_path, "--quiet")
    path = tmp_path / "t.csv"
    path.write_text(path.read_text().replace("k3,", "k33,"))
    assert main(call) == 2
    assert f"{tmp_path / 'out'} holds a run with other settings: content of the source was " in capsys.readouterr().err


def digits(folder: Path) -> list[str]:
    data = load_digits()
    generator = np.random.default_rng(0)
    y = data.target[:200].copy()
    wrong = generator.random(200) < 0.2
    y[wrong] = (y[wrong] + 1) % 10
    np.savez(folder / "digits.npz", X=data.data[:200].astype(np.float32), y=y)
    return ["clean", str(folder / "digits.npz"), "--cross-fit", "2", "--epochs", "8", "--quiet"]


def test_a_stopped_run_goes_on_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    call = digits(tmp_path)
    steps: list[str] = []
    for method in ("vri", "cross-entropy"):
        step = METHODS[method].step
        monkeypatch.setattr(
            METHODS[method],
            "step",
            lambda *a, _name=method, _step=step, **k: steps.append(_name) or count(steps, _step, a, k),
        )
    stops: set[int] = set()

    def count(done: list[str], step: Any, a: Any, k: Any) -> Any:
        if len(done) in stops:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*a, **k)

    assert main([*call, "--out", str(tmp_path / "whole")]) == 0
    total = len(steps)
    first_plain = steps.index("cross-entropy")
    steps.clear()
    again = [*call, "--out", str(tmp_path / "out")]
    for stop in (5, first_plain // 2, first_plain + 3):  # in the first network, in a fold, in the plain one
        stops = {stop}
        capsys.readouterr()
        assert main(again) == 130
        assert capsys.readouterr().err.endswith("\nstopped; the same command goes on where it was\n")
        assert not (tmp_path / "out" / "label_issues.csv").exists()
    stops = set()
    assert main(again) == 0
    assert len(steps) <= total + 3  # nothing is done twice but the steps of a stop
    whole, out = tmp_path / "whole", tmp_path / "out"
    for name in ("label_issues.csv", "corrected.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    weights, expected = (load_file(folder / "classifier.safetensors") for folder in (out, whole))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (whole, out))
    for summary in (one, two):
        del summary["seconds"], summary["command"]
    assert one == two


# what it refuses


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--confidence", "1.5"], "--confidence is 1.5; expected 0 to 1"),
        (["--cross-fit", "1"], "--cross-fit is 1; expected 2 or more, or 0 for none"),
        (
            ["--epochs", "0", "--max-suspects", "0"],
            "--epochs is 0; expected 1 or more; --max-suspects is 0; expected 1 or more",
        ),
        (["--seed", "-1"], "--seed is -1; expected 0 to 4294967295"),
        (["--text", "key"], "key can't be a feature: it is the label, the id or trusted; leave it out"),
        (["--backbone", "mlp"], "--backbone can't be used with a .csv table; leave it out"),
    ],
)
def test_wrong_options_are_told_in_a_line_and_nothing_is_written(
    tmp_path: Path, capsys: Any, more: list[str], message: str
) -> None:
    assert main([*arguments(tmp_path), *more, "--quiet"]) == 2
    assert capsys.readouterr().err == f"vri clean: {message}\n"
    assert os.listdir(tmp_path) == ["t.csv"]


def test_a_device_that_is_not_there(tmp_path: Path, capsys: Any) -> None:
    assert main(arguments(tmp_path, "--device", "quantum", "--quiet")) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(
        r"vri clean: --device is 'quantum', which can't be used \(.*\); expected auto, cpu or cuda\n", error
    )


def test_a_source_that_is_not_there(tmp_path: Path, capsys: Any) -> None:
    lost = tmp_path / "lost"
    assert main(["clean", str(lost), "--out", str(tmp_path / "out"), "--quiet"]) == 2
    expected = "expected a folder of images by class, a table (.csv, .tsv, .parquet, .pq), an .npz or an .npy file"
    assert capsys.readouterr().err == f"vri clean: {lost} is not there; {expected}\n"
    assert os.listdir(tmp_path) == []


def test_folders_that_cannot_take_the_results(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path)

    def refused(out: Path, source: Path = path) -> str:
        assert main(["clean", str(source), "--label", "y", "--out", str(out), "--quiet"]) == 2
        return str(capsys.readouterr().err).removeprefix("vri clean: ").removesuffix("\n")

    assert refused(path) == f"--out is {path}, a file; expected a folder: give another name"
    below = path / "out"
    assert refused(below) == f"--out is {below}, and nothing can be written in {path}; give another folder"
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    assert refused(full) == (
        f"--out is {full}, which has other files in it; expected a new or empty folder: give another name"
    )
    inside = full / "out"
    assert refused(inside, full) == (
        f"--out is {inside}, inside {full}, which is never changed; expected a folder outside of it"
    )
    monkeypatch.setattr(os, "access", lambda *_: False)
    new = tmp_path / "new"
    assert refused(new) == f"--out is {new}, and nothing can be written in {tmp_path}; give another folder"
    assert sorted(os.listdir(tmp_path)) == ["full", "t.csv"]
    assert os.listdir(full) == ["mine"]


def test_the_page_of_a_real_run_and_its_review_fit_together(tmp_path: Path, fake: type[FakeClassifier]) -> None:
    """The suspects of the page, all accepted, applied: the labels are the true ones."""
    assert main(arguments(tmp_path, "--quiet")) == 0
    page = Texts()
    page.feed((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert any("k4" in block for block in page.blocks)
    issues = [row for row in read(tmp_path / "out" / "label_issues.csv") if row["is_label_issue"] == "true"]
    with (tmp_path / "review.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "given_label", "suggested_label", "decision", "new_label"])
        for row in issues:  # cells are escaped alike in both files
            new = row["predicted_label"]
            writer.writerow([row["id"], row["given_label"], new, "accept", new])
    applied = ["apply", str(tmp_path / "t.csv"), str(tmp_path / "review.csv"), "--label", "y", "--id", "key"]
    assert main([*applied, "--out", str(tmp_path / "new")]) == 0
    assert open_source(tmp_path / "new" / "t.csv", SourceOptions(label="y", id="key", features=("x",))).labels == [
        ("=a", "b", "c")[n % 3] for n in range(12)
    ]
