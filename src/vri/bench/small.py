"""Small networks, the backbone `fast` and embeddings for `vri bench`: where the cost outside the classifier shows."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vri.backbones import fast, mlp
from vri.bench.report import Bar, Measurement
from vri.bench.timing import (
    CE,
    Layout,
    Samples,
    Sizes,
    attempt,
    images,
    one_thread,
    ratios,
    relative,
    take_turns,
)
from vri.methods import VRI, CrossEntropy, Method
from vri.training.optimizers import orthogonal
from vri.training.precision import prepare_bfloat16

Array = npt.NDArray[Any]

_EPOCH = 50_000  # images
_WIDTHS: dict[str, dict[str, Any]] = {"defaults": {}, "hidden=(1024, 512)": {"hidden": (1024, 512), "meta_lr": 3e-4}}


def measure_small(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """VRI's defaults on a small MLP and on the backbone `fast`, and label errors found among embeddings."""
    rows, raw = _measure_mlp(sizes, device)
    for measure in (_measure_fast, _measure_embeddings):
        more, more_raw = measure(sizes, device)
        rows, raw = rows + more, raw | more_raw
    return rows, raw


def _measure_mlp(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    batch, meta_batch = (
        (torch.randn(sizes.batch, 784, generator=generator).to(device), (torch.arange(sizes.batch) % 10).to(device))
        for _ in range(2)
    )

    def build(options: Mapping[str, Any] | None) -> Method:
        model = mlp(784, 10, hidden=(256, 256), seed=0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
        return CrossEntropy(model, 10, optimizer) if options is None else VRI(model, 10, optimizer, **options)

    methods = {CE: build(None)} | {name: build(options) for name, options in _WIDTHS.items()}
    with one_thread():
        seconds = take_turns(methods, batch, meta_batch, 4 * sizes.rounds, 2, device, sizes.budget / 3)
    heading = f"MLP 784-256-256-10, batch {sizes.batch}, one thread, {CE} = 1"
    return relative(heading, seconds, {"defaults": Bar("<=", 3.5)}), {"MLP": seconds}


def _measure_fast(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    heading = "backbone fast, bfloat16, one thread"
    request = {"sizes": asdict(sizes), "device": device}
    seconds, note = attempt("vri.bench.small:steps_of_fast", request)
    if note:
        return [Measurement(heading, CE, [], "s", note=note)], {"fast": note}
    epochs = [_EPOCH / sizes.batch * s for s in seconds[CE]]
    rows = [Measurement(heading, f"{CE}, an epoch of {_EPOCH:,} images", epochs, "s")]
    rows.append(Measurement(heading, f"defaults, {CE} = 1", ratios(seconds, "defaults", CE)))
    return rows, {"fast": seconds}


def steps_of_fast(request: Mapping[str, Any]) -> Samples:
    """Times of steps on the backbone `fast`, in a process of its own."""
    sizes, device = Sizes(**request["sizes"]), request["device"]
    prepare_bfloat16(torch.device(device))

    def build(method: type[Method]) -> Method:
        model = fast(seed=0).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return method(model, 10, orthogonal(model, lr=0.01), autocast=torch.bfloat16)

    methods = {CE: build(CrossEntropy), "defaults": build(VRI)}
    batch, meta_batch = (images(sizes, Layout(), device, seed) for seed in (0, 1))
    with one_thread():
        return take_turns(methods, batch, meta_batch, sizes.extra_rounds or 2, 2, device, sizes.budget / 2)


def _measure_embeddings(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """Wrong labels among embeddings: seconds and average precision of `VRIClassifier` and of cleanlab."""
    count = sizes.embeddings
    heading = f"label errors among {count:,} x 512 embeddings, 10 classes, 20 % wrong"
    rows, raw = [], {}
    for name in ("VRIClassifier", "CleanLearning(LogisticRegression())"):
        found, note = attempt("vri.bench.small:judge_embeddings", {"name": name, "count": count})
        note = note or ("" if found else "not measured: pip install cleanlab provides it")
        raw[name] = found or note
        samples = [[], []] if note else [[found["seconds"]], [found["precision"]]]
        rows.append(Measurement(heading, name, samples[0], "s", note=note))
        rows.append(Measurement(heading, f"{name}: average precision", samples[1], note=note))
    return rows, raw


def judge_embeddings(request: Mapping[str, Any]) -> dict[str, float] | None:
    """Seconds and average precision of one judge; None if it isn't installed."""
    from sklearn.metrics import average_precision_score

    warnings.simplefilter("ignore")  # logistic regression with its defaults stops before it has converged
    x, given, wrong = embeddings(request["count"])
    start = time.perf_counter()
    if request["name"] == "VRIClassifier":
        from vri import VRIClassifier

        scores = VRIClassifier(random_state=0).fit(x, given).label_quality_
    else:
        try:
            from cleanlab.classification import CleanLearning  # type: ignore[import-untyped]
        except ImportError:
            return None
        from sklearn.linear_model import LogisticRegression

        judge = CleanLearning(LogisticRegression(), seed=0)
        scores = judge.find_label_issues(x, given)["label_quality"].to_numpy()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "precision": float(average_precision_score(wrong, -np.asarray(scores)))}


def embeddings(count: int) -> tuple[Array, Array, Array]:
    """Ten overlapping clusters on a curved surface of 32 dimensions; every fifth label is another class."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    true = torch.randint(10, (count,), generator=generator)
    latent = (normal(10, 32)[true] + 1.6 * normal(count, 32)).tanh()
    x = latent @ normal(32, 512) / 32**0.5 + 0.1 * normal(count, 512)
    wrong = torch.rand(count, generator=generator) < 0.2
    given = torch.where(wrong, (true + torch.randint(1, 10, (count,), generator=generator)) % 10, true)
    return x.numpy(), given.numpy(), wrong.numpy()
