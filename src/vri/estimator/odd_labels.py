"""What looks odd before anything is learned: misspelled classes, and columns that give every label away."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.estimator.labels import MISSING, Indices, encode

_RARE = 20  # a class that another one is so many times as frequent as may be a slip of the pen
_MANY = 2000  # classes above which names are compared by their letters only, not one by one
_CLEAR = 10.0  # times the spread within classes that they are apart in a column that copies the label
_ENOUGH = 10  # samples of each class, on average, from which on that is no accident


@dataclass(frozen=True)
class OddLabel:
    """A class that may be a mistake.

    Attributes:
        label: its name.
        samples: how many have it.
        suggestion: the class that was probably meant; None if there is none.
        suggestion_samples: how many samples that one has.
        text: both in a short sentence.
    """

    label: Any
    samples: int
    suggestion: Any = None
    suggestion_samples: int = 0

    @property
    def text(self) -> str:
        """What a person should know."""
        if self.suggestion is None:
            return f"class {self.label!r} has one sample, so there is nothing to compare its label with"
        many = "1 sample" if self.samples == 1 else f"{self.samples:,} samples"
        return (
            f"class {self.label!r} ({many}) is spelled almost like {self.suggestion!r} "
            f"({self.suggestion_samples:,}); are they the same?"
        )


def odd_labels(labels: Any) -> list[OddLabel]:
    """Classes that are spelled almost like another one, and classes of one sample; missing labels are passed over."""
    classes, given = encode(labels, "predict")
    return odd_classes(classes, np.bincount(given[given != MISSING], minlength=len(classes)))


def odd_classes(classes: NDArray[Any] | Sequence[Any], counts: Indices) -> list[OddLabel]:
    """The same for classes with so many samples each."""
    names = [name for name in classes.tolist()] if isinstance(classes, np.ndarray) else list(classes)
    meant = _same_letters(names, counts)
    if len(names) <= _MANY:
        meant = _one_letter_off(names, counts) | meant
    return [
        OddLabel(name, int(counts[i]))
        if i not in meant
        else OddLabel(name, int(counts[i]), names[meant[i]], int(counts[meant[i]]))
        for i, name in enumerate(names)
        if i in meant or counts[i] == 1
    ]


def copies_of_label(X: NDArray[Any], given: Indices) -> list[int]:
    """Columns of X (n, d) that tell the label of every sample: one that does alone, or all that mark a class each.

    In such a column, values of one class are alike, and those of different classes at least ten times as far apart.
    """
    count = int(given.max()) + 1
    if X.ndim != 2 or X.shape[1] == 0 or len(X) < _ENOUGH * count:
        return []
    low, high = np.empty((count, X.shape[1])), np.empty((count, X.shape[1]))
    for k in range(count):
        members = X[given == k]
        low[k], high[k] = members.min(0), members.max(0)  # NaN where a value is missing: never a copy
    spread = (high - low).max(0)
    order = low.argsort(0)
    gaps = np.take_along_axis(low, order[1:], 0) - np.take_along_axis(high, order[:-1], 0)
    alone = np.flatnonzero((gaps.min(0) > 0) & (gaps.min(0) >= _CLEAR * spread))
    if len(alone):
        return [int(column) for column in alone]
    marked: dict[int, int] = {}
    for k in range(count):
        rest_low, rest_high = np.delete(low, k, 0), np.delete(high, k, 0)
        gap = np.maximum(low[k] - rest_high.max(0), rest_low.min(0) - high[k])
        width = np.maximum(high[k] - low[k], rest_high.max(0) - rest_low.min(0))
        found = np.flatnonzero((gap > 0) & (gap >= _CLEAR * width))
        if len(found):
            marked[k] = int(found[0])
    return sorted(set(marked.values())) if len(marked) >= count - 1 else []


def _same_letters(names: list[Any], counts: Indices) -> dict[int, int]:
    """From a class to the most frequent one of the same letters and digits."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        if isinstance(name, str) or (isinstance(name, int) and any(isinstance(other, str) for other in names[:1])):
            groups[_letters(str(name))].append(i)
    found: dict[int, int] = {}
    for letters, group in groups.items():
        if letters and len(group) > 1:
            best = max(group, key=lambda i: int(counts[i]))
            found |= {i: best for i in group if i != best}
    return found


def _letters(name: str) -> str:
    """What is left without case, width, spaces and punctuation, but for signs and points between digits."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"(?<!\d)[^\w+\-#](?!\d)|[^\w+\-#](?!\d)|(?<!\d)[^\w+\-#]|_", "", folded).strip()


def _one_letter_off(names: list[Any], counts: Indices) -> dict[int, int]:
    """From a rare class to the one frequent class that differs in one letter."""
    strings = [(i, _letters(name)) for i, name in enumerate(names) if isinstance(name, str)]
    found = {}
    for i, name in strings:
        others = [
            j
            for j, other in strings
            if j != i and counts[j] >= _RARE * counts[i] and _digits(other) == _digits(name) and _one_off(name, other)
        ]
        if len(others) == 1:
            found[i] = others[0]
    return found


def _digits(name: str) -> list[str]:
    return re.findall(r"\d", name)


def _one_off(a: str, b: str) -> bool:
    """Whether one letter was added, left out, changed or swapped with the next one; changes only in longer names."""
    if abs(len(a) - len(b)) > 1 or a == b or not a or not b:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    if len(a) != len(b):
        short, long = sorted((a, b), key=len)
        # of names of one letter, only a doubled one counts: "aa", not "ab"
        return short[start:] == long[start + 1 :] and (len(short) > 3 or set(short) == set(long))
    swapped = a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
    return len(a) > 3 and (swapped or a[start + 1 :] == b[start + 1 :])
