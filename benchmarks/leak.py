"""Long runs: every method for 100,000 steps on a small model; memory stays flat and all numbers finite.

    python benchmarks/leak.py --jobs 2 --minutes 90     # benchmarks/results/leak.jsonl, goes on where it was stopped
    python benchmarks/leak.py --report

Resident memory is read after every tenth of the steps; it may not grow in the last three, when every method is in its
last phase and everything has been allocated once.
"""

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

import torch

from table import RESULTS, fill, read
from vri import backbones
from vri.core.checks import DivergenceError
from vri.methods import METHODS

RUNS = RESULTS / "leak.jsonl"
STEPS, BATCH, FEATURES, CLASSES, SAMPLES = 100_000, 20, 8, 4, 2000


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    name = settings["method"]
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    inputs = centres[labels] + torch.randn(SAMPLES, FEATURES, generator=generator)
    noisy = torch.where(torch.rand(SAMPLES, generator=generator) < 0.3, (labels + 1) % CLASSES, labels)
    model = backbones.mlp(FEATURES, CLASSES, (16,), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-3)
    small: dict[str, Any] = (
        {"hidden": (16, 16)} if name in ("vri", "mc", "non-bayesian", "vri-literal", "warpi", "mlc") else {}
    )
    method = METHODS[name](model, CLASSES, optimizer, generator=generator, **small)
    method.begin_training(SAMPLES, lambda: iter([(inputs[:200], labels[:200])]))
    start, memory, worst, failed = time.perf_counter(), [], 0.0, ""
    epoch = SAMPLES // BATCH
    for step in range(STEPS):
        if step % epoch == 0:
            method.begin_epoch(step // epoch, STEPS // epoch)
        index = torch.randint(SAMPLES, (BATCH,), generator=generator)
        clean = torch.randint(SAMPLES, (BATCH,), generator=generator)
        batch = (inputs[index], noisy[index], *([index] if method.needs_index else []))
        due = getattr(method, "meta_due", False)  # then there must be a meta loss
        try:
            metrics = method.step(batch, (inputs[clean], labels[clean]))
        except (DivergenceError, ValueError) as error:
            failed = f"step {step}: {error}"
            break
        for key in ("loss", "meta_loss"):
            value = metrics.get(key, 0.0)
            if math.isfinite(value):
                worst = max(worst, abs(value))
            elif key == "loss" or due or math.isinf(value):
                failed = failed or f"step {step}: {key} is {value}"
        if step % (STEPS // 10) == 0:
            memory.append(resident())
    memory.append(resident())
    return {
        "memory_mb": [round(m, 1) for m in memory],
        "growth_mb": round(memory[-1] - memory[min(7, len(memory) - 1)], 1),  # after 70 % of the steps
        "largest_loss": worst,
        "failed": failed,
        "seconds": round(time.perf_counter() - start, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0 runs nothing")
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.jobs:
        fill(
            RUNS,
            [{"method": name, "steps": STEPS} for name in METHODS],
            measure,
            lambda row: f"{row['method']}: {row['growth_mb']} MiB, {row['failed'] or 'finite'}",
            processes=given.jobs,
            minutes=given.minutes,
            one_each=True,
        )
    if given.report:
        for row in read(RUNS):
            print(
                f"{row['method']}: grew by {row['growth_mb']} MiB, largest loss {row['largest_loss']:.3g}, "
                f"{row['failed'] or 'all finite'}, {row['seconds']:.0f} s"
            )
