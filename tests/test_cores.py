"""CORES*: steps of both phases by hand, the schedule of the sieve, and what it sieves."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri import train
from vri.methods.cores import CORES
from vri.methods.cross_entropy import CrossEntropy

CLASSES, SIZE = 3, 9
X, STRONG = torch.randn(2, SIZE, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1])
ROWS = torch.tensor([6, 0, 3, 7, 2, 1])


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def build(kind: Any = CORES, **options: Any) -> Any:
    net = network()
    method = kind(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1), **options)
    method.begin_training(SIZE, None)
    return method


def step(net: nn.Module, loss: Tensor) -> None:
    loss.backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()


@pytest.mark.parametrize(("sieving", "threshold"), [(False, 0.0), (True, 0.0), (True, -0.1)])
def test_a_step_of_the_first_phase_by_hand(sieving: bool, threshold: float) -> None:
    method = build(threshold=threshold)
    net = copy.deepcopy(method.model)
    method.strength, method.sieving = 1.3, sieving
    method.prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    metrics = method.step(((X[ROWS], STRONG[ROWS]), Y[ROWS], ROWS))
    p = net(X[ROWS]).softmax(1)
    losses, kept = [], []
    for i, y in enumerate(Y[ROWS].tolist()):
        of_classes = [-torch.log(p[i, k] + 1e-8) for k in range(CLASSES)]
        kept.append(not sieving or -math.log(p[i, y].item()) <= sum(of_classes).item() / CLASSES + threshold)
        losses.append(-torch.log(p[i, y]) - 1.3 * (0.5 * of_classes[0] + 0.3 * of_classes[1] + 0.2 * of_classes[2]))
    loss = sum(value for value, keep in zip(losses, kept, strict=True) if keep) / sum(kept)
    step(net, loss)
    assert 0 < sum(kept) < len(ROWS) or not sieving
    assert metrics["loss"] == pytest.approx(loss.item())
    assert metrics["kept"] == pytest.approx(sum(kept) / len(ROWS))
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())
    assert method.kept.values[ROWS].bool().tolist() == [bool(keep) for keep in kept]
    counted = torch.zeros(CLASSES, dtype=torch.float64)
    for y, keep in zip(Y[ROWS].tolist(), kept, strict=True):
        counted[y] += bool(keep)
    method.survey(1)
    torch.testing.assert_close(method.prior, counted / counted.sum())
    assert not method.counts.any()


def test_a_step_of_the_second_phase_by_hand() -> None:
    method = build(consistency=0.7)
    net = copy.deepcopy(method.model)
    method.second_phase = True
    method.kept.values[[0, 3, 7]] = 0.0  # of the batch
    metrics = method.step(((X[ROWS], STRONG[ROWS]), Y[ROWS], ROWS))
    kept = torch.tensor([row not in (0, 3, 7) for row in ROWS.tolist()])
    strong = net(STRONG[ROWS])
    p, q = net(X[ROWS]).softmax(1).detach()[~kept], strong.softmax(1)[~kept]
    loss = F.cross_entropy(strong[kept], Y[ROWS][kept]) + 0.7 * (p * (p / q).log()).sum(1).mean()
    step(net, loss)
    assert metrics["loss"] == pytest.approx(loss.item())
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())


def test_without_regularisation_and_sieve_it_is_cross_entropy_in_both_phases() -> None:
    method, plain = build(beta=0.0), build(CrossEntropy)
    for second_phase in (False, True):  # all samples were kept
        method.second_phase = second_phase
        method.step((X, Y, torch.arange(SIZE)))
        plain.step((X, Y))
        torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict())


def test_schedule() -> None:
    """β is 0 for 10 epochs and 2 after 40, samples are left out from 30 on, as in the authors' 41 epochs or so."""
    method = build(restart=False)
    seen = []
    for epoch in range(100):
        method.begin_epoch(epoch, 100)
        seen.append((method.strength, method.sieving, method.second_phase))
        rate = method.lr_scale(epoch / 100, lambda progress: 1.0)
        assert rate == pytest.approx(1 / (1 + method.strength) if epoch < 40 else 1.0)
    assert [strength for strength, _, _ in seen[:11]] == [0.0] * 11
    assert seen[25][0] == pytest.approx(1.0)
    assert [epoch for epoch in range(40) if seen[epoch][1]] == list(range(30, 40))
    assert [phase for _, _, phase in seen] == [False] * 40 + [True] * 60


@pytest.mark.parametrize("restart", [True, False])
def test_the_second_phase_starts_from_scratch(restart: bool) -> None:
    method = build(restart=restart)
    first = copy.deepcopy(method.model.state_dict())
    method.begin_epoch(0, 2)
    assert method.sieving  # at least one epoch must
    assert method.lr_scale(0.25, lambda progress: progress) == (0.5 if restart else 0.25)
    method.step((X, Y, torch.arange(SIZE)))
    trained = copy.deepcopy(method.model.state_dict())
    method.begin_epoch(1, 2)
    torch.testing.assert_close(dict(method.model.state_dict()), dict(first if restart else trained))
    assert method.lr_scale(0.75, lambda progress: progress) == (0.5 if restart else 0.75)
    method.step((X, Y, torch.arange(SIZE)))
    method.begin_epoch(1, 2)  # as on resuming: nothing starts again
    assert not torch.equal(method.model[0].weight, first["0.weight"])


def test_sieves_out_wrong_labels() -> None:
    """Two classes far apart, a fifth of the labels wrong."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(200) % 2
    x = torch.randn(200, 4, generator=generator) + 4 * true.unsqueeze(1) - 2
    wrong = torch.rand(200, generator=generator) < 0.2
    net = nn.Linear(4, 2)
    nn.init.zeros_(net.weight)
    method = CORES(net, 2, torch.optim.SGD(net.parameters(), lr=0.1))
    history = train(method, (x, true ^ wrong.long()), epochs=20, batch_size=20, test_set=(x, true), progress=False)
    assert float((method.kept.values.bool() == ~wrong).double().mean()) > 0.97
    assert history[-1]["test_accuracy"] > 0.97
    assert 0.7 < history[-1]["kept"] < 0.9


def test_options() -> None:
    with pytest.raises(
        ValueError,
        match=r"^CORES got options it can't use: beta=-1 .*; threshold=1 .*; consistency=-1 .*; sieve_share=0 ",
    ):
        build(beta=-1, threshold=1, consistency=-1, sieve_share=0)
