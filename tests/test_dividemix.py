"""DivideMix and MixMatch: a step by hand, limiting cases, the division of samples, and exact resuming."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri import train
from vri.methods import dividemix
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.dividemix import DivideMix
from vri.methods.mixmatch import labelled_losses, probably_clean, ramp_up, sharpen, unlabelled_losses

CLASSES, SIZE = 3, 8
X, SECOND = torch.randn(2, SIZE, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(SIZE) % CLASSES
ROWS = torch.tensor([5, 0, 3, 7, 2])


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def build(**options: Any) -> DivideMix:
    nets = network(0), network(1)
    sgd = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    method = DivideMix(nets[0], CLASSES, sgd[0], second=(nets[1], sgd[1]), **options)
    method.begin_training(SIZE, None)
    return method


def test_a_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [(0.8, torch.randperm(10)), (0.3, torch.randperm(10))]
    waiting = list(draws)
    monkeypatch.setattr(dividemix, "draw_mixture", lambda *_: waiting.pop(0))
    method = build(unlabelled_weight=5.0)
    method.growth = 0.5
    clean = torch.rand(2, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    clean[0, 0], clean[1, 0] = 0.9, 0.1
    for memory, values in zip(method.clean, clean, strict=True):
        memory.values.copy_(values)
    nets = copy.deepcopy(method.model), copy.deepcopy(method.second_model)
    metrics = method.step(((X[ROWS], SECOND[ROWS]), Y[ROWS], ROWS))

    said = [((net(X[ROWS]).softmax(1) + net(SECOND[ROWS]).softmax(1)) / 2).detach() for net in nets]
    losses = []
    for k, (share, order) in enumerate(draws):
        share = max(share, 1 - share)
        targets, labelled = [], []
        for place, row in enumerate(ROWS.tolist()):
            w, y = clean[1 - k, row], F.one_hot(Y[row], CLASSES)
            labelled.append(bool(w > 0.5))
            target = w * y + (1 - w) * said[k][place] if w > 0.5 else (said[0][place] + said[1][place]) / 2
            targets.append(target**2 / (target**2).sum())
        t, x = torch.stack(targets * 2), torch.cat([X[ROWS], SECOND[ROWS]])
        t, x = (share * s + (1 - share) * s[order] for s in (t, x))
        mask = torch.tensor(labelled * 2)
        assert 0 < mask.sum() < 10
        p = nets[k](x).softmax(1)
        loss = -(t * p.log()).sum(1)[mask].mean() + 0.5 * 5 * (p - t).square()[~mask].mean()
        losses.append(loss + (1 / CLASSES * (1 / CLASSES / p.mean(0)).log()).sum())
    for net, loss in zip(nets, losses, strict=True):
        loss.backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert metrics["loss"] == pytest.approx(losses[0].item())
    assert metrics["second_loss"] == pytest.approx(losses[1].item())
    assert metrics["labelled"] == pytest.approx((clean[1, ROWS] > 0.5).double().mean().item())
    torch.testing.assert_close(method.model.state_dict(), nets[0].state_dict())
    torch.testing.assert_close(method.second_model.state_dict(), nets[1].state_dict())


@pytest.mark.parametrize("warming", [True, False])
def test_all_clean_and_nothing_mixed_is_two_plain_networks(warming: bool) -> None:
    method = build(alpha=0.0, balance=0.0, confidence_penalty=0.0)
    method.warming = warming
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


def test_the_warm_up_is_against_being_sure() -> None:
    method = build(confidence_penalty=0.7)
    method.warming = True
    net = copy.deepcopy(method.model)
    metrics = method.step(((X, SECOND), Y, torch.arange(SIZE)))
    p = net(X).softmax(1)
    loss = F.cross_entropy(net(X), Y) + 0.7 * (p * p.log()).sum(1).mean()
    loss.backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert metrics["loss"] == pytest.approx(loss.item())
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())


def test_phases() -> None:
    method = build()
    seen = []
    for epoch in range(30):
        method.begin_epoch(epoch, 30)
        seen.append((method.warming, method.growth))
    assert [warming for warming, _ in seen] == [True] * 3 + [False] * 27
    assert [growth for _, growth in seen[:6]] == pytest.approx([0, 0, 0, 0, 1 / 1.6, 1])
    method.begin_epoch(0, 1)
    assert not method.warming  # a training of one epoch has none to spare
    assert [ramp_up(epoch, 2, 0) for epoch in (1, 2)] == [0, 1]


def test_sharpening_and_losses() -> None:
    p = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(sharpen(p, 1.0), p)
    torch.testing.assert_close(sharpen(p, 0.5), torch.tensor([[0.36, 0.09, 0.01]]).double() / 0.46)
    z, t = X[:2, :3], SECOND[:2, :3].softmax(1)
    torch.testing.assert_close(labelled_losses(z, t), F.cross_entropy(z, t, reduction="none"))
    torch.testing.assert_close(unlabelled_losses(z, t).mean(), F.mse_loss(z.softmax(1), t))


@pytest.mark.parametrize("outliers", [0, 20])
def test_losses_of_two_kinds_are_told_apart(outliers: int) -> None:
    """By Bayes' rule with the Gaussians that made them, even where a few losses are far larger."""
    generator = torch.Generator().manual_seed(0)
    low = 0.3 + 0.1 * torch.randn(6000, generator=generator, dtype=torch.float64)
    high = 1.1 + 0.2 * torch.randn(4000, generator=generator, dtype=torch.float64)
    losses = torch.cat([low, high, torch.linspace(2.5, 3.5, outliers, dtype=torch.float64)])

    def density(x: Tensor, mean: float, deviation: float) -> Tensor:
        return torch.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))

    first, second = 0.6 * density(losses, 0.3, 0.1), 0.4 * density(losses, 1.1, 0.2)
    between = (losses > 0.2) & (losses < 1.5)  # far below, the wider Gaussian is the nearer one
    found = probably_clean(losses)
    near = 0.25 if outliers else 0.15
    torch.testing.assert_close(found[between], (first / (first + second))[between], rtol=0, atol=near)
    assert found.dtype == losses.dtype
    assert probably_clean(torch.full((5,), 0.3)).tolist() == [1.0] * 5


