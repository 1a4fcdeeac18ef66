"""Data sets by name, and what is needed to prepare them: splits and conversion to float."""

import difflib
from collections.abc import Callable
from pathlib import Path

from vri.data.catalogue import CATALOGUE, check, get
from vri.data.images import ImageData, to_float
from vri.data.places import DatasetMissing
from vri.data.splits import split

__all__ = ["CATALOGUE", "DATASETS", "DatasetMissing", "ImageData", "check", "get", "load", "split", "to_float"]

# Those that fit into memory.
DATASETS: dict[str, Callable[[str | Path | None], ImageData]] = {
    name: entry.load for name, entry in CATALOGUE.items() if entry.load is not None
}


def load(name: str, root: str | Path | None = None) -> ImageData:
    """Load a data set by its name in `DATASETS`.

    Args:
        name: name of the data set.
        root: folder to look in first for its files, then in $VRI_DATA and ~/.cache/vri, in each also in the
            subfolder with the name of the data set.
    """
    if name not in DATASETS:
        nearest = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.0)[0]
        raise ValueError(f"data set is {name!r}; expected one of {', '.join(DATASETS)}: did you mean {nearest!r}?")
    return DATASETS[name](root)
