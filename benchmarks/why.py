"""Why VRI does what it does: the runs behind docs/why.md.

    python benchmarks/why.py --minutes 60          # about six hours of one core; resumes where it was stopped
    python benchmarks/why.py --table               # the tables and the figure of docs/why.md

Fashion-MNIST, 20,000 noisy + 1,000 trusted images, an MLP, 40 epochs (8,000 steps), learning rate 0.02, decay 0.005;
accuracy on 5,000 validation images. Each run is a line of benchmarks/results/why.jsonl. The parts "long" and "search"
are on digits instead, 500 epochs: runs of the first belong to `vri reproduce tab:flip --scale medium`, those of the
second lie in benchmarks/results/search/.
"""

import argparse
import csv
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import vri
from table import RESULTS, Row, fill, read
from vri.methods import METHODS, VRI, Method
from vri.methods.dividemix import DivideMix
from vri.methods.vri_dividemix import VRIDivideMix
from vri.paper.catalogue import EXPERIMENTS
from vri.paper.grid import TABLE as RUNS
from vri.paper.grid import Run, run_grid
from vri.paper.report import markdown_table, replace_block
from vri.paper.runs import RunTable
from vri.paper.verdicts import p_value
from vri.training.selection import Selection

TABLE = RESULTS / "why.jsonl"
NOT_YET = "Not run yet."
DOCS = Path(__file__).parent.parent / "docs"
SEARCHED = RESULTS / "search"
MEDIUM = DOCS / "results" / "medium"
SEEDS = (0, 1, 2)
NOISES = {"flip": 0.4, "uniform": 0.6}
EVERY = {**NOISES, "instance": 0.4}
LOOKS = (1, 5, 10, 20, 40)  # epochs after which the vectors are looked at
GROUPS = ("right", "wrong", "open set")

# part: name: settings
VECTORS: list[Row] = [{"squash": "sigmoid"}, {"squash": "tanh", "initial_mean": 0.0}]
DRAWS: dict[str, Row] = {
    "defaults": {},
    "100 trusted": {"trusted": 100},
    "70 % noise": {"rate": 0.7},
    "one draw": {"samples": 1},
    "ten draws": {"samples": 10},
    "free variance": {"bound": "none"},
    "λ = 0.1": {"kl_weight": 0.1},
}
FORMS = {
    "VRI": "vri",
    "the matrix alone": "vri-transition",
    "VRI with the matrix": "vri-transition",
    "the teacher alone": "vri-teacher",
    "VRI with the teacher": "vri-teacher",
}
INSIDE = {
    "DivideMix": "dividemix",
    "DivideMix's labels, trusted samples, vectors of ones": "vri-dividemix",
    "VRI in DivideMix": "vri-dividemix",
}
# likewise on digits: settings of the run, and options of the method
SEARCH: dict[str, tuple[Row, Row]] = {
    "defaults": ({}, {}),
    "20 trusted": ({"clean": 20, "meta_batch_size": 20}, {}),
    "60 % noise": ({"rate": 0.6}, {}),
    "one draw": ({}, {"samples": 1}),
    "ten draws": ({}, {"samples": 10}),
    "free variance": ({}, {"bound": "none"}),
    "λ = 0.1": ({}, {"kl_weight": 0.1}),
    "rate 0.05, decay 0.0005": ({"lr": 0.05, "weight_decay": 5e-4}, {}),
}
MANY = range(5)  # seeds of the search
LONG = ("non-Bayesian", "MC", "VRI")  # rows of tab:flip, in 500 epochs on digits
TRUSTED = (
    "random",
    "smallest losses, right labels",
    "smallest losses, given labels",
    "random, as impure",
    "half of all",
)


