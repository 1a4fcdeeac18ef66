"""Is a difference between two rows more than chance? Paired over seeds: both had the same data, noise and order."""

import math

from scipy import stats

from vri.paper.plan import Results

LEVEL = 0.05


def p_value(ours: list[float], theirs: list[float]) -> float:
    """Of a paired t-test, two-sided; 1 where there is nothing to test."""
    pairs = list(zip(ours, theirs, strict=False))
    differences = [a - b for a, b in pairs]
    if len(pairs) < 2 or len(ours) != len(theirs):
        return 1.0
    if max(differences) - min(differences) < 1e-12:  # no spread: equal, or shifted by a constant
        return 1.0 if abs(differences[0]) < 1e-12 else 0.0
    found = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return 1.0 if math.isnan(found) else found


def differs(results: Results, row: str, other: str, column: str) -> bool:
    """Whether two rows differ in a column."""
    return p_value(results.scores(row, column), results.scores(other, column)) < LEVEL


def mark(results: Results, row: str, column: str) -> str:
    """▲ or ▼ where a row is better or worse than the one that all are compared with, else nothing."""
    reference = results.experiment.compare
    if reference is None or row == reference or reference not in results.rows:
        return ""
    if not differs(results, row, reference, column):
        return ""
    return "▲" if results.mean(row, column) > results.mean(reference, column) else "▼"
