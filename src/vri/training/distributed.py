"""Training on several processes: the only module that uses `torch.distributed`.

As in DistributedDataParallel, every worker is a process that holds the whole model and takes an equal share of every
batch, and gradients are averaged: `start` sets a `core.share.Share` that does so wherever the classifier takes a
gradient. Nothing here has any effect until `start` has found other workers.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

from vri.core import share
from vri.core.share import Share
from vri.methods.memory import SampleMemory

TIMEOUT = "VRI_TIMEOUT"  # environment: seconds that a worker waits for the others
_DEFAULT_TIMEOUT = 600.0
_BUCKET = 25 * 2**20  # bytes that are sent at once

T = TypeVar("T")


class WorkerLost(ConnectionError):
    """Another worker died, or did not answer in time."""


class FailedElsewhere(RuntimeError):
    """The first worker failed; its own message says why."""


@dataclass
class _Group:
    """The workers of this run, seen from one of them."""

    rank: int
    size: int
    local: int  # its number on this machine
    timeout: float
    sent: int = 0  # bytes


_group: _Group | None = None


# joining and leaving


def start() -> None:
    """Join the workers that `torchrun` started, or those of an existing process group; without either, do nothing.

    NCCL transfers tensors on GPUs, gloo those in main memory. A process group that you create yourself needs both: the
    backend "cpu:gloo,cuda:nccl". VRI_TIMEOUT sets how many seconds a worker waits for the others, 600 by default.
    """
    global _group
    timeout = _timeout()
    if not dist.is_available():
        return
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        except RuntimeError as error:
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise WorkerLost(
                f"the other workers can't be reached at {where} ({_first_line(error)}); expected all "
                f"{os.environ['WORLD_SIZE']} of them within {timeout:g} s: check that torchrun runs on every machine"
            ) from error
    rank = dist.get_rank()
    _group = _Group(rank, dist.get_world_size(), int(os.environ.get("LOCAL_RANK", rank)), timeout)
    share.take(_EqualShare(rank, _group.size))
    if torch.cuda.is_available() and _group.local < torch.cuda.device_count():
        torch.cuda.set_device(_group.local)


def finish() -> None:
    """Leave the other workers; from here on this is a single process again."""
    global _group
    if _group is not None:
        _forget()
        dist.destroy_process_group()


def _forget() -> None:
    """Forget the other workers."""
    global _group
    _group = None
    share.take(Share())


@contextmanager
def workers() -> Iterator[None]:
    """`start`, and `finish` if nothing failed; a worker that fails doesn't wait for the others."""
    start()
    try:
        yield
    except BaseException:
        _forget()
        raise
    finish()


@contextmanager
def alone() -> Iterator[None]:
    """Within this block nothing is exchanged: for work that one worker does alone."""
    global _group
    here, mine = _group, share.current()
    _forget()
    try:
        yield
    finally:
        _group = here
        share.take(mine)


def world() -> int:
    """How many workers there are."""
    return 1 if _group is None else _group.size


def rank() -> int:
    """The number of this worker, from 0."""
    return 0 if _group is None else _group.rank


def first() -> bool:
    """Whether this is the worker that writes and reports."""
    return rank() == 0


def exchanged() -> int:
    """Bytes of tensors that this worker has sent since `start`; a summed tensor counts once."""
    return 0 if _group is None else _group.sent


def local_device(device: torch.device) -> torch.device:
    """This worker's device; for "cuda", the GPU with the worker's number on its machine."""
    if _group is None or str(device) != "cuda":
        return device
    if _group.local >= torch.cuda.device_count():
        raise ValueError(
            f"worker {_group.local + 1} of this machine has no GPU: it has {torch.cuda.device_count()}, expected one "
            "per worker; lower --nproc-per-node, or train with device=cpu"
        )
    return torch.device("cuda", _group.local)


# sums


