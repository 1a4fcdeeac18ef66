"""Data sets by name, and what is needed to prepare them: splits and conversion to float."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from vri.data.catalogue import CATALOGUE, check, get
from vri.data.files import FileData, image_folder, manifest
from vri.data.images import ImageData, to_float
from vri.data.places import DatasetMissing
from vri.data.sets.animal10n import animal10n
from vri.data.sets.clothing1m import clothing1m
from vri.data.sets.food101n import food101n
from vri.data.splits import split

__all__ = [
    "CATALOGUE",
    "DATASETS",
    "FILE_DATASETS",
    "DatasetMissing",
    "FileData",
    "ImageData",
    "animal10n",
    "check",
    "clothing1m",
    "food101n",
    "get",
    "image_folder",
    "load",
    "load_files",
    "manifest",
    "split",
    "to_float",
]

_T = TypeVar("_T")

# Those that fit into memory, and those whose images are read when they are needed.
DATASETS: dict[str, Callable[[str | Path | None], ImageData]] = {
    name: entry.load for name, entry in CATALOGUE.items() if entry.load is not None
}
FILE_DATASETS: dict[str, Callable[[str | Path | None], FileData]] = {
    name: entry.load_files for name, entry in CATALOGUE.items() if entry.load_files is not None
}


def load(name: str, root: str | Path | None = None) -> ImageData:
    """Load a data set by its name in `DATASETS`.

    Args:
        name: name of the data set.
        root: folder to look in first for its files, then in $VRI_DATA and ~/.cache/vri, in each also in the
            subfolder with the name of the data set.
    """
    if name in FILE_DATASETS:
        raise ValueError(f"{name} is too large for memory: expected load_files({name!r}), which reads image by image")
    return _named(DATASETS, name)(root)


def load_files(name: str, root: str | Path | None = None) -> FileData:
    """Read the lists of a data set by its name in `FILE_DATASETS`; its images are read when they are needed.

    Args:
        name: name of the data set.
        root: folder to look in first, as for `load`.
    """
    if name in DATASETS:
        raise ValueError(f"{name} is read into memory: expected load({name!r})")
    return _named(FILE_DATASETS, name)(root)


def _named(choices: dict[str, _T], name: str) -> _T:
    if name not in choices:
        nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
        raise ValueError(f"data set is {name!r}; expected one of {', '.join(choices)}: did you mean {nearest!r}?")
    return choices[name]
