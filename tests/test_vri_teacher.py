"""VRI with a teacher: corrected labels by hand, VRI's own step on them, the teacher, and the matrix of the noise."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vri import VRI, train
from vri.methods.vri_teacher import VRITeacher

CLASSES, COUNT, LR = 3, 12, 0.1
X, CLEAN_X = torch.randn(2, COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y, CLEAN_Y = torch.arange(COUNT) % CLASSES, (torch.arange(COUNT) + 1) % CLASSES
MATRIX = torch.tensor([[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]], dtype=torch.float64)
SMALL: dict[str, Any] = {"hidden": (8,), "label_dim": 4, "initial_mean": 2.0, "meta_every": 1}


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def build(kind: type[VRI] = VRITeacher, net: nn.Module | None = None, **options: Any) -> Any:
    net = net or network()
    return kind(net, CLASSES, torch.optim.SGD(net.parameters(), lr=LR), **{**SMALL, **options})


def teacher(momentum: float = 0.75, **options: Any) -> VRITeacher:
    """One whose average is another network than the one that is trained, with a known matrix and uneven classes."""
    method: VRITeacher = build(momentum=momentum, **options)
    with torch.no_grad():
        for p in method.average.parameters():
            p.mul_(2)
    method.joint = torch.tensor([[0.5], [0.3], [0.2]], dtype=torch.float64) * MATRIX
    return method


def test_a_step_is_vris_on_labels_corrected_by_hand() -> None:
    method, plain = teacher(), build(VRI)
    averaged, before = copy.deepcopy(method.average.network), method.joint.clone()
    p = averaged(X).softmax(1).detach()
    q = torch.stack([p[n] * MATRIX[:, y] for n, y in enumerate(Y)])
    q /= q.sum(1, keepdim=True)
    torch.testing.assert_close(method.correct_labels(X, Y), q, atol=1e-5, rtol=0)
    # soft labels that are certain are hard labels
    torch.testing.assert_close(method.correct_labels(X, F.one_hot(Y, CLASSES).double()), method.correct_labels(X, Y))
    q = method.correct_labels(X, Y)
    found, expected = method.step((X, Y), (CLEAN_X, CLEAN_Y)), plain.step((X, q), (CLEAN_X, CLEAN_Y))
    assert found.pop("labels_right") == pytest.approx(before.trace().item())
    assert found == pytest.approx(expected)
    for name in ("model", "meta_network", "prior_network"):
        torch.testing.assert_close(getattr(method, name).state_dict(), getattr(plain, name).state_dict())
    # the counts: every sample in every class as q says, in the column of its noisy label
    counted = torch.stack([q[j == Y].sum(0) for j in range(CLASSES)], dim=1) / COUNT
    torch.testing.assert_close(method.joint, 0.75 * before + 0.25 * counted)
    assert method.joint.sum().item() == pytest.approx(1)


def test_with_a_strong_view_the_teacher_looks_at_the_weak_one() -> None:
    method, plain = teacher(strong_view=True), build(VRI)
    strong = X + 0.5
    q = method.correct_labels(X, Y)
    assert not torch.allclose(q, method.correct_labels(strong, Y), atol=1e-3)
    found, expected = method.step(((X, strong), Y), (CLEAN_X, CLEAN_Y)), plain.step((strong, q), (CLEAN_X, CLEAN_Y))
    assert found["loss"] == pytest.approx(expected["loss"])
    torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict())
    assert method.warm_up(((X, strong), Y))["loss"] == pytest.approx(plain.warm_up((strong, Y))["loss"])
    torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict())


def test_the_loop_provides_the_views_that_it_asks_for() -> None:
    seen: list[torch.Tensor] = []

    class Noting(VRITeacher):
        def correct_labels(self, inputs: Any, labels: torch.Tensor) -> torch.Tensor:
            seen.append(inputs)
            return super().correct_labels(inputs, labels)

    for strong in (False, True):
        seen.clear()
        method = build(Noting, strong_view=strong)
        looked: list[torch.Tensor] = []
        method.model.register_forward_pre_hook(lambda _, inputs, looked=looked: looked.append(inputs[0]))
        train(
            method,
            (X, Y),
            (CLEAN_X, CLEAN_Y),
            epochs=1,
            batch_size=COUNT,
            progress=False,
            transform=lambda x, seed: x + 1,
            strong_transform=lambda x, seed: x + 5,
        )
        torch.testing.assert_close(seen[0].sort(0).values, (X + 1).sort(0).values)
        expected = X + 5 if strong else X + 1
        assert any(torch.equal(each.sort(0).values, expected.sort(0).values) for each in looked)


def test_a_matrix_without_noise_is_vri_itself() -> None:
    method, plain = build(momentum=0.0), build(VRI)
    method.joint = torch.eye(CLASSES, dtype=torch.float64) / CLASSES
    found, expected = (one.step((X, Y), (CLEAN_X, CLEAN_Y)) for one in (method, plain))
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict(), atol=1e-5, rtol=0)


def test_the_teacher_is_the_average_of_the_weights() -> None:
    method = build(decay=0.15)
    expected = copy.deepcopy(method.model.state_dict())
    kinds = [method.warm_up, lambda batch: method.step(batch, (CLEAN_X, CLEAN_Y)), method.warm_up]
    for run, kept in zip(kinds, (1 / 10, 0.15, 0.15), strict=True):
        run((X, Y))
        expected = {n: kept * expected[n] + (1 - kept) * p for n, p in method.model.state_dict().items()}
        torch.testing.assert_close(method.average.network.state_dict(), expected)


def test_finds_the_matrix_of_the_noise_and_learns_the_right_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(1500) % CLASSES
    x = (torch.randn(1500, 4, generator=generator) + 4 * F.one_hot(true, 4)).double()
    noisy = torch.multinomial(MATRIX[true], 1, generator=generator).squeeze(1)
    method = build()
    history = train(
        method, (x, noisy), (x[:60], true[:60]), test_set=(x, true), epochs=15, batch_size=50, progress=False
    )
    torch.testing.assert_close(method.matrix, MATRIX, atol=0.08, rtol=0)
    assert history[-1]["labels_right"] == pytest.approx((noisy == true).double().mean().item(), abs=0.05)
    assert history[-1]["test_accuracy"] > 0.98


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"decay=1.0 .*; momentum=-1 "):
        build(decay=1.0, momentum=-1)
