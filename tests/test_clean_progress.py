"""One line of progress for the whole of `vri clean`."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npy_files import call, digits
from vri.cleaning import progress as module
from vri.cleaning.progress import JUDGING, PAGE, READING, TRAINING, Progress, in_words
from vri.cli import main
from vri.training.progress import portion, report, watched


class Clock:
    """Seconds that pass when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "process_time", lambda: self.now / 2)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_portions_add_up() -> None:
    seen: list[float] = []
    report(0.5)  # nobody listens
    with watched(lambda done, doing: seen.append(done)):
        with portion(0, 0.5):
            report(0.5)
            with portion(0.5, 1):
                report(0.5)
        with portion(0.5, 1):
            report(0.5)
    assert seen == [0, 0.25, 0.25, 0.375, 0.5, 0.5, 0.5, 0.75, 1]


def test_the_time_left_is_that_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, progress = Clock(monkeypatch), Progress(False)
    progress.expect(reading=10, training=100, page=5)
    with progress.part(READING):
        clock.now = 4
        assert progress.left() == 6 + 100 + 5  # as expected
        report(0.1)
        assert progress.left() == 36 + 100 + 5  # reading is slower than that
    with progress.part(TRAINING):
        assert progress.left() == 100 + 5
        clock.now = 14
        report(0.5)
        assert progress.left() == 10 + 5
        report(0.0, JUDGING)
        clock.now = 16
    assert progress.times == {READING: (4, 2), TRAINING: (10, 5), JUDGING: (2, 1)}


def test_on_a_terminal_one_line_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    clock, progress = Clock(monkeypatch), Progress()
    with progress.part(TRAINING):
        for second in range(1, 101):
            clock.now = second
            report(second / 100)
        progress.tell("  a note")
    lines = screen.getvalue().split("\n")
    assert len(lines) == 2  # the note ends one
    states = [state for line in lines for state in line.split("\r\x1b[K")]
    assert states[1:3] == ["training 0%", "training 1%"]  # too early to tell
    assert states[40] == "training 39%, about 61 s left in all"
    assert states[-3:] == ["  a note", "", ""]  # the line is removed in the end


def test_elsewhere_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    clock, progress = Clock(monkeypatch), Progress()
    for part in (READING, TRAINING, PAGE):
        start = clock.now
        with progress.part(part):
            for second in range(1001):
                clock.now = start + second
                report(second / 1000)
    told = file.getvalue().splitlines()
    assert told[:2] == ["reading", "reading 3%, about 16 min left in all"]
    assert len(told) <= 3 + 6  # the pause between two doubles


@pytest.mark.parametrize(("seconds", "words"), [(5.4, "5 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")])
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_real_run_tells_a_line_for_each_part(tmp_path: Path, capsys: Any) -> None:
    given, _ = digits(tmp_path)
    X = np.load(tmp_path / "X.npy")
    for name, array in (("X", X), ("y", given)):
        np.save(tmp_path / f"{name}.npy", array[:400])
    assert main([*call(tmp_path, "--epochs", "3", "--cross-fit", "2")[:-1], "--verbose"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("  ")]
    parts = ["reading", "training", "judging the labels", "writing the results"]
    assert list(dict.fromkeys(re.split(" [0-9]|,", line)[0] for line in told[:-4])) == parts
    assert [line.partition(":")[0] for line in told[-4:]] == ["reading", "training", "judging", "page"]
