"""Linear discriminant analysis on soft targets."""

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from vri import VRIClassifier
from vri.estimator.discriminant import LinearDiscriminant, discriminant


def blobs(samples: int, columns: int, classes: int, apart: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, samples)
    mixing = rng.normal(size=(columns, columns)) / np.sqrt(columns)
    x = (rng.normal(size=(samples, columns)) + apart * rng.normal(size=(classes, columns))[y]) @ mixing
    return (x / x.std(0)).astype(np.float32), y


@pytest.mark.parametrize("shrinkage", [0.1, 0.8])
def test_hard_targets_give_scikit_learns_discriminant(shrinkage: float) -> None:
    x, y = blobs(300, 6, 3, 0.8)
    coefficients, intercept = discriminant(x, np.eye(3)[y], shrinkage)
    found = x @ coefficients + intercept
    expected = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(x, y).decision_function(x)
    found, expected = (each - each.mean(1, keepdims=True) for each in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_doubtful_label_counts_as_a_sample_of_each_class() -> None:
    x, y = blobs(60, 4, 3, 0.8)
    targets = np.eye(3)[y]
    targets[:20] = [0.5, 0.25, 0.25]
    copies, labels = np.repeat(x, 4, axis=0), np.repeat(y, 4)
    labels[:80] = [0, 0, 1, 2] * 20
    for found, expected in zip(
        discriminant(x, targets, 0.3), discriminant(copies, np.eye(3)[labels], 0.3), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_its_probabilities_are_no_surer_than_right() -> None:
    """With more columns than the means have to be told apart in, plain discriminants are far too sure."""
    x, y = blobs(1200, 200, 4, 0.12)
    member = LinearDiscriminant().fit(x[:800], np.eye(4)[y[:800]], 0)
    said = member.predict(x[800:])
    right = said.argmax(1) == y[800:]
    assert abs(said.max(1).mean() - right.mean()) < 0.08
    assert member.again().factor == member.factor


def test_wide_embeddings_are_judged_by_it() -> None:
    x, y = blobs(600, 500, 3, 0.5)
    given = y.copy()
    wrong = np.random.default_rng(1).permutation(600)[:60]
    given[wrong] = (given[wrong] + 1) % 3
    model = VRIClassifier(evidence=["gaussian"], random_state=0).fit(x, given)
    worst = np.argsort(model.label_quality_)[:60]
    assert np.isin(worst, wrong).mean() > 0.9
    assert (model.predict(x) == y).mean() > 0.95
