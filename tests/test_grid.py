"""Tables of runs and grids that fill them: each run once, whoever dies."""

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
from vri.paper.grid import Run, missing, results, run_grid
from vri.paper.runs import RunTable, key_of, locked
from vri.paper.settings import Settings

ROOT = Path(__file__).parents[1]
SMALL: dict[str, Any] = {"dataset": "digits", "noise": "flip", "clean": 20, "limit": 60, "epochs": 1, "batch_size": 20}


def runs(count: int = 3, **changes: Any) -> list[Run]:
    settings = {**SMALL, "method": "cross-entropy", **changes}
    return [Run(Settings(**{**settings, "seed": seed})) for seed in range(count)]


# the table


def test_a_key_is_what_a_run_is_and_not_where_or_how() -> None:
    one = Run(Settings(seed=1))
    for same in ({"root": "/data"}, {"threads": 4}, {"device": "cuda"}, {"weights": "a.pth"}, {"evaluate_every": 5}):
        assert Run(replace(one.settings, **same)).key == one.key
    different = [{"seed": 2}, {"lr": 0.1}, {"options": {"samples": 2}}, {"warm_up": 0}, {"clean": 0}]
    assert len({one.key, *(Run(replace(one.settings, **d)).key for d in different)}) == 6  # type: ignore[arg-type]
    assert Run(one.settings, examine="step-time").key != one.key
    assert not {"split", "join_selected"} & one.content.keys()  # off: an option that is new changes no key


@pytest.mark.parametrize("name", ["docs/results/quick/runs.jsonl", "benchmarks/results/family/runs.jsonl"])
def test_the_rows_of_a_table_have_the_keys_of_their_settings(name: str) -> None:
    rows = RunTable(ROOT / name).rows()
    assert len(rows) == len((ROOT / name).read_text().splitlines())
    assert all(key_of(row["settings"]) == key for key, row in rows.items())
    known = Settings().as_dict().keys() | {"examine"}
    assert all(row["settings"].keys() <= known for row in rows.values())


def test_half_a_line_is_neither_read_nor_extended(tmp_path: Path) -> None:
    table = RunTable(tmp_path / "new" / "runs.jsonl")
    assert table.rows() == {}
    table.append({"key": "a", "last": 0.5})
    with open(table.path, "ab") as file:
        file.write(b'{"key": "b", "la')  # its writer was killed
    assert table.rows() == {"a": {"key": "a", "last": 0.5}}
    RunTable(table.path).append({"key": "c"})
    table.append({"key": "a", "last": 0.7})  # the first one counts
    for reader in (table, RunTable(table.path)):
        assert reader.rows() == {"a": {"key": "a", "last": 0.5}, "c": {"key": "c"}}


def test_a_row_that_can_not_be_written_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RunTable(tmp_path / "runs.jsonl")
    table.append({"key": "a"})
    before = table.path.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        table.append({"key": "b"})
    assert table.path.read_bytes() == before


def append_many(path: Path, name: str) -> None:
    for number in range(50):
        RunTable(path).append({"key": f"{name}{number}", "text": "x" * 5000})


def test_many_processes_extend_a_table(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    path = tmp_path / "runs.jsonl"
    crew = [context.Process(target=append_many, args=(path, name)) for name in "abcd"]
    for process in crew:
        process.start()
    reader = RunTable(path)
    while any(process.is_alive() for process in crew):
        assert all(len(row["text"]) == 5000 for row in reader.rows().values())
    assert {process.exitcode for process in crew} == {0}
    assert len(reader.rows()) == len(path.read_text().splitlines()) == 200


def take(path: Path, barrier: Any, out: Any) -> None:
    barrier.wait()
    with locked(path, wait=False) as mine:
        out.put(mine is not None)
        time.sleep(0.3)


def test_of_many_processes_one_gets_the_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    path = tmp_path / "a.lock"
    barrier, out = context.Barrier(6), context.Queue()
    crew = [context.Process(target=take, args=(path, barrier, out)) for _ in range(6)]
    for process in crew:
        process.start()
    got = [out.get(timeout=300) for _ in crew]
    for process in crew:
        process.join()
    assert got.count(True) == 1
    with locked(path, wait=False) as mine:
        assert mine is not None


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Any, wait: bool) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("vri.paper.runs._lock", refuse)
    with pytest.raises(OSError, match=r"runs.jsonl can't be locked \(No locks available\); expected a file"):
        RunTable(tmp_path / "runs.jsonl").append({"key": "a"})


# the grid


