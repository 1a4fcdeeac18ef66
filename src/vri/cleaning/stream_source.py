"""The files of a stream: embeddings, labels, ids and marks of trusted rows, read when they are needed."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.cleaning.npy import Floats, Indices, Npy, as_floats, open_column, open_embeddings
from vri.cleaning.pipeline import sort_labels
from vri.cleaning.sources import SourceOptions, check_classes
from vri.cleaning.tables import label_texts

Mask = NDArray[np.bool_]

MOST_CLASSES = 2000  # matrices of all pairs of classes are held and written
_BLOCK = 2**24  # bytes of inputs or probabilities that are worked on at once


@dataclass(frozen=True, eq=False)
class Stream:
    """The files of a data set, opened and checked; rows are read when they are needed.

    Attributes:
        embeddings: (n, d).
        labels: (n,) numbers or text.
        trusted: (n,) marks, or None.
        ids: (n,), or None.
        values: labels there are as they stand in the file, ascending.
        place: of each of them in `classes`.
        classes: their texts in order.
        counts: samples of each class.
        trusted_count: samples that are trusted.
        notes: what is to be told.
    """

    embeddings: Npy
    labels: Npy
    trusted: Npy | None
    ids: Npy | None
    values: NDArray[Any]
    place: Indices
    classes: list[str]
    counts: Indices
    trusted_count: int
    notes: list[str]

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.embeddings.rows

    @property
    def judged(self) -> Indices:
        """Classes, by place, whose samples can be judged: the only sample of a class has none to compare it with."""
        return np.flatnonzero(self.counts > 1)

    @property
    def names(self) -> NDArray[Any]:
        """The classes as they are written: numbers where the labels are numbers, else text."""
        if self.values.dtype.kind not in "iu":
            return np.array(self.classes)
        found = np.empty(len(self.classes), self.values.dtype)
        found[self.place] = self.values
        return found

    def given(self, start: int, stop: int) -> Indices:
        """Places in `classes` of the labels of these rows."""
        return self.encode(self.labels.read(start, stop))

    def encode(self, labels: NDArray[Any]) -> Indices:
        """Places in `classes` of labels as they stand in the file."""
        found: Indices = self.place[np.searchsorted(self.values, labels)]
        return found

    def marks(self, start: int, stop: int) -> Mask:
        """Which of these rows are trusted."""
        return np.zeros(stop - start, bool) if self.trusted is None else self.trusted.read(start, stop)

    def groups(self, only_free: bool = False) -> Iterator[Indices]:
        """Group of each row, in pieces: its class, trusted rows apart from others; -1 for one that can't be judged.

        With `only_free`, -1 for trusted ones, too.
        """
        judged = self.counts > 1
        for start, chunk in self.labels.chunks():
            given = self.encode(chunk)
            marks = self.marks(start, start + len(chunk))
            drawn = judged[given] & ~(marks & only_free)
            yield np.where(drawn, given + len(self.classes) * marks, -1)

    def floats(self, rows: Indices) -> Floats:
        """The embeddings of rows whose numbers ascend."""
        found = np.empty((len(rows), self.embeddings.shape[1]), np.float32)
        for block in blocks(len(rows), max(self.embeddings.row_bytes, 4 * found.shape[1])):
            part = rows[block]
            found[block] = as_floats(self.embeddings.path, self.embeddings.take(part), part)
        return found


def open_stream(path: Path, options: SourceOptions) -> Stream:
    """Open the files and go once through the labels; every mistake but in a number of an embedding is told now."""
    embeddings = open_embeddings(path)
    n = embeddings.rows
    labels = open_column(
        Path(options.label or ""), "--label", "biuU", "one class a sample, as whole numbers or text", n
    )
    trusted = ids = None
    trusted_count = 0
    if options.trusted is not None:
        trusted = open_column(Path(options.trusted), "--trusted", "b", "true or false for each sample, type bool", n)
        trusted_count = sum(int(chunk.sum()) for _, chunk in trusted.chunks())
        if not trusted_count:
            raise ValueError("--trusted marks no sample; expected at least one: mark some, or leave it out")
    if options.id is not None:
        ids = open_column(Path(options.id), "--id", "iuU", "an id a sample, as whole numbers or text", n)
    found = _count_labels(labels)
    values = np.array(sorted(found), labels.dtype.newbyteorder("="))
    texts = label_texts(values.tolist(), str(labels.path))
    by_text: Counter[str] = Counter()
    for text, value in zip(texts, values.tolist(), strict=True):
        by_text[text] += found[value]
    notes = check_classes(labels.path, by_text)
    classes = sort_labels(set(texts))
    place = {name: number for number, name in enumerate(classes)}
    return Stream(
        embeddings=embeddings,
        labels=labels,
        trusted=trusted,
        ids=ids,
        values=values,
        place=np.array([place[text] for text in texts]),
        classes=classes,
        counts=np.array([by_text[name] for name in classes]),
        trusted_count=trusted_count,
        notes=notes,
    )


def _count_labels(labels: Npy) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    for start, chunk in labels.chunks():
        values, first, numbers = np.unique(chunk, return_index=True, return_counts=True)
        for value, row, number in zip(values.tolist(), first.tolist(), numbers.tolist(), strict=True):
            if isinstance(value, str) and not value.strip():
                raise ValueError(
                    f"{labels.path} has no label in row {start + row} (from 0); expected one in each: fill it in or "
                    "remove the row"
                )
            counts[value] += number
        if len(counts) > MOST_CLASSES:
            raise ValueError(
                f"{labels.path} has more than {MOST_CLASSES:,} different labels; expected at most so many classes: "
                "is it the file of the labels?"
            )
    return counts


def blocks(rows: int, row_bytes: int) -> Iterator[slice]:
    """Slices of few enough rows to be held many times over."""
    size = max(1, _BLOCK // row_bytes)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
