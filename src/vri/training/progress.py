"""What a run shows while it trains: a bar or lines on stderr, and TensorBoard events; or nothing, where all that is
going on is shown together: see `watched`.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

Row = dict[str, float | int | None]  # one epoch of a history

_LIVE = ("loss", "meta_loss", "test_accuracy")  # what the bar and the lines show
_REFRESH = 0.2  # seconds between two updates of the bar's numbers

Watcher = Callable[[float, str | None], None]  # is told the share of the work that is done, and what comes now
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Tell a function how far everything inside is; trainings then show nothing themselves."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def is_watched() -> bool:
    """Whether someone shows progress already."""
    return _watcher.get() is not None


def report(done: float, doing: str | None = None) -> None:
    """Tell the watcher, if there is one, the share of the work that is done, and what comes now if that is new."""
    if (watcher := _watcher.get()) is not None:
        watcher(done, doing)


@contextmanager
def portion(first: float, last: float) -> Iterator[None]:
    """What is done inside takes the whole work from one share to another."""
    outer = _watcher.get()
    with watched(None if outer is None else lambda done, doing: outer(first + (last - first) * done, doing)):
        report(0.0)
        yield
        report(1.0)


class Reporter:
    """A bar over all steps with the time left; one line per epoch where stderr is not a terminal.

    `done` of its `total` steps were done before a run was resumed; `writer` is of TensorBoard events, or None.
    """

    def __init__(self, enabled: bool, total: int, done: int, epochs: int, writer: Any = None) -> None:
        terminal = sys.stderr is not None and sys.stderr.isatty()
        enabled &= not is_watched()
        self.total, self.epochs = total, epochs
        self._lines = enabled and not terminal
        self._bar: tqdm[Any] | None = None
        if enabled and terminal:
            self._bar = tqdm(total=total, initial=done, unit="step", dynamic_ncols=True)
        self._writer = writer
        self._live: Row = {}
        self._shown = self._started = time.monotonic()
        self._done = self._steps = done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def replay(self, rows: list[Row]) -> None:
        """Log earlier epochs again when resuming: the last events of a killed run never reached the disk."""
        for row in rows:
            self._log(row)

    def step(self, metrics: Mapping[str, float]) -> None:
        """One step is done."""
        self._steps += 1
        report(self._steps / self.total)
        if self._bar is None:
            return
        self._bar.update()
        if time.monotonic() - self._shown > _REFRESH:
            self._shown = time.monotonic()
            self._live |= {key: value for key, value in metrics.items() if value == value}
            self._bar.set_postfix_str(_numbers(self._live), refresh=False)

    def epoch(self, row: Row) -> None:
        """One epoch is done."""
        self._live |= row
        if self._bar is not None:
            self._bar.set_postfix_str(_numbers(self._live))
        if self._lines:
            step = int(row["step"] or 0)
            left = (self.total - step) * (time.monotonic() - self._started) / (step - self._done)
            self.say(f"epoch {row['epoch']}/{self.epochs}: {_numbers(row)} ({left:.0f} s left)")
        self._log(row)

    def say(self, text: str) -> None:
        """Print a line without breaking the bar."""
        if sys.stderr is not None:
            tqdm.write(text, file=sys.stderr)

    def _log(self, row: Row) -> None:
        if self._writer is None:
            return
        for key, value in row.items():
            if value is not None and key not in ("epoch", "step"):
                self._writer.add_scalar(key, value, row["step"])


def say_nothing(remark: str) -> None:
    """No output: for all workers but the first, and when progress is off."""


def tensorboard_writer(folder: Path) -> Any:
    """A writer of events to `folder`, to be closed by `with`; it replaces what was written there before resuming."""
    return check_tensorboard()(str(folder), purge_step=0)


def check_tensorboard() -> Any:
    """The class of the writer, if TensorBoard is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "log_tensorboard=True needs TensorBoard, which is not installed: pip install 'vri[tensorboard]'"
        ) from error
    return SummaryWriter


def _numbers(row: Mapping[str, float | int | None]) -> str:
    pairs = [(key, row.get(key)) for key in _LIVE]
    return ", ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in pairs if value is not None)
