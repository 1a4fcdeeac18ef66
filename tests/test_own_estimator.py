"""`VRIClassifier(estimator=...)`: labels judged by a scikit-learn classifier of the user's."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import vri
from vri import VRIClassifier
from vri.estimator.own_estimator import OwnEstimator, weight_parameter

PIPE = make_pipeline(StandardScaler(), LogisticRegression(C=0.05))


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, true = load_digits(return_X_y=True)
    x, true = x[:600], true[:600]
    given = vri.noise.flip(None, torch.from_numpy(true), num_classes=10, rate=0.25, seed=0).labels.numpy()
    return x, given, true


def test_a_better_ranking_and_model_than_the_estimator_has_alone(
    digits: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    x, given, true = digits
    clf = VRIClassifier(estimator=PIPE, random_state=0).fit(x, given)
    wrong = given != true
    plain = cross_val_predict(PIPE, x, given, method="predict_proba")
    alone = average_precision_score(wrong, 1 - plain[np.arange(len(x)), given])
    assert average_precision_score(wrong, 1 - clf.label_quality_) > alone + 0.05
    assert (clf.predict(x) == true).mean() > (clone(PIPE).fit(x, given).predict(x) == true).mean() + 0.02
    named = clf.find_label_issues()["is_label_issue"].to_numpy()
    assert wrong[named].mean() > 0.8
    assert clf.n_features_in_ == 64
    assert clf.evidence_weights_ == {"estimator": 1.0}
    assert PIPE.__sklearn_is_fitted__() is False  # the user's own is not touched


@pytest.mark.parametrize(
    ("estimator", "parameter"),
    [
        (LogisticRegression(), "sample_weight"),
        (PIPE, "logisticregression__sample_weight"),
        (GridSearchCV(PIPE, {"logisticregression__C": [1]}), "logisticregression__sample_weight"),
        (KNeighborsClassifier(), None),
        (make_pipeline(StandardScaler(), KNeighborsClassifier()), None),
    ],
)
def test_how_weights_are_passed(estimator: Any, parameter: str | None) -> None:
    assert weight_parameter(estimator) == parameter


def test_soft_targets_are_weights_and_a_class_that_was_not_seen_gets_no_probability() -> None:
    x = np.array([[0.0], [1.0], [2.0], [3.0]])
    targets = np.array([[0.9, 0.1, 0], [0.4, 0.6, 0], [0.01, 0.99, 0], [0, 1, 0]])
    learned = OwnEstimator(LogisticRegression(), np.array(["a", "b", "c"])).fit(x, targets)
    by_hand = LogisticRegression().fit(x[[0, 0, 1, 1, 2, 3]], list("ababbb"), sample_weight=[0.9, 0.1, 0.4, 0.6, 1, 1])
    said = learned.predict(x)
    np.testing.assert_allclose(said[:, :2], by_hand.predict_proba(x), atol=1e-6)
    assert (said[:, 2] == 0).all()
    nearest = OwnEstimator(KNeighborsClassifier(1), np.array(["a", "b", "c"])).fit(x, targets)
    assert nearest.predict(x).argmax(1).tolist() == [0, 1, 1, 1]


def test_texts_go_to_a_pipeline_as_they_are() -> None:
    random = np.random.default_rng(0)
    words = {"sport": ["ball", "goal", "team"], "food": ["bread", "soup", "cake"]}
    true = random.choice(["sport", "food"], 120)
    texts = [" ".join(random.choice(words[k], 6)) for k in true]
    given = true.copy()
    given[:6] = np.where(true[:6] == "sport", "food", "sport")
    clf = VRIClassifier(estimator=make_pipeline(CountVectorizer(), MultinomialNB()), random_state=0).fit(texts, given)
    assert clf.find_label_issues()["is_label_issue"].to_numpy().nonzero()[0].tolist() == list(range(6))
    assert (clf.predict(texts) == true).all()
    missing: list[str | None] = [None, *given[1:].tolist()]
    frame = (
        VRIClassifier(estimator=make_pipeline(CountVectorizer(), MultinomialNB()), unlabelled="predict", random_state=0)
        .fit(pd.Series(texts, index=np.arange(120) + 5), missing)
        .find_label_issues()
    )
    assert frame.index[0] == 5
    assert frame["predicted_label"].iloc[0] == true[0]


def test_pickle_and_file(digits: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, given, _ = digits
    clf = VRIClassifier(estimator=PIPE, cross_fit=2, random_state=0).fit(x, given)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(x), clf.predict_proba(x))
    clf.save(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"belongs to a scikit-learn estimator of your own, .* pass the fitted one"):
        VRIClassifier.load(tmp_path / "c.safetensors")
    again = VRIClassifier.load(tmp_path / "c.safetensors", estimator=clf.estimator_)
    np.testing.assert_allclose(again.predict_proba(x), clf.predict_proba(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": LinearSVC()}, "estimator is a LinearSVC without predict_proba .*CalibratedClassifierCV"),
        ({"estimator": LinearRegression()}, "estimator is a LinearRegression .expected a classifier of scikit-learn"),
        ({"estimator": "forest"}, "estimator is a str .expected a classifier of scikit-learn"),
        ({"estimator": RandomForestClassifier}, r"the class RandomForestClassifier \(expected an object: write"),
        ({"estimator": PIPE, "epochs": 3}, r"epochs=3 \(expected to be left out: estimator is set\)"),
        ({"estimator": PIPE, "evidence": ["linear"]}, r"evidence=\['linear'\] \(expected to be left out"),
        ({"estimator": PIPE, "cross_fit": 0}, r"cross_fit=0 \(expected None or at least 2 with an estimator\)"),
    ],
)
def test_what_cannot_work_says_why(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VRIClassifier(**options).fit(np.zeros((4, 2)), [0, 1, 0, 1])
