"""The command line as a user meets it."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vri import METHODS
from vri.cli import main
from vri.paper import demo

ROWS = (*demo.COMPARED, demo.SKYLINE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    assert main(["demo", "--seeds", "2", "--epochs", "2", "--out", str(out)]) == 0
    return out


def test_demo_writes_what_it_says(finished: Path) -> None:
    assert sorted(p.name for p in finished.iterdir()) == [
        "curves.csv",
        "demo.png",
        "results.json",
        "transitions.csv",
    ]
    assert (finished / "demo.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_demo_table_agrees_with_its_curves(finished: Path) -> None:
    with open(finished / "curves.csv", newline="") as file:
        curves = list(csv.DictReader(file))
    assert len(curves) == len(ROWS) * 2 * 2
    last = {(r["method"], int(r["seed"])): float(r["test_accuracy"]) for r in curves if r["epoch"] == "2"}
    runs = json.loads((finished / "results.json").read_text())["runs"]
    assert {(r["method"], r["seed"]): r["last"] for r in runs} == last
    assert [r["method"] for r in runs[: len(ROWS)]] == list(ROWS)


def test_demo_transitions_are_distributions(finished: Path) -> None:
    with open(finished / "transitions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for column in ("true", "estimated"):
        matrices = np.array([float(r[column]) for r in rows]).reshape(2, 10, 10)
        np.testing.assert_allclose(matrices.sum(2), 1, atol=1e-9)


def test_demo_goes_on_after_ctrl_c(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["demo", "--seeds", "2", "--epochs", "2", "--out", str(tmp_path)]
    trained: list[str] = []
    original = demo.train_run

    def interrupted(settings, *args, **kwargs):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(settings.method)
        return original(settings, *args, **kwargs)

    monkeypatch.setattr(demo, "train_run", interrupted)
    assert main(arguments) == 130
    assert "the same command continues" in capsys.readouterr().err
    monkeypatch.setattr(demo, "train_run", original)
    steps: list[int] = []
    cross_entropy = METHODS["cross-entropy"]
    monkeypatch.setattr(
        cross_entropy, "step", lambda *a, _step=cross_entropy.step, **k: steps.append(1) or _step(*a, **k)
    )
    assert main(arguments) == 0
    # the first seed's cross-entropy was finished before: left are its skyline, and both of the second seed
    assert len(steps) == 3 * 2 * 12
    for name in ("results.json", "transitions.csv", "curves.csv"):
        assert (tmp_path / name).read_text() == (finished / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "cifar"], "dataset='cifar': expected one of digits, fashion-mnist"),
        (["--noise", "salt"], "noise='salt': expected one of uniform, flip, pair, instance"),
        (["--rate", "1.5"], "rate is 1.5"),
        (["--seeds", "0"], "seeds=0: expected 1 or more"),
        (["--epochs", "0"], "epochs=0: expected 1 or more"),
    ],
)
def test_demo_refuses_what_it_cannot_do(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["demo", *arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vri demo: ")
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_demo_refuses_an_output_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(["demo", "--out", str(file)]) == 2
    assert "is a file, expected a folder" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_demo_without_the_data_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("VRI_DATA", raising=False)
    assert main(["demo", "--dataset", "fashion-mnist", "--out", str(tmp_path / "out")]) == 2
    assert "apt-get install dataset-fashion-mnist" in capsys.readouterr().err


def test_module_runs_as_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "vri", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("vri ")


def test_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["dmeo"])
    assert stop.value.code == 2
    assert "invalid choice: 'dmeo'" in capsys.readouterr().err


def test_demo_is_reproducible(finished: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)  # the global generator plays no part
    assert main(["demo", "--seeds", "1", "--epochs", "2", "--out", str(tmp_path)]) == 0
    again = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert again == json.loads((finished / "results.json").read_text())["runs"][: len(ROWS)]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_is_gone_is_no_mistake(unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "vri", "methods"]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_into_a_full_disk_is_told_once(unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "vri", "methods"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(b"vri methods: the disk is full")
    assert result.stderr.count(b"\n") == 1


def test_ctrl_c_during_imports_shows_no_traceback(tmp_path: Path) -> None:
    program = (
        "import runpy, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv = ['vri', 'clean', {str(tmp_path)!r}, '--out', 'out']\n"
        "runpy.run_module('vri', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "\nstopped; the same command continues where it left off\n"
