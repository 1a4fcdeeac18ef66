"""The noise models against their definitions: binomial bounds, and a literal loop for instance noise."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import truncnorm  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from vri import noise
from vri.noise import NOISES, Noise, models

CLOSED = ["uniform", "flip", "pair", "instance"]
OPEN = ["open-uniform", "open-pair"]


def labels_of(num_classes: int, n: int) -> Tensor:
    """Labels with unequal class sizes: class k is about k + 1 times as large as class 0."""
    weights = torch.arange(1.0, num_classes + 1)
    return torch.multinomial(weights, n, replacement=True, generator=torch.Generator().manual_seed(99))


def images_of(n: int, d: int) -> Tensor:
    return torch.randint(0, 256, (n, d), dtype=torch.uint8, generator=torch.Generator().manual_seed(98))


def assert_matches_matrix(clean: Tensor, noisy: Tensor, matrix: Tensor) -> None:
    """Each count of true i, noisy j lies within five binomial standard deviations of its expectation."""
    for i in range(len(matrix)):
        drawn = noisy[clean == i]
        for j, p in enumerate(matrix[i].tolist()):
            count = int((drawn == j).sum())
            slack = 5 * math.sqrt(len(drawn) * p * (1 - p))  # 0 where p is 0 or 1: then it must be exact
            assert abs(count - len(drawn) * p) <= slack + 1e-9, (i, j, count, len(drawn) * p)


@pytest.mark.parametrize("name", NOISES)
def test_draws_follow_the_matrix(name: str) -> None:
    y = labels_of(5, 20_000)
    result = NOISES[name](images_of(20_000, 6), y, num_classes=5, rate=0.4, seed=3)
    assert_matches_matrix(y, result.labels, result.matrix)
    torch.testing.assert_close(result.matrix.sum(1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("name", NOISES)
def test_fields_agree_with_each_other(name: str) -> None:
    y = labels_of(4, 500)
    result = NOISES[name](images_of(500, 6), y, num_classes=4, rate=0.3, seed=1)
    assert result.labels.dtype == torch.int64
    assert result.changed.dtype == torch.bool
    assert result.matrix.dtype == torch.float64
    assert torch.equal(result.changed, result.labels != y)
    assert result.rate == int(result.changed.sum()) / 500
    assert 0 < result.rate < 0.6


def test_a_draw_never_takes_a_class_of_probability_zero() -> None:
    # Probabilities 0, 0.5, 0, 0.4999, with a sum short of 1; an edge belongs to the class above it.
    cumulative = torch.tensor([0.0, 0.5, 0.5, 0.9999], dtype=torch.float64)
    uniforms = torch.tensor([0.0, 0.4, 0.5, 0.9, 0.99995], dtype=torch.float64)
    assert models._invert(cumulative, uniforms).tolist() == [1, 1, 3, 3, 3]


def test_uniform_matrix_is_the_definition() -> None:
    result = noise.uniform(None, [0, 1, 2, 3], num_classes=4, rate=0.4)
    expected = [[0.7 if i == j else 0.1 for j in range(4)] for i in range(4)]
    torch.testing.assert_close(result.matrix, torch.tensor(expected, dtype=torch.float64))


def test_pair_matrix_is_the_definition() -> None:
    result = noise.pair(None, [0, 1, 2], num_classes=3, rate=0.25)
    expected = [[0.75, 0.25, 0.0], [0.0, 0.75, 0.25], [0.25, 0.0, 0.75]]
    assert result.matrix.tolist() == expected


def test_flip_moves_each_class_to_one_other_class_which_depends_on_the_seed_alone() -> None:
    maps = []
    for seed in range(200):
        matrix = noise.flip(None, [0], num_classes=4, rate=0.25, seed=seed).matrix
        assert torch.equal(matrix.diagonal(), torch.full((4,), 0.75, dtype=torch.float64))
        wrong = matrix - 0.75 * torch.eye(4, dtype=torch.float64)
        assert torch.equal(wrong.sort(1).values, torch.tensor([[0, 0, 0, 0.25]] * 4, dtype=torch.float64))
        maps.append(tuple(wrong.argmax(1).tolist()))
    # Every class meets each of the three others: binomial with p = 1/3, 200 trials, five standard deviations.
    for k in range(4):
        for other in set(range(4)) - {k}:
            assert abs(sum(m[k] == other for m in maps) - 200 / 3) < 5 * math.sqrt(200 * 2 / 9)
    longer = noise.flip(None, [3, 2, 1, 0] * 10, num_classes=4, rate=0.25, seed=7).matrix
    assert tuple((longer - 0.75 * torch.eye(4)).argmax(1).tolist()) == maps[7]


def open_labels(n: int) -> Tensor:
    """Labels 0 to 9, evenly, of which 8 and 9 will be out of distribution."""
    return torch.arange(n) % 10


@pytest.mark.parametrize(("name", "rate"), [("open-uniform", 0.2), ("open-uniform", 0.5), ("open-pair", 0.4)])
def test_open_set_noise_is_its_definition(name: str, rate: float) -> None:
    y = open_labels(40_000)
    result = NOISES[name](None, y, num_classes=8, rate=rate, seed=1)
    strange = y >= 8
    assert result.matrix.shape == (8, 8)
    for i in range(8):
        for j in range(8):
            if name == "open-pair":
                expected = {i: 1 - rate, (i + 1) % 8: rate}.get(j, 0.0)
            else:
                expected = 1 - rate if i == j else rate / 7
            assert float(result.matrix[i, j]) == pytest.approx(expected, abs=1e-12)
    assert_matches_matrix(y[~strange], result.labels[~strange], result.matrix)
    # the strange ones: any label, each with the same chance, and all count as changed
    assert_matches_matrix(
        torch.zeros(int(strange.sum()), dtype=torch.int64),
        result.labels[strange],
        torch.full((1, 8), 1 / 8, dtype=torch.float64),
    )
    assert result.changed[strange].all()
    assert torch.equal(result.changed, result.labels != y)
    assert abs(result.rate - (0.2 + 0.8 * rate)) < 5 * math.sqrt(0.8 * rate * (1 - rate) / 40_000)


def test_open_set_noise_at_the_ends() -> None:
    y = open_labels(1000)
    assert noise.open_set(None, y, num_classes=8, rate=0.0).rate == 0.2
    assert noise.open_set(None, y, num_classes=8, rate=1.0, kind="pair").rate == 1.0
    assert noise.open_set(None, y[y < 8], num_classes=8, rate=0.0).rate == 0.0


def test_human_labels_have_the_empirical_matrix() -> None:
    y, given = [0, 0, 0, 0, 1, 1, 3], [0, 0, 0, 2, 1, 0, 3]
    result = noise.human(None, y, num_classes=4, labels=given)
    assert result.labels.tolist() == given
    assert result.changed.nonzero().squeeze(1).tolist() == [3, 5]
    assert result.rate == 2 / 7
    assert result.matrix.tolist() == [[0.75, 0, 0.25, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert (result.name, result.asked_rate, result.seed) == ("human", None, None)


def test_human_labels_that_do_not_fit() -> None:
    message = "there are 2 human labels and 3 right ones; expected as many: pass one label per sample"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        noise.human(None, [0, 1, 1], num_classes=2, labels=[0, 1])
    message = "labels run from 0 to 2; expected 0 to 1 for num_classes=2: recode them or change num_classes"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        noise.human(None, [0, 1, 1], num_classes=2, labels=[0, 1, 2])


@pytest.mark.parametrize("name", NOISES)
def test_noise_says_where_it_comes_from(name: str) -> None:
    result = NOISES[name](images_of(50, 3), labels_of(3, 50), num_classes=3, rate=0.3, seed=8)
    assert (result.name, result.asked_rate, result.seed, result.num_classes) == (name, 0.3, 8, 3)


def literal_instance(x: Tensor, y: Tensor, num_classes: int, rate: float, seed: int) -> tuple[Tensor, Tensor]:
    """Instance noise one sample at a time and in float64: the noisy labels and the n x c distributions."""
    generator = torch.Generator().manual_seed(seed)
    n, d = x.shape
    weights = [torch.randn(d, num_classes, generator=generator).double() for _ in range(num_classes)]
    uniforms = torch.rand(n, dtype=torch.float64, generator=generator).numpy()
    q = truncnorm.ppf(uniforms, (0 - rate) / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    draws = torch.rand(n, 1, dtype=torch.float64, generator=generator).squeeze(1)
    noisy, distributions = [], []
    for i in range(n):
        own = int(y[i])
        a = [sum(float(x[i, t]) * float(weights[own][t, j]) for t in range(d)) for j in range(num_classes)]
        top = max(a[j] for j in range(num_classes) if j != own)
        e = [0.0 if j == own else math.exp(a[j] - top) for j in range(num_classes)]
        p = [1 - q[i] if j == own else q[i] * e[j] / sum(e) for j in range(num_classes)]
        reached, total = 0, p[0]
        while total <= float(draws[i]):
            reached += 1
            total += p[reached]
        noisy.append(reached)
        distributions.append(p)
    return torch.tensor(noisy), torch.tensor(distributions, dtype=torch.float64)


@pytest.mark.parametrize("scale", ["floats in [0, 1]", "raw uint8"])
@pytest.mark.parametrize("rate", [0.1, 0.45])
def test_instance_equals_the_literal_loop(scale: str, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, y = images_of(300, 12), labels_of(4, 300)
    x = raw if scale == "raw uint8" else raw.float() / 255
    noisy, distributions = literal_instance(x, y, 4, rate, seed=5)
    by_class = torch.stack([distributions[y == k].mean(0) for k in range(4)])
    for chunk_elements in (2**24, 100):  # all in one chunk, and eight samples a chunk
        monkeypatch.setattr(models, "_CHUNK_ELEMENTS", chunk_elements)
        result = noise.instance(x.reshape(300, 3, 2, 2), y, num_classes=4, rate=rate, seed=5)
        assert int((result.labels != noisy).sum()) <= 1  # a draw next to a boundary may fall on its other side
        torch.testing.assert_close(result.matrix, by_class, rtol=0, atol=1e-5)


def test_instance_per_sample_distributions_equal_the_literal_loop() -> None:
    x, y = images_of(100, 12).float() / 255, labels_of(4, 100)
    _, distributions = literal_instance(x, y, 4, 0.3, seed=2)
    generator = torch.Generator().manual_seed(2)
    wrong = models._wrong_class_shares(x, y, 4, generator)
    q = models._flip_rates(100, 0.3, generator)
    torch.testing.assert_close(models._mix(wrong, y, q), distributions, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [0.02, 0.2, 0.5, 0.97])
def test_flip_rates_have_the_moments_of_a_truncated_normal(rate: float) -> None:
    q = models._flip_rates(20_000, rate, torch.Generator().manual_seed(0))
    assert float(q.min()) >= 0
    assert float(q.max()) <= 1
    oracle = truncnorm((0 - rate) / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    assert abs(float(q.mean()) - oracle.mean()) < 5 * oracle.std() / math.sqrt(20_000)
    assert float(q.std()) == pytest.approx(oracle.std(), rel=0.03)


def test_instance_noise_depends_on_the_input() -> None:
    # Eight inputs of one class, 500 times each: with raw pixels each has one wrong class it always takes.
    x = images_of(8, 50).repeat_interleave(500, 0)
    result = noise.instance(x, torch.zeros(4000, dtype=torch.int64), num_classes=6, rate=0.5, seed=0)
    wrong_classes = [set(part.tolist()) - {0} for part in result.labels.reshape(8, 500)]
    assert [len(classes) for classes in wrong_classes] == [1] * 8
    assert len(set.union(*wrong_classes)) > 1  # noise that looks at the class alone would have one


def test_instance_keeps_its_weights_when_samples_or_classes_are_left_out() -> None:
    x, y = images_of(2000, 20), labels_of(3, 2000)
    keep = y == 2
    # One wrong class a sample (raw pixels), so where both draws are wrong they must agree.
    whole = noise.instance(x, y, num_classes=3, rate=0.9, seed=4)
    part = noise.instance(x[keep], y[keep], num_classes=3, rate=0.9, seed=4)
    both = whole.changed[keep] & part.changed
    assert int(both.sum()) > 500
    agree = (whole.labels[keep] == part.labels)[both].double().mean()
    assert agree > 0.98
    assert part.matrix[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("name", NOISES)
def test_rate_zero_changes_nothing(name: str) -> None:
    y = labels_of(3, 300)
    result = NOISES[name](images_of(300, 5), y, num_classes=3, rate=0.0, seed=2)
    assert torch.equal(result.labels, y)
    assert result.rate == 0.0
    assert torch.equal(result.matrix, torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("name", ["flip", "pair", "instance", *OPEN])
def test_rate_one_changes_everything(name: str) -> None:
    result = NOISES[name](images_of(300, 5), labels_of(3, 300), num_classes=3, rate=1, seed=2)
    assert result.rate == 1.0
    assert result.matrix.diagonal().tolist() == [0, 0, 0]


def test_uniform_rate_one_forgets_the_label() -> None:
    y = torch.zeros(3000, dtype=torch.int64)
    result = noise.uniform(None, y, num_classes=3, rate=1.0, seed=2)
    assert abs(result.rate - 2 / 3) < 5 * math.sqrt(2 / 9 / 3000)
    assert_matches_matrix(y, result.labels, torch.full((3, 3), 1 / 3, dtype=torch.float64))


def test_uniform_with_one_class_changes_nothing() -> None:
    assert noise.uniform(None, [0, 0], num_classes=1, rate=1.0).labels.tolist() == [0, 0]


@pytest.mark.parametrize("name", NOISES)
def test_seed_decides_and_global_rng_and_arguments_are_untouched(name: str) -> None:
    x, y = images_of(400, 8), labels_of(6, 400)
    x_before, y_before, state = x.clone(), y.clone(), torch.get_rng_state()

    def run(seed: int) -> Noise:
        result: Noise = NOISES[name](x, y, num_classes=6, rate=0.5, seed=seed)
        return result

    first, again, other = run(1), run(1), run(2)
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.matrix, again.matrix)
    assert not torch.equal(first.labels, other.labels)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, x_before)
    assert torch.equal(y, y_before)


@pytest.mark.parametrize("name", NOISES)
def test_tensors_arrays_and_lists_give_the_same(name: str) -> None:
    x, y = images_of(60, 4), labels_of(3, 60)
    read_only = x.numpy().copy()
    read_only.flags.writeable = False
    expected = NOISES[name](x, y, num_classes=3, rate=0.5).labels
    for xs, ys in ((read_only, y.numpy().astype(np.uint8)), (x.tolist(), y.tolist()), (x.float(), y.int())):
        assert torch.equal(NOISES[name](xs, ys, num_classes=3, rate=0.5).labels, expected)


GOOD: dict[str, Any] = {"x": torch.zeros(3, 2), "y": [0, 1, 2], "num_classes": 3, "rate": 0.5}
CLOSED_ERRORS = [
    (
        {"y": [0, 1, 3]},
        "labels run from 0 to 3; expected 0 to 2 for num_classes=3: recode them or change num_classes",
    ),
    (
        {"y": [-1, 1, 2]},
        "labels run from -1 to 2; expected 0 to 2 for num_classes=3: recode them or change num_classes",
    ),
]
OPEN_ERRORS = [
    ({"y": [-1, 1, 5]}, "labels run from -1 to 5; expected 0 or more: recode them"),
    ({"kind": "flip"}, "kind is 'flip'; expected 'uniform' or 'pair': choose one of them"),
]
SHARED_ERRORS = [
    ({"rate": 1.5}, "rate is 1.5; expected 0 to 1: pass a share, such as 0.4 for 40 %"),
    ({"rate": -0.1}, "rate is -0.1; expected 0 to 1: pass a share, such as 0.4 for 40 %"),
    ({"rate": math.nan}, "rate is nan; expected 0 to 1: pass a share, such as 0.4 for 40 %"),
    (
        {"y": torch.tensor([0.0, 1.0, 2.0])},
        "labels are float32; expected integers: convert them to class indices first",
    ),
    (
        {"y": [[0, 1, 2]]},
        "labels have shape (1, 3); expected one axis: pass one class index per sample",
    ),
    ({"y": []}, "labels are empty; expected at least one label"),
    ({"y": [0, 1]}, "x has 3 samples and y 2; expected as many: pass one label per sample"),
]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        *((name, *error) for name in NOISES for error in SHARED_ERRORS),
        *((name, *error) for name in CLOSED for error in CLOSED_ERRORS),
        *((name, *error) for name in OPEN for error in OPEN_ERRORS),
    ],
)
def test_errors_of_the_models(name: str, wrong: dict[str, Any], message: str) -> None:
    arguments = GOOD | wrong
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NOISES[name](arguments.pop("x"), arguments.pop("y"), **arguments)


@pytest.mark.parametrize(("name", "fewest"), [("uniform", 1), *((name, 2) for name in NOISES if name != "uniform")])
def test_too_few_classes(name: str, fewest: int) -> None:
    message = f"num_classes is {fewest - 1}; expected at least {fewest}: pass the number of classes"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NOISES[name](torch.zeros(1, 2), [0], num_classes=fewest - 1, rate=0.5)


def test_instance_needs_inputs() -> None:
    message = "x is None; instance noise expected the inputs: pass the images the labels belong to"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        noise.instance(None, [0, 1], num_classes=2, rate=0.5)


def test_instance_refuses_inputs_that_are_not_finite() -> None:
    message = "x holds NaN or infinite values; expected finite inputs: clean or rescale them"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        noise.instance(torch.tensor([[0.0], [math.nan]]), [0, 1], num_classes=2, rate=0.5)
