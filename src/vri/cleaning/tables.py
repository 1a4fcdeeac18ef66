"""Tables in CSV, TSV and Parquet files: columns as they are in the file, and labels as text."""

import codecs
import csv
import difflib
import importlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vri.data.lists import shorten

TEXT_SUFFIXES = {".csv": ",", ".tsv": "\t"}  # with their delimiters
PARQUET_SUFFIXES = (".parquet", ".pq")
SUFFIXES = (*TEXT_SUFFIXES, *PARQUET_SUFFIXES)

_WHOLE = re.compile(r"([+-]?\d+)\.0*")  # 1.0, as spreadsheets and pandas write the class 1
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


@dataclass(frozen=True)
class Table:
    """A table in memory.

    Attributes:
        path: its file.
        columns: names to values; text in CSV files, pyarrow's values in Parquet files.
        rows: how many there are.
    """

    path: Path
    columns: dict[str, list[Any]]
    rows: int

    def column(self, name: str, option: str) -> list[Any]:
        """A column by its name; `option` is the one that named it."""
        if name not in self.columns:
            near = nearest(name, self.columns)
            raise ValueError(
                f"{option} is {name!r}, and {self.path} has the columns {shorten(self.columns, 50)}; "
                f"expected one of them: did you mean {near!r}?"
            )
        return self.columns[name]

    def labels(self, name: str | None) -> tuple[str, list[str]]:
        """The name of the column with the labels, and the labels as text."""
        if name is None:
            raise ValueError(
                f"--label is missing; {self.path} has the columns {', '.join(self.columns)}: "
                "name the one with the labels"
            )
        return name, label_texts(self.column(name, "--label"), f"{self.path}: column {name!r}")

    def ids(self, name: str | None) -> list[str]:
        """The column with the ids as text, or the row numbers from 0."""
        if name is None:
            return [str(row) for row in range(self.rows)]
        ids = [str(value) for value in self.column(name, "--id")]
        check_unique(ids, f"{self.path}: column {name!r}")
        return ids


@dataclass(frozen=True)
class TextRows:
    """A CSV or TSV file, row by row.

    Attributes:
        mark: the byte order mark it began with, or "".
        header: names of the columns.
        raw: each row exactly as in the file, with its line end, the header first; includes empty lines.
        cells: what is in them; [] for an empty line.
    """

    mark: str
    header: list[str]
    raw: list[str]
    cells: list[list[str]]


def read_table(path: Path, encoding: str = "utf-8") -> Table:
    """Read a CSV, TSV or Parquet file; it must have rows, and columns with different names."""
    if path.suffix.lower() in PARQUET_SUFFIXES:
        data = read_parquet(path)
        header, rows = list(data.column_names), int(data.num_rows)
        _check_header(path, header)
        columns = {name: data.column(name).to_pylist() for name in header}
    else:
        text = read_text_rows(path, encoding)
        header = text.header
        filled = [cells for cells in text.cells[1:] if cells]
        rows = len(filled)
        columns = {name: [cells[place] for cells in filled] for place, name in enumerate(header)}
    if not rows:
        raise ValueError(f"{path} has no rows; expected at least two, with labels that differ")
    return Table(path, columns, rows)


def read_text_rows(path: Path, encoding: str = "utf-8") -> TextRows:
    """Read a CSV or TSV file; every row must have as many cells as the header."""
    text = _decode(path, encoding)
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    lines = _Remembered(_lines(text, len(mark)))
    delimiter = TEXT_SUFFIXES[path.suffix.lower()]
    raw, rows = [], []
    limit = csv.field_size_limit(max(len(text), 1))  # Python's own is 131,072 characters: long texts are longer
    try:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        for cells in reader:
            raw.append(lines.taken())
            rows.append(cells)
            if cells and len(cells) != len(rows[0]):
                raise ValueError(
                    f"{path}, line {reader.line_num} has {len(cells)} cells and the header has {len(rows[0])}; "
                    "expected as many: put cells with commas or line breaks in quotes"
                )
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num} can't be read ({error}); expected cells with "
            f"{'tabs' if delimiter != ',' else 'commas'} between them and quotes in pairs"
        ) from error
    finally:
        csv.field_size_limit(limit)
    if not rows or not rows[0]:
        raise ValueError(f"{path} has no header; expected the names of the columns in its first line")
    _check_header(path, rows[0])
    return TextRows(mark, rows[0], raw, rows)


def read_parquet(path: Path) -> Any:
    """The pyarrow table in a file."""
    parquet = parquet_library(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected a Parquet file: check the name")
    try:
        return parquet.ParquetFile(path).read()  # this file only: folders named a=b are not columns
    except Exception as error:  # pyarrow has errors of many kinds
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} can't be read as Parquet ({reason}); expected a whole file: write it again") from None


def parquet_library(path: Path) -> Any:
    """pyarrow.parquet, or an error that says how to get it."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(f"{path} needs pyarrow, which is not installed: pip install vri[parquet]") from error


def label_texts(values: Sequence[Any], where: str) -> list[str]:
    """Labels as text without surrounding space; if all are whole numbers, 1.0 becomes 1.

    Args:
        values: as in the file.
        where: names the column in an error.
    """
    empty = [str(row) for row, value in enumerate(values) if is_missing_label(value)]
    if empty:
        raise ValueError(
            f"{where} has no label in {len(empty):,} of {len(values):,} rows: {shorten(empty)} (from 0); "
            "expected one in each: fill them in or remove the rows"
        )
    texts = [str(value).strip() for value in values]
    if all(_WHOLE.fullmatch(text) or text.lstrip("+-").isdigit() for text in texts):
        return [match[1] if (match := _WHOLE.fullmatch(text)) else text for text in texts]
    return texts


def is_missing_label(value: Any) -> bool:
    """Whether a cell is empty: no text, null or NaN."""
    return (
        value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and value != value)
    )


def is_missing(value: Any) -> bool:
    """Whether a cell of a feature is empty."""
    if isinstance(value, str):
        return value.strip().lower() in _MISSING
    return value is None or (isinstance(value, float) and value != value)


def check_unique(ids: Sequence[str], where: str) -> None:
    """Check that every id occurs once."""
    seen: set[str] = set()
    twice = dict.fromkeys(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    if twice:
        raise ValueError(
            f"{where} has {len(twice):,} ids more than once: {shorten(twice)}; expected each once: "
            "choose another column, or leave --id out to count the rows"
        )


def nearest(name: str, names: Iterable[str]) -> str:
    """The name most similar to the one given."""
    known = list(names)
    lower = {each.lower(): each for each in known}
    return lower.get(name.lower()) or difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


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


def _check_header(path: Path, header: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise ValueError(f"{path} has columns of one name: {shorten(twice)}; expected each once: rename one")
