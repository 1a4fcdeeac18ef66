"""`vri doctor`."""

import argparse
import json
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine; what to paste into a bug report",
        description="Versions, devices, data sets, folders, and whether this build of torch computes the meta gradient "
        "rightly. Exit code 1 if a check fails.",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri.cli.checkup import examine

    found = examine()
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        failed = sum(not check.ok for check in found.checks)
        print(found.as_text())
        print(f"\n{'all is well' if found.well else f'{failed} of {len(found.checks)} checks failed'}")
        print("In a bug report, please paste all of the above.")
    return 0 if found.well else 1
