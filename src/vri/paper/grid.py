"""Many independent runs: resumable, in parallel, and on several machines that share a folder.

Each job is one training run with a small result file of its own. Workers claim a job by creating a file that only one
of them can create, touch it while they work, and remove it in the end. A claim that was not touched for long, or whose
process is no more on this machine, belongs to a dead worker and is taken over. A job that was stopped goes on from its
checkpoint.
"""

import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch

from vri.core.checks import DivergenceError
from vri.files import atomic_write
from vri.paper.examine import EXAMINATIONS
from vri.paper.experiment import Record, run
from vri.paper.settings import Settings
from vri.training.progress import Row, say_nothing

HEARTBEAT = 20.0  # seconds between two touches of a claim
STALE = 180.0  # seconds without one after which its worker is taken for dead
_KEPT = ("last", "last_10_mean", "best_chosen_on_test", "noise_rate", "noise_hash", "split_hash", "seconds")
_WAIT = 2.0  # seconds between two looks at jobs that others work on


@dataclass(frozen=True)
class Job:
    """One run of a grid.

    Attributes:
        name: what it is known by; also the name of its files.
        settings: all that it depends on.
        curves: whether the result has all epochs, or only the last one.
        examine: what else is looked at when the training is over: a name of `examine.EXAMINATIONS`.
    """

    name: str
    settings: Settings
    curves: bool = False
    examine: str | None = None

    def result(self, folder: Path) -> Path:
        """The file with what came out."""
        return folder / f"{self.name}.json"


def run_grid(jobs: Sequence[Job], folder: Path, *, workers: int = 1, minutes: float | None = None) -> bool:
    """Do all jobs without a result, in `workers` processes; whether all have one in the end.

    Several calls, on one machine or on many, may share a folder. After `minutes` no new job is begun.
    """
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"jobs {', '.join(twice[:5])} are there twice; expected each name once")
    if workers < 1:
        raise ValueError(f"workers={workers}: expected 1 or more")
    folder.mkdir(parents=True, exist_ok=True)
    deadline = None if minutes is None else time.time() + 60 * minutes
    if workers == 1:
        work(jobs, folder, deadline)
    else:
        context = multiprocessing.get_context("spawn")
        troubles: SimpleQueue[Exception] = context.SimpleQueue()
        crew = [context.Process(target=_worker, args=(troubles, jobs, folder, deadline)) for _ in range(workers)]
        for process in crew:
            process.start()
        try:
            alive = list(crew)
            while alive:  # one that died is taken note of at once, so that its claim is free
                wait([process.sentinel for process in alive])
                alive = [process for process in alive if process.is_alive()]
        except KeyboardInterrupt:
            _end(crew)
            raise
        if not troubles.empty():
            raise troubles.get()
        codes = [process.exitcode for process in crew if process.exitcode]
        if codes and missing(jobs, folder):
            raise ChildProcessError(
                f"{len(codes)} of {workers} workers died (exit codes {', '.join(map(str, codes))}; a negative one is "
                "a signal, -9 often means too little memory); the same call goes on"
            )
    return not missing(jobs, folder)


def _worker(troubles: "SimpleQueue[Exception]", jobs: Sequence[Job], folder: Path, deadline: float | None) -> None:
    """A process of `run_grid`; it tells what went wrong there, and does not outlive it."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # Ctrl-C in a terminal is not for us: `run_grid` passes it on, once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(jobs, folder, deadline, threads=1)
    except KeyboardInterrupt:  # saved what it had
        sys.exit(130)
    except Exception as error:
        if not isinstance(error, (ValueError, OSError, ImportError)):
            traceback.print_exc()
        try:
            troubles.put(error)
        except Exception:  # one that can't be sent
            troubles.put(RuntimeError(f"{type(error).__name__}: {error}"))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


def _end(crew: Sequence[BaseProcess]) -> None:
    """Let the workers save their step and end; with a second Ctrl-C at once, with a third whatever they do."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        for process in crew:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)
        try:
            for process in crew:
                process.join()
            return
        except KeyboardInterrupt:
            continue


