"""Missing labels, the frame of issues, and errors at the border of `VRIClassifier`."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_blobs
from torch import nn

from vri import VRIClassifier


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    x, y = make_blobs(150, n_features=4, centers=3, cluster_std=0.8, random_state=0)
    return x, y


@pytest.mark.parametrize(
    "labels",
    [
        lambda y: np.where(np.arange(150) < 10, np.nan, y),
        lambda y: [None if i < 10 else str(k) for i, k in enumerate(y)],
        lambda y: pd.Series(y, dtype="Int64").mask(np.arange(150) < 10),
        lambda y: pd.Series([None if i < 10 else "abc"[k] for i, k in enumerate(y)], dtype="category"),
    ],
)
@pytest.mark.parametrize("options", [{"evidence": "linear"}, {"epochs": 4, "cross_fit": 0}])
def test_missing_labels_are_refused_or_predicted(
    blobs: tuple[np.ndarray, np.ndarray], labels: Any, options: dict[str, Any]
) -> None:
    x, y = blobs
    given = labels(y)
    with pytest.raises(ValueError, match=r"^y has 10 missing labels .*the first at position 0; .*unlabelled='predict'"):
        VRIClassifier(**options).fit(x, given)
    clf = VRIClassifier(unlabelled="predict", random_state=0, **options).fit(x, given)
    assert len(clf.classes_) == 3
    assert not isinstance(clf.classes_.tolist()[0], float)  # whole numbers are whole again
    frame = clf.find_label_issues()
    none = np.arange(150) < 10
    np.testing.assert_array_equal(frame["given_label"].isna(), none)
    np.testing.assert_array_equal(np.isnan(clf.label_quality_), none)
    assert not frame["is_label_issue"][none].any()
    np.testing.assert_array_equal(frame["predicted_label"][none], clf.predict(x[none]))
    np.testing.assert_allclose(frame["predicted_probability"][none], clf.predict_proba(x[none]).max(1))
    assert ((frame["outlier_score"] >= 0) & (frame["outlier_score"] <= 1)).all()
    assert all(len(values) == 150 for values in clf.evidence_.values())
    # the others are judged as if these were not there
    alone = VRIClassifier(random_state=0, **options).fit(x[10:], np.asarray(list(given)[10:]))
    np.testing.assert_allclose(clf.label_quality_[10:], alone.label_quality_, atol=1e-6)
    if "evidence" in options:
        assert (clf.fold_[:10] == -1).all()
        assert (clf.fold_[10:] >= 0).all()


def test_a_trusted_sample_has_a_label(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = blobs
    labels = np.where(np.arange(150) == 7, np.nan, y)
    with pytest.raises(ValueError, match=r"^sample 7 is trusted, but has no label"):
        VRIClassifier(unlabelled="predict").fit(x, labels, trusted=np.arange(150) == 7)


def test_the_index_and_a_threshold_of_ones_own(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = blobs
    given = np.where(np.arange(150) % 10 == 0, (y + 1) % 3, y)
    frame = pd.DataFrame(x, index=pd.Index(np.arange(150) * 2 + 1000, name="id"))
    clf = VRIClassifier(evidence="linear", random_state=0).fit(frame, given)
    found = clf.find_label_issues()
    assert found.index.equals(frame.index)
    assert found.attrs["threshold"] == clf.threshold_
    everything = clf.find_label_issues(threshold=1.0)
    np.testing.assert_array_equal(everything["is_label_issue"], clf.label_quality_ < 1.0)
    named = everything[everything["is_label_issue"]]
    assert (named["predicted_label"] != named["given_label"]).all()
    assert not clf.find_label_issues(threshold=0)["is_label_issue"].any()
    with pytest.raises(ValueError, match=r"threshold=1\.5; expected a label quality from 0 to 1"):
        clf.find_label_issues(threshold=1.5)
    series = VRIClassifier(evidence="linear", random_state=0).fit(x, pd.Series(given, index=frame.index))
    assert series.find_label_issues().index.equals(frame.index)


def test_a_loaded_classifier_knows_nothing_of_the_labels(blobs: tuple[np.ndarray, np.ndarray], tmp_path: Any) -> None:
    VRIClassifier(evidence="linear", random_state=0).fit(*blobs).save(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match="loaded from a file, which has nothing about the labels"):
        VRIClassifier.load(tmp_path / "c.safetensors").find_label_issues()


@pytest.mark.parametrize("convert", [lambda f: f, lambda f: f.to_numpy(dtype=object)])
def test_text_in_a_table_names_its_column(blobs: tuple[np.ndarray, np.ndarray], convert: Any) -> None:
    x, y = blobs
    frame = pd.DataFrame(x, columns=list("abcd")).assign(colour="red")
    with pytest.raises(ValueError, match=r"^column ('colour'|4) of X has the value 'red'; .*get_dummies"):
        VRIClassifier().fit(convert(frame), y)


def test_texts_want_a_pipeline() -> None:
    with pytest.raises(ValueError, match=r"^X is a list of texts; .*make_pipeline, or pass .* as estimator="):
        VRIClassifier().fit(["a b", "c d", "a", "d"], [0, 1, 0, 1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ValueError, match=r"device='cuda' \(expected 'auto', 'cpu', or a device of this machine; torch"):
        VRIClassifier(device="cuda").fit(*blobs)


def test_inputs_for_networks_need_one(blobs: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = blobs
    with pytest.raises(ValueError, match=r"^X is a dict; expected a table of numbers, or .* pass it as module="):
        VRIClassifier().fit({"x": x}, y)
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        VRIClassifier(nn.Linear(4, 3)).fit((x, x))
