"""Arrays in ``.npz`` files: written whole or not at all, read without running any code from the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vri.files import atomic_write

Array = npt.NDArray[Any]


def write_arrays(path: str | Path, format: str, **arrays: Any) -> None:
    """Write arrays by name, and what the file is, in the place of what was at `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        np.savez_compressed(file, format=np.str_(format), **arrays)


def read_arrays(path: str | Path, format: str, fields: Mapping[str, tuple[str, int]] | None = None) -> dict[str, Array]:
    """Read what `write_arrays` wrote in this format.

    `fields` gives for each expected array its kind, as in numpy's ``dtype.kind``, and its number of axes;
    without it any will do.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}; expected one of the format {format!r}: check its name")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: _array(archive[name]) for name in archive.files}
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything, and claim more numbers than there is memory
        raise ValueError(
            f"{path} cannot be read as arrays without code; expected a whole file of the format {format!r}: "
            "it is damaged or of another program, write it anew"
        ) from error
    named = arrays.pop("format", None)
    if named is None or str(named) != format:
        raise ValueError(
            f"{path} is of the format {str(named)!r}; expected {format!r}: it is for something else, or of another "
            "version, write it anew"
        )
    if fields is None:
        return arrays
    found = {name: (array.dtype.kind, array.ndim) for name, array in arrays.items()}
    if wrong := sorted(name for name in {*fields, *found} if fields.get(name) != found.get(name)):
        raise ValueError(f"{path} holds no proper {', '.join(wrong)}; expected a file as it was written: write it anew")
    return arrays


def _array(value: Any) -> Array:
    """As numpy read it; what is no array in the file comes as bytes."""
    if not isinstance(value, np.ndarray):
        raise ValueError("not an array")
    return value
