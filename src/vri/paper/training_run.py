"""One training run from its settings: the data sets, the method, the loop, and the record it writes."""

import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import vri
from vri import backbones
from vri.bench.memory import peak
from vri.data.batches import Batches, length, take
from vri.data.splits import save_split, split_hash
from vri.files import atomic_write
from vri.methods import METHODS
from vri.methods.base import Method
from vri.paper.plots import selection_figure
from vri.paper.prepare import Prepared, prepare
from vri.paper.runs import NOT_HASHED, Record
from vri.paper.settings import TWO_PHASES, Settings, SettingsError
from vri.training import batchnorm
from vri.training import distributed as parallel
from vri.training.allocator import keep_freed_memory
from vri.training.evaluation import predict_all
from vri.training.loop import History, train
from vri.training.optimizers import orthogonal
from vri.training.precision import prepare_bfloat16, suits_bfloat16
from vri.training.progress import Row
from vri.training.selection import Selection, select

RECORD = "record.json"
CLASSIFIER = "classifier.safetensors"
SPLIT = "split.npz"
SELECTION = "selection.png"
_LAST = 10  # epochs of the mean that is reported besides the last one
_EVERY = 2.0  # seconds between two records of a run at least: each has all epochs so far


def train_run(
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    progress: bool = True,
    sync_batchnorm: bool = False,
    examine: Callable[[Method, Prepared], Record] | None = None,
    on_epoch: Callable[[Row], None] | None = None,
    on_remark: Callable[[str], None] | None = None,
) -> Record:
    """Train according to `settings`; writes record, history, events, checkpoint and classifier to `out`.

    With several workers (see `vri.training.distributed`), all must call it; the first one writes.

    Args:
        settings: of the run.
        out: folder for everything that it writes.
        resume: continue the run in `out`.
        progress: show a bar.
        sync_batchnorm: with several workers, let BatchNorm see the whole batch; a resumed run keeps this setting.
        examine: examines the trained method; its result is in the record as "examined".
        on_epoch: as in `vri.train`.
        on_remark: as in `vri.train`.

    Returns:
        The record, as in ``record.json``.
    """
    earlier = parallel.on_first(lambda: _earlier(out, settings, resume))
    sync_batchnorm = sync_batchnorm or bool(earlier.get("sync_batchnorm"))
    device = parallel.local_device(_device(settings.device))
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if device.type == "cpu":
        keep_freed_memory()
    bf16 = in_bfloat16(settings, device, earlier)
    if bf16 and (remark := prepare_bfloat16(device)) is not None and parallel.first():
        (on_remark or partial(print, file=sys.stderr))(remark)
    sets, selected = prepare(settings), None
    shared: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "schedule": settings.schedule,
        "seed": settings.seed,
        "checkpoint_every": settings.checkpoint_every,
        "resume": resume,
        "progress": progress,
        "num_workers": settings.workers,
        "transform": sets.transform,
        "test_transform": sets.test_transform,
        "on_remark": on_remark,
    }
    if sets.clean is None and METHODS[settings.method].can_select and settings.selection in TWO_PHASES:
        first, _ = build(replace(settings, method="cross-entropy", options={}), sets, device, sync_batchnorm, bf16)
        sets, selected = select_with_first(settings, sets, first, out / "first", shared)
    method, description = build(settings, sets, device, sync_batchnorm, bf16)
    start = time.perf_counter()
    record: Record = {
        "settings": settings.as_dict(),
        "started": earlier.get("started") or datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": False,
        **description,
        "selection": selected,
        "versions": _versions(),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {device}",
        "processes": parallel.world(),
        "sync_batchnorm": sync_batchnorm,
        "precision": "bf16" if bf16 else "fp32",
    }
    before = float(earlier.get("seconds") or 0.0)
    rows: History = []
    written = -math.inf

    def write(finished: bool) -> None:
        nonlocal written
        record.update(summarise(rows), finished=finished, epochs=rows)
        record["seconds"] = before + time.perf_counter() - start
        record["peak_memory_mb"] = peak(str(device)) / 2**20
        if not parallel.first():
            return
        with atomic_write(out / RECORD) as file:
            file.write(json.dumps(record, indent=1).encode())
        written = time.perf_counter()

    def note(row: Row) -> None:
        # a run that fell back to an earlier checkpoint does some epochs again
        rows[:] = [r for r in rows if int(r["epoch"] or 0) < int(row["epoch"] or 0)] + [row]
        if time.perf_counter() - written > _EVERY:
            write(finished=False)
        if on_epoch is not None:
            on_epoch(row)

    if parallel.first():
        out.mkdir(parents=True, exist_ok=True)
        save_split(out / SPLIT, sets.split)
    if progress and parallel.first():
        print(_introduction(settings, sets, description), file=sys.stderr)
    if resume:
        rows += [row for row in earlier.get("epochs", []) if isinstance(row, dict)]
    selection = None
    if method.can_select and (sets.clean is None or settings.join_selected):
        selection = Selection(settings.selection, settings.selection_size, settings.warm_up)
    history = train(
        method,
        sets.train,
        sets.clean,
        epochs=settings.epochs,
        selection=selection,
        warm_up=0 if selection is not None or not method.can_select else settings.warm_up or 0,
        mixup=settings.mixup,
        meta_batch_size=settings.meta_batch_size,
        test_set=sets.test,
        validation_set=sets.validation,
        true_labels=sets.true_labels,
        evaluate_every=settings.evaluate_every,
        out=out,
        strong_transform=sets.strong_transform,
        meta_transform=sets.meta_transform,
        log_tensorboard=settings.tensorboard,
        on_epoch=note,
        every_class=selected is None,
        **shared,
    )
    rows[:] = history  # a killed run may have lost the last row of its record
    if parallel.first():
        save_classifier(method.model, out / CLASSIFIER, sets, settings)
    chosen = [row for row in rows if row.get("selected") is not None]
    if chosen and parallel.first():
        with atomic_write(out / SELECTION) as file:
            selection_figure(file, chosen, f"selected samples, {settings.dataset}, noise {settings.noise}")
    if examine is not None and parallel.first():
        record["examined"] = examine(method, sets)
    write(finished=True)
    return record


