"""Time and memory of a step of every method for `vri bench --methods`, relative to plain cross-entropy."""

import gc
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from vri.bench.memory import ALLOCATOR, peak_of_steps
from vri.bench.report import Measurement
from vri.bench.timing import (
    CE,
    PERIOD,
    Layout,
    Samples,
    Sizes,
    images,
    in_a_fresh_process,
    on_resnet,
    ratios,
    relative,
    take_turns,
)
from vri.core.checks import Batch
from vri.methods import METHODS, VRI, Method
from vri.methods.base import TrainingData
from vri.methods.fsr import FSR
from vri.methods.meta import MetaMethod

EVERY_STEP = ", at every step"  # a meta-learning method whose networks are updated at every step, without γ
LITERAL = ", by double backpropagation"  # the same, as most authors compute the meta gradient


def measure_methods(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """Seconds and peak memory of a step of ResNet-32, cross-entropy = 1, each method with its own defaults.

    Times are averages over ten steps, since some methods update their networks only at every second one. Methods that
    learn by meta gradients have a second row with an update at every step and without the clean gradient, to compare
    like with like, and those of other authors a third by double backpropagation.
    """
    names = variants()
    seconds: Samples = {}
    for name in tqdm(names, "time", leave=False, disable=None):  # a bar only on a terminal
        if name == CE:
            continue
        # in pairs with cross-entropy: all at once would not fit into memory and would take too long
        batch, meta_batch = _batches(sizes, device)
        pair = {CE: build(CE, device), name: build(name, device)}
        taken = take_turns(pair, batch, meta_batch, max(2, sizes.periods // 2), PERIOD, device, sizes.budget)
        seconds[name] = ratios(taken, name, CE)
        seconds.setdefault(CE, []).extend(taken[CE])
        del pair
        gc.collect()
    used: Samples = {name: [] for name in names}
    for name in tqdm(names, "memory", leave=False, disable=None):
        request = {"name": name, "sizes": asdict(sizes), "device": device}
        used[name].append(in_a_fresh_process("vri.bench.methods:peak_of_a_method", request, ALLOCATOR))
    times, memory = (f"{what} of a step, {Layout()}, {CE} = 1" for what in ("time", "peak memory"))
    rows = [Measurement(times, f"{CE} itself", [1e3 * s for s in seconds[CE]], "ms")]
    rows += [Measurement(times, name, seconds[name]) for name in names if name != CE]
    return rows + relative(memory, used, scale=2**-20, unit="MiB"), {"time ratios": seconds, "bytes": used}


def variants() -> list[str]:
    """The methods, and the meta-learning ones again with an update at every step, and by double backpropagation."""
    names = []
    for name, method in METHODS.items():
        names.append(name)
        if issubclass(method, MetaMethod) and vars(method).get("meta_every", 1) != 1:
            names.append(name + EVERY_STEP)
        if (
            issubclass(method, MetaMethod)
            and (method is VRI or not issubclass(method, VRI))
            and _differentiates(method)
        ):
            names.append(name + LITERAL)
    return names


def _differentiates(method: type[Method]) -> bool:
    try:
        on_resnet(method, Layout(), "cpu", hypergradient="backprop")
    except ValueError:
        return False
    return True


def build(name: str, device: str) -> Method:
    """A method on a fresh ResNet-32, in the middle of its training."""
    options: dict[str, Any] = {"meta_every": 1, "clean_weight": 0.0} if name.endswith((EVERY_STEP, LITERAL)) else {}
    options |= {"hypergradient": "backprop"} if name.endswith(LITERAL) else {}
    method = on_resnet(METHODS[name.removesuffix(EVERY_STEP).removesuffix(LITERAL)], Layout(), device, **options)
    clean = images(Sizes(), Layout(), device, seed=1)
    method.begin_training(Sizes().batch, lambda: [clean])
    if isinstance(method, FSR):
        method.data = _Proxies(clean)
        method.survey(2)
    for epoch in (0, 2):  # the last of three: past the first phase of those that have one
        method.begin_epoch(epoch, 3)
    return method


class _Proxies(TrainingData):
    """A training set of one batch, from which FSR draws its proxies."""

    def __init__(self, batch: Batch) -> None:
        self.size, self._batch = len(batch[1]), batch

    def predict(self, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Nothing is known yet."""
        return torch.zeros(self.size, 10), self._batch[1].cpu()

    def stream(self, name: str, rows: Tensor, views: Collection[str] = ("weak",)) -> None:
        """Any rows are the whole batch."""

    def draw(self, name: str) -> Batch:
        """The batch."""
        return self._batch


def _batches(sizes: Sizes, device: str) -> tuple[Batch, Batch]:
    """A noisy batch with the numbers of its samples, and a trusted one."""
    inputs, labels = images(sizes, Layout(), device)
    return (inputs, labels, torch.arange(len(labels), device=device)), images(sizes, Layout(), device, seed=1)


def peak_of_a_method(request: Mapping[str, Any]) -> int:
    """Bytes that steps of one method take; runs in its own process."""
    device, sizes = request["device"], Sizes(**request["sizes"])
    steps = max(2, sizes.memory_steps)
    return peak_of_steps(lambda: build(request["name"], device), _batches(sizes, device), steps, device)
