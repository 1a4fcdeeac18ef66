"""Labels and columns that are mistakes before anything is learned."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs

from vri import VRIClassifier
from vri.estimator.checks import OddDataWarning
from vri.estimator.odd_labels import OddLabel, copies_of_label, odd_labels


def suggested(labels: list[object]) -> dict[object, object]:
    return {odd.label: odd.suggestion for odd in odd_labels(labels)}


@pytest.mark.parametrize(
    ("odd", "meant"),
    [
        ("A ", "A"),
        ("a", "A"),
        ("AA", "A"),
        ("c.", "c"),
        ("ice-cream", "ice-cream "),
        ("ｃat", "cat"),  # a letter of full width
        ("pulover", "pullover"),
        ("pullovre", "pullover"),
        ("T_shirt", "T shirt"),
    ],
)
def test_slips_of_the_pen(odd: str, meant: str) -> None:
    labels = [meant] * 50 + ["something else"] * 50 + [odd]
    assert suggested(labels) == {odd: meant}


@pytest.mark.parametrize(
    ("a", "b"),
    [("cat", "cab"), ("B", "A"), ("class 1", "class 2"), ("C", "C++"), ("C", "C#"), ("1.5", "15"), ("-1", "1")],
)
def test_names_that_differ_on_purpose(a: str, b: str) -> None:
    assert suggested([a] * 2 + [b] * 50) == {}


def test_numbers_have_no_spelling_but_may_be_alone() -> None:
    assert suggested([7] * 50 + [77] * 50 + [777]) == {777: None}
    assert odd_labels([7] * 50 + [777])[0].text == (
        "class 777 has one sample, so there is nothing to compare its label with"
    )


def test_the_most_frequent_spelling_is_suggested_and_missing_labels_are_none() -> None:
    found = odd_labels(["cat"] * 5 + ["Cat"] * 9 + ["CAT"] * 2 + [None, float("nan")])
    assert found == [OddLabel("CAT", 2, "Cat", 9), OddLabel("cat", 5, "Cat", 9)]
    assert found[1].text == "class 'cat' (5 samples) is spelled almost like 'Cat' (9); are they the same?"


def table(samples: int = 60) -> tuple[pd.DataFrame, np.ndarray]:
    x, y = make_blobs(samples, n_features=3, centers=3, random_state=0)
    return pd.DataFrame(x, columns=["width", "height", "weight"]), y


@pytest.mark.parametrize(
    "columns",
    [
        lambda y: {"target": y},
        lambda y: {"target": np.array([5.0, -1.0, 0.0])[y]},
        lambda y: {"target": y * 100 + np.random.default_rng(0).random(len(y))},
        lambda y: {f"is {k}": (y == k).astype(int) for k in range(3)},
        lambda y: {f"is {k}": (y == k).astype(int) for k in range(2)},
    ],
)
def test_a_copy_of_the_label_is_named(columns: object) -> None:
    frame, y = table()
    frame = frame.assign(**columns(y))  # type: ignore[operator]
    added = list(frame.columns[3:])
    assert [frame.columns[i] for i in copies_of_label(frame.to_numpy(), y)] == added
    with pytest.warns(OddDataWarning, match=f"column '{added[0]}'.* of X gives away every label.*leave it out"):
        clf = VRIClassifier(evidence="linear", random_state=0).fit(frame, y)
    assert "gives away every label" in clf.remarks_[-1]


def test_what_is_no_copy() -> None:
    frame, y = table()
    almost = np.where(np.arange(60) == 5, (y + 1) % 3, y)
    gaps = np.where(np.arange(60) == 5, np.nan, y)
    one_class = (y == 0).astype(float)
    x = np.column_stack([frame.to_numpy(), almost, gaps, one_class, np.ones(60)])
    assert copies_of_label(x, y) == []
    assert copies_of_label(y[:20, None].astype(float), y[:20]) == []  # too few to tell


def test_remarks_name_classes_and_a_clear_mistake_is_a_warning() -> None:
    frame, y = table(90)
    labels = np.array(["seventy", "eighty", "ninety"], dtype=object)[y]
    labels[0] = "Seventy "
    with pytest.warns(OddDataWarning, match=r"^class 'Seventy ' \(1 sample\) is spelled almost like 'seventy' \(\d+\)"):
        clf = VRIClassifier(evidence="linear", random_state=0).fit(frame, labels)
    assert [odd.label for odd in clf.odd_labels_] == ["Seventy "]
    numbers = np.where(np.arange(90) == 0, 777, np.array([70, 80, 90])[y])
    with warnings.catch_warnings():
        warnings.simplefilter("error", OddDataWarning)
        clf = VRIClassifier(epochs=5, cross_fit=0, random_state=0).fit(frame, numbers)
    assert any("777" in remark and "selected" not in remark for remark in clf.remarks_)
    assert all("label 3" not in remark for remark in clf.remarks_)
