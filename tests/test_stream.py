"""`vri clean` on .npy files: the order and sample of rows, reading, what is written, stops, memory."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

from vri import VRIClassifier, quality
from vri.cleaning import parts as parts_module
from vri.cleaning import stream
from vri.cleaning.drawing import draw
from vri.cleaning.npy import Npy
from vri.cleaning.tables import read_parquet
from vri.cli import main
from vri.data.shuffle import shuffled

# the order


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 1023, 1024, 1025, 10_007])
def test_an_order_has_every_number_once(size: int) -> None:
    for seed in (0, 1, 2**63 - 1):
        np.testing.assert_array_equal(np.sort(shuffled(np.arange(size), size, seed)), np.arange(size))


def test_an_order_is_computed_number_by_number_and_depends_on_the_seed() -> None:
    whole = shuffled(np.arange(1000), 1000, 7)
    some = np.array([[3, 999], [0, 500]])
    np.testing.assert_array_equal(shuffled(some, 1000, 7), whole[some])
    assert [int(shuffled(np.array([i]), 1000, 7)[0]) for i in (0, 17, 999)] == whole[[0, 17, 999]].tolist()
    other = shuffled(np.arange(1000), 1000, 8)
    assert (whole == other).sum() < 10  # one is expected by chance


def test_numbers_of_an_order_can_be_huge() -> None:
    size = 10**12
    places = shuffled(np.arange(size - 1000, size), size, 0)
    assert len(set(places.tolist())) == 1000
    assert places.min() >= 0
    assert places.max() < size


@pytest.mark.parametrize(("size", "seeds"), [(12, 150), (100, 200)])
def test_every_place_in_an_order_is_as_probable(size: int, seeds: int) -> None:
    counts = np.zeros((size, size))
    for seed in range(seeds):
        counts[np.arange(size), shuffled(np.arange(size), size, seed)] += 1
    variance = seeds * (1 / size) * (1 - 1 / size)
    freedom = (size - 1) ** 2  # the sums of rows and columns are known
    chi = ((counts - seeds / size) ** 2).sum() / variance * freedom / size**2
    assert 0.001 < stats.chi2.sf(chi, freedom) < 0.999


def test_neighbours_go_apart() -> None:
    places = shuffled(np.arange(10_007), 10_007, 0).astype(float)
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.04  # four standard errors
    assert abs(np.corrcoef(places, np.arange(10_007))[0, 1]) < 0.04


def test_numbers_outside_of_an_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^numbers go from 0 to 5; expected 0 to 4, of 5$"):
        shuffled(np.array([0, 5]), 5, 0)


# the sample


def literal_draw(groups: np.ndarray, most: int, count: int, seed: int) -> np.ndarray:
    """All rows in order, then by the words of `draw`."""
    rows = [row for row in np.argsort(shuffled(np.arange(len(groups)), len(groups), seed)) if groups[row] >= 0]
    share = max(2, most // (2 * count))
    taken: list[int] = []
    for group in range(count):
        taken += [row for row in rows if groups[row] == group][:share]
    for row in rows:
        if len(taken) < most and row not in taken:
            taken.append(row)
    return np.sort(np.array(taken))


@pytest.mark.parametrize("most", [2, 20, 100, 999, 5000])
@pytest.mark.parametrize("piece", [37, 1000])
def test_a_sample_is_what_its_words_say(most: int, piece: int) -> None:
    generator = np.random.default_rng(0)
    groups = generator.choice(5, 1000, p=[0.6, 0.3, 0.09, 0.009, 0.001]) - 1
    pieces = [groups[start : start + piece] for start in range(0, 1000, piece)]
    found = draw(pieces, 1000, most, 4, seed=3)
    np.testing.assert_array_equal(found, literal_draw(groups, most, 4, seed=3))
    assert set(groups[found]) == {0, 1, 2, 3}  # the last one has a row or two


def test_all_rows_are_drawn_where_there_are_no_more() -> None:
    assert draw([np.zeros(5, int), np.ones(3, int)], 8, 8, 2, seed=0).tolist() == list(range(8))


def test_rows_of_a_group_are_drawn_alike() -> None:
    groups = np.repeat([0, 1], [190, 10])
    drawn = np.zeros(200)
    for seed in range(300):
        drawn[draw([groups], 200, 20, 2, seed)] += 1
    # 5 rows of the rare group and 15 of the other at least; which of them, is chance
    assert drawn[190:].sum() == 300 * 5
    for own, expected in ((drawn[:190], 300 * 15 / 190), (drawn[190:], 300 * 5 / 10)):
        share = expected / 300  # drawn without replacement: a sum of squares of that variance
        chi = ((own - expected) ** 2).sum() / (expected * (1 - share)) * (len(own) - 1) / len(own)
        assert 0.001 < stats.chi2.sf(chi, len(own) - 1) < 0.999


# judging by what a sample told


def beliefs(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = (3 * torch.randn(rows, 4, generator=generator, dtype=torch.float64)).softmax(1)
    given = torch.where(
        torch.rand(rows, generator=generator) < 0.7,
        probabilities.argmax(1),
        torch.randint(4, (rows,), generator=generator),
    )
    return probabilities, given


def test_calibration_says_of_its_own_sample_what_judge_said() -> None:
    probabilities, given = beliefs(500, 0)
    verdict = quality.judge(probabilities, given)
    calibration = quality.Calibration.learn(probabilities, given, verdict)
    assert len(calibration.scores) == 500  # no ties
    right, classes = calibration.judge(probabilities, given)
    assert torch.equal(right, verdict.label_quality)
    assert torch.equal(classes, verdict.beliefs)
    piece, _ = calibration.judge(probabilities[7:9], given[7:9])
    assert torch.equal(piece, verdict.label_quality[7:9])


def test_calibration_between_beside_and_among_ties() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    calibration = quality.Calibration(
        eye, torch.ones(2, 2, dtype=torch.float64), *torch.tensor([[0.2, 0.6], [0.1, 0.5]], dtype=torch.float64)
    )
    p = torch.tensor([0.0, 0.2, 0.3, 0.6, 0.9], dtype=torch.float64)  # lifts of 1: the score is the probability
    right, _ = calibration.judge(torch.stack([p, 1 - p], 1), torch.zeros(5, dtype=torch.int64))
    torch.testing.assert_close(right, torch.tensor([0.1, 0.1, 0.2, 0.5, 0.5], dtype=torch.float64))
    alone = quality.Calibration(eye, calibration.lifts, calibration.scores[:1], calibration.qualities[:1])
    assert alone.judge(torch.stack([p, 1 - p], 1), torch.zeros(5, dtype=torch.int64))[0].tolist() == [0.1] * 5

    probabilities, given = beliefs(50, 1)
    twice, labels = probabilities.repeat(2, 1), given.repeat(2)
    verdict = quality.judge(twice, labels)
    shared, _ = quality.Calibration.learn(twice, labels, verdict).judge(twice, labels)
    torch.testing.assert_close(shared[:50], (verdict.label_quality[:50] + verdict.label_quality[50:]) / 2)
    assert torch.equal(shared[:50], shared[50:])


# reading


@pytest.mark.parametrize("kind", ["<f2", ">f4", "<f8", "<i8", "|u1"])
def test_rows_are_those_of_numpy(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).normal(100, 10, (100, 3)).astype(kind)
    np.save(tmp_path / "x.npy", array)
    monkeypatch.setattr("vri.cleaning.npy._TOGETHER", 10 * array[0].nbytes)
    monkeypatch.setattr("vri.cleaning.npy._CHUNK", 33 * array[0].nbytes)
    file = Npy.open(tmp_path / "x.npy")
    np.testing.assert_array_equal(file.read(10, 20), array[10:20])
    rows = np.array([0, 1, 9, 10, 55, 99])
    np.testing.assert_array_equal(file.take(rows), array[rows])
    assert file.take(rows).dtype.isnative
    assert len(file.take(rows[:0])) == 0
    pieces = list(file.chunks())
    assert [start for start, _ in pieces] == [0, 33, 66, 99]
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), array)


def test_texts_are_those_of_numpy(tmp_path: Path) -> None:
    array = np.array(["a", "bcd", "ü"])
    np.save(tmp_path / "x.npy", array)
    assert Npy.open(tmp_path / "x.npy").take(np.array([1, 2])).tolist() == ["bcd", "ü"]


# what is written


def digits(folder: Path, dtype: Any = np.float16) -> tuple[np.ndarray, np.ndarray]:
    """X.npy and y.npy, a fifth of the labels that of the next class; returns the labels and the right ones."""
    data = load_digits()
    given = data.target.copy()
    wrong = np.random.default_rng(0).random(len(given)) < 0.2
    given[wrong] = (given[wrong] + 1) % 10
    np.save(folder / "X.npy", data.data.astype(dtype))
    np.save(folder / "y.npy", given)
    return given, data.target


def call(folder: Path, *more: str, out: str = "out") -> list[str]:
    labels = ["--labels", str(folder / "y.npy")]
    return ["clean", str(folder / "X.npy"), *labels, "--out", str(folder / out), *more, "--quiet"]


def frame(folder: Path) -> pd.DataFrame:
    return pd.concat([read_parquet(path).to_pandas() for path in sorted(folder.iterdir())], ignore_index=True)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 rows a part, 60 at a time."""
    monkeypatch.setattr(stream, "_rows_a_part", lambda _: 500)
    monkeypatch.setattr("vri.cleaning.stream_source._BLOCK", 60 * 1024)