def missing(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Those without a result."""
    return [job for job in jobs if not job.result(folder).exists()]


def results(jobs: Sequence[Job], folder: Path) -> dict[str, Record]:
    """What came out of those that have a result, by name."""
    return {job.name: json.loads(job.result(folder).read_text()) for job in jobs if job.result(folder).exists()}


def work(jobs: Sequence[Job], folder: Path, deadline: float | None = None, threads: int | None = None) -> None:
    """Do jobs until none is left, or none but those that others work on; a worker's whole life.

    One that can't be done (a ValueError) is left for last: the others are, and then it is told of.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    start, done, before = time.monotonic(), 0, len(jobs) - len(missing(jobs, folder))
    failed: dict[str, ValueError] = {}
    while todo := [job for job in missing(jobs, folder) if job.name not in failed]:
        begun = False
        for job in todo:
            if deadline is not None and time.time() > deadline:
                return
            with claimed(folder / f".{job.name}.claim") as mine:
                if not mine or job.result(folder).exists():
                    continue
                begun = True
                try:
                    _do(job, folder)
                except OSError:
                    if not job.result(folder).exists():
                        raise
                    continue  # we were suspended and taken for dead: another one has done it, and tidied up
                except ValueError as error:
                    failed[job.name] = error
                    continue
                done += 1
                finished = len(jobs) - len(missing(jobs, folder))
                pace = (time.monotonic() - start) / max(1, finished - before)  # of all workers together
                left = (len(jobs) - finished) * pace
                print(f"{finished}/{len(jobs)} {job.name} ({left:.0f} s left)", file=sys.stderr, flush=True)
        if not begun:
            time.sleep(_WAIT)  # all that is left is claimed: wait, in case a worker dies
    if failed:
        (name, first), *more = failed.items()
        others = f" ({len(more)} more runs failed)" if more else ""
        raise ValueError(f"{name}: {first}{others}") from first


def _do(job: Job, folder: Path) -> None:
    runs = folder / "unfinished" / job.name
    defaults = Settings().as_dict()
    # where files lay and how the result was computed is nobody's business
    chosen = {k: v for k, v in job.settings.as_dict().items() if v != defaults[k] and k not in ("root", "workers")}
    small: Record = {"name": job.name, "settings": {"seed": job.settings.seed, **chosen}}
    look = None if job.examine is None else EXAMINATIONS[job.examine]
    try:
        record = run(
            replace(job.settings, tensorboard=False),
            runs,
            resume=True,
            progress=False,
            examine=look,
            on_remark=say_nothing,  # such as how to go on, which the command says itself
        )
    except DivergenceError as error:  # so it would each time: a result, too; what follows its first sentence is advice
        small |= dict.fromkeys(_KEPT) | {"failed": str(error).partition(". ")[0], "epochs": []}
    else:
        small |= {key: record[key] for key in _KEPT}
        small["epochs"] = [_rounded(row) for row in record["epochs"]] if job.curves else record["epochs"][-1:]
        if job.examine is not None:
            small["examined"] = record["examined"]
    with atomic_write(job.result(folder)) as file:
        file.write(json.dumps(small).encode() + b"\n")
    shutil.rmtree(runs, ignore_errors=True)


def _rounded(row: Row) -> Row:
    """An epoch without what can be read elsewhere, in six digits: there are many of them."""
    short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items() if v is not None}
    return {k: v for k, v in short.items() if v == v}


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether the claim is ours; while it is, it is touched, and afterwards removed."""
    token = f"{_machine()} {os.getpid()} {uuid.uuid4().hex}"
    if not _claim(path, token):
        yield False
        return
    ended = threading.Event()
    beat = threading.Thread(target=_touch, args=(path, token, ended), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        ended.set()
        beat.join()
        if _is_ours(path, token):
            path.unlink(missing_ok=True)


def _claim(path: Path, token: str) -> bool:
    if _create(path, token):
        return True
    if not _stale(path):
        return False
    # Among those who find it stale, one at a time looks again and takes it over. Should that one die in between, its
    # own file gets stale too and is simply removed: this needs two deaths and two quick rivals to go wrong.
    guard = path.with_name(f"{path.name}.takeover")
    if not _create(guard, token):
        if _stale(guard):
            guard.unlink(missing_ok=True)
        return False
    try:
        if _stale(path):
            path.unlink(missing_ok=True)
        return _create(path, token)
    finally:
        guard.unlink(missing_ok=True)


def _create(path: Path, token: str) -> bool:
    """Create the file, unless it exists: only one of many can."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(token)
    except FileExistsError:
        return False
    return True


def _stale(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > STALE or _owner_is_dead(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False


def _owner_is_dead(token: str) -> bool:
    """Whether the claim is of a process of this machine that is no more; of other machines nothing is known."""
    machine, _, rest = token.partition(" ")
    number = rest.partition(" ")[0]
    if sys.platform != "linux" or machine != _machine() or not number.isdigit():  # also one that is not written yet
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


@cache
def _machine() -> str:
    """Where process numbers mean the same: this machine since it was started, and this container."""
    known = [socket.gethostname().replace(" ", "-")]
    if sys.platform == "linux":
        known += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return "/".join(known)


def _is_ours(path: Path, token: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == token
    except OSError:
        return False


def _touch(path: Path, token: str, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT):
        if not _is_ours(path, token):  # we were taken for dead
            return
        try:
            os.utime(path)
        except OSError:
            return