def runs() -> list[Row]:
    every: list[Row] = [
        {"part": "vectors", "noise": noise, "seed": 0, **options} for noise in NOISES for options in VECTORS
    ]
    every += [
        {"part": "matrix", "noise": noise, "form": form, "method": method, "seed": seed}
        for seed in SEEDS
        for noise in EVERY
        for form, method in FORMS.items()
    ]
    every += [
        {"part": "inside", "noise": noise, "form": form, "method": method, "seed": seed}
        for seed in SEEDS
        for noise in NOISES
        for form, method in INSIDE.items()
    ]
    every += [
        {"part": "gap", "noise": noise, "trust": kind, "seed": seed}
        for seed in SEEDS
        for noise in NOISES
        for kind in TRUSTED
    ]
    every += [
        {"part": "draws", "noise": "flip", "setting": name, "method": method, "seed": seed, **changes}
        for seed in SEEDS
        for name, changes in DRAWS.items()
        for method in ("mc", "vri")
    ]
    return every


def long_runs() -> dict[tuple[str, str], list[Run]]:
    """Row and schedule: one run for each seed. They are among the runs of `vri reproduce tab:flip --scale medium`."""
    experiment = EXPERIMENTS["tab:flip"]
    grid = experiment.grids["medium"]
    column = next(c for c in grid.columns if c.label == "digits, flip 40 %")
    rows = {row.label: row for row in grid.rows}
    return {
        (name, choice): [experiment.run(grid, rows[name], column, seed, None, choice) for seed in SEEDS]
        for choice, changes in column.choices.items()
        if changes["epochs"] == 500
        for name in LONG
    }


def search_runs() -> dict[tuple[str, str], list[Run]]:
    """Setting and method: one run for each seed, from those of the long part at the smaller learning rate."""
    bases = {name: runs[0].settings for (name, choice), runs in long_runs().items() if choice.endswith("0.02")}
    every: dict[tuple[str, str], list[Run]] = {}
    for setting, (changes, options) in SEARCH.items():
        for name in ("MC", "VRI"):
            own = {k: v for k, v in options.items() if k != "kl_weight" or name == "VRI"}
            chosen = replace(bases[name], **changes, options={**bases[name].options, **own})
            every[setting, name] = [Run(replace(chosen, seed=seed)) for seed in MANY]
    return every


class Data:
    """Images, noisy and right labels, and which images are not clothes at all."""

    def __init__(self, noise: str, rate: float, seed: int, trusted: int, open_set: int = 0) -> None:
        images = vri.data.load("fashion-mnist")
        sizes = {"clean": trusted, "validation": 5000, "train": 20_000}
        parts = vri.data.split(images.train_y, sizes=sizes, num_classes=10, seed=seed)
        x = vri.data.to_float(images.train_x, images.mean, images.std)
        drawn = vri.noise.NOISES[noise](images.train_x, images.train_y, num_classes=10, rate=rate, seed=seed)
        train = parts["train"]
        self.x, self.given, self.right = x[train], drawn.labels[train], images.train_y[train]
        self.trusted = (x[parts["clean"]], images.train_y[parts["clean"]])
        self.validation = (x[parts["validation"]], images.train_y[parts["validation"]])
        self.open = torch.zeros(len(train), dtype=torch.bool)
        if open_set:  # handwritten digits, enlarged, with the label of the clothes they replace
            digits = vri.data.load("digits")
            strange = vri.data.to_float(digits.train_x[:open_set], images.mean, images.std)
            self.x[:open_set] = F.interpolate(strange, size=28, mode="bilinear")
            self.open[:open_set] = True


def build(name: str, seed: int, **options: Any) -> Method:
    model = vri.backbones.mlp(784, 10, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-3)
    generator = torch.Generator().manual_seed(seed)
    options = {"hidden": "auto", "meta_lr": 1.2e-3, **options}
    if METHODS[name] is DivideMix:
        options = {}
    elif METHODS[name] is VRIDivideMix:
        options = {"rectification": options}
    return METHODS[name](model, 10, optimizer, generator=generator, **options)


