"""Batches whose order is a pure function of seed and epoch: a run goes on anywhere with no state to save."""

import random
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from vri.core.checks import to_device
from vri.core.randomness import seeded
from vri.training import distributed as parallel
from vri.training.distributed import Part

# A tuple of tensors (inputs, labels, ...), or anything with a length that gives (inputs, labels) by index.
Data = tuple[Any, ...] | Dataset[Any] | Sequence[Any]
# What happens to the inputs of a batch, given its own seed.
Transform = Callable[[Any, int], Any]

_TRANSFORMS = 0  # derives the seeds of transforms, beside those of epochs (epoch,) and samples (epoch, sample)
_READ_AT_MOST = 100_000  # samples that `read_labels` goes through one by one


def derive_seed(seed: int, *path: int) -> int:
    """A seed of its own for each path, such as (epoch,) or (epoch, sample)."""
    mixed = np.random.SeedSequence(seed % 2**64, spawn_key=path).generate_state(1, np.uint64)[0]
    return int(mixed) >> 1  # torch takes 63 bits anywhere


@dataclass(frozen=True)
class _Place:
    """One batch: where it stands, and what it has."""

    epoch: int
    number: int  # in its epoch
    index: Tensor  # sample numbers
    part: Part  # of the whole batch, which they are


class Batches:
    """Batches (inputs, labels, ...) of a data set, reshuffled every epoch.

    Tensors are indexed a whole batch at a time. Other data sets go through a `DataLoader`; whatever is random
    in them draws the same for the same (seed, epoch, sample), wherever a run resumes and whichever worker
    does it.

    Args:
        dataset: a tuple of tensors (in place of a tensor also a tuple or dict of them), a `TensorDataset`, a
            `Subset` of one, or any map-style data set.
        batch_size: samples a batch; a smaller data set is one batch.
        seed: of order and random transforms.
        drop_last: whether a last, partial batch is left out; by default only if it has a single sample (divided: a
            single one for some worker), on which BatchNorm fails.
        shuffle: False keeps the order of the data set.
        num_workers: processes that load a data set which isn't in memory.
        device: where the batches go; by default they stay where the data is.
        transform: applied as ``transform(inputs, seed)`` to the inputs of each batch of a data set in memory,
            on the device, with a seed of its own for each epoch and place in it: a resumed run draws the same.
        with_index: whether each batch ends with the samples' numbers, int64.
        divide: whether each worker of a parallel training takes only its rows of every batch: a
            `parallel.PartOfBatch`. `batch_size` is that of all workers together.
    """

    def __init__(
        self,
        dataset: Data,
        batch_size: int,
        *,
        seed: int,
        drop_last: bool | None = None,
        shuffle: bool = True,
        num_workers: int = 0,
        device: torch.device | None = None,
        transform: Transform | None = None,
        with_index: bool = False,
        divide: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: expected 1 or more samples a batch; raise it")
        self._dataset, self._tensors = dataset, _in_memory(dataset)
        if transform is not None and self._tensors is None:
            raise ValueError(
                f"transform was given for a {type(dataset).__name__}, expected a data set in memory (a tuple of "
                "tensors or a TensorDataset); let the samples of the data set be transformed by itself"
            )
        self._rows: Tensor | None = None  # of the tensors, where the data set is a part of them
        if isinstance(dataset, Subset) and self._tensors is not None:
            self._rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        self.size = length(dataset)
        if self.size == 0:
            raise ValueError("the data set is empty: expected at least one sample; check it and its filter")
        self.batch_size = min(batch_size, self.size)
        self.seed, self.shuffle = seed, shuffle
        self.num_workers, self.device = num_workers, device
        self.transform, self.with_index = transform, with_index
        self.divide = divide and parallel.world() > 1
        workers = parallel.world() if divide else 1
        if self.batch_size < workers:
            raise ValueError(
                f"a batch of {self.batch_size} for {workers} workers: expected at least one sample for each; raise "
                "batch_size, give more samples, or start fewer workers"
            )
        whole, rest = divmod(self.size, self.batch_size)
        drop = rest < 2 * workers if drop_last is None else drop_last
        self._len = whole + (rest > 0 and not drop)

    def __len__(self) -> int:
        """Batches an epoch."""
        return self._len

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of this epoch, from batch number `start` on."""
        return self._load(islice(self._indices(epoch, start), max(len(self) - start, 0)))

    def endless(self, start: int = 0) -> Iterator[Any]:
        """Epoch after epoch without an end, from batch number `start` of the first epoch on."""
        return self._load(self._indices(*divmod(start, len(self))))

    def _indices(self, first: int, start: int) -> Iterator[_Place]:
        """Epoch, place in it and sample numbers of each batch, endlessly."""
        for epoch in count(first):
            order = self.order(epoch)
            for number in range(start if epoch == first else 0, len(self)):
                index = order[number * self.batch_size : (number + 1) * self.batch_size]
                part = parallel.part_of(len(index)) if self.divide else Part(0, len(index), len(index))
                yield _Place(epoch, number, part.rows(index), part)

    def order(self, epoch: int) -> Tensor:
        """Sample numbers in the order of this epoch."""
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        return torch.randperm(self.size, generator=generator)

    def _load(self, batches: Iterator[_Place]) -> Iterator[Any]:
        if self._tensors is None:
            return self._load_items(batches)
        return (self._marked(self._gather(place), place.part) for place in batches)

    def _marked(self, batch: Any, part: Part) -> Any:
        return parallel.PartOfBatch(batch, part) if self.divide else batch

    def _gather(self, place: _Place) -> Any:
        index = place.index
        batch = _take(self._tensors, index if self._rows is None else self._rows[index])
        if self.with_index:
            batch = (*batch, index)
        if self.device is not None:
            batch = to_device(batch, self.device)
        if self.transform is None:
            return batch
        seed = derive_seed(self.seed, place.epoch, _TRANSFORMS, place.number)
        if self.divide:
            seed = parallel.own_seed(seed)
        return (self.transform(batch[0], seed), *batch[1:])

    def _load_items(self, batches: Iterator[_Place]) -> Iterator[Any]:
        ahead: deque[Part] = deque()  # of batches that are being loaded

        def keys() -> Iterator[list[tuple[int, int]]]:
            for place in batches:
                ahead.append(place.part)
                yield [(i, derive_seed(self.seed, place.epoch, i)) for i in place.index.tolist()]

        loader: DataLoader[Any] = DataLoader(
            SeededItems(self._dataset, self.with_index),
            batch_sampler=keys(),  # any iterable does, an endless one too
            num_workers=self.num_workers,
            collate_fn=default_collate,
            pin_memory=self.device is not None and self.device.type == "cuda",
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # else the loader draws from the global one
        )
        for batch in loader:
            loaded = batch if self.device is None else to_device(batch, self.device)
            yield self._marked(loaded, ahead.popleft())


class SeededItems(Dataset[Any]):
    """A data set whose random transforms depend on the seed that comes with the index, and only on it."""

    def __init__(self, dataset: Any, with_index: bool = False) -> None:
        self.dataset, self.with_index = dataset, with_index

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Any]:
        """The samples of a batch, each from an (index, seed)."""
        # Transforms know only the global generators: borrow all three and give them back.
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            with seeded(0, torch.device("cpu")):
                return [self._draw(*key) for key in keys]
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002

    def _draw(self, index: int, seed: int) -> Any:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        sample = self.dataset[index]
        if not self.with_index:
            return sample
        if not isinstance(sample, (tuple, list)):
            raise TypeError(
                f"sample {index} is a {type(sample).__name__}, expected a tuple (inputs, labels) to put its number "
                "beside; let the data set return one"
            )
        return (*sample, index)


def length(dataset: Data) -> int:
    """Number of samples."""
    if isinstance(dataset, tuple):
        sizes = sorted({len(leaf) for leaf in _leaves(dataset)})
        if len(sizes) > 1:
            raise ValueError(
                f"the tensors of the data set have {' and '.join(map(str, sizes))} rows; "
                "expected as many labels as inputs: cut them to one length"
            )
        return sizes[0] if sizes else 0
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"the data set is a {type(dataset).__name__}, expected a tuple of tensors (inputs, labels) or a "
            "map-style data set with __len__ and __getitem__; an iterable one can't be shuffled or resumed"
        )
    return len(cast(Sized, dataset))


def take(dataset: Data, rows: Tensor) -> Data:
    """The samples with these numbers, as a data set."""
    if isinstance(dataset, tuple):
        part: tuple[Any, ...] = _take(dataset, rows)
        return part
    if isinstance(dataset, Subset):  # not a part of a part, which would no longer be in memory
        return Subset(dataset.dataset, torch.as_tensor(dataset.indices, dtype=torch.int64)[rows].tolist())
    return Subset(cast("Dataset[Any]", dataset), rows.tolist())


def read_labels(dataset: Data, go_through: bool = False) -> Tensor | None:
    """All labels of a data set, or None where that is not cheap.

    Taken from the tensors, or from `targets` or `labels`; `go_through` reads every sample of a data set
    without them, if it isn't large.
    """
    tensors = _in_memory(dataset)
    labels: Any = None
    if isinstance(dataset, Subset):
        all_labels = read_labels(dataset.dataset)
        rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        labels = None if all_labels is None else all_labels[rows]
    elif tensors is not None:
        labels = tensors[1] if len(tensors) > 1 else None
    elif getattr(dataset, "target_transform", None) is None:  # else the samples' labels are others
        labels = getattr(dataset, "targets", getattr(dataset, "labels", None))
    found = _as_labels(labels, length(dataset))
    if found is None and tensors is None and go_through and length(dataset) <= _READ_AT_MOST:
        items = SeededItems(dataset)
        pairs = items.__getitems__([(i, derive_seed(0, 0, i)) for i in range(len(items))])
        if all(isinstance(pair, (tuple, list)) and len(pair) > 1 for pair in pairs):
            found = _as_labels([torch.as_tensor(pair[1]).tolist() for pair in pairs], len(pairs))
    return found


def _as_labels(labels: Any, count: int) -> Tensor | None:
    """A tensor of `count` labels, or None if these are not labels after all."""
    try:
        found = None if labels is None else torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if found is not None and found.ndim > 0 and len(found) == count else None


def _in_memory(dataset: Any) -> tuple[Any, ...] | None:
    """The tensors of a data set that consists of tensors."""
    if isinstance(dataset, Subset):
        return None if isinstance(dataset.dataset, Subset) else _in_memory(dataset.dataset)
    if type(dataset) is TensorDataset:  # a subclass may do more in __getitem__
        return dataset.tensors
    if not isinstance(dataset, tuple):
        return None
    other = next((type(leaf).__name__ for leaf in _leaves(dataset) if not isinstance(leaf, Tensor)), None)
    if other is not None:
        raise TypeError(
            f"the data set is a tuple with a {other}, expected a tuple of tensors (inputs, labels); "
            "convert with torch.as_tensor, or pass samples one by one as a list or a Dataset"
        )
    return dataset


def _leaves(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in _leaves(value)]
    if isinstance(data, tuple):
        return [leaf for value in data for leaf in _leaves(value)]
    return [data]


def _take(data: Any, index: Tensor) -> Any:
    """Rows of a tensor, or of each in a tuple or dict."""
    if isinstance(data, Tensor):
        return data.index_select(0, index.to(data.device))  # twelve times as fast as data[index] for small images
    if isinstance(data, dict):
        return {key: _take(value, index) for key, value in data.items()}
    return tuple(_take(value, index) for value in data)


def _ignore_interrupts(_: int) -> None:
    """Ctrl-C reaches the workers too; the main process decides when to stop them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
