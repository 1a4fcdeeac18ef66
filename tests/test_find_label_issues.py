"""`vri.find_label_issues`: labels judged by probabilities that the user brings."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import average_precision_score

import vri
from vri.estimator import issues, noise_model
from vri.estimator.noise_model import NoiseModel
from vri.estimator.uniform_noise import UniformNoise


def made(samples: int, classes: int, rate: float = 0.15, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Given labels, probabilities of a fair classifier, and which labels are wrong."""
    random = np.random.default_rng(seed)
    true = random.integers(0, classes, samples)
    given = np.where(random.random(samples) < rate, random.integers(0, classes, samples), true)
    logits = random.normal(size=(samples, classes)) * 1.5
    logits[np.arange(samples), true] += 2 + np.log(classes)
    raised = np.exp(logits)
    return given, raised / raised.sum(1, keepdims=True), given != true


def test_wrong_labels_are_found_and_counted() -> None:
    labels, probabilities, wrong = made(3000, 6)
    frame = vri.find_label_issues(labels, probabilities)
    named = frame["is_label_issue"].to_numpy()
    assert wrong[named].mean() > 0.8
    assert named[wrong].mean() > 0.8
    assert frame.attrs["noise_rate"] == pytest.approx(wrong.mean(), abs=0.03)
    low, high = frame.attrs["noise_rate_interval"]
    assert low < wrong.mean() < high
    # the number of named ones that are right is the sum of their probabilities
    assert frame["label_quality"][named].sum() == pytest.approx((~wrong[named]).sum(), abs=40)
    judgement = noise_model.judge(probabilities, labels)
    np.testing.assert_allclose(frame["label_quality"], judgement.quality)


def test_the_second_and_third_class_never_repeat_a_label_that_is_named() -> None:
    labels, probabilities, _ = made(2000, 6)
    frame = vri.find_label_issues(labels, probabilities)
    named = frame[frame["is_label_issue"]]
    columns = ["predicted_label", "second_label", "third_label"]
    assert not (named[columns].to_numpy() == named[["given_label"]].to_numpy()).any()
    assert all(len(set(row)) == 3 for row in frame[columns].to_numpy().tolist())
    chances = frame[["predicted_probability", "second_probability", "third_probability"]].to_numpy()
    assert (np.diff(chances, axis=1) <= 0).all()
    others = frame[~frame["is_label_issue"]]
    best = noise_model.judge(probabilities, labels).beliefs.argmax(1)
    np.testing.assert_array_equal(others["predicted_label"], best[others.index])


def test_two_classes_have_no_third() -> None:
    labels, probabilities, _ = made(500, 2)
    frame = vri.find_label_issues(labels, probabilities)
    named = frame["is_label_issue"]
    assert named.any()
    assert frame["third_label"].isna().all()
    np.testing.assert_array_equal(frame["second_label"].isna(), named)
    np.testing.assert_array_equal(frame["predicted_label"][named], 1 - labels[named])


