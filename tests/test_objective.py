"""The equations against closed forms, `torch.distributions` and `torch.nn.functional`, in float64."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from vri.core import objective
from vri.core.objective import SQUASHES, Gaussian

N, C, K = 5, 4, 3
LABELS = torch.tensor([0, 3, 1, 1, 2])


def float64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(seed: int) -> Gaussian:
    return Gaussian(numbers(N, C, seed=seed), numbers(N, C, seed=seed + 1))


def normal(g: Gaussian) -> Normal:
    return Normal(g.mean, g.log_var.exp().sqrt())


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


# eq:reparam


def test_reparameterize_by_hand() -> None:
    # σ² = 4 and 1/4, so σ = 2 and 1/2: v = 1 + 2·3 and −1 + 0.5·(−2)
    g = Gaussian(torch.tensor([[1.0, -1.0]]), torch.tensor([[4.0, 0.25]]).log())
    torch.testing.assert_close(
        objective.reparameterize(g, torch.tensor([[[3.0, -2.0]]])), torch.tensor([[[7.0, -2.0]]])
    )


def test_reparameterize_moments() -> None:
    draws = 200_000
    g = Gaussian(float64([[0.5, -2.0]]), float64([[-1.0, 1.2]]))
    v = objective.reparameterize(g, numbers(draws, 1, 2, seed=0))
    assert v.shape == (draws, 1, 2)
    sigma = g.log_var.exp().sqrt()
    standard_error = sigma / math.sqrt(draws)
    assert ((v.mean(0) - g.mean).abs() < 4 * standard_error).all()
    # the variance of a sample variance is 2σ⁴ / (n − 1)
    assert ((v.var(0) - sigma**2).abs() < 4 * sigma**2 * math.sqrt(2 / draws)).all()


def test_reparameterize_gradient() -> None:
    """dv/dμ = 1 and dv/d log σ² = σε/2."""
    g, noise = gaussian(0), numbers(K, N, C, seed=9)
    leaves = Gaussian(*(t.requires_grad_() for t in g))
    objective.reparameterize(leaves, noise).sum().backward()
    close(leaves.mean.grad, torch.full((N, C), float(K), dtype=torch.float64))
    close(leaves.log_var.grad, (0.5 * g.log_var.exp().sqrt() * noise).sum(0).detach())


# rectify


@pytest.mark.parametrize(
    ("name", "value"),
    [("sigmoid", 1 / (1 + math.exp(-0.7))), ("tanh", math.tanh(0.7)), ("none", 0.7)],
)
def test_rectify_multiplies_by_the_squashed_vector(name: str, value: float) -> None:
    logits = numbers(N, C, seed=1)
    vectors = torch.full((K, N, C), 0.7, dtype=torch.float64)
    close(objective.rectify(vectors, logits, SQUASHES[name]), (value * logits).expand(K, N, C))
    close(objective.rectify(vectors[0], logits, SQUASHES[name]), value * logits)


def test_rectify_squashes_by_a_sigmoid_without_asking() -> None:
    vectors, logits = numbers(K, N, C, seed=2), numbers(N, C, seed=3)
    close(objective.rectify(vectors, logits), logits / (1 + (-vectors).exp()))


def test_the_squashes_are_three() -> None:
    assert set(SQUASHES) == {"sigmoid", "tanh", "none"}


# the loss L


def test_cross_entropy_by_hand() -> None:
    # softmax of (log 1, log 2, log 5) is (1, 2, 5) / 8
    logits = float64([[1.0, 2.0, 5.0]]).log().expand(2, 3)
    hard = objective.cross_entropy(logits, torch.tensor([2, 0]))
    close(hard, float64((math.log(8 / 5) + math.log(8)) / 2))
    soft = objective.cross_entropy(logits, float64([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    close(soft, float64((0.5 * math.log(8) + 0.5 * math.log(4) + math.log(8 / 5)) / 2))


def test_cross_entropy_against_torch() -> None:
    logits = numbers(N, C, seed=4)
    soft = numbers(N, C, seed=5).softmax(1)
    close(objective.cross_entropy(logits, LABELS), F.cross_entropy(logits, LABELS))
    close(objective.cross_entropy(logits, soft), F.cross_entropy(logits, soft))


def test_a_one_hot_label_is_a_hard_one() -> None:
    logits = numbers(K, N, C, seed=6)
    one_hot = F.one_hot(LABELS, C).double()
    close(objective.cross_entropy(logits, one_hot), objective.cross_entropy(logits, LABELS))


@pytest.mark.parametrize("soft", [False, True])
def test_draws_are_averaged(soft: bool) -> None:
    logits = numbers(K, N, C, seed=7)
    labels = numbers(N, C, seed=8).softmax(1) if soft else LABELS
    each = torch.stack([F.cross_entropy(logits[j], labels) for j in range(K)])
    close(objective.cross_entropy(logits, labels), each.mean())


def test_cross_entropy_of_huge_logits_is_finite() -> None:
    logits = float64([[1e4, -1e4]])
    close(objective.cross_entropy(logits, torch.tensor([1])), float64(2e4))


# KL


def test_kl_by_hand() -> None:
    # q = N(1, 4), p = N(3, 1): log(1/2) + (4 + 4)/2 − 1/2; q = N(0, 1), p = N(0, 1): 0
    q = Gaussian(float64([[1.0, 0.0]]), float64([[4.0, 1.0]]).log())
    p = Gaussian(float64([[3.0, 0.0]]), float64([[0.0, 0.0]]))
    close(objective.gaussian_kl(q, p), float64([3.5 - math.log(2)]))


def test_kl_against_torch_distributions() -> None:
    q, p = gaussian(10), gaussian(20)
    kl = objective.gaussian_kl(q, p)
    assert kl.shape == (N,)
    close(kl, kl_divergence(normal(q), normal(p)).sum(1))


def test_kl_is_zero_for_equal_distributions_and_only_then() -> None:
    q = gaussian(30)
    assert torch.equal(objective.gaussian_kl(q, q), torch.zeros(N).double())
    for changed in (q._replace(mean=q.mean + 1e-3), q._replace(log_var=q.log_var - 1e-3)):
        assert (objective.gaussian_kl(q, changed) > 1e-8).all()
        assert (objective.gaussian_kl(changed, q) > 1e-8).all()


def test_kl_is_not_symmetric() -> None:
    q, p = gaussian(10), gaussian(20)
    assert (objective.gaussian_kl(q, p) - objective.gaussian_kl(p, q)).abs().min() > 1e-3


# eq:obj0, eq:obj1


@pytest.mark.parametrize("squash", list(SQUASHES))
def test_empirical_loss_is_the_double_sum(squash: str) -> None:
    """1/(kN) ΣΣ L(y, π[v] ⊙ z), each term on its own."""
    vectors, logits = numbers(K, N, C, seed=40), numbers(N, C, seed=41)
    terms = [
        -F.log_softmax(SQUASHES[squash](vectors[j, i]) * logits[i], dim=0)[LABELS[i]]
        for j in range(K)
        for i in range(N)
    ]
    close(objective.empirical_loss(vectors, logits, LABELS, SQUASHES[squash]), sum(terms) / (K * N))


@pytest.mark.parametrize("squash", list(SQUASHES))
def test_gradient_of_the_empirical_loss_in_the_logits(squash: str) -> None:
    """π(v) ⊙ (softmax(π(v) ⊙ z) − y) / n."""
    vectors, logits = numbers(1, N, C, seed=42), numbers(N, C, seed=43).requires_grad_()
    (gradient,) = torch.autograd.grad(objective.empirical_loss(vectors, logits, LABELS, SQUASHES[squash]), logits)
    pi = SQUASHES[squash](vectors[0])
    close(gradient, pi * ((pi * logits.detach()).softmax(1) - F.one_hot(LABELS, C)) / N)


@pytest.mark.parametrize("kl_weight", [0.0, 0.3])
def test_elbo_loss_is_the_sum_of_its_parts(kl_weight: float) -> None:
    q, p, noise, logits = gaussian(50), gaussian(60), numbers(K, N, C, seed=70), numbers(N, C, seed=71)
    vectors = normal(q).mean + normal(q).stddev * noise
    fit = torch.stack([F.cross_entropy(v.sigmoid() * logits, LABELS) for v in vectors]).mean()
    divergence = kl_divergence(normal(q), normal(p)).sum(1).mean()
    close(objective.elbo_loss(q, p, noise, logits, LABELS, kl_weight), fit + kl_weight * divergence)


def test_elbo_loss_takes_the_squash() -> None:
    q, p, noise, logits = gaussian(50), gaussian(60), numbers(K, N, C, seed=70), numbers(N, C, seed=71)
    vectors = normal(q).mean + normal(q).stddev * noise
    fit = torch.stack([F.cross_entropy(v.tanh() * logits, LABELS) for v in vectors]).mean()
    close(objective.elbo_loss(q, p, noise, logits, LABELS, 0.0, SQUASHES["tanh"]), fit)


# eq:obj2


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("soft", [False, True])
def test_meta_loss_smooths_like_torch(smoothing: float, soft: bool) -> None:
    logits = numbers(N, C, seed=80)
    labels = numbers(N, C, seed=81).softmax(1) if soft else LABELS
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    close(objective.meta_loss(logits, labels, smoothing), expected)
