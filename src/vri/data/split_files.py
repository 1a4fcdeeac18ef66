"""Splits in files, so that several runs, or several people, use the same one."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vri.noise.arrays import read_arrays, write_arrays

_FORMAT = "vri split 1"  # of the file; another number whenever its content changes its meaning
_PART = "part "  # begins the name of each part in the file


def save_split(path: str | Path, split: Mapping[str, Tensor]) -> None:
    """Write the sample indices of each part to a ``.npz`` file, whole or not at all."""
    _check_disjoint(split, "the split")
    parts = {_PART + name: np.asarray(index, np.int64) for name, index in split.items()}
    write_arrays(path, _FORMAT, hash=np.str_(split_hash(split)), **parts)


def load_split(path: str | Path) -> dict[str, Tensor]:
    """Read what `save_split` wrote, and check that it is unchanged and that no two parts share a sample."""
    arrays = read_arrays(path, _FORMAT)
    written = str(arrays.pop("hash", ""))
    wrong = [name for name, a in arrays.items() if not name.startswith(_PART) or a.dtype != np.int64 or a.ndim != 1]
    if wrong:
        raise ValueError(f"{path} holds no proper {', '.join(wrong)}; expected a file as it was written: write it anew")
    split = {name.removeprefix(_PART): torch.from_numpy(array) for name, array in arrays.items()}
    if split_hash(split) != written:
        raise ValueError(
            f"{path} holds parts whose hash is not the one beside them; expected them unchanged: write it anew"
        )
    _check_disjoint(split, str(path))
    return split


def split_hash(split: Mapping[str, Tensor]) -> str:
    """SHA-256 over names and sample indices of the parts, in the order of their names; in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(split):
        digest.update(f"{name}:{len(split[name])}:".encode())
        digest.update(np.asarray(split[name]).astype("<i8").tobytes())
    return digest.hexdigest()


def _check_disjoint(split: Mapping[str, Tensor], what: str) -> None:
    owner: dict[int, str] = {}
    for name, index in split.items():
        numbers = index.tolist()
        if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
            raise ValueError(f"{what} has a part {name} with a sample twice or below 0; expected each once: split anew")
        for number in numbers:
            if number in owner:
                raise ValueError(
                    f"{what} has sample {number} in {owner[number]} and in {name}; expected disjoint parts: split anew"
                )
        owner.update(dict.fromkeys(numbers, name))
