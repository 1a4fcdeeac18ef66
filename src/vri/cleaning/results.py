"""What `vri clean` writes about samples in memory: the judged and the corrected labels, and what the page shows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.cleaning.cells import escape, write_rows
from vri.cleaning.context import Candidates
from vri.cleaning.remarks import spelling, without_label
from vri.cleaning.report import QUALITY_BINS, Summary
from vri.cleaning.sources import Source
from vri.cleaning.state import CORRECTED, ISSUES, Findings
from vri.cleaning.work import Accuracy, Work

_COLUMNS = (
    "id",
    "given_label",
    "predicted_label",
    "label_quality",
    "is_label_issue",
    "predicted_probability",
    "outlier_score",
)


def write_results(work: Work, source: Source, found: Findings, accuracy: Accuracy, settings: dict[str, Any]) -> Summary:
    """Write all files but the classifier; returns what the page says."""
    place = {name: number for number, name in enumerate(found.classes)}
    given = np.array([place.get(label, -1) for label in source.labels])
    unknown = given < 0
    order = np.lexsort((np.arange(len(given)), found.quality))  # NaN comes last
    suspects = order[found.issue[order]]
    changed = (found.issue | unknown) & (found.confidence >= work.options.confidence)
    if source.trusted is not None:
        changed &= ~source.trusted
    write_rows(work.out / ISSUES, _COLUMNS, (_issue(source, found, i) for i in order.tolist()))
    write_rows(work.out / CORRECTED, ("id", "label", "given_label", "changed"), _corrected(source, found, changed))
    remarks = [*found.remarks, *spelling(found.classes, np.bincount(given[~unknown], minlength=len(found.classes)))]
    filled = int((unknown & changed).sum())
    remarks += without_label(int(unknown.sum()), filled, work.options.confidence, ISSUES, CORRECTED)
    pairs = np.zeros((len(found.classes), len(found.classes)), np.int64)
    np.add.at(pairs, (given[suspects], found.suggested[suspects]), 1)
    candidates = Candidates(source, found, order, work.options.max_suspects)
    return work.write(
        candidates.numbers,
        candidates.suspect,
        accuracy,
        {
            "changed": int(changed.sum()),
            "not_judged": int((~found.judged).sum()),
            "unlabelled": int(unknown.sum()),
            "seconds": round(found.seconds, 2),
            "settings": settings,
            "notes": source.notes,
        },
        source=source.name,
        classes=found.classes,
        samples=int((~unknown).sum()),
        trusted=count_of(source.trusted),
        issues=len(suspects),
        noise_rate=found.noise_rate,
        noise_interval=found.noise_interval,
        transition_matrix=found.transition_matrix.tolist(),
        pair_counts=pairs.tolist(),
        quality_counts=np.histogram(found.quality[found.judged], QUALITY_BINS, (0, 1))[0].tolist(),
        threshold=found.threshold,
        remarks=remarks,
    )


def _issue(source: Source, found: Findings, i: int) -> tuple[str, ...]:
    numbers = (found.quality[i], found.confidence[i], found.outlier[i])
    right, confidence, outlier = ("" if np.isnan(number) else f"{number:.6f}" for number in numbers)
    return (
        escape(source.ids[i]),
        escape(source.labels[i]),
        escape(found.classes[found.suggested[i]]) if found.suggested[i] >= 0 else "",
        right,
        _yes_no(found.issue[i]),
        confidence,
        outlier,
    )


def _corrected(source: Source, found: Findings, changed: NDArray[np.bool_]) -> Iterator[tuple[str, ...]]:
    for i, (name, given) in enumerate(zip(source.ids, source.labels, strict=True)):
        label = found.classes[found.suggested[i]] if changed[i] else given
        yield escape(name), escape(label), escape(given), _yes_no(changed[i])


def _yes_no(value: Any) -> str:
    return "true" if value else "false"


def count_of(mask: NDArray[np.bool_] | None) -> int:
    """How many are marked."""
    return 0 if mask is None else int(mask.sum())
