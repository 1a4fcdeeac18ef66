"""`vri demo`."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "demo", help="compare VRI with three baselines on data with wrong labels, in two minutes"
    )
    parser.add_argument("--dataset", default="digits", help="digits (included) or fashion-mnist")
    parser.add_argument("--noise", default="flip", help="flip, uniform, pair or instance")
    parser.add_argument("--rate", type=float, default=0.4, help="share of noise, 0 to 1 (default: 0.4)")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--epochs", type=int, help="number of epochs (default: depends on the data set)")
    parser.add_argument("--root", type=Path, help="folder with the data set's files, if they aren't found")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for table and picture (default: demo)")
    parser.set_defaults(run=_run, resumes=True)


def _run(options: argparse.Namespace) -> int:
    from vri.paper.demo import compare  # imports matplotlib, which would slow down --help

    given = (options.dataset, options.noise, options.rate, options.seeds, options.out, options.epochs, options.root)
    print(compare(*given))
    return 0
