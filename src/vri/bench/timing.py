"""Time of a step for `vri bench`: relative to plain cross-entropy, and where it goes when the networks cost little."""

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
from vri.bench.report import Bar, Measurement
from vri.core import objective
from vri.core.checks import Batch
from vri.methods import VRI, CrossEntropy, Method
from vri.training.allocator import keep_freed_memory
from vri.training.precision import prepare_bfloat16

CE = "cross-entropy"
Options = Mapping[str, Any]
Samples = dict[str, list[float]]

# Everything that changes the cost is written out, so that a new default can't change these rows.
_PAPER: dict[str, Any] = {
    "hypergradient": "jvp",
    "samples": 1,
    "meta_every": 1,
    "clean_weight": 0.0,
    "hidden": (1024, 512),
}
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
OTHER = ("jvp", "finite_difference", "defaults")  # measured in the other layouts, too


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
    budget: float = 18.0  # seconds per table, after which no round starts: a slow machine takes fewer
    memory_runs: int = 2
    memory_steps: int = 3
    overhead_steps: int = 200
    embeddings: int = 50_000


@contextmanager
def torch_warnings_ignored() -> Iterator[None]:
    """Torch's first tangent pass warns about its own use of torch.jit.script."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit.script. is deprecated", DeprecationWarning)
        yield


def measure_time(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """Time of a step of ResNet-32 relative to plain cross-entropy in the same layout and precision."""
    _prepare(device)
    rows: list[Measurement] = []
    raw: dict[str, Any] = {}
    main = Layout()
    periodic = ["meta_every=5", "meta_every=10", "defaults"]
    single = [name for name in VARIANTS if name not in periodic]
    bars = {"jvp": Bar("<=", 3.3), "finite_difference": Bar("<=", 3.2)}

    seconds = raw[f"{main}, single steps"] = _take_turns(single, main, sizes, device, sizes.rounds, 1)
    heading = f"step time, {main}, {CE} = 1"
    rows += relative(heading, seconds, bars)
    rows.append(Measurement(heading, "backprop / jvp", ratios(seconds, "backprop", "jvp"), bar=Bar(">=", 1.4)))
    rows.append(_limit(heading, main, sizes, device))
    more = ratios(seconds, "jvp, samples=5", "jvp")
    rows.append(Measurement(heading, "samples=5 / samples=1", more, bar=Bar("<=", 1.15)))

    seconds = _take_turns([CE, *periodic], main, sizes, device, sizes.periods, PERIOD)
    raw[f"{main}, periods of {PERIOD} steps"] = seconds
    bars = {"meta_every=5": Bar("<=", 1.7), "meta_every=10": Bar("<=", 1.4), "defaults": Bar("<=", 2.5)}
    rows += relative(heading, seconds, bars)[1:]

    for layout in [Layout(channels_last=False), Layout(bfloat16=True)] if sizes.extra_rounds else []:
        heading = f"step time, {layout}, {CE} = 1"
        request = {"layout": asdict(layout), "sizes": asdict(sizes), "device": device}
        seconds, note = attempt("vri.bench.timing:other_layout", request)
        raw[f"{layout}, pairs of steps"] = note or seconds
        if note:
            rows.append(Measurement(heading, f"{CE} itself", [], "ms", note=note))
            continue
        bars = {"jvp": Bar("<=", 3.8), "defaults": Bar("<=", 2.6)} if layout.bfloat16 else {}
        rows += relative(heading, seconds, bars)
    return rows, raw


def _limit(heading: str, layout: Layout, sizes: Sizes, device: str) -> Measurement:
    """What the passes of a jvp step cost, docs/speed.md: four forwards and three backwards against one of each."""
    method, batch = resnet_method(CE, layout, device), images(sizes, layout, device)
    sides = {CE: lambda: method.step(batch), "forward": lambda: method.classifier.forward(batch[0], seed=0)}
    seconds = alternate(sides, sizes.rounds, 1, device, sizes.budget / 3)
    return Measurement(heading, "jvp, its passes alone", [3 + share for share in ratios(seconds, "forward", CE)])


def other_layout(request: Mapping[str, Any]) -> Samples:
    """Times in another layout, in a separate process, since torch's bfloat16 kernels crash on some CPUs."""
    sizes, layout, device = Sizes(**request["sizes"]), Layout(**request["layout"]), request["device"]
    _prepare(device)
    if layout.bfloat16:
        prepare_bfloat16(torch.device(device))
    return _take_turns([CE, *OTHER], layout, sizes, device, sizes.extra_rounds, 2)


def _prepare(device: str) -> None:
    """As `vri train` does."""
    if device == "cpu":
        keep_freed_memory()


def attempt(function: str, request: Mapping[str, Any]) -> tuple[Any, str]:
    """The result of `in_a_fresh_process`, or None and how the process ended."""
    try:
        return in_a_fresh_process(function, request), ""
    except subprocess.CalledProcessError as error:
        return None, f"not measured: {_ending(error.returncode)}"


