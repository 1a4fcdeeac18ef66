"""Does a claim of the paper hold? Each function reads it from the results and says so in a sentence or two.

Differences between two rows are tested in pairs over seeds: both rows had the same data, noise and order.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from vri.paper.experiments import Results

LEVEL = 0.05  # of significance
RECOVERED = 0.1  # share of a class's labels that an estimated transition matrix may misplace
COLLAPSED = 0.1  # share of its first variance below which a posterior counts as collapsed


@dataclass(frozen=True)
class Duel:
    """Two rows in one column, over the seeds that both have.

    Attributes:
        ours, theirs: mean accuracies in %.
        level: whether their difference is within what seeds make of it; one seed can't tell.
    """

    mine: str
    rival: str
    ours: float
    theirs: float
    level: bool

    @property
    def gap(self) -> float:
        """How far ours is ahead."""
        return self.ours - self.theirs


def closest(results: Results, ours: Sequence[str], others: Sequence[str], column: str) -> Duel | None:
    """The best of our rows against the rival that comes closest to it, or is furthest ahead.

    Seeds differ by their noise, so each rival is compared over the seeds that it shares with our row, and our row is
    the best of those with the most seeds.
    """
    there = [row for row in ours if results.scores(row, column)]
    if not there:
        return None
    mine = max(there, key=lambda row: (len(results.scores(row, column)), results.mean(row, column)))
    duels = []
    for rival in others:
        a, b = results.paired(mine, rival, column)
        if a:
            level = len(a) > 1 and p_value(a, b) >= LEVEL
            duels.append(Duel(mine, rival, statistics.mean(a), statistics.mean(b), level))
    return min(duels, key=lambda duel: duel.gap, default=None)


def vri_is_ahead(results: Results) -> str:
    """Is VRI ahead of all other rows, in its best form? Columns in which less than half has run are passed over."""
    won: list[str] = []
    level: list[str] = []
    lost: list[str] = []
    ours = [row for row in results.rows if row.startswith("VRI")]
    for column in filter(results.telling, results.columns):
        duel = closest(results, ours, [row for row in results.rows if row not in ours], column)
        if duel is None:
            continue
        words = f"{column} ({duel.rival} {duel.theirs:.1f}, {duel.mine} {duel.ours:.1f})"
        (won if duel.gap > 0 else level if duel.level else lost).append(words)
    averages = {row: results.average(row) for row in results.rows if results.mean_everywhere(row)}
    best, next_best = (
        max((row for row in averages if (row in ours) == own), key=lambda row: averages[row], default=None)
        for own in (True, False)
    )
    judged = len(won) + len(level) + len(lost)
    if not judged:
        return "Can't be said yet: less than half of each column has run."
    name = "VRI" if len(ours) == 1 else "VRI's best form"
    text = [_judgement(len(won), judged), f"{name} is ahead of all others in {len(won)} of {judged} columns."]
    if best is not None and next_best is not None:
        text.append(
            f"On average over them {best} has {averages[best]:.1f} %, the next best, {next_best}, "
            f"{averages[next_best]:.1f} %."
        )
    text += [f"Behind, but not significantly: {'; '.join(level)}."] if level else []
    text += [f"Behind in: {'; '.join(lost)}."] if lost else []
    return " ".join(text)


def best_row(wanted: str) -> Callable[[Results], str]:
    """Is one row better than the others, on average?"""

    def verdict(results: Results) -> str:
        rivals = [row for row in results.rows if "default" not in row]
        averages = {row: results.average(row) for row in rivals}
        first = max(averages, key=lambda row: averages[row])
        others = [row for row in rivals if row != wanted]
        apart = [c for c in results.columns for row in others if differs(results, row, wanted, c)]
        spread = max(averages.values()) - min(averages.values())
        return (
            f"{_word(first == wanted)}: best on average is {first} with {averages[first]:.1f} %; {wanted} has "
            f"{averages[wanted]:.1f} %, the worst {min(averages.values()):.1f} % ({spread:.1f} points in all). "
            f"Significant: {len(apart)} of {len(others) * len(results.columns)} paired comparisons with {wanted}."
        )

    return verdict


def order(*wanted: str) -> Callable[[Results], str]:
    """Do the rows come in this order?"""

    def verdict(results: Results) -> str:
        def ordered(column: str) -> bool:
            values = [results.mean(row, column) for row in wanted]
            return all(a > b for a, b in pairwise(values))

        right = [c for c in results.columns if ordered(c)]
        averages = ", ".join(f"{row} {results.average(row):.1f} %" for row in wanted)
        steps = []
        for better, worse in pairwise(wanted):
            ahead = sum(results.mean(better, c) > results.mean(worse, c) for c in results.columns)
            steps.append(f"{better} is ahead of {worse} in {ahead} of {len(results.columns)}")
        return (
            f"{_judgement(len(right), len(results.columns))} The whole order holds in {len(right)} of "
            f"{len(results.columns)} columns: {'; '.join(steps)}. On average: {averages}."
        )

    return verdict


def efficiency(results: Results) -> str:
    """One draw of VRI against five of MC, and the time of a step."""
    (column,) = results.columns
    times = {row: step_times(results, row)[0] for row in results.rows}
    growth = {name: times[f"{name}, k = 5"] / times[f"{name}, k = 1"] for name in ("MC", "VRI")}
    over = times["VRI, k = 1"] / times["MC, k = 1"]
    ours, theirs = results.mean("VRI, k = 1", column), results.mean("MC, k = 5", column)
    return (
        f"{_word(ours > theirs)} for accuracy: VRI with one draw has {ours:.1f} %, MC with five {theirs:.1f} %. "
        f"{_word(over < 1.1)} for time: a step of VRI takes {over:.2f} times as long as one of MC. Five "
        f"draws take {growth['MC']:.2f} (MC) and {growth['VRI']:.2f} (VRI) times as long as one: nearly independent of "
        "k, while the time of the paper's own code grows in proportion to it."
    )


def step_times(results: Results, row: str) -> tuple[float, float]:
    """Time of a step relative to cross-entropy = 1, and in milliseconds: medians over seeds."""
    (column,) = results.columns
    seen = results.examined(row, column)
    if not seen:
        return math.nan, math.nan
    return (
        statistics.median(e["times_cross_entropy"] for e in seen),
        1e3 * statistics.median(e["step_seconds"] for e in seen),
    )


def no_clean(results: Results) -> str:
    """How close the selecting variants come to VRI with trusted samples."""
    gaps = {
        row: statistics.mean(results.mean("VRI", c) - results.mean(row, c) for c in results.columns)
        for row in results.rows
        if row != "VRI"
    }
    plus, minus = gaps["VRI (+)"], gaps["VRI (−)"]
    listed = ", ".join(f"{row} {gap:+.1f}" for row, gap in gaps.items())
    return (
        f"{_word(plus <= 3 and minus > plus)}: VRI (+) is {plus:.1f} points below VRI with clean samples on average, "
        f"VRI (−) {minus:.1f}. All gaps: {listed}."
    )


def rectification(results: Results) -> str:
    """Losses lowered, matrix recovered."""
    parts, lowered, errors = [], [], []
    for column in results.columns:
        seen = results.examined("VRI", column)
        drop = statistics.mean(e["mean_before"] - e["mean_after"] for e in seen)
        found = {kind: statistics.mean(matrix_error(e[kind], e["true"]) for e in seen) for kind in _KINDS}
        lowered.append(drop)
        errors.append(min(found.values()))
        share = statistics.mean(e["lowered"] for e in seen)
        parts.append(
            f"{column}: rectification changes the mean loss by {-drop:+.2f} (lower for {share:.0%} of samples); the "
            f"matrix misplaces {found['rectified']:.0%} of the labels by rectified logits, as in the paper, and "
            f"{found['classifier']:.0%} by the classifier's own"
        )
    growing = all(a < b for a, b in pairwise(lowered))
    return (
        f"{_word(min(lowered) > 0 and growing)} for the losses, {_word(max(errors) < RECOVERED).lower()} for the "
        f"matrix. {'; '.join(parts)}."
    )


_KINDS = ("rectified", "classifier")


def matrix_error(estimate: list[list[float]], true: list[list[float]]) -> float:
    """Total variation between the rows, on average: the share of labels that the estimate misplaces."""
    return float(np.abs(np.array(estimate) - np.array(true)).sum(1).mean() / 2)


def collapse(results: Results) -> str:
    """Whose variance goes to zero?"""
    (column,) = results.columns
    words = []
    kept = {row: variance_left(results, row, column) for row in results.rows}
    for method in ("MC", "VRI"):
        for kind in ("log σ² within ±1", "free σ²"):
            rows = [row for row in results.rows if row.startswith(method) and row.endswith(kind)]
            values = [kept[row] for row in rows]
            words.append(f"{method}, {kind}: {min(values):.2g} to {max(values):.2g}")
    free = {m: min(kept[r] for r in results.rows if r.startswith(m) and r.endswith("free σ²")) for m in ("MC", "VRI")}
    holds = free["MC"] < COLLAPSED <= free["VRI"]
    return (
        f"{_word(holds)}: variance in the last epoch relative to the first, over all k: {'; '.join(words)}. "
        f"Below {COLLAPSED} we call it a collapse."
    )


def variance_left(results: Results, row: str, column: str) -> float:
    """The last epoch's variance relative to the first one's, mean over seeds."""
    curves = results.curves(row, column, "variance")
    return statistics.mean(curve[-1] / curve[0] for curve in curves) if curves else math.nan


def convergence(results: Results) -> str:
    """Do the losses fall, and the gradient's norm like 1/√T?"""
    parts, good = [], []
    for column in results.columns:
        for row in results.rows:
            losses, gradients = (results.curves(row, column, name) for name in ("meta_loss", "meta_gradient"))
            first, last = (statistics.mean(curve[i] for curve in losses) for i in (0, -1))
            slope = statistics.mean(decay(running_mean(curve)) for curve in gradients)
            if row == "VRI":
                good.append(last < first and slope <= -0.5)
            parts.append(f"{row}, {column}: meta loss {first:.2f} → {last:.2f}, exponent {slope:+.2f}")
    return (
        f"{_judgement(sum(good), len(good))} Exponents of the mean squared meta gradient against T (the theorem bounds "
        f"it by −0.5): {'; '.join(parts)}."
    )