@pytest.mark.parametrize("classes", [6, 40])
def test_in_parts_it_is_nearly_the_same(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, probabilities, _wrong = made(4000, classes)
    trusted = np.arange(4000) % 10 == 0
    labels[3] = -1
    frame = pd.Series(labels, dtype=float).replace(-1, np.nan)
    together = issues.judge_labels(frame, probabilities, trusted=trusted, unlabelled="predict")
    monkeypatch.setattr(issues, "_CELLS", 1500 * classes)  # fitted to 1,500 samples, read in three parts
    parts = issues.judge_labels(frame, probabilities, trusted=trusted, unlabelled="predict")
    assert parts.noise_rate == pytest.approx(together.noise_rate, abs=0.02)
    assert np.isnan(parts.quality[3])
    assert (parts.quality[trusted & (np.arange(4000) != 3)] == 1).all()
    assert parts.likely[3, 0] == probabilities[3].argmax()
    assert np.nanmean(np.abs(parts.quality - together.quality)) < 0.02
    assert parts.transitions is not None
    assert together.transitions is not None
    np.testing.assert_allclose(parts.transitions, together.transitions, atol=0.1)
    np.testing.assert_allclose(parts.outlier, together.outlier)


def test_thousands_of_classes_without_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, probabilities, wrong = made(2000, 60)
    monkeypatch.setattr(issues, "_CELLS", 30_000)
    monkeypatch.setattr(issues, "_MANY", 59)
    found = issues.judge_labels(labels, probabilities.astype(np.float32))
    assert found.transitions is None
    assert average_precision_score(wrong, 1 - found.quality) > 0.9
    assert found.noise_rate == pytest.approx(wrong.mean(), abs=0.03)


def test_power_and_bias_end_at_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """One Newton step a round ends where a general optimizer finds nothing better, for the beliefs of the end."""
    monkeypatch.setattr(noise_model, "_ROUNDS", 200)
    monkeypatch.setattr(noise_model, "_ENOUGH", -np.inf)
    generator = np.random.default_rng(0)
    for count, classes in ((60, 2), (500, 3), (400, 12)):
        true = generator.integers(0, classes, count)
        logits = 1.2 * generator.normal(size=(count, classes)) + 2 * np.eye(classes)[true]
        logits[:, 0] += 1  # a class that is overrated
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        given = np.where(generator.random(count) < 0.2, (true + 1) % classes, true)
        model = NoiseModel("by class").fit(probabilities, given)
        beliefs, logs = model.posterior(probabilities, given)[0], np.log(probabilities)

        def loss(values: np.ndarray) -> float:
            scores = np.exp(values[0]) * logs + values[1:]  # noqa: B023
            fit = (beliefs * (scores - np.log(np.exp(scores).sum(1, keepdims=True)))).sum()  # noqa: B023
            unusual = values[0] - np.log(2.0)
            return float(max(5.0, 0.1 * len(logs)) * unusual**2 + 5.0 * values[1:] @ values[1:] - fit)  # noqa: B023

        end = np.append(np.log(model.power), model.bias)
        best = minimize(loss, end, method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(end, best.x, atol=1e-4)
        assert abs(model.bias).max() > 0.05


def test_uniform_noise_is_the_noise_model_without_its_matrix() -> None:
    labels, probabilities, _ = made(3000, 12)
    small, large = UniformNoise.fit(probabilities, labels), NoiseModel("uniform").fit(probabilities, labels)
    assert small.power == pytest.approx(large.power, rel=0.05)
    assert small.rate == pytest.approx(1 - large.transitions[0, 0], abs=0.003)
    same = NoiseModel("uniform", small.power, np.zeros(12))
    same.transitions = np.full((12, 12), small.rate / 11)
    np.fill_diagonal(same.transitions, 1 - small.rate)
    beliefs, likelihood = same.posterior(probabilities, labels)
    np.testing.assert_allclose(small.posterior(probabilities, labels)[0], beliefs, atol=1e-9)
    assert small.posterior(probabilities, labels)[1] == pytest.approx(likelihood)


NAMES = np.array(["cat", "dog", "emu", "fox"])


@pytest.mark.parametrize(
    ("labels", "probabilities", "options"),
    [
        (lambda y: NAMES[y], lambda p: p, {}),
        (lambda y: list(NAMES[y]), lambda p: p.tolist(), {}),
        (lambda y: NAMES[::-1][y], lambda p: p, {"classes": NAMES[::-1].tolist()}),
        (lambda y: NAMES[::-1][y], lambda p: pd.DataFrame(p, columns=NAMES[::-1]), {}),
        (lambda y: torch.from_numpy(y), lambda p: torch.from_numpy(p).float(), {}),
        (lambda y: y.astype(float), lambda p: p.astype(np.float32), {}),
        (lambda y: y + 1, lambda p: p, {}),
        (lambda y: pd.Categorical(NAMES[y]), lambda p: p, {}),
    ],
)
def test_names_and_kinds(labels: Any, probabilities: Any, options: dict[str, Any]) -> None:
    y, p, _ = made(400, 4)
    expected = vri.find_label_issues(y, p)
    frame = vri.find_label_issues(labels(y), probabilities(p), **options)
    np.testing.assert_allclose(frame["label_quality"], expected["label_quality"], atol=1e-4)
    assert frame["given_label"].astype(str).tolist() == [str(v) for v in np.asarray(labels(y)).tolist()] or (
        frame["given_label"].tolist() == y.tolist()
    )


def test_the_index_is_kept_and_missing_labels_are_predicted() -> None:
    y, p, _ = made(400, 4)
    labels = pd.Series(NAMES[y], index=[f"row {i}" for i in range(400)], dtype=object)
    labels.iloc[7] = None
    frame = vri.find_label_issues(labels, p, unlabelled="predict", classes=NAMES.tolist())
    assert frame.index.equals(labels.index)
    odd = frame.loc["row 7"]
    assert pd.isna(odd["given_label"])
    assert np.isnan(odd["label_quality"])
    assert not odd["is_label_issue"]
    assert odd["predicted_label"] == NAMES[p[7].argmax()]
    assert odd["predicted_probability"] == pytest.approx(p[7].max())


def test_trusted_labels_and_a_threshold() -> None:
    y, p, _ = made(400, 4)
    worst = vri.find_label_issues(y, p)["label_quality"].idxmin()
    frame = vri.find_label_issues(y, p, trusted=np.arange(400) == worst, threshold=0.9)
    assert not frame["is_label_issue"][worst]
    assert frame["label_quality"][worst] == 1
    np.testing.assert_array_equal(frame["is_label_issue"], frame["label_quality"] < 0.9)
    assert frame.attrs["threshold"] == 0.9


def _broken(row: int, value: float) -> np.ndarray:
    p = np.full((4, 2), 0.5)
    p[row, 0] = value
    return p


@pytest.mark.parametrize(
    ("labels", "probabilities", "options", "message"),
    [
        ([0, 1, 0, 1], np.zeros(4), {}, r"pred_probs is an array of float64 with shape \(4,\); expected probabilities"),
        ([0, 1, 0], _broken(0, 0.5), {}, "pred_probs has 4 rows and labels 3; expected as many"),
        ([0, 1, 0, 1], _broken(2, 4.0), {}, "row 2 of pred_probs sums to 4.5; .* apply softmax to logits first"),
        ([0, 1, 0, 1], _broken(1, -0.5), {}, "row 1 of pred_probs has the value -0.5"),
        ([0, 1, 0, 1], _broken(3, np.nan), {}, "row 3 of pred_probs has the value nan"),
        ([0, 1, 2, 1], _broken(0, 0.5), {}, r"labels has 3 different ones \(0, 1, 2\) and pred_probs 2 columns"),
        (["a", "a", "a", "a"], _broken(0, 0.5), {}, r"labels has 1 different ones \('a'\) .* pass classes="),
        (["a", "b", "c", "a"], _broken(0, 0.5), {"classes": ["a", "b"]}, "labels has 'c', not among the classes"),
        ([0, 1, 0, 1], _broken(0, 0.5), {"classes": [0, 1, 2]}, "classes has 3 names for 2 columns"),
        ([0, 1, 0, 1], _broken(0, 0.5), {"classes": [1, 1]}, "classes has 1 more than once"),
        ([0, None, 0, 1], _broken(0, 0.5), {}, "labels has 1 missing labels .* the first at position 1; .*'predict'"),
        ([None] * 4, _broken(0, 0.5), {"unlabelled": "predict"}, "labels has no label"),
        ([0, 1, 0, 1], _broken(0, 0.5), {"unlabelled": "x"}, r"unlabelled='x' \(expected 'error' or 'predict'\)"),
        ([0, 1, 0, 1], _broken(0, 0.5), {"precision": 2}, r"precision=2 \(expected between 0 and 1\)"),
        ([0, 1, 0, 1], _broken(0, 0.5), {"threshold": 50}, "threshold=50; expected a label quality from 0 to 1"),
        ([0, 1, 0, 1], _broken(0, 0.5), {"trusted": [True]}, "trusted has shape"),
    ],
)
def test_what_cannot_work_says_why(labels: Any, probabilities: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vri.find_label_issues(labels, probabilities, **options)
