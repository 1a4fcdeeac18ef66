"""Time of a step for `vri bench`: against plain cross-entropy, and by part where the networks cost little."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch

from vri.backbones import mlp, resnet32
from vri.bench.report import Bar, Row
from vri.core import checks, objective, randomness
from vri.core.bilevel import HYPERGRADIENTS
from vri.core.checks import Batch
from vri.core.model import Classifier
from vri.methods import VRI, CrossEntropy, Method, base

CE = "cross-entropy"
Options = Mapping[str, Any]
Samples = dict[str, list[float]]

# Everything that changes the cost is written out, so that a new default can't move these rows.
_PAPER: dict[str, Any] = {"hypergradient": "jvp", "samples": 1, "meta_every": 1, "clean_weight": 0.0}
VARIANTS: dict[str, Options | None] = {  # None: plain cross-entropy
    CE: None,
    "jvp": _PAPER,
    "finite_difference": _PAPER | {"hypergradient": "finite_difference"},
    "backprop": _PAPER | {"hypergradient": "backprop"},
    "jvp, samples=5": _PAPER | {"samples": 5},
    "jvp, lagged": _PAPER | {"lagged": True},
    "jvp, lookahead='head'": _PAPER | {"lookahead": "head"},
    "meta_every=5": _PAPER | {"meta_every": 5},
    "meta_every=10": _PAPER | {"meta_every": 10},
    "defaults": {},
}
PERIOD = 10  # steps; a whole number of periods of every variant


@dataclass(frozen=True)
class Layout:
    """How tensors lie in memory, and the precision."""

    channels_last: bool = True
    bfloat16: bool = False

    def __str__(self) -> str:
        layout = "channels_last" if self.channels_last else "contiguous"
        return f"{layout} {'bfloat16 autocast' if self.bfloat16 else 'float32'}"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    batch: int = 100
    image: int = 32
    rounds: int = 15  # of single steps
    periods: int = 4  # of PERIOD steps
    extra_rounds: int = 5  # in the other layouts; 0 leaves them out
    budget: float = 18.0  # seconds a table, after which no more rounds are begun: a slow machine takes fewer
    memory_runs: int = 2
    memory_steps: int = 3
    overhead_steps: int = 200


def measure_time(sizes: Sizes, device: str) -> tuple[list[Row], dict[str, Any]]:
    """Time of a step of ResNet-32 relative to plain cross-entropy in the same layout and precision."""
    rows: list[Row] = []
    raw: dict[str, Any] = {}
    main = Layout()
    periodic = ["meta_every=5", "meta_every=10", "defaults"]
    single = [name for name in VARIANTS if name not in periodic]
    bars = {"jvp": Bar("<=", 3.8), "finite_difference": Bar("<=", 3.2)}

    seconds = raw[f"{main}, single steps"] = _take_turns(single, main, sizes, device, sizes.rounds, 1)
    part = f"step time, {main}, {CE} = 1"
    rows.append(Row(part, f"{CE} itself", [1e3 * s for s in seconds[CE]], "ms"))
    rows += [Row(part, name, ratios(seconds, name, CE), "", bars.get(name)) for name in single if name != CE]
    rows.append(Row(part, "backprop / jvp", ratios(seconds, "backprop", "jvp"), bar=Bar(">=", 1.4)))
    more = ratios(seconds, "jvp, samples=5", "jvp")
    rows.append(Row(part, "samples=5 / samples=1", more, bar=Bar("<=", 1.15)))

    seconds = _take_turns([CE, *periodic], main, sizes, device, sizes.periods, PERIOD)
    raw[f"{main}, periods of {PERIOD} steps"] = seconds
    bars = {"meta_every=5": Bar("<=", 1.7), "meta_every=10": Bar("<=", 1.4)}
    rows += [Row(part, name, ratios(seconds, name, CE), "", bars.get(name)) for name in periodic]

    for layout in [Layout(channels_last=False), Layout(bfloat16=True)] if sizes.extra_rounds else []:
        part = f"step time, {layout}, {CE} = 1"
        request = {"layout": asdict(layout), "sizes": asdict(sizes), "device": device}
        try:
            seconds = raw[f"{layout}, single steps"] = in_a_fresh_process("vri.bench.timing:other_layout", request)
        except subprocess.CalledProcessError as error:
            raw[f"{layout}, single steps"] = note = f"not measured: {_ending(error.returncode)}"
            rows.append(Row(part, f"{CE} itself", [], "ms", note=note))
            continue
        rows.append(Row(part, f"{CE} itself", [1e3 * s for s in seconds[CE]], "ms"))
        rows += [Row(part, name, ratios(seconds, name, CE)) for name in seconds if name != CE]
    return rows, raw


def other_layout(request: Mapping[str, Any]) -> Samples:
    """Times in another layout; apart, as a CPU on which torch's bfloat16 kernels crash ends the process."""
    sizes, layout = Sizes(**request["sizes"]), Layout(**request["layout"])
    names = [CE, "jvp", "finite_difference", "backprop"]
    return _take_turns(names, layout, sizes, request["device"], sizes.extra_rounds, 1)