class _EqualShare(Share):
    """An equal share of every batch; the other workers have the rest."""

    def __init__(self, index: int, count: int) -> None:
        self.index, self.count = index, count

    def gradients(
        self, outputs: Tensor | Sequence[Tensor], inputs: Sequence[Tensor], *how: Any, **named: Any
    ) -> list[Tensor]:
        """Averaged over the workers; the first gradients are sent while the last are still being computed."""
        buckets = _Buckets(inputs)
        hooks = [t.register_hook(partial(buckets.ready, i)) for i, t in enumerate(inputs)]
        try:
            found = super().gradients(outputs, inputs, *how, **named)
        finally:
            for hook in hooks:
                hook.remove()
        summed = buckets.finish(found)
        torch._foreach_div_(summed, float(self.count))
        return summed

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor averaged over the workers, differentiable, in one exchange."""
        if not tensors:
            return []
        whole = total(torch.cat([t.reshape(-1) for t in tensors])) / self.count
        pieces = whole.split([t.numel() for t in tensors])
        return [piece.view(t.shape).to(t.dtype) for piece, t in zip(pieces, tensors, strict=True)]


def total(tensor: Tensor) -> Tensor:
    """A tensor summed over all workers; differentiable in both modes and more than once, as a sum is linear."""
    if _group is None:
        return tensor
    summed: Tensor = _Total.apply(tensor)  # type: ignore[no-untyped-call]
    return summed


def sums(numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers summed over all workers."""
    if _group is None:
        return dict(numbers)
    values = torch.tensor(list(numbers.values()), dtype=torch.float64)
    _sum(values)
    return dict(zip(numbers, values.tolist(), strict=True))


def means(metrics: Mapping[str, float]) -> dict[str, float]:
    """Numbers to report, averaged over all workers."""
    return {name: value / world() for name, value in sums(metrics).items()}


def anywhere(flag: bool) -> bool:
    """Whether the flag is set on any worker."""
    return flag if _group is None else sums({"flag": float(flag)})["flag"] > 0


def merge(memories: Iterable[SampleMemory]) -> None:
    """Give all workers the rows that each has written since the last call."""
    if _group is None:
        return
    for memory in memories:
        if memory.values is None:
            continue
        touched = memory.touched.view(-1, *[1] * (memory.values.ndim - 1))
        count = _sum(touched.to(memory.values.dtype))
        written = _sum(torch.where(touched, memory.values, 0))
        memory.values.copy_(torch.where(count > 0, written / count.clamp_min(1), memory.values))
        memory.touched.zero_()


# copies


