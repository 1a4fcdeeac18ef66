"""PES: parts of networks, phases, steps by hand, and a training with both of its forms."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri import backbones, train
from vri.core.model import Classifier
from vri.methods import pes
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.layers import head_of, last_block
from vri.methods.pes import PES

CLASSES, SIZE = 3, 8
X, SECOND = torch.randn(2, SIZE, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(SIZE) % CLASSES
ROWS = torch.tensor([5, 0, 3, 7, 2])


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh()]
        return nn.Sequential(*hidden, nn.Linear(6, CLASSES)).double()


def build(kind: Any = PES, momentum: float = 0.0, **options: Any) -> Any:
    net = network()
    method = kind(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum), **options)
    method.begin_training(SIZE, None)
    return method


def stages() -> nn.Module:
    """Four stages of five weights, as ResNet-18 has, and a stem."""
    model = nn.Module()
    model.stem = nn.Linear(2, 2)
    for number in range(4):
        model.add_module(f"layer{number + 1}", nn.Sequential(*[nn.Linear(2, 2) for _ in range(5)]))
    model.norm, model.fc = nn.BatchNorm1d(2), nn.Linear(2, 10)
    return model


@pytest.mark.parametrize(
    ("model", "first", "count", "head"),
    [
        (stages, "layer4.0.weight", 14, "fc"),  # with the layers after it
        (lambda: backbones.mlp(4, 10, hidden=(5, 6)), "3.weight", 4, "5"),
        (lambda: backbones.mlp(4, 10, hidden=(5,) * 9), "15.weight", 6, "19"),
        (lambda: backbones.mlp(4, 10, hidden=(5,)), "", 0, "3"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 10)), "", 0, "1"),
        (lambda: backbones.fast(10), "blocks.2.conv1.weight", 6, "head"),
    ],
)
def test_parts_of_networks(model: Any, first: str, count: int, head: str) -> None:
    net = model()
    classifier = Classifier(net, 10, torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1))
    block = last_block(classifier)
    assert head_of(classifier) == [f"{head}.weight", f"{head}.bias"]
    assert (block[0] if block else "", len(block)) == (first, count)
    assert not block or block[-2:] == head_of(classifier)


def test_phases() -> None:
    def phases(epochs: int, **options: Any) -> list[str]:
        method = build(**options)
        found = []
        for epoch in range(epochs):
            method.begin_epoch(epoch, epochs)
            found.append(method.phase)
        return found

    assert phases(200) == ["warm"] * 25 + ["block"] * 7 + ["head"] * 7 + ["confident"] * 161
    assert phases(5) == ["warm", "block", "head", "confident", "confident"]
    assert phases(3) == ["warm", "head", "confident"]
    assert phases(2) == ["warm", "confident"]
    assert phases(6, block_share=0.0, head_share=0.0) == ["warm"] + ["confident"] * 5


@pytest.mark.parametrize("phase", ["block", "head"])
def test_refinement_starts_late_layers_again_and_trains_them_alone(phase: str) -> None:
    method = build(refine_lr=0.01)
    before = copy.deepcopy(method.model.state_dict())
    for epoch in range(2 if phase == "block" else 3):
        method.begin_epoch(epoch, 5)
    assert method.phase == phase
    for name, value in method.model.state_dict().items():
        assert torch.equal(value, before[name]) is name.startswith("0.")
    net = copy.deepcopy(method.model)
    for _ in range(3):
        method.begin_epoch(1 if phase == "block" else 2, 5)  # as on resuming: nothing starts again
        method.step((X, Y, torch.arange(SIZE)))
    trained = net[2:] if phase == "block" else net[4:]
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())
    assert all(p.grad is None for p in method.model.parameters())


def test_the_rate_of_refinement_depends_on_its_length() -> None:
    method = build(block_share=0.0, head_share=0.4)
    method.begin_epoch(0, 5)
    for _ in range(10):
        method.step((X, Y, torch.arange(SIZE)))
    method.begin_epoch(1, 5)
    method.step((X, Y, torch.arange(SIZE)))
    assert method.head_optimizer.param_groups[0]["lr"] == pytest.approx(0.25 / 20)


def test_a_step_on_confident_samples_by_hand() -> None:
    method = build()
    net = copy.deepcopy(method.model)
    method.confident.values[[0, 7]] = 0.0
    method.class_weights = torch.tensor([0.5, 2.0, 1.5], dtype=torch.float64)
    metrics = method.step((X[ROWS], Y[ROWS], ROWS))
    kept = ROWS[(ROWS != 0) & (ROWS != 7)]
    loss = F.cross_entropy(net(X[kept]), Y[kept], weight=method.class_weights)
    loss.backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert metrics["loss"] == pytest.approx(loss.item())
    assert metrics["confident"] == pytest.approx(0.6)
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())


@pytest.mark.parametrize(("late", "alpha"), [(False, 4.0), (True, 0.75)])
def test_a_step_with_unlabelled_samples_by_hand(late: bool, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    order, asked = torch.randperm(10), []
    monkeypatch.setattr(pes, "draw_mixture", lambda *arguments: asked.append(arguments) or (0.3, order))
    method = build(semi=True, unlabelled_weight=6.0)
    method.growth, method.late = 0.5, late
    net = copy.deepcopy(method.model)
    method.confident.values[[0, 7]] = 0.0
    method.class_weights = torch.tensor([0.5, 2.0, 1.5], dtype=torch.float64)
    metrics = method.step(((X[ROWS], SECOND[ROWS]), Y[ROWS], ROWS))
    confident = torch.tensor([row not in (0, 7) for row in ROWS.tolist()] * 2)
    guess = ((net(X[ROWS]).softmax(1) + net(SECOND[ROWS]).softmax(1)) / 2).detach() ** 2
    t = torch.cat([guess / guess.sum(1, keepdim=True)] * 2)
    t[confident] = F.one_hot(torch.cat([Y[ROWS]] * 2)[confident], CLASSES).double()
    x, t = (0.7 * s + 0.3 * s[order] for s in (torch.cat([X[ROWS], SECOND[ROWS]]), t))
    p = net(x).softmax(1)
    loss = -(t * p.log()).mul(method.class_weights)[confident].sum(1).mean()
    loss = loss + 0.5 * 6 * (p - t).square()[~confident].mean()
    loss.backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert asked[0][0] == alpha
    assert metrics["loss"] == pytest.approx(loss.item())
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())


@pytest.mark.parametrize("semi", [False, True])
def test_all_confident_and_nothing_mixed_is_cross_entropy(semi: bool) -> None:
    method, plain = build(semi=semi, alpha=0.0), build(CrossEntropy)
    for phase in ("warm", "confident"):
        method.phase = phase
        method.step((X, Y, torch.arange(SIZE)))
        plain.step((X, Y))
    torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict())


class Said:
    """Training data of which only predictions are asked."""

    size = SIZE

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.logits, self.labels = logits, labels

    def predict(self, model: Any = None) -> tuple[Tensor, Tensor]:
        return self.logits, self.labels


@pytest.mark.parametrize(("semi", "rare"), [(False, 2.5), (True, 2.5)])
def test_confident_samples_and_weights_of_classes(semi: bool, rare: float) -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    predicted = torch.tensor([0, 0, 0, 0, 1, 0, 1, 1])  # 4, 1 and 0 agree
    method = build(semi=semi)
    method.data = Said(F.one_hot(predicted, CLASSES).double(), labels)
    method.survey(0)
    assert method.confident.values.bool().tolist() == [True] * 5 + [False] * 3
    assert method.class_weights.tolist() == pytest.approx([2.5 / 4, rare, 0.0])
    labels[1:4] = 2
    method.data = Said(F.one_hot(torch.tensor([0, 0, 2, 2, 1, 0, 2, 2]), CLASSES).double(), labels)
    method.phase = "warm"
    method.survey(0)
    assert method.confident.values.sum() == 5  # nothing is asked before the last phase


def test_weights_are_bounded_beside_unlabelled_samples() -> None:
    labels = torch.tensor([0] * 7 + [1])
    for semi, weight in ((False, 4.0), (True, 3.0)):
        method = build(semi=semi)
        method.data = Said(F.one_hot(labels, CLASSES).double(), labels)
        method.survey(0)
        assert method.class_weights[1].item() == weight


@pytest.mark.parametrize("semi", [False, True])
def test_learns_and_resumes_exactly(semi: bool, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(240) % CLASSES
    x = (torch.randn(240, 4, generator=generator) + 3 * F.one_hot(true, 4)).double()
    labels = torch.where(torch.rand(240, generator=generator) < 0.3, (true + 1) % CLASSES, true)

    def fit(out: Path | None = None, stop: int | None = None) -> tuple[Any, Any]:
        method = build(momentum=0.9, semi=semi, warmup_share=0.3)
        original, done = method.step, 0

        def counting(*batches: Any) -> Any:
            nonlocal done
            if done == stop:
                raise KeyboardInterrupt
            done += 1
            return original(*batches)

        method.step = counting
        options: dict[str, Any] = {"epochs": 12, "batch_size": 20, "progress": False, "checkpoint_every": 5}
        return method, train(method, (x, labels), test_set=(x, true), out=out, **options)

    whole, history = fit()
    assert history[-1]["test_accuracy"] > 0.8
    for stop in (55, 90):  # in a refinement, and after it
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / str(stop), stop)
        resumed, _ = fit(tmp_path / str(stop))
        states = [method.state_dict() for method in (resumed, whole)]
        assert states[0].pop("renewed") == states[1].pop("renewed") == ["block", "head"]
        torch.testing.assert_close(*states, rtol=0, atol=0)


def test_options() -> None:
    wrong = {"warmup_share": 0, "block_share": -1, "head_share": 1, "refine_lr": 0}
    more = {"unlabelled_weight": -1, "temperature": 0, "alpha": -1}
    with pytest.raises(ValueError, match=r"^PES got options it can't use: ") as error:
        build(**wrong, **more)
    assert all(f"{name}={value} (" in str(error.value) for name, value in (wrong | more).items())
