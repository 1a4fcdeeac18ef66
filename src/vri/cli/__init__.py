"""The command line: one small file a command, each with a function `add` that describes and runs it."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from vri import __version__
from vri.checks import DivergenceError
from vri.cli import apply, bench, clean, data, demo, methods, noise, train

COMMANDS = (clean, apply, demo, train, methods, data, noise, bench)  # in the order of --help


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 1 for a training that diverged, 2 for a mistake of the caller, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, OSError, ImportError) as error:
        print(f"vri {options.command}: {error}", file=sys.stderr)
        return 2
    except DivergenceError as error:
        print(f"vri {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = "the same command" + (" with --resume" if hasattr(options, "resume") and not options.resume else "")
        print(f"\nstopped; {again} goes on where it was", file=sys.stderr)
        return 130


class _Intermixed(argparse.ArgumentParser):
    """Takes options and other arguments in any order: ``vri train a.toml --seed 1 lr=0.1``."""

    _inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in the base class, which has the order fixed unless it is called in another way."""
        if self._inside or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._inside = False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vri",
        description="Train classifiers on wrongly labelled data: Variational Rectification Inference.",
    )
    parser.add_argument("--version", action="version", version=f"vri {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", parser_class=_Intermixed)
    for command in COMMANDS:
        command.add(commands)
    return parser