def in_a_fresh_process(function: str, request: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Any:
    """Call "module:function" with `request` in a new process; what both sides say is JSON."""
    module, name = function.split(":")
    code = f"import json, sys; from {module} import {name}; print(json.dumps({name}(json.loads(sys.argv[1]))))"
    command = [sys.executable, "-c", code, json.dumps(request)]
    done = subprocess.run(command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    hint = "; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 may help" if -code == signal.SIGILL else ""
    return f"torch ended the process with {signal.Signals(-code).name}{hint}"


def _take_turns(names: Sequence[str], layout: Layout, sizes: Sizes, device: str, rounds: int, steps: int) -> Samples:
    batch, meta_batch = images(sizes, layout, device), images(sizes, layout, device, seed=1)
    methods = {name: resnet_method(name, layout, device) for name in names}
    with torch_warnings_ignored():
        return take_turns(methods, batch, meta_batch, rounds, steps, device, sizes.budget)


def take_turns(
    methods: Mapping[str, Method],
    batch: Batch,
    meta_batch: Batch,
    rounds: int,
    steps: int,
    device: str = "cpu",
    budget: float = float("inf"),
) -> Samples:
    """Seconds a step, one number a round: the methods take turns after each of its `steps` steps.

    One step of each comes first and isn't counted. After `budget` seconds the last round is finished, the
    second at the earliest.
    """
    for method in methods.values():
        _timed(method, batch, meta_batch, device)
    names, seconds = list(methods), {name: list[float]() for name in methods}
    start, turn = time.perf_counter(), 0
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - start > budget:
            break
        spent = dict.fromkeys(names, 0.0)
        for _ in range(steps):
            first = turn % len(names)  # another one begins each time: none always follows the same
            for name in names[first:] + names[:first]:
                spent[name] += _timed(methods[name], batch, meta_batch, device)
            turn += 1
        for name in names:
            seconds[name].append(spent[name] / steps)
    return seconds


def _timed(method: Method, batch: Batch, meta_batch: Batch, device: str) -> float:
    given = meta_batch if method.meta_due else None
    synchronize(device)
    start = time.perf_counter()
    method.step(batch, given)
    synchronize(device)
    return time.perf_counter() - start


def ratios(seconds: Samples, name: str, reference: str) -> list[float]:
    """Of two variants, one number a round."""
    return [a / b for a, b in zip(seconds[name], seconds[reference], strict=True)]


def resnet_method(name: str, layout: Layout, device: str) -> Method:
    """A variant on a fresh ResNet-32, with the optimizer of the paper."""
    model = resnet32(seed=0).to(device)
    if layout.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    autocast = torch.bfloat16 if layout.bfloat16 else None
    options = VARIANTS[name]
    if options is None:
        return CrossEntropy(model, 10, optimizer, autocast=autocast)
    return VRI(model, 10, optimizer, autocast=autocast, **options)


def images(sizes: Sizes, layout: Layout, device: str, seed: int = 0) -> Batch:
    """A batch of noise in ten classes."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(sizes.batch, 3, sizes.image, sizes.image, generator=generator)
    if layout.channels_last:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    return pixels.to(device), (torch.arange(sizes.batch) % 10).to(device)


# overhead

REST = "rest of step"


class _Sections:
    """Self time of named parts: while an inner part runs, the outer one's clock stands."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stack, self._since = [REST], time.perf_counter()

    def enter(self, part: str) -> None:
        self._charge()
        self._stack.append(part)

    def leave(self) -> None:
        self._charge()
        self._stack.pop()

    def take(self) -> Mapping[str, float]:
        """What has gathered since the last call."""
        self._charge()
        gathered, self.seconds = self.seconds, defaultdict(float)
        return gathered

    def function(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def context(self, part: str, context: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def timed(*args: Any, **kwargs: Any) -> Iterator[None]:
            with ExitStack() as stack:
                self.enter(part)
                stack.callback(self.leave)
                stack.enter_context(context(*args, **kwargs))
                self.leave()
                stack.callback(self.enter, part)
                yield

        return timed

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now


def _sections_of(method: VRI) -> dict[str, list[tuple[Any, str]]]:
    """Which functions make up which part of a step."""
    return {
        "networks, forward": [
            (network, "forward") for network in (method.model, method.meta_network, method.prior_network)
        ],
        "autograd calls": [(torch.autograd, "grad")],
        "loss equations": [
            (objective, name) for name in ("reparameterize", "empirical_loss", "gaussian_kl", "meta_loss")
        ],
        "optimizer steps": [
            (Classifier, "update"),
            (method.meta_optimizer, "step"),
            (method.meta_optimizer, "zero_grad"),
        ],
        "drawing ε": [(VRI, "_noise")],
        "validation and unpacking": [
            (checks, "unpack"),
            (checks, "check_finite"),
            (Classifier, "_outputs"),
        ],
        "seeding and dropout bookkeeping": [(randomness, "draw_seed"), (randomness, "seeded")],
        "substitution of parameters and buffers": [(Classifier, "at")],
        "hooks": [(Classifier, "_run")],
        "look-ahead and dual tensors": [(HYPERGRADIENTS, "jvp")],
        "metrics": [(base, "accuracy")],
    }


TENSOR_WORK = ("networks, forward", "autograd calls", "loss equations", "optimizer steps", "drawing ε")


def measure_overhead(sizes: Sizes, device: str) -> tuple[list[Row], dict[str, Any]]:
    """Where the time of a step goes when the networks cost next to nothing, in microseconds by part."""
    generator = torch.Generator().manual_seed(0)
    batch, meta_batch = (
        (torch.randn(32, 20, generator=generator).to(device), (torch.arange(32) % 4).to(device)) for _ in range(2)
    )

    def build(name: str) -> Method:
        model = mlp(20, 4, hidden=(32,), seed=0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if name == CE:
            return CrossEntropy(model, 4, optimizer)
        return VRI(model, 4, optimizer, hidden=(16, 16), **_PAPER)

    with torch_warnings_ignored(), one_thread():
        methods = {name: build(name) for name in (CE, "jvp")}
        take_turns(methods, batch, meta_batch, 10, 1, device)
        seconds = take_turns(methods, batch, meta_batch, sizes.overhead_steps, 1, device)
        parts = _profile(methods["jvp"], batch, meta_batch, sizes.overhead_steps, device)
    part = "small MLP, batch 32, one thread"
    rows = [Row(part, f"{name} step", [1e6 * s for s in seconds[name]], "µs") for name in seconds]
    rows.append(Row(part, f"jvp / {CE}", ratios(seconds, "jvp", CE)))
    part = "small MLP, jvp step by part, timers included"
    rows += [Row(part, name, [1e6 * s for s in values], "µs") for name, values in parts.items()]
    outside = [values for name, values in parts.items() if name not in TENSOR_WORK]
    total = [1e6 * sum(step) for step in zip(*outside, strict=True)]
    rows.append(Row(part, "outside tensor work (all but the first five)", total, "µs"))
    return rows, {"seconds": seconds, "seconds by part": parts}


def _importers(name: str, value: Any) -> dict[int, Any]:
    """Modules of this package that hold `value` under the same name, because they import it."""
    mine = [module for key, module in list(sys.modules.items()) if key.startswith("vri.")]
    return {id(module): module for module in mine if vars(module).get(name) is value}


def _profile(method: Method, batch: Batch, meta_batch: Batch, steps: int, device: str) -> Samples:
    assert isinstance(method, VRI)
    sections, found = _Sections(), _sections_of(method)
    with ExitStack() as stack:
        for part, places in found.items():
            for place, name in places:
                if isinstance(place, dict):
                    stack.enter_context(patch.dict(place, {name: sections.function(part, place[name])}))
                    continue
                original = getattr(place, name)
                timed = (sections.context if name == "seeded" else sections.function)(part, original)
                for holder in {id(place): place, **_importers(name, original)}.values():
                    stack.enter_context(patch.object(holder, name, timed))
        samples: Samples = {part: [] for part in (*found, REST)}
        for _ in range(steps):
            synchronize(device)
            sections.take()
            method.step(batch, meta_batch)
            synchronize(device)
            gathered = sections.take()
            for part, values in samples.items():
                values.append(gathered[part])
    return samples


@contextmanager
def one_thread() -> Iterator[None]:
    """For work too small to divide, which on a busy machine would only wait for its other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: str) -> None:
    """Wait for the device, before the clock is read."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


@contextmanager
def torch_warnings_ignored() -> Iterator[None]:
    """Torch's first tangent pass warns of its own use of torch.jit.script."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", DeprecationWarning)
        yield
