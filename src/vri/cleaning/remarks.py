"""What a person should look at besides the issues: odd names of classes, and columns that give the labels away."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.data.lists import shorten
from vri.estimator.odd_labels import copies_of_label, odd_classes

_MOST = 20  # remarks on names


def spelling(classes: Sequence[str], counts: NDArray[np.int64]) -> list[str]:
    """Classes that may be misspelled, with the one that was probably meant, and classes of one sample."""
    found = [odd.text for odd in sorted(odd_classes(list(classes), counts), key=lambda odd: odd.suggestion is None)]
    return found[:_MOST] + ([f"{len(found) - _MOST:,} more names of classes are odd"] if len(found) > _MOST else [])


def without_label(count: int, filled: int, confidence: float, issues: str, corrected: str) -> list[str]:
    """A remark on samples without label, and where their predictions are."""
    if not count:
        return []
    who = "1 sample has" if count == 1 else f"{count:,} samples have"
    return [
        f"{who} no label: {issues} has a predicted one for each, and {corrected} the {filled:,} that are at least "
        f"{confidence:.0%} sure"
    ]


def copied_labels(X: Any, given: NDArray[Any], names: Sequence[str]) -> list[str]:
    """A remark on columns that tell the label of every sample."""
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind not in "fiub":
        return []
    columns = copies_of_label(X, np.unique(given, return_inverse=True)[1])
    if not columns:
        return []
    which = list(dict.fromkeys(repr(names[k]) if k < len(names) else f"{k} (from 0)" for k in columns))
    return [
        f"column {shorten(which)} gives away every label, like a copy of it, and nothing can be found wrong by it; "
        "leave it out"
    ]
