"""Embeddings, labels, ids and trusted marks in .npy files of any length, read some rows at a time.

Nothing is unpickled. Rows are read, not memory-mapped: mapped pages count as memory of the process, and a mapped file
that gets shorter kills the process.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vri.cleaning.options import MOST_CLASSES, SourceOptions, check_classes, check_trusted, sort_labels
from vri.cleaning.tables import is_missing_label, label_texts
from vri.data.lists import shorten

Array = NDArray[Any]
Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

_WINDOW = 2**16  # bytes: reading less at a time is not faster on any disk
_CHUNK = 2**21  # bytes of labels that are processed together: about ten times as many with intermediate results


@dataclass(frozen=True, eq=False)
class NpyFile:
    """An array in a file: where its data starts, its type and its shape."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @classmethod
    def open(cls, path: Path) -> Self:
        """Check that the file is complete, without reading its data."""
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there; expected an .npy file: check the name")
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except OSError:
            raise
        except Exception as error:  # a damaged file can raise anything
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{path} can't be read ({reason}); expected a whole .npy file of numbers or text: "
                "write it again with numpy.save"
            ) from None
        if not array.flags.c_contiguous:
            raise ValueError(
                f"{path} is written column by column; expected row by row: save numpy.ascontiguousarray(array)"
            )
        return cls(path, array.dtype, array.shape, array.offset)

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    @property
    def row_bytes(self) -> int:
        """Size of a row in the file."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def read(self, start: int, stop: int) -> Array:
        """Rows from `start` to before `stop`."""
        data = np.fromfile(
            self.path, np.uint8, (stop - start) * self.row_bytes, offset=self.offset + start * self.row_bytes
        )
        if len(data) < (stop - start) * self.row_bytes:
            raise ValueError(f"{self.path} got shorter while it was read; write it again")
        found = data.view(self.dtype).reshape(stop - start, *self.shape[1:])
        return found.astype(self.dtype.newbyteorder("="), copy=False)

    def take(self, rows: Indices) -> Array:
        """The rows with these ascending numbers; neighbours are read together."""
        window = rows // max(1, _WINDOW // self.row_bytes)
        parts = np.split(rows, np.flatnonzero(np.diff(window)) + 1) if len(rows) else []
        found = [self.read(part[0], part[-1] + 1)[part - part[0]] for part in parts]
        return np.concatenate(found) if found else self.read(0, 0)


@dataclass(frozen=True, eq=False)
class NpySource:
    """The files of one data set, checked.

    Attributes:
        embeddings: (n, d) numbers.
        labels: (n,) numbers or text.
        trusted: (n,) booleans, or None.
        ids: (n,) whole numbers or text, or None.
        classes: the different labels as text, in order.
        counts: samples of each class.
        trusted_count: samples that are trusted.
        unlabelled_count: samples without label.
        notes: what the user should know.
        options: how to read them.
    """

    embeddings: NpyFile
    labels: NpyFile
    trusted: NpyFile | None
    ids: NpyFile | None
    classes: list[str]
    counts: Indices
    trusted_count: int
    unlabelled_count: int
    notes: list[str]
    options: SourceOptions
    _values: Array  # the different labels as in the file, ascending
    _place: Indices  # index of each of them in `classes`

    @property
    def rows(self) -> int:
        """Number of samples."""
        return len(self.embeddings)

    @property
    def names(self) -> Array:
        """The classes as they are written: numbers if the labels are numbers, else text."""
        if self._values.dtype.kind not in "iuf":
            return np.array(self.classes)
        found = np.empty(len(self.classes), np.float64 if self._values.dtype.kind == "f" else self._values.dtype)
        found[self._place] = self._values
        return found

    def encode(self, labels: Array) -> Indices:
        """Convert labels as in the file to their indices in `classes`, -1 for a missing one."""
        nearest = np.searchsorted(self._values, labels).clip(max=len(self._values) - 1)
        return np.where(self._values[nearest] == labels, self._place[nearest], -1)

    def label_texts(self) -> list[str]:
        """All labels; "" for missing ones."""
        names = [*self.classes, ""]  # the last also has the place -1
        return [names[place] for place in self.encode(self.labels.read(0, self.rows)).tolist()]

    def id_texts(self) -> list[str]:
        """All ids, or the row numbers from 0."""
        return [str(name) for name in (range(self.rows) if self.ids is None else self.ids.read(0, self.rows).tolist())]

    def marks(self, start: int, stop: int) -> Mask:
        """Which of these rows are trusted."""
        return np.zeros(stop - start, bool) if self.trusted is None else self.trusted.read(start, stop)

    def floats(self, embeddings: Array, rows: Indices) -> Floats:
        """Embeddings in single precision; all must be finite. `rows` are their row numbers, for the error."""
        with np.errstate(over="ignore"):
            found = embeddings.astype(np.float32, copy=False)
        bad = rows[~np.isfinite(found).all(axis=1)]
        if len(bad):
            raise ValueError(
                f"{self.embeddings.path} has NaN, Inf or a number too large for single precision in row "
                f"{shorten(map(str, bad))} (from 0); expected finite numbers: correct or remove them"
            )
        return found


def open_npy(path: Path, options: SourceOptions) -> NpySource:
    """Open the files and count the labels; finds all mistakes except those in the embeddings' numbers."""
    if options.label is None:
        raise ValueError(f"--label is missing; {path} has the embeddings only: name the .npy file of their labels")
    embeddings = NpyFile.open(path)
    if len(embeddings.shape) != 2 or embeddings.dtype.kind not in "biuf" or 0 in embeddings.shape[1:]:
        raise ValueError(
            f"{path} has shape {embeddings.shape} and type {embeddings.dtype}; expected numbers of shape (n, d), "
            "one row per sample: reshape it"
        )
    rows = len(embeddings)
    if not rows:
        raise ValueError(f"{path} has no rows; expected at least two, with labels that differ")
    labels = _column(options.label, "--label", "biufU", "one class per sample, as numbers or text", rows)
    trusted, ids, trusted_count = None, None, 0
    if options.trusted is not None:
        trusted = _column(options.trusted, "--trusted", "b", "true or false for each sample, type bool", rows)
        trusted_count = sum(int(marks.sum()) for _, marks in chunks(trusted))
        if not trusted_count:
            raise ValueError("--trusted marks no sample; expected at least one: mark some, or leave it out")
    if options.id is not None:
        ids = _column(options.id, "--id", "iuU", "one id per sample, as whole numbers or text", rows)
    found, unlabelled_count = _count_labels(labels, options.unlabelled)
    values = np.array(sorted(found), labels.dtype.newbyteorder("="))
    texts = label_texts(values.tolist(), str(labels.path), options.unlabelled)
    unlabelled_count += sum(found[value] for text, value in zip(texts, values.tolist(), strict=True) if not text)
    values, texts = values[[bool(text) for text in texts]], list(filter(None, texts))
    counts: Counter[str] = Counter()
    for text, value in zip(texts, values.tolist(), strict=True):
        counts[text] += found[value]
    notes = check_classes(labels.path, counts)
    classes = sort_labels(counts)
    place = np.array([classes.index(text) for text in texts])
    numbers = np.array([counts[name] for name in classes])
    source = NpySource(
        embeddings,
        labels,
        trusted,
        ids,
        classes,
        numbers,
        trusted_count,
        unlabelled_count,
        notes,
        options,
        values,
        place,
    )
    if unlabelled_count and trusted is not None:
        check_trusted([str(row) for row in _trusted_without_label(source)])
    return source


