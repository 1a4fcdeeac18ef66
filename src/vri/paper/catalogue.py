"""All tables and figures of the paper, by name, and what they need to run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vri.data import CATALOGUE
from vri.paper.experiments import Experiment
from vri.paper.figure_grids import figures
from vri.paper.grid import Run
from vri.paper.runs import Record
from vri.paper.settings import nearest
from vri.paper.table_grids import tables

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (*tables(), *figures())}


def find(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name; "all" is all of them."""
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(
                f"{name!r} is no table or figure{nearest(name, EXPERIMENTS)}; expected all, list or some of "
                f"{', '.join(EXPERIMENTS)}"
            )
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def parts_of(
    experiments: Sequence[Experiment], scale: str, rows: Sequence[str] | None, columns: Sequence[str] | None
) -> list[Experiment]:
    """The experiments with only those of their rows and columns that have one of these labels; None is all."""
    every = [experiment.grids[scale] for experiment in experiments]
    for kind, wanted, known in (
        ("row", rows, {row.label: None for grid in every for row in grid.rows}),
        ("column", columns, {column.label: None for grid in every for column in grid.columns}),
    ):
        for label in wanted or ():
            if label not in known:
                raise ValueError(
                    f"--{kind}s {label!r}: there is no such {kind} at {scale} scale{nearest(label, known)}; expected "
                    f"some of {'; '.join(known)}"
                )
    parts = [
        replace(
            grid,
            rows=[row for row in grid.rows if rows is None or row.label in rows],
            columns=[column for column in grid.columns if columns is None or column.label in columns],
        )
        for grid in every
    ]
    return [replace(e, grids={**e.grids, scale: part}) for e, part in zip(experiments, parts, strict=True)]


def lacking(experiment: Experiment, scale: str, root: str | None) -> list[str]:
    """Data sets that it needs and that were not found."""
    return [name for name in experiment.datasets(scale) if CATALOGUE[name].find(root) is None]


def why_not(experiment: Experiment, names: Sequence[str]) -> str:
    """What to do about missing data."""
    hints = [f"{name} ({CATALOGUE[name].instructions or f'vri data get {name}'})" for name in names]
    return f"{experiment.name} needs {', '.join(hints)}; where the files lie elsewhere, give --root"


def runs_of(
    experiments: Sequence[Experiment],
    scale: str,
    seeds: int,
    root: str | None,
    weights: str | None = None,
    found: Mapping[str, Record] | None = None,
) -> list[Run]:
    """The runs of all these experiments, each once; `weights` are those of ResNet-50, `found` as in `Experiment.runs`.

    Several experiments take turns by seed: all tables of one seed come before the second seed of any.
    """
    every = [run for experiment in experiments for run in experiment.runs(scale, seeds, root, found)]
    chosen: dict[str, Run] = {}
    for run in sorted(every, key=lambda run: run.settings.seed):
        if weights is not None and run.settings.backbone == "resnet50":
            run = replace(run, settings=replace(run.settings, weights=weights))
        chosen.setdefault(run.key, run)
    return list(chosen.values())