def measure(run: Row) -> Row:
    """Train, and look."""
    known = {"part", "noise", "seed", "trust", "setting", "form", "method", "trusted", "rate"}
    options = {k: v for k, v in run.items() if k not in known}
    if run.get("method") == "mc":
        options.pop("kl_weight", None)
    alone = str(run.get("form")).endswith(("alone", "vectors of ones"))
    if alone:
        options["initial_mean"] = 50.0
    rate = run.get("rate", EVERY[run["noise"]])
    vectors = run["part"] == "vectors"
    data = Data(run["noise"], rate, run["seed"], run.get("trusted", 1000), open_set=1000 if vectors else 0)
    method = build(run.get("method", "vri"), run["seed"], **options)
    if alone:
        for one in (method.first, method.second) if isinstance(method, VRIDivideMix) else (method,):
            assert isinstance(one, VRI)
            one.learn = lambda gradient: None  # type: ignore[method-assign]  # the vectors stay as they are
    trusted: tuple[Tensor, ...] | None = data.trusted if method.needs_trusted else None
    selection = None
    if run["part"] == "gap":
        if run["trust"] == "half of all":
            trusted, selection = None, Selection("balanced")
        else:
            trusted = choose(data, run["trust"], run["seed"])
    looked: list[Row] = []

    def look(row: dict[str, Any]) -> None:
        if vectors and int(row["epoch"]) in LOOKS:
            assert isinstance(method, VRI)
            looked.append({"epoch": int(row["epoch"]), **look_at(method, data)})

    history = vri.train(
        method,
        (data.x, data.given),
        None if trusted is None else trusted[:2],
        epochs=40,
        batch_size=100,
        selection=selection,
        validation_set=data.validation,
        true_labels=data.right,
        evaluate_every=40,
        seed=run["seed"],
        progress=False,
        on_epoch=look,
        on_remark=lambda remark: None,
        every_class=False,
    )
    last = history[-1]
    kept = ("validation_accuracy", "memorised", "meta_loss", "variance", "kl", "labels_right")
    found: Row = {name: last.get(name) for name in kept}
    if trusted is not None and run["part"] == "gap":
        found["purity"] = float(trusted[2].double().mean())
    return found | ({"looked": looked} if vectors else {})


def choose(data: Data, kind: str, seed: int) -> tuple[Tensor, ...]:
    """1,000 samples in the place of trusted ones: inputs, labels, and which labels are right."""
    generator = torch.Generator().manual_seed(seed)
    losses = first_losses(data, seed)
    members = [(data.given == k).nonzero().squeeze(1) for k in range(10)]
    easy = torch.cat([each[losses[each].argsort()[:100]] for each in members])
    purity = float((data.given == data.right)[easy].double().mean())
    if kind.startswith("smallest"):
        labels = (data.right if kind.endswith("right labels") else data.given)[easy]
        return data.x[easy], labels, labels == data.right[easy]
    index = torch.randperm(len(data.x), generator=generator)[:1000]
    labels = data.right[index].clone()
    if kind.endswith("impure"):
        wrong = torch.rand(1000, generator=generator) > purity
        labels[wrong] = (labels[wrong] + 1) % 10
    return data.x[index], labels, labels == data.right[index]


def first_losses(data: Data, seed: int) -> Tensor:
    """Losses of the given labels after a short plain training, as in Algorithm 2."""
    model = vri.backbones.mlp(784, 10, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-3)
    plain = vri.CrossEntropy(model, 10, optimizer)
    vri.train(plain, (data.x, data.given), epochs=10, batch_size=100, seed=seed, progress=False)
    with torch.no_grad():
        return F.cross_entropy(model.eval()(data.x), data.given, reduction="none")