def _trusted_without_label(source: NpySource) -> Iterator[int]:
    for start, labels in chunks(source.labels):
        trusted = source.marks(start, start + len(labels))
        yield from (start + np.flatnonzero((source.encode(labels) < 0) & trusted)).tolist()


def chunks(column: NpyFile) -> Iterator[tuple[int, Array]]:
    """All rows, some at a time, with the number of the first."""
    size = max(1, _CHUNK // column.row_bytes)
    for start in range(0, len(column), size):
        yield start, column.read(start, min(start + size, len(column)))


def _column(name: str, option: str, kinds: str, expected: str, rows: int) -> NpyFile:
    """A file with one entry per sample; `kinds` are numpy's letters for the accepted types."""
    if Path(name).suffix.lower() != ".npy":
        raise ValueError(f"{option} is {name!r}; expected an .npy file with one entry per row: save it as one")
    found = NpyFile.open(Path(name))
    if len(found.shape) != 1 or found.dtype.kind not in kinds or not found.dtype.itemsize:
        raise ValueError(f"{name} has shape {found.shape} and type {found.dtype}; expected {expected}, shape (n,)")
    if len(found) != rows:
        raise ValueError(f"{name} has {len(found):,} entries and the embeddings {rows:,} rows; expected one per row")
    return found


def _count_labels(labels: NpyFile, unlabelled: bool | str) -> tuple[Counter[Any], int]:
    """How often each label comes, and how many are missing, which `unlabelled` may allow."""
    counts: Counter[Any] = Counter()
    missing = 0
    for start, chunk in chunks(labels):
        values, first, numbers = np.unique(chunk, return_index=True, return_counts=True)
        for value, row, number in zip(values.tolist(), first.tolist(), numbers.tolist(), strict=True):
            if not is_missing_label(value):
                counts[value] += number
                continue
            missing += number
            if unlabelled is False:
                raise ValueError(
                    f"{labels.path} has no label in row {start + row} (from 0); expected one in each: fill it in, "
                    "remove the row, or have it predicted with --unlabelled"
                )
        if len(counts) > MOST_CLASSES:
            raise ValueError(
                f"{labels.path} has more than {MOST_CLASSES:,} different labels; expected fewer classes: "
                "is it the file of the labels?"
            )
    return counts, missing
