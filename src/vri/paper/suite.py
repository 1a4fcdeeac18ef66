"""Run tables and figures, and write what came out."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from matplotlib import rc_context

from vri.data import CATALOGUE
from vri.files import atomic_write
from vri.paper.catalogue import EXPERIMENTS
from vri.paper.estimate import seconds_of
from vri.paper.grid import Job, missing, run_grid
from vri.paper.pages import replace_block
from vri.paper.plan import SCALES, Experiment, Results
from vri.paper.settings import nearest
from vri.paper.sheets import as_csv, noise_hashes, runs_table, sheet

TITLE = "Results on real data"


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


def lacking(experiment: Experiment, scale: str, root: str | None) -> list[str]:
    """Data sets that it needs and that were not found."""
    return [name for name in experiment.datasets(scale) if CATALOGUE[name].find(root) is None]


def why_not(experiment: Experiment, names: Sequence[str]) -> str:
    """What to do about data that is lacking."""
    hints = []
    for name in names:
        hints.append(f"{name} ({CATALOGUE[name].instructions or f'vri data get {name}'})")
    return f"{experiment.name} needs {', '.join(hints)}; where the files lie elsewhere, give --root"


def jobs_of(
    experiments: Sequence[Experiment], scale: str, seeds: int, root: str | None, weights: str | None = None
) -> list[Job]:
    """The runs of all of them, each once."""
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r}: expected one of {', '.join(SCALES)}")
    found: dict[str, Job] = {}
    for experiment in experiments:
        for job in experiment.jobs(scale, seeds, root):
            if weights is not None and job.settings.backbone == "resnet50":
                job = replace(job, settings=replace(job.settings, weights=weights))
            found.setdefault(job.name, job)
    return list(found.values())


def plan_text(jobs: Sequence[Job], folder: Path, workers: int) -> str:
    """How many runs are to be done, and about how long they take."""
    left = missing(jobs, folder)
    words = f"{len(jobs)} runs, {len(jobs) - len(left)} done before"
    if not left:
        return words
    seconds = sum(seconds_of(left, folder)) / workers
    return f"{words}; about {duration(seconds)} with {workers} worker{'s' if workers > 1 else ''}"


def duration(seconds: float) -> str:
    """Roughly, in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} hours"
    return f"{timedelta(seconds=seconds).days} days"


def run(jobs: Sequence[Job], folder: Path, workers: int, minutes: float | None) -> bool:
    """Do what is left; whether all is done."""
    print(plan_text(jobs, folder, workers), file=sys.stderr, flush=True)
    return run_grid(jobs, folder, workers=workers, minutes=minutes)


def write(results: Results, out: Path) -> None:
    """Table and figure of an experiment as files."""
    folder = out / results.experiment.name.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    table = sheet(results)
    caption = f"{results.experiment.title} ({results.scale} scale)"
    texts = {
        "table.md": table.markdown() + "\n",
        "table.csv": as_csv(table.header, table.body),
        "table.tex": table.latex(caption),
        "runs.csv": runs_table(results),
    }
    if results.experiment.draw is not None and results.complete:
        picture = results.experiment.draw(results)
        texts["figure.csv"] = as_csv(picture.header, picture.numbers)
        for kind in ("png", "svg"):
            # no date, and names of its parts that are not random: a file changes little when nothing has
            with rc_context({"svg.hashsalt": "vri"}), atomic_write(folder / f"figure.{kind}") as file:
                picture.figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    for name, text in texts.items():
        with atomic_write(folder / name) as file:
            file.write(text.encode())


def block(results: Results, out: Path, page: Path, seeds: int) -> str:
    """What a page says of an experiment."""
    experiment = results.experiment
    link = Path(_relative(out, page)) / experiment.name.replace(":", "-")
    command = f"vri reproduce {experiment.name} --scale {results.scale} --seeds {seeds}"
    total = sum(r["seconds"] or 0 for r in results.found.values())
    hashes = "; ".join(f"{column}: {', '.join(h)}" for column, h in noise_hashes(results).items())
    lines = [
        f"## {experiment.name}: {experiment.title}",
        f"`{command}`. Setting: {results.grid.about}",
        f"**Claim:** {experiment.claim} **At {results.scale} scale:** {experiment.verdict(results)}",
    ]
    if experiment.draw is not None:
        lines.append(f"![{experiment.title}]({link / 'figure.png'})")
        lines.append(f"Numbers behind it: [figure.csv]({link / 'figure.csv'}), also as [SVG]({link / 'figure.svg'}).")
    if experiment.draw is None or len(results.columns) <= 6:
        lines.append(sheet(results).markdown())
    files = ", ".join(f"[{name}]({link / name})" for name in ("table.csv", "table.tex", "runs.csv"))
    lines.append(f"{len(results.found)} runs, {duration(total)} of one core in all. Files: {files}. Noise: {hashes}.")
    return "\n\n".join(lines)


def write_page(results: Results, out: Path, page: Path, seeds: int) -> None:
    """Put the block of an experiment into a page, in the place of an older one."""
    replace_block(page, results.experiment.name, block(results, out, page, seeds), TITLE)


def _relative(out: Path, page: Path) -> str:
    return Path(os.path.relpath(out, page.parent)).as_posix()
