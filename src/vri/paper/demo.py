"""`vri demo`: VRI beside three baselines on real data with 40 % wrong labels."""

import csv
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from vri import backbones, data, noise, quality
from vri.files import atomic_write
from vri.methods import METHODS
from vri.paper.plots import demo_figure
from vri.training.loop import History, train
from vri.training.selection import Selection

COMPARED = ("cross-entropy", "clean-only", "fine-tuned", "vri")
SKYLINE = "all labels right"  # cross-entropy without any noise: what could be reached at best


@dataclass(frozen=True)
class Setting:
    """One data set's part of the demo."""

    noisy: int
    clean: int
    epochs: int
    mean: float  # of the pixels
    std: float
    sgd: Mapping[str, tuple[float, float]]  # learning rate and weight decay of each method, best on validation


# from docs/defaults.md, flip noise
SETTINGS = {
    "digits": Setting(
        noisy=1200,
        clean=100,
        epochs=60,
        mean=0.3053,
        std=0.3763,
        sgd={
            "cross-entropy": (0.02, 5e-3),
            "clean-only": (0.05, 5e-3),
            "fine-tuned": (0.05, 5e-4),
            "vri": (0.05, 5e-3),
            SKYLINE: (0.02, 5e-3),
        },
    ),
    "fashion-mnist": Setting(
        noisy=10_000,
        clean=1_000,
        epochs=10,
        mean=0.2860,
        std=0.3530,
        sgd={
            "cross-entropy": (0.1, 5e-3),
            "clean-only": (0.1, 5e-3),
            "fine-tuned": (0.1, 5e-4),
            "vri": (0.02, 5e-4),
            SKYLINE: (0.05, 5e-4),
        },
    ),
}


@dataclass
class Result:
    """What one method did with one seed."""

    method: str
    seed: int
    history: History
    transition: Tensor | None = None


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
    if dataset not in SETTINGS:
        raise ValueError(f"dataset={dataset!r}: expected one of {', '.join(SETTINGS)}")
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
    images, setting, start = data.load(dataset, root), SETTINGS[dataset], time.perf_counter()
    epochs = epochs or setting.epochs
    jobs = [(name, seed) for seed in range(seeds) for name in (*COMPARED, SKYLINE)]
    out.mkdir(parents=True, exist_ok=True)
    runs = out / "unfinished"  # finished methods are kept here while the demo is under way
    results, drawn = [], {}
    with tqdm(total=len(jobs) * epochs, unit="epoch", file=sys.stdout, disable=None, leave=False) as bar:
        for name, seed in jobs:
            bar.set_description(f"seed {seed}: {name}")
            split, drawn[seed] = _draw(images, setting, noise_name, rate, seed)
            folder = runs / f"{dataset}-{noise_name}-{rate}-{epochs}" / f"{name.replace(' ', '-')}-{seed}"
            result = _train(images, setting, split, drawn[seed], name, seed, epochs, folder, bar)
            results.append(result)
            if bar.disable:
                print(f"seed {seed}: {name:<20} {100 * _last(result):6.2f} % after {epochs} epochs", flush=True)
    title = (
        f"{dataset}, {noise_name} noise {rate:.0%} ({np.mean([d.rate for d in drawn.values()]):.0%} of labels "
        f"wrong), {setting.noisy} noisy + {setting.clean} clean samples"
    )
    table = _table(title, results, seeds, time.perf_counter() - start)
    _write(out, title, results, drawn)
    shutil.rmtree(runs, ignore_errors=True)
    return f"{table}\n\nWritten to {out}/: demo.png, curves.csv, transitions.csv, results.json"


def _draw(
    images: data.ImageData, setting: Setting, noise_name: str, rate: float, seed: int
) -> tuple[dict[str, Tensor], noise.Noise]:
    """The split and the noisy labels: the same for every method."""
    classes = len(images.class_names)
    sizes = {"clean": setting.clean, "train": setting.noisy}
    split = data.split(images.train_y, sizes=sizes, num_classes=classes, seed=seed)
    x, y = images.train_x[split["train"]], images.train_y[split["train"]]
    return split, noise.NOISES[noise_name](x, y, num_classes=classes, rate=rate, seed=seed)


