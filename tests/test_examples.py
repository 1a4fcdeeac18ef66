"""The examples run, and find what they say."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example as its own program would be, without importing everything again; gives what it printed."""

    def run_example(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_example


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}


def test_table(run: Run) -> None:
    said = run("table.py")
    precision = int(re.search(r"(\d+)% of them wrong", said)[1])  # type: ignore[index]
    accuracy = float(re.search(r"new samples: ([\d.]+)%", said)[1])  # type: ignore[index]
    assert precision >= 60
    assert accuracy >= 90


def test_text(run: Run) -> None:
    said = run("text.py")
    right, labels = map(float, re.search(r"right on ([\d.]+)% of the paragraphs, labels ([\d.]+)%", said).groups())  # type: ignore[union-attr]
    assert right > labels + 3


def test_transformer(run: Run) -> None:
    said = run("transformer.py")
    right, labels = map(float, re.search(r"right on ([\d.]+)% of the paragraphs, labels ([\d.]+)%", said).groups())  # type: ignore[union-attr]
    named_wrong = int(re.search(r"labels named, (\d+)% of these wrong", said)[1])  # type: ignore[index]
    assert right > labels + 2
    assert named_wrong > 50  # a fifth of all labels is wrong


def test_image_folder(run: Run, tmp_path: Path) -> None:
    said = run("image_folder.py", str(tmp_path / "f"))
    estimated, true = map(float, re.search(r"([\d.]+)% are estimated to be; in truth ([\d.]+)%", said).groups())  # type: ignore[union-attr]
    assert abs(estimated - true) < 8
    assert (tmp_path / "f" / "cleaned" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_own_model(run: Run) -> None:
    said = run("own_model.py")
    scores = dict(re.findall(r"^(\S+)\s+([\d.]+)% on new images", said, re.MULTILINE))
    assert float(scores["vri"]) > float(scores["cross-entropy"]) + 5