def in_a_fresh_process(function: str, request: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Any:
    """Call "module:function" with `request` in a new process; request and result are JSON."""
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
    """Seconds per step of each method, one number per round; see `alternate`."""

    def step(method: Method) -> Callable[[], object]:
        return lambda: method.step(batch, meta_batch if method.meta_due else None)

    return alternate({name: step(method) for name, method in methods.items()}, rounds, steps, device, budget)


@torch_warnings_ignored()
def alternate(
    sides: Mapping[str, Callable[[], object]], rounds: int, steps: int, device: str, budget: float = float("inf")
) -> Samples:
    """Seconds per call of each side, one number per round: they take turns after each of its `steps` calls.

    One call of each comes first and isn't counted. After `budget` seconds the current round is the last; there are at
    least two.
    """

    def timed(call: Callable[[], object]) -> float:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        return time.perf_counter() - start

    for call in sides.values():
        timed(call)
    names, seconds = list(sides), {name: list[float]() for name in sides}
    start, turn = time.perf_counter(), 0
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - start > budget:
            break
        spent = dict.fromkeys(names, 0.0)
        for _ in range(steps):
            first = turn % len(names)  # a different one starts each time, so none always follows the same one
            for name in names[first:] + names[:first]:
                spent[name] += timed(sides[name])
            turn += 1
        for name in names:
            seconds[name].append(spent[name] / steps)
    return seconds


def ratios(seconds: Samples, name: str, reference: str) -> list[float]:
    """Ratios of two variants, one number per round."""
    return [a / b for a, b in zip(seconds[name], seconds[reference], strict=True)]


def relative(
    heading: str, samples: Samples, bars: Mapping[str, Bar] | None = None, scale: float = 1e3, unit: str = "ms"
) -> list[Measurement]:
    """A table: cross-entropy itself, times `scale` in `unit`, and all others relative to it."""
    rows = [Measurement(heading, f"{CE} itself", [scale * s for s in samples[CE]], unit)]
    others = [name for name in samples if name != CE]
    return rows + [Measurement(heading, n, ratios(samples, n, CE), "", (bars or {}).get(n)) for n in others]


def resnet_method(name: str, layout: Layout, device: str) -> Method:
    """A variant on a fresh ResNet-32."""
    autocast, options = torch.bfloat16 if layout.bfloat16 else None, VARIANTS[name]
    kind = CrossEntropy if options is None else VRI
    return on_resnet(kind, layout, device, autocast=autocast, **(options or {}))


def on_resnet(method: type[Method], layout: Layout, device: str | torch.device, **options: Any) -> Method:
    """A method on a fresh ResNet-32, with the optimizer of the paper."""
    model = resnet32(seed=0).to(device)
    if layout.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    return method(model, 10, optimizer, **options)


def images(sizes: Sizes, layout: Layout, device: str, seed: int = 0) -> Batch:
    """A batch of noise in ten classes."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(sizes.batch, 3, sizes.image, sizes.image, generator=generator)
    if layout.channels_last:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    return pixels.to(device), (torch.arange(sizes.batch) % 10).to(device)


# overhead

REST = "everything else"
EQUATIONS = ("reparameterize", "empirical_loss", "gaussian_kl", "meta_loss")  # of `core.objective`, in a step


class _Clocks:
    """Time spent in named parts of a step; while one runs inside another, the outer clock is paused."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._stack, self._since = [REST], time.perf_counter()

    def read(self) -> Mapping[str, float]:
        """Times since the last call."""
        self._charge()
        gathered, self._seconds = self._seconds, defaultdict(float)
        return gathered

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._charge()
            self._stack.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._charge()
                self._stack.pop()

        return call

    def _charge(self) -> None:
        now = time.perf_counter()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now


def measure_overhead(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """Where the time of a step goes when the networks cost next to nothing, in microseconds."""
    generator = torch.Generator().manual_seed(0)
    batch, meta_batch = (
        (torch.randn(32, 20, generator=generator).to(device), (torch.arange(32) % 4).to(device)) for _ in range(2)
    )

    def build(name: str) -> Method:
        model = mlp(20, 4, hidden=(32,), seed=0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if name == CE:
            return CrossEntropy(model, 4, optimizer)
        return VRI(model, 4, optimizer, **_PAPER | {"hidden": (16, 16)})

    with one_thread():
        methods = {name: build(name) for name in (CE, "jvp")}
        take_turns(methods, batch, meta_batch, 10, 1, device)
        seconds = take_turns(methods, batch, meta_batch, sizes.overhead_steps, 1, device)
        inside = _profile(methods["jvp"], batch, meta_batch, sizes.overhead_steps, device)
    heading = "small MLP, batch 32, one thread"
    rows = [Measurement(heading, f"{name} step", [1e6 * s for s in seconds[name]], "µs") for name in seconds]
    rows.append(Measurement(heading, f"jvp / {CE}", ratios(seconds, "jvp", CE)))
    heading = "small MLP, inside a jvp step, timers included"
    bars = {REST: Bar("<=", 700)}
    rows += [Measurement(heading, n, [1e6 * s for s in values], "µs", bars.get(n)) for n, values in inside.items()]
    return rows, {"seconds": seconds, "seconds inside": inside}


@torch_warnings_ignored()
def _profile(method: Method, batch: Batch, meta_batch: Batch, steps: int, device: str) -> Samples:
    assert isinstance(method, VRI)
    networks = (method.model, method.meta_network, method.prior_network)
    places: dict[str, list[tuple[Any, str]]] = {
        "networks, forward": [(network, "forward") for network in networks],
        "loss equations": [(objective, name) for name in EQUATIONS],
        "autograd calls": [(torch.autograd, "grad")],
        "optimizer steps": [(optimizer, "step") for optimizer in (method.optimizer, method.meta_optimizer)],
    }
    clocks = _Clocks()
    samples: Samples = {name: [] for name in (*places, REST)}
    with ExitStack() as stack:
        for name, functions in places.items():
            for holder, function in functions:
                timed = clocks.timed(name, getattr(holder, function))
                stack.enter_context(patch.object(holder, function, timed))
        for _ in range(steps):
            synchronize(device)
            clocks.read()
            method.step(batch, meta_batch)
            synchronize(device)
            gathered = clocks.read()
            for name, values in samples.items():
                values.append(gathered[name])
    return samples


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread: for work too small to divide, which on a busy machine would only wait for other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: str) -> None:
    """Wait for the device before reading the clock."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
