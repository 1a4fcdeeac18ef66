"""A random sample of the rows of a long file, in which no class is lost; memory grows with the sample alone."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from vri.data.shuffle import shuffled

Indices = NDArray[np.int64]


def draw(groups: Iterable[Indices], size: int, most: int, count: int, seed: int) -> Indices:
    """Numbers of the drawn rows, ascending.

    Rows are drawn in the order `shuffled` until there are `most`. But first each group gets its share: as many of its
    own rows as it would have if the groups had half of the sample between them in equal parts, or all that it has. Rows
    of one group are drawn alike, so what is learned about them holds for those that are not drawn.

    Args:
        groups: of the rows from 0 on, in pieces; -1 for one that must not be drawn.
        size: rows there are.
        most: rows to draw; all, if there are no more.
        count: of groups.
        seed: of the order.
    """
    share = max(2, most // (2 * count))  # one to learn from and one to hold out
    worst = np.full(count, size)  # place in the order from which on a row of the group is no longer of use
    start, worst_of_all = 0, size
    rows, places, owners = (np.zeros(0, np.int64) for _ in range(3))
    for group in groups:
        new = np.flatnonzero(group >= 0)
        place = shuffled(start + new, size, seed)
        useful = (place < worst_of_all) | (place < worst[group[new]])
        rows = np.concatenate([rows, start + new[useful]])
        places = np.concatenate([places, place[useful]])
        owners = np.concatenate([owners, group[new[useful]]])
        order = places.argsort()
        rows, places, owners = rows[order], places[order], owners[order]
        first = _first_of_each(owners, share)
        kept = first | (np.arange(len(rows)) < most)
        if len(rows) >= most:
            worst_of_all = int(places[most - 1])
        full = np.bincount(owners[first], minlength=count) >= share
        ends = np.zeros(count, np.int64)
        np.maximum.at(ends, owners[first], places[first])
        worst = np.where(full, ends, size)
        rows, places, owners = rows[kept], places[kept], owners[kept]
        start += len(group)
    first = _first_of_each(owners, share)
    others = np.flatnonzero(~first)[: max(most - int(first.sum()), 0)]
    return np.sort(np.concatenate([rows[first], rows[others]]))


def _first_of_each(owners: Indices, share: int) -> NDArray[np.bool_]:
    """Which are among the first `share` of their owner."""
    order = owners.argsort(kind="stable")
    grouped = owners[order]
    begins = np.searchsorted(grouped, grouped)  # where the owner of each begins
    found = np.zeros(len(owners), bool)
    found[order] = np.arange(len(owners)) - begins < share
    return found
