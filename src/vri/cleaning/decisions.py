"""Decisions for `vri apply`: a person's in review.csv, or those that follow from what `vri clean` wrote."""

import csv
import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from vri.cleaning.arrow import read_parquet
from vri.cleaning.cells import unescape
from vri.cleaning.review import ACCEPT, COLUMNS, Decision, read_review
from vri.cleaning.state import CORRECTED, ISSUES, KNOWN, READ_WITH, SUMMARY
from vri.data.lists import shorten

_CORRECTED = ("id", "label", "given_label", "changed")
_ISSUES = ("id", "given_label", "predicted_label", "is_label_issue", "predicted_probability")


def read_decisions(path: Path, precision: float | None) -> tuple[dict[str, Decision], int | None]:
    """The decisions, by id; and how many issues `precision` leaves as they are, if it is given.

    Args:
        path: review.csv, corrected.csv, label_issues.csv, the folders of parts that stand for the last two where an
            .npy file was streamed, or the folder with all that `vri clean` wrote.
        precision: take as many of the issues' suggestions, the surest first, as leave this share of them right, by
            their probabilities.
    """
    if path.is_dir():
        path = _in_folder(path, ISSUES if precision is not None else CORRECTED)
    header = _header(path)
    if precision is not None:
        if not set(_ISSUES) <= set(header):
            raise ValueError(
                f"--auto needs the label_issues.csv that vri clean wrote, or its folder, and {path} has the columns "
                f"{shorten(header, 50) or 'none'}; expected {', '.join(_ISSUES)} among them"
            )
        return _surest(path, precision)
    if set(_CORRECTED) - {"id"} <= set(header):
        return {
            _id(row): Decision(row["given_label"], ACCEPT, row["label"]) for row in _rows(path) if _yes(row["changed"])
        }, None
    if set(_ISSUES) <= set(header):
        raise ValueError(
            f"{path} has no decisions; expected --auto precision=P, to take the surest of its suggestions, or the "
            "corrected.csv beside it"
        )
    return read_review(path), None


def known_options(review: Path, source: Path) -> dict[str, Any]:
    """How `vri clean` read this source, if `review` is in the folder of its results or is that folder."""
    folders = (review, review.parent) if review.is_dir() else (review.parent,)
    summary = next((folder / SUMMARY for folder in folders if (folder / SUMMARY).is_file()), None)
    try:
        found = {} if summary is None else json.loads(summary.read_text(encoding="utf-8"))
        if found.get("source") not in (source.name, source.resolve().name):
            return {}
        known = {name: found[READ_WITH][name] for name in KNOWN if found[READ_WITH].get(name)}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):  # of another program, or damaged
        return {}
    return {name: each for name, each in known.items() if not str(each).endswith(".npy") or Path(each).is_file()}


def _surest(path: Path, precision: float) -> tuple[dict[str, Decision], int]:
    issues = [row for row in _rows(path) if _yes(row["is_label_issue"])]
    issues.sort(key=lambda row: -float(row["predicted_probability"]))
    right = accumulate(float(row["predicted_probability"]) for row in issues)  # expected among the first ones
    count = sum(total >= precision * number for number, total in enumerate(right, 1))  # the mean falls
    found = {_id(row): Decision(row["given_label"], ACCEPT, row["predicted_label"]) for row in issues[:count]}
    return found, len(issues) - count


def _in_folder(folder: Path, name: str) -> Path:
    """The file of this name in the results of `vri clean`; or the folder of parts, which may also be given itself."""
    if any(folder.glob("part-*.parquet")):
        return folder
    found = next((path for path in (folder / name, folder / Path(name).stem) if path.exists()), None)
    if found is None:
        raise FileNotFoundError(f"{folder} has no {name} in it; expected the folder that vri clean wrote to")
    return found


def _header(path: Path) -> list[str]:
    if path.is_dir():
        return list(read_parquet(min(path.glob("part-*.parquet"))).column_names)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return list(COLUMNS)  # `read_review` says what is wrong with it


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.is_dir():
        for part in sorted(path.glob("part-*.parquet")):
            table = read_parquet(part)
            mark = "changed" if "changed" in table.column_names else "is_label_issue"
            for row in table.filter(table[mark]).to_pylist():
                yield {name: value if isinstance(value, bool) else _text(value) for name, value in row.items()}
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            if None in row or None in row.values():
                raise ValueError(f"{path} has a row of another length than its header; run vri clean again")
            yield {name: unescape(cell) for name, cell in row.items()}


def _text(value: Any) -> str:
    """A value in Parquet as the text that it is in CSV."""
    whole = isinstance(value, float) and value.is_integer()
    return "" if value is None else str(int(value) if whole else value)


def _id(row: Mapping[str, Any]) -> str:
    return str(row.get("row", row.get("id")))  # rows of a streamed file are named by their number


def _yes(value: Any) -> bool:
    return value in (True, "true")
