"""What a method can ask of the loop: streams, views and predictions of training samples; joint prediction."""

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from loop_helpers import CLASSES, data, network
from vri import evaluate, train
from vri.core.model import logits_of
from vri.data.batches import Batches
from vri.methods import METHODS, CrossEntropy
from vri.methods.options import option
from vri.methods.two_networks import JointNetwork, TwoNetworks


def shift(inputs: Tensor, seed: int) -> Tensor:
    """A weak view: a small random shift."""
    return inputs + 0.01 * torch.randn(inputs.shape, generator=torch.Generator().manual_seed(seed))


def jump(inputs: Tensor, seed: int) -> Tensor:
    """A strong view, told from a weak one by its size."""
    return shift(inputs, seed) + 100.0


class Curious(CrossEntropy):
    """Uses all that the loop offers: two views, a survey of the training set, two streams, a memory."""

    name = ""
    views = ("weak", "strong")
    needs_index = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.losses = self.remember("losses", fill=-1.0)
        self.threshold = 0.0
        self.saved += ["threshold"]
        self.surveyed: list[int] = []
        self.seen: list[tuple[Tensor, ...]] = []

    def survey(self, epoch: int) -> None:
        assert self.data is not None
        logits, labels = self.data.predict()
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        self.threshold = float(losses.median())
        self.surveyed.append(epoch)
        self.data.stream("easy", (losses <= self.threshold).nonzero().squeeze(1))
        self.data.stream("hard", (losses > self.threshold).nonzero().squeeze(1), views=("weak", "strong"))

    def step(self, batch: Any, meta_batch: Any = None) -> dict[str, float]:
        (weak, strong), labels, index = batch
        assert self.data is not None
        easy, easy_labels, easy_index = self.data.draw("easy")
        (hard_weak, hard_strong), _, hard_index = self.data.draw("hard")
        self.seen.append(
            (weak, strong, labels, index, easy, easy_labels, easy_index, hard_weak, hard_strong, hard_index)
        )
        self.losses[index] = labels.float()
        return self.descend((torch.cat([weak, easy]), torch.cat([labels, easy_labels])), nn.functional.cross_entropy)


def curious() -> Curious:
    net = network()
    return Curious(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))


def fit(method: Curious, **options: Any) -> list[dict[str, Any]]:
    return train(
        method, data(24), epochs=3, batch_size=6, progress=False, transform=shift, strong_transform=jump, **options
    )


def test_views_streams_and_memories_are_of_the_samples_they_say() -> None:
    x, y = data(24)
    method = curious()
    fit(method)
    assert method.surveyed == [0, 1, 2]
    assert len(method.seen) == 12
    for weak, strong, labels, index, easy, easy_labels, easy_index, hard_weak, hard_strong, hard_index in method.seen:
        for inputs, rows, offset in (
            (weak, index, 0.0),
            (strong, index, 100.0),
            (easy, easy_index, 0.0),
            (hard_weak, hard_index, 0.0),
            (hard_strong, hard_index, 100.0),
        ):
            moved = inputs - offset - x[rows]
            assert 0 < float(moved.abs().max()) < 0.1  # that sample, seen at random
        assert torch.equal(labels, y[index])
        assert torch.equal(easy_labels, y[easy_index])
        assert not set(easy_index.tolist()) & set(hard_index.tolist())
    assert float((method.seen[0][0] - (method.seen[0][1] - 100)).abs().max()) > 1e-4  # views are drawn apart
    assert torch.equal(method.losses.values, y.float())


@pytest.mark.parametrize("stop", [2, 5, 9])
def test_a_stopped_run_surveys_and_draws_as_if_it_had_not(stop: int, tmp_path: Path) -> None:
    whole, first, second = curious(), curious(), curious()
    fit(whole)

    def failing(*batches: Any) -> Any:
        if len(first.seen) == stop:
            raise KeyboardInterrupt
        return type(first).step(first, *batches)

    first.step = failing  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        fit(first, out=tmp_path, checkpoint_every=1)
    fit(second, out=tmp_path, checkpoint_every=1)
    for ours, theirs in zip([*first.seen, *second.seen], whole.seen, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert second.threshold == whole.threshold
    assert first.surveyed + second.surveyed == whole.surveyed
    torch.testing.assert_close(second.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_views_of_samples_that_are_not_in_memory() -> None:
    class Drawn(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return index + torch.rand(3) / 2, index % 2

    (first, second), labels = next(iter(Batches(Drawn(), 4, seed=0, shuffle=False, views=(None, None)).epoch(0)))
    again = next(iter(Batches(Drawn(), 4, seed=0, shuffle=False, views=(None, None)).epoch(0)))[0]
    assert first.floor().tolist() == second.floor().tolist() == [[i] * 3 for i in range(4)]
    assert labels.tolist() == [0, 1, 0, 1]
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])


def test_streams_that_make_no_sense() -> None:
    method = curious()
    fit(method)
    assert method.data is not None
    for rows, views in ((torch.empty(0, dtype=torch.long), ("weak",)), (torch.arange(3), ("sideways",))):
        with pytest.raises(ValueError, match="a stream of"):
            method.data.stream("odd", rows, views)


class Pair(TwoNetworks):
    """Two networks that predict together and learn nothing."""

    name = ""
    ensemble = True

    def step(self, batch: Any, meta_batch: Any = None) -> dict[str, float]:
        return {"loss": 1.0}


def test_two_networks_predict_together() -> None:
    net = network()
    method = Pair(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1))
    x, y = data(30, seed=3)
    method.predictor.eval()
    shares = [m(x).softmax(1) for m in (method.model, method.second_model)]
    torch.testing.assert_close(method.predict(x).softmax(1), (shares[0] + shares[1]) / 2)
    right = ((shares[0] + shares[1]).argmax(1) == y).double().mean()
    assert evaluate(method.predictor, (x, y))["accuracy"] == pytest.approx(float(right))
    history = train(method, (x, y), epochs=1, test_set=(x, y), progress=False)
    assert history[-1]["test_accuracy"] == pytest.approx(float(right))


