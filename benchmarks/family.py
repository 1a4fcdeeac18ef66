"""Every method under one protocol: digits and Fashion-MNIST, three kinds of noise, 3 seeds, tuned alike.

    python benchmarks/family.py --jobs 2 --minutes 120        # resumes where it was stopped; also on several machines
    python benchmarks/family.py --time --jobs 2               # one run of each row alone: what the whole grid takes
    python benchmarks/family.py --table                       # the block in docs/results-quick.md

Each run is a line of benchmarks/results/family/runs.jsonl. Every method chooses learning rate and weight decay from the
same small grid, for each data set and noise, by the validation accuracy of the first seed; the other seeds run with
what it chose, and the table has test accuracy of the last epoch. Meta-learning methods stand in two groups: as
published, and all with the same clean gradient γ; some of these also with selected samples beside the clean ones. Some
methods run with the small CNN on Fashion-MNIST as well, with a grid of larger steps.
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from table import RESULTS
from vri.methods import METHODS
from vri.paper.grid import Run, results, run_grid
from vri.paper.report import markdown_table, replace_block
from vri.paper.settings import Settings
from vri.paper.verdicts import p_value

FOLDER = RESULTS / "family"
SECONDS = FOLDER / "seconds"  # one run of each row, timed on a machine that did nothing else
PAGE = Path(__file__).parent.parent / "docs" / "results-quick.md"

SEEDS = (0, 1, 2)
GRID = ((0.02, 5e-3), (0.05, 5e-4))  # learning rate, weight decay
PLACES: dict[str, dict[str, Any]] = {
    "digits": {"clean": 100, "validation": 270, "limit": 1000, "epochs": 70},
    "fashion-mnist": {"clean": 1000, "validation": 5000, "limit": 10_000, "epochs": 10},
}
CNN_DATA = "fashion-mnist, small CNN"
CNN_GRID = ((0.05, 5e-4), (0.1, 5e-4))
WITH_CNN: dict[str, Any] = {"clean": 1000, "validation": 3000, "limit": 10_000, "test_limit": 5000, "epochs": 6}
NOISES = {"flip": 0.4, "uniform": 0.6, "instance": 0.4}
WRONG = {"flip": 0.4, "uniform": 0.54, "instance": 0.4}  # share of wrong labels, for methods that must know it

# γ for all alike, and the label smoothing of the meta loss that belongs to it
WITH: dict[str, Any] = {"clean_weight": 4.0, "clean_updates": 300, "meta_smoothing": 0.1}
WITHOUT: dict[str, Any] = {"clean_weight": 0.0, "meta_smoothing": 0.0}
# VRI and its kin as published: what our defaults change besides γ
# (measured when the meta networks of all rows were as wide as the paper's, hidden=(1024, 512))
PAPER: dict[str, Any] = {"initial_mean": 0.0, "normalize": False, "meta_amsgrad": False, "meta_every": 1}
KIN = {"vri": {**PAPER, "samples": 2}, "mc": {**PAPER, "samples": 2}, "non-bayesian": PAPER}
META = ("l2rw", "mw-net", "pmw-net", "mlc", "mslc", "warpi", "mc", "non-bayesian", "vri-literal", "vri")

# group: row: (method, options, other settings)
Variant = tuple[str, dict[str, Any], dict[str, Any]]
GROUPS: dict[str, dict[str, Variant]] = {
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
    "clean samples, meta-learning without γ": {name: (name, {**WITHOUT, **KIN.get(name, {})}, {}) for name in META},
    "clean samples, meta-learning with γ": {
        **{name: (name, WITH, {}) for name in META},
        "vri-literal": ("vri-literal", {**WITH, "meta_every": 2}, {}),  # as often as VRI
        **{
            f"{name} with selected samples": (name.lower(), WITH, {"join_selected": True})
            for name in ("L2RW", "MW-Net", "MSLC", "VRI")
        },
    },
}
CNN = {  # row: group
    "cross-entropy": "no clean samples",
    "VRI (+)": "no clean samples",
    "mw-net": "clean samples, meta-learning with γ",
    "mslc": "clean samples, meta-learning with γ",
    "vri": "clean samples, meta-learning with γ",
    "VRI with selected samples": "clean samples, meta-learning with γ",
}

READING = """What we conclude. With γ, which every method here can use, VRI and MC are indistinguishable, and both are
ahead of the same networks without draws: in such short training the draws help, not the prior. VRI is ahead of MW-Net
and, on average, of GLC and fine-tuning. It is level with L2RW, which wins on Fashion-MNIST and loses under uniform
noise on digits, and 0.8 points behind MSLC, in 16 of 18 runs. The reason is the start: MSLC trains plainly for two
thirds of the time, while VRI trusts no noisy label until its networks have learned to. Adding selected samples to the
few clean ones helps: MW-Net and VRI by a point or more, L2RW and MSLC by a little. With them, VRI and MSLC are level at
the top of the table. Without γ, as published, L2RW is clearly the best: it has no network to train, and the others have
too few steps for theirs. Without clean samples VRI (+) is ahead of all others on average, though ELR and symmetric
cross-entropy are better in some columns, mainly under uniform noise; it is 1.6 points behind VRI with clean samples."""

CNN_READING = """With clean samples all methods are within a point, except MSLC, whose plain start hurts under uniform
noise. MW-Net, which adds the clean gradient in each step, is 0.4 points ahead of VRI, which does so in every second;
with selected samples VRI is the best of these rows. VRI (+) is five points ahead of cross-entropy and five behind VRI,
more than with the MLP: 600 steps, the first 100 of them warm-up, are too few for it. It has not fitted the noise: about
nine in ten of its selected labels are right, and only 2 to 7 % of the wrong labels are memorised."""

_NONE, _CLEAN, _WITHOUT, _WITH = GROUPS
ORDERS = [
    *(
        ((group, row), (group, other))
        for group in (_WITHOUT, _WITH)
        for row, other in (
            ("vri", "mc"),
            ("mc", "non-bayesian"),
            ("vri", "mw-net"),
            ("vri", "l2rw"),
            ("vri", "mslc"),
            ("vri", "warpi"),
        )
    ),
    ((_WITH, "vri"), (_CLEAN, "glc")),
    ((_WITH, "vri"), (_CLEAN, "fine-tuned")),
    ((_WITH, "vri"), (_NONE, "VRI (+)")),
    *(((_NONE, "VRI (+)"), (_NONE, other)) for other in ("VRI (−)", "elr", "co-teaching", "sce")),
    *(
        ((_WITH, "VRI with selected samples"), (_WITH, other))
        for other in (
            "vri",
            "mslc",
            *(f"{name} with selected samples" for name in ("L2RW", "MW-Net", "MSLC")),
        )
    ),
]


def tuning() -> list[Run]:
    """All settings of the grid with the first seed, the most telling rows first."""
    return [
        run_of(group, row, dataset, noise, setting, SEEDS[0])
        for group, row in places()
        for dataset in datasets(group, row)
        for noise in NOISES
        for setting in grid(dataset)
    ]


def datasets(group: str, row: str) -> list[str]:
    return [*PLACES, *([CNN_DATA] if CNN.get(row) == group else [])]


def grid(dataset: str) -> tuple[tuple[float, float], ...]:
    return CNN_GRID if dataset == CNN_DATA else GRID


def rest(found: dict[str, dict[str, Any]]) -> list[Run]:
    """The other seeds with the settings that were chosen; rows whose tuning is done."""
    return [
        run_of(group, row, dataset, noise, setting, seed)
        for group, row in places()
        for dataset in datasets(group, row)
        for noise in NOISES
        if (setting := chosen(found, group, row, dataset, noise)) is not None
        for seed in SEEDS[1:]
    ]


def places() -> list[tuple[str, str]]:
    telling = (
        "vri",
        "mc",
        "non-bayesian",
        "mw-net",
        "l2rw",
        "glc",
        "fine-tuned",
        "VRI (+)",
        "VRI with selected samples",
    )
    found = [(group, row) for group, rows in GROUPS.items() for row in rows]
    return sorted(found, key=lambda place: place[1] not in telling)


def chosen(
    found: dict[str, dict[str, Any]], group: str, row: str, dataset: str, noise: str
) -> tuple[float, float] | None:
    """The setting that was best on the validation samples of the first seed; None unless all were tried."""
    scores = {}
    for setting in grid(dataset):
        result = found.get(run_of(group, row, dataset, noise, setting, SEEDS[0]).key)
        if result is None:
            return None
        scores[setting] = 0.0 if "failed" in result else result["epochs"]["validation_accuracy"][-1]
    return max(scores, key=lambda setting: float(scores[setting]))


def run_of(group: str, row: str, dataset: str, noise: str, setting: tuple[float, float], seed: int) -> Run:
    method, options, more = GROUPS[group][row]
    lr, decay = scaled(method, setting)
    name, _, network = dataset.partition(", ")
    options = {name: WRONG[noise] if value == "wrong" else value for name, value in options.items()}
    place = WITH_CNN if network else PLACES[name]
    settings = Settings(
        **{
            "dataset": name,
            "noise": noise,
            "rate": NOISES[noise],
            "method": method,
            "options": options,
            "backbone": "small_cnn" if network else "mlp",
            "lr": lr,
            "weight_decay": decay,
            "seed": seed,
            **place,
            **more,
            "evaluate_every": place["epochs"],  # the last epoch counts, and evaluating all takes a tenth of the time
        }
    )
    return Run(settings)


def scaled(method: str, setting: tuple[float, float]) -> tuple[float, float]:
    """Learning rate and weight decay of a method at this point of the grid."""
    scale = METHODS[method].rate_scale
    return round(setting[0] * scale, 6), round(setting[1] / scale, 8)


def taken() -> dict[tuple[str, str, str], float]:
    """Seconds of a run of each row on each data set."""
    timed = {(group, row, name): one(group, row, name) for group, row in places() for name in datasets(group, row)}
    found = results(list(timed.values()), SECONDS)
    return {place: float(found[run.key]["seconds"]) for place, run in timed.items() if run.key in found}


def one(group: str, row: str, dataset: str) -> Run:
    """The run by which a row is timed."""
    return run_of(group, row, dataset, "uniform", grid(dataset)[0], SEEDS[0])


def hours() -> str:
    """What the whole grid takes."""
    count, total = 0, 0.0
    for (_, _, dataset), seconds in taken().items():
        runs = len(NOISES) * (len(grid(dataset)) + len(SEEDS) - 1)
        count, total = count + runs, total + runs * seconds
    return f"{count:,} runs take {total / 7200:.2f} hours of two cores"


def rates() -> dict[str, dict[str, tuple[float, float]]]:
    """By data set and method, the setting that is best on average over the noises: for `vri reproduce`."""
    found = results(tuning(), FOLDER)
    best: dict[str, dict[str, tuple[float, float]]] = {}
    for group, row in places():
        method = GROUPS[group][row][0]
        if group.endswith("without γ") or method != row:
            continue
        for dataset in PLACES:
            runs = {
                setting: [found.get(run_of(group, row, dataset, noise, setting, SEEDS[0]).key) for noise in NOISES]
                for setting in GRID
            }
            means = {
                setting: statistics.mean(0.0 if "failed" in r else r["epochs"]["validation_accuracy"][-1] for r in done)
                for setting, each in runs.items()
                if len(done := [r for r in each if r is not None]) == len(NOISES)
            }
            if len(means) == len(GRID):
                chosen_one = max(means, key=lambda s: float(means[s]))
                best.setdefault(f"{dataset}, mlp", {})[method] = scaled(method, chosen_one)
    return best


def table() -> str:
    found = results(tuning(), FOLDER)
    found |= results(rest(found), FOLDER)
    lines = [
        "## The family, one protocol",
        "",
        "Written by `python benchmarks/family.py --table`; the runs by `python benchmarks/family.py --jobs 2`, which "
        "resumes where it stopped.",
        "",
        "digits: 1,000 noisy + 100 clean samples, 70 epochs; Fashion-MNIST: 10,000 noisy + 1,000 clean, 10 epochs; "
        "MLP, batches of 100. Test accuracy in % of the last epoch, mean ± sd over 3 seeds; learning rate and weight "
        f"decay of every method chosen from {', '.join(map(str, GRID))} on the validation split of the first seed, for "
        "each column (JoCoR, whose loss is a tenth as large, has ten times these rates and a tenth of the decay). "
        f"Seconds: one run on one core, mean over the data sets. {hours()}: one run of each row and data set was "
        "timed on an otherwise idle machine (`--time`) and counted once for each of its runs.",
    ]
    for group, rows in GROUPS.items():
        lines += _group(found, group, list(rows), list(PLACES), group)
    lines += _selection(found)
    lines += _orders(found)
    lines += ["", "### The small CNN", ""]
    lines += [
        "Fashion-MNIST, 10,000 noisy + 1,000 clean, 6 epochs, 5,000 test images; settings chosen likewise from "
        f"{', '.join(map(str, CNN_GRID))}."
    ]
    body: list[list[str]] = []
    for row, group in CNN.items():
        body += _rows(found, group, [row], [CNN_DATA])
    lines += ["", markdown_table(["method", *NOISES, "mean", "seconds"], body), "", CNN_READING] if body else []
    lines += [
        "",
        "### What a step costs",
        "",
        "Time and peak memory of a training step, cross-entropy = 1: ResNet-32, batches of 100, two CPU cores, each "
        "method with its defaults; `vri bench --methods` measured it.",
        "",
        markdown_table(
            ["method", "time", "memory"],
            [[name, *map(str, method.cost or ("not measured", ""))] for name, method in METHODS.items()],
        ),
    ]
    return "\n".join(lines)


def _group(found: dict[str, dict[str, Any]], group: str, rows: list[str], datasets: list[str], title: str) -> list[str]:
    body = _rows(found, group, rows, datasets)
    if not body:
        return []
    header = ["method", *(f"{d}, {n}" for d in datasets for n in NOISES), "mean", "seconds"]
    return ["", f"**{title.capitalize()}**", "", markdown_table(header, body)]


def _selection(found: dict[str, dict[str, Any]]) -> list[str]:
    """What the selection of VRI (+) costs and yields."""
    words = []
    for dataset, settings in PLACES.items():
        runs = [
            run_of("no clean samples", "VRI (+)", dataset, noise, setting, s)
            for noise in NOISES
            for setting in GRID
            for s in SEEDS
        ]
        ends = [found[r.key]["epochs"] for r in runs if r.key in found and "failed" not in found[r.key]]
        if ends:
            share = statistics.mean(e["selection_seconds"][-1] * settings["epochs"] / e["seconds"][-1] for e in ends)
            purity = statistics.mean(e["selection_purity"][-1] for e in ends)
            words.append(f"{100 * share:.1f} % and {100 * purity:.1f} % on {dataset}")
    if not words:
        return []
    told = "its share of the epoch's time, and the share of right labels among the selected samples at the end"
    return ["", f"VRI (+) selects half of the samples, by one forward pass per epoch; {told}: {'; '.join(words)}."]


def _rows(found: dict[str, dict[str, Any]], group: str, rows: list[str], datasets: list[str]) -> list[list[str]]:
    body = []
    timed = taken()
    for row in rows:
        cells, last = [], []
        for dataset in datasets:
            for noise in NOISES:
                runs = _runs(found, group, row, dataset, noise)
                cells.append(_cell([r["last"] for r in runs]) if len(runs) == len(SEEDS) else "–")
                last += [100 * statistics.mean(r["last"] for r in runs)] if runs else []
        if last:
            mean = "–" if "–" in cells else f"{statistics.mean(last):.1f}"
            seconds = statistics.mean(timed[group, row, dataset] for dataset in datasets)
            body.append([row, *cells, mean, f"{seconds:.1f}"])
    return body


def _runs(found: dict[str, dict[str, Any]], group: str, row: str, dataset: str, noise: str) -> list[dict[str, Any]]:
    """Those of all seeds with the setting that was chosen, but for those that diverged."""
    setting = chosen(found, group, row, dataset, noise)
    keys = [] if setting is None else [run_of(group, row, dataset, noise, setting, seed).key for seed in SEEDS]
    return [found[key] for key in keys if key in found and "failed" not in found[key]]


def _orders(found: dict[str, dict[str, Any]]) -> list[str]:
    """The orders that were expected, and what came out."""
    body = []
    for (group, row), (other_group, other) in ORDERS:
        pairs = []
        for dataset in PLACES:
            for noise in NOISES:
                ours, theirs = (_runs(found, g, r, dataset, noise) for g, r in ((group, row), (other_group, other)))
                if len(ours) == len(theirs) == len(SEEDS):
                    pairs += [(100 * a["last"], 100 * b["last"]) for a, b in zip(ours, theirs, strict=True)]
        if len(pairs) == len(PLACES) * len(NOISES) * len(SEEDS):
            left, right = (list(side) for side in zip(*pairs, strict=True))
            ahead = sum(a > b for a, b in pairs)
            gain = f"{statistics.mean(left) - statistics.mean(right):+.2f}"
            body.append(
                [
                    _full(group, row),
                    _full(other_group, other),
                    gain,
                    f"{ahead} of {len(pairs)}",
                    f"{p_value(left, right):.2g}",
                ]
            )
    if not body:
        return []
    words = (
        "Difference in points averaged over all columns and seeds, in how many of these runs the first is ahead, "
        "and the p-value of a paired t-test."
    )
    return [
        "",
        "### Who is ahead",
        "",
        READING,
        "",
        words,
        "",
        markdown_table(["", "against", "difference", "ahead", "p"], body),
    ]


def _full(group: str, row: str) -> str:
    return f"{row}, {' '.join(group.split()[-2:])}" if group.endswith("γ") else row


def _cell(values: Iterable[float]) -> str:
    numbers = [100 * v for v in values]
    return f"{statistics.mean(numbers):.1f} ± {statistics.stdev(numbers):.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0 runs nothing")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--time", action="store_true", help="time one run of each row instead of the grid")
    parser.add_argument("--table", action="store_true")
    parser.add_argument(
        "--rates", action="store_true", help="print the chosen settings, for the catalogue of `vri reproduce`"
    )
    given = parser.parse_args()
    if given.time:
        timed = [one(group, row, dataset) for group, row in places() for dataset in datasets(group, row)]
        run_grid(timed, SECONDS, processes=given.jobs or 1)
        print(hours())
    elif given.jobs:
        tuned = tuning()
        print(f"{len(tuned)} runs to choose settings, {len(results(tuned, FOLDER))} done before", flush=True)
        start = time.monotonic()
        if run_grid(tuned, FOLDER, processes=given.jobs, minutes=given.minutes):
            others = rest(results(tuned, FOLDER))
            print(f"{len(others)} runs with them, {len(results(others, FOLDER))} done before", flush=True)
            left = given.minutes - (time.monotonic() - start) / 60
            run_grid(others, FOLDER, processes=given.jobs, minutes=max(left, 0.0))
    if given.rates:
        print(rates())
    if given.table:
        replace_block(PAGE, "family", table(), "Results on real data")