@torch.no_grad()
def look_at(method: VRI, data: Data) -> Row:
    """The mean rectifying vector, and the share of the gradient that it lets through, by group of samples."""
    training = method.model.training
    method.model.eval()
    seen: list[Tensor] = []
    head = method.model.get_submodule(method.classifier.head_name or "")
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    z = method.model(data.x)
    hook.remove()
    method.model.train(training)
    pi = method.squash(method.posterior(seen[0], data.given, z).mean)
    y = F.one_hot(data.given, 10).to(z.dtype)
    plain, rectified = z.softmax(1) - y, pi * ((pi * z).softmax(1) - y)
    rows = torch.arange(len(z))
    own, true = pi[rows, data.given], pi[rows, data.right]
    others = (pi.sum(1) - own) / 9
    push = -rectified[rows, data.right]  # > 0 pushes the true class up
    wrong = (data.given != data.right) & ~data.open
    groups = {"right": ~wrong & ~data.open, "wrong": wrong, "open set": data.open}
    found: Row = {}
    for name, mask in groups.items():
        found[name] = {
            "given": float(own[mask].mean()),
            "true": float(true[mask].mean()),
            "others": float(others[mask].mean()),
            "gradient": float(rectified[mask].abs().sum(1).mean()),
            "plain": float(plain[mask].abs().sum(1).mean()),
            "push": float(push[mask].mean()),
        }
    return found


# docs/why.md


def write() -> None:
    rows = read(TABLE)
    replace_block(DOCS / "why.md", "vectors", vectors_table(rows), "Why")
    matrix = forms_table(rows, "matrix", FORMS, EVERY, "what corrects the labels")
    replace_block(DOCS / "why.md", "matrix", matrix, "Why")
    replace_block(DOCS / "why.md", "inside", forms_table(rows, "inside", INSIDE, NOISES, "labels"), "Why")
    replace_block(DOCS / "why.md", "gap", gap_table(rows), "Why")
    replace_block(DOCS / "why.md", "draws", draws_table(rows), "Why")
    replace_block(DOCS / "why.md", "long", long_table(), "Why")
    replace_block(DOCS / "why.md", "search", search_table(), "Why")
    draw(rows)


def vectors_table(rows: list[Row]) -> str:
    body = []
    for row in sorted((r for r in rows if r["part"] == "vectors"), key=lambda r: (r["squash"], r["noise"])):
        last = row["looked"][-1]
        for group in GROUPS:
            v = last[group]
            body.append(
                [
                    f"{row['squash']}, {row['noise']} {100 * NOISES[row['noise']]:.0f} %",
                    group,
                    *(f"{v[name]:.2f}" for name in ("given", "true", "others", "gradient", "plain", "push")),
                ]
            )
    header = [
        "π, noise",
        "label is",
        "π at the given label",
        "at the true class",
        "elsewhere",
        "‖gradient‖₁, rectified",
    ]
    return markdown_table([*header, "plain", "push on the true class"], body)


def forms_table(rows: list[Row], part: str, forms: Iterable[str], rates: Mapping[str, float], heading: str) -> str:
    body = []
    for form in forms:
        found = [r for r in rows if r["part"] == part and r["form"] == form]
        cells = [spread([100 * r["validation_accuracy"] for r in found if r["noise"] == noise]) for noise in rates]
        if found:
            body.append([form, *cells])
    noises = [f"{name} {100 * rate:.0f} %" for name, rate in rates.items()]
    return markdown_table([heading, *noises], body) if body else NOT_YET


def gap_table(rows: list[Row]) -> str:
    body = []
    for kind in TRUSTED:
        cells, purities = [], []
        for noise in NOISES:
            found = [r for r in rows if r["part"] == "gap" and r["trust"] == kind and r["noise"] == noise]
            cells.append(spread([100 * r["validation_accuracy"] for r in found]))
            purities += [r["purity"] for r in found if r.get("purity") is not None]
        if any(cell != "–" for cell in cells):
            body.append([kind, f"{100 * statistics.mean(purities):.1f} %" if purities else "–", *cells])
    noises = [f"{name} {100 * rate:.0f} %" for name, rate in NOISES.items()]
    return markdown_table(["samples in the trusted set", "right labels", *noises], body) if body else NOT_YET


def draws_table(rows: list[Row]) -> str:
    body = []
    for name in DRAWS:
        both = {
            method: {
                r["seed"]: 100 * r["validation_accuracy"]
                for r in rows
                if r["part"] == "draws" and r["setting"] == name and r["method"] == method
            }
            for method in ("mc", "vri")
        }
        body += duel(name, both["mc"], both["vri"])
    return markdown_table(["setting", "MC", "VRI", "VRI − MC"], body) if body else NOT_YET