def _train(
    images: data.ImageData,
    setting: Setting,
    split: dict[str, Tensor],
    drawn: noise.Noise,
    name: str,
    seed: int,
    epochs: int,
    folder: Path,
    bar: "tqdm[Any]",
) -> Result:
    def pixels(x: Tensor) -> Tensor:
        return data.to_float(x, mean=setting.mean, std=setting.std)

    def tick(_: object) -> None:
        bar.update()

    classes = len(images.class_names)
    labels = images.train_y[split["train"]] if name == SKYLINE else drawn.labels
    noisy = (pixels(images.train_x[split["train"]]), labels)
    clean = (pixels(images.train_x[split["clean"]]), images.train_y[split["clean"]])
    test = (pixels(images.test_x), images.test_y)
    model: nn.Module = backbones.mlp(images.train_x[0].numel(), classes, seed=seed)
    lr, weight_decay = setting.sgd[name]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
    method = METHODS["cross-entropy" if name == SKYLINE else name](
        model, classes, optimizer, generator=torch.Generator().manual_seed(seed)
    )
    history = train(
        method,
        noisy,
        clean,
        epochs=epochs,
        selection=Selection() if method.can_select else None,  # beside the clean samples
        test_set=test,
        seed=seed,
        out=folder,
        checkpoint_every=epochs * len(labels),  # only at the end: a method takes seconds
        progress=False,
        on_epoch=tick,
    )
    transition = None
    if name == "vri":
        with torch.no_grad():
            transition = quality.transition_matrix(model.eval()(noisy[0]).softmax(1), labels)
    return Result(name, seed, history, transition)


def _last(result: Result) -> float:
    return float(result.history[-1]["test_accuracy"] or 0)


def _table(title: str, results: list[Result], seeds: int, seconds: float) -> str:
    by_method: dict[str, list[Result]] = {}
    for result in results:
        by_method.setdefault(result.method, []).append(result)
    lines = [title, "", f"{'method':<20}  test accuracy (%)   seconds", "-" * 48]
    for name, group in by_method.items():
        accuracy = np.array([100 * _last(r) for r in group])
        spread = f" ± {accuracy.std(ddof=1):4.2f}" if seeds > 1 else ""
        took = np.mean([float(r.history[-1]["seconds"] or 0) for r in group])
        lines.append(f"{name:<20}  {accuracy.mean():6.2f}{spread:<12} {took:8.1f}")
    lines += ["", f"last epoch, mean ± sd over {seeds} seeds; {seconds:.0f} s in all"]
    return "\n".join(lines)


def _write(out: Path, title: str, results: list[Result], drawn: Mapping[int, noise.Noise]) -> None:
    rows = [
        {"method": r.method, "seed": r.seed, "epoch": row["epoch"], "test_accuracy": row["test_accuracy"]}
        for r in results
        for row in r.history
    ]
    with open(out / "curves.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    # classes flip to other targets with every seed: the picture shows the first seed, the table all of them
    first = next(r for r in results if r.transition is not None)
    assert first.transition is not None
    true = drawn[first.seed].matrix
    with open(out / "transitions.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["seed", "true_class", "given_label", "true", "estimated"])
        for r in results:
            if r.transition is not None:
                matrix = drawn[r.seed].matrix
                for i, j in np.ndindex(*matrix.shape):
                    table.writerow([r.seed, i, j, float(matrix[i, j]), float(r.transition[i, j])])
    names = list(dict.fromkeys(r.method for r in results))
    curves = {
        name: np.array([[row["test_accuracy"] for row in r.history] for r in results if r.method == name])
        for name in names
    }
    demo_figure(out / "demo.png", title, curves, true.numpy(), first.transition.numpy())
    record = [{"method": r.method, "seed": r.seed, "last": _last(r), "noise_rate": drawn[r.seed].rate} for r in results]
    with atomic_write(out / "results.json") as binary:
        binary.write(json.dumps({"title": title, "runs": record}, indent=1).encode())
