"""Batches whose order is a pure function of seed and epoch: a run can resume anywhere without saved state."""

import random
import signal
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from vri.core import share
from vri.core.checks import on_leaves, to_device
from vri.core.randomness import derive_seed, seeded

# A tuple of tensors (inputs, labels, ...), or anything with a length that returns (inputs, labels) by index.
Data = tuple[Any, ...] | Dataset[Any] | Sequence[Any]
# A function of the inputs of a batch and the batch's own seed.
Transform = Callable[[Any, int], Any]

_TRANSFORMS = 0  # derives the seeds of transforms, beside those of epochs (epoch,) and samples (epoch, sample)
_READ_AT_MOST = 100_000  # samples that `read_labels` goes through one by one


@dataclass(frozen=True)
class _Place:
    """One batch: its position and its samples."""

    epoch: int
    number: int  # in its epoch
    index: Tensor  # sample numbers


class Batches:
    """Batches (inputs, labels, ...) of a data set, reshuffled every epoch.

    Tensors are indexed a whole batch at a time. Other data sets go through a `DataLoader`; their random transforms draw
    the same for the same (seed, epoch, sample), wherever a run resumes and whichever loading process does it.

    Args:
        dataset: a tuple of tensors (in place of a tensor also a tuple or dict of them), a `TensorDataset`, a
            `Subset` of one, or any map-style data set.
        batch_size: samples per batch; a smaller data set is one batch.
        seed: of order and random transforms.
        drop_last: whether a last, partial batch is skipped; by default only if it has a single sample (divided: fewer
            than two for each worker), on which BatchNorm fails.
        shuffle: False keeps the order of the data set.
        num_workers: processes that load a data set which isn't in memory.
        device: where the batches go; by default they stay where the data is.
        transform: applied as ``transform(inputs, seed)`` to the inputs of each batch of a data set in memory,
            on the device, with a separate seed for each batch of each epoch: a resumed run draws the same.
        views: several transforms instead of one, for methods that need several views of a sample: the inputs are then a
            tuple, one per view. A data set that isn't in memory is read as often, with new random transforms.
        with_index: whether each batch ends with the samples' numbers, int64.
        divide: whether each worker takes only its equal share of every batch; `batch_size` counts the samples of all
            workers together. The remainder of a last batch that can't be divided is skipped.
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
        views: Sequence[Transform | None] = (),
        with_index: bool = False,
        divide: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: expected 1 or more samples per batch; raise it")
        self._dataset, self._tensors = dataset, _in_memory(dataset)
        self._views = tuple(views) or (transform,)
        if any(view is not None for view in self._views) and self._tensors is None:
            raise ValueError(
                f"transform was given for a {type(dataset).__name__}, expected a data set in memory (a tuple of "
                "tensors or a TensorDataset); let the samples of the data set be transformed by itself"
            )
        self._rows: Tensor | None = None  # of the tensors, if the data set is a subset
        if isinstance(dataset, Subset) and self._tensors is not None:
            self._rows = torch.as_tensor(dataset.indices, dtype=torch.int64)
        self.size = length(dataset)
        if self.size == 0:
            raise ValueError("the data set is empty: expected at least one sample; check it and its filter")
        self._share = share.current() if divide else share.Share()
        processes = self._share.count
        if batch_size % processes or self.size < processes:
            got = min(batch_size, self.size)
            raise ValueError(
                f"a batch of {got} for {processes} processes: expected a multiple of {processes}, so that all have as "
                "many samples; change batch_size, give more samples, or start fewer processes"
            )
        self.batch_size = min(batch_size, self.size // processes * processes)
        self.seed, self.shuffle = seed, shuffle
        self.num_workers, self.device, self.with_index = num_workers, device, with_index
        whole, rest = divmod(self.size, self.batch_size)
        drop = rest < (2 * processes if drop_last is None else processes) or bool(drop_last)
        self._len = whole + (rest > 0 and not drop)

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._len

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of this epoch, from batch number `start` on."""
        return self._load(islice(self._indices(epoch, start), max(len(self) - start, 0)))

    def endless(self, start: int = 0) -> Iterator[Any]:
        """Epoch after epoch, endlessly, from batch number `start` of the first epoch on."""
        return self._load(self._indices(*divmod(start, len(self))))

    def _indices(self, first: int, start: int) -> Iterator[_Place]:
        """Epoch, number within it and sample numbers of each batch, endlessly."""
        for epoch in count(first):
            order = self.order(epoch)
            for number in range(start if epoch == first else 0, len(self)):
                index = order[number * self.batch_size : (number + 1) * self.batch_size]
                mine = len(index) // self._share.count
                yield _Place(epoch, number, index[mine * self._share.index : mine * (self._share.index + 1)])

    def order(self, epoch: int) -> Tensor:
        """Sample numbers in the order of this epoch."""
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        return torch.randperm(self.size, generator=generator)

    def _load(self, batches: Iterator[_Place]) -> Iterator[Any]:
        if self._tensors is None:
            return self._load_items(batches)
        return (self._gather(place) for place in batches)

    def _gather(self, place: _Place) -> Any:
        index = place.index
        batch = _take(self._tensors, index if self._rows is None else self._rows[index])
        if self.with_index:
            batch = (*batch, index)
        if self.device is not None:
            batch = to_device(batch, self.device)
        if self._views == (None,):
            return batch
        inputs, *others = batch
        seed = self._share.seed(derive_seed(self.seed, place.epoch, _TRANSFORMS, place.number))
        seeds = [seed, *(derive_seed(seed, number) for number in range(1, len(self._views)))]
        drawn = tuple(v(inputs, own) if v is not None else inputs for v, own in zip(self._views, seeds, strict=True))
        return (drawn if len(drawn) > 1 else drawn[0], *others)

    def _load_items(self, batches: Iterator[_Place]) -> Iterator[Any]:
        def keys() -> Iterator[list[tuple[int, int]]]:
            for place in batches:
                yield [(i, derive_seed(self.seed, place.epoch, i)) for i in place.index.tolist()]

        loader: DataLoader[Any] = DataLoader(
            SeededItems(self._dataset, self.with_index, len(self._views)),
            batch_sampler=keys(),  # may be any iterable, even an endless one
            num_workers=self.num_workers,
            collate_fn=default_collate,
            pin_memory=self.device is not None and self.device.type == "cuda",
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # else the loader draws from the global one
        )
        for batch in loader:
            yield batch if self.device is None else to_device(batch, self.device)


