"""The figures of the paper, drawn from results."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vri.paper.experiments import Column, Picture, Results
from vri.paper.plots import COLOURS, transition_heatmap
from vri.paper.verdicts import running_mean

# colour, line style and marker of a row: each alone distinguishes the rows
LOOKS = {
    "VRI": (COLOURS[0], "-", "o"),
    "MC": (COLOURS[4], "--", "s"),
    "MW-Net": (COLOURS[1], "-.", "^"),
    "GLC": (COLOURS[2], ":", "D"),
    "MSLC": (COLOURS[3], (0, (5, 1)), "v"),
}
_DPI = 120


def lines(axis: str, title: str) -> Callable[[Results], Picture]:
    """Accuracy of each row along an axis, one panel per group."""

    def draw(results: Results) -> Picture:
        groups = list(dict.fromkeys(c.group for c in results.grid.columns))
        wide = min(4, len(groups))
        figure = Figure(figsize=(1.2 + 4.6 * wide, 4.2), layout="constrained", dpi=_DPI)
        numbers: list[list[object]] = []
        for axes, group in zip(np.atleast_1d(figure.subplots(1, len(groups), sharey=True)), groups, strict=True):
            inside = [c for c in results.grid.columns if c.group == group]
            for row in results.rows:
                points = _accuracies(axes, results, row, inside, LOOKS[row], row)
                numbers += [[group, row, *point] for point in points]
            axes.set(title=group, xlabel=axis, xticks=[c.x for c in inside])
            axes.grid(alpha=0.3)
        figure.axes[0].set_ylabel("test accuracy (%)")
        figure.suptitle(f"{title} ({results.scale} scale)")
        _legend(figure)
        return Picture(figure, ["panel", "method", axis, "accuracy", "sd", "seeds"], numbers)

    return draw


def rectification(results: Results) -> Picture:
    """Histograms of losses above; true and estimated transition matrices below."""
    count = len(results.columns)
    figure = Figure(figsize=(4.4 * count, 12.5), layout="constrained", dpi=_DPI)
    axes = figure.subplots(4, count, squeeze=False, height_ratios=(1.0, 1.25, 1.25, 1.25))
    numbers: list[list[object]] = []
    image = None
    for place, column in enumerate(results.columns):
        seen = results.examined("VRI", column)
        edges = np.linspace(0, seen[0]["largest"], len(seen[0]["before"]) + 1)
        top = axes[0, place]
        for kind, colour, hatch in (("before", COLOURS[2], "//"), ("after", COLOURS[1], None)):
            share = np.mean([e[kind] for e in seen], axis=0)
            share = share / share.sum()
            top.stairs(share, edges, color=colour, fill=True, alpha=0.45, hatch=hatch, label=f"{kind} rectification")
            top.stairs(share, edges, color=colour, linewidth=1.6)
            numbers += [[column, f"share {kind}", float(e), "", float(v)] for e, v in zip(edges, share, strict=False)]
        top.set(title=column, xlabel="loss of a training sample", yscale="log")
        if place == 0:
            top.set_ylabel("share of samples")
        titles = {"true": "true", "rectified": "from rectified logits", "classifier": "from the classifier"}
        for line, (kind, title) in enumerate(titles.items(), 1):
            matrix = np.mean([e[kind] for e in seen], axis=0)
            image = transition_heatmap(axes[line, place], matrix, title)
            if kind != "true":
                axes[line, place].set_ylabel("predicted class")
            numbers += [[column, f"matrix, {title}", i, j, float(v)] for (i, j), v in np.ndenumerate(matrix)]
    axes[0, 0].legend(loc="upper right", frameon=False)
    if image is not None:
        figure.colorbar(image, ax=axes[1:, :], label="P(given label | class)", shrink=0.5)
    figure.suptitle(
        f"losses and label transitions, mean over {len(seen)} seed{'s' * (len(seen) > 1)} ({results.scale} scale)"
    )
    return Picture(figure, ["noise", "what", "loss or class", "label", "value"], numbers)


def collapse(results: Results) -> Picture:
    """Variance by epoch, one panel per bound."""
    (column,) = results.columns
    kinds = list(dict.fromkeys(row.split(", ", 2)[2] for row in results.rows))
    figure = Figure(figsize=(1.0 + 4.8 * len(kinds), 4.4), layout="constrained", dpi=_DPI)
    styles = {"k = 1": ":", "k = 2": "--", "k = 5": "-"}
    numbers: list[list[object]] = []
    for axes, kind in zip(figure.subplots(1, len(kinds), sharey=True), kinds, strict=True):
        for row in (r for r in results.rows if r.endswith(kind)):
            method, draws, _ = row.split(", ", 2)
            curves = results.curves(row, column, "variance")
            if not curves:
                continue
            mean = np.mean(curves, axis=0) / np.sqrt(10)  # classes
            epochs = range(1, len(mean) + 1)
            colour, _, marker = LOOKS[method]
            axes.plot(
                epochs, mean, color=colour, linestyle=styles[draws], marker=marker, markevery=4, markersize=4,
                label=f"{method}, {draws}",
            )  # fmt: skip
            numbers += [[kind, method, draws, e, float(v)] for e, v in zip(epochs, mean, strict=True)]
        axes.set(title=kind, xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    variances = [float(str(line[-1])) for line in numbers]
    if variances and min(variances) < 0.05 * max(variances):
        figure.axes[0].set_yscale("log")  # shared by all; else a linear axis shows best that nothing collapsed
    else:
        figure.axes[0].set_ylim(bottom=0)
    figure.axes[0].set_ylabel("variance ‖σ²‖/√c of the posterior")
    figure.suptitle(f"{column} ({results.scale} scale)")
    _legend(figure)
    return Picture(figure, ["posterior", "method", "k", "epoch", "variance"], numbers)


def convergence(results: Results) -> Picture:
    """Training loss, meta loss and the mean squared meta gradient by epoch; a row of panels per noise."""
    titles = {"loss": "training loss", "meta_loss": "meta loss", "meta_gradient": "squared meta gradient"}
    figure = Figure(figsize=(14, 0.6 + 3.8 * len(results.columns)), layout="constrained", dpi=_DPI)
    axes = figure.subplots(len(results.columns), 3, squeeze=False)
    numbers: list[list[object]] = []
    for line, column in enumerate(results.columns):
        for place, (key, title) in enumerate(titles.items()):
            panel = axes[line, place]
            for row in results.rows:
                curves = results.curves(row, column, key)
                if key == "meta_gradient":
                    curves = [running_mean(curve) for curve in curves]
                mean = np.mean(curves, axis=0)
                colour, style, marker = LOOKS[row]
                epochs = np.arange(1, len(mean) + 1)
                panel.plot(epochs, mean, color=colour, linestyle=style, marker=marker, markersize=4, label=row)
                numbers += [[column, row, key, int(e), float(v)] for e, v in zip(epochs, mean, strict=True)]
                if key == "meta_gradient" and row == "VRI":
                    bound = mean[0] / np.sqrt(epochs)
                    panel.plot(epochs, bound, color="grey", linewidth=3, alpha=0.5, label="falling as 1/√T")
            panel.set(title=f"{title}\n{column}", xlabel="epoch")
            if key == "meta_gradient":
                panel.set(xscale="log", yscale="log", ylabel="mean over all steps so far", xlabel="epoch T")
                ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 160) if t <= len(mean)]
                panel.set_xticks(ticks, [str(t) for t in ticks])
                panel.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            else:
                panel.set_ylabel("cross-entropy")
            panel.grid(alpha=0.3)
    figure.suptitle(f"convergence ({results.scale} scale)")
    _legend(figure)
    return Picture(figure, ["noise", "method", "what", "epoch", "value"], numbers)


def sensitivity(results: Results) -> Picture:
    """Accuracy against λ, and against the number of clean samples."""
    figure = Figure(figsize=(11, 4.2), layout="constrained", dpi=_DPI)
    left, right = figure.subplots(1, 2)
    numbers: list[list[object]] = []
    looks = [(COLOURS[0], "-", "o"), (COLOURS[4], "--", "s")]
    groups = list(dict.fromkeys(c.group for c in results.grid.columns))
    for axes, names in ((left, ["λ"]), (right, [g for g in groups if g != "λ"])):
        for name, look in zip(names, looks, strict=False):
            inside = [c for c in results.grid.columns if c.group == name]
            points = _accuracies(axes, results, "VRI", inside, look, "flip 40 %" if name == "λ" else name)
            numbers += [[name, *point] for point in points]
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="best")
    left.set(xlabel="weight λ of the KL term", title="KL weight")
    left.set_xscale("symlog", linthresh=1e-4, linscale=0.5)
    right.set(xlabel="clean samples", xscale="log", title="clean samples")
    sizes = sorted({c.x for c in results.grid.columns if c.group != "λ"})
    right.set_xticks(sizes, [f"{s:g}" for s in sizes])
    right.minorticks_off()
    figure.suptitle(f"sensitivity of VRI ({results.scale} scale)")
    return Picture(figure, ["panel", "value", "accuracy", "sd", "seeds"], numbers)


def _accuracies(
    axes: Axes, results: Results, row: str, inside: Sequence[Column], look: tuple[Any, ...], label: str
) -> list[list[object]]:
    """Draw mean ± sd of a row along these columns; returns position, mean, sd and seeds of each."""
    colour, style, marker = look
    values = [results.scores(row, c.label) for c in inside]
    mean = [float(np.mean(v)) if v else np.nan for v in values]
    sd = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
    x = [c.x for c in inside]
    axes.errorbar(x, mean, sd, color=colour, linestyle=style, marker=marker, capsize=3, label=label)
    return [[at, m, s, len(v)] for at, m, s, v in zip(x, mean, sd, values, strict=True)]


def _legend(figure: Figure) -> None:
    """One legend for all panels, below them, where it covers no data."""
    found: dict[str, Artist] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(map(str, labels), handles, strict=True))
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=6, frameon=False)
