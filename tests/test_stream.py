"""`vri clean` on .npy files that don't fit in memory: the sample, what is written, and stops."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score

from npy_files import call, digits
from vri import VRIClassifier, quality
from vri.cleaning import stream
from vri.cleaning.arrow import read_parquet
from vri.cleaning.state import load_found
from vri.cleaning.stream import Folds, Judge, Learned, draw
from vri.cli import main

# the sample


def drawn(groups: np.ndarray, most: int, seed: int = 0, piece: int = 1000) -> np.ndarray:
    """A sample of rows whose groups come in pieces."""

    def pieces() -> Iterator[np.ndarray]:
        return (groups[start : start + piece] for start in range(0, len(groups), piece))

    return draw(pieces, int(groups.max()) + 1, most, seed)


@pytest.mark.parametrize("most", [2, 20, 100, 600, 5000])
def test_groups_get_their_proportion_or_at_least_their_share(most: int) -> None:
    groups = np.random.default_rng(0).choice(5, 1000, p=[0.6, 0.3, 0.09, 0.009, 0.001]) - 1
    found = drawn(groups, most)
    np.testing.assert_array_equal(drawn(groups, most, piece=37), found)
    counts, taken = (np.bincount(some[some >= 0], minlength=4) for some in (groups, groups[found]))
    shares = np.minimum(counts, max(2, most // 8))  # half of the sample in equal parts, two rows at least
    assert len(found) == min(max(most, shares.sum()), counts.sum())
    assert (taken >= shares).all()
    proportional = taken > shares
    expected = counts * taken[proportional].sum() / max(counts[proportional].sum(), 1)
    np.testing.assert_allclose(taken[proportional], expected[proportional], atol=1)
    assert (expected[~proportional] <= shares[~proportional] + 1).all()  # in proportion they would get no more
    assert (np.diff(found) > 0).all()


def test_rows_of_a_group_are_equally_probable() -> None:
    groups = np.repeat([0, 1], [190, 10])
    times = np.zeros(200)
    for seed in range(300):
        times[drawn(groups, 20, seed)] += 1
    assert times.sum() == 300 * 20
    for own in (times[:190], times[190:]):
        expected = own.mean()
        share = expected / 300  # drawn without replacement: a sum of squares of that variance
        chi = ((own - expected) ** 2).sum() / (expected * (1 - share)) * (len(own) - 1) / len(own)
        assert 0.001 < stats.chi2.sf(chi, len(own) - 1) < 0.999


def test_what_fits_in_memory_is_not_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream._memory() > 2**20
    monkeypatch.setattr(stream, "_memory", lambda: 16_000_000_000)

    def size(rows: int, width: int, classes: int) -> int:
        source = Shapes()
        source.embeddings.shape, source.classes = (rows, width), ["a"] * classes
        return stream.sample_size(source)  # type: ignore[arg-type]

    assert size(60_000, 784, 10) == 60_000
    assert size(905_797, 256, 10) == 905_797  # just below half of the memory, by 8 · (4 · 256 + 8 · 10) bytes per row
    assert size(905_798, 256, 10) == 158_514  # 1.4 GB
    assert size(10**8, 16, 2) == 200_000
    assert size(10**7, 256, 2000) == 10_279


class Shapes:
    """As much of a source as its sample depends on."""

    def __init__(self) -> None:
        self.embeddings, self.classes = type("File", (), {})(), []


# what is written


def frame(folder: Path) -> pd.DataFrame:
    return pd.concat([read_parquet(path).to_pandas() for path in sorted(folder.iterdir())], ignore_index=True)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 rows per part."""
    monkeypatch.setattr(stream, "_PART", 500 * 1024)


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
    learned = load_found(out / "state" / "learned.npz", Learned)
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
    assert summary["accuracy_before"] is None
    assert summary["accuracy_on"].startswith("samples held out to choose the epoch, against their given labels")

    blocks = re.findall(r'id="suspects-\d+">(.*?)</script>', (out / "report.html").read_text())
    shown = [row for block in blocks for row in json.loads(block)]
    worst = issues[bad].sort_values(["label_quality", "row"]).head(40)
    assert [row[0] for row in shown] == worst["row"].astype(str).tolist()
    assert [row[1:3] for row in shown] == worst[["given_label", "predicted_label"]].to_numpy().tolist()
    told = capsys.readouterr().out
    assert "wrote label_issues/, corrected/, classifier.safetensors, summary.json and report.html to " in told
    assert told.endswith(f"next: read {out / 'corrected'} as one Parquet table, and look at {out / 'report.html'}\n")


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
    assert main(call(tmp_path, *more, "--sample", "600", "--epochs", "2", "--compare")) == 0
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
    assert (summary["trusted"], summary["not_judged"]) == (trusted.sum(), 1)
    assert summary["learned_from"] == 600
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

    judged: list[range] = []
    tables = Judge.tables

    def stopped(self: Judge, rows: range, *more: Any) -> Any:
        judged.append(rows)
        if len(judged) == 3:
            os.kill(os.getpid(), number)
        return tables(self, rows, *more)

    monkeypatch.setattr(Judge, "tables", stopped)
    assert main(call(tmp_path, *quick)) == code
    assert capsys.readouterr().err.endswith("\nstopped; the same command continues where it left off\n")
    out = tmp_path / "out"
    assert [name for name in snapshot(out) if "issues" in name] == [
        f"label_issues/part-0000{k}.parquet" for k in (0, 1)
    ]
    assert not (out / "summary.json").exists()
    (out / "corrected" / "part-00000.parquet").unlink()  # half a part is none
    monkeypatch.setattr(VRIClassifier, "fit", None)  # nothing is trained again
    judged[:] = [range(0)] * 3
    assert main(call(tmp_path, *quick)) == 0
    assert judged[3:] == [range(500), range(1000, 1500), range(1500, 1797)]
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
    return drawn(np.load(folder / "y.npy"), 20, stream.derive_seed(0, number))


