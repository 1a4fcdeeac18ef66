"""Regression on the classes in closed form, beside scikit-learn's kernel ridge regression and plain refits."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import average_precision_score

from vri import VRIClassifier
from vri.estimator import ensemble, evidence, kernel
from vri.estimator.kernel import Kernel, shared


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)
    return x.astype(np.float32), np.eye(10)[y]


def test_values_are_those_of_kernel_ridge_regression(digits):
    x, targets = digits
    fitted = Kernel(100.0, ridge=0.3, slope=5.0).fit(x[:400], targets[:400], 0)
    sizes = targets[:400].mean(0)
    by_sklearn = KernelRidge(alpha=0.3, kernel="rbf", gamma=1 / 100).fit(x[:400], targets[:400] - sizes)
    logits = 5 * by_sklearn.predict(x[400:]) + np.log(sizes)
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(fitted.predict(x[400:]), expected, atol=1e-4)


def test_settings_are_the_likeliest_with_targets_left_out_one_by_one(digits, monkeypatch):
    x, targets = digits[0][:60], digits[1][:60]
    for name, value in (("_WIDTHS", (1.0,)), ("_SLOPES", (4.0,))):
        monkeypatch.setattr(kernel, name, value)
    found = Kernel().fit(x, targets, 0)
    likelihoods = []
    for ridge in kernel._RIDGES:
        said = np.zeros_like(targets)
        for row in range(60):
            rest = np.arange(60) != row
            by_sklearn = KernelRidge(alpha=ridge, kernel="rbf", gamma=1 / found.width)
            values = by_sklearn.fit(x[rest], (targets - found.sizes)[rest]).predict(x[[row]])
            said[row] = found._probabilities(values, 4.0)
        likelihoods.append((targets * np.log(said + 1e-3)).sum())
    assert found.ridge == kernel._RIDGES[int(np.argmax(likelihoods))]


def test_shared_sums_give_what_refits_give(digits, monkeypatch):
    x, targets = digits[0][:600], digits[1][:600]
    monkeypatch.setattr(kernel, "_MOST", 150)
    folds = evidence.folds_of(targets.argmax(1), 3, 0)
    fit = shared(x, folds, seed=5)
    softer = 0.8 * targets + 0.02
    for wanted in (targets, softer):  # the sums serve other targets as well
        for number, (rows, held) in enumerate(folds):
            said = fit(rows, held, wanted, number)
            again = Kernel()
            again._begin(x, targets, 5)  # the same centres and settings
            again.sizes = wanted[rows].mean(0)
            near = again._near(x[rows])
            again._solve(near.T @ near, near.T @ (wanted[rows] - again.sizes))
            off = np.abs(said - again.predict(x[held])).mean()  # sums in single precision
            every = np.concatenate([near, again._near(x[held])])
            again._solve(every.T @ every, every.T @ (wanted - again.sizes)[np.r_[rows, held]])
            seen = np.abs(said - again.predict(x[held])).mean()
            assert off < 0.2 * seen, (off, seen)  # far from one that has seen what it is asked


def test_samples_that_are_all_the_same_are_no_error():
    x, targets = np.ones((50, 3), np.float32), np.eye(2)[np.arange(50) % 2]
    np.testing.assert_allclose(Kernel().fit(x, targets, 0).predict(x), 0.5, atol=0.01)


def test_large_embeddings_are_judged_in_closed_form(monkeypatch):
    x, true = load_digits(return_X_y=True)
    given = np.where(np.random.default_rng(0).random(len(true)) < 0.2, (true + 1) % 10, true)
    for name, value in (("LARGE", 1000), ("_WIDE", 60), ("_SHARED", 1000)):
        monkeypatch.setattr(ensemble, name, value)
    clf = VRIClassifier(random_state=0).fit(x, given)
    assert set(clf.evidence_weights_) <= {"gaussian", "kernel"}
    assert average_precision_score(given != true, 1 - clf.label_quality_) > 0.97
    assert (clf.predict(x) == true).mean() > 0.97


def test_a_model_of_the_noise_from_some_of_the_labels(monkeypatch):
    from vri.estimator import noise_model

    true = load_breast_cancer(return_X_y=True)[1]
    given = np.where(np.random.default_rng(0).random(len(true)) < 0.2, 1 - true, true)
    p = np.where(true[:, None] == np.arange(2), 0.75, 0.25)
    whole = noise_model.judge(p, given)
    monkeypatch.setattr(noise_model, "_ENOUGH_LABELS", 300)
    part = noise_model.judge(p, given)
    assert part.quality.shape == whole.quality.shape
    assert part.noise_rate == pytest.approx(whole.noise_rate, abs=0.04)
