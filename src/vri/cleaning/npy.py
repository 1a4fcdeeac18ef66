"""Arrays in .npy files of any length, read a few rows at a time; nothing is unpickled."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vri.data.lists import shorten

Array = NDArray[Any]
Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

_TOGETHER = 2**16  # bytes: to read less at once is no faster on any disk
_CHUNK = 2**24  # bytes in a chunk of `Npy.chunks`


@dataclass(frozen=True, eq=False)
class Npy:
    """Where the numbers of an .npy file are.

    They are read, not mapped: pages of a map count as memory of the process, and a file that is cut while it is read
    would end it without a word.

    Attributes:
        path: the file.
        dtype: type of an entry.
        shape: of the array.
        offset: bytes before the first entry.
    """

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the head of a file, and check that the rest is there."""
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; expected an .npy file: check the name")
        with path.open("rb") as file:
            shape, by_column, dtype = _head(path, file)
            offset = file.tell()
        if dtype.hasobject:
            raise ValueError(
                f"{path} holds Python objects, which could run code when read; expected numbers or text: "
                "save it as one, such as labels.astype(str)"
            )
        if by_column:
            raise ValueError(
                f"{path} is written column by column; expected row by row: save numpy.ascontiguousarray(array)"
            )
        found = cls(path, dtype, shape, offset)
        there, expected = path.stat().st_size - offset, found.row_bytes * found.rows
        if there < expected:
            raise ValueError(
                f"{path} is cut short: it has {there:,} of {expected:,} bytes of its {found.rows:,} rows; "
                "write or copy it again"
            )
        return found

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.shape[0] if self.shape else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` to before `stop`."""
        with self.path.open("rb") as file:
            return self._read(file, start, stop)

    def take(self, rows: Indices) -> Array:
        """The rows with these numbers, which ascend; those near each other are read at once."""
        found = np.empty((len(rows), *self.shape[1:]), self.dtype.newbyteorder("="))
        window = rows // max(1, _TOGETHER // self.row_bytes)
        edges = [*np.flatnonzero(np.diff(window, prepend=-1)).tolist(), len(rows)]
        with self.path.open("rb") as file:
            for a, b in pairwise(edges):
                found[a:b] = self._read(file, int(rows[a]), int(rows[b - 1]) + 1)[rows[a:b] - rows[a]]
        return found

    def chunks(self) -> Iterator[tuple[int, Array]]:
        """All rows, some at a time, with the number of the first."""
        size = max(1, _CHUNK // self.row_bytes)
        for start in range(0, self.rows, size):
            yield start, self.read(start, min(start + size, self.rows))

    def _read(self, file: BinaryIO, start: int, stop: int) -> Array:
        file.seek(self.offset + start * self.row_bytes)
        data = np.empty((stop - start) * self.row_bytes, np.uint8)
        if file.readinto(data) < len(data):  # type: ignore[attr-defined]
            raise ValueError(f"{self.path} was cut short while it was read; write or copy it again")
        found = data.view(self.dtype).reshape(stop - start, *self.shape[1:])
        return found.astype(self.dtype.newbyteorder("="), copy=False)


def open_embeddings(path: Path) -> Npy:
    """A file of numbers, shape (n, d)."""
    found = Npy.open(path)
    if len(found.shape) != 2 or found.dtype.kind not in "biuf" or 0 in found.shape[1:]:
        raise ValueError(
            f"{path} has shape {found.shape} and type {found.dtype}; expected numbers of shape (n, d), "
            "a row a sample: reshape it"
        )
    if not found.rows:
        raise ValueError(f"{path} has no rows; expected at least two, with labels that differ")
    return found


def open_column(path: Path, option: str, kinds: str, expected: str, rows: int) -> Npy:
    """A file with an entry a sample.

    Args:
        path: the file.
        option: it was named with.
        kinds: of entries that will do, as numpy's letters.
        expected: the same for people.
        rows: samples there are.
    """
    if path.suffix.lower() != ".npy":
        raise ValueError(f"{option} is {str(path)!r}; expected an .npy file with an entry a row: save it as one")
    found = Npy.open(path)
    if len(found.shape) != 1 or found.dtype.kind not in kinds or not found.dtype.itemsize:
        raise ValueError(f"{path} has shape {found.shape} and type {found.dtype}; expected {expected}, shape (n,)")
    if found.rows != rows:
        raise ValueError(f"{path} has {found.rows:,} entries and the embeddings {rows:,} rows; expected one a row")
    return found


def as_floats(path: Path, embeddings: Array, rows: Indices) -> Floats:
    """Embeddings in single precision; all must be finite. `rows` are their numbers, for the error."""
    with np.errstate(over="ignore"):
        found = embeddings.astype(np.float32, copy=False)
    bad = rows[~np.isfinite(found).all(axis=1)]
    if len(bad):
        raise ValueError(
            f"{path} has NaN, Inf or a number too large for single precision in row {shorten(map(str, bad))} (from 0); "
            "expected finite numbers: correct or remove them"
        )
    return found


def _head(path: Path, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_column, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} can't be read as .npy ({reason}); expected what numpy.save writes") from None
    return shape, by_column, dtype
