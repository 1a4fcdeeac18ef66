"""Grids of runs: each job once, whoever dies."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vri.paper import grid
from vri.paper.grid import Job, claimed, missing, results, run_grid
from vri.paper.settings import Settings

SMALL: dict[str, Any] = {"dataset": "digits", "noise": "flip", "clean": 20, "limit": 60, "epochs": 1, "batch_size": 20}


def jobs(count: int = 3, **changes: Any) -> list[Job]:
    settings = {**SMALL, "method": "cross-entropy", **changes}
    return [Job(f"job-{seed}", Settings(**{**settings, "seed": seed})) for seed in range(count)]


def test_all_jobs_get_a_result_and_are_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_grid(jobs(), tmp_path)
    assert [line.split(" (")[0] for line in capsys.readouterr().err.splitlines()] == [
        "1/3 job-0",
        "2/3 job-1",
        "3/3 job-2",
    ]
    found = results(jobs(), tmp_path)
    assert [found[f"job-{seed}"]["settings"]["seed"] for seed in range(3)] == [0, 1, 2]
    assert all(0 <= record["last"] <= 1 for record in found.values())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job-0.json", "job-1.json", "job-2.json", "unfinished"]
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.json")}
    assert run_grid(jobs(4), tmp_path)  # only the fourth
    assert all(p.stat().st_mtime_ns == t for p, t in times.items())


def test_the_deadline_begins_no_job(tmp_path: Path) -> None:
    assert not run_grid(jobs(), tmp_path, minutes=0)
    assert len(missing(jobs(), tmp_path)) == 3


def test_a_claim_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / ".a.claim"
    with claimed(path) as first:
        assert first
        assert path.read_text().split()[1] == str(os.getpid())
        with claimed(path) as second:
            assert not second
        assert path.exists()  # the second one did not remove it
    assert not path.exists()


def test_a_claim_that_was_not_touched_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / ".a.claim"
    path.write_text("{}")
    os.utime(path, (0, time.time() - grid.STALE - 1))
    with claimed(path) as mine:
        assert mine
        assert path.read_text().split()[1] == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_one_taken_for_dead_leaves_the_claim_of_the_other(tmp_path: Path) -> None:
    path = tmp_path / ".a.claim"
    with claimed(path) as first:
        assert first
        os.utime(path, (0, 0))
        with claimed(path) as second:
            assert second
            owner = path.read_text()
            path.write_text(owner)
        path.write_text(owner)  # the second one is still at work
    assert path.read_text() == owner


def test_a_claim_is_touched_while_its_worker_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "HEARTBEAT", 0.02)
    path = tmp_path / ".a.claim"
    with claimed(path):
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > time.time() - 60


def take(path: Path, barrier: Any, out: Any) -> None:
    barrier.wait()
    with claimed(path) as mine:
        out.put(mine)
        time.sleep(0.3)


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_processes_one_gets_the_claim(stale: bool, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    path = tmp_path / ".a.claim"
    if stale:
        path.write_text("{}")
        os.utime(path, (0, 0))
    barrier, out = context.Barrier(6), context.Queue()
    crew = [context.Process(target=take, args=(path, barrier, out)) for _ in range(6)]
    for process in crew:
        process.start()
    got = [out.get(timeout=30) for _ in crew]
    for process in crew:
        process.join()
    assert got.count(True) == 1


def test_two_workers_share_the_jobs(tmp_path: Path) -> None:
    assert run_grid(jobs(4), tmp_path, workers=2)
    assert not missing(jobs(4), tmp_path)
    assert not list(tmp_path.glob(".*.claim*"))


def test_a_killed_job_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    job = [replace(each, curves=True) for each in jobs(1, epochs=40, checkpoint_every=2)]
    assert run_grid(job, tmp_path / "whole")
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=grid.work, args=(job, tmp_path / "killed", None, 1))
    (tmp_path / "killed").mkdir()
    worker.start()
    history = tmp_path / "killed" / "unfinished" / "job-0" / "checkpoint.pt"
    deadline = time.monotonic() + 60
    while not history.exists() and worker.is_alive() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    if not (tmp_path / "killed" / "job-0.json").exists():
        assert (tmp_path / "killed" / ".job-0.claim").exists()
        assert run_grid(job, tmp_path / "killed")
    a, b = (results(job, tmp_path / name)["job-0"] for name in ("whole", "killed"))
    assert a["last"] == b["last"]
    assert len(a["epochs"]) == 40
    drop = ("seconds",)
    assert [{k: v for k, v in r.items() if k not in drop} for r in a["epochs"]] == [
        {k: v for k, v in r.items() if k not in drop} for r in b["epochs"]
    ]


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs job-0 are there twice; expected each name once"):
        run_grid(jobs(1) * 2, tmp_path)
    with pytest.raises(ValueError, match="workers=0: expected 1 or more"):
        run_grid(jobs(), tmp_path, workers=0)


def test_a_suspended_worker_whose_job_another_has_done_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = jobs(2)
    honest = grid._do

    def overtaken(job: Job, folder: Path) -> None:
        honest(job, folder)  # by the other one, which removes the unfinished run
        if job.name == "job-0":
            raise FileNotFoundError("unfinished/job-0/.checkpoint.pt.tmp")

    monkeypatch.setattr(grid, "_do", overtaken)
    grid.work(todo, tmp_path)
    assert missing(todo, tmp_path) == []
    monkeypatch.setattr(grid, "_do", lambda job, folder: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        grid.work(jobs(3), tmp_path)


SCRIPT = """
import signal
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
signal.signal(signal.SIGINT, signal.SIG_IGN if sys.argv[3] == "ignored" else signal.default_int_handler)
if __name__ == "__main__":
    from test_grid import jobs
    from vri.cli import _terminated_like_interrupted
    from vri.paper.grid import run_grid
    with _terminated_like_interrupted():
        run_grid(jobs(4, epochs=4000, checkpoint_every=2), Path(sys.argv[2]), workers=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.parametrize(
    ("number", "interrupts"),
    [(signal.SIGKILL, "heard"), (signal.SIGINT, "heard"), (signal.SIGTERM, "ignored")],  # as in the background
)
def test_workers_end_with_the_process_that_started_them(
    number: signal.Signals, interrupts: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "grid"
    with subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), str(folder), interrupts],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        wait_for(lambda: len(list(folder.glob("unfinished/*/checkpoint.pt"))) == 2)
        owners = [int(path.read_text().split()[1]) for path in folder.glob(".*.claim")]
        assert len(owners) == 2
        os.kill(parent.pid, number)  # it alone
        wait_for(lambda: not any(lives(owner) for owner in owners))
        parent.wait(60)
        assert parent.stderr is not None
        said = parent.stderr.read()
    assert said.count("Traceback") == (number != signal.SIGKILL)  # that of the script itself
    claims = list(folder.glob(".*.claim"))
    for path in claims:  # of those that had no time to remove them
        with claimed(path) as mine:
            assert mine


def lives(number: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_fails_says_why_as_one_error(
    workers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = jobs(1, dataset="animal10n", root=str(tmp_path / "nowhere"))
    with pytest.raises((ValueError, OSError), match="nowhere"):
        run_grid(bad, tmp_path / "grid", workers=workers)
    assert "Traceback" not in capfd.readouterr().err
    assert not list((tmp_path / "grid").glob(".*.claim*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_that_can_not_be_done_is_told_of_after_the_others(workers: int, tmp_path: Path) -> None:
    good = jobs(4)
    bad = Job("bad", Settings(**{**SMALL, "method": "cross-entropy", "limit": 10**6}))
    with pytest.raises(ValueError, match=r"^bad: class 0 has 142 samples; a balanced split"):
        run_grid([bad, *good], tmp_path, workers=workers)
    assert missing([bad, *good], tmp_path) == [bad]
