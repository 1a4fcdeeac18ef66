"""Do meta networks whose width follows the features lose anything against the paper's 1024-512?

    python benchmarks/meta_width.py --jobs 2 --minutes 60     # resumes where it was stopped
    python benchmarks/meta_width.py --table                   # docs/defaults.md has it, written by defaults.py

VRI with its defaults in the protocol of family.py (digits and Fashion-MNIST, MLP, three kinds of noise), 5 seeds,
learning rate and decay as chosen there, judged by validation accuracy of the last epoch.
"""

import argparse
import statistics
from typing import Any

from family import NOISES, PLACES
from table import RESULTS
from vri.methods import VRI
from vri.paper.grid import Run, results, run_grid
from vri.paper.report import markdown_table
from vri.paper.settings import Settings
from vri.paper.verdicts import p_value

FOLDER = RESULTS / "meta_width"
SEEDS = range(5)
WIDTHS: dict[str, dict[str, Any]] = {
    "1024-512 (paper)": {"hidden": [1024, 512]},
    "256-128, meta_lr 1.2e-3 (default)": {"hidden": [256, 128], "meta_lr": 1.2e-3},
    "256-128, meta_lr 6e-4": {"hidden": [256, 128], "meta_lr": 6e-4},
    "256-128": {"hidden": [256, 128]},
    "512, meta_lr 6e-4": {"hidden": [512], "meta_lr": 6e-4},
    "512": {"hidden": [512]},
    "64-32": {"hidden": [64, 32]},
}
RATES = {"digits": VRI.tuned.digits_mlp, "fashion-mnist": VRI.tuned.fashion_mlp}


def runs() -> dict[tuple[str, str, str, int], Run]:
    return {
        (width, data, noise, seed): Run(
            Settings(
                dataset=data,
                noise=noise,
                rate=NOISES[noise],
                method="vri",
                backbone="mlp",
                lr=RATES[data][0],
                weight_decay=RATES[data][1],
                seed=seed,
                evaluate_every=PLACES[data]["epochs"],
                options=options,
                **PLACES[data],
            )
        )
        for seed in SEEDS
        for data in PLACES
        for noise in NOISES
        for width, options in WIDTHS.items()
    }


def table() -> str:
    every = runs()
    done = results(list(every.values()), FOLDER)
    scores = {
        key: 100 * done[run.key]["epochs"]["validation_accuracy"][-1] for key, run in every.items() if run.key in done
    }
    first, lines = next(iter(WIDTHS)), []
    for width in WIDTHS:
        cells = [width]
        for data in PLACES:
            for noise in NOISES:
                found = [scores[width, data, noise, seed] for seed in SEEDS if (width, data, noise, seed) in scores]
                cells.append(f"{statistics.mean(found):.1f} ± {statistics.stdev(found):.1f}" if len(found) > 1 else "–")
        both = [k[1:] for k in scores if k[0] == width and (first, *k[1:]) in scores]
        ours, theirs = ([scores[which, *k] for k in both] for which in (width, first))
        difference = statistics.mean(ours) - statistics.mean(theirs) if both else 0.0
        cells.append(
            "" if width == first else f"{difference:+.2f} ({len(both)} pairs, p = {p_value(ours, theirs):.2f})"
        )
        lines.append(cells)
    return markdown_table(["hidden widths", *(f"{d}, {n}" for d in PLACES for n in NOISES), "difference"], lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        run_grid(list(runs().values()), FOLDER, processes=options.jobs, minutes=options.minutes)
    print(table())
