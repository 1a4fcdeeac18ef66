"""Results of a stream: Parquet files of so many rows each, every one of them whole or not there."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vri.cleaning.report import QUALITY_BINS
from vri.cleaning.state import FOLDERS
from vri.cleaning.tables import parquet_library
from vri.files import atomic_write

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_ISSUES, _CORRECTED = FOLDERS


@dataclass(frozen=True, eq=False)
class Part:
    """What is thought of the labels of some rows, an entry a row.

    Attributes:
        row: its number, from 0.
        id: its id.
        given: place in `names` of the given label.
        suggested: of the label it should have if that is wrong; -1 where it is not judged.
        quality: probability that the given label is right; NaN where it is not judged, as in the next two.
        issue: whether it is taken for wrong.
        confidence: probability of the suggested label.
        outlier: from 0 to 1, high for samples that belong to no class.
        changed: whether the suggested label takes the place of the given one.
        names: the classes, as they are written.
    """

    row: Indices
    id: NDArray[Any]
    given: Indices
    suggested: Indices
    quality: Floats
    issue: Mask
    confidence: Floats
    outlier: Floats
    changed: Mask
    names: NDArray[Any]


class Parts:
    """The folders `label_issues` and `corrected` of a run, with a file for each `size` rows.

    Args:
        out: folder of the run.
        rows: of the stream.
        size: rows a part.
    """

    def __init__(self, out: Path, rows: int, size: int) -> None:
        self.rows, self.size = rows, size
        self._out = out

    def __len__(self) -> int:
        return -(-self.rows // self.size)

    def missing(self) -> list[range]:
        """Rows of each part that is not there yet."""
        starts = range(0, self.rows, self.size)
        return [
            range(start, min(start + self.size, self.rows))
            for start in starts
            if not all(self._path(folder, start).exists() for folder in FOLDERS)
        ]

    def write(self, rows: range, part: Part) -> None:
        """Write a part to both folders."""
        pa = importlib.import_module("pyarrow")
        parquet = parquet_library(self._out)
        names = pa.array(part.names)
        judged = part.suggested >= 0

        def numbers(values: Floats) -> Any:
            return pa.array(values.astype(np.float32), mask=~judged)

        given = names.take(pa.array(part.given))
        issues = {
            "row": part.row,
            "id": pa.array(part.id),
            "given_label": given,
            "predicted_label": names.take(pa.array(part.suggested, mask=~judged)),
            "label_quality": numbers(part.quality),
            "is_label_issue": part.issue,
            "predicted_probability": numbers(part.confidence),
            "outlier_score": numbers(part.outlier),
        }
        corrected = {
            "row": part.row,
            "label": names.take(pa.array(np.where(part.changed, part.suggested, part.given))),
            "given_label": given,
            "changed": part.changed,
        }
        for folder, columns in ((_ISSUES, issues), (_CORRECTED, corrected)):
            path = self._path(folder, rows.start)
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path) as file:
                parquet.write_table(pa.table(columns), file)

    def read(self) -> Iterator[Any]:
        """What was written, part by part: pyarrow tables of the issues, with the column `changed`."""
        parquet = parquet_library(self._out)
        for start in range(0, self.rows, self.size):
            tables = []
            for folder in FOLDERS:
                path = self._path(folder, start)
                try:
                    tables.append(parquet.ParquetFile(path).read())
                except Exception as error:  # pyarrow has errors of many kinds
                    reason = str(error).strip().partition("\n")[0]
                    raise ValueError(
                        f"{path} is damaged ({reason}); delete it and run the same command again"
                    ) from None
            yield tables[0].append_column("changed", tables[1].column("changed"))

    def _path(self, folder: str, start: int) -> Path:
        return self._out / folder / f"part-{start // self.size:05d}.parquet"


class Totals:
    """What the parts add up to, in memory that does not grow with them.

    Args:
        names: the classes, as they are written.
        most: suspects to keep.

    Attributes:
        doubt: sum of the probabilities of being wrong.
        pairs: (c, c) issues by given (row) and suggested (column) label.
        qualities: labels in each of 40 equal bins of quality from 0 to 1.
        changed: labels that were corrected.
        suspects: the worst issues, most suspicious first; `given` and `suggested` are places in `names`.
    """

    def __init__(self, names: NDArray[Any], most: int) -> None:
        self._names, self._most = pd.Index(names), most
        self.doubt, self.changed = 0.0, 0
        self.pairs = np.zeros((len(names), len(names)), np.int64)
        self.qualities = np.zeros(QUALITY_BINS, np.int64)
        self.suspects = pd.DataFrame()

    def add(self, part: Any) -> None:
        """Take in a pyarrow table of `Parts.read`."""
        quality = part.column("label_quality").drop_null().to_numpy().astype(np.float64)
        self.doubt += float((1 - quality).sum())
        self.qualities += np.histogram(quality, QUALITY_BINS, (0, 1))[0]
        self.changed += int(part.column("changed").to_numpy().sum())
        issues = part.filter(part.column("is_label_issue")).to_pandas()
        if not len(issues):
            return
        issues["given"] = self._names.get_indexer(issues["given_label"])
        issues["suggested"] = self._names.get_indexer(issues["predicted_label"])
        np.add.at(self.pairs, (issues["given"], issues["suggested"]), 1)
        both = pd.concat([self.suspects, issues]) if len(self.suspects) else issues
        self.suspects = both.sort_values(["label_quality", "row"]).head(self._most)
