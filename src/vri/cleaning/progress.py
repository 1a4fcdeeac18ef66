"""One line of progress for the whole of `vri clean`, with the time left of everything; and where the time went."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vri.training.progress import watched

READING, ENCODING, TRAINING, JUDGING, PAGE = PARTS = ("reading", "encoding", "training", "judging", "page")
_WORDS = {ENCODING: "computing features", JUDGING: "judging the labels", PAGE: "writing the results"}
_REFRESH = 0.2  # seconds between two changes of the line
_PAUSE = 30.0  # seconds between two lines where stderr is not a terminal; then twice as long every time
_ENOUGH = 0.02  # share of a part from which on its own speed tells how long it takes


class Progress:
    """Shows on stderr which part is running, how much of it is done, and how long everything will take.

    On a terminal this is one line that changes; elsewhere it is a line for each part, and a few for long ones.

    Args:
        enabled: False keeps quiet.

    Attributes:
        times: wall-clock and processor seconds of each part so far.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled and sys.stderr is not None
        self._terminal = self._enabled and sys.stderr.isatty()
        self.times: dict[str, tuple[float, float]] = {}
        self._expected: dict[str, float] = {}
        self._part, self._done = "", 0.0
        self._began, self._processor, self._shown, self._pause = 0.0, 0.0, 0.0, _PAUSE

    def expect(self, **seconds: float) -> None:
        """How long parts will take, roughly; counts until they run and tell themselves."""
        self._expected |= seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Inside, a part is running, which tells by `vri.training.progress.report` how far it is."""
        self._begin(name)
        try:
            with watched(self._watch):
                yield
        finally:
            self._end()

    def tell(self, line: str) -> None:
        """Show a line of its own."""
        if self._enabled:
            print(f"\r\x1b[K{line}" if self._terminal else line, file=sys.stderr)

    def tell_times(self) -> None:
        """Show how long each part took."""
        for name, (wall, processor) in self.times.items():
            print(f"{name}: {wall:.1f} s, {processor:.1f} s of a processor", file=sys.stderr)

    def left(self) -> float | None:
        """Seconds that everything will still take; None if nobody knows."""
        later = PARTS[PARTS.index(self._part) + 1 :] if self._part else PARTS
        whole = self._expected.get(self._part)
        spent = time.monotonic() - self._began
        if self._done >= _ENOUGH:
            whole = spent / self._done
        if whole is None:
            return None
        return max(whole - spent, 0.0) + sum(self._expected.get(name, 0.0) for name in later)

    def _begin(self, name: str) -> None:
        self._part, self._done = name, 0.0
        self._began, self._processor = time.monotonic(), time.process_time()
        self._show(always=True)

    def _end(self) -> None:
        wall, processor = self.times.get(self._part, (0.0, 0.0))
        spent = (time.monotonic() - self._began, time.process_time() - self._processor)
        self.times[self._part] = (wall + spent[0], processor + spent[1])
        self._part = ""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _watch(self, done: float, doing: str | None) -> None:
        if doing is not None and doing != self._part:
            self._end()
            self._begin(doing)
        self._done = done
        self._show()

    def _show(self, always: bool = False) -> None:
        now = time.monotonic()
        if not self._enabled or (now - self._shown < (_REFRESH if self._terminal else self._pause) and not always):
            return
        if not always:
            self._pause *= 2
        self._shown = now
        left = self.left()
        line = _WORDS.get(self._part, self._part)
        line += f" {self._done:.0%}" if self._done or self._terminal else ""
        line += "" if left is None or left < 1 else f", about {in_words(left)} left in all"
        if self._terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr)


def in_words(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