def running_mean(values: list[float]) -> list[float]:
    """Mean of all values up to each one."""
    return [float(v) for v in np.cumsum(values) / np.arange(1, len(values) + 1)]


def decay(means: list[float]) -> float:
    """Slope of log value against log time."""
    times = np.arange(1, len(means) + 1)
    if len(means) < 2:
        return math.nan
    return float(np.polyfit(np.log(times), np.log(np.maximum(means, 1e-30)), 1)[0])


def draws(results: Results) -> str:
    """How much do more draws gain?"""
    groups = list(dict.fromkeys(c.group for c in results.grid.columns))
    gains: dict[str, list[float]] = {row: [] for row in results.rows}
    for group in groups:
        inside = [c for c in results.grid.columns if c.group == group]
        for row in results.rows:
            by_k = {c.x: results.mean(row, c.label) for c in inside}
            gains[row].append(max(by_k.values()) - max(v for k, v in by_k.items() if k <= 2))
    mine, theirs = (statistics.mean(gains[row]) for row in ("VRI", "MC"))
    ahead = sum(results.mean("VRI", c) > results.mean("MC", c) for c in results.columns)
    return (
        f"{_word(mine < 0.5)} for VRI: the best k beats k ≤ 2 by {mine:.1f} points on average (MC: {theirs:.1f}). VRI "
        f"is ahead of MC in {ahead} of {len(results.columns)} points."
    )


