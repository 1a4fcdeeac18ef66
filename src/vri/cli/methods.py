"""`vri methods`."""

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("methods", help="list the methods: what they need and cost, where they come from")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from vri.methods import METHODS

    print(f"{'method':<17} {'trusted':<9} {'networks':<9} {'time':>4} {'memory':>6}  what it does, and its paper")
    for name, method in METHODS.items():
        trusted = ("optional" if method.can_select else "needed") if method.needs_trusted else "-"
        what = (method.__doc__ or "").strip().splitlines()[0]
        time, memory = ("?", "?") if method.cost is None else method.cost
        print(f"{name:<17} {trusted:<9} {method.networks:<9} {time:>4} {memory:>6}  {what}")
        if method.paper:
            print(f"{'':<50} {method.paper}")
    print("\ntrusted: whether it needs samples that are known to be right (optional: it can select some itself)")
    print("time and peak memory of a step: ResNet-32, batches of 100, 2 cores, cross-entropy = 1 (vri bench);")
    print("? is not measured")
    return 0
