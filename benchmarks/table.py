"""One table per experiment: a line of JSON for each run, with its settings and what came out.

Runs that the table has are not done again. Several processes, also on several machines, may fill the same table: each
line is written whole, and of two with the same settings the first counts.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vri.paper.runs import RunTable, key_of

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The runs, settings and results side by side."""
    return [{**row["settings"], **row} for row in RunTable(path).rows().values()]


def fill(
    path: Path,
    settings: Iterable[Row],
    measure: Callable[[Row], Row | None],
    show: Callable[[Row], str],
    *,
    processes: int = 1,
    minutes: float = 60,
    one_each: bool = False,
) -> None:
    """Measure what the table lacks, and say so.

    Args:
        path: of the table.
        settings: of all runs; their hash is the run's key.
        measure: does one of them; None leaves it out.
        show: what to print of a row.
        processes: how many work at once.
        minutes: after which no result is waited for.
        one_each: a new process for each run, so that their memory can be told apart.
    """
    table = RunTable(path)
    todo = {key: each for each in settings if (key := key_of(each)) not in table.rows()}
    print(f"{len(todo)} runs to do, {len(table.rows())} done before", flush=True)
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, torch.set_num_threads, (1,), 1 if one_each else None) as pool:
        for count, (key, result) in enumerate(pool.imap_unordered(partial(_measure, measure), todo.items()), 1):
            if result is not None:
                row = {"key": key, "settings": todo[key], **result}
                table.append(row)
                left = (len(todo) - count) * (time.monotonic() - start) / count
                print(f"{count}/{len(todo)} {show({**todo[key], **row})} ({left:.0f} s left)", flush=True)
            if time.monotonic() - start > 60 * minutes:
                print("time is up; the same command resumes", flush=True)
                pool.terminate()
                return


def _measure(measure: Callable[[Row], Row | None], item: tuple[str, Row]) -> tuple[str, Row | None]:
    key, settings = item
    return key, measure(settings)
