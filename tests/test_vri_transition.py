"""VRI with a transition matrix: a literal step, its limit cases, and whether it finds the matrix of the noise."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from vri import train
from vri.methods.vri_transition import VRITransition

CLASSES, COUNT, LR = 3, 12, 0.1
X, CLEAN_X = torch.randn(2, COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y, CLEAN_Y = torch.arange(COUNT) % CLASSES, (torch.arange(COUNT) + 1) % CLASSES
MATRIX = torch.tensor([[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]], dtype=torch.float64)
SMALL: dict[str, Any] = {"hidden": (8,), "label_dim": 4, "meta_smoothing": 0.0}


def build(net: nn.Module | None = None, **options: Any) -> VRITransition:
    if net is None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    return VRITransition(net, CLASSES, torch.optim.SGD(net.parameters(), lr=LR), **{**SMALL, **options})


@pytest.mark.parametrize("hypergradient", ["jvp", "backprop"])
def test_a_step_by_hand(hypergradient: str) -> None:
    method = build(hypergradient=hypergradient, samples=2, kl_weight=0.0, clean_weight=0.5, momentum=0.75)
    method.matrix = MATRIX.clone()
    body, head, networks = copy.deepcopy((method.model, method.noisy_head, method.meta_network))
    optimizer = torch.optim.Adam(networks.parameters(), lr=method.meta_optimizer.param_groups[0]["lr"], amsgrad=True)
    # the same draws: dropout of the forward, ε, dropout of the trusted forward, ε
    generator = torch.Generator().set_state(method.generator.get_state())
    shape, seeds = (2, COUNT, CLASSES), {"generator": generator, "size": (), "high": 2**62}

    def rectified(parameters: dict[str, Tensor], vectors: Tensor, matrix: Tensor) -> Tensor:
        z = functional_call(body, parameters, X)
        r = torch.sigmoid(vectors) * (z.softmax(1) @ matrix).log()
        return F.cross_entropy(r.reshape(-1, CLASSES), Y.repeat(2))

    def vectors(draws: Tensor) -> Tensor:
        q = networks(body[:2](X).detach(), Y)
        return q.mean + (0.5 * q.log_var).exp() * draws

    torch.randint(**seeds)
    theta = dict(body.named_parameters())
    epsilon = torch.randn(shape, generator=generator, dtype=torch.float64)
    names = list(theta)
    step = torch.autograd.grad(rectified(theta, vectors(epsilon), MATRIX), [theta[n] for n in names], create_graph=True)
    ahead = {n: theta[n] - LR * g for n, g in zip(names, step, strict=True)}
    torch.randint(**seeds)
    clean_loss = F.cross_entropy(functional_call(body, ahead, CLEAN_X), CLEAN_Y)
    learned = list(networks.parameters())
    gradient = torch.autograd.grad(clean_loss, learned, retain_graph=True, allow_unused=True)
    of_clean = torch.autograd.grad(clean_loss, [ahead[n] for n in names])
    for p, g in zip(learned, gradient, strict=True):
        p.grad = torch.zeros_like(p) if g is None else g
    optimizer.step()
    # the matrix, from trusted features at θ̂
    hidden = torch.tanh(F.linear(CLEAN_X, ahead["0.weight"], ahead["0.bias"])).detach()
    scaled = (hidden - hidden.mean(1, keepdim=True)) / (hidden.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    p = head(scaled).softmax(1).detach()
    found = torch.stack([p[k == CLEAN_Y].mean(0) for k in range(CLASSES)])
    matrix = 0.75 * MATRIX + 0.25 * found
    # the real update
    draws = torch.randn(shape, generator=generator, dtype=torch.float64)
    loss = rectified(theta, vectors(draws).detach(), matrix)
    real = torch.autograd.grad(loss, [theta[n] for n in names])
    metrics = method.step((X, Y), (CLEAN_X, CLEAN_Y))
    assert metrics["loss"] == pytest.approx(loss.item())
    torch.testing.assert_close(method.matrix, matrix)
    torch.testing.assert_close(method.meta_network.state_dict(), networks.state_dict())
    moved = {n: theta[n] - LR * (g + 0.5 * c) for n, g, c in zip(names, real, of_clean, strict=True)}
    torch.testing.assert_close(dict(method.model.named_parameters()), moved)


def test_vectors_of_one_are_the_loss_of_glc() -> None:
    method = build(initial_mean=50.0, meta_every=2)
    method.step((X, Y), (CLEAN_X, CLEAN_Y))
    method.matrix = MATRIX.clone()
    body = copy.deepcopy(method.model)
    expected = -(body(X).softmax(1) @ MATRIX)[torch.arange(COUNT), Y].log().mean()
    assert method.step((X, Y))["loss"] == pytest.approx(expected.item())
    gradients = torch.autograd.grad(expected, list(body.parameters()))
    moved = [p - LR * g for p, g in zip(body.parameters(), gradients, strict=True)]
    torch.testing.assert_close([p.detach() for p in method.model.parameters()], [p.detach() for p in moved])


def test_finds_the_matrix_of_the_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(1500) % CLASSES
    x = (torch.randn(1500, 4, generator=generator) + 4 * F.one_hot(true, 4)).double()
    noisy = torch.multinomial(MATRIX[true], 1, generator=generator).squeeze(1)
    method = build(momentum=0.8)
    history = train(
        method, (x, noisy), (x[:60], true[:60]), test_set=(x, true), epochs=15, batch_size=50, progress=False
    )
    torch.testing.assert_close(method.matrix, MATRIX, atol=0.08, rtol=0)
    torch.testing.assert_close(method.matrix.sum(1), torch.ones(CLASSES, dtype=torch.float64))
    assert history[-1]["labels_right"] == pytest.approx(0.7, abs=0.08)
    assert history[-1]["test_accuracy"] > 0.98


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"momentum=1.0 .*; head_lr=0 "):
        build(momentum=1.0, head_lr=0)
