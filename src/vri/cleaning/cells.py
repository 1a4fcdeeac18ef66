"""Cells of the CSV files we write: what a spreadsheet would take for a formula is marked as text."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vri.files import atomic_write

_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # with apostrophes before it: they must survive the way there and back


def escape(cell: str) -> str:
    """The cell with an apostrophe before it where a spreadsheet would calculate it: ``=1+1`` becomes ``'=1+1``."""
    return f"'{cell}" if _FORMULA.match(cell) else cell


def unescape(cell: str) -> str:
    """The cell that `escape` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file as in RFC 4180, in UTF-8, whole or not at all; cells come escaped."""
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(rows)
        text.detach()  # writes what is left and keeps the file open for `atomic_write`