def rows_of(count: int) -> range:
    """This worker's part of `count` samples: [r·n/R, (r + 1)·n/R) for worker r of R, with n = count."""
    return range(count * rank() // world(), count * (rank() + 1) // world())


def gather(rows: Tensor) -> Tensor:
    """The rows of all workers, in their order; no gradient passes."""
    if _group is None:
        return rows
    counts = _counts(len(rows))
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows.detach()
    parts = [torch.empty_like(padded) for _ in counts]
    _send(padded, lambda: dist.all_gather(parts, padded))
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Give all workers the first worker's values of these tensors."""
    if _group is None:
        return
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for alike in kinds.values():
        flat = torch.cat([t.reshape(-1) for t in alike])
        _send(flat, partial(dist.broadcast, flat, 0))
        for tensor, values in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(values.view(tensor.shape))


def on_first(function: Callable[[], T]) -> T:
    """Call a function on the first worker only, and return its result on all; if it fails, all fail.

    Files are read and written this way: the other workers don't need access to them.
    """
    if _group is None:
        return function()
    box: list[Any] = [None, None]  # result, error
    failed = None
    if first():
        try:
            box[0] = function()
        except Exception as error:
            failed, box[1] = error, f"{type(error).__name__}: {error}"
    with _calling():
        dist.broadcast_object_list(box, src=0)
    if failed is not None:
        raise failed
    if box[1] is not None:
        raise FailedElsewhere(f"the first worker failed: {box[1]}")
    result: T = box[0]
    return result


# below: calls of torch.distributed


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        return _sum(tensor.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        return total(gradient)

    @staticmethod
    def jvp(ctx: FunctionCtx, tangent: Tensor) -> Tensor:
        return total(tangent)


class _Buckets:
    """Gradients being sent: each bucket goes out as soon as it and those before it are full."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._places: list[Tensor] = [torch.empty(0)] * len(tensors)
        self._bucket_of = [0] * len(tensors)
        self._flat: list[Tensor] = []
        self._missing: list[set[int]] = []
        self._works: list[Any] = []
        # a backward pass reaches the last parameters first; the order is the same on all workers
        bucket: list[int] = []
        for i in reversed(range(len(tensors))):
            alike = not bucket or (tensors[i].dtype, tensors[i].device) == (
                tensors[bucket[0]].dtype,
                tensors[bucket[0]].device,
            )
            size = sum(tensors[j].nbytes for j in (*bucket, i))
            if bucket and (not alike or size > _BUCKET):
                self._fill(bucket, tensors)
                bucket = []
            bucket.append(i)
        if bucket:
            self._fill(bucket, tensors)

    def _fill(self, members: list[int], tensors: Sequence[Tensor]) -> None:
        flat = torch.empty(
            sum(tensors[i].numel() for i in members), dtype=tensors[members[0]].dtype, device=tensors[members[0]].device
        )
        offset = 0
        for i in members:
            t = tensors[i]
            dense = t.is_contiguous(memory_format=torch.channels_last) if t.ndim == 4 else False
            stride = t.stride() if dense else torch.empty(t.shape, device="meta").stride()
            self._places[i] = flat.as_strided(t.shape, stride, offset)
            self._bucket_of[i] = len(self._flat)
            offset += t.numel()
        self._flat.append(flat)
        self._missing.append(set(members))

    def ready(self, number: int, gradient: Tensor) -> None:
        """The gradient of this tensor is known."""
        self._put(number, gradient)
        self._launch()

    def finish(self, found: Sequence[Tensor]) -> list[Tensor]:
        """All sums; `found` has the gradients that no hook has seen."""
        for number in sorted(set().union(*self._missing)):
            self._put(number, found[number])
        self._launch()
        with _calling():
            for work in self._works:
                work.wait()
        return self._places

    def _put(self, number: int, gradient: Tensor) -> None:
        with torch.no_grad():
            self._places[number].copy_(gradient)
        self._missing[self._bucket_of[number]].discard(number)

    def _launch(self) -> None:
        while len(self._works) < len(self._flat) and not self._missing[len(self._works)]:
            flat = self._flat[len(self._works)]
            self._works.append(_send(flat, partial(dist.all_reduce, flat, async_op=True)))


def _sum(tensor: Tensor) -> Tensor:
    """Sum in place."""
    _send(tensor, partial(dist.all_reduce, tensor))
    return tensor


def _counts(count: int) -> list[int]:
    """How many rows each worker has."""
    mine = torch.tensor([count])
    every = [torch.empty_like(mine) for _ in range(world())]
    _send(mine, lambda: dist.all_gather(every, mine))
    return [int(each) for each in every]


def _send(tensor: Tensor, exchange: Callable[[], T]) -> T:
    """Exchange a tensor, and count its bytes."""
    assert _group is not None
    _group.sent += tensor.nbytes
    with _calling():
        return exchange()


@contextmanager
def _calling() -> Iterator[None]:
    """Turn what a broken connection raises into one clear line."""
    try:
        yield
    except RuntimeError as error:
        waited = "" if _group is None else f", or did not answer for {_group.timeout:g} s"
        raise WorkerLost(
            f"another worker died{waited} ({_first_line(error)}); look for its own message, then start the same "
            f"command with --resume: it continues from the last checkpoint. {TIMEOUT} sets the seconds to wait"
        ) from error


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, str(_DEFAULT_TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{TIMEOUT}={text!r} in the environment: expected a number of seconds above 0, such as 600")
    return seconds


def _first_line(error: Exception) -> str:
    """The first sentence of an error, without the location in PyTorch's source that it may begin with."""
    found = re.match(r"(?:\[\S*\]\s*)?(.*?)(?:\. |\.?\n|\.?$)", str(error).strip())
    return (found and found[1]) or type(error).__name__
