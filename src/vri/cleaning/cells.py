"""Cells of the CSV files we write: what a spreadsheet would take for a formula is marked as text."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vri.files import atomic_write

# With apostrophes before it: they must survive the way there and back. A number with a sign is none; the last four
# signs are the wide ones of Asian keyboards. page/csv.js has the same.
_NUMBER = r"[+-](?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_FORMULA = re.compile(rf"(?!{_NUMBER}\Z)'*[=+\-@\t\r\n＝＋－＠]")


def escape(cell: str) -> str:
    """The cell with an apostrophe before it where a spreadsheet would calculate it: ``=1+1`` becomes ``'=1+1``.

    Numbers such as -1.5 stay numbers.
    """
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
