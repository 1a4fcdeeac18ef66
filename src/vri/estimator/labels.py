"""Labels of any kind to class indices and back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


def encode(labels: Any) -> tuple[NDArray[Any], Indices]:
    """The classes in order, and each label's index among them.

    Numbers, strings and booleans go the way of scikit-learn, with its checks; other hashable things (None, tuples,
    a mixture) are classes as they are, in an order of their own.
    """
    from sklearn.utils import column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import assert_all_finite

    values = _odd(labels)
    if values is None:
        plain = column_or_1d(labels, warn=True)
        if plain.dtype.kind in "fc":
            assert_all_finite(plain, input_name="y")
        check_classification_targets(plain)
        classes, index = np.unique(plain, return_inverse=True)
        return classes, index.astype(np.int64)
    try:
        distinct = sorted(set(values), key=lambda value: (type(value).__name__, repr(value)))
    except TypeError:
        bad = next(value for value in values if not _hashable(value))
        raise ValueError(
            f"y has a label of type {type(bad).__name__}, which can't be hashed; expected numbers, strings or other "
            "hashable labels: convert them, for example with str"
        ) from None
    places = {value: place for place, value in enumerate(distinct)}
    classes = np.empty(len(distinct), dtype=object)
    classes[:] = distinct
    return classes, np.array([places[value] for value in values], dtype=np.int64)


def _odd(labels: Any) -> list[Any] | None:
    """The labels as a list, if any of them is neither number nor string."""
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return None
    if getattr(labels, "ndim", 1) != 1 or not hasattr(labels, "__len__") or hasattr(labels, "toarray"):
        return None
    values = list(labels)
    plain = (str, bytes, bool, int, float, np.generic)
    strings = sum(isinstance(value, (str, bytes)) for value in values)
    if all(isinstance(value, plain) for value in values) and strings in (0, len(values)):
        return None
    if any(isinstance(value, (list, np.ndarray)) for value in values):  # rows of a table: scikit-learn says so
        return None
    return values


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def as_mask(trusted: Any, count: int) -> Mask | None:
    """Trusted samples as a mask, or None if there are none."""
    if trusted is None:
        return None
    mask = np.asarray(trusted)
    if mask.shape != (count,):
        raise ValueError(
            f"trusted has shape {mask.shape} for {count} samples; expected a mask with one truth value for each sample"
        )
    if mask.dtype != bool:
        numbers = mask.astype(object)
        if not all(value in (0, 1) for value in numbers):
            raise ValueError(
                f"trusted has values like {numbers[[v not in (0, 1) for v in numbers]][0]!r}; expected a mask of True "
                "and False: for a list of numbers, set these places of np.zeros(len(y), bool) to True"
            )
        mask = mask.astype(bool)
    return mask if mask.any() else None
