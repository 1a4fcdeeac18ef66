"""Data sets by name, and what is needed to prepare them: splits, augmentation and conversion to float."""

from collections.abc import Callable

from vri.data.augment import Augment
from vri.data.catalogue import CATALOGUE, IN_FILES, IN_MEMORY, check, entry, get
from vri.data.files import FileData, image_folder, manifest
from vri.data.images import ImageData, to_float
from vri.data.places import DatasetMissing, Root
from vri.data.sets.animal10n import animal10n
from vri.data.sets.clothing1m import clothing1m
from vri.data.sets.food101n import food101n
from vri.data.splits import split

__all__ = [
    "CATALOGUE",
    "DATASETS",
    "FILE_DATASETS",
    "Augment",
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

# Those that fit into memory, and those whose images are read when they are needed.
DATASETS: dict[str, Callable[[Root], ImageData]] = {entry.name: entry.load for entry in IN_MEMORY}
FILE_DATASETS: dict[str, Callable[[Root], FileData]] = {entry.name: entry.load for entry in IN_FILES}


def load(name: str, root: Root = None) -> ImageData:
    """Load a data set by its name in `DATASETS`.

    Args:
        name: name of the data set.
        root: folder to look in first; $VRI_DATA and ~/.cache/vri come next. In each, the subfolder with the name of the
            data set is tried too.
    """
    if name in FILE_DATASETS:
        raise ValueError(f"{name} is too large for memory: expected load_files({name!r}), which reads image by image")
    images: ImageData = entry(name).load(root)
    return images


def load_files(name: str, root: Root = None) -> FileData:
    """Read the lists of a data set by its name in `FILE_DATASETS`; its images are read when they are needed.

    Args:
        name: name of the data set.
        root: folder to look in first, as for `load`.
    """
    if name in DATASETS:
        raise ValueError(f"{name} is read into memory: expected load({name!r})")
    files: FileData = entry(name).load(root)
    return files
