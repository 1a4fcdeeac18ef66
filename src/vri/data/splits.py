"""Seeded, class-balanced, disjoint splits of a data set."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vri.noise import ArrayLike, as_labels


def split(labels: ArrayLike, *, sizes: Mapping[str, int], num_classes: int, seed: int) -> dict[str, Tensor]:
    """Split sample indices into named, disjoint, class-balanced parts.

    Each part takes the same number of samples of every class. Where a size is not a multiple of the number of
    classes, the remainder goes to classes in a seeded order, one sample each. One part may have size -1: it
    gets all samples the others leave and is as balanced as these happen to be.

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


def _quotas(counts: Tensor, sizes: Mapping[str, int], num_classes: int, generator: torch.Generator) -> Tensor:
    """Decide how many samples of each class each part takes: parts x c."""
    quotas = torch.zeros(len(sizes), num_classes, dtype=torch.int64)
    for part, size in enumerate(sizes.values()):
        quotas[part] = size // num_classes
    spare = counts - quotas.sum(0)  # c
    _check_enough(spare, counts, sizes)
    for part, size in enumerate(sizes.values()):
        order = torch.randperm(num_classes, generator=generator)
        # Seeded order, except that classes too poor to serve all parts still to come are asked last: this way
        # a split that exists is always found.
        wealth = spare[order].clamp(max=len(sizes) - part)
        order = order[wealth.argsort(descending=True, stable=True)]
        extra = order[: size % num_classes]
        quotas[part, extra] += 1
        spare[extra] -= 1
        _check_enough(spare, counts, sizes)
    return quotas


def _check_enough(spare: Tensor, counts: Tensor, sizes: Mapping[str, int]) -> None:
    """Stop when a class was asked for more samples than it has."""
    for k in (spare < 0).nonzero().squeeze(1).tolist():
        asked, there = int(counts[k] - spare[k]), int(counts[k])
        raise ValueError(
            f"class {k} has {there} samples; a balanced split into {dict(sizes)} expected at least {asked}: "
            "ask for smaller parts"
        )
