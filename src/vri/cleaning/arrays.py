"""Embeddings and labels in an .npz file. Nothing is unpickled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.cleaning.options import SourceOptions
from vri.cleaning.tables import check_unique, label_texts, nearest
from vri.data.lists import shorten

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays of a file by name, and the names of those that are needed.

    `inputs` is None if only the labels were requested; `ids` and `trusted` are None if there are none.
    """

    path: Path
    all: dict[str, Array]
    inputs: str | None
    labels: str
    ids: str | None
    trusted: str | None

    def per_sample(self) -> list[str]:
        """Names of the arrays with one entry per sample."""
        count = len(self.all[self.labels])
        return [name for name, array in self.all.items() if array.ndim and len(array) == count]

    def label_texts(self, unlabelled: bool | str = False) -> list[str]:
        """The labels as text; "" for missing ones if they are allowed."""
        return label_texts(self.all[self.labels].tolist(), f"{self.path}: array {self.labels!r}", unlabelled)

    def id_texts(self) -> list[str]:
        """The ids as text, or the row numbers from 0."""
        if self.ids is None:
            return [str(row) for row in range(len(self.all[self.labels]))]
        ids = [str(value) for value in self.all[self.ids].tolist()]
        check_unique(ids, f"{self.path}: array {self.ids!r}")
        return ids


def read_arrays(path: Path, options: SourceOptions = SourceOptions(), only_labels: bool = False) -> Arrays:  # noqa: B008
    """Read and check an .npz file, with the array names that the options give or the usual ones."""
    found = _read(path)

    def pick(chosen: str | None, option: str, *usual: str) -> str:
        have = ", ".join(f"{name} {array.shape}" for name, array in found.items()) or "none"
        if chosen is not None and chosen not in found:
            raise ValueError(
                f"{option} is {chosen!r}, and {path} has the arrays {have}; "
                f"expected one of them: did you mean {nearest(chosen, found)!r}?"
            )
        name = chosen or next((name for name in usual if name in found), None)
        if name is None:
            raise ValueError(
                f"{path} has the arrays {have}; expected one named {' or '.join(usual)}: name it with {option}"
            )
        return name

    if options.features is not None and len(options.features) != 1:
        raise ValueError(
            f"--features is {','.join(options.features)}; expected the name of one array of {path}, the embeddings"
        )
    chosen = options.features[0] if options.features else None
    inputs = None if only_labels else pick(chosen, "--features", "X", "embeddings", "features")
    labels = pick(options.label, "--label", "y", "labels")
    ids = pick(options.id, "--id", "ids") if options.id or "ids" in found else None
    marks = None if options.trusted is not None and Path(options.trusted).is_file() else options.trusted
    trusted = pick(marks, "--trusted", "trusted") if marks or "trusted" in found else None
    arrays = Arrays(path, found, inputs, labels, ids, trusted)
    _check(arrays)
    return arrays


def _read(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected an .npz file: check the name")
    found, name = {}, ""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            for name in file.files:
                found[name] = file[name]
                if not isinstance(found[name], np.ndarray):
                    raise ValueError(f"{name} is no array")
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything, even claim more numbers than fit into memory
        if name and isinstance(error, ValueError) and "pickle" in str(error):
            raise ValueError(
                f"{path}: array {name!r} holds Python objects, which could run code when read; expected "
                "numbers or text: save it as one, such as labels.astype(str)"
            ) from None
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} can't be read as .npz ({reason}); expected what numpy.savez writes") from None
    return found


def _check(arrays: Arrays) -> None:
    y, path = arrays.all[arrays.labels], arrays.path
    if y.ndim != 1 or y.dtype.kind not in "biufU":
        raise ValueError(
            f"{path}: {arrays.labels} has shape {y.shape} and type {y.dtype}; expected one class per sample, "
            "shape (n,), as numbers or text"
        )
    if arrays.inputs is not None:
        _check_inputs(path, arrays.inputs, arrays.all[arrays.inputs], arrays.labels, len(y))
    if not len(y):
        raise ValueError(f"{path} has no rows; expected at least two, with labels that differ")
    for name in (arrays.ids, arrays.trusted):
        if name is not None and arrays.all[name].shape != y.shape:
            raise ValueError(f"{path}: {name} has shape {arrays.all[name].shape}; expected {y.shape}, one per sample")


def _check_inputs(path: Path, name: str, X: Array, labels: str, count: int) -> None:
    if X.ndim != 2 or X.dtype.kind not in "biuf" or X.shape[1] == 0:
        raise ValueError(
            f"{path}: {name} has shape {X.shape} and type {X.dtype}; expected numbers of shape (n, d), "
            "one row per sample: reshape it"
        )
    if len(X) != count:
        raise ValueError(f"{path}: {name} has {len(X):,} rows and {labels} {count:,}; expected one label per row")
    bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{path}: {name} has NaN or Inf in {len(bad):,} rows: {shorten(map(str, bad))} (from 0); "
            "expected finite numbers: correct or remove them"
        )
