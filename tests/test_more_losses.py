"""PLC, peer loss, JNPL, sparse regularisation, CDR, co-teaching+ and CoDis, each against its formulas."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.methods.base import Method
from vri.methods.cdr import CDR
from vri.methods.co_teaching import CoTeaching, CoTeachingPlus
from vri.methods.codis import CoDis, jensen_shannon
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.jnpl import JNPL, negative_loss, positive_loss, stands_out
from vri.methods.peer_loss import PeerLoss, ramp
from vri.methods.plc import PLC
from vri.methods.sr import SR, sharpened, sparsity

CLASSES, COUNT, LR = 3, 12, 0.1
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(COUNT) % CLASSES
Z = torch.randn(COUNT, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
INDEX = torch.arange(COUNT)


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-2)


def build(kind: Callable[..., Method], **options: Any) -> Any:
    net = network()
    return kind(net, CLASSES, sgd(net), **options)


def pair(kind: Callable[..., Method], seeds: tuple[int, int] = (0, 1), **options: Any) -> Any:
    first, second = network(seeds[0]), network(seeds[1])
    return kind(first, CLASSES, sgd(first), second=(second, sgd(second)), **options)


def descend(net: nn.Module, loss: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> None:
    """A plain step of autograd."""
    optimizer.zero_grad()
    loss(net(X)).backward()
    optimizer.step()


def in_step(method: Method, loss: Callable[[Tensor], Tensor], batch: tuple[Any, ...] = (X, Y)) -> None:
    """Two steps of a method and of plain autograd on `loss` end in the same place."""
    literal = copy.deepcopy(method.model)
    optimizer = sgd(literal)
    for _ in range(2):
        descend(literal, loss, optimizer)
        method.step(batch)
    torch.testing.assert_close(method.model.state_dict(), literal.state_dict())


# PLC


def test_plc_relabels_where_it_is_sure() -> None:
    method = build(PLC, delta=0.6, increment=0.2, most=0.9, warmup_epochs=1, window=2)
    method.begin_training(COUNT, None)
    literal = copy.deepcopy(method.model)
    optimizer, labels, delta, seen, changed = sgd(literal), Y.clone(), 0.6, [], []
    for epoch in range(7):
        method.begin_epoch(epoch, 7)
        method.survey(epoch)
        if epoch > 1:
            f = (seen[-1] + seen[-2]) / 2
            few = 0
            for i in range(COUNT):
                if f[i, labels[i]] / f[i].max() < delta:
                    labels[i] = f[i].argmax()
                    few += 1
            changed.append(few)
            delta = min(delta + 0.2, 0.9) if few < 1 else delta
        seen.append(copy.deepcopy(literal)(X).softmax(1).detach())  # of a copy, whose BatchNorm may move
        descend(literal, lambda z: F.cross_entropy(z, labels), optimizer)
        metrics = method.step((X, Y, INDEX))
        assert method.labels.values.argmax(1).tolist() == labels.tolist()
        assert metrics["bound"] == pytest.approx(delta)
        assert metrics["relabelled"] == (labels != Y).double().mean()
        torch.testing.assert_close(method.model.state_dict(), literal.state_dict())
    assert any(changed)
    assert not all(changed)
    assert delta == 0.9


def test_plc_without_a_bound_is_cross_entropy() -> None:
    method, plain = build(PLC, delta=0.0, increment=0.0, warmup_epochs=0), build(CrossEntropy)
    method.begin_training(COUNT, None)
    for epoch in range(3):
        method.begin_epoch(epoch, 3)
        method.survey(epoch)
        assert method.step((X, Y, INDEX))["loss"] == pytest.approx(plain.step((X, Y))["loss"])
    torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict())
    assert torch.equal(method.labels.values, F.one_hot(Y, CLASSES).double())


# peer loss


def test_peer_loss_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(PeerLoss, weight=0.7)
    orders = [torch.randperm(COUNT, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4)]
    monkeypatch.setattr(method, "_order", lambda count, rest=[*orders, *orders]: rest.pop(0))

    def loss(z: Tensor) -> Tensor:
        log_p = (z.softmax(1) + 1e-5).log()
        own = [-log_p[i, Y[i]] for i in range(COUNT)]
        peer = [-log_p[j, Y[k]] for j, k in zip(orders[0].tolist(), orders[1].tolist(), strict=True)]
        return (sum(own) - 0.7 * sum(peer)) / COUNT

    in_step(method, loss)


def test_peer_weight_grows_and_the_learning_rate_falls_with_it() -> None:
    assert [ramp(epoch / 300) for epoch in (0, 20, 35, 50, 300)] == pytest.approx([0, 0, 0.5, 1, 1])
    method = build(PeerLoss, weight=3.0)
    assert method.lr_scale(35 / 300, lambda progress: 1 - progress) == pytest.approx((1 - 35 / 300) / 2.5)
    assert method.step((X, Y))["peer_weight"] == pytest.approx(1.5)


# JNPL


def test_jnpl_gradients_are_those_of_the_paper() -> None:
    logits, other = Z.clone().requires_grad_(), (Y + 1) % CLASSES
    (gradient,) = torch.autograd.grad(negative_loss(logits, other).sum(), logits)
    p = Z.softmax(1)
    q = p.gather(1, other[:, None])
    expected = (-q * p).scatter(1, other[:, None], q * (1 - q))
    torch.testing.assert_close(gradient, expected)

    top = Z.argmax(1)
    (gradient,) = torch.autograd.grad(positive_loss(logits, top, 3).sum(), logits)
    torch.testing.assert_close(gradient.gather(1, top[:, None])[:, 0], -(1 - p.max(1).values ** 16))


def test_jnpl_chooses_as_its_rules_say() -> None:
    p = torch.tensor([[0.4, 0.3, 0.3], [0.5, 0.34, 0.16], [0.36, 0.32, 0.32], [1 / 3, 1 / 3, 1 / 3]]).double()
    assert stands_out(p.log()).tolist() == [True, False, True, False]
    net, labels, drawn = nn.Linear(4, CLASSES).double(), Y[:6].repeat(100), []
    method = JNPL(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.0), weight=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vri.methods.jnpl.negative_loss", lambda z, c: drawn.append(c) or z.sum(1))
        method.step((X[:6].repeat(100, 1), labels))
    counts = [torch.bincount(drawn[0][labels == k], minlength=CLASSES) for k in range(CLASSES)]
    for label, count in enumerate(counts):
        assert count[label] == 0
        assert count.sort().values[1] > 70  # of 200, for each of the two others


def test_jnpl_step_descends_both_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(JNPL, weight=0.5)
    noise = torch.randn(2, COUNT, CLASSES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    monkeypatch.setattr(method.classifier, "normal", lambda *_: noise)
    taken = []

    def loss(z: Tensor) -> Tensor:
        p, total = z.softmax(1), z.new_zeros(())
        for i in range(COUNT):
            others = [k for k in range(CLASSES) if k != Y[i]]
            other = max(others, key=lambda k: noise[0, i, k])
            total = total - (1 - p[i, other]).detach() * (1 - p[i, other]).log()
            top = p[i].detach().max()
            alone = sum(bool(value >= 1 / CLASSES) for value in p[i]) == 1
            if alone and torch.distributions.Normal(0.0, 1.0).cdf(noise[1, i, 0]) < top:
                taken.append(i)
                total = total - 0.5 * (1 + top) * (1 + top**2) * (1 + top**4) * (1 + top**8) * p[i, Y[i]].log()
        return total / COUNT

    in_step(method, loss)
    assert 0 < len(taken) < 2 * COUNT


# sparse regularisation


def test_sr_step_by_hand() -> None:
    method = build(SR, weight=2.0, growth=1.5, every=2)
    method.begin_epoch(5, 10)  # so 2·1.5²

    def loss(z: Tensor) -> Tensor:
        s = torch.stack([row / row.norm() / 0.5 for row in z])
        return F.cross_entropy(s, Y) + 4.5 * sum(value**0.1 for value in s.softmax(1).flatten()) / COUNT

    in_step(method, loss)


@pytest.mark.parametrize("epochs", [12, 120, 500])
def test_sr_penalises_as_much_in_the_end_whatever_the_length(epochs: int) -> None:
    method = build(SR)
    method.begin_epoch(0, epochs)
    assert method.current_weight == pytest.approx(1.2)
    method.begin_epoch(epochs // 2, epochs)
    assert method.current_weight == pytest.approx(1.2 * 1.03**60)  # as in the middle of the authors' 120 epochs


def test_sparsity_at_its_ends() -> None:
    assert float(sparsity(1e3 * F.one_hot(Y, CLASSES).double(), 0.5)) == pytest.approx(1, abs=1e-3)
    assert float(sparsity(torch.zeros(4, CLASSES).double(), 0.5)) == pytest.approx(CLASSES**0.5)
    torch.testing.assert_close(sharpened(Z, 0.25, normalize=False), 4 * Z)


def test_sr_without_penalty_and_temperature_is_cross_entropy() -> None:
    in_step(build(SR, weight=0.0, temperature=1.0, normalize=False), lambda z: F.cross_entropy(z, Y))


# CDR


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_cdr_moves_critical_weights_alone(rate: float) -> None:
    method = build(CDR, noise_rate=rate)
    literal = copy.deepcopy(method.model)
    optimizer = sgd(literal)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(literal(X), Y).backward()
        matrices = [p for p in literal.parameters() if p.ndim == 2]
        scores = sorted((abs(w * g) for p in matrices for w, g in zip(p.flatten(), p.grad.flatten(), strict=True)))
        scores.reverse()
        bound = scores[int((1 - rate) * len(scores)) - 1]
        for p in matrices:
            p.grad = torch.where((p * p.grad).abs() >= bound, (1 - rate) * p.grad, 0.0)
        optimizer.step()
        method.step((X, Y))
    torch.testing.assert_close(method.model.state_dict(), literal.state_dict())


# two networks


def small(losses: Tensor, places: list[int], count: int) -> list[int]:
    return sorted(places, key=losses.tolist().__getitem__)[:count]


def together(method: Any, loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Steps of both networks against plain autograd on a loss for each."""
    literal = [copy.deepcopy(method.model), copy.deepcopy(method.second_model)]
    optimizers = [sgd(net) for net in literal]
    for x in (X, X.flip(1), -X):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = loss(literal[0](x), literal[1](x))
        (losses[0] + losses[1]).backward()
        for optimizer in optimizers:
            optimizer.step()
        method.step((x, Y))
    for ours, theirs in zip((method.model, method.second_model), literal, strict=True):
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_co_teaching_plus_learns_from_small_losses_among_disagreements() -> None:
    method = pair(CoTeachingPlus, noise_rate=0.5, warmup_epochs=3)
    method.begin_epoch(10, 20)

    def loss(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        places = [i for i in range(COUNT) if int(first[i].argmax()) != int(second[i].argmax())]
        assert 1 < len(places) < COUNT
        a, b = (F.cross_entropy(z, Y, reduction="none") for z in (first, second))
        count = round(len(places) / 2)
        return a[small(b, places, count)].mean(), b[small(a, places, count)].mean()

    together(method, loss)


def test_co_teaching_plus_begins_as_co_teaching_and_rests_without_disagreement() -> None:
    plus, plain = pair(CoTeachingPlus, warmup_epochs=3), pair(CoTeaching)
    for method in (plus, plain):
        method.begin_epoch(2, 10)
    assert plus.step((X, Y)) == plain.step((X, Y))
    torch.testing.assert_close(plus.second_model.state_dict(), plain.second_model.state_dict())
    same = pair(CoTeachingPlus, seeds=(0, 0))
    same.begin_epoch(20, 40)
    before = [p.clone() for p in same.model.parameters()]
    metrics = same.step((X, Y))
    assert (metrics["kept"], metrics["disagreement"]) == (0.0, 0.0)
    assert all(torch.equal(p, q) for p, q in zip(same.model.parameters(), before, strict=True))


def test_codis_learns_from_small_losses_with_high_discrepancy() -> None:
    method = pair(CoDis, noise_rate=0.5, discrepancy_weight=3.0)
    method.begin_epoch(10, 20)

    def loss(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        def one(z: Tensor, other: Tensor) -> Tensor:
            p, q = z.softmax(1), other.detach().softmax(1)
            m = (p + q) / 2
            js = ((p * (p / m).log()).sum(1) + (q * (q / m).log()).sum(1)) / 2
            return F.cross_entropy(z, Y, reduction="none") - 3 * js

        a, b = one(first, second), one(second, first)
        return a[small(b, list(range(COUNT)), 6)].mean(), b[small(a, list(range(COUNT)), 6)].mean()

    together(method, loss)


def test_codis_without_discrepancy_is_co_teaching() -> None:
    codis, plain = pair(CoDis, noise_rate=0.5, discrepancy_weight=0.0), pair(CoTeaching, noise_rate=0.5)
    for method in (codis, plain):
        method.begin_epoch(5, 10)
        method.step((X, Y))
    torch.testing.assert_close(codis.second_model.state_dict(), plain.second_model.state_dict())
    assert float(jensen_shannon(Z, Z).abs().max()) == pytest.approx(0, abs=1e-12)
    far = jensen_shannon(torch.tensor([[0.0, 900.0]]), torch.tensor([[900.0, 0.0]]))
    assert float(far) == pytest.approx(torch.tensor(2.0).log().item())


# options


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (PLC, {"delta": 2.0, "window": 0}, r"delta=2.0 \(expected a number in \[0, 1\]\); most=0.9 .*; window=0"),
        (PeerLoss, {"weight": -1.0}, r"weight=-1.0 \(expected 0 or more\)"),
        (JNPL, {"weight": -1.0, "order": 99}, "weight=-1.0 .*; order=99"),
        (SR, {"temperature": 0.0, "power": 1.0, "growth": 0.5}, "temperature=0.0 .*; power=1.0 .*; growth=0.5"),
        (CDR, {"noise_rate": 1.0}, r"noise_rate=1.0 \(expected a number in \[0, 1\)\)"),
        (CoTeachingPlus, {"warmup_epochs": -1}, "warmup_epochs=-1"),
        (CoDis, {"discrepancy_weight": -1.0, "num_gradual": 0}, "num_gradual=0 .*; discrepancy_weight=-1.0"),
    ],
)
def test_mistaken_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} got options it can't use: {message}"):
        build(kind, **options)


def test_cdr_without_noise_is_cross_entropy() -> None:
    ours, plain = build(CDR, noise_rate=0.0), build(CrossEntropy)
    assert ours.step((X, Y)) == plain.step((X, Y))
    torch.testing.assert_close(ours.model.state_dict(), plain.model.state_dict())
