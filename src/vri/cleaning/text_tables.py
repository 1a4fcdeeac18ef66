"""Tables in text files: CSV with any separator, and JSON Lines; rows are kept exactly as in the file."""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vri.data.lists import shorten

CSV_SUFFIXES = {".csv": ",", ".tsv": "\t"}  # with the separator that they have if another can't be told
JSON_SUFFIXES = (".jsonl", ".ndjson")

_SEPARATORS = (",", ";", "\t", "|")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
_SNIFFED = 100  # rows
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True)
class TextRows:
    """A text file, row by row.

    Attributes:
        mark: the byte order mark it began with, or "".
        header: names of the columns.
        raw: each row exactly as in the file, with its line end, and the header of a CSV file first; includes empty
            lines.
        cells: what is in them, for JSON Lines by the name of the column; [] for an empty line.
        separator: of a CSV file; None for JSON Lines.
    """

    mark: str
    header: list[str]
    raw: list[str]
    cells: list[Any]
    separator: str | None

    def columns(self) -> dict[str, list[Any]]:
        """The columns by name."""
        if self.separator is None:
            filled = [cells for cells in self.cells if cells != []]
            return {name: [cells.get(name) for cells in filled] for name in self.header}
        rows = [cells for cells in self.cells[1:] if cells]
        return {name: [cells[place] for cells in rows] for place, name in enumerate(self.header)}

    def relabelled(self, column: str, given: Sequence[Any], new: Sequence[Any], forms: Mapping[str, Any]) -> str:
        """The file with new labels; rows whose label doesn't change are the same, and those with None are left out."""
        first = 0 if self.separator is None else 1
        lines, row = [self.mark, *self.raw[:first]], 0
        for raw, cells in zip(self.raw[first:], self.cells[first:], strict=True):
            if cells == []:
                lines.append(raw)
                continue
            if new[row] == given[row]:
                lines.append(raw)
            elif new[row] is not None:
                lines.append(self._row(cells, column, forms.get(new[row], new[row])) + raw[len(raw.rstrip("\r\n")) :])
            row += 1
        return "".join(lines)

    def _row(self, cells: Any, column: str, label: Any) -> str:
        if self.separator is None:
            return json.dumps(cells | {column: label}, ensure_ascii=False)
        line, place = io.StringIO(), self.header.index(column)
        writer = csv.writer(line, delimiter=self.separator, lineterminator="")
        writer.writerow([*cells[:place], label, *cells[place + 1 :]])
        return line.getvalue()


def read_text_rows(path: Path, encoding: str = "utf-8", separator: str | None = None) -> TextRows:
    """Read a CSV or JSON Lines file; every row of CSV must have as many cells as the header."""
    text = _decode(path, encoding)
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    if path.suffix.lower() in JSON_SUFFIXES:
        return _read_json(path, text, mark)
    chosen = _checked(separator)
    lines = _Remembered(_lines(text, len(mark)))
    raw, rows = [], []
    limit = csv.field_size_limit(max(len(text), 1))  # Python's own is 131,072 characters: long texts are longer
    try:
        delimiter = chosen or _sniff(text, len(mark), CSV_SUFFIXES[path.suffix.lower()])
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        for cells in reader:
            raw.append(lines.taken())
            rows.append(cells)
            if cells and len(cells) != len(rows[0]):
                raise ValueError(
                    f"{path}, line {reader.line_num} has {len(cells)} cells and the header has {len(rows[0])}; "
                    f"expected as many: put cells with {_named(delimiter)} or line breaks in quotes"
                    + (", or name what is between them with --separator" if len(rows[0]) == 1 else "")
                )
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num} can't be read ({error}); expected cells with "
            f"{_named(delimiter)} between them and quotes in pairs"
        ) from error
    finally:
        csv.field_size_limit(limit)
    if not rows or not rows[0]:
        raise ValueError(f"{path} has no header; expected the names of the columns in its first line")
    return TextRows(mark, rows[0], raw, rows, delimiter)


def _read_json(path: Path, text: str, mark: str) -> TextRows:
    raw, rows = list(_lines(text, len(mark))), []
    for number, line in enumerate(raw, 1):
        try:
            row = json.loads(line) if line.strip() else []
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number} is no JSON ({error}); expected an object in each line, such as "
                '{"text": "…", "label": "…"}'
            ) from None
        if line.strip() and not isinstance(row, dict):
            raise ValueError(f"{path}, line {number} is {shorten([line.strip()])}; expected an object in each line")
        rows.append(row)
    return TextRows(mark, list(dict.fromkeys(name for row in rows for name in row)), raw, rows, None)


def _sniff(text: str, start: int, usual: str) -> str:
    """What separates the cells: what gives the first rows as many cells each, else what gives the header most."""
    headers = {}
    for separator in (usual, *(each for each in _SEPARATORS if each != usual)):
        sizes, sound = [], True
        try:
            for cells in islice(csv.reader(_lines(text, start), delimiter=separator, strict=True), _SNIFFED):
                sizes += [len(cells)] if cells else []
        except csv.Error:
            sound = False
        if sound and sizes and sizes[0] > 1 and len(set(sizes)) == 1:
            return separator
        headers[separator] = sizes[0] if sizes else 0
    return max(headers, key=headers.__getitem__)  # the usual one, if no other is better


def _checked(separator: str | None) -> str | None:
    found = {"tab": "\t", "\\t": "\t"}.get(separator or "", separator)
    if found is not None and (len(found) != 1 or found in '\r\n"'):
        raise ValueError(f"--separator is {separator!r}; expected one character between the cells, such as ';', or tab")
    return found


def _named(separator: str) -> str:
    return _NAMES.get(separator, f"{separator!r}")


def _lines(text: str, start: int) -> Iterator[str]:
    """The lines, each with its end; `io.StringIO` would copy the whole text, at four bytes per character."""
    return (match[0] for match in _LINE.finditer(text, start))


class _Remembered:
    """Lines of a file, and those returned since the last call: the rows of a CSV file exactly as in it."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._given = iter(lines), ""

    def __iter__(self) -> "_Remembered":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._given += line
        return line

    def taken(self) -> str:
        given, self._given = self._given, ""
        return given


def _decode(path: Path, encoding: str) -> str:
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ValueError(
            f"--encoding is {encoding!r}, which Python does not know; expected one such as latin-1"
        ) from None
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected a table: check the name")
    try:
        return path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        place = f"byte {error.start:,} is {error.object[error.start]:#04x}"
        raise ValueError(
            f"{path} is not {encoding} ({place}); save it as UTF-8, or pass its encoding, such as --encoding cp1252"
        ) from None
    except LookupError:  # hex and the like
        raise ValueError(f"--encoding is {encoding!r}, which is none of text; expected one such as latin-1") from None
