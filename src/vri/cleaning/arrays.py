"""Embeddings and labels in an .npz file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.cleaning.tables import nearest
from vri.data.lists import shorten

Array = NDArray[Any]

_INPUTS, _LABELS, _IDS, _TRUSTED = ("X", "embeddings", "features"), ("y", "labels"), ("ids",), ("trusted",)


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays of a file, and which of them are what.

    Attributes:
        path: the file.
        all: names to arrays.
        inputs: name of the embeddings; None where only the labels were asked for.
        labels: name of the labels.
        ids: name of the ids, or None.
        trusted: name of the marks of trusted samples, or None.
    """

    path: Path
    all: dict[str, Array]
    inputs: str | None
    labels: str
    ids: str | None
    trusted: str | None

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.all[self.labels])

    def per_sample(self) -> list[str]:
        """Names of the arrays with an entry a sample."""
        return [name for name, array in self.all.items() if array.ndim and len(array) == self.count]


def read_arrays(
    path: Path,
    *,
    features: str | None = None,
    label: str | None = None,
    id: str | None = None,
    trusted: str | None = None,
    only_labels: bool = False,
) -> Arrays:
    """Read and check an .npz file; nothing in it is unpickled.

    Args:
        path: the file.
        features: name of the array of embeddings; by default X, embeddings or features.
        label: of the labels; by default y or labels.
        id: of the ids; by default ids, if there are any.
        trusted: of the marks of trusted samples; by default trusted, if there are any.
        only_labels: the embeddings play no part.
    """
    found = _read(path)
    inputs = None if only_labels else _pick(path, found, features, "--features", _INPUTS)
    labels = _pick(path, found, label, "--label", _LABELS)
    ids = _pick(path, found, id, "--id", _IDS) if id or "ids" in found else None
    marks = _pick(path, found, trusted, "--trusted", _TRUSTED) if trusted or "trusted" in found else None
    arrays = Arrays(path, found, inputs, labels, ids, marks)
    _check(arrays)
    return arrays


def _read(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected an .npz file: check the name")
    found = {}
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            for name in file.files:
                try:
                    found[name] = file[name]
                except ValueError as error:
                    if "pickle" not in str(error):
                        raise
                    raise _Refused(
                        f"{path}: array {name!r} holds Python objects, which could run code when read; expected "
                        "numbers or text: save it as one, such as labels.astype(str)"
                    ) from None
        no_array = [name for name, array in found.items() if not isinstance(array, np.ndarray)]
        if no_array:
            raise ValueError(f"{no_array[0]} is no array")
    except (_Refused, OSError):
        raise
    except Exception as error:  # a damaged file can raise anything, and claim more numbers than there is memory
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} can't be read as .npz ({reason}); expected what numpy.savez writes") from None
    return found


class _Refused(ValueError):
    """An array that would have to be unpickled."""


def _pick(path: Path, found: Mapping[str, Array], chosen: str | None, option: str, usual: tuple[str, ...]) -> str:
    if chosen is not None:
        if chosen not in found:
            raise ValueError(
                f"{option} is {chosen!r}, and {path} has the arrays {_listed(found)}; "
                f"expected one of them: did you mean {nearest(chosen, found)!r}?"
            )
        return chosen
    name = next((name for name in usual if name in found), None)
    if name is None:
        raise ValueError(
            f"{path} has the arrays {_listed(found)}; expected one named {' or '.join(usual)}: name it with {option}"
        )
    return name


def _check(arrays: Arrays) -> None:
    y, path = arrays.all[arrays.labels], arrays.path
    if y.ndim != 1 or y.dtype.kind not in "biufU":
        raise ValueError(
            f"{path}: {arrays.labels} has shape {y.shape} and type {y.dtype}; expected one class a sample, shape (n,), "
            "as numbers or text"
        )
    if arrays.inputs is not None:
        _check_inputs(path, arrays.inputs, arrays.all[arrays.inputs], arrays.labels, len(y))
    if not len(y):
        raise ValueError(f"{path} has no rows; expected at least two, with labels that differ")
    for name in (arrays.ids, arrays.trusted):
        if name is not None and arrays.all[name].shape != y.shape:
            raise ValueError(f"{path}: {name} has shape {arrays.all[name].shape}; expected {y.shape}, one a sample")


def _check_inputs(path: Path, name: str, X: Array, labels: str, count: int) -> None:
    if X.ndim != 2 or X.dtype.kind not in "biuf" or X.shape[1] == 0:
        raise ValueError(
            f"{path}: {name} has shape {X.shape} and type {X.dtype}; expected numbers of shape (n, d), "
            "a row a sample: reshape it"
        )
    if len(X) != count:
        raise ValueError(f"{path}: {name} has {len(X):,} rows and {labels} {count:,}; expected one label a row")
    if X.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
        if len(bad):
            raise ValueError(
                f"{path}: {name} has NaN or Inf in {len(bad):,} rows: {shorten(map(str, bad))} (from 0); "
                "expected finite numbers: correct or remove them"
            )


def _listed(found: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in found.items()) or "none"
