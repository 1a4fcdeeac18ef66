"""Bytes and time of a step on two workers for `vri bench --distributed`, compared with one."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from vri.bench.report import Measurement
from vri.bench.timing import CE, Layout, Options, Sizes, images, on_resnet, ratios, synchronize, torch_warnings_ignored
from vri.methods import VRI, CrossEntropy, Method
from vri.methods.meta import MetaMethod
from vri.training import distributed as parallel

WORKERS = 2
EVERY_STEP = "vri, meta_every=1"
VARIANTS: dict[str, Options | None] = {  # None: plain cross-entropy
    CE: None,
    EVERY_STEP: {"meta_every": 1},
    "vri": {},
}
_PERIOD = 2  # steps; a whole number of periods of every variant
_ROUNDS = 5
_CLOCKS = ("seconds", "processor seconds")  # the second, for a CPU, doesn't depend on other load


def measure_distributed(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """What two workers exchange, and how much faster than one they take steps of ResNet-32 on the same batch.

    On a CPU each worker has one thread, and both run on this machine and communicate through loopback: the time
    includes the cost of the exchange, but not of a network.
    """
    found = _launch({"sizes": asdict(sizes), "device": device})
    return rows_of(found, sizes), found


def rows_of(found: Mapping[str, Any], sizes: Sizes) -> list[Measurement]:
    """The table of what `take_steps` found."""
    model = found["model bytes"]
    heading = f"exchanged per step, ResNet-32 with {model / 2**20:.2f} MiB of parameters = 1"
    rows = [
        Measurement(heading, f"{name}, {what}", [bytes_a_step / model])
        for name, kinds in found["bytes"].items()
        for what, bytes_a_step in kinds.items()
    ]
    meta = found["meta bytes"]
    rows.append(Measurement(heading, "meta networks' parameters", [meta / model]))
    heading = f"time of a step, batch {sizes.batch}, {found['threads']} thread per worker, one worker = 1"
    for name, seconds in found["seconds"].items():
        rows.append(Measurement(heading, f"{name}, one worker", [1e3 * s for s in seconds["one"]], "ms"))
        rows.append(Measurement(heading, f"{name}, {WORKERS} workers", ratios(seconds, "all", "one")))
    heading = "processor time of a worker's step, one worker = 1, ideal 0.5"
    for name, seconds in found["processor seconds"].items():
        rows.append(Measurement(heading, f"{name}, {WORKERS} workers", ratios(seconds, "all", "one")))
    return rows


@torch_warnings_ignored()
def take_steps(request: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes and seconds of all variants; called by each worker of a started group.

    The first worker's steps on whole batches take turns with all workers' steps on their parts, so that a busy machine
    slows both alike.
    """
    sizes, device = Sizes(**request["sizes"]), parallel.local_device(torch.device(request["device"]))
    whole = [images(sizes, Layout(), str(device), seed) for seed in (0, 1)]
    rows = parallel.rows_of(sizes.batch)
    batch, meta_batch = ([t[rows.start : rows.stop] for t in each] for each in whole)
    found: dict[str, Any] = {"bytes": {}, "seconds": {}, "processor seconds": {}, "threads": torch.get_num_threads()}
    for name in VARIANTS:
        with parallel.alone():
            single = _method(name, device)
        together = _method(name, device)
        found["model bytes"] = sum(p.nbytes for p in together.model.parameters())
        if isinstance(together, MetaMethod):
            found["meta bytes"] = sum(p.nbytes for p in together.meta_parameters)
        found["bytes"][name] = _bytes(together, batch, meta_batch)
        for clock in _CLOCKS:
            found[clock][name] = {"one": [], "all": []}
        for number in range(min(sizes.rounds, _ROUNDS) + 1):
            taken: dict[str, Any] = {}
            if parallel.first():
                with parallel.alone():
                    taken["one"] = _seconds(single, whole[0], whole[1], str(device))
            parallel.anywhere(False)  # all wait until it is done
            taken["all"] = _seconds(together, batch, meta_batch, str(device))
            for who, times in taken.items() if number else ():  # the first round is not counted
                for clock, spent in zip(_CLOCKS, times, strict=True):
                    found[clock][name][who].append(spent)
    return found


def _bytes(method: Method, batch: Any, meta_batch: Any) -> dict[str, int]:
    """Bytes of a step, by kind of step, and the mean over a period."""
    found, total = {}, 0
    for _ in range(_PERIOD):
        due, before = method.meta_due, parallel.exchanged()
        method.step(batch, meta_batch if due else None)
        kind = "with a meta update" if due else "without one" if isinstance(method, MetaMethod) else "every step"
        found[kind] = parallel.exchanged() - before
        total += found[kind]
    return found if len(found) == 1 else found | {"mean": total // _PERIOD}


def _seconds(method: Method, batch: Any, meta_batch: Any, device: str) -> tuple[float, float]:
    """Seconds of a step, averaged over a period: wall-clock time, and processor time of this process."""
    synchronize(device)
    start, start_processor = time.perf_counter(), time.process_time()
    for _ in range(_PERIOD):
        method.step(batch, meta_batch if method.meta_due else None)
    synchronize(device)
    return (time.perf_counter() - start) / _PERIOD, (time.process_time() - start_processor) / _PERIOD


def _method(name: str, device: torch.device) -> Method:
    options = VARIANTS[name]
    return on_resnet(CrossEntropy if options is None else VRI, Layout(), device, **(options or {}))


def _launch(request: Mapping[str, Any]) -> dict[str, Any]:
    """Start the workers on this machine; return what the first one found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = []
    for rank in range(WORKERS):
        env = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, "-m", "vri.bench.distributed", json.dumps(request)]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in started]
    failed = [rank for rank, process in enumerate(started) if process.returncode]
    if failed:
        raise OSError(f"worker {failed[0]} of {WORKERS} ended with an error, which is above; nothing was measured")
    result: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    with parallel.workers():
        measured = take_steps(json.loads(sys.argv[1]))
        if parallel.first():
            print(json.dumps(measured))
