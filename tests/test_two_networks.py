"""Methods with two networks, each against a literal version of its step."""

import copy
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.methods.co_teaching import CoTeaching
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.decoupling import Decoupling
from vri.methods.jocor import JoCoR
from vri.methods.two_networks import TwoNetworks, forget_rate, smallest

CLASSES, COUNT, LR = 3, 12, 0.1
METHODS = [CoTeaching, Decoupling, JoCoR]
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(COUNT) % CLASSES
SOFT = F.softmax(torch.randn(COUNT, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 1)


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def sgd(model: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": LR, "momentum": 0.9, "weight_decay": 1e-2, **options})


def pair(kind: type[TwoNetworks], seeds: tuple[int, int] = (0, 1), **options: Any) -> Any:
    first, second = network(seeds[0]), network(seeds[1])
    return kind(first, CLASSES, sgd(first), second=(second, sgd(second)), **options)


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def says(kind: type[Exception], text: str) -> AbstractContextManager[Any]:
    return pytest.raises(kind, match=f"^{re.escape(text)}$")


def literal_step(
    models: list[nn.Module], loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], batches: list[Any]
) -> None:
    """Plain autograd and SGD on a loss for each network."""
    optimizers = [sgd(model) for model in models]
    for x in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = loss(models[0](x), models[1](x))
        sum(losses).backward()
        for optimizer in optimizers:
            optimizer.step()


def small(losses: Tensor, count: int) -> list[int]:
    return sorted(range(len(losses)), key=losses.tolist().__getitem__)[:count]


def compare(method: TwoNetworks, loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], labels: Tensor = Y) -> None:
    literal = [copy.deepcopy(method.model), copy.deepcopy(method.second_model)]
    batches = [X, X.flip(1), -X]
    literal_step(literal, loss, batches)
    for x in batches:
        method.step((x, labels))
    for ours, theirs in zip((method.model, method.second_model), literal, strict=True):
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


# the steps


@pytest.mark.parametrize("labels", [Y, SOFT], ids=["hard", "soft"])
def test_co_teaching_learns_from_the_small_losses_of_the_other(labels: Tensor) -> None:
    method = pair(CoTeaching, noise_rate=0.5)
    method.begin_epoch(10, 20)

    def loss(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (F.cross_entropy(z, labels, reduction="none") for z in (first, second))
        assert small(a, 6) != small(b, 6)  # else the test would not tell them apart
        return a[small(b, 6)].mean(), b[small(a, 6)].mean()

    compare(method, loss, labels)
    assert method.step((X, labels))["kept"] == 0.5


@pytest.mark.parametrize("labels", [Y, SOFT], ids=["hard", "soft"])
def test_co_teaching_that_forgets_nothing_is_cross_entropy(labels: Tensor) -> None:
    method = pair(CoTeaching, noise_rate=0.0)
    method.begin_epoch(50, 100)
    plain = [CrossEntropy(net, CLASSES, sgd(net)) for net in (network(0), network(1))]
    for x in (X, X.flip(1), -X):
        metrics = method.step((x, labels))
        expected = [one.step((x, labels)) for one in plain]
        assert (metrics["loss"], metrics["second_loss"]) == (expected[0]["loss"], expected[1]["loss"])
        assert metrics["accuracy"] == expected[0]["accuracy"]
    for ours, theirs in zip((method.model, method.second_model), plain, strict=True):
        torch.testing.assert_close(ours.state_dict(), theirs.model.state_dict())


def test_decoupling_learns_where_the_networks_disagree() -> None:
    def loss(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        kept = [i for i in range(COUNT) if int(first[i].argmax()) != int(second[i].argmax())]
        assert 0 < len(kept) < COUNT
        return F.cross_entropy(first[kept], Y[kept]), F.cross_entropy(second[kept], Y[kept])

    compare(pair(Decoupling), loss)


def test_decoupling_takes_small_steps_on_few_samples() -> None:
    """They count as a share of the batch: sum over D, divided by that share of all."""

    def loss(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        kept = [i for i in range(COUNT) if int(first[i].argmax()) != int(second[i].argmax())]
        assert 0 < len(kept) < COUNT
        return tuple(F.cross_entropy(z[kept], Y[kept], reduction="sum") / COUNT for z in (first, second))

    compare(pair(Decoupling, least_share=1.0), loss)


def test_decoupling_of_equal_networks_does_nothing() -> None:
    method = pair(Decoupling, seeds=(0, 0))
    before = weights(method.model)
    metrics = method.step((X, Y))
    assert metrics["disagreement"] == 0
    assert metrics["loss"] == pytest.approx(F.cross_entropy(network(0)(X), Y).item(), rel=1e-12)
    for model in (method.model, method.second_model):
        assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))
    assert not method.optimizer.state  # no momentum, no weight decay
    assert not method.second_optimizer.state


def test_jocor_minimises_the_joint_loss_of_the_kept_samples() -> None:
    method = pair(JoCoR, noise_rate=0.25, co_weight=0.6)
    method.begin_epoch(10, 20)

    def loss(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        p, q = F.log_softmax(first, 1), F.log_softmax(second, 1)
        contrast = F.kl_div(p, q, reduction="none", log_target=True) + F.kl_div(q, p, reduction="none", log_target=True)
        plain = F.cross_entropy(first, Y, reduction="none") + F.cross_entropy(second, Y, reduction="none")
        joint = 0.4 * plain + 0.6 * contrast.sum(1)
        return joint[small(joint, 9)].mean(), torch.zeros(())

    compare(method, loss)
    assert method.step((X, Y))["kept"] == 0.75


def test_forget_rate_by_hand() -> None:
    assert [forget_rate(t, 0.4, 4, 1.0) for t in range(6)] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4])
    assert [forget_rate(t, 0.4, 4, 2.0) for t in range(4)] == pytest.approx([0, 0.1, 0.4, 0.4])
    assert [forget_rate(t, 0.4, 4, 0.5) for t in (1, 4, 16)] == pytest.approx([0.1, 0.2, 0.4])
    for kind in (CoTeaching, JoCoR):
        method = pair(kind, noise_rate=0.4, num_gradual=4)
        kept = []
        for epoch in range(6):
            method.begin_epoch(epoch, 6)
            kept.append(method.step((X, Y))["kept"])
        assert kept == pytest.approx([1, 11 / 12, 10 / 12, 8 / 12, 7 / 12, 7 / 12])


