"""`vri doctor`."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine; prints what to paste into a bug report",
        description="Versions, devices, data sets, folders, and whether this build of torch computes the meta gradient "
        "rightly. Exit code 1 if a check fails.",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri.cli.checkup import run

    return run(options)
