"""The benchmark behind `vri bench`: accuracy of the meta gradient, time and memory of a step, overhead, and data.

All ratios are taken side by side: the variants take turns step by step, so that a busy machine slows all of
them alike, and a ratio is the median over rounds of the ratios within a round.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vri.bench.accuracy import measure_accuracy
from vri.bench.data import measure_data
from vri.bench.memory import measure_memory
from vri.bench.report import Report, Row, describe_machine, format_table
from vri.bench.timing import Sizes, measure_overhead, measure_time

__all__ = ["PARTS", "Report", "format_table", "run"]

Measure = Callable[[Sizes, str], tuple[list[Row], dict[str, Any]]]

FULL = Sizes()
QUICK = Sizes(rounds=3, periods=1, extra_rounds=0, memory_runs=1, memory_steps=2, overhead_steps=50)
PARTS: dict[str, Measure] = {
    "accuracy": measure_accuracy,
    "time": measure_time,
    "memory": measure_memory,
    "overhead": measure_overhead,
    "data": measure_data,
}


def run(
    *,
    quick: bool = False,
    out: Path | None = None,
    only: Sequence[str] | None = None,
    progress: bool = True,
    device: str = "cpu",
    parts: Mapping[str, Measure] | None = None,
) -> Report:
    """Measure all parts, or those named in `only`; write the report to `out` as JSON. `parts` gives others.

    `quick` keeps the sizes of the networks and batches but takes few samples, so its ratios are rough.
    """
    parts = PARTS if parts is None else parts
    unknown = sorted(set(only or ()) - set(parts))
    if unknown:
        raise ValueError(f"only={', '.join(unknown)} is no part of the benchmark: expected {', '.join(parts)}")
    sizes = QUICK if quick else FULL
    settings = {"quick": quick, "batch": sizes.batch, "image": sizes.image}
    report, start = Report(describe_machine(device), settings), time.perf_counter()
    for name, measure in parts.items():
        if only and name not in only:
            continue
        if progress:
            print(f"vri bench: {name} ...", file=sys.stderr, flush=True)
        rows, raw = measure(sizes, device)
        report.rows += rows
        report.raw[name] = raw
    report.seconds = time.perf_counter() - start
    if out is not None:
        report.save(out)
    return report
