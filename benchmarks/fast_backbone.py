"""The backbone `fast` on one core: seconds an epoch, what a step of VRI costs on it, its accuracy on CIFAR-10.

    python benchmarks/fast_backbone.py speed                   # a few minutes, no data needed
    python benchmarks/fast_backbone.py memory                  # two minutes: what keeping freed memory saves
    python benchmarks/fast_backbone.py accuracy --seeds 0 1 2  # 11 minutes a seed; needs CIFAR-10
    python benchmarks/fast_backbone.py noise                   # 40 % flipped labels, a quarter of an hour

Rows go to benchmarks/results/fast_backbone.csv, in place of those with the same name. Seconds are those of the
processor, not of the clock, so that other work on the machine counts less.
"""

import argparse
import csv
import platform
import statistics
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from vri.backbones import fast
from vri.methods import METHODS, Method
from vri.paper.settings import resolve
from vri.paper.training_run import train_run
from vri.training.allocator import keep_freed_memory
from vri.training.optimizers import orthogonal

TABLE = Path(__file__).parent / "results" / "fast_backbone.csv"
COLUMNS = ("part", "what", "value", "unit", "note")
EPOCH = 50_000  # images
SMOOTHED = {"method": "label-smoothing", "options.smoothing": 0.2}
RIVALS: dict[str, dict[str, Any]] = {
    "VRI, defaults": {},
    "VRI, jvp at every step": {"meta_every": 1},
    "VRI, finite differences at every step": {"meta_every": 1, "hypergradient": "finite_difference"},
    "VRI, look-ahead of the head at every step": {"meta_every": 1, "lookahead": "head"},
}
NOISY: dict[str, dict[str, Any]] = {
    "cross-entropy": {"method": "cross-entropy"},
    "fine-tuned": {"method": "fine-tuned"},
    "vri, lookahead_lr=0.1": {"options.lookahead_lr": 0.1},
    "vri, look-ahead of the head": {"options.lookahead": "head"},
    "vri, look-ahead at the optimizer's rates": {},
    "vri without clean_weight, lookahead_lr=0.1": {"options.clean_weight": 0, "options.lookahead_lr": 0.1},
    "vri without clean_weight, look-ahead of the head": {"options.clean_weight": 0, "options.lookahead": "head"},
    "vri without clean_weight and initial_mean, lookahead_lr=0.1": {
        "options.clean_weight": 0,
        "options.initial_mean": 0,
        "options.lookahead_lr": 0.1,
    },
}


def method(name: str, precision: str, **options: Any) -> Method:
    model = fast(seed=0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    cast = torch.bfloat16 if precision == "bf16" else None
    return METHODS[name](model, 10, orthogonal(model, lr=0.01), autocast=cast, **options)


def batch(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last), torch.arange(count) % 10


def seconds(one: Method, *batches: Any, steps: int = 1) -> float:
    start = time.process_time()
    for _ in range(steps):
        one.step(*batches)
    return time.process_time() - start


def epochs() -> Iterable[tuple[Any, ...]]:
    """Seconds of cross-entropy on an epoch of 50,000 images, by precision and batch size."""
    for count in (100, 250, 1000):
        both = {precision: method("cross-entropy", precision) for precision in ("fp32", "bf16")}
        spent: dict[str, list[float]] = {precision: [] for precision in both}
        for number in range(1 + max(3, 1500 // count)):
            for precision, one in both.items():
                took = seconds(one, batch(count, 0))
                spent[precision] += [took] if number else []  # the first step is not counted
        for precision, times in spent.items():
            yield "epoch", f"{precision}, batches of {count}", EPOCH / count * statistics.median(times), "s", ""


def steps(rounds: int = 6) -> Iterable[tuple[Any, ...]]:
    """What two steps of VRI cost, as a multiple of two of cross-entropy; all take turns in one process."""
    noisy, clean = batch(100, 0), batch(100, 1)
    for precision in ("fp32", "bf16"):
        all_methods = {"cross-entropy": method("cross-entropy", precision)}
        all_methods |= {name: method("vri", precision, **options) for name, options in RIVALS.items()}
        spent: dict[str, list[float]] = {name: [] for name in all_methods}
        for number in range(1 + rounds):
            for name, one in all_methods.items():
                took = seconds(one, noisy, clean, steps=2)
                spent[name] += [took] if number else []
        base = spent.pop("cross-entropy")
        yield "step", f"cross-entropy itself, {precision}", 500 * statistics.median(base), "ms", "batch 100"
        for name, times in spent.items():
            ratio = statistics.median(t / b for t, b in zip(times, base, strict=True))
            yield "step", f"{name}, {precision}", ratio, "x cross-entropy", "batch 100"


def fresh(count: int, keep: bool) -> float:
    """Seconds of a step of cross-entropy; in a process of its own."""
    torch.set_num_threads(1)
    if keep and not keep_freed_memory():
        raise RuntimeError("freed memory can't be kept here: glibc is needed, without MALLOC_ variables")
    one, images = method("cross-entropy", "fp32"), batch(count, 0)
    seconds(one, images, steps=2)
    return seconds(one, images, steps=max(2, 1500 // count)) / max(2, 1500 // count)


def freed(rounds: int = 3) -> Iterable[tuple[Any, ...]]:
    """How much longer a step takes if freed memory goes back to the system; both take turns, each in a new process."""
    for count in (100, 250, 1000):
        found = []
        for _ in range(rounds):
            with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
                back, kept = (pool.submit(fresh, count, keep).result() for keep in (False, True))
            found.append(back / kept)
        note = f"fp32, {min(found):.2f} to {max(found):.2f} in {rounds} rounds"
        yield "memory", f"given back, batches of {count}", statistics.median(found), "x kept", note


def trained(part: str, what: str, seed: int, changes: dict[str, Any]) -> tuple[Any, ...]:
    assignments = [f"{name}={value}" for name, value in changes.items()]
    settings = resolve(None, {"backbone": "fast", "seed": seed}, [*assignments, "threads=1", "tensorboard=false"])
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        record = train_run(settings, Path(folder) / "run", progress=False)
    took = time.process_time() - start
    accuracy = 100 * record["last"]
    return part, f"{what}, seed {seed}", accuracy, "%", f"{settings.epochs} epochs, {took:.0f} s of one core"


def write(rows: Iterable[tuple[Any, ...]]) -> None:
    kept: dict[tuple[str, str], list[str]] = {}
    if TABLE.exists():
        with TABLE.open(newline="") as file:
            kept = {(row[0], row[1]): row for row in list(csv.reader(file))[1:]}
    for part, what, value, unit, note in rows:
        print(f"{part:<9} {what:<52} {value:8.2f} {unit}  {note}", flush=True)
        kept[part, what] = [part, what, f"{value:.2f}", unit, note]
        with TABLE.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([COLUMNS, *kept.values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "memory", "accuracy", "noise"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "speed":
        machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
        write([("machine", machine, torch.get_num_threads(), "thread", "")])
        write(epochs())
        write(steps())
    if options.part == "memory":
        write(freed())
    for seed in options.seeds:
        if options.part == "accuracy":
            write([trained("accuracy", "CIFAR-10, right labels", seed, {"clean": 0, **SMOOTHED})])
        if options.part == "noise":
            small = {
                "epochs": 6,
                "limit": 5000,
                "batch_size": 100,
                "lr": 0.1,
                "noise": "flip",
                "test_limit": 5000,
                "evaluate_every": 100,
            }
            for what, changes in NOISY.items():
                write([trained("noise", f"flip 40 %, 5,000 images, {what}", seed, {**small, **changes})])


if __name__ == "__main__":
    main()