@pytest.mark.usefixtures("small_parts")
def test_a_whole_run(tmp_path: Path, capsys: Any) -> None:
    given, true = digits(tmp_path)
    assert main(call(tmp_path, "--sample", "600", "--epochs", "8", "--max-suspects", "40")) == 0
    out = tmp_path / "out"
    assert sorted(os.listdir(out)) == [
        "classifier.safetensors",
        "corrected",
        "label_issues",
        "report.html",
        "state",
        "summary.json",
    ]
    assert sorted(os.listdir(out / "label_issues")) == [f"part-{k:05d}.parquet" for k in range(4)]
    issues, corrected = frame(out / "label_issues"), frame(out / "corrected")
    assert list(issues) == [
        "row",
        "id",
        "given_label",
        "predicted_label",
        "label_quality",
        "is_label_issue",
        "predicted_probability",
        "outlier_score",
    ]
    assert issues["row"].tolist() == issues["id"].tolist() == corrected["row"].tolist() == list(range(1797))
    assert issues["given_label"].tolist() == corrected["given_label"].tolist() == given.tolist()

    # better than chance by far, also on the rows it has not learned from
    assert average_precision_score(given != true, -issues["label_quality"]) > 0.85
    assert (corrected["label"] == true).mean() > (given == true).mean() + 0.1

    # the same, from the probabilities of all rows at once and what the sample told
    learned = stream.load_found(out / "state" / "learned.npz", stream.Learned)
    assert learned is not None
    classifier = VRIClassifier.load(out / "classifier.safetensors")
    assert classifier.classes_.tolist() == [str(k) for k in range(10)]
    probabilities = torch.from_numpy(classifier.predict_proba(np.load(tmp_path / "X.npy")))
    right, posterior = learned.calibration().judge(probabilities, torch.from_numpy(given))
    np.testing.assert_allclose(issues["label_quality"], right, atol=1e-5)
    np.testing.assert_allclose(issues["outlier_score"], quality.outlier_score(probabilities), atol=1e-5)
    posterior = posterior.numpy()
    bad = issues["is_label_issue"].to_numpy()
    clear = np.abs(right.numpy() - learned.threshold) > 1e-4
    np.testing.assert_array_equal(bad[clear], (right.numpy() < learned.threshold)[clear])
    other = posterior.copy()
    other[np.arange(1797), given] = -1
    np.testing.assert_array_equal(issues["predicted_label"], np.where(bad, other.argmax(1), posterior.argmax(1)))
    suggested = issues["predicted_label"].to_numpy()
    np.testing.assert_allclose(issues["predicted_probability"], posterior[np.arange(1797), suggested], atol=1e-5)
    sure = np.abs(issues["predicted_probability"] - 0.9) > 1e-4
    expected = np.where(bad & (issues["predicted_probability"] >= 0.9), suggested, given)
    np.testing.assert_array_equal(corrected["label"][sure], expected[sure])
    np.testing.assert_array_equal(corrected["changed"], corrected["label"] != given)

    summary = json.loads((out / "summary.json").read_text())
    assert summary["samples"] == 1797
    assert summary["classes"] == [str(k) for k in range(10)]
    assert summary["issues"] == bad.sum() == np.sum(summary["pair_counts"])
    assert summary["pair_counts"][1][0] == ((given == 1) & bad & (suggested == 0)).sum()
    assert summary["changed"] == corrected["changed"].sum()
    assert summary["noise_rate"] == pytest.approx(1 - issues["label_quality"].mean(), abs=1e-6)
    assert summary["noise_interval"][0] <= summary["noise_rate"] <= summary["noise_interval"][1]
    assert summary["quality_counts"] == np.histogram(issues["label_quality"], 40, (0, 1))[0].tolist()
    assert summary["transition_matrix"] == learned.transitions.tolist()
    assert (summary["learned_from"], summary["calibrated_on"], summary["parts"]) == (600, 600, 4)
    assert re.fullmatch(r"\d+ samples held out, against their given labels", summary["accuracy_on"])

    blocks = re.findall(r'id="suspects-\d+">(.*?)</script>', (out / "report.html").read_text())
    shown = [row for block in blocks for row in json.loads(block)]
    worst = issues[bad].sort_values(["label_quality", "row"]).head(40)
    assert [row[0] for row in shown] == worst["row"].astype(str).tolist()
    assert [row[1:3] for row in shown] == worst[["given_label", "predicted_label"]].to_numpy().tolist()
    told = capsys.readouterr().out
    assert "wrote label_issues/, corrected/, classifier.safetensors, summary.json and report.html to " in told
    assert told.endswith(f"next: read {out / 'corrected'} as one Parquet table, and look at {out / 'report.html'}\n")