def sensitivity(results: Results) -> str:
    """Where is the best λ, and do trusted samples help?"""
    weights = {c.x: results.mean("VRI", c.label) for c in results.grid.columns if c.group == "λ"}
    best = max(weights, key=lambda w: weights[w])
    spread = max(weights.values()) - min(weights.values())
    near = weights[best] - weights[1e-3]
    parts, rising = [], []
    for group in dict.fromkeys(c.group for c in results.grid.columns if c.group != "λ"):
        line = [(c.x, results.mean("VRI", c.label)) for c in results.grid.columns if c.group == group]
        rising.append(line[-1][1] > line[0][1])
        parts.append(f"{group} {line[0][1]:.1f} % with {line[0][0]:g} and {line[-1][1]:.1f} % with {line[-1][0]:g}")
    listed = ", ".join(f"{w:g}: {v:.1f}" for w, v in weights.items())
    return (
        f"λ: {_word(1e-4 <= best <= 1e-2).lower()}; the best is {best:g}, and 0.001 is {near:.1f} points below it, of "
        f"{spread:.1f} between best and worst ({listed}). Clean samples: {_word(all(rising)).lower()}; "
        f"{'; '.join(parts)}."
    )


def p_value(ours: list[float], theirs: list[float]) -> float:
    """p-value of a paired t-test, two-sided; 1 if there is nothing to test."""
    pairs = list(zip(ours, theirs, strict=True))
    differences = [a - b for a, b in pairs]
    if len(pairs) < 2:
        return 1.0
    if max(differences) - min(differences) < 1e-12:  # no spread: equal, or shifted by a constant
        return 1.0 if abs(differences[0]) < 1e-12 else 0.0
    found = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return 1.0 if math.isnan(found) else found


def differs(results: Results, row: str, other: str, column: str) -> bool:
    """Whether two rows differ in a column."""
    return p_value(*results.paired(row, other, column)) < LEVEL


def mark(results: Results, row: str, column: str) -> str:
    """▲ or ▼ if a row is better or worse than the one that all are compared with, else nothing."""
    reference = results.experiment.compare
    if reference is None or row == reference or reference not in results.rows:
        return ""
    if not differs(results, row, reference, column):
        return ""
    return "▲" if results.mean(row, column) > results.mean(reference, column) else "▼"


def _judgement(right: int, all_of: int) -> str:
    if right == all_of:
        return "Holds."
    return "Holds in part." if right else "Does not hold."


def _word(holds: bool) -> str:
    return "Holds" if holds else "Does not hold"
