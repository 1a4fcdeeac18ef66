"""`vri methods`."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("methods", help="list the methods: what they need, where they come from")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri.methods import METHODS

    print(f"{'method':<17} {'clean data':<11} {'networks':<9} what it does, and its paper")
    for name, method in METHODS.items():
        clean = "needed" if method.needs_clean and not method.can_select else "optional" if method.needs_clean else "-"
        what = (method.__doc__ or "").strip().splitlines()[0]
        print(f"{name:<17} {clean:<11} {method.networks:<9} {what}")
        if method.paper:
            print(f"{'':<39} {method.paper}")
    return 0
