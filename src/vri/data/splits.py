"""Seeded, class-balanced, disjoint splits of a data set, and files that keep them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vri.files import read_arrays, write_arrays
from vri.noise import ArrayLike, as_labels

_FORMAT = "vri split 1"  # of the file; the number is raised whenever the meaning of its content changes
_PART = "part "  # begins the name of each part in the file


def split(labels: ArrayLike, *, sizes: Mapping[str, int], num_classes: int, seed: int) -> dict[str, Tensor]:
    """Split sample indices into named, disjoint, class-balanced parts.

    Each part takes the same number of samples of every class. If a size is not a multiple of the number of classes, the
    remainder goes to classes in a seeded order, one sample each. One part may have size -1: it gets all remaining
    samples and is only as balanced as they are.

    Args:
        labels: class index of each sample.
        sizes: number of samples of each part, for example ``{"train": 10000, "clean": 1000, "rest": -1}``.
        num_classes: number of classes, including any without samples.
        seed: seed of the draw; the global RNG is not touched.

    Returns:
        For each part its sample indices, int64, in ascending order.
    """
    classes = as_labels(labels, num_classes)
    if any(size < -1 for size in sizes.values()):
        raise ValueError(f"sizes are {dict(sizes)}; expected 0 or more, or -1 for the rest: correct the sizes")
    if list(sizes.values()).count(-1) > 1:
        raise ValueError(f"sizes are {dict(sizes)}; expected -1 for at most one part: give the others a size")

    generator = torch.Generator().manual_seed(seed)
    fixed_sizes = {name: size for name, size in sizes.items() if size != -1}
    quotas = _quotas(torch.bincount(classes, minlength=num_classes), fixed_sizes, num_classes, generator)

    owner = torch.full((len(classes),), -1)  # which part a sample went to; -1: none
    for k in range(num_classes):
        members = (classes == k).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator)]
        start = 0
        for part, take in enumerate(quotas[:, k].tolist()):
            owner[members[start : start + take]] = part
            start += take

    part_of = {name: part for part, name in enumerate(fixed_sizes)}
    return {name: (owner == part_of.get(name, -1)).nonzero().squeeze(1) for name in sizes}


def save_split(path: str | Path, parts: Mapping[str, Tensor]) -> None:
    """Write the sample indices of each part to a ``.npz`` file, whole or not at all; `load_split` reads it."""
    _check_disjoint(parts, "the split")
    arrays = {_PART + name: np.asarray(index, np.int64) for name, index in parts.items()}
    write_arrays(path, _FORMAT, hash=np.str_(split_hash(parts)), **arrays)


def load_split(path: str | Path) -> dict[str, Tensor]:
    """Read what `save_split` wrote, and check that it is unchanged and that no two parts share a sample."""
    arrays = read_arrays(path, _FORMAT, {"hash": ("U", 0)}, others=("i", 1))
    written = str(arrays.pop("hash"))
    parts = {name.removeprefix(_PART): torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}
    if split_hash(parts) != written:
        raise ValueError(
            f"{path} holds parts whose hash is not the one beside them; expected them unchanged: write it again"
        )
    _check_disjoint(parts, str(path))
    return parts


def split_hash(parts: Mapping[str, Tensor]) -> str:
    """SHA-256 over names and sample indices of the parts, in the order of their names; in hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(f"{name}:{len(parts[name])}:".encode())
        digest.update(np.asarray(parts[name]).astype("<i8").tobytes())
    return digest.hexdigest()


def _check_disjoint(parts: Mapping[str, Tensor], what: str) -> None:
    owner: dict[int, str] = {}
    for name, index in parts.items():
        numbers = index.tolist()
        if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
            raise ValueError(
                f"{what} has a part {name} with a sample twice or below 0; expected each once: split again"
            )
        if shared := owner.keys() & set(numbers):
            number = min(shared)
            raise ValueError(
                f"{what} has sample {number} in {owner[number]} and in {name}; expected disjoint parts: split again"
            )
        owner.update(dict.fromkeys(numbers, name))


def _quotas(counts: Tensor, sizes: Mapping[str, int], num_classes: int, generator: torch.Generator) -> Tensor:
    """Decide how many samples of each class each part takes: parts x c."""
    quotas = torch.zeros(len(sizes), num_classes, dtype=torch.int64)
    for part, size in enumerate(sizes.values()):
        quotas[part] = size // num_classes
    spare = counts - quotas.sum(0)  # c
    _check_enough(spare, counts, sizes)
    for part, size in enumerate(sizes.values()):
        order = torch.randperm(num_classes, generator=generator)
        # Seeded order, except that classes with too few samples for all remaining parts come last: this way a split
        # that exists is always found.
        wealth = spare[order].clamp(max=len(sizes) - part)
        order = order[wealth.argsort(descending=True, stable=True)]
        extra = order[: size % num_classes]
        quotas[part, extra] += 1
        spare[extra] -= 1
        _check_enough(spare, counts, sizes)
    return quotas


def _check_enough(spare: Tensor, counts: Tensor, sizes: Mapping[str, int]) -> None:
    """Raise an error if a class would have to give more samples than it has."""
    for k in (spare < 0).nonzero().squeeze(1).tolist():
        asked, there = int(counts[k] - spare[k]), int(counts[k])
        raise ValueError(
            f"class {k} has {there} samples; a balanced split into {dict(sizes)} expected at least {asked}: "
            "ask for smaller parts"
        )
