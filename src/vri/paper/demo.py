"""`vri demo`: VRI compared with three baselines on real data with 40 % wrong labels."""

import csv
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from vri import noise, quality
from vri.files import atomic_write
from vri.methods.base import Method
from vri.paper.plots import demo_figure
from vri.paper.prepare import Prepared
from vri.paper.runs import Record
from vri.paper.settings import Settings
from vri.paper.training_run import train_run
from vri.training.progress import say_nothing

COMPARED = ("cross-entropy", "clean-only", "fine-tuned", "vri")
SKYLINE = "all labels right"  # cross-entropy without any noise: an upper bound

SIZES: dict[str, dict[str, Any]] = {
    "digits": {"limit": 1200, "clean": 100, "epochs": 60},
    "fashion-mnist": {"limit": 10_000, "clean": 1000, "epochs": 10},
}
# learning rate and weight decay, best on validation samples under flip noise: docs/defaults.md
RATES: dict[str, dict[str, tuple[float, float]]] = {
    "digits": {
        "cross-entropy": (0.02, 5e-3),
        "clean-only": (0.05, 5e-3),
        "fine-tuned": (0.05, 5e-4),
        "vri": (0.05, 5e-3),
        SKYLINE: (0.02, 5e-3),
    },
    "fashion-mnist": {
        "cross-entropy": (0.1, 5e-3),
        "clean-only": (0.1, 5e-3),
        "fine-tuned": (0.1, 5e-4),
        "vri": (0.02, 5e-4),
        SKYLINE: (0.05, 5e-4),
    },
}


def compare(
    dataset: str = "digits",
    noise_name: str = "flip",
    rate: float = 0.4,
    seeds: int = 3,
    out: Path = Path("demo"),
    epochs: int | None = None,
    root: Path | None = None,
) -> str:
    """Train all methods, write table, curves and picture to `out`, and return the table."""
    if dataset not in SIZES:
        raise ValueError(f"dataset={dataset!r}: expected one of {', '.join(SIZES)}")
    if noise_name not in noise.NOISES:
        raise ValueError(f"noise={noise_name!r}: expected one of {', '.join(noise.NOISES)}")
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: expected 1 or more")
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs={epochs}: expected 1 or more")
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}: expected a share from 0 to 1")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file, expected a folder; give another --out")
    start, sizes = time.perf_counter(), SIZES[dataset] | ({} if epochs is None else {"epochs": epochs})
    unfinished = out / "unfinished"  # runs are kept here while the demo is running
    folder = unfinished / f"{dataset}-{noise_name}-{rate}-{sizes['epochs']}"
    names = [(name, seed) for seed in range(seeds) for name in (*COMPARED, SKYLINE)]
    records: list[Record] = []
    with tqdm(total=len(names) * sizes["epochs"], unit="epoch", file=sys.stdout, disable=None, leave=False) as bar:

        def tick(_: object) -> None:
            bar.update()

        for name, seed in names:
            bar.set_description(f"seed {seed}: {name}")
            lr, weight_decay = RATES[dataset][name]
            settings = Settings(
                dataset=dataset,
                root=None if root is None else str(root),
                noise="none" if name == SKYLINE else noise_name,
                rate=rate,
                method="cross-entropy" if name == SKYLINE else name,
                backbone="mlp",
                lr=lr,
                weight_decay=weight_decay,
                join_selected=True,  # if a method can select, in addition to the trusted samples
                seed=seed,
                tensorboard=False,
                **sizes,
            )
            found = train_run(
                settings,
                folder / f"{name.replace(' ', '-')}-{seed}",
                resume=True,
                progress=False,
                examine=_transitions if name == "vri" else None,
                on_epoch=tick,
                on_remark=say_nothing,
            )
            records.append(found | {"name": name, "seed": seed})
            if bar.disable:
                print(
                    f"seed {seed}: {name:<20} {100 * found['last']:6.2f} % after {sizes['epochs']} epochs", flush=True
                )
    wrong = np.mean([r["noise_rate"] for r in records if r["noise_rate"] is not None])
    title = (
        f"{dataset}, {noise_name} noise {rate:.0%} ({wrong:.0%} of labels wrong), {sizes['limit']} noisy + "
        f"{sizes['clean']} clean samples"
    )
    table = _table(title, records, seeds, time.perf_counter() - start)
    _write(out, title, records)
    shutil.rmtree(unfinished, ignore_errors=True)
    return f"{table}\n\nWritten to {out}/: demo.png, curves.csv, transitions.csv, results.json"


def _transitions(method: Method, sets: Prepared) -> Record:
    """How labels were confused: the truth, and the estimate from the classifier's predictions."""
    assert sets.noise is not None
    assert sets.test_transform is not None
    inputs, labels = sets.train  # type: ignore[misc]  # in memory
    with torch.no_grad():
        predicted = method.model.eval()(sets.test_transform(inputs, 0)).softmax(1)
    return {
        "true": sets.noise.matrix.tolist(),
        "estimated": quality.transition_matrix(predicted, labels).tolist(),
    }


def _table(title: str, records: Sequence[Record], seeds: int, seconds: float) -> str:
    lines = [title, "", f"{'method':<20}  test accuracy (%)   seconds", "-" * 48]
    for name in (*COMPARED, SKYLINE):
        own = [r for r in records if r["name"] == name]
        accuracy = np.array([100 * r["last"] for r in own])
        spread = f" ± {accuracy.std(ddof=1):4.2f}" if seeds > 1 else ""
        took = np.mean([r["epochs"][-1]["seconds"] for r in own])
        lines.append(f"{name:<20}  {accuracy.mean():6.2f}{spread:<12} {took:8.1f}")
    lines += ["", f"last epoch, mean ± sd over {seeds} seeds; {seconds:.0f} s in all"]
    return "\n".join(lines)


def _write(out: Path, title: str, records: Sequence[Record]) -> None:
    curves = {name: [r for r in records if r["name"] == name] for name in (*COMPARED, SKYLINE)}
    _write_csv(
        out / "curves.csv",
        ["method", "seed", "epoch", "test_accuracy"],
        [[r["name"], r["seed"], row["epoch"], row["test_accuracy"]] for r in records for row in r["epochs"]],
    )
    examined: Mapping[int, Record] = {r["seed"]: r["examined"] for r in curves["vri"]}
    _write_csv(
        out / "transitions.csv",
        ["seed", "true_class", "given_label", "true", "estimated"],
        [
            [seed, i, j, value, found["estimated"][i][j]]
            for seed, found in examined.items()
            for i, row in enumerate(found["true"])
            for j, value in enumerate(row)
        ],
    )
    accuracies = {
        name: np.array([[e["test_accuracy"] for e in r["epochs"]] for r in own]) for name, own in curves.items()
    }
    first = examined[0]  # classes flip to other targets with every seed: the picture shows the first one
    demo_figure(out / "demo.png", title, accuracies, np.array(first["true"]), np.array(first["estimated"]))
    runs = [{"method": r["name"], "seed": r["seed"], "last": r["last"], "noise_rate": r["noise_rate"]} for r in records]
    with atomic_write(out / "results.json") as binary:
        binary.write(json.dumps({"title": title, "runs": runs}, indent=1).encode())


def _write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