@pytest.mark.usefixtures("small_parts")
def test_a_sample_of_all_rows_is_judged_as_ever(tmp_path: Path) -> None:
    given, _ = digits(tmp_path, np.float32)
    assert main(call(tmp_path, "--epochs", "3")) == 0
    classifier = VRIClassifier.load(tmp_path / "out" / "classifier.safetensors")
    probabilities = torch.from_numpy(classifier.predict_proba(np.load(tmp_path / "X.npy")))
    verdict = quality.judge(probabilities, torch.from_numpy(given))
    found = frame(tmp_path / "out" / "label_issues")["label_quality"]
    np.testing.assert_allclose(found, verdict.label_quality, atol=1e-5)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["learned_from"] == summary["calibrated_on"] == 1797
    assert summary["noise_rate"] == pytest.approx(verdict.noise_rate, abs=1e-6)
    assert summary["noise_interval"] == pytest.approx(verdict.noise_interval, abs=1e-6)


@pytest.mark.usefixtures("small_parts")
def test_texts_ids_trusted_rows_and_the_only_sample_of_a_class(tmp_path: Path) -> None:
    given, true = digits(tmp_path)
    names = np.array([f"class {k}" for k in given], dtype="U12")
    names[4] = "once"
    names[7] += " "  # space around a label doesn't count
    trusted = np.zeros(1797, bool)
    trusted[np.flatnonzero(given == true)[:600]] = True
    trusted[4] = False
    np.save(tmp_path / "y.npy", names)
    np.save(tmp_path / "ids.npy", np.array([f"k{n % 1000}" for n in range(1797)]))  # some come twice
    np.save(tmp_path / "ok.npy", trusted)
    more = ["--ids", str(tmp_path / "ids.npy"), "--trusted", str(tmp_path / "ok.npy")]
    assert main(call(tmp_path, *more, "--sample", "600", "--epochs", "2")) == 0
    issues, corrected = frame(tmp_path / "out" / "label_issues"), frame(tmp_path / "out" / "corrected")
    assert issues["id"][1500] == "k500"
    assert issues["given_label"][7] == corrected["label"][7] == names[7].strip()
    assert issues.loc[4, ["predicted_label", "label_quality", "outlier_score"]].isna().all()
    assert (corrected["label"][4], corrected["changed"][4]) == ("once", False)
    assert (issues["label_quality"][trusted] == 1).all()
    assert (issues["predicted_label"][trusted] == [name.strip() for name in names[trusted]]).all()
    assert not issues["is_label_issue"][trusted].any()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["classes"][-1] == "once"
    assert (summary["trusted"], summary["not_judged"], summary["learned_from"]) == (trusted.sum(), 1, 600)
    free = ~trusted & (np.arange(1797) != 4)
    assert summary["noise_rate"] == pytest.approx(1 - issues["label_quality"][free].mean(), abs=1e-6)
    assert summary["notes"] == ["classes with a single sample, whose label can't be judged: once"]
    assert re.fullmatch(r"\d+ trusted samples held out", summary["accuracy_on"])