def search_table() -> str:
    found = RunTable(SEARCHED / RUNS).rows()
    body = []
    for setting in SEARCH:
        mc, ours = (
            {
                r["settings"]["seed"]: 100 * r["last"]
                for run in search_runs()[setting, name]
                if (r := found.get(run.key))
            }
            for name in ("MC", "VRI")
        )
        body += duel(setting, mc, ours)
    return markdown_table(["setting", "MC", "VRI", "VRI − MC"], body) if body else NOT_YET


def duel(setting: str, mc: Mapping[int, float], ours: Mapping[int, float]) -> list[list[str]]:
    """A row about the seeds that both have run, if there are any."""
    seeds = sorted(mc.keys() & ours.keys())
    if not seeds:
        return []
    one, other = ([values[seed] for seed in seeds] for values in (mc, ours))
    gap = statistics.mean(other) - statistics.mean(one)
    return [[setting, spread(one), spread(other), f"{gap:+.2f} (p = {p_value(other, one):.2f}, {len(seeds)} seeds)"]]


def long_table() -> str:
    found = RunTable(MEDIUM / RUNS).rows()
    body = []
    for (name, choice), runs in long_runs().items():
        records = [found[run.key] for run in runs if run.key in found]
        if records:
            last = [100 * r["last"] for r in records]
            best = [100 * r["best_chosen_on_test"] for r in records]
            learned = statistics.mean(100 * r["epochs"]["memorised"][-1] for r in records)
            body.append([choice, name, spread(best), spread(last), f"{learned:.0f} %", str(len(records))])
    header = ["schedule", "method", "best epoch", "last epoch", "wrong labels learned", "seeds"]
    return markdown_table(header, body) if body else NOT_YET


def spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else "–"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def draw(rows: list[Row]) -> None:
    """π at the given label by epoch, for the three groups of samples; its numbers beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [r for r in rows if r["part"] == "vectors" and r["squash"] == "sigmoid"]
    figure, axes = plt.subplots(1, len(shown), figsize=(4.2 * len(shown), 3.1), sharey=True, squeeze=False)
    numbers = []
    for axis, row in zip(axes[0], shown, strict=True):
        for group, style in zip(GROUPS, ("o-", "s--", "^:"), strict=True):
            values = [look[group]["given"] for look in row["looked"]]
            axis.plot(LOOKS[: len(values)], values, style, label=f"{group} label" if group != "open set" else group)
            numbers += [[row["noise"], group, look["epoch"], f"{look[group]['given']:.4f}"] for look in row["looked"]]
        axis.set(title=f"{row['noise']} {100 * NOISES[row['noise']]:.0f} %", xlabel="epoch", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("π(v) at the given label")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(DOCS / "why.png", dpi=110)
    with (DOCS / "why.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([["noise", "label", "epoch", "pi at the given label"], *numbers])


def show(row: Row) -> str:
    told = ("part", "noise", "trust", "setting", "form", "method", "squash", "seed")
    return f"{ {k: v for k, v in row.items() if k in told} }: {100 * row['validation_accuracy']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", choices=("vectors", "matrix", "inside", "gap", "draws", "long", "search"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        write()
        return
    if options.part in (None, "long"):
        runs_of_tables = [run for seeds in long_runs().values() for run in seeds]
        run_grid(runs_of_tables, MEDIUM, processes=options.jobs, minutes=options.minutes)
    if options.part in (None, "search"):
        by_seed = {run.key: run for turn in zip(*search_runs().values(), strict=True) for run in turn}
        run_grid(list(by_seed.values()), SEARCHED, processes=options.jobs, minutes=options.minutes)
    chosen = [run for run in runs() if options.part in (None, run["part"])]
    if chosen:
        fill(TABLE, chosen, measure, show, processes=options.jobs, minutes=options.minutes)


if __name__ == "__main__":
    main()
