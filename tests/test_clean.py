"""`vri clean`: what it writes, and what it refuses."""

import csv
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fake_classifier import FOLDS, PARTLY, FakeClassifier, arguments, fake_quality, installed, read, table
from vri.cleaning import work
from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import open_source
from vri.cli import main

FILES = ["classifier.safetensors", "corrected.csv", "label_issues.csv", "report.html", "state", "summary.json"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClassifier]:
    return installed(monkeypatch)


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
    assert (summary["accuracy_before"], summary["accuracy_after"]) == (None, 9 / 12)  # as many labels are right
    assert summary["accuracy_on"] == f"12 samples {FOLDS}, {PARTLY}"
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
        f"accuracy: 75.0% by vri (on 12 samples {FOLDS}, {PARTLY})",
        f"wrote label_issues.csv, corrected.csv, classifier.safetensors, summary.json and report.html to {out}/",
    ]


def test_the_classifier_gets_what_was_asked_for(tmp_path: Path, fake: type[FakeClassifier]) -> None:
    assert (
        main(arguments(tmp_path, "--cross-fit", "3", "--epochs", "7", "--seed", "5", "--trusted", "ok", "--quiet")) == 0
    )
    state = tmp_path / "out" / "state"
    common = {"module": None, "epochs": 7, "random_state": 5, "device": "cpu", "evidence": "auto"}
    if torch.cuda.is_available():
        common["device"] = "cuda"
    assert fake.asked == [common | {"method": "vri", "cross_fit": 3, "checkpoint_dir": state / "vri"}]
    ((x, _, trusted),) = fake.fitted
    np.testing.assert_allclose(x[:, 0], [n % 3 + 0.1 for n in range(12)])
    assert trusted.tolist() == [n in (0, 9) for n in range(12)]
    corrected = {row["id"]: row["changed"] for row in read(tmp_path / "out" / "corrected.csv")}
    assert corrected["k9"] == "false"  # trusted


def test_accuracy_is_measured_on_trusted_samples_where_there_are_enough(
    tmp_path: Path, fake: type[FakeClassifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "ENOUGH_TRUSTED", 2)
    assert main(arguments(tmp_path, "--trusted", "ok", "--quiet")) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["accuracy_on"] == f"2 trusted samples {FOLDS}"
    assert summary["accuracy_after"] == 1 / 2  # rows 0 and 9, of which the fake takes the second for wrong


def test_without_cross_fitting_accuracy_is_that_of_the_kept_epoch(
    tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    assert main(arguments(tmp_path, "--cross-fit", "0", "--quiet")) == 0
    assert len(fake.fitted) == 1
    assert f"accuracy: 75.0% by vri (on samples held out to choose the epoch, {PARTLY})" in capsys.readouterr().out


def test_compare_holds_a_fifth_out_and_trains_only_what_is_missing(
    tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    assert main(arguments(tmp_path, "--trusted", "ok", "--quiet")) == 0
    assert "plain" not in capsys.readouterr().out
    for _ in range(2):  # the second time nothing is trained
        assert main(arguments(tmp_path, "--trusted", "ok", "--quiet", "--compare")) == 0
    state = tmp_path / "out" / "state"
    assert [(asked["method"], asked["cross_fit"], asked["checkpoint_dir"]) for asked in fake.asked] == [
        ("vri", 5, state / "vri"),
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
    assert summary["accuracy_on"] == f"{held} samples held out, {PARTLY}"
    # the fake predicts the first class
    assert summary["accuracy_before"] == summary["accuracy_after"] == pytest.approx((counts - left)[0] / held)
    share = f"{summary['accuracy_after']:.1%}"
    assert f"accuracy: {share} by plain training, {share} by vri (on " in capsys.readouterr().out


def test_the_only_sample_of_a_class_is_not_judged(tmp_path: Path, fake: type[FakeClassifier], capsys: Any) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text() + "k12,0.1,no,alone\n")
    out = tmp_path / "out"
    call = ["clean", str(path), "--label", "y", "--id", "key", "--features", "x", "--cross-fit", "2"]
    assert main([*call, "--out", str(out)]) == 0
    assert "  classes with a single sample, whose label can't be judged: alone\n" in capsys.readouterr().err
    assert [len(y) for _, y, _ in fake.fitted] == [12]
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
    monkeypatch.setattr(work, "write_report", lambda path, summary, suspects: seen.extend([summary, *suspects]))
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


# what it refuses


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--confidence", "1.5"], "--confidence is 1.5; expected 0 to 1"),
        (["--cross-fit", "1"], "--cross-fit is 1; expected 2 or more, or 0 for none"),
        (
            ["--epochs", "1", "--max-suspects", "0"],
            "--epochs is 1; expected 2 or more: the first learns plainly; --max-suspects is 0; expected 1 or more",
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
    tables = ".csv, .tsv, .jsonl, .ndjson, .parquet, .pq"
    expected = f"expected a folder of images by class, a table ({tables}), an .npz or an .npy file, or a list of "
    expected += "images (.json)"
    assert capsys.readouterr().err == f"vri clean: {lost} is not there; {expected}\n"
    assert os.listdir(tmp_path) == []


def unable(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")


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
    assert refused(Path("/proc/x")) == "--out is /proc/x, and nothing can be written in /proc; give another folder"
    monkeypatch.setattr(os, "mkdir", unable)
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