def test_an_ensemble_takes_what_its_networks_take() -> None:
    class Two(nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.sign = nn.Parameter(torch.tensor(sign))

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"logits": self.sign * (a + 2 * b)}

    a, b = torch.randn(2, 4, 3)
    both = JointNetwork(Two(1.0), Two(-1.0))
    expected = ((a + 2 * b).softmax(1) + (-a - 2 * b).softmax(1)) / 2
    for inputs in ((a, b), {"a": a, "b": b}):
        torch.testing.assert_close(logits_of(both, inputs).softmax(1), expected)


@pytest.mark.parametrize("wrap", [lambda z: {"logits": z}, lambda z: (z, z), lambda z: [z], lambda z: z])
def test_outputs_of_every_kind_are_evaluated(wrap: Any) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Any:
            return wrap(self.layer(x))

    model, (x, y) = Wrapped(), data(9)
    right = (model.layer(x).argmax(1) == y).double().mean()
    assert evaluate(model, (x, y))["accuracy"] == pytest.approx(float(right))


class Own(METHODS["elr"]):  # type: ignore[misc]
    """Somebody's method, with an option and a constructor of its own."""

    share: float = option(0.5, "less than weight", lambda m: m.share < m.weight)

    def __init__(self, model: nn.Module, num_classes: int = CLASSES, beta: float = 0.1, **options: Any) -> None:
        super().__init__(model, num_classes, torch.optim.SGD(model.parameters(), lr=0.1), beta=beta, **options)


class Kinds(CrossEntropy):
    """Options of all kinds."""

    name = ""
    share: float = option(0.5, "a number in [0, 1)")
    weight: float = option(1.0, "0 or more")
    rounds: int | None = option(None, "None or at least 1")
    careful: bool = option(False)
    way: str = option("up", ("up", "down"))


def test_options_are_keywords_attributes_and_settings() -> None:
    parameters = inspect.signature(Own).parameters
    assert list(parameters)[:5] == ["model", "num_classes", "beta", "share", "weight"]
    assert {"generator", "head", "feature_dim", "autocast"} == set(list(parameters)[5:])
    assert [parameters[name].default for name in ("beta", "share", "weight")] == [0.1, 0.5, 3.0]
    method = Own(network(), weight=2)
    assert (method.share, method.beta, method.weight) == (0.5, 0.1, 2)
    assert method.settings() == {"share": 0.5, "beta": 0.1, "weight": 2}
    assert METHODS["elr"](method.model, CLASSES, method.optimizer).settings() == {"weight": 3.0, "beta": 0.7}
    mistakes = r"share=0.5 \(expected less than weight\); weight=-1 \(expected 0 or more\); beta=1 \(.*$"
    with pytest.raises(ValueError, match=f"^Own got options it can't use: {mistakes}"):
        Own(network(), weight=-1, beta=1)
    with pytest.raises(TypeError, match="wieght"):
        Own(network(), wieght=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": "half"}, "share='half' (expected a number in [0, 1)"),
        ({"weight": True}, "weight=True (expected a number, 0 or more)"),
        ({"weight": None}, "weight=None (expected "),
        ({"rounds": 2.5}, "rounds=2.5 (expected None or a whole number, at least 1)"),
        ({"rounds": 0}, "rounds=0 (expected None or at least 1)"),
        ({"careful": "maybe"}, "careful='maybe' (expected true or false)"),
        ({"careful": 1}, "careful=1 (expected true or false)"),
        ({"way": 3}, "way=3 (expected one of up, down)"),
    ],
)
def test_options_of_another_kind(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Kinds(network(), CLASSES, torch.optim.SGD(network().parameters(), lr=0.1), **options)


def test_options_may_come_from_numpy() -> None:
    model = network()
    chosen: dict[str, Any] = {"share": np.float32(0.25), "rounds": np.int64(3), "careful": np.bool_(True)}
    method = Kinds(model, CLASSES, torch.optim.SGD(model.parameters(), lr=0.1), **chosen)
    assert (method.share, method.rounds, method.careful) == (0.25, 3, True)


def test_names_of_methods_are_those_of_their_files() -> None:
    """A newcomer looks for a method where it is."""
    for name, kind in METHODS.items():
        file = kind.__module__.rpartition(".")[2]
        plain = "cross_entropy" if name in ("clean-only", "fine-tuned") else name.replace("-", "_")
        assert file in (plain.rstrip("+"), plain.replace("+", "_plus"))
        assert kind.__doc__