def select_with_first(
    settings: Settings, sets: Prepared, first: Method, out: Path, shared: dict[str, Any]
) -> tuple[Prepared, Record]:
    """Two phases: train a network on all samples; its smallest losses select the trusted set of the second one."""
    train(first, sets.train, epochs=settings.first_epochs or settings.epochs, out=out, **shared)
    logits, labels = predict_all(first.model, sets.train, num_workers=settings.workers, transform=sets.test_transform)
    losses = functional.cross_entropy(logits, labels, reduction="none")
    how = Selection(TWO_PHASES[settings.selection], settings.selection_size).sized(len(labels), epochs=2)
    chosen = select(how, losses, labels, len(sets.class_names), sets.true_labels)
    if chosen.remark is not None and parallel.first():
        (shared["on_remark"] or partial(print, file=sys.stderr))(f"selected by the first network: {chosen.remark}")
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[chosen.index] = False
    rows = sets.split["train"]
    left = replace(
        sets,
        train=take(sets.train, rest.nonzero().squeeze(1)),
        clean=take(sets.train, chosen.index),
        true_labels=None if sets.true_labels is None else sets.true_labels[rest],
        split={**sets.split, "clean": rows[chosen.index], "train": rows[rest]},
    )
    return left, chosen.scores | {"remark": chosen.remark}


def in_bfloat16(settings: Settings, device: torch.device, earlier: Mapping[str, Any]) -> bool:
    """Whether to train in bfloat16; a resumed run keeps what it began with, on another machine too."""
    chosen = str(earlier.get("precision") or settings.precision)
    return suits_bfloat16(device) if chosen == "auto" else chosen == "bf16"