def test_smallest() -> None:
    losses = torch.tensor([3.0, 1.0, 2.0, 1.0, 0.5])
    assert smallest(losses, 0.4).tolist() == [1, 3, 4]
    assert smallest(losses, 0.6).tolist() == [1, 4]  # of equal ones the earlier
    assert smallest(losses, 0.0).tolist() == [0, 1, 2, 3, 4]
    assert smallest(losses, 0.99).tolist() == [4]


# the second network


def test_the_second_network_is_drawn_anew() -> None:
    state = torch.get_rng_state()

    def second(seed: int) -> nn.Module:
        net = network()
        return CoTeaching(net, CLASSES, sgd(net), generator=torch.Generator().manual_seed(seed)).second_model

    a, b, c = second(0), second(0), second(1)
    for name in ("0.weight", "0.bias", "3.weight", "3.bias"):
        first, drawn = network().get_parameter(name), a.get_parameter(name)
        assert not torch.equal(drawn, first)
        assert torch.equal(drawn, b.get_parameter(name))
        assert not torch.equal(drawn, c.get_parameter(name))
        assert 0.2 < (drawn.std() / first.std()).item() < 5  # of the same distribution
    assert torch.equal(torch.get_rng_state(), state)


def test_frozen_layers_are_kept() -> None:
    net = network()
    net[0].requires_grad_(False)
    net[1].running_mean.fill_(5.0)
    method = CoTeaching(net, CLASSES, torch.optim.SGD(net[3:].parameters(), lr=LR))
    copied = method.second_model
    assert torch.equal(copied.get_parameter("0.weight"), net[0].weight)
    assert torch.equal(copied.get_buffer("1.running_mean"), net[1].running_mean)
    assert not torch.equal(copied.get_parameter("3.weight"), net[3].weight)
    method.step((X, Y))
    assert torch.equal(copied.get_parameter("0.weight"), net[0].weight)


OPTIMIZERS: dict[str, Callable[[nn.Sequential], torch.optim.Optimizer]] = {
    "SGD": lambda net: sgd(net, nesterov=True),
    "two groups": lambda net: torch.optim.SGD(
        [{"params": net[:2].parameters(), "lr": 0.5, "momentum": 0.5}, {"params": net[3].parameters()}], lr=0.01
    ),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.02, betas=(0.8, 0.9), weight_decay=0.3),
    "fused Adam": lambda net: torch.optim.Adam(net.parameters(), lr=torch.tensor(0.02), fused=True),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), lr=0.02, alpha=0.9, centered=True),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), initial_accumulator_value=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_second_optimizer_is_like_the_first(name: str) -> None:
    net = network()
    optimizer = OPTIMIZERS[name](net)
    method = CoTeaching(net, CLASSES, optimizer)
    second = method.second_optimizer
    assert type(second) is type(optimizer)
    mine, theirs = ([p.shape for g in o.param_groups for p in g["params"]] for o in (optimizer, second))
    assert mine == theirs
    held = {p for group in second.param_groups for p in group["params"]}
    assert held == set(method.second_model.parameters())
    for a, b in zip(optimizer.param_groups, second.param_groups, strict=True):
        assert {k: v for k, v in a.items() if k != "params"} == {k: v for k, v in b.items() if k != "params"}

    # the same steps as an optimizer built by hand
    plain_net = copy.deepcopy(method.second_model)
    plain = CrossEntropy(plain_net, CLASSES, OPTIMIZERS[name](plain_net))
    for x in (X, X.flip(1)):
        method.step((x, Y))
        plain.step((x, Y))
    torch.testing.assert_close(method.second_model.state_dict(), plain_net.state_dict(), rtol=0, atol=0)


