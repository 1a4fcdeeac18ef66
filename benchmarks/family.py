"""Every method under one protocol: digits and Fashion-MNIST, three kinds of noise, 3 seeds, tuned alike.

    python benchmarks/family.py --jobs 2 --minutes 120        # goes on where it was stopped; also on several machines
    python benchmarks/family.py --table                       # the block in docs/results.md

Each run has a small file in benchmarks/results/family/. Every method chooses learning rate and weight decay from the
same small grid, for each data set and noise, by its validation accuracy over all seeds; the table has test accuracy of
the last epoch. Meta-learning methods stand in two groups: as published, and all with the same clean gradient γ.
"""

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vri.experiments.grid import Job, results, run_grid
from vri.experiments.settings import Settings
from vri.report.pages import markdown_table, replace_block

FOLDER = Path(__file__).parent / "results" / "family"
PAGE = Path(__file__).parent.parent / "docs" / "results.md"

SEEDS = (0, 1, 2)
GRID = ((0.02, 5e-3), (0.05, 5e-3), (0.05, 5e-4))  # learning rate, weight decay
PLACES: dict[str, dict[str, Any]] = {
    "digits": {"clean": 100, "validation": 270, "limit": 1000, "epochs": 70},
    "fashion-mnist": {"clean": 1000, "validation": 5000, "limit": 10_000, "epochs": 10},
}
NOISES = {"flip": 0.4, "uniform": 0.6, "instance": 0.4}
WRONG = {"flip": 0.4, "uniform": 0.54, "instance": 0.4}  # share of wrong labels, for methods that must know it

# γ for all alike, and the label smoothing of the meta loss that belongs to it
WITH: dict[str, Any] = {"clean_weight": 4.0, "clean_updates": 300, "meta_smoothing": 0.1}
WITHOUT: dict[str, Any] = {"clean_weight": 0.0, "meta_smoothing": 0.0}
META = ("l2rw", "mw-net", "pmw-net", "mlc", "mslc", "warpi", "mc", "non-bayesian", "vri-literal", "vri")

# group: row: (method, options, other settings)
Row = tuple[str, dict[str, Any], dict[str, Any]]
GROUPS: dict[str, dict[str, Row]] = {
    "no clean samples": {
        **{
            name: (name, {}, {"clean": 0})
            for name in ("cross-entropy", "label-smoothing", "mixup", "gce", "sce", "bootstrapping")
        },
        **{name: (name, {"noise_rate": "wrong"}, {"clean": 0}) for name in ("co-teaching", "jocor")},
        **{name: (name, {}, {"clean": 0}) for name in ("decoupling", "elr")},
        "VRI (−)": ("vri", {}, {"clean": 0, "selection": "smallest"}),
        "VRI (+)": ("vri", {}, {"clean": 0, "selection": "balanced"}),
        "VRI (mixture, mixup)": ("vri", {}, {"clean": 0, "selection": "mixture", "mixup": 1.0}),
    },
    "clean samples": {name: (name, {}, {}) for name in ("clean-only", "fine-tuned", "glc")},
    "clean samples, meta-learning without γ": {name: (name, WITHOUT, {}) for name in META},
    "clean samples, meta-learning with γ": {name: (name, WITH, {}) for name in META},
}


def jobs() -> list[Job]:
    """The whole grid, the most telling rows first."""
    found = []
    groups = [(group, row) for group, rows in GROUPS.items() for row in rows]
    groups.sort(key=lambda place: place[1] not in ("vri", "mc", "non-bayesian", "mw-net", "l2rw", "glc", "VRI (+)"))
    for group, row in groups:
        for dataset in PLACES:
            for noise in NOISES:
                for lr, decay in GRID:
                    found += [job(group, row, dataset, noise, lr, decay, seed) for seed in SEEDS]
    return found


def job(group: str, row: str, dataset: str, noise: str, lr: float, decay: float, seed: int) -> Job:
    method, options, more = GROUPS[group][row]
    options = {name: WRONG[noise] if value == "wrong" else value for name, value in options.items()}
    settings = Settings(
        **{
            "dataset": dataset,
            "noise": noise,
            "rate": NOISES[noise],
            "method": method,
            "options": options,
            "backbone": "mlp",
            "lr": lr,
            "weight_decay": decay,
            "seed": seed,
            **PLACES[dataset],
            **more,
        }
    )
    short = {"with": "with", "without": "without"}.get(group.split()[-2], "plain")
    plain = row.replace("(−)", "minus").replace("(+)", "plus").replace("(mixture, mixup)", "mixture")
    name = f"{plain.replace(' ', '-').lower()}-{short}-{dataset}-{noise}-{lr}-{decay}-{seed}"
    return Job(name, settings)


def table() -> str:
    found = results(jobs(), FOLDER)
    columns = [(d, n) for d in PLACES for n in NOISES]
    lines = [
        "## The family, one protocol",
        "",
        "Written by `python benchmarks/family.py --table`; the runs by `python benchmarks/family.py --jobs 2`, which "
        "goes on where it stopped.",
        "",
        "MLP. digits: 1,000 noisy + 100 clean samples, 70 epochs; Fashion-MNIST: 10,000 noisy + 1,000 clean, 10 "
        "epochs; batches of 100. Test accuracy in % of the last epoch, mean ± sd over 3 seeds; learning rate and "
        f"weight decay of every method chosen from {', '.join(map(str, GRID))} on the validation split, for each "
        "column. Seconds: mean of a run over all columns (runs share a machine: a rough guide).",
    ]
    for group, rows in GROUPS.items():
        body = []
        for row in rows:
            cells, seconds = [], []
            for dataset, noise in columns:
                best = _best(found, group, row, dataset, noise)
                cells.append("–" if best is None else _cell([r["last"] for r in best]))
                seconds += [] if best is None else [r["seconds"] for r in best]
            if seconds:
                body.append([row, *cells, f"{statistics.mean(seconds):.1f}"])
        if body:
            lines += ["", f"**{group.capitalize()}**", ""]
            lines.append(markdown_table(["method", *(f"{d}, {n}" for d, n in columns), "seconds"], body))
    return "\n".join(lines)


def _best(
    found: dict[str, dict[str, Any]], group: str, row: str, dataset: str, noise: str
) -> list[dict[str, Any]] | None:
    """The three runs with the setting that was best on validation; None unless all settings are done."""
    choices = []
    for lr, decay in GRID:
        names = [job(group, row, dataset, noise, lr, decay, seed).name for seed in SEEDS]
        if not all(name in found for name in names):
            return None
        choices.append([found[name] for name in names])
    return max(choices, key=lambda runs: statistics.mean(r["epochs"][-1]["validation_accuracy"] for r in runs))


def _cell(values: Iterable[float]) -> str:
    numbers = [100 * v for v in values]
    return f"{statistics.mean(numbers):.1f} ± {statistics.stdev(numbers):.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=0, help="worker processes; 0 runs nothing")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.jobs:
        everything = jobs()
        print(f"{len(everything)} runs in all, {len(results(everything, FOLDER))} done before", flush=True)
        run_grid(everything, FOLDER, workers=given.jobs, minutes=given.minutes)
    if given.table:
        replace_block(PAGE, "family", table(), "Results on real data")
