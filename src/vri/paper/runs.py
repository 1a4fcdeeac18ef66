"""Tables of runs: one line of JSON per run, appended by any number of processes on any number of machines."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from vri.paper.settings import Settings

Record = dict[str, Any]

# where files are and how a result is computed doesn't change the result
NOT_HASHED = (
    "root", "weights", "workers", "threads", "device", "tensorboard", "checkpoint_every", "evaluate_every",
)  # fmt: skip


def content(settings: Settings) -> Record:
    """The settings that define a run.

    Settings that are off (None or False) are left out, so that a new option that is off by default changes no key.
    """
    chosen = settings.as_dict().items()
    return {k: v for k, v in chosen if k not in NOT_HASHED and v is not None and v is not False}


def key_of(what: Mapping[str, Any]) -> str:
    """The key of a run in its table: a hash of its content."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


class RunTable:
    """Runs that are done, by key, in a file of JSON lines that several processes may read and extend.

    A line counts only once it is complete, so a partial line left by a killed process is never read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, Record] = {}
        self._read = 0  # bytes

    def rows(self) -> dict[str, Record]:
        """All runs; only new lines are read. If two have the same key, the first counts."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return self._rows
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # a partial line whose writer was killed
                continue
            if isinstance(row, dict) and "key" in row:
                self._rows.setdefault(str(row["key"]), row)
        return self._rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row with a "key", whole or not at all, and on the disk when this returns."""
        line = json.dumps(row).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path) as file:
            assert file is not None
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:  # such as a full disk
                file.truncate(size)
                raise


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[FileIO | None]:
    """The file, locked by this process, or None if another one has locked it and we don't `wait`.

    The lock ends with the process, however it ends: the system releases it, or on a network the file server.
    """
    with open(path, "ab+", buffering=0) as file:
        try:
            _lock(file, wait)
        except BlockingIOError:
            yield None
            return
        except OSError as error:
            raise OSError(
                f"{path} can't be locked ({error.strerror}); expected a file system with locks: choose another folder"
            ) from None
        yield file


def _lock(file: FileIO, wait: bool) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
