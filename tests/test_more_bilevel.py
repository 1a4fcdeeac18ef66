"""FasTEN, FSR, FaMUS and EMLC, each against a literal version of its step."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from vri import train
from vri.methods.base import Method
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.emlc import EMLC
from vri.methods.famus import FaMUS
from vri.methods.fasten import FasTEN
from vri.methods.fsr import FSR
from vri.methods.mw_net import MWNet

CLASSES, COUNT, LR = 3, 12, 0.1
X, CLEAN_X = torch.randn(2, COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y, CLEAN_Y = torch.arange(COUNT) % CLASSES, (torch.arange(COUNT) + 1) % CLASSES
INDEX = torch.arange(COUNT)
CLEAN = CLEAN_X, CLEAN_Y


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()


def build(kind: Callable[..., Method], **options: Any) -> Any:
    net = network()
    return kind(net, CLASSES, torch.optim.SGD(net.parameters(), lr=LR, weight_decay=1e-2), **options)


def same(ours: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


# FasTEN


def test_fasten_steps_by_hand() -> None:
    method = build(FasTEN, noisy_weight=0.7, bound=0.38)
    method.begin_training(COUNT, None)
    body, head = copy.deepcopy(method.model), copy.deepcopy(method.noisy_head)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=LR, weight_decay=1e-2)
    matrix, labels, relabelled = torch.eye(CLASSES).double(), Y.tolist(), []
    for members in (CLEAN_Y >= 0, CLEAN_Y > 0):  # the second clean batch lacks class 0
        features, clean_features = body[:4](X), body[:4](CLEAN_X[members])
        noisy_p = head(clean_features).softmax(1).detach()
        for k in range(CLASSES):
            if (CLEAN_Y[members] == k).any():
                matrix[k] = noisy_p[CLEAN_Y[members] == k].mean(0)
        p = body[4](features).softmax(1)
        corrected = [-(p[i] @ matrix[:, labels[i]]).log() for i in range(COUNT)]
        clean = F.cross_entropy(body[4](clean_features), CLEAN_Y[members], reduction="none")
        loss = torch.cat([torch.stack(corrected), clean]).mean()
        loss = loss + 0.7 * F.cross_entropy(head(features), torch.tensor(labels))
        labels = [int(p[i].argmax()) if p[i].max() >= 0.38 else int(Y[i]) for i in range(COUNT)]
        relabelled.append(sum(labels[i] != Y[i] for i in range(COUNT)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = method.step((X, Y, INDEX), (CLEAN_X[members], CLEAN_Y[members]))
        assert metrics["loss"] == pytest.approx(loss.item())
        same(method.model, body)
        same(method.noisy_head, head)
        torch.testing.assert_close(method.matrix, matrix)
        assert method.labels.values.argmax(1).tolist() == labels
    assert 0 < relabelled[0] < COUNT
    assert metrics["relabelled"] == relabelled[0] / COUNT


def test_fasten_needs_clean_samples() -> None:
    with pytest.raises(ValueError, match="in every step, but meta_batch is None"):
        build(FasTEN).step((X, Y, INDEX))


# FSR


class Proxies:
    """What `vri.train` gives a method, of one batch."""

    size = COUNT

    def __init__(self) -> None:
        self.rows = torch.empty(0)

    def stream(self, name: str, rows: Tensor) -> None:
        self.rows = rows

    def draw(self, name: str) -> tuple[Tensor, Tensor]:
        return CLEAN


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_fsr_step_by_hand(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    share, order = (0.7 if alpha else 1.0), torch.arange(COUNT).flip(0)
    monkeypatch.setattr("vri.methods.fsr.draw_mixture", lambda *_: (1 - share if alpha else share, order))
    mixed = share * X + (1 - share) * X[order]
    targets = share * F.one_hot(Y, CLASSES) + (1 - share) * F.one_hot(Y[order], CLASSES).double()
    method = build(FSR, lookahead_lr=0.5, memory=0.6, pseudo_weight=0.3, pseudo_memory=0.2, alpha=alpha)
    method.begin_training(COUNT, None)
    method.data, net = Proxies(), copy.deepcopy(method.model)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, weight_decay=1e-2)
    gains, held = torch.zeros(COUNT).double(), torch.zeros(COUNT, CLASSES).double()
    method.begin_epoch(5, 6)
    method.survey(0)
    for _ in range(2):
        epsilon = torch.full((COUNT,), 1 / COUNT, dtype=torch.float64, requires_grad=True)
        last = dict(net[4].named_parameters())
        losses = F.cross_entropy(functional_call(net[4], last, net[:4](mixed).detach()), targets, reduction="none")
        step = torch.autograd.grad((epsilon * losses).sum(), list(last.values()), create_graph=True)
        ahead = {name: p - 0.5 * g for (name, p), g in zip(last.items(), step, strict=True)}
        proxy = F.cross_entropy(functional_call(net[4], ahead, net[:4](CLEAN_X)), CLEAN_Y)
        useful = (-torch.autograd.grad(proxy, epsilon)[0]).clamp(min=0)
        after = F.cross_entropy(functional_call(net[4], ahead, net[:4](X)), Y, reduction="none")
        gains = 0.6 * gains + 0.4 * (losses - after).detach()
        scaled = held / (held.square().mean() + 1e-8).sqrt()
        logits = net(mixed)
        weighted = (useful * F.cross_entropy(logits, targets, reduction="none")).sum() / useful.sum()
        held = 0.2 * scaled + 0.8 * logits.detach()
        optimizer.zero_grad()
        (weighted + 0.3 * F.cross_entropy(logits, scaled.softmax(1))).backward()
        optimizer.step()
        metrics = method.step((X, Y, INDEX))
        same(method.model, net)
        torch.testing.assert_close(method.gains.values, gains)
        torch.testing.assert_close(method.logits.values, held)
        assert metrics["used"] == (useful > 0).double().mean()
        assert 0 < metrics["used"] < 1
        assert metrics["meta_loss"] == pytest.approx(proxy.item())


def test_fsr_takes_the_best_of_each_class() -> None:
    method = build(FSR, proxy_share=0.5)
    method.begin_training(COUNT, None)
    method.data = data = Proxies()
    method.survey(0)
    assert len(set(data.rows.tolist())) == 6
    method.gains[INDEX] = torch.tensor([5, 1, 1, 9, 2, 8, 1, 3, 7, 2, 4, 6.0]).double()
    method.classes[INDEX] = Y.double()
    method.survey(1)
    assert sorted(data.rows.tolist()) == [0, 3, 5, 7, 8, 10]


@pytest.mark.slow
def test_fsr_finds_proxies_with_right_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(CLASSES).repeat(200)
    given = torch.where(torch.rand(len(true), generator=generator) < 0.4, (true + 1) % CLASSES, true)
    points = 2 * F.one_hot(true, 4).double() + torch.randn(len(true), 4, generator=generator).double()
    method, purity = build(FSR), []
    honest = method.survey

    def look(epoch: int) -> None:
        honest(epoch)
        assert method.gains.values is not None
        best = method.gains.values.argsort(descending=True)[:100]
        purity.append(float((true == given)[best].double().mean()))

    method.survey = look  # type: ignore[method-assign]
    train(method, (points, given), epochs=6, batch_size=20, progress=False)
    assert purity[-1] > 0.75  # 0.6 of all labels are right; without mixing 0.6 of the proxies are


def test_fsr_alone_is_cross_entropy() -> None:
    ours, plain = build(FSR, weigh_share=1.0, alpha=0.0), build(CrossEntropy)
    ours.begin_training(COUNT, None)
    ours.begin_epoch(0, 4)
    ours.survey(0)
    assert ours.step((X, Y, INDEX)) == pytest.approx(plain.step((X, Y)), rel=1e-12)
    same(ours.model, plain.model)


def test_fsr_needs_a_linear_last_layer() -> None:
    net = network()
    net[4].requires_grad_(False)
    with pytest.raises(ValueError, match="FSR looks ahead in the last linear layer"):
        FSR(net, CLASSES, torch.optim.SGD(net.parameters(), lr=LR))


@pytest.mark.parametrize("kind", [FSR, EMLC])
def test_goes_on_exactly_where_it_was_stopped(kind: Any, tmp_path: Path) -> None:
    def run(stop: int | None, **where: Any) -> Any:
        method, done = build(kind), []
        original = method.step

        def step(*batches: Any) -> Any:
            if len(done) == stop:
                raise KeyboardInterrupt
            done.append(1)
            return original(*batches)

        method.step = step
        options: dict[str, Any] = {"epochs": 3, "batch_size": 4, "progress": False, "checkpoint_every": 1}
        train(method, (X, Y), CLEAN if method.needs_trusted else None, **options, **where)
        return method

    whole = run(None)
    with pytest.raises(KeyboardInterrupt):
        run(7, out=tmp_path)
    same(run(None, out=tmp_path).model, whole.model)


# FaMUS


def literal_famus(method: FaMUS, chosen: set[str]) -> list[Tensor]:
    """∇ of loss and penalty after a step whose graph runs through the chosen parameters alone."""
    theta = dict(method.model.named_parameters())
    features = method.model[:4](X)
    logits = method.model[4](features)
    weights = method.weight_network(F.cross_entropy(logits, Y, reduction="none").detach())
    loss = (weights * F.cross_entropy(logits, Y, reduction="none")).sum() / weights.sum()
    step = dict(zip(theta, torch.autograd.grad(loss, list(theta.values()), create_graph=True), strict=True))
    ahead = {n: p - LR * (step[n] if n in chosen else step[n].detach()) for n, p in theta.items()}
    clean = F.cross_entropy(functional_call(method.model, ahead, CLEAN_X), CLEAN_Y)
    targets = torch.autograd.grad(clean, [ahead["4.weight"], ahead["4.bias"]], retain_graph=True)
    penalty = clean.new_zeros(())
    for name, target in zip(("4.weight", "4.bias"), targets, strict=True):
        for moment in (lambda g: g.mean(-1), lambda g: g.std(-1, correction=0)):
            penalty = penalty + (moment(step[name]) - moment(target.detach())).square().mean()
    total = clean + method.spread_weight * penalty
    return list(torch.autograd.grad(total, list(method.weight_network.parameters())))


@pytest.mark.parametrize("opened", [[], ["2.weight"], ["2.weight", "2.bias"]])
def test_famus_gradient_runs_through_the_chosen_layers(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    method = build(FaMUS, top=4, hidden=5, spread_weight=3.0)
    assert method._gated == ["2.weight", "2.bias"]
    monkeypatch.setattr(method, "_open", lambda *_: opened)
    expected = literal_famus(method, {"4.weight", "4.bias", *opened})
    found: list[Any] = []
    monkeypatch.setattr(method, "learn", found.extend)
    method.step((X, Y), CLEAN)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-10)


def test_famus_with_all_gates_open_is_mw_net(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = build(FaMUS, top=99, hidden=5, spread_weight=0.0), build(MWNet, hidden=5, normalize=True)
    monkeypatch.setattr(ours, "_open", lambda *_: ours._gated)
    ours.weight_network.load_state_dict(other.weight_network.state_dict())
    for _ in range(3):
        ours.step((X, Y), CLEAN)
        other.step((X, Y), CLEAN)
    same(ours.model, other.model)
    same(ours.weight_network, other.weight_network)


def test_famus_gates_learn_how_many_to_open() -> None:
    method = build(FaMUS, top=99, open_gates=1, gate_lr=0.02)
    assert len(method.gates) == 4
    forward = method.forward(X)
    labels = Y
    ahead = method.look_ahead(forward, lambda z, f: F.cross_entropy(z, labels))
    clean = method.clean_gradient(ahead, *CLEAN)
    for name in clean.gradient:
        clean.gradient[name].zero_()  # so that only their number counts
    early = sum(len(method._open(ahead, clean)) for _ in range(60)) / 60
    for _ in range(200):
        method._open(ahead, clean)
    late = sum(len(method._open(ahead, clean)) for _ in range(60)) / 60
    assert early > late
    assert late == pytest.approx(1, abs=0.4)


def test_famus_gates_settle_where_the_step_helps() -> None:
    """The step is taken either way: where it lowers the clean loss, a gate stays as it is; else it keeps turning."""
    for sign in (1.0, -1.0):
        method = build(FaMUS, top=3, open_gates=1, gate_weight=0.0)
        ahead = method.look_ahead(method.forward(X), lambda z, f: F.cross_entropy(z, Y))
        clean = method.clean_gradient(ahead, *CLEAN)
        (gated,) = method._gated
        clean.gradient[gated] = 100 * sign * ahead.step[gated]
        opened = [len(method._open(ahead, clean)) for _ in range(150)]
        late = sum(opened[100:]) / 50
        assert late in (0, 1) if sign > 0 else 0.1 < late < 0.9


# EMLC


def corrected(method: EMLC, inputs: Tensor, labels: Tensor) -> Tensor:
    features = method.teacher[:4](inputs)
    w = method.retain(features, F.one_hot(labels, CLASSES).double())
    return w * F.one_hot(labels, CLASSES) + (1 - w) * method.teacher[4](features).softmax(1)


@pytest.mark.parametrize(("steps", "lookahead", "first"), [(1, "all", 0), (3, "all", 0), (3, "head", 4)])
def test_emlc_by_hand(steps: int, lookahead: str, first: int) -> None:
    """`first` is the student's first tensor whose gradients count."""
    options = {"hidden": 5, "label_dim": 4, "meta_lr": 0.3, "meta_weight_decay": 0.0}
    method = build(EMLC, steps_ahead=steps, lookahead=lookahead, **options)
    copied = copy.deepcopy(method)
    student, learned = copied.model, [*copied.teacher.parameters(), *copied.retain.parameters()]
    optimizer = torch.optim.SGD(student.parameters(), lr=LR, weight_decay=1e-2)
    batches = [(X, Y), (X.flip(1), Y.flip(0)), (-X, Y)][:steps]
    steps_taken = []
    for x, y in batches:
        before = copy.deepcopy(student)
        steps_taken.append((before, x, y))
        optimizer.zero_grad()
        labels = corrected(copied, x, y).detach()
        (F.cross_entropy(student(x), labels) + F.cross_entropy(student(CLEAN_X[::2]), CLEAN_Y[::2])).backward()
        optimizer.step()
        method.step((x, y), CLEAN)
    same(method.model, student)

    clean = F.cross_entropy(student(CLEAN_X[1::2]), CLEAN_Y[1::2])
    g = torch.autograd.grad(clean, list(student.parameters())[first:])
    total = clean.new_zeros(())
    for age, (before, x, y) in enumerate(reversed(steps_taken)):
        loss = F.cross_entropy(before(x), corrected(copied, x, y))
        gradient = torch.autograd.grad(loss, list(before.parameters())[first:], create_graph=True)
        total = total - (1 - LR) ** age * LR * sum((a * b).sum() for a, b in zip(gradient, g, strict=True))
    features = copied.teacher[:4](CLEAN_X)
    logits = copied.teacher[4](features)
    shown, mask = CLEAN_Y.clone(), torch.ones(COUNT, 1).double()
    for i in range(0, COUNT, 2):
        shown[i] = max((k for k in range(CLASSES) if k != CLEAN_Y[i]), key=lambda k, i=i: logits[i, k])
        mask[i] = 0.0
    trust = copied.retain(features, F.one_hot(shown, CLASSES).double())
    total = total + F.cross_entropy(logits, CLEAN_Y) + F.binary_cross_entropy(trust, mask)
    gradients = torch.autograd.grad(total, learned)
    now = [*method.teacher.parameters(), *method.retain.parameters()]
    for ours, start, gradient in zip(now, learned, gradients, strict=True):
        torch.testing.assert_close(ours, start - 0.3 * gradient)


