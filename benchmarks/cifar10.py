"""VRI beside cross-entropy and clean-only on real CIFAR-10: a slice, ResNet-32, a short schedule.

    vri data get cifar10n                                     # CIFAR-10 and its human labels
    python benchmarks/cifar10.py --seeds 1                    # goes on where it was stopped
    python benchmarks/cifar10.py --table                      # docs/results.md, its picture and CSV

Each run is one `vri train` in a folder of its own under --runs; its small record is kept in
benchmarks/results/cifar10/. A run that is there is not done again.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vri.paper.drawing import accuracy_curves, colours
from vri.paper.pages import replace_block

RESULTS = Path(__file__).parent / "results" / "cifar10"
DOCS = Path(__file__).parent.parent / "docs"
LABELS = {("cifar10", "flip"): "flip 40 %", ("cifar10n", "worse"): 'CIFAR-10N "worse"'}
METHODS = ("vri", "cross-entropy", "clean-only")
COMMON = ["--backbone", "resnet32", "--epochs", "12", "--limit", "10000", "clean=1000", "test_limit=5000"]


def command(dataset: str, noise: str, method: str, seed: int) -> list[str]:
    rate = ["--rate", "0.4"] if noise == "flip" else []
    return ["--dataset", dataset, "--noise", noise, *rate, "--method", method, *COMMON, "--seed", str(seed)]


def run_all(seeds: int, folder: Path, root: str | None, only: str | None) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        for method in METHODS:
            for dataset, noise in LABELS:
                name = f"{dataset}-{noise}-{method}-{seed}"
                same = method == "clean-only" and noise != "flip"  # it never sees the noisy labels
                if same or (RESULTS / f"{name}.json").exists() or (only and only not in name):
                    continue
                print(f"{name}:", flush=True)
                arguments = [*command(dataset, noise, method, seed), "--out", str(folder / name), "--resume"]
                arguments += ["--root", root] if root else []
                subprocess.run([sys.executable, "-m", "vri", "train", *arguments], check=True)
                record = json.loads((folder / name / "record.json").read_text())
                record["settings"]["root"] = None  # where the files lay is nobody's business
                (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1))


def read() -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        s = record["settings"]
        found.setdefault((s["dataset"], s["noise"], s["method"]), []).append(record)
    return found


def cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def table() -> str:
    found = read()
    lines = [
        "## CIFAR-10, a slice and a short schedule",
        "",
        "Written by `python benchmarks/cifar10.py --table` from the records in `benchmarks/results/cifar10/`.",
        "",
        "10,000 noisy and 1,000 clean training images, 5,000 test images, ResNet-32, 12 epochs (1,200 steps), batches "
        "of 100, SGD with learning rate 0.02, momentum 0.9, weight decay 0.0005, cosine schedule, crop and flip; VRI "
        "with its defaults. The same settings for every method: none was tuned here. These are no reproductions of "
        "the paper, which trains on all images for 160 epochs.",
        "",
        "| labels | method | last epoch | mean of the last 10 | wrong labels memorised | seeds | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for (dataset, noise), label in LABELS.items():
        for method in METHODS:
            records = found.get((dataset, noise, method), [])
            if not records:
                continue
            memorised = [r["epochs"][-1]["memorised"] for r in records]
            lines.append(
                f"| {label} | {method} | {cell([r['last'] for r in records])} | "
                f"{cell([r['last_10_mean'] for r in records])} | {cell(memorised)} % | {len(records)} | "
                f"{statistics.mean(r['seconds'] for r in records):.0f} |"
            )
    lines += [
        "",
        "Test accuracy in %. Memorised: of the wrongly labelled training images, those that are predicted as their "
        "wrong label in the end. Clean-only never sees the noisy labels, so it has one row for both. Seconds are no "
        "comparison: the runs shared the machine with others, most of them on one thread; `vri bench` measures speed.",
        "",
        "![test accuracy by epoch](results-cifar10.png)",
        "",
        "The numbers behind the picture: [results-cifar10.csv](results-cifar10.csv). The commands, one for each run, "
        "and the hash of the noisy labels:",
        "",
    ]
    for (dataset, noise, method), records in found.items():
        for record in records:
            words = " ".join(command(dataset, noise, method, record["settings"]["seed"]))
            lines.append(f"    vri train {words} --out runs/…   # noise {record['noise_hash'][:12]}")
    return "\n".join(lines) + "\n"


def draw() -> None:
    found = read()
    with open(DOCS / "results-cifar10.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["labels", "method", "seed", "epoch", "test_accuracy"])
        for (dataset, noise, method), records in found.items():
            for r in records:
                rows = [(e["epoch"], e["test_accuracy"]) for e in r["epochs"]]
                label = LABELS[dataset, noise]
                writer.writerows([label, method, r["settings"]["seed"], epoch, score] for epoch, score in rows)
    figure = Figure(figsize=(10, 4.2), layout="constrained", dpi=110)
    panels = figure.subplots(1, len(LABELS), sharey=True)
    for axes, (place, label) in zip(panels, LABELS.items(), strict=True):
        curves = {
            m: np.array([[e["test_accuracy"] for e in r["epochs"]] for r in found[(*place, m)]])
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
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--root")
    parser.add_argument("--only", help="only runs with this in their name")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.seeds:
        run_all(given.seeds, given.runs, given.root, given.only)
    if given.table:
        replace_block(DOCS / "results.md", "cifar10", table(), "Results on real data")
        draw()