# stops


def snapshot(out: Path) -> dict[str, bytes]:
    files = [
        path for path in sorted(out.rglob("*")) if path.is_file() and path.parent.name in ("label_issues", "corrected")
    ]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_goes_on_with_the_part_it_was_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, number: int, code: int
) -> None:
    digits(tmp_path)
    quick = ("--sample", "100", "--epochs", "2")
    assert main(call(tmp_path, *quick, out="whole")) == 0
    whole = snapshot(tmp_path / "whole")
    assert len(whole) == 8

    written: list[range] = []
    write = parts_module.Parts.write

    def stopped(self: Any, rows: range, part: Any) -> None:
        written.append(rows)
        if len(written) == 3:
            os.kill(os.getpid(), number)
        write(self, rows, part)

    monkeypatch.setattr(parts_module.Parts, "write", stopped)
    assert main(call(tmp_path, *quick)) == code
    assert capsys.readouterr().err.endswith("\nstopped; the same command goes on where it was\n")
    out = tmp_path / "out"
    assert [name for name in snapshot(out) if "issues" in name] == [
        f"label_issues/part-0000{k}.parquet" for k in (0, 1)
    ]
    assert not (out / "summary.json").exists()
    (out / "corrected" / "part-00000.parquet").unlink()  # half a part is none
    monkeypatch.setattr(VRIClassifier, "fit", None)  # nothing is trained again
    written[:] = [range(0)] * 3
    assert main(call(tmp_path, *quick)) == 0
    assert written[3:] == [range(500), range(1000, 1500), range(1500, 1797)]
    assert snapshot(out) == whole
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "out"))
    for summary in (one, two):
        del summary["seconds"], summary["command"]
    assert one == two


