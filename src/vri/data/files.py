"""Data sets of image files: folders of classes, and manifests in CSV."""

import csv
import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vri.data.image_files import ImageFiles, Preparation
from vri.data.lists import check_present, leaves_root, shorten
from vri.data.places import DatasetMissing, Entry, FileCheck, Root, default_root, folders

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")

_TRUSTED = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class FileData:
    """Image files by part; parts that the data set doesn't have are None.

    Attributes:
        name: name of the data set.
        train: samples with the given labels, some of them wrong.
        clean: samples with trusted labels, for the methods that use them; none of them is in `train`.
        validation: samples to choose settings on.
        test: samples to measure accuracy on.
        class_names: what the labels 0, 1, ... stand for.
    """

    name: str
    train: ImageFiles
    clean: ImageFiles | None
    validation: ImageFiles | None
    test: ImageFiles | None
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


@dataclass(frozen=True, kw_only=True)
class FilesEntry(Entry):
    """A data set of image files that its authors distribute."""

    marks: tuple[str, ...]  # paths; its folder contains at least one of them
    read: Callable[[Path], FileData]  # reads the lists in its folder
    look: Callable[[Path], list[FileCheck]]  # checks the files in its folder

    def find(self, root: Root = None, only_root: bool = False) -> Path | None:
        """The first folder with one of the marks."""
        places = folders(self.name, root, only_root)
        return next((f for f in places if any((f / mark).exists() for mark in self.marks)), None)

    def load(self, root: Root = None) -> FileData:
        """Read the lists; if they are not found, the reader says what is missing from the first folder."""
        return self.read(self.find(root) or self._first(root))

    def check(self, root: Root = None) -> list[FileCheck]:
        """Check the lists, and that the images exist."""
        return self.look(self.find(root, only_root=True) or self._first(root))

    def _first(self, root: Root) -> Path:
        return Path(root or default_root() / self.name)


def image_folder(
    root: str | Path,
    *,
    clean: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    prepare: Preparation | None = None,
) -> FileData:
    """Read a folder with one folder of images per class: ``root/class/image.jpg``.

    Hidden files, and files whose names are not those of images, are ignored. So are folders inside a class.

    Args:
        root: folder of the noisy training images; its folders, sorted by name, are the classes.
        clean: folder of trusted images, in the same form; its classes must be among those of `root`.
        validation: likewise, for choosing settings.
        test: likewise, for measuring accuracy.
        prepare: how an image becomes a tensor; its random cuts apply to `root` and `clean`.
    """
    root = Path(root)
    class_names = _class_folders(root)

    def read(folder: str | Path | None, training: bool = False) -> ImageFiles | None:
        return None if folder is None else _read_folder(Path(folder), class_names, root, prepare, training)

    train = _read_folder(root, class_names, root, prepare, training=True)
    return FileData(root.name, train, read(clean, training=True), read(validation), read(test), class_names)


def manifest(
    csv_path: str | Path,
    root: str | Path | None = None,
    *,
    class_names: Sequence[str] | None = None,
    prepare: Preparation | None = None,
    check_files: bool = True,
) -> FileData:
    """Read a CSV file in UTF-8 with the columns path, label and, optionally, trusted and split.

    ``trusted`` is true or false (also 1 or 0, yes or no): trusted training rows become the trusted set. ``split`` is
    train, validation or test; without it all rows are for training. Other columns are ignored.

    Args:
        csv_path: the file.
        root: folder that relative paths start from and no path may leave; by default that of the CSV file.
        class_names: the classes in the order of their numbers; by default the labels of the file, sorted (by
            value if all are whole numbers).
        prepare: how an image becomes a tensor; its random cuts apply to training and trusted images.
        check_files: check that all images exist; a million take some seconds.
    """
    csv_path = Path(csv_path)
    root = csv_path.parent if root is None else Path(root)
    rows, has_trusted = _read_rows(csv_path, root)
    names = _label_order({row.label for row in rows}) if class_names is None else tuple(class_names)
    numbers = {name: number for number, name in enumerate(names)}
    for row in rows:
        if row.label not in numbers:
            raise ValueError(
                f"{csv_path}, line {row.line}: label is {row.label!r}; expected one of class_names "
                f"({shorten(map(repr, names))}): correct the row or add the class"
            )
    parts = {part: [row for row in rows if row.part == part] for part in (*_SPLITS, "clean")}
    _check_parts(csv_path, parts, has_trusted)
    if check_files:
        check_present(root, [row.path for row in rows], str(csv_path))

    def files(part: str) -> ImageFiles:
        paths, labels = [row.path for row in parts[part]], [numbers[row.label] for row in parts[part]]
        return ImageFiles(root, paths, labels, prepare, training=part in ("train", "clean"))

    clean, validation, test = (files(part) if parts[part] else None for part in ("clean", "validation", "test"))
    return FileData(csv_path.stem, files("train"), clean, validation, test, names)


def is_image(name: str) -> bool:
    """Whether a file is an image by its name, and not hidden."""
    return not name.startswith(".") and name.lower().endswith(EXTENSIONS)


# folders


def _class_folders(root: Path) -> tuple[str, ...]:
    if root.is_file():
        raise NotADirectoryError(f"{root} is a file; expected a folder with one folder of images per class")
    if not root.is_dir():
        raise DatasetMissing(f"{root} is not there; expected a folder with one folder of images per class")
    found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise ValueError(
            f"{root} has no folders in it; expected one per class, {root}/CLASS/IMAGE.jpg: sort the images into them"
        )
    return tuple(found)


