"""The page about the paper's systems: all of them, where they appear, and methods that are there."""

import csv
import re
from importlib.resources import files
from pathlib import Path

from vri.methods import METHODS

PAGE = (Path(__file__).parents[1] / "docs" / "systems.md").read_text()
LINES = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
ROWS = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in LINES)}


def test_every_system_of_the_tables_is_on_the_page() -> None:
    text = files("vri.paper").joinpath("published.csv").read_text()
    tables: dict[str, set[str]] = {}
    for row in csv.DictReader(text.splitlines()):
        kind, _, table = row["table"].partition(":")
        tables.setdefault(row["method"], set()).update([table] if kind == "tab" else [])
    assert {name: ", ".join(sorted(found)) for name, found in tables.items()} == {n: r[0] for n, r in ROWS.items()}
    assert len(LINES) == len(ROWS)  # none stands there twice


def test_systems_have_a_method_or_are_missing_for_a_reason() -> None:
    for name, (_, what, here) in ROWS.items():
        assert what, name
        named = re.findall(r"`([a-z0-9+-]+)`", here)
        assert set(named) <= set(METHODS), name
        assert here.startswith(("`", "missing: ")), name


def test_every_method_is_on_the_page_and_the_other_way_round() -> None:
    rest = PAGE.split("Methods that the tables don't name:")[1]
    named = re.findall(r"`([a-z0-9+-]+)`", " ".join([rest, *(here for _, _, here in ROWS.values())]))
    assert set(named) == set(METHODS)
