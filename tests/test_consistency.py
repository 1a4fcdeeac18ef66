"""GJS and NCR: losses against their definitions, limits, and steps by hand."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.methods.cross_entropy import CrossEntropy
from vri.methods.gjs import GJS, jensen_shannon
from vri.methods.ncr import NCR, neighbour_divergence

CLASSES, SIZE = 3, 7
GENERATOR = torch.Generator().manual_seed(0)
X, SECOND = torch.randn(2, SIZE, 4, generator=GENERATOR, dtype=torch.float64)
Z, Z2 = torch.randn(2, SIZE, CLASSES, generator=GENERATOR, dtype=torch.float64)
SOFT = torch.randn(SIZE, CLASSES, generator=GENERATOR, dtype=torch.float64).softmax(1)
Y = torch.arange(SIZE) % CLASSES


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum(1)


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("labels", [Y, SOFT])
def test_jensen_shannon_is_an_entropy_minus_entropies(weight: float, labels: Tensor) -> None:
    """H(Σ π_i·p_i) − Σ π_i·H(p_i), another form than the one that is computed."""
    y = labels if labels.is_floating_point() else F.one_hot(labels, CLASSES).double()
    p, p2, rest = Z.softmax(1), Z2.softmax(1), (1 - weight) / 2
    mean = weight * y + rest * (p + p2)
    expected = entropy(mean) - weight * entropy(y) - rest * (entropy(p) + entropy(p2))
    scale = -(1 - weight) * math.log(1 - weight)
    assert jensen_shannon((Z, Z2), labels, weight).item() == pytest.approx(expected.mean().item() / scale)


def test_jensen_shannon_lies_between_cross_entropy_and_absolute_error() -> None:
    p = Z.softmax(1)[torch.arange(SIZE), Y]
    assert jensen_shannon((Z, Z), Y, 1e-6).item() == pytest.approx(-p.log().mean().item(), rel=1e-3)
    assert jensen_shannon((Z, Z), Y, 1 - 1e-9).item() == pytest.approx((1 - p).mean().item(), rel=0.1)
    sure = 50 * F.one_hot(Y, CLASSES).double()
    assert jensen_shannon((sure, sure), Y, 0.3).item() == pytest.approx(0, abs=1e-7)


def test_gjs_step_by_hand() -> None:
    net = network()
    literal = copy.deepcopy(net)
    method = GJS(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1), label_weight=0.4)
    metrics = method.step(((X, SECOND), Y))
    loss = jensen_shannon((literal(X), literal(SECOND)), Y, 0.4)
    loss.backward()
    torch.optim.SGD(literal.parameters(), lr=0.1).step()
    torch.testing.assert_close(net.state_dict(), literal.state_dict())
    agree = (literal(X).argmax(1) == literal(SECOND).argmax(1)).double().mean()
    assert metrics["loss"] == pytest.approx(loss.item())
    assert 0 < agree < 1 or metrics["agreement"] == agree


def literal_divergence(logits: Tensor, features: Tensor, k: int, temperature: float) -> Tensor:
    """Sample by sample."""
    total = logits.new_zeros(())
    for i in range(len(logits)):
        others = [j for j in range(len(logits)) if j != i]
        cosine = {j: F.cosine_similarity(features[i], features[j], dim=0) for j in others}
        near = sorted(others, key=lambda j: -cosine[j].item())[:k]
        weights = [torch.relu(cosine[j]) for j in near]
        if sum(weights) == 0:
            continue
        target = sum(w * torch.softmax(logits[j] / temperature, 0) for w, j in zip(weights, near, strict=True))
        target = target / sum(weights)
        own = torch.log_softmax(logits[i] / temperature, 0)
        total = total + (target * (target.log() - own)).sum() * temperature**2
    return total / len(logits)


@pytest.mark.parametrize(("k", "temperature"), [(1, 1.0), (3, 2.0), (100, 2.0)])
def test_divergence_of_neighbours(k: int, temperature: float) -> None:
    logits, features = Z.clone().requires_grad_(), X.clone().requires_grad_()
    found = neighbour_divergence(logits, features, k, temperature)
    expected = literal_divergence(logits, features, k, temperature)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (logits, features)),
        torch.autograd.grad(expected, (logits, features), materialize_grads=True, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_samples_without_neighbours_add_nothing() -> None:
    for features in (torch.zeros(SIZE, 4), torch.eye(SIZE), torch.cat([torch.ones(1, 2), -torch.ones(1, 2)])):
        logits = Z[: len(features)].float().requires_grad_()
        found = neighbour_divergence(logits, features, 2, 1.0)
        assert found.item() == 0
        assert not torch.autograd.grad(found, logits)[0].any()
    assert neighbour_divergence(Z[:1], X[:1], 3, 1.0).item() == 0


def test_ncr_step_by_hand() -> None:
    net = network()
    literal = copy.deepcopy(net)
    method = NCR(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1), weight=0.6, neighbours=2)
    method.step((X, Y))
    features = literal[:2](X)
    logits = literal[2](features)
    loss = 0.4 * F.cross_entropy(logits, Y) + 0.6 * literal_divergence(logits, features, 2, 2.0)
    loss.backward()
    torch.optim.SGD(literal.parameters(), lr=0.1).step()
    torch.testing.assert_close(net.state_dict(), literal.state_dict())


@pytest.mark.parametrize(("options", "epoch"), [({"weight": 0.0}, 9), ({}, 0), ({"start_share": 1.0}, 9)])
def test_ncr_without_neighbours_is_cross_entropy(options: dict[str, Any], epoch: int) -> None:
    nets = network(), network()
    method = NCR(nets[0], CLASSES, torch.optim.SGD(nets[0].parameters(), lr=0.1), **options)
    plain = CrossEntropy(nets[1], CLASSES, torch.optim.SGD(nets[1].parameters(), lr=0.1))
    method.begin_epoch(epoch, 10)
    method.step((X, Y))
    plain.step((X, Y))
    torch.testing.assert_close(nets[0].state_dict(), nets[1].state_dict())
    method.begin_epoch(1, 10)
    assert method.consistent is (options.get("start_share") != 1.0)


def test_options() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"^GJS got options it can't use: label_weight=1.0 \(expected a number in"):
        GJS(net, CLASSES, optimizer, label_weight=1.0)
    with pytest.raises(ValueError, match=r"weight=2 .*; neighbours=0 .*; temperature=0 .*; start_share=-1 "):
        NCR(net, CLASSES, optimizer, weight=2, neighbours=0, temperature=0, start_share=-1)