def test_learning_rates_and_modes_follow_the_first() -> None:
    net = network()
    groups = [{"params": net[:2].parameters()}, {"params": net[3].parameters()}]
    method = CoTeaching(net, CLASSES, torch.optim.SGD(groups, lr=1.0))
    for rates in ((0.5, 0.25), (0.1, 0.0)):
        for group, rate in zip(method.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        before = method.second_model.get_parameter("3.weight").clone()
        method.step((X, Y))
        assert tuple(group["lr"] for group in method.second_optimizer.param_groups) == rates
    assert torch.equal(method.second_model.get_parameter("3.weight"), before)  # at rate 0
    net.eval()
    running = method.second_model.get_buffer("1.running_mean").clone()
    method.step((X, Y))
    assert torch.equal(method.second_model.get_buffer("1.running_mean"), running)
    net.train()
    method.step((X, Y))
    assert not torch.equal(method.second_model.get_buffer("1.running_mean"), running)


@pytest.mark.parametrize("kind", METHODS)
def test_gradients_of_the_user_stay(kind: type[TwoNetworks]) -> None:
    method = pair(kind)
    for model in (method.model, method.second_model):
        for p in model.parameters():
            p.grad = torch.full_like(p, 7.0)
    method.step((X, Y))
    for model in (method.model, method.second_model):
        assert all(bool((p.grad == 7.0).all()) for p in model.parameters())
    assert method.networks == 2


# mistakes


class NoReset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4)[:, :CLASSES])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.weight, x


class Picky(torch.optim.SGD):
    def __init__(self, params: Any, needed: float) -> None:
        super().__init__(params, lr=needed)


def test_second_network_that_can_not_be_drawn() -> None:
    model = NoReset()
    with says(
        ValueError,
        "the second network came out like the first: expected trained layers with random reset_parameters(), but "
        "the model has none; pass second=(model, optimizer) with other initial weights",
    ):
        JoCoR(model, CLASSES, sgd(model), feature_dim=4)


def test_second_optimizer_that_can_not_be_built() -> None:
    model = network()
    with pytest.raises(
        TypeError,
        match=r"^a Picky for the second network can't be built like the first's \(.*needed.*\); "
        r"pass second=\(model, optimizer\)$",
    ):
        Decoupling(model, CLASSES, Picky(model.parameters(), needed=0.1))


def test_second_network_that_does_not_fit() -> None:
    model, other = network(0), network(1)
    two = torch.optim.SGD([{"params": other[:2].parameters()}, {"params": other[3].parameters()}], lr=LR)
    meta = copy.deepcopy(other).to("meta")
    cases: list[tuple[Any, type[Exception], str]] = [
        (
            other,
            TypeError,
            "second is a Sequential, expected a pair (model, optimizer); build an optimizer for the second network "
            "and give both",
        ),
        (
            (other, None),
            TypeError,
            "second is a tuple, expected a pair (model, optimizer); build an optimizer for the second network and "
            "give both",
        ),
        (
            (model, sgd(model)),
            ValueError,
            "the second network shares parameters with the first; give it its own, as copy.deepcopy does",
        ),
        (
            (other, two),
            ValueError,
            "the second optimizer has 2 parameter groups, expected 1 like the first, whose learning rates it "
            "follows; build both in the same way",
        ),
        (
            (meta, sgd(meta)),
            ValueError,
            "the second network is on meta, expected cpu like the first; move it there before its optimizer is built",
        ),
    ]
    for second, kind, message in cases:
        with says(kind, message):
            CoTeaching(model, CLASSES, sgd(model), second=second)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            CoTeaching,
            {"noise_rate": 1.0, "num_gradual": 0, "exponent": 0.0},
            "CoTeaching got options it can't use: noise_rate=1.0 (expected a number in [0, 1)); num_gradual=0 "
            "(expected at least 1); exponent=0.0 (expected more than 0)",
        ),
        (
            JoCoR,
            {"noise_rate": -0.1, "num_gradual": 0, "co_weight": float("nan")},
            "JoCoR got options it can't use: noise_rate=-0.1 (expected a number in [0, 1)); num_gradual=0 (expected "
            "at least 1); co_weight=nan (expected a number in [0, 1))",
        ),
    ],
)
def test_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with says(ValueError, message):
        pair(kind, **options)
