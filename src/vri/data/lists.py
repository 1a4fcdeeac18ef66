"""Text files that list images, and checks that the images exist."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from vri.data.places import DatasetMissing, FileCheck

_SHOWN = 5  # files named in an error
_LONGEST = 200  # characters shown of a name


def read_lines(path: Path, right: Callable[[str], object] = bool, expected: str = "text") -> list[str]:
    """The non-empty lines of a text file, stripped; there must be some, and `right` must hold for each."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text file ({error}); fetch it again") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise ValueError(f"{path} is empty; fetch it again")
    for number, line in enumerate(found, 1):
        if not right(line):
            raise ValueError(f"{path}, entry {number} is {line!r}; expected {expected}: fetch it again")
    return found


def inner(root: Path, name: str) -> Path:
    """The folder `name` in `root`, if there is one, else `root` itself: archives are unpacked in both ways."""
    return root / name if (root / name).is_dir() else root


def leaves_root(path: str) -> bool:
    """Whether a path relative to a root points outside of it; links are not followed."""
    normal = os.path.normpath(path)
    return os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir


def check_present(root: Path, paths: Iterable[str], named_by: str) -> None:
    """Raise an error if images that a list names are missing; it names some and counts all."""
    missing = missing_files(root, paths)
    if missing:
        raise DatasetMissing(
            f"{len(missing):,} of the images that {named_by} names are not under {root}: {shorten(missing)}; "
            "unpack them there, or correct the paths"
        )


def check_images(root: Path, paths: Iterable[str]) -> FileCheck:
    """One entry for all images that the lists name."""
    named = list(paths)
    if not named:
        return FileCheck(root / "images", "missing", "no list names images")
    if lost := missing_files(root, named):
        return FileCheck(root / "images", "missing", f"{len(lost):,} of {len(named):,} images: {shorten(lost)}")
    return FileCheck(root / "images", "ok", f"{len(named):,} images")


def missing_files(root: Path, paths: Iterable[str]) -> list[str]:
    """The paths under `root` that are not files."""
    base = str(root)
    return [path for path in paths if not os.path.isfile(os.path.join(base, path))]


def shorten(names: Iterable[str], most: int = _SHOWN) -> str:
    """The first few, for an error; very long ones are cut."""
    names = list(names)
    shown = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..." for name in names[:most]]
    return ", ".join(shown) + (", ..." if len(names) > most else "")
