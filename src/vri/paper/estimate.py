"""About how long a run takes: by runs of its kind that are done, else by the cost of a step."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from vri.methods import METHODS, VRI
from vri.methods.meta import MetaMethod
from vri.paper.grid import Job
from vri.paper.settings import Settings

# seconds of a step of plain cross-entropy with 100 samples on one core
_STEP = {
    "mlp": 0.002,
    "small_cnn": 0.045,
    "resnet32": 0.35,
    "resnet18": 3.0,
    "resnet34": 6.0,
    "resnet50": 30.0,
    "vgg19_bn": 2.5,
}
_META_NETWORKS = 0.012  # seconds of a step of VRI's networks on one core
_META_STEP = 2.4  # what a meta update adds, in steps of cross-entropy
_SAMPLES = {"digits": 1337, "fashion-mnist": 59_000, "clothing1m": 1_000_000, "food101n": 310_000}


def seconds_of(jobs: Sequence[Job], folder: Path) -> list[float]:
    """Of each run, on one core."""
    known: dict[tuple[object, ...], list[float]] = {}
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text())
        if record.get("seconds"):
            settings = Settings(**{k: v for k, v in record["settings"].items() if k in Settings().as_dict()})
            known.setdefault(_kind(settings), []).append(record["seconds"])
    found = []
    for job in jobs:
        like = known.get(_kind(job.settings))
        found.append(sum(like) / len(like) if like else _guess(job.settings))
    return found


def _kind(settings: Settings) -> tuple[object, ...]:
    return settings.dataset, settings.method, settings.backbone, settings.epochs, settings.limit


def _guess(settings: Settings) -> float:
    samples = settings.limit or _SAMPLES.get(settings.dataset, 49_000)
    steps = settings.epochs * math.ceil(samples / settings.batch_size)
    step = _STEP.get(settings.backbone or "", 1.0) * settings.batch_size / 100
    method = METHODS[settings.method]
    if issubclass(method, MetaMethod):
        every = int(settings.options.get("meta_every", 2 if issubclass(method, VRI) else 1))
        step *= 1 + _META_STEP / every
        if issubclass(method, VRI):
            step += _META_NETWORKS * (0.4 + 0.6 / every)
    elif method.needs_clean or "teach" in settings.method or settings.method in ("jocor", "decoupling"):
        step *= 2
    return 2 + steps * step
