"""Data sets by name, and what is needed to prepare them: splits and conversion to float."""

import difflib
from collections.abc import Callable
from pathlib import Path

from vri.data.small import DatasetMissing, ImageData, digits, fashion_mnist, to_float
from vri.data.splits import split

__all__ = ["DATASETS", "DatasetMissing", "ImageData", "load", "split", "to_float"]

DATASETS: dict[str, Callable[[str | Path | None], ImageData]] = {
    "digits": digits,
    "fashion-mnist": fashion_mnist,
}


def load(name: str, root: str | Path | None = None) -> ImageData:
    """Load a data set by its name in `DATASETS`.

    Args:
        name: name of the data set.
        root: folder to look in first for its files.
    """
    if name not in DATASETS:
        nearest = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.0)[0]
        raise ValueError(f"data set is {name!r}; expected one of {', '.join(DATASETS)}: did you mean {nearest!r}?")
    return DATASETS[name](root)
