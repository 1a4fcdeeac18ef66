"""Batches: order from seed and epoch alone, nothing lost, random transforms that repeat."""

import random
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from vri.data.batches import Batches, derive_seed, read_labels


def tensors(count: int) -> tuple[Tensor, Tensor]:
    return torch.arange(count) * 10, torch.arange(count)


class Items(Dataset[tuple[Tensor, int]]):
    """Each sample adds noise from all three global generators."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index >= self.count:
            raise IndexError(index)
        noise = [float(torch.rand(())), random.random(), float(np.random.rand())]  # noqa: NPY002
        return torch.tensor([float(index), *noise]), index


def numbers(batches: Any) -> list[list[int]]:
    return [y.tolist() for _, y in batches]


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(one, other, strict=True))
    return bool(pairs) and all(torch.equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


def test_an_epoch_has_every_sample_once() -> None:
    batches = Batches(tensors(23), 5, seed=1)
    epoch = list(batches.epoch(0))
    assert [len(y) for _, y in epoch] == [5, 5, 5, 5, 3]
    assert sorted(torch.cat([y for _, y in epoch]).tolist()) == list(range(23))
    assert all(torch.equal(x, 10 * y) for x, y in epoch)


def test_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    first = numbers(Batches(tensors(50), 10, seed=1).epoch(3))
    torch.rand(7)
    batches = Batches(tensors(50), 10, seed=1)
    list(batches.epoch(0))
    assert numbers(batches.epoch(3)) == first
    assert numbers(batches.epoch(4)) != first
    assert numbers(Batches(tensors(50), 10, seed=2).epoch(3)) != first


def test_order_is_the_same_on_every_machine() -> None:
    """A change of these numbers would make old checkpoints go on with other batches."""
    assert derive_seed(0) != derive_seed(0, 0) != derive_seed(0, 0, 0)
    assert derive_seed(7, 3) == 3411976877185804603
    assert Batches(tensors(8), 8, seed=7).order(3).tolist() == [6, 4, 0, 5, 3, 2, 1, 7]


@pytest.mark.parametrize("make", [tensors, Items])
@pytest.mark.parametrize("start", [0, 1, 4, 5, 9, 12])
def test_any_start_continues_the_stream(make: Any, start: int) -> None:
    batches = Batches(make(23), 5, seed=1)
    stream = [batch for epoch in range(4) for batch in batches.epoch(epoch)]
    assert same(islice(batches.endless(start), 8), stream[start : start + 8])
    epoch, place = divmod(start, len(batches))
    assert same(batches.epoch(epoch, place), stream[start : (epoch + 1) * len(batches)])


@pytest.mark.parametrize(
    ("count", "size", "drop_last", "sizes"),
    [
        (11, 5, None, [5, 5]),  # BatchNorm fails on a single sample
        (12, 5, None, [5, 5, 2]),
        (11, 5, False, [5, 5, 1]),
        (12, 5, True, [5, 5]),
        (3, 5, None, [3]),
        (3, 5, True, [3]),
        (1, 5, None, [1]),
        (3, 1, None, [1, 1, 1]),
        (10, 5, True, [5, 5]),
    ],
)
def test_last_batch(count: int, size: int, drop_last: bool | None, sizes: list[int]) -> None:
    batches = Batches(tensors(count), size, seed=0, drop_last=drop_last)
    assert [len(y) for _, y in batches.epoch(0)] == sizes
    assert len(batches) == len(sizes)


def test_sets_of_tensors_give_the_same_batches() -> None:
    x, y = tensors(20)
    expected = numbers(Batches((x, y), 6, seed=0).epoch(1))
    assert numbers(Batches(TensorDataset(x, y), 6, seed=0).epoch(1)) == expected
    assert numbers(Batches(Items(20), 6, seed=0).epoch(1)) == expected
    assert numbers(Batches([*zip(x, y, strict=True)], 6, seed=0).epoch(1)) == expected


def test_part_of_a_tensor_set() -> None:
    rows = [3, 5, 7, 11, 13]
    part = Subset(TensorDataset(*tensors(20)), rows)
    batches = Batches(part, 2, seed=0, drop_last=False)
    assert sorted(torch.cat([y for _, y in batches.epoch(0)]).tolist()) == rows
    assert all(torch.equal(x, 10 * y) for x, y in batches.epoch(0))


def test_inputs_of_several_tensors() -> None:
    x, y = tensors(6)
    for inputs, _, weights in Batches(({"a": x, "b": (x, -x)}, y, y / 2), 3, seed=0).epoch(0):
        assert torch.equal(inputs["a"], 20 * weights.long() + 10 * (2 * weights % 2).long())
        assert torch.equal(inputs["b"][0], -inputs["b"][1])


def test_without_shuffling_the_order_stays() -> None:
    assert numbers(Batches(tensors(5), 2, seed=0, shuffle=False, drop_last=False).epoch(0)) == [
        [0, 1],
        [2, 3],
        [4],
    ]


def test_random_transforms_repeat_and_differ_between_epochs_and_samples() -> None:
    batches = Batches(Items(6), 6, seed=0)
    first = next(batches.epoch(0))[0]
    assert torch.equal(first, next(batches.epoch(0))[0])
    later = next(batches.epoch(1))[0]
    for column in (1, 2, 3):
        assert len({*first[:, column].tolist(), *later[:, column].tolist()}) == 12


def test_workers_draw_what_the_main_process_draws() -> None:
    alone = Batches(Items(10), 4, seed=0)
    helped = Batches(Items(10), 4, seed=0, num_workers=2)
    assert same(islice(alone.endless(1), 5), islice(helped.endless(1), 5))


def jitter(inputs: Tensor, seed: int) -> Tensor:
    """Inputs and a random number of this batch, beside its seed."""
    drawn = torch.rand(len(inputs), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.cat([inputs[:, None].double(), drawn], 1)


@pytest.mark.parametrize("start", [0, 1, 4, 5, 9, 12])
def test_transforms_draw_the_same_from_any_start(start: int) -> None:
    batches = Batches(tensors(23), 5, seed=1, transform=jitter)
    stream = [batch for epoch in range(4) for batch in batches.epoch(epoch)]
    again = Batches(tensors(23), 5, seed=1, transform=jitter)
    assert same(islice(again.endless(start), 8), stream[start : start + 8])
    epoch, place = divmod(start, len(batches))
    assert same(again.epoch(epoch, place), stream[start : (epoch + 1) * len(batches)])


def test_each_batch_has_a_seed_of_its_own_and_labels_stay() -> None:
    seeds = []
    batches = Batches(tensors(23), 5, seed=1, transform=lambda x, seed: seeds.append(seed) or x)
    plain = Batches(tensors(23), 5, seed=1)
    assert same(islice(batches.endless(), 15), islice(plain.endless(), 15))
    assert len(set(seeds)) == 15
    assert seeds[7] == derive_seed(1, 1, 0, 2)  # of epoch 1, place 2
    other = Batches(tensors(23), 5, seed=2, transform=lambda x, seed: seeds.append(seed) or x)
    list(other.epoch(0))
    assert len(set(seeds)) == 20


def test_a_transform_sees_the_inputs_on_the_device_of_the_batch() -> None:
    seen = []
    x, y = tensors(6)
    device = torch.device("meta")  # the only other one that is everywhere
    batches = Batches((x, y), 3, seed=0, device=device, transform=lambda x, _: seen.append(x.device) or x)
    assert [part.device for part in next(batches.epoch(0))] == [device, device]
    assert seen == [device]


@pytest.mark.parametrize("make", [tensors, Items, lambda n: Subset(TensorDataset(*tensors(2 * n)), range(1, 2 * n, 2))])
def test_numbers_of_the_samples(make: Any) -> None:
    plain = list(Batches(make(23), 5, seed=1).epoch(2))
    numbered = Batches(make(23), 5, seed=1, with_index=True)
    for (x, y), (same_x, same_y, index) in zip(plain, numbered.epoch(2), strict=True):
        assert torch.equal(x, same_x)
        assert torch.equal(y, same_y)
        assert index.dtype == torch.int64
        assert torch.equal(y, 2 * index + 1 if isinstance(make(1), Subset) else index)
    order = torch.cat([index for *_, index in numbered.epoch(2)])
    assert torch.equal(order, numbered.order(2))
    workers = Batches(make(23), 5, seed=1, with_index=True, num_workers=1)
    assert same(islice(workers.endless(3), 4), islice(numbered.endless(3), 4))


def test_a_transform_is_for_data_in_memory() -> None:
    message = (
        "transform was given for a Items, expected a data set in memory (a tuple of tensors or a TensorDataset); "
        "let the samples of the data set be transformed by itself"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Batches(Items(4), 2, seed=0, transform=jitter)


def test_samples_that_cannot_be_numbered() -> None:
    with pytest.raises(TypeError) as caught:
        next(Batches([1.0, 2.0], 2, seed=0, shuffle=False, with_index=True).epoch(0))
    assert str(caught.value) == (
        "sample 0 is a float, expected a tuple (inputs, labels) to put its number beside; let the data set return one"
    )


def test_global_generators_stay_untouched() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    for batches in (Batches(Items(6), 2, seed=0), Batches(tensors(6), 2, seed=0)):
        list(batches.epoch(0))
    list(Batches(Items(6), 3, seed=0, num_workers=1).epoch(0))
    read_labels(Items(6), go_through=True)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002


def test_labels_are_read_where_that_is_cheap() -> None:
    x, y = tensors(6)
    assert torch.equal(read_labels((x, y)), y)
    assert torch.equal(read_labels(TensorDataset(x, y)), y)
    assert read_labels((x,)) is None
    assert torch.equal(read_labels(Subset(TensorDataset(x, y), [4, 1])), torch.tensor([4, 1]))
    assert read_labels(Items(6)) is None
    assert torch.equal(read_labels(Items(6), go_through=True), y)
    assert torch.equal(read_labels(Subset(Items(6), [2, 3]), go_through=True), torch.tensor([2, 3]))
    assert read_labels([1.0, 2.0], go_through=True) is None
    named = Items(3)
    named.targets = [2, 1, 0]  # type: ignore[attr-defined]
    assert torch.equal(read_labels(named), torch.tensor([2, 1, 0]))
    named.target_transform = lambda label: label + 1  # type: ignore[attr-defined]
    assert read_labels(named) is None
    names = Items(3)
    names.labels = ["cat", "dog", "bird"]  # type: ignore[attr-defined]
    assert read_labels(names) is None


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (
            tensors(0),
            ValueError,
            "the data set is empty: expected at least one sample; check it and its filter",
        ),
        (
            (torch.zeros(3), torch.zeros(4)),
            ValueError,
            "the tensors of the data set have 3 and 4 rows; expected as many labels as inputs: cut them to one length",
        ),
        (
            (np.zeros(3), np.zeros(3)),
            TypeError,
            "the data set is a tuple with a ndarray, expected a tuple of tensors (inputs, labels); "
            "convert with torch.as_tensor, or pass samples one by one as a list or a Dataset",
        ),
        (
            Stream(),
            TypeError,
            "the data set is a Stream, expected a tuple of tensors (inputs, labels) or a map-style data set "
            "with __len__ and __getitem__; an iterable one can't be shuffled or resumed",
        ),
    ],
)
def test_refused_sets(dataset: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        Batches(dataset, 2, seed=0)
    assert str(caught.value) == message
