"""`vri bench`."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("bench", help="speed, memory and exactness of a step, in five minutes")
    parser.add_argument("--out", type=Path, help="write the report as JSON, too")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first impression")
    parser.add_argument("--only", nargs="+", help="only these parts")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri import benchmark

    report = benchmark.run(quick=options.quick, out=options.out, only=options.only, device=options.device)
    print(benchmark.format_table(report))
    return 0
