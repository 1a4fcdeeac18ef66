"""`vri clean` on .npy files: that memory does not grow with the file, and what the size of the sample does.

    python benchmarks/stream.py --out benchmarks/results/stream.json

Fashion-MNIST with 40 % flipped labels. `sample`: its 60,000 images as float16 pixels, learned from samples of several
sizes; with 60,000 it is judged in memory. `size`: random projections of them to 256 numbers, repeated with jitter, as
float16, in files of several sizes, each in a process whose data may take 2 GB (RLIMIT_DATA). The rows judged per second
are taken from the times at which the parts were written.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
import torch
from sklearn.metrics import average_precision_score

from vri import data, noise

LIMIT = 2 * 2**30  # bytes
# The peak from the process itself: what the system reports of a child includes the parent's at the start.
RUN = """
import re, sys
from pathlib import Path
from vri.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""
WIDTH = 256


def clean(folder: Path, *more: str, limit: int = resource.RLIM_INFINITY) -> dict[str, Any]:
    """Run the command in a process of its own; seconds, processor seconds and peak memory."""
    out = folder / "out"
    command = [sys.executable, "-c", RUN, "clean", str(folder / "X.npy"), "--labels", str(folder / "y.npy")]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--out", str(out), "--fresh", "--quiet", *more],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"vri clean ended with status {status}")
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_megabytes": round(int(printed.split()[-1]) / 1024),
    }


def score(folder: Path, true: Any) -> dict[str, Any]:
    """How well the wrong labels were found, over all rows."""
    given, out = np.load(folder / "y.npy"), folder / "out"
    if (out / "label_issues").is_dir():
        found = pd.read_parquet(out / "label_issues", columns=["label_quality"])["label_quality"]
        labels = pd.read_parquet(out / "corrected", columns=["label"])["label"]
    else:
        found = pd.read_csv(out / "label_issues.csv", index_col="id")["label_quality"].sort_index()
        labels = pd.read_csv(out / "corrected.csv")["label"]
    summary = json.loads((folder / "out" / "summary.json").read_text())
    return {
        "learned_from": summary.get("learned_from", len(given)),
        "average_precision": round(float(average_precision_score(given != true, -found)), 4),
        "wrong_before": round(float((given != true).mean()), 4),
        "wrong_after": round(float((labels != true).mean()), 4),
        "estimated_wrong": round(summary["noise_rate"], 4),
    }


def flipped(true: torch.Tensor, seed: int) -> Any:
    return noise.flip(None, true, num_classes=10, rate=0.4, seed=seed).labels.numpy()


def sample_sizes(folder: Path, sizes: list[int], seeds: int) -> list[dict[str, Any]]:
    images = data.load("fashion-mnist")
    np.save(folder / "X.npy", (images.train_x.flatten(1).float() / 255).half().numpy())
    rows = []
    for seed in range(seeds):
        np.save(folder / "y.npy", flipped(images.train_y, seed))
        for size in sizes:
            cost = clean(folder, "--sample", str(size), "--seed", str(seed))
            rows.append({"sample": size, "seed": seed} | score(folder, images.train_y.numpy()) | cost)
            print(rows[-1], flush=True)
    return rows


def large(folder: Path, count: int, *more: str) -> dict[str, Any]:
    images = data.load("fashion-mnist")
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(784, WIDTH)).astype(np.float32) / 28
    small = (images.train_x.flatten(1).float() / 255).numpy() @ directions
    whole = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float16, (count, WIDTH))
    spread = np.float32(0.1 * small.std())
    for start in range(0, count, len(small)):
        rows = min(len(small), count - start)
        whole[start : start + rows] = small[:rows] + spread * generator.standard_normal((rows, WIDTH), np.float32)
    whole.flush()
    del whole
    true = images.train_y.repeat(-(-count // len(small)))[:count]
    np.save(folder / "y.npy", flipped(true, 0))
    cost = clean(folder, *more, limit=LIMIT)
    written = [path.stat().st_mtime for path in sorted((folder / "out" / "label_issues").iterdir())]
    first = parquet.read_metadata(folder / "out" / "label_issues" / "part-00000.parquet").num_rows
    rate = (count - first) / (written[-1] - written[0])
    found = {
        "rows": count,
        "width": WIDTH,
        "options": " ".join(more),
        "file_megabytes": round((folder / "X.npy").stat().st_size / 2**20),
        "limit_megabytes": LIMIT // 2**20,
        "rows_per_second": round(rate),
        "parts": len(written),
    }
    return found | score(folder, true.numpy()) | cost


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default="5000,20000,60000")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", default="500000,2000000,8000000", help="of the large files")
    parser.add_argument("--options", default="--epochs 4", help="of vri clean on them")
    parser.add_argument("--only", choices=("sample", "size"))
    parser.add_argument("--folder", type=Path, help="for the large files, which are deleted (the system's)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    results["machine"] = {"cores": os.cpu_count(), "system": platform.platform(terse=True), "torch": torch.__version__}
    for part in ("size", "sample"):
        if options.only not in (None, part):
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            if part == "size":
                results[part] = []
                for count in map(int, options.rows.split(",")):
                    results[part].append(large(Path(name), count, *options.options.split()))
                    print(results[part][-1], flush=True)
            else:
                sizes = [int(size) for size in options.samples.split(",")]
                results[part] = sample_sizes(Path(name), sizes, options.seeds)
        if options.out:
            options.out.write_text(json.dumps(results, indent=1) + "\n")
