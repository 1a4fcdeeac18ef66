"""Memory of a step, and how the peak is measured."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vri.bench.report import Bar, Measurement
from vri.bench.timing import (
    CE,
    Layout,
    Samples,
    Sizes,
    images,
    in_a_fresh_process,
    ratios,
    relative,
    resnet_method,
    torch_warnings_ignored,
)
from vri.core.checks import Batch
from vri.methods import Method

# For glibc: blocks of 64 KiB or more then come from the system and go back to it when they are freed, so the resident
# set is what is in use, not what the allocator holds back; with one arena, threads have no separate pools. Elsewhere
# these names have no effect.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def measure_memory(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """Peak memory of a step of ResNet-32 above what was held before it, each time in a fresh process."""
    names = [CE, "jvp", "finite_difference", "backprop", "defaults"]
    used: Samples = {name: [] for name in names}
    for _ in range(sizes.memory_runs):
        for name in names:
            request = {"name": name, "sizes": asdict(sizes), "device": device}
            used[name].append(in_a_fresh_process("vri.bench.memory:peak_of_a_step", request, ALLOCATOR))
    heading = f"peak memory of a step, {Layout()}, {CE} = 1"
    rows = relative(heading, used, {"jvp": Bar("<=", 2.2)}, 2**-20, "MiB")
    rows.append(Measurement(heading, "jvp / backprop", ratios(used, "jvp", "backprop"), "", Bar("<", 1.0)))
    return rows, {"bytes": used}


def peak_of_a_step(request: Mapping[str, Any]) -> int:
    """Bytes that steps of one variant take; runs in its own process."""
    device, sizes = request["device"], Sizes(**request["sizes"])
    batches = [images(sizes, Layout(), device, seed) for seed in (0, 1)]
    return peak_of_steps(lambda: resnet_method(request["name"], Layout(), device), batches, sizes.memory_steps, device)


@torch_warnings_ignored()
def peak_of_steps(build: Callable[[], Method], batches: Sequence[Batch], steps: int, device: str) -> int:
    """Bytes that steps of a method take, including the state of its optimizers."""
    method, another = build(), build()
    another.step(*(tuple(part[:4] for part in batch) for batch in batches))  # makes torch load its kernels
    del another
    gc.collect()
    before = start_peak(device)
    for _ in range(steps):
        method.step(*batches)
    return peak(device) - before


def start_peak(device: str) -> int:
    """Reset the peak; return the bytes held now."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return peak(device)  # the peak so far: right as long as the steps exceed it, as they do here
    return _status("VmRSS")


def peak(device: str) -> int:
    """The most bytes held since `start_peak`."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