@pytest.mark.usefixtures("small_parts")
def test_a_number_that_is_none_stops_at_its_part(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path)
    X = np.load(tmp_path / "X.npy")
    quick = ("--sample", "20", "--epochs", "2")
    unread = np.setdiff1d(np.arange(1000, 1500), np.concatenate([sampled(tmp_path, seed) for seed in (0, 1)]))[:2]
    X[unread[0], 3], X[unread[1], 0] = np.nan, -np.inf
    np.save(tmp_path / "X.npy", X)
    assert main(call(tmp_path, *quick)) == 2
    error = (
        f"vri clean: {tmp_path / 'X.npy'} has NaN, Inf or a number too large for single precision in row {unread[0]}, "
        f"{unread[1]} (from 0); expected finite numbers: correct or remove them\n"
    )
    assert capsys.readouterr().err == error
    assert [name for name in snapshot(tmp_path / "out") if "issues" in name] == [
        f"label_issues/part-0000{k}.parquet" for k in (0, 1)
    ]


def sampled(folder: Path, number: int) -> np.ndarray:
    """Rows that the two samples of 20 have, so that they are left alone."""
    return draw([np.load(folder / "y.npy")], 1797, 20, 10, stream.derive_seed(0, number))


def test_a_number_too_large_is_found_in_the_sample(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path, np.float64)
    X = np.load(tmp_path / "X.npy")
    X[5] = 1e300
    np.save(tmp_path / "X.npy", X)
    assert main(call(tmp_path)) == 2
    assert "too large for single precision in row 5 (from 0)" in capsys.readouterr().err


