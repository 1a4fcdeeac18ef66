"""The benchmark behind `vri bench`: accuracy of the meta gradient, time and memory of a step, overhead, and data.

All ratios are taken side by side: the variants take turns step by step, so that a busy machine slows all of
them alike, and a ratio is the median over rounds of the ratios within a round.
"""

import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vri.backbones import resnet32
from vri.benchmark_data import measure_data
from vri.benchmark_report import Bar, Report, Row, describe_machine, format_table
from vri.benchmark_timing import (
    CE,
    Layout,
    Options,
    Samples,
    Sizes,
    images,
    in_a_fresh_process,
    measure_overhead,
    measure_time,
    one_thread,
    ratios,
    resnet_method,
    torch_warnings_ignored,
)
from vri.methods import VRI

__all__ = ["PARTS", "Report", "format_table", "run"]

Measure = Callable[[Sizes, str], tuple[list[Row], dict[str, Any]]]

FULL = Sizes()
QUICK = Sizes(rounds=3, periods=1, extra_rounds=0, memory_runs=1, memory_steps=2, overhead_steps=50)


def run(
    *,
    quick: bool = False,
    out: Path | None = None,
    only: Sequence[str] | None = None,
    progress: bool = True,
    device: str = "cpu",
    parts: Mapping[str, Measure] | None = None,
) -> Report:
    """Measure all parts, or those named in `only`; write the report to `out` as JSON. `parts` gives others.

    `quick` keeps the sizes of the networks and batches but takes few samples, so its ratios are rough.
    """
    parts = PARTS if parts is None else parts
    unknown = sorted(set(only or ()) - set(parts))
    if unknown:
        raise ValueError(f"only={', '.join(unknown)} is no part of the benchmark: expected {', '.join(parts)}")
    sizes = QUICK if quick else FULL
    settings = {"quick": quick, "batch": sizes.batch, "image": sizes.image}
    report, start = Report(describe_machine(device), settings), time.perf_counter()
    for name, measure in parts.items():
        if only and name not in only:
            continue
        if progress:
            print(f"vri bench: {name} ...", file=sys.stderr, flush=True)
        rows, raw = measure(sizes, device)
        report.rows += rows
        report.raw[name] = raw
    report.seconds = time.perf_counter() - start
    if out is not None:
        report.save(out)
    return report


# accuracy


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[0][:, -1])
        return out


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


def _mlp_with_dropout() -> nn.Module:
    dropout = nn.Dropout(0.3)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), dropout, nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # builder, shape of an input
    "ResNet-32": (partial(resnet32, 4), (3, 8, 8)),
    "MLP with dropout": (_mlp_with_dropout, (20,)),
    "GRU": (_Recurrent, (7, 6)),
    "transformer encoder": (_Transformer, (7, 16)),
}


def measure_accuracy(sizes: Sizes, device: str) -> tuple[list[Row], dict[str, Any]]:
    """Relative difference of the meta gradient to double backpropagation, one sample a way KL can take.

    With KL in the objective its weight is 0 here: added to both sides, it would hide part of the difference.
    """
    bars = {"jvp": Bar("<=", 1e-10), "finite_difference": Bar("<=", 1e-2)}
    routes: list[Options] = [{"kl_route": "objective", "kl_weight": 0.0}, {"kl_route": "features"}]
    rows = []
    for dtype in (torch.float64, torch.float32):
        for name, (build, shape) in NETWORKS.items():
            differences: Samples = {way: [] for way in bars}
            for route in routes:
                reference = _meta_gradient(build, shape, dtype, device, {"hypergradient": "backprop", **route})
                for way in bars:
                    gradient = _meta_gradient(build, shape, dtype, device, {"hypergradient": way, **route})
                    differences[way].append(float((gradient - reference).norm() / reference.norm()))
            for way, values in differences.items():
                precision = str(dtype).removeprefix("torch.")
                bar = bars[way] if dtype == torch.float64 else None
                # the worse of the two, not their median
                rows.append(Row(f"meta gradient, {precision}", f"{name}: {way}", [max(values)], "", bar))
    return rows, {row.part + ": " + row.name: row.samples for row in rows}


def _meta_gradient(
    build: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype, device: str, options: Options
) -> Tensor:
    """∇_{φ,ω} of the first step, in one vector."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = build().to(device, dtype)
        batches = [(torch.randn(12, *shape, dtype=dtype), torch.arange(12) % 4) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = VRI(model, 4, optimizer, hidden=(16, 16), **{"clean_weight": 0.0, **options})
    seen: list[Tensor] = []
    method.meta_optimizer.register_step_pre_hook(
        lambda opt, *_: seen.extend(p.grad.flatten() for g in opt.param_groups for p in g["params"])
    )
    with torch_warnings_ignored(), one_thread():
        method.step(*batches)
    return torch.cat(seen).double()


# memory

# For glibc: a block of 64 KiB or more then comes from the system and goes back to it when it is freed, so the
# resident set is what is in use, not what the allocator holds back; one arena keeps threads from pools of their
# own. Elsewhere these names mean nothing.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def measure_memory(sizes: Sizes, device: str) -> tuple[list[Row], dict[str, Any]]:
    """Peak memory of a step of ResNet-32 over what was held before it, each time in a fresh process."""
    names = [CE, "jvp", "finite_difference", "backprop", "defaults"]
    used: Samples = {name: [] for name in names}
    for _ in range(sizes.memory_runs):
        for name in names:
            request = {"name": name, "sizes": asdict(sizes), "device": device}
            used[name].append(in_a_fresh_process("vri.benchmark:peak_of_a_step", request, ALLOCATOR))
    part = f"peak memory of a step, {Layout()}, {CE} = 1"
    rows = [Row(part, f"{CE} itself", [b / 2**20 for b in used[CE]], "MiB")]
    bars = {"jvp": Bar("<=", 2.4)}
    rows += [Row(part, name, ratios(used, name, CE), "", bars.get(name)) for name in names[1:]]
    rows.append(Row(part, "jvp / backprop", ratios(used, "jvp", "backprop"), "", Bar("<", 1.0)))
    return rows, {"bytes": used}


def peak_of_a_step(request: Mapping[str, Any]) -> int:
    """Bytes that steps of one variant take; for a process of its own."""
    name, device, sizes = request["name"], request["device"], Sizes(**request["sizes"])
    batch, meta_batch = images(sizes, Layout(), device), images(sizes, Layout(), device, seed=1)
    method = resnet_method(name, Layout(), device)
    with torch_warnings_ignored():
        # another method of the same kind makes torch load its kernels; the state of the optimizers counts
        resnet_method(name, Layout(), device).step(*((x[:4], y[:4]) for x, y in (batch, meta_batch)))
        gc.collect()
        before = start_peak(device)
        for _ in range(sizes.memory_steps):
            method.step(batch, meta_batch)
    return peak(device) - before


def start_peak(device: str) -> int:
    """Forget the peak so far; the bytes held now."""
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
    try:
        return _status("VmHWM")
    except OSError:
        import resource  # not on Windows

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the system does not tell {field}")


PARTS: dict[str, Measure] = {
    "accuracy": measure_accuracy,
    "time": measure_time,
    "memory": measure_memory,
    "overhead": measure_overhead,
    "data": measure_data,
}
