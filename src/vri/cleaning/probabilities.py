"""Probabilities that the user brings, by which `vri clean` judges without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vri.cleaning.tables import read_table
from vri.data.lists import shorten


def read_probabilities(path: Path, ids: Sequence[str], classes: Sequence[str]) -> tuple[list[str], Any]:
    """The names of the columns, and probabilities (n, c) of the samples with these ids, in their order.

    Args:
        path: an .npy file with a row for each sample and a column for each class, both in order; or a CSV file with a
            column for each class, by its name, and possibly a column of ids.
        ids: of the samples.
        classes: the labels in order.
    """
    if path.suffix.lower() == ".csv":
        return _from_csv(path, ids, classes)
    if path.suffix.lower() != ".npy":
        raise ValueError(f"--pred-probs is {path}; expected an .npy or a .csv file")
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(f"{path} can't be read ({reason}); expected what numpy.save writes") from None
    if found.ndim != 2 or found.dtype.kind not in "fiub" or found.shape != (len(ids), len(classes)):
        raise ValueError(
            f"{path} has shape {found.shape} and type {found.dtype}; expected ({len(ids)}, {len(classes)}): a row for "
            f"each sample, and a column for each of the labels {shorten(classes)}, in this order"
        )
    return list(classes), found


def _from_csv(path: Path, ids: Sequence[str], classes: Sequence[str]) -> tuple[list[str], Any]:
    table = read_table(path)
    columns = dict(table.columns)
    rows = list(range(table.rows))
    if "id" in columns and "id" not in classes:
        place = {str(name): row for row, name in enumerate(columns.pop("id"))}
        if lost := [name for name in ids if name not in place]:
            raise ValueError(
                f"{path} has no row for {len(lost):,} of {len(ids):,} samples: {shorten(lost)}; expected their ids in "
                "its column 'id'"
            )
        rows = [place[name] for name in ids]
    if len(rows) != len(ids):
        raise ValueError(
            f"{path} has {len(rows):,} rows, and there are {len(ids):,} samples; expected as many, in the same order, "
            "or a column 'id'"
        )
    if lost := [name for name in classes if name not in columns]:
        raise ValueError(
            f"{path} has the columns {shorten(columns, 50)}, and none for {shorten(lost)}; expected one for each "
            "label, by its name"
        )
    found = np.empty((len(rows), len(columns)))
    for number, (name, cells) in enumerate(columns.items()):
        try:
            found[:, number] = [float(cells[row]) for row in rows]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: column {name!r} ({error}); expected a probability in each row") from None
    return list(columns), found
