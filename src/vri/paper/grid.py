"""Many independent runs: resumable, in parallel, and on several machines that share a folder.

Processes take runs from one list. Each locks a run while it works on it. When a process dies its lock is released, and
the next process to take the run resumes from the last checkpoint. The result is a line of ``runs.jsonl``.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch

from vri.core.checks import DivergenceError
from vri.paper.examine import EXAMINATIONS
from vri.paper.runs import Record, RunTable, content, key_of, locked
from vri.paper.settings import Settings
from vri.paper.training_run import train_run
from vri.training.progress import say_nothing

TABLE = "runs.jsonl"
UNFINISHED = "unfinished"  # folder of checkpoints and locks
CLUSTERS = ("slurm", "local")
_KEPT = ("last", "last_10_mean", "best_chosen_on_test", "noise_rate", "noise_hash", "split_hash", "seconds")
_WAIT = 2.0  # seconds between two checks of runs that others work on


@dataclass(frozen=True)
class Run:
    """One run of a grid."""

    settings: Settings  # everything that it depends on
    curves: bool = False  # whether the result contains all evaluated epochs or only the last one
    examine: str | None = None  # what else to examine at the end of the training: a name in `examine.EXAMINATIONS`

    @cached_property
    def content(self) -> Record:
        """What identifies the run."""
        return content(self.settings) | ({} if self.examine is None else {"examine": self.examine})

    @cached_property
    def key(self) -> str:
        """Its key in the table."""
        return key_of(self.content)

    def __str__(self) -> str:
        s = self.settings
        noise = "" if s.noise == "none" else f", {s.noise} {s.rate:g}"
        return f"{s.method} on {s.dataset}{noise}, seed {s.seed} ({self.key[:8]})"


def results(runs: Sequence[Run], folder: Path) -> dict[str, Record]:
    """The results of finished runs, by key."""
    rows = RunTable(folder / TABLE).rows()
    return {run.key: rows[run.key] for run in runs if run.key in rows}


def missing(runs: Sequence[Run], folder: Path) -> list[Run]:
    """The runs without a result."""
    done = results(runs, folder)
    return [run for run in runs if run.key not in done]


def run_grid(runs: Sequence[Run], folder: Path, *, processes: int = 1, minutes: float | None = None) -> bool:
    """Do all runs without a result, in this many processes; return whether all have one in the end.

    Several calls, on one machine or many, may share a folder. No run starts after `minutes`.
    """
    if processes < 1:
        raise ValueError(f"processes={processes}: expected 1 or more")
    deadline = None if minutes is None else time.time() + 60 * minutes
    if processes == 1:
        work(runs, folder, deadline)
        return not missing(runs, folder)
    context = multiprocessing.get_context("forkserver")  # imports torch once, where "spawn" does so in each process
    context.set_forkserver_preload([__name__])
    errors: SimpleQueue[Exception] = context.SimpleQueue()
    started = [context.Process(target=_work_in_child, args=(errors, runs, folder, deadline)) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        alive: list[BaseProcess] = [*started]
        while alive:  # a process that died is waited for at once, or its id would still look alive
            wait([process.sentinel for process in alive])
            alive = [process for process in alive if process.is_alive()]
    except KeyboardInterrupt:
        _stop(started)
        raise
    if not errors.empty():
        raise errors.get()
    left = missing(runs, folder)
    codes = [process.exitcode for process in started if process.exitcode]
    if codes and left:
        raise ChildProcessError(
            f"{len(codes)} of {processes} processes died (exit codes {', '.join(map(str, codes))}; a negative one is "
            "a signal, -9 often means too little memory); the same call resumes"
        )
    return not left


def work(runs: Sequence[Run], folder: Path, deadline: float | None = None, threads: int | None = None) -> None:
    """Do runs until all are done, by us or by others.

    A run that fails (with a ValueError) doesn't end the grid: the error is raised when all others are done.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    table, unfinished = RunTable(folder / TABLE), folder / UNFINISHED
    unfinished.mkdir(parents=True, exist_ok=True)
    keys = {run.key for run in runs}
    start, before = time.monotonic(), len(keys & table.rows().keys())
    failed: dict[str, ValueError] = {}
    late = False
    while not late and (todo := [run for run in runs if run.key not in table.rows() and run.key not in failed]):
        begun = False
        for run in todo:
            if late := deadline is not None and time.time() > deadline:
                break
            lock = unfinished / f"{run.key}.lock"
            with locked(lock, wait=False) as mine:
                if mine is None:
                    continue
                if run.key not in table.rows():
                    begun = True
                    try:
                        table.append(_train(run, unfinished / run.key))
                    except ValueError as error:
                        failed[run.key] = ValueError(f"{run}: {error}")
                        continue
                    except OSError:  # a network can lose a lock: then another process has done the run and cleaned up
                        if run.key not in table.rows():
                            raise
                    finished = len(keys & table.rows().keys())
                    pace = (time.monotonic() - start) / max(1, finished - before)  # of all processes together
                    left = (len(keys) - finished) * pace
                    print(f"{finished}/{len(keys)} {run} ({left:.0f} s left)", file=sys.stderr, flush=True)
                shutil.rmtree(unfinished / run.key, ignore_errors=True)
            with suppress(OSError):  # a process that still holds it finds the run in the table
                lock.unlink()
        if not begun and not late:
            time.sleep(_WAIT)  # others work on all remaining runs: wait, in case one of them dies
    if failed:
        first, *more = failed.values()
        others = f" ({len(more)} more runs failed)" if more else ""
        raise ValueError(f"{first}{others}") from first
    with suppress(OSError):  # others may need it
        unfinished.rmdir()


