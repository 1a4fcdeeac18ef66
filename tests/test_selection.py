"""Small-loss selection and learning without clean data (Algorithm 2)."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from vri import data, noise, train
from vri.data.batches import Batches, derive_seed, take
from vri.methods import METHODS, VRI, CleanOnly
from vri.training.selection import Selection, SizedSelection, balanced, mixture, proportional, select, smallest

LOSSES = torch.tensor([0.9, 0.1, 0.5, 0.2, 0.8, 0.3, 0.7, 0.4])
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])


def sized(kind: str = "balanced", size: int = 3, warm_up: int = 1) -> SizedSelection:
    return SizedSelection(kind, size, warm_up)


def test_smallest_of_all() -> None:
    assert smallest(LOSSES, LABELS, 3, 3).tolist() == [1, 3, 5]


def test_balanced_takes_the_smallest_of_each_class() -> None:
    assert sorted(balanced(LOSSES, LABELS, 3, 3).tolist()) == [1, 5, 7]
    assert sorted(balanced(LOSSES, LABELS, 3, 5).tolist()) == [1, 3, 5, 6, 7]  # the remainder: classes 0 and 1


def test_proportional_takes_the_smallest_of_each_class_by_its_size() -> None:
    labels = torch.tensor([0] * 8 + [1] * 2)
    losses = torch.tensor([8.0, 7, 6, 5, 4, 3, 2, 1, 9, 8])
    assert sorted(proportional(losses, labels, 3, 5).tolist()) == [4, 5, 6, 7, 9]
    rare = torch.tensor([0] * 99 + [1])
    assert 99 in proportional(torch.arange(100.0), rare, 2, 10)  # one of every class that there is


def test_mixture_separates_two_gaussians() -> None:
    generator = torch.Generator().manual_seed(0)
    low = 0.2 + 0.05 * torch.randn(600, generator=generator)
    high = 2.0 + 0.3 * torch.randn(400, generator=generator)
    losses, order = torch.cat([low, high]).double(), torch.randperm(1000, generator=generator)
    chosen = mixture(losses[order], torch.zeros(1000, dtype=torch.int64), 1, 10)
    assert set(order[chosen].tolist()) == set(range(600))


def test_mixture_never_prefers_a_larger_loss() -> None:
    generator = torch.Generator().manual_seed(1)
    losses = torch.rand(500, generator=generator).double() ** 3
    chosen = mixture(losses, torch.zeros(500, dtype=torch.int64), 1, 10)
    assert 0 < len(chosen) < 500
    rest = torch.ones(500, dtype=torch.bool)
    rest[chosen] = False
    assert losses[chosen].max() <= losses[rest].min()


def test_mixture_of_equal_losses_falls_back_to_balance() -> None:
    chosen = mixture(torch.ones(8, dtype=torch.float64), LABELS, 3, 3)
    assert LABELS[chosen].tolist() == [0, 1, 2]


def test_scores_by_hand() -> None:
    true_labels = torch.tensor([0, 0, 0, 0, 1, 2, 1, 2])
    chosen = select(sized(), LOSSES, LABELS, 3, true_labels)
    assert chosen.index.tolist() == [1, 5, 7]
    assert chosen.scores == {
        "selected": 3.0,
        "selected_share": 3 / 8,
        "selected_classes": 3.0,
        "selection_balance": pytest.approx(1.0),
        "selection_purity": pytest.approx(2 / 3),
    }
    assert chosen.remark is None
    uneven = select(sized("smallest", 4), LOSSES, LABELS, 3)  # labels 0, 0, 1, 2
    entropy = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    assert uneven.scores["selection_balance"] == pytest.approx(entropy / math.log(3))
    assert "selection_purity" not in uneven.scores


def test_a_class_with_too_few_samples_and_one_without_any() -> None:
    chosen = select(sized(size=8), LOSSES, LABELS, 4)
    assert chosen.index.tolist() == [1, 3, 5, 6, 7]
    assert chosen.remark == ("no training sample has label 3; label 2 has fewer samples than the 2 asked for")


def test_a_class_that_was_not_selected() -> None:
    assert select(sized("smallest", 2), LOSSES, LABELS, 3).remark == "none of label 1, 2 was selected"
    named = Selection("smallest", 2, names=["ant", 77, "cat"]).sized(len(LABELS), 3)
    assert select(named, LOSSES, LABELS, 3).remark == "none of label 77, 'cat' was selected"


def test_a_classifier_that_has_not_learned() -> None:
    remark = select(sized(), torch.full((8,), math.log(3)), LABELS, 3).remark
    assert remark == (
        "nine tenths of the training losses are above 1.10, near the 1.10 of guessing: the classifier has hardly "
        "learned yet, and small losses mean little; raise warm_up or the learning rate"
    )
    # most labels wrong, and a classifier that knows it: a large mean loss is no sign of having learned nothing
    apart = torch.tensor([0.1, 0.1, 0.1, 5.0, 5.0, 5.0, 5.0, 0.1])
    assert select(sized(), apart, LABELS, 3).remark is None


def test_infinite_losses_come_last_and_all_infinite_is_an_error() -> None:
    losses = torch.tensor([math.inf, 0.1, math.nan, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert select(sized("smallest", 2), losses, LABELS, 3).index.tolist() == [1, 3]
    with pytest.raises(ValueError, match="no training sample has a finite loss"):
        select(sized(), torch.full((8,), math.nan), LABELS, 3)


def test_defaults_follow_the_data() -> None:
    assert Selection().sized(50_000, 160) == SizedSelection("balanced", 25_000, 10)
    assert Selection().sized(1201, 12) == SizedSelection("balanced", 600, 3)
    assert Selection().sized(1, 2) == SizedSelection("balanced", 1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": "small", "size": 0, "warm_up": -1},
            "Selection got options it can't use: "
            "kind='small' (expected one of balanced, proportional, smallest, mixture); "
            "size=0 (expected at least 1); warm_up=-1 (expected 0 or more)",
        ),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        Selection(**options)
    assert str(error.value) == message


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r".") as error:
        Selection(size=30).sized(20, 5)
    assert str(error.value) == "selection of size=30 from 20 training samples: expected no more; lower size"
    with pytest.raises(ValueError, match=r".") as error:
        Selection(warm_up=5).sized(20, 5)
    assert str(error.value) == (
        "warm_up=5 of 5 epochs: expected fewer, so that some are left to learn with the selected samples; "
        "lower warm_up or raise epochs"
    )


# in the loop

CLASSES = 3


def samples(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, torch.arange(count) % CLASSES


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def method(name: str = "vri", **options: Any) -> Any:
    net = network()
    if issubclass(METHODS[name], VRI):
        options = {"hidden": (8,), "label_dim": 4, **options}
    return METHODS[name](net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), **options)


OPTIONS: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 5,
    "selection": Selection(size=6, warm_up=1),
    "progress": False,
}


def test_warm_up_is_plain_cross_entropy_and_the_selection_has_the_smallest_losses(tmp_path: Path) -> None:
    """The first epoch equals a run of cross-entropy; then the clean batches are the samples with small losses."""
    x, y = samples(24)
    chosen = method()
    drawn: list[Any] = []
    before: list[dict[str, Tensor]] = []
    original = chosen.step

    def step(batch: Any, meta_batch: Any = None) -> Any:
        before.append(copy.deepcopy(chosen.model.state_dict()))
        drawn.append(meta_batch)
        return original(batch, meta_batch)

    chosen.step = step
    train(chosen, (x, y), None, **OPTIONS)

    # an epoch of warm-up, by the literal optimizer
    literal = network()
    optimizer = torch.optim.SGD(literal.parameters(), lr=0.1, momentum=0.9)
    batches = Batches((x, y), 5, seed=0)
    for place, (inputs, labels) in enumerate(batches.epoch(0)):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5 * (1 + math.cos(math.pi * place / (3 * len(batches))))
        optimizer.zero_grad()
        functional.cross_entropy(literal(inputs), labels).backward()
        optimizer.step()
    for name, value in literal.state_dict().items():
        torch.testing.assert_close(before[0][name], value, rtol=1e-5, atol=1e-6)

    # the samples of the first epoch after it: those with the smallest losses of each class then
    literal.load_state_dict(before[0])
    literal.eval()
    with torch.no_grad():
        losses = functional.cross_entropy(literal(x), y, reduction="none")
    expected = balanced(losses.double(), y, CLASSES, 6).sort().values
    seen = torch.cat([meta[0] for meta in drawn[: len(batches)] if meta is not None])
    assert {tuple(row.tolist()) for row in seen} <= {tuple(row.tolist()) for row in x[expected]}
    order = Batches((x[expected], y[expected]), 5, seed=derive_seed(0, 1, 1))
    assert torch.equal(drawn[0][0], next(order.epoch(0))[0])


def test_history_tells_of_the_selection() -> None:
    x, y = samples(24)
    wrong = y.clone()
    wrong[:6] = (wrong[:6] + 1) % CLASSES
    rows = train(method(), (x, wrong), None, true_labels=y, **OPTIONS)
    assert "selected" not in rows[0]
    for row in rows[1:]:
        assert row["selected"] == 6
        assert row["selected_share"] == 0.25
        assert 0 <= row["selection_purity"] <= 1  # type: ignore[operator]
        assert row["selection_seconds"] >= 0  # type: ignore[operator]
    assert rows[0]["meta_loss"] is None if "meta_loss" in rows[0] else True


class Stop(Exception):
    pass


@pytest.mark.parametrize("clean", [None, 6])
@pytest.mark.parametrize("checkpoint_every", [1, 2, None])
def test_resumes_exactly_in_the_middle_of_an_epoch(
    checkpoint_every: int | None, clean: int | None, tmp_path: Path
) -> None:
    options = {**OPTIONS, "checkpoint_every": checkpoint_every}
    meta_set = None if clean is None else samples(clean, 1)
    whole = method()
    rows = train(whole, samples(24), meta_set, out=tmp_path / "whole", **options)
    for stop_after in (1, 3, 6, 8):
        out, stopped, done = tmp_path / str(stop_after), method(), 0

        def failing(original: Any, limit: int) -> Any:
            def call(*batches: Any) -> Any:
                nonlocal done
                if done == limit:
                    raise Stop
                done += 1
                return original(*batches)

            return call

        stopped.step = failing(stopped.step, stop_after)
        with pytest.raises(Stop):
            train(stopped, samples(24), meta_set, out=out, **options)
        again = method()
        found = train(again, samples(24), meta_set, out=out, **options)
        for name, value in whole.model.state_dict().items():
            assert torch.equal(value, again.model.state_dict()[name])
        drop = ("seconds", "selection_seconds")
        assert [{k: v for k, v in row.items() if k not in drop} for row in found] == [
            {k: v for k, v in row.items() if k not in drop} for row in rows
        ]


def test_other_selection_is_another_run(tmp_path: Path) -> None:
    train(method(), samples(24), None, out=tmp_path, **OPTIONS)
    with pytest.raises(ValueError, match="selection size was 6 and is 9"):
        train(method(), samples(24), None, out=tmp_path, **{**OPTIONS, "selection": Selection(size=9, warm_up=1)})


def test_a_remark_is_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = samples(24)
    train(method(), (x, y.clamp(max=1)), None, **OPTIONS)
    said = capsys.readouterr().err.splitlines()
    assert said == ["epoch 2: no training sample has label 2"]


def test_selected_samples_join_clean_ones() -> None:
    x, y = samples(24)
    clean = samples(6, 1)
    chosen, drawn = method(meta_every=1), []
    original = chosen.step
    chosen.step = lambda batch, meta=None: (drawn.append(meta), original(batch, meta))[1]
    rows = train(chosen, (x, y), clean, **OPTIONS)
    first = Batches(clean, OPTIONS["batch_size"], seed=derive_seed(0, 1)).endless()
    known = {tuple(row.tolist()) for row in x}
    assert len(drawn) == len(rows[1:]) * len(Batches((x, y), OPTIONS["batch_size"], seed=0))  # one epoch warms up
    for inputs, labels in drawn:
        own, own_labels = next(first)
        assert torch.equal(inputs[: len(own)], own)  # as without a selection
        assert torch.equal(labels[: len(own)], own_labels)
        assert len(inputs) == len(own) + OPTIONS["batch_size"]
        assert {tuple(row.tolist()) for row in inputs[len(own) :]} <= known
    assert "selected" not in rows[0]
    assert rows[-1]["selected"] == 6


class ThreeInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.head(torch.cat([a, b, c], dim=1))


def test_selected_samples_join_clean_ones_of_several_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = tuple(torch.randn(40, 2, generator=generator) for _ in range(3))
    labels, model = torch.arange(40) % 3, ThreeInputs()
    method = VRI(model, 3, torch.optim.SGD(model.parameters(), lr=0.1), hidden=(8,))
    trusted = (tuple(part[:6] for part in parts), labels[:6])
    how: dict[str, Any] = {"selection": Selection(size=6, warm_up=1), "batch_size": 10, "progress": False}
    history = train(method, (parts, labels), trusted, epochs=2, on_remark=lambda _: None, **how)
    assert history[-1]["meta_loss"] > 0


def test_a_method_that_cannot_select() -> None:
    net = network()
    with pytest.raises(ValueError, match=r".") as error:
        train(CleanOnly(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1)), samples(24), None, **OPTIONS)
    assert str(error.value) == "selection was given for CleanOnly, which can't use it; leave selection out"


class Files(Dataset[tuple[Tensor, int]]):
    """Not in memory."""

    def __init__(self, count: int) -> None:
        self.x, self.y = samples(count)
        self.targets = self.y.tolist()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


def test_data_sets_that_are_not_in_memory_give_the_same() -> None:
    first, second = method(), method()
    train(first, samples(24), None, **OPTIONS)
    train(second, Files(24), None, **OPTIONS)
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])


def test_take_of_a_part_stays_in_memory() -> None:
    x, y = samples(10)
    part = take(torch.utils.data.Subset(torch.utils.data.TensorDataset(x, y), [5, 6, 7]), torch.tensor([2, 0]))
    (batch,) = Batches(part, 5, seed=0, shuffle=False).epoch(0)
    assert torch.equal(batch[0], x[[7, 5]])


@pytest.mark.parametrize("name", ["vri", "mc", "non-bayesian", "mw-net", "warpi"])
def test_methods_that_can_select_learn_digits_without_clean_data(name: str) -> None:
    """On 30 % uniform noise each is better than the 70 % of right labels would make it by chance."""
    images = data.load("digits")
    x = data.to_float(images.train_x, mean=0.3, std=0.4).flatten(1)
    noisy = noise.uniform(None, images.train_y, num_classes=10, rate=0.3, seed=0).labels
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    options = {"hidden": (32,), "label_dim": 8} if issubclass(METHODS[name], VRI) else {}
    chosen = METHODS[name](net, 10, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), **options)
    test = data.to_float(images.test_x, mean=0.3, std=0.4).flatten(1), images.test_y
    rows = train(
        chosen, (x, noisy), None, epochs=6, test_set=test, true_labels=images.train_y, progress=False, batch_size=50
    )
    assert rows[-1]["selection_purity"] > 0.9  # type: ignore[operator]
    assert rows[-1]["test_accuracy"] > 0.8  # type: ignore[operator]
    json.dumps(rows)