def noisy_blobs() -> tuple[Tensor, Tensor, Tensor]:
    """Three classes, of which 30 % are labelled as the next one."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(240) % CLASSES
    x = torch.randn(240, 4, generator=generator) + 3 * F.one_hot(true, 4)
    return x, true, torch.where(torch.rand(240, generator=generator) < 0.3, (true + 1) % CLASSES, true)


def fit(out: Path | None = None, stop: int | None = None) -> tuple[DivideMix, list[dict[str, Any]]]:
    x, true, labels = noisy_blobs()
    net = network().float()
    method = DivideMix(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), warmup_share=0.3)
    original, done = method.step, 0

    def counting(*batches: Any) -> Any:
        nonlocal done
        if done == stop:
            raise KeyboardInterrupt
        done += 1
        return original(*batches)

    method.step = counting  # type: ignore[method-assign]
    options: dict[str, Any] = {"epochs": 10, "batch_size": 40, "progress": False, "checkpoint_every": 1}
    history = train(method, (x, labels), test_set=(x, true), out=out, **options)
    return method, history


def test_divides_and_resumes_exactly(tmp_path: Path) -> None:
    method, history = fit()
    _, true, labels = noisy_blobs()
    for memory in method.clean:
        assert float(((memory.values > 0.5) == (labels == true)).double().mean()) > 0.85
    assert history[-1]["test_accuracy"] > 0.85
    assert 0.6 < history[-1]["labelled"] < 0.8
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, stop=29)
    resumed, _ = fit(tmp_path)
    torch.testing.assert_close(resumed.state_dict(), method.state_dict(), rtol=0, atol=0)


def test_options() -> None:
    wrong = {"unlabelled_weight": -1, "threshold": 1, "temperature": 0, "alpha": -1, "balance": -1}
    more = {"confidence_penalty": -1, "warmup_share": 1, "ramp_share": 2}
    with pytest.raises(ValueError, match=r"^DivideMix got options it can't use: ") as error:
        build(**wrong, **more)
    assert all(f"{name}={value} (" in str(error.value) for name, value in (wrong | more).items())
