"""What a table or figure is made of: rows and columns of settings, each cell with a run for every seed."""

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vri.paper.experiment import Record
from vri.paper.grid import Job, results
from vri.paper.settings import Settings

SCALES = ("quick", "paper")
# no part of what a run is
_FREE = ("root", "workers", "threads", "device", "tensorboard", "checkpoint_every", "evaluate_every")


@dataclass(frozen=True)
class Row:
    """A method or a variant of one.

    Attributes:
        label: what it is called in the table.
        settings: those that make it what it is.
        published: its name in the paper's table: (method, detail, backbone), the last two where they matter.
    """

    label: str
    settings: Mapping[str, Any]
    published: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Column:
    """Data and noise, or what else is varied across.

    Attributes:
        label: heading.
        settings: those that it stands for.
        group: panel or line of a figure that it belongs to.
        x: its place on the axis of a figure.
    """

    label: str
    settings: Mapping[str, Any]
    group: str = ""
    x: float = 0.0


@dataclass(frozen=True)
class Grid:
    """All runs of a table or figure at one scale.

    Attributes:
        rows: methods.
        columns: what they are tried on.
        about: the setting in words.
        rates: learning rate and weight decay by "data set, backbone" and by method, where a row or column says nothing
            else.
    """

    rows: Sequence[Row]
    columns: Sequence[Column]
    about: str
    rates: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: the paper's own.
        title: what it shows.
        claim: what the paper reads from it.
        grids: by scale.
        verdict: whether the claim holds, in words, from results.
        draw: draws the figure; None for a table.
        score: which accuracy counts at paper scale: of the "last" epoch, or "last_10_mean" as in one of its tables;
            short schedules have no ten epochs at their end, there it is always the last.
        examine: what else each run looks at.
        compare: row that the others are compared with, seed by seed; None compares nothing.
    """

    name: str
    title: str
    claim: str
    grids: Mapping[str, Grid]
    verdict: Callable[["Results"], str]
    draw: Callable[["Results"], "Picture"] | None = None
    score: str = "last"
    examine: str | None = None
    compare: str | None = "VRI"

    def jobs(self, scale: str, seeds: int, root: str | None = None) -> list[Job]:
        """All runs, seed by seed: a table of one seed is there before the second begins."""
        grid = self.grids[scale]
        return [self.job(grid, row, c, s, root) for s in range(seeds) for c in grid.columns for row in grid.rows]

    def job(self, grid: Grid, row: Row, column: Column, seed: int, root: str | None = None) -> Job:
        """One run. Its name comes from what it is: the same run of two tables is done once."""
        options = {**column.settings.get("options", {}), **row.settings.get("options", {})}
        merged = {**column.settings, **row.settings, "options": options}
        rates = grid.rates.get(f"{merged['dataset']}, {merged.get('backbone')}", {}).get(merged["method"])
        if rates is not None:
            merged = {"lr": rates[0], "weight_decay": rates[1], **merged}
        chosen = Settings(**{**merged, "seed": seed, "root": root})
        if chosen.method in _KNOWS_THE_RATE:
            chosen = replace(chosen, options={"noise_rate": wrong_share(chosen), **options})
        content = {k: v for k, v in chosen.as_dict().items() if k not in (*_FREE, "seed")}
        text = json.dumps([content, self.examine], sort_keys=True)
        mark = hashlib.sha256(text.encode()).hexdigest()[:8]
        noise = "" if chosen.noise == "none" else f"-{chosen.noise}-{chosen.rate:g}"
        return Job(f"{chosen.dataset}{noise}-{chosen.method}-{mark}-{seed}", chosen, curves=True, examine=self.examine)

    def datasets(self, scale: str) -> list[str]:
        """Names of the data sets that it needs."""
        return list(dict.fromkeys(str(c.settings["dataset"]) for c in self.grids[scale].columns))


_KNOWS_THE_RATE = ("co-teaching", "jocor")  # are told the share of wrong labels, as in their papers


def wrong_share(settings: Settings) -> float:
    """The share of wrong labels that noise at this rate makes, for methods that must know it."""
    if settings.noise == "uniform":
        return 0.9 * settings.rate if settings.dataset != "cifar100" else 0.99 * settings.rate
    if settings.noise.startswith("open-"):
        return 0.2 + 0.8 * settings.rate
    return {"worse": 0.4, "none": 0.2}.get(settings.noise, settings.rate)


@dataclass(frozen=True)
class Picture:
    """A figure, and the table of numbers behind it."""

    figure: Any  # matplotlib.figure.Figure
    header: Sequence[str]
    numbers: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Results:
    """What came out of an experiment so far."""

    experiment: Experiment
    scale: str
    seeds: int
    found: Mapping[str, Record] = field(repr=False)

    @classmethod
    def read(cls, experiment: Experiment, scale: str, seeds: int, folder: Path) -> "Results":
        """Those in a folder."""
        return cls(experiment, scale, seeds, results(experiment.jobs(scale, seeds), folder))

    @property
    def grid(self) -> Grid:
        """Rows and columns."""
        return self.experiment.grids[self.scale]

    @property
    def wanted(self) -> int:
        """How many runs there are in all."""
        return len(self.grid.rows) * len(self.grid.columns) * self.seeds

    @property
    def complete(self) -> bool:
        """Whether all runs are there."""
        return len(self.found) == len({job.name for job in self.experiment.jobs(self.scale, self.seeds)})

    def records(self, row: str, column: str) -> list[Record]:
        """All runs of a cell that are there, failed ones too, in the order of their seeds."""
        at, where = self._row(row), self._column(column)
        names = [self.experiment.job(self.grid, at, where, seed).name for seed in range(self.seeds)]
        return [self.found[name] for name in names if name in self.found]

    def scores(self, row: str, column: str, score: str | None = None) -> list[float]:
        """Test accuracies in %, one a seed, of runs that did not fail."""
        kind = score or (self.experiment.score if self.scale == "paper" else "last")
        return [100 * r[kind] for r in self.records(row, column) if r.get(kind) is not None]

    def mean(self, row: str, column: str) -> float:
        """Mean accuracy in %; NaN where there is none."""
        values = self.scores(row, column)
        return statistics.mean(values) if values else float("nan")

    def average(self, row: str, columns: Sequence[str] | None = None) -> float:
        """Mean over columns."""
        chosen = columns if columns is not None else self.columns
        return statistics.mean(self.mean(row, column) for column in chosen)

    @property
    def rows(self) -> list[str]:
        """Labels of the rows."""
        return [row.label for row in self.grid.rows]

    @property
    def columns(self) -> list[str]:
        """Labels of the columns."""
        return [column.label for column in self.grid.columns]

    def _row(self, label: str) -> Row:
        return next(row for row in self.grid.rows if row.label == label)

    def _column(self, label: str) -> Column:
        return next(column for column in self.grid.columns if column.label == label)