def _train(run: Run, out: Path) -> Record:
    """Do a run, or the rest of it; return its row of the table."""
    row: Record = {"key": run.key, "settings": run.content}
    look = None if run.examine is None else EXAMINATIONS[run.examine]
    settings = replace(run.settings, tensorboard=False)
    try:  # without remarks, such as how to resume, which the command prints itself
        record = train_run(settings, out, resume=True, progress=False, examine=look, on_remark=say_nothing)
    except DivergenceError as error:  # a result too: it would diverge each time
        return row | dict.fromkeys(_KEPT) | {"failed": str(error).partition(". ")[0], "epochs": {}}
    epochs = record["epochs"][-1:]
    if run.curves:  # where most epochs are not evaluated, those that are tell enough
        epochs = [each for each in record["epochs"] if each.get("test_accuracy") is not None] or record["epochs"]
    row |= {key: record[key] for key in _KEPT} | {"epochs": as_columns(epochs)}
    return row | ({} if run.examine is None else {"examined": record["examined"]})


def as_columns(epochs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A history as one list per quantity, to six digits; quantities without any value are left out."""
    names = dict.fromkeys(name for row in epochs for name in row)
    columns = {name: [_rounded(row.get(name)) for row in epochs] for name in names}
    return {name: values for name, values in columns.items() if any(v is not None for v in values)}


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if value == value else None


def _work_in_child(errors: "SimpleQueue[Exception]", runs: Sequence[Run], folder: Path, deadline: float | None) -> None:
    """A process of `run_grid`: passes its error on, and does not outlive the process that started it."""
    os.setpgid(0, 0)  # don't receive Ctrl-C from the terminal: `run_grid` passes it on, once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(runs, folder, deadline, threads=1)
    except KeyboardInterrupt:  # the run has been saved
        sys.exit(130)
    except Exception as error:
        if not isinstance(error, (ValueError, OSError, ImportError)):
            traceback.print_exc()
        try:
            errors.put(error)
        except Exception:  # an error that can't be pickled
            errors.put(RuntimeError(f"{type(error).__name__}: {error}"))
        sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Let them save their step and end; a second Ctrl-C ends them at once, a third kills them."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)
        try:
            for process in processes:
                process.join()
            return
        except KeyboardInterrupt:
            continue


def submit(
    runs: Sequence[Run], folder: Path, *, cluster: str, processes: int, options: Mapping[str, Any] | None = None
) -> list[Any]:
    """Do the runs in jobs on a cluster; each job works until none is left.

    All machines must see `folder`; its subfolder ``submitit`` has the logs. The cluster is "slurm", or "local" for
    processes on this machine; `options` are those of submitit's executor. Returns submitit's jobs.
    """
    if cluster not in CLUSTERS:
        raise ValueError(f"cluster={cluster!r}: expected one of {', '.join(CLUSTERS)}")
    try:
        import submitit
    except ImportError:
        raise ImportError("--submit needs submitit, which is not installed: pip install 'vri[slurm]'") from None
    executor = submitit.AutoExecutor(folder=folder / "submitit", cluster=cluster)
    try:
        executor.update_parameters(name="vri", **{"timeout_min": 24 * 60, **(options or {})})
    except (NameError, TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"submitit refused an option ({error}); expected such as timeout_min=600") from None
    threads = int((options or {}).get("cpus_per_task", 1))
    with executor.batch():
        return [executor.submit(work, list(runs), folder, None, threads) for _ in range(processes)]