class SeededItems(Dataset[Any]):
    """A data set whose random transforms depend only on the seed that comes with the index."""

    def __init__(self, dataset: Any, with_index: bool = False, views: int = 1) -> None:
        self.dataset, self.with_index, self.views = dataset, with_index, views

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Any]:
        """The samples of a batch, each from an (index, seed)."""
        # Transforms use only the global generators: borrow all three and restore them.
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            with seeded(0, torch.device("cpu")):
                return [self._draw(*key) for key in keys]
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002

    def _draw(self, index: int, seed: int) -> Any:
        sample = self._drawn(index, seed)
        if self.views > 1:
            more = (self._drawn(index, derive_seed(seed, number))[0] for number in range(1, self.views))
            sample = ((sample[0], *more), *sample[1:])
        if not self.with_index:
            return sample
        if not isinstance(sample, (tuple, list)):
            raise TypeError(
                f"sample {index} is a {type(sample).__name__}, expected a tuple (inputs, labels) to put its number "
                "beside; let the data set return one"
            )
        return (*sample, index)

    def _drawn(self, index: int, seed: int) -> Any:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        return self.dataset[index]


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
    if isinstance(dataset, Subset):  # not a subset of a subset, which would no longer count as in memory
        return Subset(dataset.dataset, torch.as_tensor(dataset.indices, dtype=torch.int64)[rows].tolist())
    return Subset(cast("Dataset[Any]", dataset), rows.tolist())


def read_labels(dataset: Data, go_through: bool = False) -> Tensor | None:
    """All labels of a data set, or None if they are not cheap to read.

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
    elif getattr(dataset, "target_transform", None) is None:  # else the samples' labels differ
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
    # twelve times as fast as data[index] for small images
    return on_leaves(lambda tensor: tensor.index_select(0, index.to(tensor.device)), data)


def _ignore_interrupts(_: int) -> None:
    """Ctrl-C reaches the workers too; the main process decides when to stop them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
