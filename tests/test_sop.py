"""SOP and SOP+: a literal computation of the paper's loss, limiting cases, and whether the noise is found."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.methods.cross_entropy import CrossEntropy
from vri.methods.sop import SOP, SOPPlus, corrected

CLASSES, SIZE = 4, 10
X = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
STRONG = X + torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(SIZE) % CLASSES
ROWS = torch.randperm(SIZE, generator=torch.Generator().manual_seed(2))


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def build(kind: Any, lr: float = 0.1, **options: Any) -> Any:
    net = network()
    method = kind(net, CLASSES, torch.optim.SGD(net.parameters(), lr=lr), **options)
    method.begin_training(SIZE, None)
    return method


def literal(logits: Tensor, strong: Tensor | None, u: Tensor, v: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Both losses, sample by sample and class by class: what the network and u see, and what v sees."""
    fit, misfit, mean = [], [], torch.zeros(CLASSES, dtype=torch.float64)
    for i in range(len(labels)):
        p = torch.softmax(logits[i], 0)
        y = labels[i] if labels.is_floating_point() else torch.eye(CLASSES, dtype=torch.float64)[labels[i]]
        up, down = (u[i] ** 2 * y).clamp(max=1), (v[i] ** 2 * (1 - y)).clamp(max=1)
        q = torch.stack([torch.clamp(p[k] + up[k] - down[k].detach(), min=1e-4) for k in range(CLASSES)])
        q = (q / q.sum()).clamp(min=1e-4)
        fit.append(-sum(y[k] * torch.log(q[k]) for k in range(CLASSES)))
        hard = torch.eye(CLASSES, dtype=torch.float64)[logits[i].argmax()]
        misfit.append(sum((hard[k] + up[k].detach() - down[k] - y[k]) ** 2 for k in range(CLASSES)))
        mean = mean + q / len(labels)
    loss = torch.stack(fit).mean()
    if strong is not None:
        p, p2 = torch.softmax(logits.detach(), 1), torch.softmax(strong, 1)
        loss = loss + 0.9 * (p * torch.log(p / p2)).sum(1).mean() - 0.1 * torch.log(mean).mean()
    return loss, torch.stack([*fit, *misfit]).sum() / 128


@pytest.mark.parametrize("kind", [SOP, SOPPlus])
@pytest.mark.parametrize("soft", [False, True])
def test_step_by_hand(kind: Any, soft: bool) -> None:
    labels = F.softmax(X[:, :CLASSES], 1) if soft else Y
    method = build(kind, lr_u=30.0, lr_v=20.0, start=0.1)
    # some far from the start, some clamped
    method.u.values[::3], method.v.values[1::2, :2] = 0.8, 1.3
    net, u, v = copy.deepcopy(method.model), method.u.values.clone(), method.v.values.clone()
    inputs = (X[ROWS], STRONG[ROWS]) if kind is SOPPlus else X[ROWS]
    metrics = method.step((inputs, labels[ROWS], ROWS))

    here, there = u[ROWS].requires_grad_(), v[ROWS].requires_grad_()
    logits = net(X[ROWS])
    strong = net(STRONG[ROWS]) if kind is SOPPlus else None
    loss, of_noise = literal(logits, strong, here, there, labels[ROWS])
    of_u, of_v = torch.autograd.grad(of_noise, (here, there), retain_graph=True)
    loss.backward()
    u[ROWS], v[ROWS] = (here - 30 * of_u).detach(), (there - 20 * of_v).detach()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert metrics["loss"] == pytest.approx(loss.item())
    torch.testing.assert_close(method.u.values, u)
    torch.testing.assert_close(method.v.values, v)
    torch.testing.assert_close(method.model.state_dict(), net.state_dict())
    assert not torch.allclose(method.u.values, torch.full_like(u, 0.1))


@pytest.mark.parametrize(
    ("kind", "options"), [(SOP, {}), (SOPPlus, {"consistency": 0.0, "balance": 0.0}), (SOPPlus, {"balance": 0.0})]
)
def test_without_rates_it_is_cross_entropy(kind: Any, options: dict[str, float]) -> None:
    """Consistency of two views that are the same adds nothing."""
    method, plain = build(kind, lr_u=0.0, lr_v=0.0, **options), build(CrossEntropy)
    for _ in range(3):
        method.step((X, Y, torch.arange(SIZE)))
        plain.step((X, Y))
    torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict())
    assert float(method.u.values.max()) == pytest.approx(1e-8)


def test_noise_grows_where_a_label_contradicts_the_network() -> None:
    """A network that is sure and frozen: v finds the predicted class, u the given one, and right labels have none."""
    true = Y
    noisy = true.clone()
    noisy[:3] = (true[:3] + 1) % CLASSES
    net = nn.Linear(CLASSES, CLASSES).double()
    with torch.no_grad():
        net.weight.copy_(4 * torch.eye(CLASSES))
        net.bias.zero_()
    method = SOP(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.0), lr_v=10.0)
    method.begin_training(SIZE, None)
    inputs = F.one_hot(true, CLASSES).double()
    for _ in range(200):
        metrics = method.step((inputs, noisy, torch.arange(SIZE)))
    u, v = method.u.values.squeeze(1).square(), method.v.values.square()
    wrong = noisy != true
    torch.testing.assert_close(v[wrong].argmax(1), true[wrong])
    assert float(v[wrong].max(1).values.min()) > 0.9
    assert float(u[wrong].min()) > 1e-3
    assert float(u[~wrong].max()) < 1e-10
    assert float(v[~wrong].max()) < 1e-10
    assert metrics["noise"] > 0.2


def test_corrected_predictions_are_probabilities() -> None:
    noise = torch.tensor([[0.0, 1.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    logits = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]], dtype=torch.float64)
    expected = torch.stack([torch.tensor([1 / 3, 4 / 3, 1e-4], dtype=torch.float64), logits[1].softmax(0)])
    torch.testing.assert_close(corrected(logits, noise)[1], expected[1])
    torch.testing.assert_close(corrected(logits, noise)[0], (expected[0] / expected[0].sum()).clamp_min(1e-4))


def test_options() -> None:
    with pytest.raises(ValueError, match=r"^SOP got options it can't use: lr_u=-1 \(expected 0 or more\); start=1.0 "):
        build(SOP, lr_u=-1, start=1.0)
    with pytest.raises(ValueError, match=r"^SOPPlus got options it can't use: consistency=-1"):
        build(SOPPlus, consistency=-1)
