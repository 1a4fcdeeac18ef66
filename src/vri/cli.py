"""The command line: `vri demo`, `vri bench`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vri import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 2 for a mistake of the caller, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, OSError) as error:
        print(f"vri {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on where it was", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vri",
        description="Train classifiers on wrongly labelled data: Variational Rectification Inference.",
    )
    parser.add_argument("--version", action="version", version=f"vri {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    demo = commands.add_parser("demo", help="VRI beside three baselines on data with wrong labels, in two minutes")
    demo.add_argument("--dataset", default="digits", help="digits (embedded) or fashion-mnist")
    demo.add_argument("--noise", default="flip", help="flip, uniform, pair or instance")
    demo.add_argument("--rate", type=float, default=0.4, help="share of noise, 0 to 1 (default: 0.4)")
    demo.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    demo.add_argument("--epochs", type=int, help="instead of the data set's own number")
    demo.add_argument("--root", type=Path, help="folder with the data set's files, where it isn't found")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for table and picture (default: demo)")
    demo.set_defaults(run=_demo)

    bench = commands.add_parser("bench", help="speed, memory and exactness of a step, in five minutes")
    bench.add_argument("--out", type=Path, help="write the report as JSON, too")
    bench.add_argument("--quick", action="store_true", help="fewer rounds: a first impression")
    bench.add_argument("--only", nargs="+", help="only these parts")
    bench.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    bench.set_defaults(run=_bench)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from vri import demo  # imports matplotlib, which --help needn't wait for

    print(
        demo.run(
            options.dataset,
            options.noise,
            options.rate,
            options.seeds,
            options.out,
            options.epochs,
            options.root,
        )
    )
    return 0


def _bench(options: argparse.Namespace) -> int:
    from vri import benchmark

    report = benchmark.run(quick=options.quick, out=options.out, only=options.only, device=options.device)
    print(benchmark.format_table(report))
    return 0
