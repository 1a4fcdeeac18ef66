"""Tables in text, Parquet and Arrow files: columns as they are in the file, and labels as text."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vri.cleaning.arrow import PARQUET_SUFFIXES, class_names, read_arrow
from vri.cleaning.text_tables import CSV_SUFFIXES, JSON_SUFFIXES, read_text_rows
from vri.data.lists import shorten

SUFFIXES = (*CSV_SUFFIXES, *JSON_SUFFIXES, *PARQUET_SUFFIXES)

_WHOLE = re.compile(r"^([+-]?\d+)\.0*$")  # 1.0, as spreadsheets and pandas write the class 1
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


@dataclass(frozen=True)
class Table:
    """A table in memory.

    Attributes:
        path: its file.
        columns: names to values: text in CSV files, else of any type.
        rows: how many there are.
        numbers: of the classes in columns that hold numbers for names in the file.
        decimal_comma: whether 1,5 may be a number, as in files with semicolons between the cells.
    """

    path: Path
    columns: dict[str, list[Any]]
    rows: int
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    decimal_comma: bool = False

    def column(self, name: str, option: str) -> list[Any]:
        """A column by its name; `option` is the one that named it."""
        if name not in self.columns:
            near = nearest(name, self.columns)
            raise ValueError(
                f"{option} is {name!r}, and {self.path} has the columns {shorten(self.columns, 50)}; "
                f"expected one of them: did you mean {near!r}?"
            )
        return self.columns[name]

    def labels(self, name: str | None, unlabelled: bool | str = False) -> tuple[str, list[str]]:
        """The name of the column with the labels, and the labels as text; "" for missing ones if they are allowed."""
        if name is None:
            raise ValueError(
                f"--label is missing; {self.path} has the columns {', '.join(self.columns)}: "
                "name the one with the labels"
            )
        return name, label_texts(self.column(name, "--label"), f"{self.path}: column {name!r}", unlabelled)

    def ids(self, name: str | None) -> list[str]:
        """The column with the ids as text, or the row numbers from 0."""
        if name is None:
            return [str(row) for row in range(self.rows)]
        ids = [str(value) for value in self.column(name, "--id")]
        check_unique(ids, f"{self.path}: column {name!r}")
        return ids


def read_table(path: Path, encoding: str = "utf-8", separator: str | None = None) -> Table:
    """Read a table; it must have rows, and columns with different names."""
    numbers: dict[str, dict[str, int]] = {}
    decimal_comma = False
    if path.is_dir() or path.suffix.lower() in PARQUET_SUFFIXES:
        data = read_arrow(path)
        _check_header(path, data.column_names)
        columns = {name: data.column(name).to_pylist() for name in data.column_names}
        for name, classes in class_names(data).items():
            numbers[name] = {each: number for number, each in enumerate(classes)}
            columns[name] = [_class(number, classes) for number in columns[name]]
    else:
        text = read_text_rows(path, encoding, separator)
        _check_header(path, text.header)
        columns, decimal_comma = text.columns(), text.separator == ";"
    rows = len(next(iter(columns.values()), []))
    if not rows:
        raise ValueError(f"{path} has no rows; expected at least two, with labels that differ")
    return Table(path, columns, rows, numbers, decimal_comma)


def _class(number: Any, names: Sequence[str]) -> Any:
    """The name of a class; -1 stands for no label."""
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else None


def label_texts(values: Sequence[Any], where: str, unlabelled: bool | str = False) -> list[str]:
    """Labels as text without surrounding space; if all are whole numbers, 1.0 becomes 1.

    Args:
        values: as in the file.
        where: names the column in an error.
        unlabelled: whether labels may be missing, which become ""; a text is a label that also stands for none.
    """
    empty = [str(row) for row, value in enumerate(values) if is_missing_label(value)]
    if empty and not unlabelled:
        raise ValueError(
            f"{where} has no label in {len(empty):,} of {len(values):,} rows: {shorten(empty)} (from 0); "
            "expected one in each: fill them in, remove the rows, or have them predicted with --unlabelled"
        )
    texts = ["" if is_missing_label(value) else str(value).strip() for value in values]
    if isinstance(unlabelled, str):
        none = [unlabelled in (text, _WHOLE.sub(r"\1", text)) for text in texts]
        check_known(unlabelled, any(none), where, texts)
        texts = ["" if gone else text for text, gone in zip(texts, none, strict=True)]
    if all(_WHOLE.fullmatch(text) or text.lstrip("+-").isdigit() for text in texts if text):
        return [match[1] if (match := _WHOLE.fullmatch(text)) else text for text in texts]
    return texts


def check_known(unlabelled: str, known: bool, where: str, labels: Iterable[str]) -> None:
    """Refuse a label that stands for none if it isn't among the labels."""
    if not known:
        names = sorted({label for label in labels if label})
        near = difflib.get_close_matches(unlabelled, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "check the name, or leave it out"
        raise ValueError(
            f"--unlabelled is {unlabelled!r}, and {where} has the labels {shorten(names, 20) or 'none'}; expected the "
            f"one that stands for no label: {hint}"
        )


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


def _check_header(path: Path, header: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise ValueError(f"{path} has columns of one name: {shorten(twice)}; expected each once: rename one")
