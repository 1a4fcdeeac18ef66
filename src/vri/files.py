"""Files that are written whole or not at all; their arrays are read without running any code."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """A file that replaces `path` once it is complete and on the disk.

    With `previous`, the old file at `path` is kept there. If there was none, a file at `previous` is outdated and is
    deleted.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None:
            _keep(path, previous)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # a folder that can't be written to has none, and that isn't the error to report
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary), str(path)):  # not of another file
            raise _explained(error, path) from None
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # makes the new name survive a power failure
    finally:
        os.close(folder)


def _explained(error: OSError, path: Path) -> OSError:
    """A clearer error for a failed write to `path`, if we have one."""
    kept = f"{path} was not written, what was there before is kept"
    if error.errno in _FULL:
        told = OSError(f"the disk is full: {kept}; free some space")
    elif error.errno in _READ_ONLY:
        told = PermissionError(f"{kept} ({error.strerror}); choose another folder, or change its permissions")
    else:
        return error
    told.errno = error.errno
    return told


def _keep(path: Path, previous: Path) -> None:
    """Make `previous` the same file as `path`, which stays in place throughout."""
    if not path.exists():
        previous.unlink(missing_ok=True)
        return
    temporary = path.with_name(f".{path.name}.previous.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(path, temporary)
        except OSError:  # a file system without links
            shutil.copyfile(path, temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, previous)
    finally:
        temporary.unlink(missing_ok=True)  # also after success: renaming a link to its own file does nothing


def remove_leftovers(path: Path) -> None:
    """Delete temporary files left by a killed write to `path`."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


def write_arrays(path: str | Path, format: str, **arrays: Any) -> None:
    """Write arrays by name, and the format, to a ``.npz`` file that replaces `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        np.savez_compressed(file, format=np.str_(format), **arrays)


def read_arrays(
    path: str | Path, format: str, fields: Mapping[str, tuple[str, int]], others: tuple[str, int] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Read what `write_arrays` wrote in this format.

    `fields` gives the kind of each expected array, as in numpy's ``dtype.kind``, and its number of axes; `others` gives
    them for all further arrays, if there may be any.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}; expected one of the format {format!r}: check its name")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        found = {name: (array.dtype.kind, array.ndim) for name, array in arrays.items()}  # bytes if it is not an array
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything, even claim more numbers than fit into memory
        raise ValueError(
            f"{path} cannot be read as arrays without code; expected a whole file of the format {format!r}: "
            "it is damaged or of another program, write it again"
        ) from error
    named = str(arrays.pop("format", None))
    if named != format:
        raise ValueError(
            f"{path} is of the format {named!r}; expected {format!r}: it is for something else, or of another "
            "version, write it again"
        )
    wrong = [name for name in sorted({*fields, *arrays}) if found.get(name) != fields.get(name, others)]
    if wrong:
        raise ValueError(
            f"{path} holds no proper {', '.join(wrong)}; expected a file as it was written: write it again"
        )
    return arrays
