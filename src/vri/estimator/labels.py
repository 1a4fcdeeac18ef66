"""Labels of any kind to class indices and back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

MISSING = -1
UNLABELLED = ("error", "predict")  # what to do about missing labels


def encode(labels: Any, unlabelled: str = "error", name: str = "y") -> tuple[NDArray[Any], Indices]:
    """The classes in order, and each label's index among them, MISSING (-1) for a label that is None or NaN.

    Numbers, strings and booleans go the way of scikit-learn, with its checks; other hashable things (tuples, a mixture)
    are classes as they are, in an order of their own.

    Args:
        labels: (n,) of any kind.
        unlabelled: "error" refuses missing labels, "predict" lets them pass.
        name: of the labels in messages.
    """
    if unlabelled not in UNLABELLED:
        raise ValueError(f"unlabelled={unlabelled!r} (expected {' or '.join(map(repr, UNLABELLED))})")
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu().numpy()
    missing = missing_labels(labels)
    if missing is None:
        return _encode(labels)
    if unlabelled == "error":
        raise ValueError(
            f"{name} has {missing.sum():,} missing labels (None or NaN), the first at position {missing.argmax()}; "
            "expected a label for each sample: leave these samples out, or pass unlabelled='predict' to have their "
            "labels predicted, not judged"
        )
    if missing.all():
        raise ValueError(f"{name} has no label, only missing ones (None or NaN); expected some to learn from")
    present = [value for value, gone in zip(list(labels), missing, strict=True) if not gone]
    if all(isinstance(value, float | np.floating) and float(value).is_integer() for value in present):
        present = [int(value) for value in present]  # numbers that became floats only because some are missing
    classes, known = _encode(present)
    index = np.full(len(missing), MISSING, np.int64)
    index[~missing] = known
    return classes, index


def encode_as(
    labels: Any, classes: Sequence[Any], unlabelled: str = "error", name: str = "labels"
) -> tuple[NDArray[Any], Indices]:
    """The same for classes whose names and order are known."""
    found, index = encode(labels, unlabelled, name)
    places = {value: place for place, value in enumerate(classes)}
    if len(places) != len(classes):
        twice = next(value for value in classes if list(classes).count(value) > 1)
        raise ValueError(f"classes has {twice!r} more than once; expected a name for each class")
    unknown = [value for value in found.tolist() if value not in places]
    if unknown:
        shown = ", ".join(map(repr, unknown[:5]))
        raise ValueError(
            f"{name} has {shown}{' and more' if len(unknown) > 5 else ''}, not among the classes "
            f"{', '.join(map(repr, list(classes)[:5]))}{', …' if len(classes) > 5 else ''}; expected only these"
        )
    names = np.array(classes) if _odd(list(classes)) is None else _objects(classes)
    place = np.array([places[value] for value in found.tolist()], np.int64)
    return names, np.where(index == MISSING, MISSING, place[index])


def missing_labels(labels: Any) -> Mask | None:
    """(n,) which labels are None or NaN; None if there are none of them, or if it is not a list of labels."""
    if getattr(labels, "ndim", 1) != 1 or not hasattr(labels, "__len__") or hasattr(labels, "toarray"):
        return None
    if isinstance(labels, np.ndarray) and labels.dtype.kind not in "fcOmM":
        return None
    found: Mask = np.asarray(pd.isna(_objects(labels)), bool)
    return found if found.any() else None


def _encode(labels: Any) -> tuple[NDArray[Any], Indices]:
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
    return _objects(distinct), np.array([places[value] for value in values], dtype=np.int64)


def _objects(values: Any) -> NDArray[Any]:
    """As an array of as many objects, whatever they are."""
    values = list(values)
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


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
