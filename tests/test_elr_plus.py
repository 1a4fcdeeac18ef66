"""ELR+ and weight averaging: a literal computation of two steps, limiting cases, and what an average is."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.methods import elr_plus
from vri.methods.averaged import Averaged
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.elr import ELR
from vri.methods.elr_plus import ELRPlus

CLASSES, SIZE = 3, 8
X = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(SIZE) % CLASSES
ROWS = torch.tensor([5, 0, 3, 7, 2])


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def build(**options: Any) -> ELRPlus:
    nets = network(0), network(1)
    sgd = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    method = ELRPlus(nets[0], CLASSES, sgd[0], second=(nets[1], sgd[1]), **options)
    method.begin_training(SIZE, None)
    return method


def test_two_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [(0.8, torch.tensor([1, 2, 3, 4, 0])), (0.3, torch.tensor([4, 3, 2, 1, 0]))] * 2
    waiting = list(draws)
    monkeypatch.setattr(elr_plus, "draw_mixture", lambda *_: waiting.pop(0))
    method = build(weight=2.0, beta=0.6)
    method.decay = 0.75  # the ramp begins with the first epoch of `vri.train`
    nets = [copy.deepcopy(method.model), copy.deepcopy(method.second_model)]
    averages = copy.deepcopy(nets)
    targets = torch.zeros(2, SIZE, CLASSES, dtype=torch.float64)
    labels = F.one_hot(Y, CLASSES).double()
    for _ in range(2):
        metrics = method.step((X[ROWS], Y[ROWS], ROWS))
        said = [average(X[ROWS]).softmax(1).detach() for average in averages]
        losses = []
        for k, (share, order) in enumerate(draws[:2]):
            share = max(share, 1 - share)
            targets[k, ROWS] = 0.6 * targets[k, ROWS] + 0.4 * said[1 - k]
            x, y, t = (share * s + (1 - share) * s[order] for s in (X[ROWS], labels[ROWS], targets[k, ROWS]))
            logits = nets[k](x)
            agreement = (logits.softmax(1) * t).sum(1)
            losses.append(-(y * logits.log_softmax(1)).sum(1).mean() + 2 * torch.log(1 - agreement).mean())
        for k in range(2):
            optimizer = torch.optim.SGD(nets[k].parameters(), lr=0.1)
            optimizer.zero_grad()
            losses[k].backward()
            optimizer.step()
            for average, value in zip(averages[k].parameters(), nets[k].parameters(), strict=True):
                average.data = 0.75 * average.data + 0.25 * value.data
        assert metrics["loss"] == pytest.approx(losses[0].item())
        assert metrics["second_loss"] == pytest.approx(losses[1].item())
        for found, expected in zip((method.model, method.second_model), nets, strict=True):
            torch.testing.assert_close(found.state_dict(), expected.state_dict())
        for found, expected in zip((method.average, method.second_average), averages, strict=True):
            torch.testing.assert_close(found.network.state_dict(), expected.state_dict())
        torch.testing.assert_close(torch.stack([memory.values for memory in method.targets]), targets)


def test_without_penalty_and_mixtures_it_is_two_plain_networks() -> None:
    method = build(weight=0.0, alpha=0.0)
    plain = []
    for seed in (0, 1):
        net = network(seed)
        plain.append(CrossEntropy(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1)))
    for _ in range(3):
        method.step((X, Y, torch.arange(SIZE)))
        for one in plain:
            one.step((X, Y))
    torch.testing.assert_close(method.model.state_dict(), plain[0].model.state_dict())
    torch.testing.assert_close(method.second_model.state_dict(), plain[1].model.state_dict())


def test_two_networks_that_are_one_train_as_elr() -> None:
    """With nothing mixed and no memory of earlier weights, the other network's target is the network's own."""
    net = network()
    single = ELR(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1))
    single.begin_training(SIZE, None)
    nets = network(), network()
    sgd = [torch.optim.SGD(n.parameters(), lr=0.1) for n in nets]
    method = ELRPlus(nets[0], CLASSES, sgd[0], second=(nets[1], sgd[1]), alpha=0.0, decay=0.0)
    method.begin_training(SIZE, None)
    for _ in range(3):
        method.begin_epoch(0, 10)
        method.step((X, Y, torch.arange(SIZE)))
        single.step((X, Y, torch.arange(SIZE)))
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())
    torch.testing.assert_close(method.targets[0].values, single.targets.values)


def test_the_average_follows_fast_at_first() -> None:
    method = build()
    gammas = []
    for epoch in (0, 2, 5, 9):
        method.begin_epoch(epoch, 10)
        gammas.append(method.following)
    assert gammas == pytest.approx([0.997 * 0.006737947, 0.997 * 0.165298888, 0.997, 0.997])
    method = build(ramp_share=0.0)
    method.begin_epoch(0, 10)
    assert method.following == 0.997


def test_the_average_goes_back_an_epoch_of_any_length() -> None:
    """Over as many steps as an epoch has, the weights from before it keep the share γ₁³⁹¹."""
    method = build(alpha=0.0)
    for epoch in range(3):
        method.survey(epoch)
        method.begin_epoch(9, 10)
        for _ in range(5):
            method.step((X, Y, torch.arange(SIZE)))
        assert method.following ** (391 if epoch == 0 else 5) == pytest.approx(0.997**391)


class Counting(nn.Module):
    """Has all kinds of state."""

    scale: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.register_buffer("scale", torch.ones(2))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) * self.scale


def test_an_average_is_a_network_of_averages() -> None:
    model = Counting()
    average = Averaged(model)
    first = copy.deepcopy(model.state_dict())
    x = torch.randn(6, 2)
    model(x)  # moves the statistics
    model.steps += 3
    with torch.no_grad():
        model.layer.weight += 1
        model.scale *= 5
    average.update(model, 0.9)
    for name, value in average.network.state_dict().items():
        now = model.state_dict()[name]
        expected = 0.9 * first[name] + 0.1 * now if value.is_floating_point() else now
        torch.testing.assert_close(value, expected)
    average.train()
    assert not any(module.training for module in average.modules())
    torch.testing.assert_close(average(x), average.network(x))
    assert not any(p.requires_grad for p in average.parameters())
    average.update(model, 0.0)
    torch.testing.assert_close(average.network.state_dict(), model.state_dict())


def test_options() -> None:
    with pytest.raises(ValueError, match=r"^ELRPlus got .*: weight=-1 .*; beta=1 .*; alpha=-1 .*; decay=1 .*; ramp_sh"):
        build(weight=-1, beta=1, alpha=-1, decay=1, ramp_share=2)
