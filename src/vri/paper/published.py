"""The numbers that the paper prints, each with its table, and a note where the paper contradicts itself."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Published:
    """One printed number."""

    table: str  # the paper's own name of the table or figure
    dataset: str  # data set
    noise: str  # kind of noise
    ratio: float | None  # share of noise as printed; None for real-world labels
    method: str  # name of the row
    detail: str  # what the row varies, such as k=3
    backbone: str  # classifier
    accuracy: float  # test accuracy in %
    std: float | None  # its standard deviation, if printed
    minutes: float | None  # per epoch, if printed
    note: str  # where the paper contradicts itself

    @property
    def column(self) -> str:
        """Heading: data set and noise."""
        rate = "" if self.ratio is None else f" {100 * self.ratio:.0f} %"
        return f"{_NAMES.get(self.dataset, self.dataset)}, {self.noise}{rate}"

    @property
    def cell(self) -> str:
        """The number as printed, marked if there is a note on it."""
        spread = "" if self.std is None else f" ± {self.std:g}"
        return f"{self.accuracy:g}{spread}{'*' if self.note else ''}"


_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cifar80n": "CIFAR-80N",
    "clothing1m": "Clothing1M",
    "food101n": "Food-101N",
    "animal10n": "ANIMAL-10N",
}


@cache
def published(table: str) -> tuple[Published, ...]:
    """All numbers of a table, in its order."""
    file = resources.files("vri.paper") / "published.csv"
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return tuple(_read(row) for row in rows if row["table"] == table)


def _read(row: dict[str, str]) -> Published:
    numbers = {name: float(row[name]) if row[name] else None for name in ("ratio", "std", "minutes")}
    texts = {name: row[name] for name in ("table", "dataset", "noise", "method", "detail", "backbone", "note")}
    return Published(**texts, **numbers, accuracy=float(row["accuracy"]))  # type: ignore[arg-type]
