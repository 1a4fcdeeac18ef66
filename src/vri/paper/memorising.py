"""What long training does: accuracy by epoch at each row's longest schedule, and the wrong labels learned by heart."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vri.files import atomic_write
from vri.paper.experiments import Column, Results, validation_accuracy
from vri.paper.plots import COLOURS, STYLES
from vri.paper.report import as_csv, markdown_table

DRAWN = (  # rows in the figure
    "cross-entropy",
    "label smoothing",
    "ELR",
    "MW-Net",
    "VRI",
    "VRI with a teacher",
    "VRI with a teacher and strong views",
)
PLAIN = DRAWN[:2]  # of which one must have run long: without it there is nothing to compare with
_WIDE = 3  # panels side by side

Record = dict[str, Any]


def longest(results: Results, row: str, column: Column) -> Record | None:
    """The first seed's run with the row's longest schedule: of several, the best on validation samples."""
    lengths = {name: int(changes["epochs"]) for name, changes in (column.choices or {}).items()}
    if len(set(lengths.values())) < 2:
        return None
    tried = results.trials(row, column.label)
    records = [record for name, record in tried.items() if lengths[name] == max(lengths.values())]
    return max((r for r in records if r["epochs"].get("test_accuracy")), key=validation_accuracy, default=None)


def by_column(every: Sequence[Results]) -> dict[str, dict[str, Record]]:
    """Long runs: column, then row; columns in which plain training is among them, and one other row."""
    found = {}
    for results in every:
        for column in results.grid.columns:
            runs = {row: run for row in results.rows if (run := longest(results, row, column)) is not None}
            if len(runs) > 1 and any(row in runs for row in PLAIN):
                found[column.label] = runs
    return found


def memorising(every: Sequence[Results], page: Path, out: Path) -> str:
    """Table and figure for a page; empty if nothing has run long enough. Writes the figure and its numbers."""
    found = by_column(every)
    if not found:
        return ""
    rows = list(dict.fromkeys(row for results in every for row in results.rows))
    shown = [row for row in rows if sum(row in runs for runs in found.values()) >= min(2, len(found))]
    table = [[row, *(_cell(runs.get(row)) for runs in found.values())] for row in shown]
    link = Path(os.path.relpath(out, page.parent)).as_posix()
    _draw(found, out)
    return "\n\n".join(
        [
            "### What long training does",
            "Every row at the longest schedule, first seed: the best epoch → the last one, in % of test samples, and "
            "in brackets how many of the wrong training labels the network predicts in the end. The best epoch is "
            "chosen on test samples, to show what is lost; no result uses it.",
            markdown_table(["method", *found], table),
            f"![test accuracy by epoch]({link}/curves.png)\n\nNumbers: [curves.csv]({link}/curves.csv).",
        ]
    )


def _cell(run: Record | None) -> str:
    if run is None:
        return "–"
    test = run["epochs"]["test_accuracy"]
    learned = run["epochs"].get("memorised")
    share = f" ({100 * learned[-1]:.0f} %)" if learned else ""
    return f"{100 * max(test):.1f} → {100 * test[-1]:.1f}{share}"


def _draw(found: dict[str, dict[str, Record]], out: Path) -> None:
    """curves.png and curves.csv: a panel for each column."""
    lines = -(-len(found) // _WIDE)
    figure = Figure(figsize=(4.6 * min(_WIDE, len(found)), 3.6 * lines + 0.5), layout="constrained", dpi=120)
    panels = np.atleast_1d(figure.subplots(lines, min(_WIDE, len(found)), squeeze=False)).flatten()
    numbers: list[list[object]] = []
    for axes, (column, runs) in zip(panels, found.items(), strict=False):
        for row, colour, style in zip(DRAWN, COLOURS, STYLES, strict=True):
            if row not in runs:
                continue
            epochs, test = (runs[row]["epochs"][name] for name in ("epoch", "test_accuracy"))
            ours = row.startswith("VRI")
            axes.plot(
                epochs,
                [100 * value for value in test],
                label=row,
                color=colour,
                linestyle="-" if ours else style,
                linewidth=2.4 if ours else 1.6,
            )
            numbers += [[column, row, *point] for point in zip(epochs, test, strict=True)]
        axes.set(title=column, xlabel="epoch", ylabel="test accuracy (%)")
        axes.grid(alpha=0.3)
    for axes in panels[len(found) :]:
        axes.axis("off")
    names = {text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    order = sorted(names, key=DRAWN.index)
    figure.legend([names[name] for name in order], order, loc="outside lower center", ncols=len(order), frameon=False)
    with atomic_write(out / "curves.png") as file:
        figure.savefig(file, format="png")
    with atomic_write(out / "curves.csv") as file:
        file.write(as_csv(["column", "method", "epoch", "test accuracy"], numbers).encode())
