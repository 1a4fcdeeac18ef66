"""A data set's files: where to look for them, and the results of checking them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Root = str | Path | None
Say = Callable[[str], None]  # takes a line about what is being done


class DatasetMissing(FileNotFoundError):
    """A data set's files are in none of the folders looked in."""


@dataclass(frozen=True)
class FileCheck:
    """The result of checking one file."""

    path: Path  # the file
    status: str  # "ok", "missing" or "damaged"
    reason: str = ""  # why it is damaged, or a remark on one that is ok

    @property
    def ok(self) -> bool:
        """Whether the file is intact."""
        return self.status == "ok"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set, as `vri data` knows it."""

    name: str  # name of the data set
    description: str  # what it is, in a line
    num_classes: int  # number of classes
    instructions: str = ""  # how to get the files by hand, if no program can

    def find(self, root: Root = None) -> Path | None:
        """The place of the files, or None."""
        raise NotImplementedError

    def check(self, root: Root = None) -> list[FileCheck]:
        """Check the files one by one; where `root` is given, only those in it."""
        raise NotImplementedError

    def load(self, root: Root = None) -> Any:
        """The data set: an `ImageData`, or a `FileData` if the images stay in their files."""
        raise NotImplementedError

    def get(self, root: Path, say: Say) -> str:
        """Fetch the files into a folder; returns where they came from."""
        raise ValueError(
            f"{self.name} cannot be fetched by a program: {self.instructions}; put it in {root / self.name} "
            f"or pass --root, then run vri data check {self.name}"
        )


@dataclass(frozen=True, kw_only=True)
class FolderEntry(Entry):
    """A data set whose files are all in one folder."""

    folder: str  # name of the folder they come in

    @property
    def files(self) -> list[str]:
        """All files of the folder."""
        raise NotImplementedError

    def how_to_get(self, root: Root) -> str:
        """What to do if the files are not found."""
        return f"run vri data get {self.name}{f' --root {root}' if root else ''}, or put the files there"

    def candidates(self, root: Root = None, only_root: bool = False) -> list[Path]:
        """Folders to look in, in this order."""
        places = folders(self.name, root, only_root)
        return list(dict.fromkeys(f for base in places for f in (base / self.folder, base)))

    def find(self, root: Root = None) -> Path | None:
        """The first folder that has all the files."""
        return self._whole(self.candidates(root))

    def find_or_raise(self, root: Root = None) -> Path:
        """The first folder that has all the files; if there is none, an error that says what is missing."""
        places = self.candidates(root)
        if folder := self._whole(places):
            return folder
        message = f"{self.name} not found; expected {', '.join(self.files)} together in one of "
        message += f"{', '.join(map(str, places))}: {self.how_to_get(root)}"
        if part := self._closest(places):
            missing = [name for name in self.files if not (part / name).is_file()]
            message += f" ({part} has some, but lacks {', '.join(missing)})"
        elif deeper := self._whole([f for place in places for child in _children(place) for f in _children(child)]):
            message += f" (they are in {deeper}: pass this as root)"
        raise DatasetMissing(message)

    def check(self, root: Root = None, only_root: bool = True) -> list[FileCheck]:
        """Check the files one by one; if `root` is given, by default only those in it."""
        folder = self._closest(self.candidates(root, only_root))
        return self.check_folder(folder or Path(root or default_root()) / self.folder)

    def check_folder(self, folder: Path) -> list[FileCheck]:
        """Check the files in this folder one by one."""
        return [examine(folder / name, self.look) for name in self.files]

    def look(self, path: Path) -> str:
        """Read a file; raises an error that says what is wrong with it."""
        raise NotImplementedError

    def _count(self, folder: Path) -> int:
        return sum((folder / name).is_file() for name in self.files)

    def _whole(self, places: Sequence[Path]) -> Path | None:
        return next((f for f in places if self._count(f) == len(self.files)), None)

    def _closest(self, places: Sequence[Path]) -> Path | None:
        """The first folder with most of the files; None if none has any."""
        found = max(places, key=self._count, default=None)
        return found if found and self._count(found) else None


def default_root() -> Path:
    """The folder data sets are put in: $VRI_DATA, else ~/.cache/vri."""
    chosen = os.environ.get("VRI_DATA")
    return Path(chosen) if chosen else Path.home() / ".cache" / "vri"


def folders(name: str, root: Root = None, only_root: bool = False) -> list[Path]:
    """Folders to look in for a data set, in this order.

    These are `root`, $VRI_DATA and ~/.cache/vri, each followed by its subfolder with the name of the data set; with
    `only_root` only the first, if it is given.
    """
    bases = [check_root(root, name)] if root else []
    if not (root and only_root):
        bases += [default_root(), Path.home() / ".cache" / "vri"]
    return [folder for base in dict.fromkeys(bases) for folder in (base, base / name)]


def check_root(root: str | Path, name: str) -> Path:
    """Raise an error if `root` is not a folder."""
    path = Path(root)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(
            f"root is {path}, a file; expected the folder that holds the files of {name}: "
            f"pass {path.parent}; an archive in it is unpacked by vri data get {name} --root {path.parent}"
        )
    raise DatasetMissing(
        f"root is {path}, which does not exist; expected the folder that holds the files of {name}: "
        f"correct it, or leave it out to look in {default_root()}"
    )


def examine(path: Path, look: Callable[[Path], str]) -> FileCheck:
    """Check one file: `look` returns a remark on it, or raises."""
    if not path.exists():
        return FileCheck(path, "missing")
    try:
        return FileCheck(path, "ok", look(path))
    except (ValueError, OSError) as error:
        return FileCheck(path, "damaged", str(error).removeprefix(f"{path}").lstrip(":, "))


def _children(folder: Path) -> list[Path]:
    try:
        return [child for child in folder.iterdir() if child.is_dir()]
    except OSError:  # a folder that is missing or can't be listed has nothing for us
        return []
