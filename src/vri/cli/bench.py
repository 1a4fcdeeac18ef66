"""`vri bench`."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("bench", help="measure speed, memory and exactness of a step, in five minutes")
    parser.add_argument("--out", type=Path, help="also write the report as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first impression")
    parser.add_argument("--only", nargs="+", help="only these parts")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--methods", action="store_true", help="measure time and memory of every method instead, 13 minutes"
    )
    instead.add_argument(
        "--distributed", action="store_true", help="measure bytes and time of a step on two workers instead"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri.bench import MEASURES, STOPPED, format_table, run_benchmark

    measures = MEASURES
    if options.methods:
        from vri.bench.methods import measure_methods

        measures = {"methods": measure_methods}
    if options.distributed:
        from vri.bench.distributed import measure_distributed

        measures = {"distributed": measure_distributed}
    report = run_benchmark(
        quick=options.quick, out=options.out, only=options.only, device=options.device, measures=measures
    )
    print(format_table(report))
    if STOPPED in report.settings:
        raise KeyboardInterrupt
    return 0
