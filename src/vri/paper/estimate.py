"""About how long a run takes: from finished runs of its kind, else from the cost of a step of its method."""

import math
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from vri.methods import METHODS, VRI
from vri.paper.grid import TABLE, Run, missing
from vri.paper.runs import RunTable
from vri.paper.settings import Settings

# seconds of a step of plain cross-entropy with 100 samples on one core
_STEP = {
    "mlp": 0.002,
    "small_cnn": 0.045,
    "fast": 0.13,
    "resnet32": 0.35,
    "resnet18": 3.0,
    "resnet34": 6.0,
    "resnet50": 30.0,
    "vgg19_bn": 2.5,
}
_META_NETWORKS = 0.006  # seconds that VRI's networks take per step on one core, whatever the classifier
_KIND = ("dataset", "method", "backbone", "epochs", "limit")  # settings that determine how long a run takes
_SAMPLES = {"digits": 1337, "fashion-mnist": 59_000, "clothing1m": 1_000_000, "food101n": 310_000}


def seconds_of(runs: Sequence[Run], folder: Path) -> list[float]:
    """Seconds of each run, on one core."""
    known: dict[tuple[object, ...], list[float]] = {}
    for row in RunTable(folder / TABLE).rows().values():
        if row.get("seconds"):
            kind = tuple(row["settings"].get(name) for name in _KIND)
            known.setdefault(kind, []).append(row["seconds"])
    found = []
    for run in runs:
        like = known.get(tuple(getattr(run.settings, name) for name in _KIND))
        found.append(sum(like) / len(like) if like else _guess(run.settings))
    return found


def plan_text(runs: Sequence[Run], folder: Path, processes: int) -> str:
    """How many runs remain, and about how long they take."""
    left = missing(runs, folder)
    words = f"{len(runs)} runs, {len(runs) - len(left)} done before"
    if not left:
        return words
    seconds = sum(seconds_of(left, folder)) / processes
    return f"{words}; about {duration(seconds)} with {processes} process{'es' if processes > 1 else ''}"


def duration(seconds: float) -> str:
    """Roughly, in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} hours"
    return f"{timedelta(seconds=seconds).days} days"


def _guess(settings: Settings) -> float:
    samples = settings.limit or _SAMPLES.get(settings.dataset, 49_000)
    steps = settings.epochs * math.ceil(samples / settings.batch_size)
    step = _STEP.get(settings.backbone or "", 1.0) * settings.batch_size / 100
    method = METHODS[settings.method]
    own = _META_NETWORKS if issubclass(method, VRI) else 0.0
    return 2 + steps * (own + step * (2 if method.cost is None else method.cost.time))