def test_all_runs_get_a_result_and_are_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_grid(runs(), tmp_path)
    said = [line.split(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == [f"{seed + 1}/3 cross-entropy on digits, flip 0.4, seed {seed}" for seed in range(3)]
    found = results(runs(), tmp_path)
    assert [found[run.key]["settings"]["seed"] for run in runs()] == [0, 1, 2]
    assert all(0 <= record["last"] <= 1 for record in found.values())
    assert [p.name for p in tmp_path.iterdir()] == ["runs.jsonl"]
    before = (tmp_path / "runs.jsonl").read_text()
    assert run_grid(runs(4), tmp_path)  # only the fourth
    more = (tmp_path / "runs.jsonl").read_text()
    assert more.startswith(before)
    assert len(more.splitlines()) == 4


def test_the_deadline_begins_no_run(tmp_path: Path) -> None:
    assert not run_grid(runs(), tmp_path, minutes=0)
    assert len(missing(runs(), tmp_path)) == 3


def test_the_deadline_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def bad(run: Run, out: Path) -> Any:
        now[0] = 20.0
        raise ValueError("the checkpoint does not fit")

    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(grid, "_train", bad)
    with pytest.raises(ValueError, match="the checkpoint does not fit"):
        grid.work(runs(2), tmp_path, deadline=10.0)


def test_a_killed_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    (run,) = (replace(each, curves=True) for each in runs(1, epochs=40, checkpoint_every=2))
    assert run_grid([run], tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    worker = context.Process(target=grid.work, args=([run], tmp_path / "killed", None, 1))
    worker.start()
    checkpoint = tmp_path / "killed" / "unfinished" / run.key / "checkpoint.pt"
    wait_for(lambda: checkpoint.exists() or not worker.is_alive())
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert run_grid([run], tmp_path / "killed")
    a, b = (results([run], tmp_path / name)[run.key] for name in ("whole", "killed"))
    assert a["last"] == b["last"]
    assert a["epochs"]["epoch"] == list(range(1, 41))
    assert {k: v for k, v in a["epochs"].items() if k != "seconds"} == {
        k: v for k, v in b["epochs"].items() if k != "seconds"
    }


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="processes=0: expected 1 or more"):
        run_grid(runs(), tmp_path, processes=0)


def test_a_run_that_another_machine_has_done_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network share can lose the lock of a machine that was away for long."""
    honest = grid._train
    first = runs(1)[0].key

    def overtaken(run: Run, out: Path) -> Any:
        if run.key == first:
            RunTable(tmp_path / "runs.jsonl").append(honest(run, out))  # by the other one, which tidies up
            raise FileNotFoundError(".checkpoint.pt.tmp")
        return honest(run, out)

    monkeypatch.setattr(grid, "_train", overtaken)
    grid.work(runs(2), tmp_path)
    assert missing(runs(2), tmp_path) == []
    monkeypatch.setattr(grid, "_train", lambda run, out: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        grid.work(runs(3), tmp_path)


SCRIPT = """
import signal
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a test in the background may have ignored
if __name__ == "__main__":
    from test_grid import runs
    from vri.paper.grid import run_grid
    run_grid(runs(4, epochs=4000, checkpoint_every=2), Path(sys.argv[2]), processes=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_the_one_that_started_them(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "grid"
    with subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        wait_for(lambda: len(list(folder.glob("unfinished/*/checkpoint.pt"))) == 2)
        owners = descendants(parent.pid)
        assert len(owners) >= 3  # two that work, and Python's own helpers
        os.kill(parent.pid, number)  # it alone
        wait_for(lambda: not any(lives(owner) for owner in owners))
        parent.wait(300)
        assert parent.stderr is not None
        said = parent.stderr.read()
    assert said.count("Traceback") == (number != signal.SIGKILL)  # that of the script itself
    for path in folder.rglob("*.lock"):
        with locked(path, wait=False) as mine:
            assert mine is not None


def descendants(number: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]
    return children + [later for child in children for later in descendants(child)]


def lives(number: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_fails_says_why_as_one_error(
    processes: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = runs(1, dataset="animal10n", root=str(tmp_path / "nowhere"))
    with pytest.raises((ValueError, OSError), match="nowhere"):
        run_grid(bad, tmp_path / "grid", processes=processes)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_can_not_be_done_is_named_after_the_others_are_done(processes: int, tmp_path: Path) -> None:
    good = runs(4)
    (bad,) = runs(1, limit=10**6)
    wanted = rf"^cross-entropy on digits, flip 0.4, seed 0 \({bad.key[:8]}\): class 0 has 142 samples; a balanced split"
    with pytest.raises(ValueError, match=wanted):
        run_grid([bad, *good], tmp_path, processes=processes)
    assert missing([bad, *good], tmp_path) == [bad]
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 4  # none was done twice
