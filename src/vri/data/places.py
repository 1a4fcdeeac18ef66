"""Where the files of data sets are looked for, and what a look at them found."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


class DatasetMissing(FileNotFoundError):
    """A data set's files are in none of the folders looked in."""


@dataclass(frozen=True)
class FileCheck:
    """What became of the check of one file.

    Attributes:
        path: the file.
        status: "ok", "missing" or "damaged".
        reason: why it is damaged, or what there is to say of one that is ok.
    """

    path: Path
    status: str
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the file is as it should be."""
        return self.status == "ok"


def default_root() -> Path:
    """The folder data sets are put in: $VRI_DATA, else ~/.cache/vri."""
    chosen = os.environ.get("VRI_DATA")
    return Path(chosen) if chosen else Path.home() / ".cache" / "vri"


def folders(name: str, root: str | Path | None = None, *, only_root: bool = False) -> list[Path]:
    """Folders to look in for a data set, first come first served.

    These are `root`, $VRI_DATA and ~/.cache/vri, each followed by its subfolder with the name of the data set;
    with `only_root` none but the first, if it is given.
    """
    bases = [check_root(root, name)] if root else []
    if not (root and only_root):
        bases += [default_root(), Path.home() / ".cache" / "vri"]
    return [folder for base in dict.fromkeys(bases) for folder in (base, base / name)]


def check_root(root: str | Path, name: str) -> Path:
    """Stop when `root` is not a folder."""
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


def find(files: Iterable[str], candidates: Iterable[Path]) -> Path | None:
    """The first folder that has all the files."""
    names = list(files)
    return next((folder for folder in candidates if all((folder / name).is_file() for name in names)), None)


def find_or_raise(name: str, files: Sequence[str], candidates: Sequence[Path], fix: str) -> Path:
    """The first folder that has all the files; where there is none, an error that says what is lacking."""
    folder = find(files, candidates)
    if folder is not None:
        return folder
    message = (
        f"{name} not found; expected {', '.join(files)} together in one of {', '.join(map(str, candidates))}: {fix}"
    )
    part = closest(files, candidates)
    if part is not None:
        missing = [name for name in files if not (part / name).is_file()]
        message += f" ({part} has some, but lacks {', '.join(missing)})"
    elif deeper := find(files, [f for base in candidates for child in _children(base) for f in _children(child)]):
        message += f" (they are in {deeper}: pass this as root)"
    raise DatasetMissing(message)


def closest(files: Sequence[str], candidates: Sequence[Path]) -> Path | None:
    """The first folder with all the files, else the one with most of them, else None."""
    counts = [sum((folder / name).is_file() for name in files) for folder in candidates]
    return candidates[counts.index(max(counts))] if max(counts, default=0) else None


def examine(path: Path, problem: Callable[[Path], str | None]) -> FileCheck:
    """Check one file: `problem` says what is wrong with it, or raises."""
    if not path.is_file():
        return FileCheck(path, "missing")
    try:
        reason = problem(path)
    except (ValueError, OSError) as error:
        reason = str(error).removeprefix(f"{path}").lstrip(": ")
    return FileCheck(path, "damaged", reason) if reason else FileCheck(path, "ok")


def _children(folder: Path) -> list[Path]:
    try:
        return [child for child in folder.iterdir() if child.is_dir()]
    except OSError:  # what is not there or may not be listed holds nothing for us
        return []
