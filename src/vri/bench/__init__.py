"""The benchmark behind `vri bench`: accuracy of the meta gradient, time and memory of a step, overhead, and data.

All ratios are measured side by side: the variants take turns step by step, so that a busy machine slows all of them
alike. A ratio is the median over rounds of the ratios within a round.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vri.bench.accuracy import measure_accuracy
from vri.bench.data import measure_data
from vri.bench.memory import measure_memory
from vri.bench.report import Measurement, Report, describe_machine, format_table
from vri.bench.small import measure_small
from vri.bench.timing import Sizes, measure_overhead, measure_time

__all__ = ["MEASURES", "STOPPED", "Report", "format_table", "run_benchmark"]

Measure = Callable[[Sizes, str], tuple[list[Measurement], dict[str, Any]]]

STOPPED = "stopped during"
FULL = Sizes()
QUICK = Sizes(rounds=3, periods=1, extra_rounds=0, memory_runs=1, memory_steps=2, overhead_steps=50, embeddings=500)
MEASURES: dict[str, Measure] = {
    "accuracy": measure_accuracy,
    "time": measure_time,
    "memory": measure_memory,
    "overhead": measure_overhead,
    "small": measure_small,
    "data": measure_data,
}


def run_benchmark(
    *,
    quick: bool = False,
    out: Path | None = None,
    only: Sequence[str] | None = None,
    progress: bool = True,
    device: str = "cpu",
    measures: Mapping[str, Measure] = MEASURES,
) -> Report:
    """Take all `measures`, or those named in `only`; write the report to `out` as JSON.

    Interrupted, it returns what has been measured, and `settings` name the part that was not; at first there is
    nothing to return.

    `quick` keeps the sizes of the networks and batches but takes few samples, so its ratios are rough.
    """
    unknown = sorted(set(only or ()) - set(measures))
    if unknown:
        raise ValueError(f"only={', '.join(unknown)} is no part of the benchmark: expected {', '.join(measures)}")
    sizes = QUICK if quick else FULL
    settings = {"quick": quick, "batch": sizes.batch, "image": sizes.image}
    report, start = Report(describe_machine(device), settings), time.perf_counter()
    for name, measure in measures.items():
        if only and name not in only:
            continue
        if progress:
            print(f"vri bench: {name} ...", file=sys.stderr, flush=True)
        try:
            rows, raw = measure(sizes, device)
        except KeyboardInterrupt:
            if not report.rows:
                raise
            report.settings[STOPPED] = name
            break
        report.rows += rows
        report.raw[name] = raw
    report.seconds = time.perf_counter() - start
    if out is not None:
        report.save(out)
    return report
