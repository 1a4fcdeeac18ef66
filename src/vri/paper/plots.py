"""Figures. The numbers behind each are also written as CSV next to it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; line styles do the same in grey
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2")
STYLES = ((0, (1, 1)), "--", "-.", "-", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 3)))

Curves = Mapping[str, npt.NDArray[np.float64]]  # name: (seeds, epochs)


def accuracy_curves(axes: Axes, curves: Curves, colours: Mapping[str, str]) -> None:
    """Mean test accuracy per epoch, with a band of one standard deviation over the seeds."""
    for (name, runs), style in zip(curves.items(), STYLES, strict=False):
        mean, sd = 100 * runs.mean(0), 100 * runs.std(0, ddof=1 if len(runs) > 1 else 0)
        epochs = np.arange(1, len(mean) + 1)
        ours = name == "vri"
        axes.plot(
            epochs,
            mean,
            label=name,
            color=colours[name],
            linestyle="-" if ours else style,
            linewidth=2.6 if ours else 1.6,
        )
        axes.fill_between(epochs, mean - sd, mean + sd, color=colours[name], alpha=0.18, linewidth=0)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", xlim=(1, max(r.shape[1] for r in curves.values())))
    axes.grid(alpha=0.3)


def transition_heatmap(axes: Axes, matrix: npt.NDArray[np.float64], title: str) -> matplotlib.image.AxesImage:
    """A transition matrix with its larger entries written out."""
    image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=1)
    classes = len(matrix)
    for i in range(classes):
        for j in range(classes):
            if matrix[i, j] >= 0.05 and classes <= 12:
                colour = "black" if matrix[i, j] > 0.5 else "white"
                axes.text(j, i, f"{matrix[i, j]:.2f}", ha="center", va="center", fontsize=6.5, color=colour)
    axes.set(title=title, xlabel="given label", ylabel="true class")
    if classes <= 12:
        axes.set_xticks(range(classes))
        axes.set_yticks(range(classes))
    return image


def demo_figure(
    path: Path,
    title: str,
    curves: Curves,
    true_matrix: npt.NDArray[np.float64],
    estimated_matrix: npt.NDArray[np.float64],
) -> None:
    """Accuracy curves, and the estimated transition matrix next to the true one."""
    figure = Figure(figsize=(14.5, 4.6), layout="constrained", dpi=130)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.35, 1, 1))
    accuracy_curves(left, curves, colours(list(curves)))
    left.set_title("test accuracy, mean ± sd over seeds")
    # below the axes, where it covers no data
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False, fontsize=8.5)
    transition_heatmap(middle, true_matrix, "true label transitions")
    image = transition_heatmap(right, estimated_matrix, "estimated by VRI's classifier")
    figure.colorbar(image, ax=[middle, right], label="P(given label | true class)", shrink=0.8)
    figure.suptitle(title)
    figure.savefig(path)


def colours(names: Sequence[str]) -> dict[str, str]:
    """One colour per name, in order."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def selection_figure(file: Path | BinaryIO, rows: Sequence[Mapping[str, float | int | None]], title: str) -> None:
    """How good the samples that stand in for clean ones are, as PNG; `rows` are those epochs that have some."""
    names = {
        "selection_purity": "right labels among the selected",
        "selection_balance": "balance of their classes",
        "selected_share": "share of all samples",
    }
    figure = Figure(figsize=(6.4, 4.2), layout="constrained", dpi=130)
    axes = figure.subplots()
    for (key, name), colour, style in zip(names.items(), COLOURS[:3], STYLES[1:], strict=False):
        points = [(row["epoch"], 100 * float(row[key] or 0)) for row in rows if row.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, color=colour, linestyle=style, marker="o", markersize=3)
    axes.set(xlabel="epoch", ylabel="%", ylim=(0, 105), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize=8.5)
    figure.savefig(file, format="png")


def transition_figure(
    file: Path | BinaryIO, matrix: npt.NDArray[np.float64], class_names: Sequence[str], title: str
) -> None:
    """A transition matrix as PNG: a heat map with the classes' names, and its entries where they can be read."""
    classes = len(matrix)
    side = max(5.0, 0.55 * classes) if classes <= 20 else max(11.0, 0.16 * classes)
    figure = Figure(figsize=(side + 2.2, side + 1.2), layout="constrained", dpi=130)
    axes = figure.subplots()
    top = max(float(matrix.max()), 1e-9)
    image = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=top)
    if classes <= 20:
        for (i, j), value in np.ndenumerate(matrix):
            if value >= 0.005:  # the rest would read 0.00
                colour = "white" if value > 0.6 * top else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    size = 9 if classes <= 20 else 6
    axes.set_xticks(range(classes), class_names, rotation=90 if max(map(len, class_names)) > 2 else 0, fontsize=size)
    axes.set_yticks(range(classes), class_names, fontsize=size)
    axes.set(title=title, xlabel="noisy label", ylabel="true class")
    figure.colorbar(image, ax=axes, label="P(noisy label | true class)", shrink=0.8)
    figure.savefig(file, format="png")
