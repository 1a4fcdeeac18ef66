"""One page about all results at a scale: the main table, and what becomes of the paper's claims."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vri.methods import METHODS
from vri.paper.experiments import Experiment, Results
from vri.paper.memorising import memorising
from vri.paper.report import has_block, markdown_table, replace_block, spread
from vri.paper.verdicts import closest

NAME = "overview"


def overview(every: Sequence[Results]) -> str:
    """The block: columns of all tables in which methods choose their settings, best values bold, then the claims.

    With several columns, rivals that have run in one of them alone are listed below the table.
    """
    compared = [results for results in every if any(column.choices for column in results.grid.columns)]
    columns = [(r, c.label) for r in compared for c in r.grid.columns if any(r.scores(row, c.label) for row in r.rows)]
    rows = list(dict.fromkeys(row for results, _ in columns for row in results.rows))
    means = {
        (row, i): results.mean(row, column)
        for i, (results, column) in enumerate(columns)
        for row in rows
        if row in results.rows and results.scores(row, column)
    }
    first = {i: max((m for (_, j), m in means.items() if j == i), default=0.0) for i in range(len(columns))}
    ran = {row: [i for i in range(len(columns)) if (row, i) in means] for row in rows}
    ran = {row: where for row, where in ran.items() if where}
    alone = [row for row, where in ran.items() if len(where) < min(2, len(columns)) and not row.startswith("VRI")]
    cells = {row: [_cell(*c, row, means.get((row, i)) == first[i]) for i, c in enumerate(columns)] for row in ran}
    costs = {row.label: METHODS[row.settings["method"]].cost for results in compared for row in results.grid.rows}
    times = {row: "–" if cost is None else f"{cost.time:.1f}" for row, cost in costs.items()}
    table = [[row, times[row], *cells[row]] for row in ran if row not in alone]
    claims = [
        [results.experiment.name, results.experiment.claim, results.experiment.verdict(results)]
        for results in every
        if results.complete or results.partial
    ]
    parts = [
        "Test accuracy in %, last epoch, mean ± sd over seeds (one seed where there is no sd), and the length in "
        "epochs that the row chose on validation samples; the best of each column in bold, – where nothing has "
        "run yet. Before it the time of a step, cross-entropy = 1 (ResNet-32, `vri bench --methods`).",
        markdown_table(["method", "time", *(column for _, column in columns)], table),
        *(
            f"{column}, no other column: {', '.join(f'{row} {cells[row][i]}' for row in below)}."
            for i, (_, column) in enumerate(columns)
            if (below := _sorted(alone, i, means))
        ),
        _standing(columns),
        "### The paper's claims at this scale",
        markdown_table(["", "claim", "here"], claims),
    ]
    return "\n\n".join(part for part in parts if part)


def on_page(drawn: Sequence[Results], every: Iterable[Experiment], page: Path, out: Path) -> list[Results]:
    """What the overview of a page is about: those just drawn, and the others that it has; in the order of `every`."""
    new = {results.experiment.name: results for results in drawn}
    scale, seeds = drawn[0].scale, drawn[0].seeds
    known = [
        new.get(e.name) or Results.read(e, scale, seeds, out) for e in every if e.name in new or has_block(page, e.name)
    ]
    return [results for results in known if results.found]


def write_overview(every: Sequence[Results], page: Path, out: Path) -> None:
    """Put the block into a page, replacing an older one, and its figure into `out`."""
    parts = [overview(every), memorising(every, page, out)]
    replace_block(page, NAME, "\n\n".join(filter(None, parts)), "Results")


def _cell(results: Results, column: str, row: str, best: bool) -> str:
    values = results.scores(row, column) if row in results.rows else []
    if not values:
        return "–"
    length = (results.choice(row, column) or "").partition(" epochs")[0]
    mark = "" if results.decided(row, column) else "?"
    text = f"**{spread(values)}**" if best else spread(values)
    return f"{text} ({length}{mark})" if length else text


def _sorted(rows: Sequence[str], column: int, means: Mapping[tuple[str, int], float]) -> list[str]:
    """Those with a value in the column, the best first."""
    return sorted((row for row in rows if (row, column) in means), key=lambda row: -means[row, column])


def _standing(columns: Sequence[tuple[Results, str]]) -> str:
    """In how many columns VRI's best form with trusted samples is first, or not significantly behind the first."""
    first = near = judged = 0
    gaps = []
    for results, column in columns:
        if not results.telling(column):
            continue
        ours = [row for row in results.rows if row == "VRI" or row.startswith("VRI with")]
        duel = closest(results, ours, [row for row in results.rows if not row.startswith("VRI")], column)
        if duel is None:
            continue
        judged += 1
        gaps.append(duel.gap)
        first += duel.gap > 0
        near += duel.gap <= 0 and duel.level
    if not judged:
        return ""
    return (
        f"**VRI with trusted samples (the best of its forms) is first in {first} of {judged} columns and not "
        f"significantly behind the first in {near} more; its distance to the best other method is "
        f"{statistics.mean(gaps):+.1f} points on average. Each rival is compared over the seeds that both have run.**"
    )
