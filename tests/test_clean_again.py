"""`vri clean` called again: it goes on after a stop, and does nothing twice."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from fake_classifier import FakeClassifier, arguments, fake_quality, installed, read
from vri import METHODS
from vri.cleaning.state import Findings, load_found, save_found
from vri.cli import main


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClassifier]:
    return installed(monkeypatch)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_finished_run_is_written_again_without_training(
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
    found = load_found(tmp_path / "out" / "state" / "findings.npz", Findings)
    assert found is not None
    save_found(tmp_path / "out" / "state" / "findings.npz", found)
    again = load_found(tmp_path / "out" / "state" / "findings.npz", Findings)
    assert again is not None
    for name, value in vars(found).items():
        np.testing.assert_array_equal(value, getattr(again, name))
    np.testing.assert_array_equal(found.quality, fake_quality())
    assert found.noise_interval == again.noise_interval == (0.2, 0.3)


def test_other_settings_are_refused_and_fresh_starts_again(
    tmp_path: Path, fake: type[FakeClassifier], capsys: Any
) -> None:
    out = tmp_path / "out"
    assert main(arguments(tmp_path, "--quiet")) == 0
    first = snapshot(out)
    capsys.readouterr()
    assert main(arguments(tmp_path, "--quiet", "--seed", "1", "--cross-fit", "3")) == 2
    assert capsys.readouterr().err == (
        f"vri clean: {out} holds a run with other settings: seed was 0 and is 1; cross_fit was 5 and is 3; use the "
        "same to resume, give another --out, or pass --fresh to start again\n"
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
    return ["clean", str(folder / "digits.npz"), "--epochs", "2", "--compare", "--quiet"]


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
    for stop in (3, first_plain // 2 + 3, first_plain + 3):  # in each of the three networks
        stops = {stop}
        capsys.readouterr()
        assert main(again) == 130
        assert capsys.readouterr().err.endswith("\nstopped; the same command continues where it left off\n")
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
