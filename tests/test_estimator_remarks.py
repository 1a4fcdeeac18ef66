"""What contradicts what, in words."""

import numpy as np
import pytest

from vri import VRIClassifier
from vri.estimator.remarks import contradictions

HALVES = np.arange(1000) % 2


def test_an_estimate_far_below_what_classifiers_miss_is_remarked_on():
    with pytest.warns(UserWarning, match="the other 28% are classes that look alike"):
        (text,) = contradictions(0.01, 0.71, HALVES)
    assert text == (
        "labels not seen in training were predicted in 71% of all cases, but 1% are estimated to be wrong: the other "
        "28% are classes that look alike in these inputs, or wrong labels that the estimate misses; look at some "
        "labels before you rely on it"
    )


def test_an_estimate_above_what_classifiers_miss_is_remarked_on():
    with pytest.warns(UserWarning, match="30% of the labels are estimated to be wrong, but .* in 95% of all cases"):
        assert len(contradictions(0.30, 0.95, HALVES)) == 1


@pytest.mark.parametrize(("rate", "agreement"), [(0.15, 0.83), (0.0, 0.95), (0.2, 0.62), (0.1, None)])
def test_what_fits_together_needs_no_remark(rate, agreement):
    assert contradictions(rate, agreement, HALVES) == []


def test_few_labels_contradict_nothing_by_chance():
    assert contradictions(0.02, 0.85, HALVES[:20]) == []
    with pytest.warns(UserWarning, match="2% are estimated to be wrong"):
        assert contradictions(0.02, 0.85, HALVES)


def test_a_rare_class_is_no_contradiction():
    given = (np.arange(1000) % 6 == 0).astype(int)  # always saying 0 is right in 83 %: so be it
    assert contradictions(0.14, 0.85, given) == []


def test_labels_that_have_nothing_to_do_with_the_inputs():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(300, 4)), generator.integers(0, 2, 300)
    with pytest.warns(UserWarning, match="from these inputs, labels can't be judged"):
        clf = VRIClassifier(evidence=["linear", "neighbours"], random_state=0).fit(x, y)
    assert clf.remarks_[-1].endswith("from these inputs, labels can't be judged")
