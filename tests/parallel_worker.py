"""What `test_parallel.py` runs in one process and, as a program of its own, in several.

Usage, with the environment that torchrun sets: python parallel_worker.py FOLDER
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from vri.bench import distributed as benchmark_parallel
from vri.bench.timing import Sizes
from vri.core import share
from vri.data.batches import Batches
from vri.methods import METHODS, VRI, CrossEntropy, MetaMethod, Method
from vri.training import batchnorm
from vri.training import distributed as parallel
from vri.training.loop import train
from vri.training.selection import Selection

CLASSES, STEPS = 4, 15  # 5 epochs, and 3 updates of the teacher of EMLC
BATCH, CLEAN = 100, 50
SMALL: dict[str, dict[str, Any]] = {  # small meta networks
    "l2rw": {},
    "mw-net": {"hidden": 7},
    "pmw-net": {"hidden": 7},
    "mlc": {"hidden": (6,), "label_dim": 4},
    "mslc": {"hidden": 7, "warmup_share": 0.0},
    "warpi": {"hidden": (6,)},
    "famus": {"hidden": 7},
    "emlc": {"hidden": 7, "label_dim": 4, "warmup_share": 0.0},
    **{name: {"hidden": (8,), "label_dim": 4} for name in ("mc", "non-bayesian", "vri-literal", "vri")},
}
# name: method, options, batch sizes
RUNS: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    **{name: (name, {}, (BATCH, CLEAN)) for name in METHODS},
    "emlc": ("emlc", {}, (BATCH, 48)),  # of which each share has as many even rows as odd ones
    "vri, finite differences": ("vri", {"hypergradient": "finite_difference"}, (BATCH, CLEAN)),
    "vri, backprop": ("vri", {"hypergradient": "backprop"}, (BATCH, CLEAN)),
    "vri, head": ("vri", {"lookahead": "head", "clean_weight": 0.0}, (BATCH, CLEAN)),
    "co-teaching, nothing forgotten": ("co-teaching", {"noise_rate": 0.0}, (BATCH, CLEAN)),
    "jocor, nothing forgotten": ("jocor", {"noise_rate": 0.0}, (BATCH, CLEAN)),
    "mw-net, normalised": ("mw-net", {"normalize": True}, (BATCH, CLEAN)),
    "mw-net, normalised, backprop": ("mw-net", {"normalize": True, "hypergradient": "backprop"}, (BATCH, CLEAN)),
    "fsr, not mixed": ("fsr", {"alpha": 0.0}, (BATCH, CLEAN)),
    "l2rw, backprop": ("l2rw", {"hypergradient": "backprop"}, (BATCH, CLEAN)),
}
# samples are paired, small losses and neighbours found in one share; a Beta draw depends on those before it
SHARES = ("mixup", "fsr", "peer-loss", "ncr", "elr+", "dividemix", "vri-dividemix")
SHARES += ("co-teaching", "co-teaching+", "codis", "jocor", "pmw-net")
EXACT = [name for name in RUNS if name not in SHARES]


def network(*between: nn.Module, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 10), *between, nn.Tanh(), nn.Linear(10, CLASSES)).double()


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    y = (x[:, :CLASSES].argmax(1) + (torch.rand(count, generator=generator) < 0.3)) % CLASSES
    return x, y


def build(name: str, model: nn.Module, **options: Any) -> Method:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return METHODS[name](model, CLASSES, optimizer, **{**SMALL.get(name, {}), **options})


def state(method: Method) -> dict[str, Tensor]:
    """Everything with a value that a method has, by name."""
    return {f"{key}.{where}": tensor for key, value in method.state_dict().items() for where, tensor in _leaves(value)}


def _leaves(value: Any, where: str = "") -> list[tuple[str, Tensor]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{where}.{key}")]
    if isinstance(value, (list, tuple)):
        return [leaf for key, item in enumerate(value) for leaf in _leaves(item, f"{where}.{key}")]
    return [(where, value.detach().clone())] if isinstance(value, Tensor) else []


# the tasks: each gives tensors and numbers by name


def steps(run: str) -> dict[str, Any]:
    """Some steps of a method, and what it reported."""
    name, options, (size, clean_size) = RUNS[run]
    method = build(name, network(), **options)
    method.model.train()
    noisy_set, clean_set = data(300, 1), data(60, 2)
    noisy = Batches(noisy_set, size, seed=0, with_index=True, divide=True)
    clean = Batches(clean_set, clean_size, seed=1, divide=True)
    method.begin_training(300, lambda: [clean_set])
    batches, clean_batches, reported = noisy.endless(), clean.endless(), []
    for step in range(STEPS):
        if step % len(noisy) == 0:
            method.begin_epoch(step // len(noisy), -(-STEPS // len(noisy)))
        batch = next(batches)
        metrics = method.step(batch, next(clean_batches) if method.meta_due else None)
        reported.append(parallel.means(metrics))
        if (step + 1) % len(noisy) == 0:
            parallel.merge(method.memories.values())
    parallel.merge(method.memories.values())
    keys = reported[-1].keys()
    numbers = {key: torch.tensor([row[key] for row in reported if key in row], dtype=torch.float64) for key in keys}
    return {"state": state(method), "metrics": numbers}


def whole_training(folder: Path, sync: bool) -> dict[str, Any]:
    """The loop without clean data: selection, evaluation, history. With BatchNorm if it is synchronised."""
    model: nn.Module = network(nn.BatchNorm1d(10)) if sync else network()
    if sync:
        model = batchnorm.synchronise(model)
    method = build("vri", model)
    seen: list[int] = []
    noisy = data(206, 1)
    history = train(
        method,
        noisy,
        epochs=3,
        selection=Selection(warm_up=1, size=90),
        batch_size=50,
        test_set=data(77, 3),
        true_labels=(noisy[1] + (torch.arange(206) % 3 == 0)) % CLASSES,
        out=folder,
        progress=False,
        on_epoch=lambda row: seen.append(int(row["epoch"] or 0)),
    )
    timeless = [{k: v for k, v in row.items() if "seconds" not in k} for row in history]
    return {"state": state(method), "history": timeless, "seen": seen}


class Stop(Exception):
    pass


def stopped_training(folder: Path, stop: int | None = None) -> dict[str, Any]:
    """The loop with all that is random on a worker: dropout, a random transform, mixup."""
    model = network(nn.BatchNorm1d(10), nn.Dropout(0.3), seed=parallel.rank()).float()  # all take the first one's
    method = build("vri", model, generator=torch.Generator().manual_seed(parallel.rank()))
    if stop is not None:
        original, done = method.step, 0

        def failing(*batches: Any) -> Any:
            nonlocal done
            if done == stop:
                raise Stop
            done += 1
            return original(*batches)

        method.step = failing  # type: ignore[method-assign]

    def jitter(x: Tensor, seed: int) -> Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))

    noisy, clean, test = ((x.float(), y) for x, y in (data(60, 1), data(24, 2), data(20, 3)))
    options: dict[str, Any] = {"epochs": 2, "batch_size": 10, "checkpoint_every": 3, "mixup": 0.5, "progress": False}
    try:
        history = train(
            method, noisy, clean, test_set=test, transform=jitter, test_transform=None, out=folder, **options
        )
    except Stop:
        return {}
    return {"state": state(method), "history": [{k: v for k, v in row.items() if k != "seconds"} for row in history]}


def bytes_of_steps() -> dict[str, Any]:
    """Bytes exchanged in a step with and without an update of the meta networks, and what they should be."""
    found = {}
    noisy, clean = (next(Batches(data(n, 1), n, seed=0, divide=True).endless()) for n in (BATCH, CLEAN))
    for name, options in {"vri": {"meta_every": 2}, "mlc": {}}.items():  # of these MLC's look-ahead is the real step
        method = build(name, network(), **options)
        assert isinstance(method, MetaMethod)
        size = sum(p.nbytes for p in method.model.parameters())
        meta = sum(p.nbytes for p in method.meta_parameters)
        for due in (True, False) if name == "vri" else (True,):
            before = parallel.exchanged()
            reported = method.step(noisy, clean if due else None)
            gradients = (3 if isinstance(method, VRI) else 2) * size + meta if due else size
            parallel.means(reported)
            found[f"{name}, {due}"] = (parallel.exchanged() - before, gradients + 8 * len(reported))
    return found


def benchmark() -> dict[str, Any]:
    """What `vri bench --distributed` measures, on tiny images."""
    with patch.dict(benchmark_parallel.VARIANTS, {"vri": {}}, clear=True):
        found = benchmark_parallel.take_steps({"sizes": asdict(Sizes(batch=4, image=8, rounds=1)), "device": "cpu"})
    return found if parallel.first() else {}


def half_precision() -> dict[str, Any]:
    """A few steps under autocast."""
    method = build("vri", network().float(), autocast=torch.bfloat16)
    noisy, clean = (
        Batches((x.float(), y), n, seed=0, divide=True).endless()
        for (x, y), n in ((data(300, 1), 60), (data(60, 2), 20))
    )
    for _ in range(4):
        method.step(next(noisy), next(clean) if method.meta_due else None)
    return {"state": state(method)}


def plain_batches() -> dict[str, Any]:
    """In a loop of one's own: each worker calls `step` with its share of the batch."""
    model = network()
    method = CrossEntropy(model, CLASSES, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = data(8, 1)
    rows = slice(None) if parallel.world() == 1 else slice(0, 4) if parallel.first() else slice(4, 8)
    return {"metrics": parallel.means(method.step((x[rows], y[rows]))), "state": state(method)}


def messages() -> dict[str, Any]:
    """Errors, word for word; and what differs from worker to worker."""

    def fail() -> None:
        raise ValueError("no such file")

    tries: dict[str, Callable[[], Any]] = {
        "on_first": lambda: parallel.on_first(fail),
        "odd batch": lambda: Batches(data(9, 1), 3, seed=0, divide=True),
        "one sample": lambda: Batches(data(1, 1), 2, seed=0, divide=True),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            attempt()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    seeds = [share.current().seed(seed) for seed in (5, 6)]
    loaded = list(Batches([(i, i % 2) for i in range(9)], 4, seed=0, divide=True, shuffle=False).epoch(0))
    return {"errors": found, "seeds": seeds, "loaded": [batch[0].tolist() for batch in loaded]}


def everything(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {name: steps(name) for name in RUNS}
    results["training"] = whole_training(folder / "training", sync=False)
    results["synchronised"] = whole_training(folder / "synchronised", sync=True)
    results["half"], results["plain"] = half_precision(), plain_batches()
    return results


def only_on_several(folder: Path) -> dict[str, Any]:
    results = {"whole": stopped_training(folder / "whole"), "messages": messages(), "bytes": bytes_of_steps()}
    results["benchmark"] = benchmark()
    stopped_training(folder / "stopped", stop=7)
    stopped_training(folder / "shared", stop=7)  # for another number of workers to go on with
    return results | {"resumed": stopped_training(folder / "stopped")}


def die(folder: Path) -> None:
    """`vri train`, in the process group that is there; the second worker is killed in the middle."""
    from vri.cli import main

    original = CrossEntropy.step
    done = 0

    def step(self: CrossEntropy, *batches: Any) -> Any:
        nonlocal done
        done += 1
        if done == 15 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *batches)

    CrossEntropy.step = step  # type: ignore[method-assign]
    sys.exit(main([*DYING, "--out", str(folder / "died")]))


DYING = ["train", "--dataset", "digits", "--method", "cross-entropy", "--epochs", "2", "limit=500", "test_limit=100"]
DYING += ["clean=0", "checkpoint_every=4", "tensorboard=false", "--quiet", "--device", "cpu", "batch_size=50"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = Path(sys.argv[1])
    parallel.start()
    torch.save(everything(where) | only_on_several(where), where / f"results.{parallel.rank()}.pt")
    die(where)
