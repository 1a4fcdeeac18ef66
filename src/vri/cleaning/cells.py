"""Cells of the CSV files we write: what a spreadsheet would evaluate as a formula is marked as text."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vri.files import atomic_write

# Leading apostrophes are included, so that they survive escaping and unescaping. A signed number is not a formula; the
# last four signs are the full-width ones of Asian keyboards. page/csv.js has the same pattern.
_NUMBER = r"[+-](?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_FORMULA = re.compile(rf"(?!{_NUMBER}\Z)'*[=+\-@\t\r\n＝＋－＠]")


def escape(cell: str) -> str:
    """The cell, with an apostrophe in front if a spreadsheet would evaluate it: ``=1+1`` becomes ``'=1+1``.

    Numbers such as -1.5 stay numbers.
    """
    return f"'{cell}" if _FORMULA.match(cell) else cell


def unescape(cell: str) -> str:
    """The inverse of `escape`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file as in RFC 4180, in UTF-8, whole or not at all; cells must be escaped already."""
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(rows)
        text.detach()  # flushes and keeps the file open for `atomic_write`
