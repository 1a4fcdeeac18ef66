"""The command line: one small file per command, each with a function `add` that describes and runs it."""

import argparse
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vri import __version__
from vri.cli import apply, bench, clean, data, demo, doctor, methods, noise, reproduce, train

COMMANDS = (clean, apply, demo, train, methods, data, noise, bench, reproduce, doctor)  # in the order of --help


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 1 if training diverged, 2 for a mistake of the user, 130 for Ctrl-C, 143 for SIGTERM."""
    options = _parser().parse_args(arguments)
    with _terminated_like_interrupted() as terminated:
        code = _run(options)
    return 143 if code == 130 and terminated.is_set() else code


def _run(options: argparse.Namespace) -> int:
    try:
        code = int(options.run(options))
        sys.stdout.flush()  # a signal while Python exits must not lose the output
        return code
    except (ValueError, OSError, ImportError) as error:
        broken = isinstance(error, BrokenPipeError)
        if not _heard("\n" if broken else "") and broken:
            return 128 + signal.SIGPIPE
        print(f"vri {options.command}: {_reason(error)}", file=sys.stderr)
        return 2
    except FloatingPointError as error:  # training produced NaN or Inf
        print(f"vri {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = "the same command" + (" with --resume" if hasattr(options, "resume") and not options.resume else "")
        resumes = getattr(options, "resumes", False)
        print("\nstopped" + (f"; {again} continues where it left off" if resumes else ""), file=sys.stderr)
        return 130


def _heard(more: str) -> bool:
    """Whether output still reaches anyone; after `vri methods | head -1` it doesn't, which is not an error."""
    try:
        print(more, end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it exits
        return False
    return True


def _reason(error: Exception) -> str:
    """What went wrong; the system's own message for a full disk or a forbidden folder would not help."""
    if not isinstance(error, OSError) or error.strerror is None:  # our own message
        return str(error)
    where = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"the disk is full{where}; free some space, then run the same command again: what is whole is kept"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename:
        return f"{error.filename} can't be used ({error.strerror}); choose another place, or change its permissions"
    return str(error)


@contextmanager
def _terminated_like_interrupted() -> Iterator[threading.Event]:
    """Let SIGTERM, with which schedulers and containers end a process, act like Ctrl-C; the event records it.

    Does nothing if the signal is not ours to handle: in another thread, or if there is already a handler.
    """
    terminated = threading.Event()
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield terminated
        return
    ours = os.getpid()

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != ours:  # a child process that has not set its own handler yet
            os._exit(128 + number)
        terminated.set()
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)  # to whoever waits for it: the training loop finishes its step first
        else:  # ignored, as in a shell's background jobs
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handle)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Intermixed(argparse.ArgumentParser):
    """Takes options and other arguments in any order: ``vri train a.toml --seed 1 lr=0.1``."""

    _inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in the base class, but in any order."""
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
