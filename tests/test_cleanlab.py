"""Our scores go into cleanlab as they are, and its classifiers into ours."""

import numpy as np
import pytest
import torch
from cleanlab.classification import CleanLearning
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from sklearn.datasets import make_blobs

from vri import VRIClassifier, noise

QUICK = {"epochs": 6, "batch_size": 50, "random_state": 0}


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, true = make_blobs(300, n_features=4, centers=3, cluster_std=0.8, random_state=0)
    given = noise.flip(None, torch.from_numpy(true), num_classes=3, rate=0.2, seed=0).labels.numpy()
    return x, given, true


def test_probabilities_go_into_find_label_issues(blobs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    x, given, true = blobs
    clf = VRIClassifier(cross_fit=2, **QUICK).fit(x, given)
    wrong = find_label_issues(given, clf.out_of_sample_proba_)
    assert (given != true)[wrong].mean() > 0.8
    quality = get_label_quality_scores(given, clf.out_of_sample_proba_)
    assert quality[given != true].mean() < quality[given == true].mean() - 0.3


def test_the_frame_goes_into_clean_learning(blobs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    x, given, true = blobs
    found = VRIClassifier(**QUICK).fit(x, given).find_label_issues()
    model = CleanLearning(VRIClassifier(method="cross-entropy", **QUICK)).fit(x, given, label_issues=found)
    # it has left out the very samples that we named
    used = model.get_label_issues()
    np.testing.assert_array_equal(used["is_label_issue"], found["is_label_issue"])
    np.testing.assert_array_equal(used["label_quality"], found["label_quality"])
    assert (model.predict(x) == true).mean() > 0.9


def test_the_classifier_works_inside_clean_learning(blobs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    x, given, true = blobs
    found = CleanLearning(VRIClassifier(**QUICK), cv_n_folds=2, seed=0).find_label_issues(x, given)
    assert (given != true)[found["is_label_issue"].to_numpy()].mean() > 0.8
