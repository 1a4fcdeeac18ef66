"""The examples run, and find what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "error,ignore::DeprecationWarning"}  # these are torch's own
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}


def test_table() -> None:
    said = run("table.py")
    precision = int(re.search(r"(\d+)% of them wrong", said)[1])  # type: ignore[index]
    accuracy = float(re.search(r"new samples: ([\d.]+)%", said)[1])  # type: ignore[index]
    assert precision >= 60
    assert accuracy >= 90


def test_text() -> None:
    said = run("text.py")
    right, labels = map(float, re.search(r"right on ([\d.]+)% of the paragraphs, labels ([\d.]+)%", said).groups())  # type: ignore[union-attr]
    assert right > labels + 3


def test_transformer() -> None:
    said = run("transformer.py")
    right, labels = map(float, re.search(r"right on ([\d.]+)% of the paragraphs, labels ([\d.]+)%", said).groups())  # type: ignore[union-attr]
    named_wrong = int(re.search(r"labels named, (\d+)% of these wrong", said)[1])  # type: ignore[index]
    assert right > labels + 2
    assert named_wrong > 50  # a fifth of all labels is wrong


def test_image_folder(tmp_path: Path) -> None:
    said = run("image_folder.py", str(tmp_path / "f"))
    estimated, true = map(float, re.search(r"([\d.]+)% are estimated to be; in truth ([\d.]+)%", said).groups())  # type: ignore[union-attr]
    assert abs(estimated - true) < 8
    assert (tmp_path / "f" / "cleaned" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_own_model() -> None:
    said = run("own_model.py")
    scores = dict(re.findall(r"^(\S+)\s+([\d.]+)% on new images", said, re.MULTILINE))
    assert float(scores["vri"]) > float(scores["cross-entropy"]) + 5
