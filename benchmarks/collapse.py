"""Does the variance of the rectifying vector collapse without the prior? VRI beside MC at 70 % uniform noise.

    python benchmarks/collapse.py --jobs 2        # goes on where it was stopped
    python benchmarks/collapse.py --table         # docs/results.md, its picture and CSV

Fashion-MNIST, 10,000 noisy + 1,000 clean images, MLP, 20 epochs, k = 1, 2 and 5 draws, 3 seeds; with our bound on the
log-variance, and with the free posterior of the paper's code. Each run has a small file in
benchmarks/results/collapse/.
"""

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vri.experiments.grid import Job, results, run_grid
from vri.experiments.settings import Settings
from vri.report.figures import COLOURS
from vri.report.pages import markdown_table, replace_block

FOLDER = Path(__file__).parent / "results" / "collapse"
DOCS = Path(__file__).parent.parent / "docs"
SEEDS = (0, 1, 2)
DRAWS = (1, 2, 5)
METHODS = ("mc", "vri")
BOUNDS = {"log_var": "log σ² within ±1 (ours)", "prior": "free posterior (the paper's code)"}
STYLES = {1: ":", 2: "--", 5: "-"}


def job(method: str, draws: int, bound: str, seed: int) -> Job:
    settings = Settings(
        dataset="fashion-mnist",
        noise="uniform",
        rate=0.7,
        method=method,
        options={"samples": draws, "bound": bound},
        backbone="mlp",
        epochs=20,
        lr=0.02,
        weight_decay=5e-3,
        clean=1000,
        limit=10_000,
        seed=seed,
    )
    return Job(f"{method}-{draws}-{bound}-{seed}", settings, curves=True)


def jobs() -> list[Job]:
    return [job(m, k, b, seed) for seed in SEEDS for b in BOUNDS for m in METHODS for k in DRAWS]


def runs(method: str, draws: int, bound: str) -> list[dict[str, Any]]:
    wanted = [job(method, draws, bound, seed) for seed in SEEDS]
    return list(results(wanted, FOLDER).values())


def variances(records: list[dict[str, Any]]) -> Any:
    """(seeds, epochs) of ‖σ²‖, divided by √c so that a standard Gaussian has 1."""
    return np.array([[row["variance"] for row in r["epochs"]] for r in records]) / np.sqrt(10)


def table() -> str:
    body = []
    for bound, words in BOUNDS.items():
        for method in METHODS:
            for draws in DRAWS:
                records = runs(method, draws, bound)
                if len(records) < len(SEEDS):
                    continue
                values = variances(records)
                scores = [100 * r["last"] for r in records]
                body.append(
                    [
                        words,
                        method,
                        str(draws),
                        f"{values[:, 0].mean():.3f}",
                        f"{values[:, -1].mean():.3f} ± {values[:, -1].std(ddof=1):.3f}",
                        f"{statistics.mean(scores):.1f} ± {statistics.stdev(scores):.1f}",
                    ]
                )
    lines = [
        "## Does the variance collapse?",
        "",
        "Written by `python benchmarks/collapse.py --table`; the runs by `python benchmarks/collapse.py --jobs 2`. "
        "Fashion-MNIST with 70 % uniform noise, 10,000 noisy + 1,000 clean images, MLP, 20 epochs, 3 seeds. Variance "
        "is ‖σ²‖/√c of the posterior, on average over an epoch: 1 for a standard Gaussian.",
        "",
        markdown_table(
            ["posterior", "method", "k", "variance, first epoch", "variance, last epoch", "test accuracy (%)"], body
        ),
        "",
        "![variance by epoch](results-collapse.png)",
        "",
        "The numbers behind the picture: [results-collapse.csv](results-collapse.csv).",
    ]
    return "\n".join(lines)


def draw() -> None:
    figure = Figure(figsize=(10, 4), layout="constrained", dpi=110)
    rows = []
    for axes, (bound, words) in zip(figure.subplots(1, len(BOUNDS)), BOUNDS.items(), strict=True):
        for method, colour in zip(METHODS, (COLOURS[4], COLOURS[0]), strict=True):
            for draws in DRAWS:
                records = runs(method, draws, bound)
                if not records:
                    continue
                mean = variances(records).mean(0)
                epochs = range(1, len(mean) + 1)
                axes.plot(epochs, mean, color=colour, linestyle=STYLES[draws], label=f"{method}, k = {draws}")
                rows += [[bound, method, draws, e, float(v)] for e, v in zip(epochs, mean, strict=True)]
        axes.set(title=words, xlabel="epoch", ylabel="variance, ‖σ²‖/√c", yscale="log")
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(DOCS / "results-collapse.png")
    with open(DOCS / "results-collapse.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["bound", "method", "k", "epoch", "variance"])
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=0, help="worker processes; 0 runs nothing")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.jobs:
        run_grid(jobs(), FOLDER, workers=given.jobs, minutes=given.minutes)
    if given.table:
        replace_block(DOCS / "results.md", "collapse", table(), "Results on real data")
        draw()
