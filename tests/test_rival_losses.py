"""The losses of the rival methods against closed forms and limiting cases, in float64."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F

from vri.methods.bootstrapping import hard_bootstrapping, soft_bootstrapping
from vri.methods.elr import early_learning_penalty
from vri.methods.gce import generalised_cross_entropy
from vri.methods.jocor import joint_loss
from vri.methods.label_smoothing import smoothed_cross_entropy
from vri.methods.mixup import mix
from vri.methods.sce import reverse_cross_entropy, symmetric_cross_entropy
from vri.methods.transition import corrected_cross_entropy, corruption_matrix

COUNT, CLASSES = 7, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Z = drawn(COUNT, CLASSES)
P = F.softmax(Z, 1)
Y = torch.arange(COUNT) % CLASSES
ONE_HOT = F.one_hot(Y, CLASSES).double()
SOFT = F.softmax(drawn(COUNT, CLASSES, seed=1), 1)
P_Y = P[torch.arange(COUNT), Y]
TARGETS = 0.9 * F.softmax(drawn(COUNT, CLASSES, seed=2), 1)
MATRIX = F.softmax(drawn(CLASSES, CLASSES, seed=3), 1)

Loss = Callable[[Tensor, Tensor], Tensor]


def gradient(loss: Callable[[Tensor], Tensor], logits: Tensor = Z) -> Tensor:
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def same(loss: Callable[[Tensor], Tensor], expected: Callable[[Tensor], Tensor]) -> None:
    """Value and gradient."""
    torch.testing.assert_close(loss(Z), expected(Z))
    torch.testing.assert_close(gradient(loss), gradient(expected))


LOSSES: dict[str, Loss] = {
    "label smoothing": lambda z, y: smoothed_cross_entropy(z, y, 0.1),
    "GCE": lambda z, y: generalised_cross_entropy(z, y, 0.7),
    "SCE": lambda z, y: symmetric_cross_entropy(z, y, 0.1, 1.0, -4.0),
    "soft bootstrapping": lambda z, y: soft_bootstrapping(z, y, 0.95),
    "hard bootstrapping": lambda z, y: hard_bootstrapping(z, y, 0.8),
    "GLC": lambda z, y: corrected_cross_entropy(z, y, MATRIX),
    "JoCoR": lambda z, y: joint_loss(z, Z.flip(0), y, 0.9).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_one_hot_labels_are_hard_labels(name: str) -> None:
    same(lambda z: LOSSES[name](z, Y), lambda z: LOSSES[name](z, ONE_HOT))


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "SCE"])  # whose reverse term takes log y
def test_a_soft_label_costs_the_mean_over_its_classes(name: str) -> None:
    def mean(z: Tensor) -> Tensor:
        rows = [LOSSES[name](z[i : i + 1], torch.tensor([k])) for i in range(COUNT) for k in range(CLASSES)]
        return (torch.stack(rows).reshape(COUNT, CLASSES) * SOFT).sum(1).mean()

    if name == "JoCoR":  # whose other network has a row for each sample
        classes = [torch.full((COUNT,), k) for k in range(CLASSES)]
        expected = sum(SOFT[:, k] * joint_loss(Z, Z.flip(0), y, 0.9) for k, y in enumerate(classes))
        torch.testing.assert_close(joint_loss(Z, Z.flip(0), SOFT, 0.9), expected)
    else:
        same(lambda z: LOSSES[name](z, SOFT), mean)


@pytest.mark.parametrize("labels", [Y, SOFT], ids=["hard", "soft"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_is_that_of_torch(labels: Tensor, smoothing: float) -> None:
    same(
        lambda z: smoothed_cross_entropy(z, labels, smoothing),
        lambda z: F.cross_entropy(z, labels, label_smoothing=smoothing),
    )


@pytest.mark.parametrize("labels", [Y, SOFT], ids=["hard", "soft"])
def test_gce_becomes_cross_entropy(labels: Tensor) -> None:
    same(lambda z: generalised_cross_entropy(z, labels, 1e-10), lambda z: F.cross_entropy(z, labels))


def test_gce_at_one_is_the_mean_absolute_error() -> None:
    """Half of it: ‖y − p‖₁ = 2·(1 − p_y)."""
    same(
        lambda z: generalised_cross_entropy(z, Y, 1.0),
        lambda z: (ONE_HOT - F.softmax(z, 1)).abs().sum(1).mean() / 2,
    )


def test_gce_in_between() -> None:
    torch.testing.assert_close(generalised_cross_entropy(Z, Y, 0.7), ((1 - P_Y**0.7) / 0.7).mean())
    expected = (P_Y**0.7).unsqueeze(1) * (P - ONE_HOT) / COUNT
    torch.testing.assert_close(gradient(lambda z: generalised_cross_entropy(z, Y, 0.7)), expected)


def test_sce_without_its_reverse_term() -> None:
    same(lambda z: symmetric_cross_entropy(z, Y, 0.3, 0.0, -4.0), lambda z: 0.3 * F.cross_entropy(z, Y))


def test_reverse_cross_entropy() -> None:
    torch.testing.assert_close(reverse_cross_entropy(Z, Y, -4.0), 4 * (1 - P_Y).mean())
    expected = 4 * P_Y.unsqueeze(1) * (P - ONE_HOT) / COUNT
    torch.testing.assert_close(gradient(lambda z: reverse_cross_entropy(z, Y, -4.0)), expected)
    soft = torch.tensor([[0.5, 0.49, 0.01, 0.0]], dtype=torch.float64)  # log 0.01 is below −4 and raised to it
    p = P[0].tolist()
    by_hand = -(p[0] * math.log(0.5) + p[1] * math.log(0.49) + (p[2] + p[3]) * -4)
    assert float(reverse_cross_entropy(Z[:1], soft, -4.0)) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("loss", [soft_bootstrapping, hard_bootstrapping])
@pytest.mark.parametrize("labels", [Y, SOFT], ids=["hard", "soft"])
def test_bootstrapping_that_trusts_labels_is_cross_entropy(
    loss: Callable[[Tensor, Tensor, float], Tensor], labels: Tensor
) -> None:
    same(lambda z: loss(z, labels, 1.0), lambda z: F.cross_entropy(z, labels))


def test_soft_bootstrapping_adds_the_entropy() -> None:
    entropy = Categorical(P).entropy()
    torch.testing.assert_close(soft_bootstrapping(Z, Y, 0.6), 0.6 * F.cross_entropy(Z, Y) + 0.4 * entropy.mean())
    expected = 0.6 * (P - ONE_HOT) - 0.4 * P * (P.log() + entropy.unsqueeze(1))
    torch.testing.assert_close(gradient(lambda z: soft_bootstrapping(z, Y, 0.6)), expected / COUNT)


def test_hard_bootstrapping_takes_the_predicted_class() -> None:
    predicted = F.one_hot(P.argmax(1), CLASSES)
    expected = (P - 0.6 * ONE_HOT - 0.4 * predicted) / COUNT
    torch.testing.assert_close(gradient(lambda z: hard_bootstrapping(z, Y, 0.6)), expected)
    torch.testing.assert_close(
        hard_bootstrapping(Z, Y, 0.6), 0.6 * F.cross_entropy(Z, Y) + 0.4 * F.cross_entropy(Z, P.argmax(1))
    )


def test_mix() -> None:
    order = torch.tensor([2, 0, 1])
    a, b = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0, 10.0], [20.0, 30.0], [40.0, 50.0]])
    mixed_a = torch.tensor([[1.5], [0.25], [1.25]])
    mixed_b = torch.tensor([[30.0, 40.0], [5.0, 15.0], [25.0, 35.0]])
    assert torch.equal(mix(a, order, 0.25), mixed_a)
    first, rest = mix((a, {"b": b}), order, 0.25)
    assert torch.equal(first, mixed_a)
    assert torch.equal(rest["b"], mixed_b)
    assert torch.equal(mix(b, order, 1.0), b)
    assert torch.equal(mix(b, order, 0.0), b[order])


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        (torch.tensor([[3, 1]]), "int64"),
        ((torch.zeros(1, 2), torch.tensor([[True]])), "bool"),
        ({"x": ["a"]}, "str"),
    ],
)
def test_mix_refuses_what_has_nothing_in_between(inputs: object, kind: str) -> None:
    message = (
        f"mixup got inputs of type {kind}, expected floating-point tensors: only they have values in between; "
        "convert images to float, embed token ids before the model, or take another method"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        mix(inputs, torch.tensor([0]), 0.5)


def test_early_learning_penalty() -> None:
    agreement = (P * TARGETS).sum(1, keepdim=True)
    torch.testing.assert_close(early_learning_penalty(Z, TARGETS), (1 - agreement).log().mean())
    expected = -P * (TARGETS - agreement) / (1 - agreement) / COUNT
    torch.testing.assert_close(gradient(lambda z: early_learning_penalty(z, TARGETS)), expected)


def test_early_learning_penalty_stays_finite() -> None:
    sure = torch.tensor([[1000.0, 0.0]])
    assert float(early_learning_penalty(sure, torch.tensor([[1.0, 0.0]]))) == pytest.approx(math.log(1e-4))
    assert gradient(lambda z: early_learning_penalty(z, torch.tensor([[1.0, 0.0]])), sure).isfinite().all()


@pytest.mark.parametrize("labels", [Y, SOFT], ids=["hard", "soft"])
def test_corrected_cross_entropy(labels: Tensor) -> None:
    same(
        lambda z: corrected_cross_entropy(z, labels, torch.eye(CLASSES, dtype=torch.float64)),
        lambda z: F.cross_entropy(z, labels),
    )
    same(
        lambda z: corrected_cross_entropy(z, labels, MATRIX),
        lambda z: (
            F.nll_loss((MATRIX.T @ F.softmax(z, 1).T).T.log(), labels)
            if labels is Y
            else -(labels * (F.softmax(z, 1) @ MATRIX).log()).sum() / COUNT
        ),
    )


def test_corrected_cross_entropy_is_finite_where_the_matrix_has_zeros() -> None:
    z = torch.tensor([[500.0, 0.0]])  # p = (1, 0), and class 0 never becomes class 1
    loss = gradient(lambda logits: corrected_cross_entropy(logits, torch.tensor([1]), torch.eye(2)), z)
    assert loss.isfinite().all()


def test_corruption_matrix_by_hand() -> None:
    p = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(corruption_matrix(p, torch.tensor([0, 1, 0])), expected)
    soft = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.8 / 1.5, 0.7 / 1.5], [0.6 / 1.5, 0.9 / 1.5]], dtype=torch.float64)
    torch.testing.assert_close(corruption_matrix(p, soft), expected)


def test_corruption_matrix_of_a_perfect_predictor() -> None:
    labels = torch.arange(3 * CLASSES) % CLASSES
    torch.testing.assert_close(corruption_matrix(MATRIX[labels], labels), MATRIX)


def test_joint_loss() -> None:
    other = Z.flip(0)
    p, q = Categorical(logits=Z), Categorical(logits=other)
    expected = 0.1 * (-p.log_prob(Y) - q.log_prob(Y)) + 0.9 * (kl_divergence(p, q) + kl_divergence(q, p))
    torch.testing.assert_close(joint_loss(Z, other, Y, 0.9), expected)


def test_joint_loss_draws_both_networks() -> None:
    """∂(KL(p‖q) + KL(q‖p))/∂z = p·(log p/q − KL(p‖q)) + p − q, and the same with p and q exchanged."""
    q = P.flip(0)

    def expected(p: Tensor, q: Tensor) -> Tensor:
        ratio = (p / q).log()
        return p * (ratio - (p * ratio).sum(1, keepdim=True)) + p - q

    first = gradient(lambda z: joint_loss(z, Z.flip(0), Y, 1.0).sum())
    second = gradient(lambda z: joint_loss(Z, z, Y, 1.0).sum(), Z.flip(0))
    torch.testing.assert_close(first, expected(P, q))
    torch.testing.assert_close(second, expected(q, P))
