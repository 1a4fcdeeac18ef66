"""The parts of a table or figure: rows and columns of settings; each cell has one run per seed."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vri.methods import METHODS
from vri.paper.grid import TABLE, Run, results
from vri.paper.runs import Record, RunTable
from vri.paper.settings import Settings, method_options, with_recipe

SCALES = ("quick", "medium", "paper")


@dataclass(frozen=True)
class TableRow:
    """A method or a variant of one."""

    label: str  # its name in the table
    settings: Mapping[str, Any]  # those that define it
    # its name in the paper's table: (method, detail, backbone), the last two if they matter
    published: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Column:
    """Data and noise, or whatever else varies between columns."""

    label: str  # heading
    settings: Mapping[str, Any]  # those that define it
    group: str = ""  # panel or line of a figure that it belongs to
    x: float = 0.0  # its position on the axis of a figure
    # settings by name, of which every row takes the one with the best validation accuracy: the first seed tries
    # them all, the others run with what it chose. Without choices there is nothing to choose.
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int | None = None  # how many at most
    rows: Sequence[str] | None = None  # labels of the rows that are run here; all if None
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # options of single methods, which win here


@dataclass(frozen=True)
class Grid:
    """All runs of a table or figure at one scale."""

    rows: Sequence[TableRow]  # methods
    columns: Sequence[Column]  # what they are tried on
    about: str  # the setting in words
    # learning rate and weight decay by "data set, backbone" and by method, unless a row or column sets them
    rates: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str  # the paper's label
    title: str  # what it shows
    claim: str  # what the paper concludes from it
    grids: Mapping[str, Grid]  # by scale
    verdict: Callable[["Results"], str]  # says in words whether the claim holds, given results
    draw: Callable[["Results"], "Picture"] | None = None  # draws the figure; None for a table
    # which accuracy counts at paper scale: that of the "last" epoch, or "last_10_mean" as in one of its tables.
    # With short schedules it is always the last.
    score: str = "last"
    examine: str | None = None  # what else to examine at the end of each run
    compare: str | None = "VRI"  # row that the others are compared with, seed by seed; None for no comparison
    early: bool = False  # whether the verdict can be read from a table with missing cells

    @property
    def folder(self) -> str:
        """Name of its files, without characters that a file system may refuse."""
        return self.name.replace(":", "-")

    def runs(
        self, scale: str, seeds: int, root: str | None = None, found: Mapping[str, Record] | None = None
    ) -> list[Run]:
        """All runs, seed by seed: the table of one seed is complete before the second starts, column by column.

        Where rows choose their settings, later seeds are listed as soon as `found` has all results of the first; if
        `found` is None, they are listed with the last choice, to count them.
        """
        grid = self.grids[scale]
        runs: list[Run] = []
        for seed in range(seeds):
            for column in grid.columns:
                if column.seeds is None or seed < column.seeds:
                    rows = [row for row in grid.rows if column.rows is None or row.label in column.rows]
                    cells = [self._runs_of_cell(grid, row, column, seed, root, found) for row in rows]
                    # the first choice of all rows, the shortest, before the second of any
                    runs += [run for turn in zip_longest(*cells) for run in turn if run is not None]
        return runs

    def _runs_of_cell(
        self, grid: Grid, row: TableRow, column: Column, seed: int, root: str | None, found: Mapping[str, Record] | None
    ) -> list[Run]:
        if not column.choices:
            return [self.run(grid, row, column, seed, root)]
        if seed == 0:
            return [self.run(grid, row, column, 0, root, name) for name in column.choices]
        if found is None:
            return [self.run(grid, row, column, seed, root, list(column.choices)[-1])]
        name, decided = self.choice(grid, row, column, found)
        return [self.run(grid, row, column, seed, root, name)] if decided else []

    def choice(self, grid: Grid, row: TableRow, column: Column, found: Mapping[str, Record]) -> tuple[str | None, bool]:
        """What a row takes in a column, by validation accuracy of the first seed, and whether all have been tried."""
        tried = self.trials(grid, row, column, found)
        best = max(tried, key=lambda name: validation_accuracy(tried[name]), default=None)
        return best, len(tried) == len(column.choices)

    def trials(self, grid: Grid, row: TableRow, column: Column, found: Mapping[str, Record]) -> dict[str, Record]:
        """What the first seed has tried of all that the row may choose from."""
        keys = {name: self.run(grid, row, column, 0, None, name).key for name in column.choices}
        return {name: found[key] for name, key in keys.items() if key in found}

    def run(
        self,
        grid: Grid,
        row: TableRow,
        column: Column,
        seed: int,
        root: str | None = None,
        choice: str | None = None,
    ) -> Run:
        """The run of a cell and a seed. The row's settings win, except for options, where the column's win."""
        own = column.own.get(str(row.settings.get("method")), {})
        options = {**row.settings.get("options", {}), **column.settings.get("options", {}), **own}
        chosen_by_row = {} if choice is None else dict(column.choices[choice])
        if "lr" in chosen_by_row:
            scale = METHODS[str(row.settings["method"])].rate_scale
            chosen_by_row["lr"] = round(chosen_by_row["lr"] * scale, 6)
            chosen_by_row["weight_decay"] = round(chosen_by_row["weight_decay"] / scale, 8)
        merged = {**column.settings, **chosen_by_row, **row.settings, "options": options}
        rates = grid.rates.get(f"{merged['dataset']}, {merged.get('backbone')}", {}).get(merged["method"])
        if rates is not None:
            merged = {"lr": rates[0], "weight_decay": rates[1], **merged}
        merged = with_recipe({**merged, "seed": seed, "root": root})
        chosen = Settings(**merged)
        if "noise_rate" in method_options(chosen.method):  # as in the papers of these methods
            chosen = replace(chosen, options={"noise_rate": wrong_share(chosen), **chosen.options})
        return Run(chosen, curves=True, examine=self.examine)

    def datasets(self, scale: str) -> list[str]:
        """Names of the data sets that it needs."""
        return list(dict.fromkeys(str(c.settings["dataset"]) for c in self.grids[scale].columns))


def validation_accuracy(record: Record) -> float:
    """Of the last epoch; −1 if the run failed."""
    values = record["epochs"].get("validation_accuracy")
    return -1.0 if not values else float(values[-1])


def wrong_share(settings: Settings) -> float:
    """The share of wrong labels that noise of this rate causes, for methods that must know it."""
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
    """The results of an experiment so far."""

    experiment: Experiment
    scale: str
    seeds: int
    found: Mapping[str, Record] = field(repr=False)

    @classmethod
    def read(cls, experiment: Experiment, scale: str, seeds: int, folder: Path) -> "Results":
        """Those in a folder."""
        every = RunTable(folder / TABLE).rows()
        return cls(experiment, scale, seeds, results(experiment.runs(scale, seeds, found=every), folder))

    @property
    def grid(self) -> Grid:
        """Rows and columns."""
        return self.experiment.grids[self.scale]

    @property
    def complete(self) -> bool:
        """Whether all runs are done."""
        return all(run.key in self.found for run in self.experiment.runs(self.scale, self.seeds, found=self.found))

    @property
    def partial(self) -> bool:
        """Whether a table with missing cells can be judged, too."""
        return self.experiment.early and bool(self.found)

    def choice(self, row: str, column: str) -> str | None:
        """What the row chose in a column, from what has been tried so far."""
        return self.experiment.choice(self.grid, self._row(row), self._column(column), self.found)[0]

    def decided(self, row: str, column: str) -> bool:
        """Whether the row has tried all that it may choose from."""
        return self.experiment.choice(self.grid, self._row(row), self._column(column), self.found)[1]

    def trials(self, row: str, column: str) -> dict[str, Record]:
        """What the first seed has tried, by name of the choice."""
        return self.experiment.trials(self.grid, self._row(row), self._column(column), self.found)

    def seeds_of(self, column: str) -> int:
        """How many seeds a column has."""
        return min(self.seeds, self._column(column).seeds or self.seeds)

    def records(self, row: str, column: str) -> list[Record]:
        """All finished runs of a cell, including failed ones, in the order of their seeds."""
        at, where, choice = self._row(row), self._column(column), self.choice(row, column)
        if where.choices and choice is None:
            return []
        keys = [self.experiment.run(self.grid, at, where, seed, None, choice).key for seed in range(self.seeds)]
        return [self.found[key] for key in keys if key in self.found]

    def curves(self, row: str, column: str, quantity: str) -> list[list[float]]:
        """A quantity by epoch, one list per run that did not fail."""
        return [r["epochs"][quantity] for r in self.records(row, column) if r.get("epochs")]

    def examined(self, row: str, column: str) -> list[Record]:
        """What else was examined, one record per run that did not fail."""
        return [r["examined"] for r in self.records(row, column) if r.get("examined")]

    def scores(self, row: str, column: str, score: str | None = None) -> list[float]:
        """Test accuracies in %, one per seed, of runs that did not fail."""
        kind = score or self._score
        return [100 * r[kind] for r in self.records(row, column) if r.get(kind) is not None]

    @property
    def _score(self) -> str:
        """What a run is judged by."""
        return self.experiment.score if self.scale == "paper" else "last"

    def paired(self, row: str, other: str, column: str) -> tuple[list[float], list[float]]:
        """Test accuracies in % of two rows, of the seeds that both have: same data, noise and order."""
        kind = self._score
        found = [
            {r["settings"]["seed"]: 100 * r[kind] for r in self.records(name, column) if r.get(kind) is not None}
            for name in (row, other)
        ]
        both = sorted(found[0].keys() & found[1].keys())
        return [found[0][seed] for seed in both], [found[1][seed] for seed in both]

    def mean(self, row: str, column: str) -> float:
        """Mean accuracy in %; NaN if there is none."""
        values = self.scores(row, column)
        return statistics.mean(values) if values else float("nan")

    def average(self, row: str, columns: Sequence[str] | None = None) -> float:
        """Mean over columns; NaN if the row has none."""
        chosen = columns if columns is not None else self.columns
        values = [self.mean(row, column) for column in chosen if self.scores(row, column)]
        return statistics.mean(values) if values else float("nan")

    def telling(self, column: str) -> bool:
        """Whether at least half of a column's rows have results, so that it can be judged."""
        wanted = self._column(column).rows or self.rows
        return 2 * sum(bool(self.scores(row, column)) for row in wanted) >= len(wanted)

    def mean_everywhere(self, row: str) -> bool:
        """Whether a row has results in every column."""
        return all(self.scores(row, column) for column in self.columns)

    @property
    def rows(self) -> list[str]:
        """Labels of the rows."""
        return [row.label for row in self.grid.rows]

    @property
    def columns(self) -> list[str]:
        """Labels of the columns."""
        return [column.label for column in self.grid.columns]

    def _row(self, label: str) -> TableRow:
        return next(row for row in self.grid.rows if row.label == label)

    def _column(self, label: str) -> Column:
        return next(column for column in self.grid.columns if column.label == label)