def _read_folder(
    folder: Path, class_names: tuple[str, ...], first: Path, prepare: Preparation | None, training: bool
) -> ImageFiles:
    found = _class_folders(folder)
    unknown = [name for name in found if name not in class_names]
    if unknown:
        raise ValueError(
            f"{folder} has classes that {first} has not: {shorten(unknown)}; "
            f"expected some of {shorten(class_names)}: rename or remove them"
        )
    paths: list[str] = []
    labels: list[int] = []
    empty = []
    for name in found:
        images = sorted(entry.name for entry in os.scandir(folder / name) if is_image(entry.name) and entry.is_file())
        paths += [f"{name}/{image}" for image in images]
        labels += [class_names.index(name)] * len(images)
        empty += [] if images else [name]
    if empty:
        raise ValueError(
            f"{folder} has classes without images: {shorten(empty)}; expected files that end in "
            f"{', '.join(EXTENSIONS)} in each: remove the folder, or pass the folder that holds the classes, such as "
            f"{folder / empty[0]}"
        )
    return ImageFiles(folder, paths, labels, prepare, training=training)


# manifests


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    path: str
    label: str
    part: str  # train, clean, validation or test


def _read_rows(csv_path: Path, root: Path) -> tuple[list[_Row], bool]:
    """The rows of a manifest, and whether it has the column trusted."""
    if not csv_path.is_file():
        raise DatasetMissing(f"{csv_path} is not there; expected a CSV file with the columns path and label")
    if not root.is_dir():
        raise DatasetMissing(f"root is {root}, which is no folder; expected the one that the paths begin from")
    rows = []
    try:
        with csv_path.open(encoding="utf-8-sig", newline="") as file:  # utf-8-sig skips a byte order mark
            reader = csv.DictReader(file, strict=True)
            reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or []]
            _check_columns(csv_path, reader.fieldnames)
            for cells in reader:
                rows.append(_read_row(f"{csv_path}, line {reader.line_num}", reader.line_num, cells, root))
    except UnicodeDecodeError as error:
        raise ValueError(f"{csv_path} is not UTF-8 ({error}); save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(
            f"{csv_path} is no sound CSV file ({error}); expected commas between cells and quotes in pairs"
        ) from error
    if not rows:
        raise ValueError(f"{csv_path} has no rows; expected one per image below the header")
    return rows, "trusted" in reader.fieldnames


def _check_columns(csv_path: Path, columns: Sequence[str]) -> None:
    known = ("path", "label", "trusted", "split")
    lost = [name for name in known[:2] if name not in columns]
    if lost:
        raise ValueError(
            f"{csv_path} has the columns {shorten(columns, 50) or 'none'}; expected path and label, and if wanted "
            f"trusted and split: add {' and '.join(lost)} to the first line"
        )
    for name in columns:  # a misspelt `trusted` would let trusted rows train as noisy ones
        near = [] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near and near[0] not in columns:
            raise ValueError(f"{csv_path} has a column {name!r}; did you mean {near[0]!r}? Rename it")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{csv_path} has a column twice: {', '.join(columns)}; expected each once: remove one")


def _read_row(where: str, line: int, cells: dict[str, str | None], root: Path) -> _Row:
    if None in cells or None in cells.values():
        raise ValueError(
            f"{where} has another number of cells than the header; expected as many: put cells with commas in quotes"
        )
    values = {name: (cell or "").strip() for name, cell in cells.items()}
    path, trusted, split = values["path"], values.get("trusted", "no"), values.get("split", "train")
    problem = None
    if empty := [name for name in ("path", "label") if not values[name]]:
        problem = f"{empty[0]} is empty; fill it in or remove the row"
    elif "\0" in path:
        problem = f"path {path!r} has a NUL in it, which no file has; correct it"
    elif trusted.lower() not in _TRUSTED:
        problem = f"trusted is {trusted!r}; expected one of {', '.join(_TRUSTED)}"
    elif split.lower() not in _SPLITS:
        problem = f"split is {split!r}; expected one of {', '.join(_SPLITS)}"
    # Lexically: where links inside the root lead is up to its owner.
    elif leaves_root(inside := os.path.relpath(os.path.join(root, path), root)):
        problem = f"path {path!r} leaves the root {root}; expected a file under it"
    else:
        part = "clean" if split.lower() == "train" and _TRUSTED[trusted.lower()] else split.lower()
        return _Row(line, inside, values["label"], part)
    raise ValueError(f"{where}: {problem}")


def _label_order(labels: set[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    except ValueError:  # they are not all numbers
        return tuple(sorted(labels))


def _check_parts(csv_path: Path, parts: dict[str, list[_Row]], has_trusted: bool) -> None:
    if has_trusted and not parts["clean"]:
        raise ValueError(
            f"{csv_path} has the column trusted, but no training row is trusted; "
            "expected some with true: mark them, or remove the column"
        )
    if not parts["train"]:
        raise ValueError(f"{csv_path} leaves no row to train on; expected some with split train that are not trusted")
    seen: dict[str, _Row] = {}
    for row in (row for rows in parts.values() for row in rows):
        other = seen.setdefault(row.path, row)
        if other.part != row.part:  # would leak from one part into another
            raise ValueError(
                f"{csv_path}: {row.path} is in line {other.line} ({other.part}) and line {row.line} ({row.part}); "
                "expected an image in one part only: remove one of the rows"
            )