@pytest.mark.usefixtures("small_parts")
def test_other_settings_are_refused_and_fresh_starts_again(tmp_path: Path, capsys: Any) -> None:
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
    assert "  learning from 50 of 1,797 rows\n" in told
    assert "\njudging the labels" in told


def test_without_pyarrow_nothing_is_begun(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    digits(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(call(tmp_path, "--sample", "100")) == 2
    assert capsys.readouterr().err == (
        f"vri clean: {tmp_path / 'out'} needs pyarrow, which is not installed: pip install vri[parquet]\n"
    )
    assert not (tmp_path / "out").exists()


# cross-fitting


def test_folds_are_dealt_out_in_turn() -> None:
    rows = np.sort(np.random.default_rng(0).choice(10_000, 500, replace=False))
    given = np.random.default_rng(1).choice(list("abcd"), 500, p=[0.6, 0.3, 0.096, 0.004])
    folds = Folds.deal(rows, given, 5, seed=0)
    np.testing.assert_array_equal(np.bincount(folds.held), [100] * 5)
    for name in "abcd":
        counts = np.bincount(folds.held[given == name], minlength=5)
        assert counts.max() - counts.min() <= 1  # so that each has learned from every class of two
    everything = folds.of(np.arange(10_000))
    np.testing.assert_array_equal(everything[rows], folds.held)
    np.testing.assert_allclose(np.bincount(everything) / 10_000, 0.2, atol=0.01)
    np.testing.assert_array_equal(folds.of(np.arange(7000, 7100)), everything[7000:7100])
    assert (Folds.deal(rows, given, 5, seed=1).held != folds.held).any()


@pytest.mark.usefixtures("small_parts")
def test_with_folds_each_row_is_judged_by_a_classifier_that_has_not_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    given, _ = digits(tmp_path)
    given[[5, 6]] = 10  # a class of two rows
    np.save(tmp_path / "y.npy", given)
    command = ("--sample", "600", "--epochs", "3", "--cross-fit", "3")
    assert main(call(tmp_path, *command, out="whole")) == 0
    out = tmp_path / "whole"
    issues = frame(out / "label_issues")
    learned = load_found(out / "state" / "learned.npz", Learned)
    assert learned is not None
    folds = learned.folds(3)
    assert folds is not None
    assert len(folds.rows) == learned.learned_from == 600
    X = np.load(tmp_path / "X.npy")
    said = np.zeros((1797, 11))
    for number in range(3):
        classifier = VRIClassifier.load(out / "state" / f"fold-{number}.safetensors")
        columns = classifier.classes_.astype(int)
        own = folds.of(np.arange(1797)) == number
        said[np.ix_(own, columns)] = classifier.predict_proba(X[own])
    right, _ = learned.calibration().judge(torch.from_numpy(said), torch.from_numpy(given))
    np.testing.assert_allclose(issues["label_quality"], right, atol=1e-5)
    np.testing.assert_allclose(issues["outlier_score"], quality.outlier_score(torch.from_numpy(said)), atol=1e-5)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["accuracy_after"] == (said.argmax(1) == given)[folds.rows].mean()
    assert summary["accuracy_on"] == (
        "600 samples predicted by classifiers that were not trained on them, against their given labels, which are "
        "partly wrong"
    )
    assert summary["settings"]["cross_fit"] == 3

    # stopped while the second fold was trained, it goes on there
    trained: list[np.ndarray] = []
    fit = VRIClassifier.fit

    def stopped(self: VRIClassifier, X: Any, y: Any, **more: Any) -> VRIClassifier:
        trained.append(X)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return fit(self, X, y, **more)

    monkeypatch.setattr(VRIClassifier, "fit", stopped)
    assert main(call(tmp_path, *command)) == 130
    assert main(call(tmp_path, *command)) == 0
    for number in range(3):
        np.testing.assert_array_equal(X[folds.rows[folds.held != number]], trained[[1, 4, 5][number]])
    assert len(trained) == 6  # the first is restored from its checkpoint
    assert snapshot(tmp_path / "out") == snapshot(out)
    capsys.readouterr()
    assert main(call(tmp_path, *command[:-1], "4")) == 2
    assert "holds a run with other settings: cross_fit was 3 and is 4; " in capsys.readouterr().err
