"""The review page: one HTML file that needs no network, on which a person decides about every suspect."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from vri.files import atomic_write

# Joined in this order, as one script.
SCRIPTS = (
    "csv.js",
    "decisions.js",
    "elements.js",
    "data.js",
    "charts.js",
    "cards.js",
    "list.js",
    "dialogs.js",
    "filters.js",
    "deciding.js",
    "page.js",
)
QUALITY_BINS = 40
BATCH = 50  # suspects in a block; the page decodes the pictures of a block when one of them is shown


@dataclass(frozen=True)
class Neighbour:
    """A sample that is like a suspect, with a little of what there is to see of it."""

    id: str
    label: str
    image: bytes | None = None
    fields: Mapping[str, str] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Suspect:
    """A sample whose label looks wrong, with what a person needs to judge it."""

    id: str  # path of an image in its folder, or row number from 0
    given: str
    suggested: str
    quality: float  # 0..1, low = suspicious
    confidence: float  # probability of the suggested class
    outlier: float  # 0..1, high = belongs to no class
    image: bytes | None = None  # small JPEG
    fields: Mapping[str, str] | None = None  # the row's cells
    text: str | None = None
    others: Sequence[tuple[str, float]] = ()  # further classes it may belong to, with their probabilities
    neighbours: Sequence[Neighbour] = ()  # nearest first


@dataclass(frozen=True)
class Summary:
    """What the header and the charts of the page show about the whole data set."""

    source: str
    classes: Sequence[str]
    samples: int
    trusted: int
    issues: int  # samples below the threshold; the page may hold fewer, or further ones after them
    noise_rate: float
    noise_interval: tuple[float, float]
    transition_matrix: Sequence[Sequence[float]]  # rows true class, columns given label
    pair_counts: Sequence[Sequence[int]]  # issues by given (row) and suggested (column) label
    quality_counts: Sequence[int]  # 40 equal bins from 0 to 1
    threshold: float
    accuracy_before: float | None  # plain training on the given labels
    accuracy_after: float | None
    accuracy_on: str
    version: str
    command: str
    remarks: Sequence[str] = ()  # what a person should look at besides, a short sentence each


def write_report(path: Path, summary: Summary, suspects: Iterable[Suspect]) -> None:
    """Write the page to `path`, whole or not at all.

    `suspects` come most suspicious first and are read one by one. Those beyond the first `summary.issues` are shown
    only when they are asked for.
    """
    head, tail = _frame()
    with atomic_write(path) as file:
        file.write(head)
        blocks = _Blocks(summary)
        for number, batch in enumerate(_batches(suspects, BATCH)):
            file.write(_block(f"suspects-{number}", [blocks.row(suspect) for suspect in batch]))
            if any(suspect.image is not None for suspect in batch):
                file.write(_block(f"pictures-{number}", [_base64(suspect.image) for suspect in batch]))
            if any(suspect.neighbours for suspect in batch):
                file.write(_block(f"neighbours-{number}", blocks.neighbours(batch)))
        file.write(_block("overview", asdict(summary) | {"headline": headline(summary)} | blocks.overview()))
        file.write(tail)


def headline(summary: Summary) -> str:
    """The estimated share of wrong labels in words, with its interval."""
    low, high = (100 * share for share in summary.noise_interval)
    digits = 0 if high >= 5 else 1 if high >= 0.5 else 2  # 0.3–0.4 % must not read as 0–0 %
    low_text, high_text = f"{low:.{digits}f}", f"{high:.{digits}f}"
    interval = low_text if low_text == high_text else f"{low_text}–{high_text}"
    return f"{_share_in_words(summary.noise_rate)} ({interval}\u00a0%)"


def _share_in_words(rate: float) -> str:
    if rate < 0.0005:
        return "Hardly any label looks wrong"
    if rate >= 0.95:
        return "Nearly all labels look wrong"
    if rate >= 0.225:  # "1 in N" gets too coarse: 1 in 3 and 1 in 2 are far apart
        return f"About {round(10 * rate)} in 10 labels look wrong"
    one_in = float(f"{1 / rate:.2g}")
    return f"About 1 in {one_in:,.0f} labels looks wrong"


class _Blocks:
    """Suspects as short rows of JSON, with classes and columns by number; and a fingerprint of all of them."""

    def __init__(self, summary: Summary) -> None:
        self._classes = {name: number for number, name in enumerate(summary.classes)}
        self._columns: dict[str, int] = {}
        self._shown = 0
        self._kind = "fields"
        self._fingerprint = sha256(_json(summary.source))

    def row(self, suspect: Suspect) -> list[Any]:
        """One suspect; its picture is in a separate block."""
        self._shown += 1
        given, suggested = self._classes[suspect.given], self._classes[suspect.suggested]
        # A decision belongs to a sample and both its labels, not to the sample alone.
        self._fingerprint.update(_json([suspect.id, suspect.given, suspect.suggested]))
        if suspect.image is not None:
            self._kind = "image"
        elif suspect.text is not None and self._kind != "image":
            self._kind = "text"
        numbers = [_rounded(value) for value in (suspect.quality, suspect.confidence, suspect.outlier)]
        others: list[float] = []
        for name, probability in suspect.others:
            others += [self._classes[name], _rounded(probability)]
        near = [self._classes[neighbour.label] for neighbour in suspect.neighbours]
        return [suspect.id, given, suggested, *numbers, suspect.text, self._cells(suspect.fields), others, near]

    def neighbours(self, batch: Sequence[Suspect]) -> dict[str, Any]:
        """What there is to see of the neighbours of these suspects, each once, and which of them are whose."""
        places: dict[str, int] = {}
        seen: list[list[Any]] = []
        for each in (neighbour for suspect in batch for neighbour in suspect.neighbours):
            if each.id not in places:
                places[each.id] = len(seen)
                seen.append([each.id, each.text, self._cells(each.fields), _base64(each.image)])
        return {"seen": seen, "of": [[places[each.id] for each in suspect.neighbours] for suspect in batch]}

    def _cells(self, fields: Mapping[str, str] | None) -> list[int | str]:
        cells: list[int | str] = []
        for name, value in (fields or {}).items():
            cells += [self._columns.setdefault(name, len(self._columns)), value]
        return cells

    def overview(self) -> dict[str, Any]:
        """What is known after the last suspect."""
        return {
            "key": self._fingerprint.hexdigest()[:32],
            "kind": self._kind,
            "columns": list(self._columns),
            "shown": self._shown,
            "batch": BATCH,
        }


def _frame() -> tuple[bytes, bytes]:
    """The page before and after the data; only our own style and script are allowed in it."""
    folder = files("vri.cleaning") / "page"
    style = "\n" + (folder / "page.css").read_text("utf-8")
    script = '\n"use strict";\n' + "\n".join((folder / name).read_text("utf-8") for name in SCRIPTS)
    policy = (
        "default-src 'none'; img-src data:; "
        f"style-src {_source_hash(style)}; script-src {_source_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    page = (folder / "page.html").read_text("utf-8").replace("{{policy}}", policy).replace("{{style}}", style)
    head, tail = page.split("{{data}}")
    return head.encode(), tail.replace("{{script}}", script).encode()


def _source_hash(content: str) -> str:
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def _block(name: str, content: Any) -> bytes:
    """Data that the browser does not run: nothing in it can close its element."""
    return b'<script type="application/json" id="%s">%s</script>\n' % (name.encode(), _json(content))


def _json(content: Any) -> bytes:
    # ASCII only, so that a file name that is not Unicode can't break the page.
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("ascii")


def _rounded(share: float) -> float:
    """With four digits, but what is not certain stays so."""
    return round(min(max(share, 0.0001), 0.9999), 4) if 0 < share < 1 else share


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _batches(suspects: Iterable[Suspect], size: int) -> Iterator[list[Suspect]]:
    rest = iter(suspects)
    while batch := list(islice(rest, size)):
        yield batch