def build(
    settings: Settings, sets: Prepared, device: torch.device, sync_batchnorm: bool = False, bf16: bool = False
) -> tuple[Method, Record]:
    """The method on its model, and what a record says about them."""
    name = settings.backbone or sets.backbone
    model = backbones.build(
        name,
        num_classes=len(sets.class_names),
        in_channels=sets.channels,
        image_size=sets.image_size,
        seed=settings.seed,
        weights=settings.weights,
    )
    if isinstance(model, backbones.FastNet) and settings.weights is None:
        first = Batches(sets.train, min(1000, length(sets.train)), seed=settings.seed, transform=sets.test_transform)
        model.fit_whitening(next(iter(first.epoch(0)))[0])
    if sync_batchnorm:
        model = batchnorm.synchronise(model)
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster for convolutions
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            model.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    elif settings.optimizer == "orthogonal":
        optimizer = orthogonal(model, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    chosen = METHODS[settings.method]
    if chosen.needs_trusted and not chosen.can_select and sets.clean is None:
        raise SettingsError(
            f"method {settings.method} learns from clean samples, but clean={settings.clean}: expected some, "
            "such as clean=1000"
        )
    options: dict[str, Any] = dict(settings.options)
    if bf16:
        options["autocast"] = torch.bfloat16
    generator = torch.Generator().manual_seed(settings.seed)
    method = chosen(model, len(sets.class_names), optimizer, generator=generator, **options)
    description = {
        "backbone": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "classes": len(sets.class_names),
        "sizes": {part: len(index) for part, index in sets.split.items()},
        "split_hash": split_hash(sets.split),
        "noise_hash": None if sets.noise is None else sets.noise.hash,
        "noise_rate": None if sets.noise is None else sets.noise.rate,
        "method_settings": method.settings(),
    }
    return method, description


def summarise(rows: Sequence[Row]) -> Record:
    """Test accuracy of the last epoch, mean of the last ten evaluated ones, and the best, marked as such."""
    scores = _test_accuracies(rows)
    if not scores:
        return {"last": None, "last_10_mean": None, "best_chosen_on_test": None}
    recent = _test_accuracies(rows[-_LAST:]) or scores[-1:]
    return {"last": scores[-1], "last_10_mean": sum(recent) / len(recent), "best_chosen_on_test": max(scores)}


def _test_accuracies(rows: Sequence[Row]) -> list[float]:
    return [float(score) for row in rows if (score := row.get("test_accuracy")) is not None]


def save_classifier(model: nn.Module, path: Path, sets: Prepared, settings: Settings) -> None:
    """The classifier alone, for a plain module: ``model.load_state_dict(safetensors.torch.load_file(path))``."""
    from safetensors.torch import save

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    about = {
        "backbone": settings.backbone or sets.backbone,
        "num_classes": str(len(sets.class_names)),
        "class_names": json.dumps(sets.class_names),
    }
    if sets.test_transform is not None:
        about |= {"mean": json.dumps(sets.test_transform.mean), "std": json.dumps(sets.test_transform.std)}
    with atomic_write(path) as file:
        file.write(save(state, metadata=about))


def read_record(out: Path) -> Record | None:
    """The record of a run in this folder, or None."""
    try:
        content = json.loads((out / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{out / RECORD} can't be read ({error}); delete it to start again") from None
    return content if isinstance(content, dict) else None


def _introduction(settings: Settings, sets: Prepared, description: Record) -> str:
    """What is about to be trained, in one line."""
    labels = "labels as they are" if sets.noise is None else f"{sets.noise.rate:.1%} of labels wrong"
    clean = "no clean samples" if sets.clean is None else f"{length(sets.clean)} clean samples"
    network = f"{description['backbone']} with {description['parameters']:,} parameters"
    return f"{settings.method} on {settings.dataset}: {length(sets.train)} samples, {labels}; {clean}; {network}"


def _earlier(out: Path, settings: Settings, resume: bool) -> Record:
    """The record to continue from; {} for a new run. Refuses to overwrite a run, or to continue a different one."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file, expected a folder; give another --out")
    found = read_record(out)
    if not resume:
        if found is not None or (out / "checkpoint.pt").exists():
            done = f", {len(found.get('epochs', []))} epochs done" if found else ""
            raise SettingsError(f"{out} holds a run already{done}; add --resume to continue it, or give another --out")
        return {}
    if found is None:
        return {}
    now, then = settings.as_dict(), found.get("settings", {})
    different = [
        f"{name} was {then.get(name)!r} and is {value!r}"
        for name, value in now.items()
        if name not in NOT_HASHED and then.get(name) != value
    ]
    if different:
        raise SettingsError(
            f"{out} holds another run: {'; '.join(different)}; use the same settings to resume, or another --out"
        )
    return found


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device={name!r} can't be used ({reason}); expected auto, cpu or cuda") from None
    return device


def _versions() -> dict[str, str]:
    packages = ("torch", "numpy", "scikit-learn")
    return {"vri": vri.__version__, "python": platform.python_version()} | {p: metadata.version(p) for p in packages}


def _commit() -> str | None:
    """Commit of the source tree that the package runs from, if it is one."""
    folder = Path(vri.__file__).parent
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
    tracked = ["git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py"]
    try:
        if subprocess.run(tracked, capture_output=True, timeout=10, check=False).returncode:
            return None  # installed inside an unrelated repository
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
