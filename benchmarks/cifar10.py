"""VRI beside cross-entropy and clean-only on real CIFAR-10: a slice, ResNet-32, a short schedule.

    vri data get cifar10n                                     # CIFAR-10 and its human labels
    python benchmarks/cifar10.py --seeds 1                    # resumes where it was stopped
    python benchmarks/cifar10.py --table                      # docs/results-quick.md, its picture and CSV

Each run is a line of benchmarks/results/cifar10/runs.jsonl. A run that is there is not done again.
"""

import argparse
import csv
import statistics
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from table import RESULTS, read
from vri.paper.grid import TABLE, Run, run_grid
from vri.paper.plots import accuracy_curves, colours
from vri.paper.report import replace_block
from vri.paper.runs import Record
from vri.paper.settings import Settings

FOLDER = RESULTS / "cifar10"
DOCS = Path(__file__).parent.parent / "docs"
LABELS = {("cifar10", "flip"): "flip 40 %", ("cifar10n", "worse"): 'CIFAR-10N "worse"'}
METHODS = ("vri", "cross-entropy", "clean-only")
SETTINGS: Record = {"backbone": "resnet32", "epochs": 12, "limit": 10_000, "clean": 1000, "test_limit": 5000}


def runs(seeds: int, root: str | None = None) -> list[Run]:
    return [
        Run(
            Settings(**{"dataset": dataset, "noise": noise, "method": method, "seed": seed, "root": root, **SETTINGS}),
            True,
        )
        for seed in range(seeds)
        for method in METHODS
        for dataset, noise in LABELS
        if method != "clean-only" or noise == "flip"  # it never sees the noisy labels
    ]


def command(settings: Record) -> str:
    """The same run by `vri train`."""
    rate = f" --rate {settings['rate']}" if settings["noise"] == "flip" else ""
    return (
        f"vri train --dataset {settings['dataset']} --noise {settings['noise']}{rate} --method {settings['method']} "
        "--backbone resnet32 --epochs 12 --limit 10000 clean=1000 test_limit=5000 "
        f"--seed {settings['seed']} --out runs/…"
    )


def records() -> dict[tuple[str, str, str], list[Record]]:
    found: dict[tuple[str, str, str], list[Record]] = {}
    for row in read(FOLDER / TABLE):
        found.setdefault((row["dataset"], row["noise"], row["method"]), []).append(row)
    return dict(sorted(found.items()))


def cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def table() -> str:
    found = records()
    lines = [
        "## CIFAR-10, a slice and a short schedule",
        "",
        "Written by `python benchmarks/cifar10.py --table` from `benchmarks/results/cifar10/runs.jsonl`.",
        "",
        "10,000 noisy and 1,000 clean training images, 5,000 test images, ResNet-32, 12 epochs (1,200 steps), batches "
        "of 100, SGD with learning rate 0.02, momentum 0.9, weight decay 0.0005, cosine schedule, crop and flip; VRI "
        "with its defaults. Every method has the same settings; none was tuned here. This does not reproduce "
        "the paper, which trains on all images for 160 epochs.",
        "",
        "| labels | method | last epoch | mean of the last 10 | wrong labels memorised | seeds | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for (dataset, noise), label in LABELS.items():
        for method in METHODS:
            own = found.get((dataset, noise, method), [])
            if not own:
                continue
            memorised = [r["epochs"]["memorised"][-1] for r in own]
            lines.append(
                f"| {label} | {method} | {cell([r['last'] for r in own])} | "
                f"{cell([r['last_10_mean'] for r in own])} | {cell(memorised)} % | {len(own)} | "
                f"{statistics.mean(r['seconds'] for r in own):.0f} |"
            )
    lines += [
        "",
        "Test accuracy in %. Memorised: share of the wrongly labelled training images that are predicted as their "
        "wrong label in the end. Clean-only never sees the noisy labels, so it has one row for both. Don't compare "
        "seconds: the runs shared the machine with others, most of them on one thread; `vri bench` measures speed.",
        "",
        "![test accuracy by epoch](results-cifar10.png)",
        "",
        "The numbers behind the picture: [results-cifar10.csv](results-cifar10.csv). The commands, one per run, "
        "and the hash of the noisy labels:",
        "",
    ]
    for own in found.values():
        lines += [f"    {command(r['settings'])}   # noise {r['noise_hash'][:12]}" for r in own]
    return "\n".join(lines) + "\n"


def draw() -> None:
    found = records()
    with open(DOCS / "results-cifar10.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["labels", "method", "seed", "epoch", "test_accuracy"])
        for (dataset, noise, method), own in found.items():
            for r in own:
                rows = zip(r["epochs"]["epoch"], r["epochs"]["test_accuracy"], strict=True)
                label = LABELS[dataset, noise]
                writer.writerows([label, method, r["seed"], epoch, score] for epoch, score in rows)
    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=110)
    panels = figure.subplots(1, len(LABELS), sharey=True)
    for axes, (place, label) in zip(panels, LABELS.items(), strict=True):
        curves = {
            m: np.array([r["epochs"]["test_accuracy"] for r in found[(*place, m)]])
            for m in METHODS
            if (*place, m) in found
        }
        accuracy_curves(axes, curves, colours(list(METHODS)))
        axes.set_title(label if "CIFAR" in label else f"CIFAR-10, {label}")
    panels[0].legend(loc="lower right", frameon=False)
    figure.savefig(DOCS / "results-cifar10.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1, with all cores)")
    parser.add_argument("--root", help="folder with the data set's files")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.seeds:
        run_grid(runs(given.seeds, given.root), FOLDER, processes=given.jobs)
    if given.table:
        replace_block(DOCS / "results-quick.md", "cifar10", table(), "Quick scale: a smoke test")
        draw()