def test_emlc_waits_for_its_steps_and_remembers_them() -> None:
    method = build(EMLC, steps_ahead=3)
    start = copy.deepcopy(method.teacher)
    for number in (1, 2):
        assert "meta_loss" not in method.step((X, Y), CLEAN)
        assert len(method.history) == number
    same(method.teacher, start)
    assert "meta_loss" in method.step((X, Y), CLEAN)
    assert method.history == []


def test_emlc_cuts_long_gradients() -> None:
    moved = {}
    for clip in (math.inf, 0.01):
        method = build(EMLC, steps_ahead=1, clip=clip, meta_lr=0.5, meta_weight_decay=0.0)
        start = [p.detach().clone() for p in method.meta_parameters]
        method.step((X, Y), CLEAN)
        moved[clip] = torch.cat([(p - s).flatten() for p, s in zip(method.meta_parameters, start, strict=True)])
    torch.testing.assert_close(moved[0.01].norm(), torch.tensor(0.5 * 0.01).double())
    assert moved[math.inf].norm() > 0.005
    torch.testing.assert_close(moved[0.01], moved[math.inf] * 0.005 / moved[math.inf].norm())


def test_emlc_starts_from_what_plain_training_learns() -> None:
    method, plain = build(EMLC, warmup_share=0.5), build(CrossEntropy)
    method.begin_epoch(0, 4)
    assert not method.meta_due
    for _ in range(3):
        assert "meta_loss" not in method.step((X, Y))
        plain.step((X, Y))
    same(method.model, plain.model)
    same(method.teacher, plain.model)
    for epoch, epochs, warming in ((1, 4, True), (2, 4, False), (0, 1, False)):
        method.begin_epoch(epoch, epochs)
        assert method.meta_due != warming
    method.step((X, Y), CLEAN)
    same(method.teacher, plain.model)  # the student goes on alone until the teacher's turn


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (FasTEN, {"noisy_weight": 0.0, "bound": 0.0}, "noisy_weight=0.0 .*; bound=0.0"),
        (FSR, {"proxy_share": 0.0, "memory": 1.0}, "proxy_share=0.0 .*; memory=1.0"),
        (FaMUS, {"top": 0, "hypergradient": "backprop"}, "top=0 .*; hypergradient='backprop'"),
        (EMLC, {"steps_ahead": 0, "lagged": True}, "steps_ahead=0 .*; lagged=True .*the student's real steps"),
    ],
)
def test_mistaken_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} got options it can't use: {message}"):
        build(kind, **options)
