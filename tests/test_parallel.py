"""Two workers train exactly as one does: the same weights, numbers, selections and files."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import parallel_worker as worker
from vri.bench.distributed import rows_of
from vri.bench.timing import Sizes
from vri.cli import main
from vri.core import share
from vri.data.batches import Batches
from vri.training import batchnorm
from vri.training import distributed as parallel
from vri.training.batchnorm import SynchronisedBatchNorm

Results = dict[str, Any]


def spawn(*arguments: str, timeout: float = 400) -> list[subprocess.CompletedProcess[str]]:
    """Two workers on this machine, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(2):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), parallel.TIMEOUT: "120"}
        command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", worker.__file__, *arguments]
        started.append(
            subprocess.Popen(
                command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        outputs = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    codes = [process.returncode for process in started]
    return [subprocess.CompletedProcess("", code, *out) for code, out in zip(codes, outputs, strict=True)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all processes that share the tests of this file among them."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "parallel"
    found.mkdir(exist_ok=True)
    return found


def once(file: Path, make: Callable[[], Any]) -> Any:
    """What `make` gives, done by the first process that asks."""
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            torch.save(make(), file)
    return torch.load(file, weights_only=False)


@pytest.fixture(scope="session")
def ended(folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Two workers have done all that is in `parallel_worker.py`."""
    found: list[subprocess.CompletedProcess[str]] = once(folder / "ended.pt", lambda: spawn(str(folder)))
    return found


@pytest.fixture(scope="session")
def two(folder: Path, ended: list[subprocess.CompletedProcess[str]]) -> list[Results]:
    """What each of two workers found."""
    files = [folder / f"results.{rank}.pt" for rank in range(2)]
    assert all(file.exists() for file in files), "\n".join(process.stderr for process in ended)
    return [torch.load(file, weights_only=False) for file in files]


@pytest.fixture(scope="session")
def one(folder: Path) -> Results:
    """What a single process found."""
    found: Results = once(folder / "one.pt", lambda: worker.everything(folder / "alone"))
    return found


def far(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float) -> list[str]:
    """Names of tensors that differ by more."""
    assert a.keys() == b.keys()
    assert a
    return [
        name
        for name, tensor in a.items()
        if not torch.allclose(tensor.double(), b[name].double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    ]


@pytest.mark.parametrize("name", worker.EXACT)
def test_two_workers_equal_one(name: str, one: Results, two: list[Results]) -> None:
    """Weights, optimizers, meta networks, memories, generator and every reported number, after 5 epochs."""
    mine, theirs = one[name], two[0][name]
    assert far(mine["state"], theirs["state"], 1e-6) == []
    different = far(mine["metrics"], theirs["metrics"], 1e-6)
    assert different == (
        ["meta_gradient"] if name.startswith("l2rw") else []
    )  # there it is that of a share's own weights


@pytest.mark.parametrize("name", worker.RUNS)
def test_workers_agree_to_the_last_bit(name: str, two: list[Results]) -> None:
    first, second = (results[name]["state"] for results in two)
    assert [key for key in first if not torch.equal(first[key], second[key])] == []


def test_the_runs_move(one: Results) -> None:
    """Else the comparisons above would compare initial weights."""
    start = {f"model..{name}": tensor for name, tensor in worker.network().state_dict().items()}
    still = [name for name in worker.RUNS if not far(start, {k: one[name]["state"][k] for k in start}, 1e-3)]
    assert still == []


@pytest.mark.parametrize("kind", ["training", "synchronised"])
def test_the_loop_equals_one_worker(kind: str, one: Results, two: list[Results], folder: Path) -> None:
    """Selection, evaluation, history and, if synchronised, BatchNorm; the first worker alone writes and reports."""
    mine, theirs = one[kind], two[0][kind]
    assert far(mine["state"], theirs["state"], 1e-6) == []
    assert len(mine["history"]) == 3
    for row, other in zip(mine["history"], theirs["history"], strict=True):
        assert row.keys() == other.keys()
        assert {"test_accuracy", "test_loss", "memorised", "corrected"} <= row.keys()
        for key, value in row.items():
            assert other[key] == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-9)), key
    assert [results[kind]["seen"] for results in two] == [[1, 2, 3], []]
    lines = (folder / kind / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


def test_the_same_samples_are_selected(one: Results, two: list[Results], folder: Path) -> None:
    rows = [[row.get("selection_purity") for row in results["training"]["history"]] for results in (one, *two)]
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][1] is not None
    selected = torch.load(folder / "training" / "checkpoint.pt", weights_only=True)["selected"]
    assert len(selected) == 90


def test_resuming_is_exact(two: list[Results]) -> None:
    """Dropout, transforms and mixup draw differently on each worker, and the same again after a stop."""
    for results in two:
        whole, resumed = results["whole"], results["resumed"]
        assert whole["history"] == resumed["history"]
    # buffers of BatchNorm are the first worker's; the others' are not saved, and nothing reads them
    whole, resumed = two[0]["whole"]["state"], two[0]["resumed"]["state"]
    assert [key for key in whole if not torch.equal(whole[key], resumed[key])] == []


def test_workers_begin_alike(two: list[Results]) -> None:
    """They were built with different weights and generators."""
    first, second = (results["whole"]["state"] for results in two)
    assert [key for key in first if not torch.equal(first[key], second[key])] == []


def test_another_number_of_workers_goes_on(two: list[Results], folder: Path) -> None:
    alone = worker.stopped_training(folder / "shared")
    assert [row["step"] for row in alone["history"]] == [6, 12]
    assert all(torch.isfinite(tensor).all() for tensor in alone["state"].values())


def test_bytes_are_as_counted(two: list[Results]) -> None:
    """Look-ahead, clean and real gradient, the meta networks, and a few numbers to report."""
    for results in two:
        assert results["bytes"].keys() == {"vri, True", "vri, False", "mlc, True"}
        for name, (found, expected) in results["bytes"].items():
            assert found == expected, name


def test_the_benchmark_measures(two: list[Results]) -> None:
    """Layers 128-256-128-20 with an embedding 10-64, and 64-256-128-20, beside ResNet-32."""
    found = two[0]["benchmark"]
    model, meta = 466_714, 640 + (129 + 65) * 256 + 2 * (257 * 128 + 129 * 20)
    assert (found["model bytes"], found["meta bytes"]) == (4 * model, 4 * meta)
    update, plain = 4 * (3 * model + meta), 4 * model
    kinds = {"with a meta update": update, "without one": plain, "mean": (update + plain) // 2}
    assert found["bytes"] == {"vri": kinds}
    rows = rows_of(found, Sizes(batch=4, image=8))
    assert [row.name for row in rows if row.unit == "ms"] == ["vri, one worker"]
    assert all(row.value is not None and row.value > 0 for row in rows)
    by_name = {row.name: row.value for row in rows if row.heading.startswith("exchanged")}
    assert by_name["vri, with a meta update"] == pytest.approx(3 + meta / model, rel=1e-4)


def test_half_precision(one: Results, two: list[Results]) -> None:
    first, second = (results["half"]["state"] for results in two)
    assert all(torch.equal(first[key], second[key]) for key in first)
    models = [{k: v for k, v in results["half"]["state"].items() if k.startswith("model")} for results in (one, two[0])]
    assert far(*models, 2e-2) == []


def test_a_loop_of_ones_own(one: Results, two: list[Results]) -> None:
    for results in two:
        assert far(one["plain"]["state"], results["plain"]["state"], 1e-12) == []
        assert results["plain"]["metrics"] == pytest.approx(one["plain"]["metrics"], abs=1e-12)


def test_parts_of_batches(two: list[Results]) -> None:
    """Nine samples in batches of four, two for each worker; the last batch has one sample, and is left out."""
    assert [results["messages"]["loaded"] for results in two] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_seeds_differ_from_worker_to_worker(two: list[Results]) -> None:
    first, second = (results["messages"]["seeds"] for results in two)
    assert first == [5, 6]
    assert len({*first, *second}) == 4


def test_messages(two: list[Results]) -> None:
    first, second = (results["messages"]["errors"] for results in two)
    assert first.pop("on_first") == "ValueError: no such file"
    assert second.pop("on_first") == "FailedElsewhere: the first worker failed: ValueError: no such file"
    assert first == second
    text = (
        "ValueError: a batch of {} for 2 processes: expected a multiple of 2, so that all have as many samples; change "
        "batch_size, give more samples, or start fewer processes"
    )
    assert first == {"odd batch": text.format(3), "one sample": text.format(1)}


def test_a_dead_worker_ends_the_job(two: list[Results], ended: list[subprocess.CompletedProcess[str]]) -> None:
    first, second = ended
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 2
    lines = [line for line in first.stderr.splitlines() if line.startswith("vri train: ")]
    assert len(lines) == 1
    assert lines[0].startswith("vri train: another worker died, or did not answer for 120 s (")
    assert lines[0].endswith(
        "); look for its own message, then start the same command with --resume: it continues from the last "
        "checkpoint. VRI_TIMEOUT sets the seconds to wait"
    )
    assert "Traceback" not in first.stderr


def test_what_a_dead_worker_left_goes_on(two: list[Results], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one process, with the command the message names."""
    out = folder / "died"
    record = json.loads((out / "record.json").read_text())
    assert (record["processes"], record["finished"], len(record["epochs"])) == (2, False, 1)
    assert torch.load(out / "checkpoint.pt", weights_only=True)["step"] == 12
    assert main([*worker.DYING, "--out", str(out), "--resume"]) == 0
    record = json.loads((out / "record.json").read_text())
    assert (record["processes"], record["finished"], len(record["epochs"])) == (1, True, 2)
    assert "everything is in" in capsys.readouterr().out


# alone


def test_alone_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("torch.distributed was called")

    for name in ("init_process_group", "all_reduce", "all_gather", "broadcast", "broadcast_object_list"):
        monkeypatch.setattr(torch.distributed, name, refuse)
    with parallel.workers():
        worker.steps("vri")
        assert (parallel.world(), parallel.rank(), parallel.first(), parallel.exchanged()) == (1, 0, True, 0)
        assert parallel.on_first(lambda: 3) == 3
        assert isinstance(next(Batches(worker.data(8, 0), 4, seed=0, divide=True).endless()), tuple)
    x = torch.randn(3, 2)
    same: list[Callable[[Tensor], Tensor]] = [parallel.total, parallel.gather]
    assert all(function(x) is x for function in same)
    assert type(share.current()) is share.Share


@pytest.mark.parametrize("text", ["soon", "0", "-3", "inf", "nan"])
def test_a_timeout_that_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parallel.TIMEOUT, text)
    with pytest.raises(ValueError, match="VRI_TIMEOUT") as error:
        parallel.start()
    assert str(error.value) == (
        f"VRI_TIMEOUT={text!r} in the environment: expected a number of seconds above 0, such as 600"
    )


def test_workers_that_can_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "[/torch/socket.cpp:12] The client socket has timed out after 600s. More follows.\nAnd more."
        )

    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "far", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.distributed, "init_process_group", refuse)
    with pytest.raises(parallel.WorkerLost) as error:
        parallel.start()
    assert str(error.value) == (
        "the other workers can't be reached at far:1 (The client socket has timed out after 600s); expected all 2 of "
        "them within 600 s: check that torchrun runs on every machine"
    )


@pytest.mark.parametrize("count", [1, 7, 100])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_rows_to_look_at_cover_all(count: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    for rank in range(workers):
        monkeypatch.setattr(parallel, "_group", parallel._Group(rank, workers, rank, 1.0))
        mine = parallel.rows_of(count)
        assert abs(len(mine) - count / workers) < 1
        rows += mine
    assert rows == list(range(count))


def test_a_gpu_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert parallel.local_device(cuda) == cuda  # alone
    monkeypatch.setattr(parallel, "_group", parallel._Group(9, 12, 1, 1.0))
    assert parallel.local_device(cpu) == cpu
    assert parallel.local_device(cuda) == torch.device("cuda", 1)
    monkeypatch.setattr(parallel, "_group", parallel._Group(10, 12, 2, 1.0))
    with pytest.raises(ValueError, match="no GPU") as error:
        parallel.local_device(cuda)
    assert str(error.value) == (
        "worker 3 of this machine has no GPU: it has 2, expected one per worker; lower --nproc-per-node, or train with "
        "device=cpu"
    )


def test_synchronised_batchnorm_keeps_names_and_values() -> None:
    model = worker.network(torch.nn.BatchNorm1d(10))
    before = model.state_dict()
    parameters = list(model.parameters())
    changed = batchnorm.synchronise(model)
    assert isinstance(changed[1], SynchronisedBatchNorm)
    assert list(changed.state_dict()) == list(before)
    assert all(a is b for a, b in zip(changed.parameters(), parameters, strict=True))