@pytest.mark.usefixtures("small_parts")
def test_other_settings_are_refused_and_fresh_starts_anew(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path)
    quick = ("--sample", "100", "--epochs", "2")
    assert main(call(tmp_path, *quick)) == 0
    stale = tmp_path / "out" / "label_issues" / "part-00099.parquet"
    stale.write_bytes(b"stale")
    assert main(call(tmp_path, *quick, "--confidence", "0.5")) == 2
    assert "holds a run with other settings: confidence was 0.9 and is 0.5; " in capsys.readouterr().err
    os.utime(tmp_path / "X.npy", (1, 1))
    assert main(call(tmp_path, *quick)) == 2
    assert re.search(
        r"embeddings was '\(1797, 64\) float16, written .* and is '.*1970-01-01T00:00:01", capsys.readouterr().err
    )
    assert main(call(tmp_path, *quick, "--fresh")) == 0
    assert not stale.exists()


@pytest.mark.usefixtures("small_parts")
def test_a_damaged_part_is_named(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path)
    quick = ("--sample", "100", "--epochs", "2")
    assert main(call(tmp_path, *quick)) == 0
    before = snapshot(tmp_path / "out")
    path = tmp_path / "out" / "corrected" / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:-7])
    capsys.readouterr()
    assert main(call(tmp_path, *quick)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vri clean: {path} is damaged (")
    assert error.endswith("); delete it and run the same command again\n")
    path.unlink()
    assert main(call(tmp_path, *quick)) == 0
    assert snapshot(tmp_path / "out") == before


def test_progress_is_told_with_the_time_left(tmp_path: Path, capsys: Any) -> None:
    digits(tmp_path)
    assert main(call(tmp_path, "--sample", "50", "--epochs", "2")[:-1]) == 0
    told = capsys.readouterr().err
    assert "learning from 50 of 1,797 samples\n" in told
    assert "1,797 of 1,797 rows (0 s left)\n" in told


# what is refused


def save(path: Path, array: Any) -> Path:
    np.save(path, array, allow_pickle=True)
    return path


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("y", np.arange(6) % 2, "{y} has 6 entries and the embeddings 4 rows; expected one a row"),
        (
            "y",
            np.array([0.0, 1, 0, 1]),
            "{y} has shape (4,) and type float64; expected one class a sample, as whole numbers or text, shape (n,)",
        ),
        (
            "y",
            np.array(["a", None, "b", "a"], object),
            "{y} holds Python objects, which could run code when read; expected numbers or text: save it as one, "
            "such as labels.astype(str)",
        ),
        (
            "y",
            np.array(["a", "b", " ", "b"]),
            "{y} has no label in row 2 (from 0); expected one in each: fill it in or remove the row",
        ),
        ("y", np.ones(4, int), "all 4 samples of {y} have the label '1'; expected at least two classes"),
        (
            "X",
            np.ones(4),
            "{X} has shape (4,) and type float64; expected numbers of shape (n, d), a row a sample: reshape it",
        ),
        (
            "X",
            np.array([["a"]] * 4),
            "{X} has shape (4, 1) and type <U1; expected numbers of shape (n, d), a row a sample: reshape it",
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
            "{ids} has shape (4,) and type float64; expected an id a sample, as whole numbers or text, shape (n,)",
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

    X.write_bytes(whole[:-1])
    assert refused() == (
        f"vri clean: {X} is cut short: it has 230,015 of 230,016 bytes of its 1,797 rows; write or copy it again\n"
    )
    X.write_bytes(b"\x93NUMPY")
    assert re.fullmatch(
        rf"vri clean: {re.escape(str(X))} can't be read as .npy \(.*\); expected what numpy.save writes\n", refused()
    )
    X.write_bytes(b"")
    assert "can't be read as .npy" in refused()
    X.unlink()
    assert refused() == f"vri clean: {X} is not there; expected an .npy file: check the name\n"


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    file = Npy.open(save(tmp_path / "x.npy", np.ones((10, 2))))
    os.truncate(tmp_path / "x.npy", 200)
    with pytest.raises(ValueError, match=r"x\.npy was cut short while it was read; write or copy it again$"):
        file.read(5, 10)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--text", "a", "--cross-fit", "2"], "--text, --cross-fit can't be used with an .npy file; leave it out"),
        (["--sample", "1"], "--sample is 1; expected 2 or more rows to learn from"),
        (["--confidence", "2"], "--confidence is 2; expected 0 to 1"),
        (
            ["--labels", "labels.csv"],
            "--label is 'labels.csv'; expected an .npy file with an entry a row: save it as one",
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
    assert main(["clean", str(X), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"vri clean: --label is missing; {X} holds embeddings alone: name the .npy file of their labels\n"
    )
    (tmp_path / "t.csv").write_text("x,y\n1,a\n")
    assert main(["clean", str(tmp_path / "t.csv"), "--out", str(tmp_path / "out"), "--sample", "5"]) == 2
    assert capsys.readouterr().err == "vri clean: --sample can't be used but with an .npy file; leave it out\n"


def test_too_many_labels(tmp_path: Path, capsys: Any) -> None:
    save(tmp_path / "X.npy", np.ones((6000, 1), np.float16))
    save(tmp_path / "y.npy", np.arange(6000) // 2)
    assert main(call(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"vri clean: {tmp_path / 'y.npy'} has more than 2,000 different labels; expected at most so many classes: "
        "is it the file of the labels?\n"
    )


def test_without_pyarrow_nothing_is_begun(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(call(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"vri clean: {tmp_path / 'out'} needs pyarrow, which is not installed: pip install vri[parquet]\n"
    )
    assert not (tmp_path / "out").exists()


# memory


def test_a_sample_fits_the_memory() -> None:
    assert stream.sample_size(256, 10) == 158_514  # 1.4 GB by 8 · (4 · 256 + 8 · 10) bytes a row
    assert stream.sample_size(16, 2) == 200_000
    assert stream.sample_size(256, 2000) == 10_279


TWICE = """
import resource, sys
from vri.cli import main
from vri.cleaning import stream, stream_source
stream._PART, stream_source._BLOCK = 2**23, 2**21  # an eighth: small files will do
peaks = []
for name in ("small", "large"):
    assert main([word.replace("NAME", name) for word in sys.argv[1:]]) == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="kilobytes of ru_maxrss, files with holes")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    for name, rows in (("small", 2500), ("large", 20_000)):  # holes of 10 and 82 MB
        (tmp_path / name).mkdir()
        X = np.lib.format.open_memmap(tmp_path / name / "X.npy", "w+", np.float16, (rows, 2048))
        del X
        save(tmp_path / name / "y.npy", np.arange(rows) % 2)
    done = subprocess.run(
        [sys.executable, "-c", TWICE, *call(tmp_path / "NAME", "--sample", "50", "--epochs", "2", "--device", "cpu")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 40  # MB
