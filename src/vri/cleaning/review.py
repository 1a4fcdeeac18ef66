"""review.csv, a person's decisions, and how they change the labels of a source."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vri.cleaning.cells import unescape
from vri.data.lists import shorten

COLUMNS = ("id", "given_label", "suggested_label", "decision", "new_label")
KEEP, ACCEPT, DROP, OTHER = DECISIONS = ("keep", "accept", "drop", "other")


@dataclass(frozen=True)
class Decision:
    """A row of review.csv; `new_label` is None for a sample to drop."""

    given: str
    decision: str
    new_label: str | None


def read_review(path: Path) -> dict[str, Decision]:
    """The decisions in a review.csv, by id."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected the review.csv that the page of vri clean exports")
    found: dict[str, Decision] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if header != list(COLUMNS):
                raise ValueError(
                    f"{path} has the columns {shorten(header, 50) or 'none'}; expected {', '.join(COLUMNS)}: "
                    "export it again from the page of vri clean"
                )
            for cells in reader:
                if cells:
                    name, decision = _read_decision(f"{path}, line {reader.line_num}", cells)
                    if name in found:
                        raise ValueError(f"{path}, line {reader.line_num}: {name!r} is decided twice; remove one row")
                    found[name] = decision
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8; save it as UTF-8, or export it again") from None
    except csv.Error as error:
        raise ValueError(f"{path} is no sound CSV file ({error}); export it again") from None
    if not found:
        raise ValueError(f"{path} has no decisions; expected at least one: decide on the page, then export")
    return found


def make_plan(
    ids: Sequence[str], labels: Sequence[str], decisions: Mapping[str, Decision], review: Path, path: Path
) -> tuple[list[str | None], Counter[str]]:
    """Check that the decisions are about these samples, and apply them to the labels.

    Returns:
        The new label of each sample, None to drop it; and how many are kept, changed, dropped and untouched.
    """
    given = dict(zip(ids, labels, strict=True))
    unknown = [name for name in decisions if name not in given]
    if unknown:
        raise ValueError(
            f"{review} decides about {len(unknown):,} samples that are not in {path}: {shorten(unknown)}; "
            "is this the review of another version? Pass the same SOURCE and --id as to vri clean"
        )
    other = [
        f"{name} is {given[name]!r} and was {decision.given!r}"
        for name, decision in decisions.items()
        if decision.given != given[name]
    ]
    if other:
        raise ValueError(
            f"{review} was made for other labels than {path} has: {shorten(other)}; "
            "is this the review of another version?"
        )
    counts: Counter[str] = Counter()
    new: list[str | None] = []
    for name, label in given.items():
        decision = decisions.get(name)
        new.append(label if decision is None else decision.new_label)
        outcomes = {None: "dropped", label: "kept"}
        counts["untouched" if decision is None else outcomes.get(new[-1], "changed")] += 1
    return new, counts


def _read_decision(where: str, cells: Sequence[str]) -> tuple[str, Decision]:
    if len(cells) != len(COLUMNS):
        raise ValueError(f"{where} has {len(cells)} cells; expected {len(COLUMNS)}, as in the header")
    name, given, suggested, decision, new = (unescape(cell) for cell in cells)
    expected = {KEEP: given, ACCEPT: suggested, DROP: "", OTHER: new}
    if decision not in expected:
        raise ValueError(f"{where}: decision is {decision!r}; expected one of {', '.join(DECISIONS)}")
    if new != expected[decision] or (decision != DROP and not new.strip()):
        wanted = {
            KEEP: f"the given label, {given!r}",
            ACCEPT: f"the suggested label, {suggested!r}",
            DROP: "nothing",
            OTHER: "a label",
        }
        raise ValueError(f"{where}: decision is {decision} and new_label {new!r}; expected {wanted[decision]}")
    return name, Decision(given, decision, None if decision == DROP else new)
