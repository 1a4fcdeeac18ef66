"""Several classifiers judge the labels: pooling, the model of the noise, the members, and what `VRIClassifier` does."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier

import vri
from vri import VRIClassifier, noise
from vri.estimator import ensemble, evidence, members, noise_model
from vri.estimator.members import MEMBERS, Linear
from vri.estimator.trees import of_boosting, of_forest

TINY = {"epochs": 2, "batch_size": 50, "random_state": 0, "hidden": (16,)}
FAST = ["linear", "neighbours"]


def drawn(count, classes, seed, sharpness=2.0):
    """Probabilities and classes drawn from them."""
    generator = np.random.default_rng(seed)
    logits = sharpness * generator.normal(size=(count, classes))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return p, np.array([generator.choice(classes, p=row) for row in p])


# the pool


def test_the_pool_follows_the_member_that_knows():
    p, y = drawn(4000, 3, 0)
    ignorant = np.random.default_rng(1).dirichlet(np.ones(3), 4000)
    pool = evidence.Pool.fit([p, ignorant], np.eye(3)[y])
    assert pool.weights[0] == pytest.approx(1, abs=0.06)
    assert pool.weights[1] < 0.05


def test_the_pool_puts_right_who_is_too_sure():
    p, y = drawn(4000, 3, 0)
    too_sure = p**3 / (p**3).sum(1, keepdims=True)
    pool = evidence.Pool.fit([too_sure], np.eye(3)[y])
    assert pool.weights[0] < 0.6

    def loss(said):
        return -np.log(said[np.arange(4000), y]).mean()

    assert loss(pool([too_sure])) < loss(p) + 0.04 < loss(too_sure) - 0.2


def test_cross_fitting_never_shows_a_member_what_it_is_asked():
    y = np.arange(20_000) % 2
    targets = np.eye(2)[y]
    asked = []

    def honest(rows, held, targets, number):
        assert not np.intersect1d(rows, held).size
        asked.append((number, len(held)))
        said = targets[held] * 0.6 + 0.2
        said[::5] = said[::5, ::-1]  # right as often as it says
        return said

    def useless(rows, held, targets, number):
        asked.append("useless")
        return np.random.default_rng(number).dirichlet(np.ones(2), len(held))

    folds = evidence.folds_of(y, 2, seed=0)
    found = evidence.cross_fit({"honest": honest, "useless": useless}, targets, folds)
    assert list(found) == ["honest"]  # the other is left out after the first fold
    assert asked == [(0, 10_000), "useless", (1, 10_000)]
    assert (found["honest"].argmax(1) == y).mean() == pytest.approx(0.8)  # both folds are there


# the model of the noise


@pytest.mark.parametrize(
    ("transitions", "shape"),
    [
        ([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], "uniform"),
        ([[0.6, 0.4, 0.0], [0.0, 1.0, 0.0], [0.0, 0.3, 0.7]], "full"),
    ],
)
def test_transitions_are_found_in_the_shape_they_have(transitions, shape):
    p, true = drawn(6000, 3, 0, sharpness=4.0)
    exact = np.array(transitions)
    generator = np.random.default_rng(1)
    given = np.array([generator.choice(3, p=exact[k]) for k in true])
    # a classifier that is fitted to the given labels learns p @ exact, or half of the way there if it is regularised
    seen = p @ exact if shape == "uniform" else p @ (exact + np.eye(3)) / 2
    found = noise_model.judge(seen, given)
    assert max(found.shapes, key=found.shapes.get) == shape
    assert np.abs(found.transitions - exact).max() < (0.1 if shape == "uniform" else 0.25)
    wrong = given != true
    low, high = found.noise_interval
    assert low <= wrong.mean() <= high
    assert abs(found.noise_rate - wrong.mean()) < 0.1
    by_label = average_precision_score(wrong, 1 - seen[np.arange(6000), given])
    best = (p * exact[:, given].T)[np.arange(6000), given] / (p * exact[:, given].T).sum(1)  # Bayes, all known
    bound = average_precision_score(wrong, 1 - best)
    reached = average_precision_score(wrong, 1 - found.beliefs[np.arange(6000), given])
    assert reached > bound - (0.03 if shape == "uniform" else 0.12)
    assert reached > by_label + (-0.01 if shape == "uniform" else 0.1)


def test_trusted_labels_are_certain_and_no_part_of_the_rate():
    p, true = drawn(1000, 3, 0, sharpness=4.0)
    given = noise.uniform(None, torch.from_numpy(true), num_classes=3, rate=0.4, seed=0).labels.numpy()
    trusted = np.arange(1000) % 4 == 0
    given = np.where(trusted, true, given)
    found = noise_model.judge(p, given, trusted)
    np.testing.assert_array_equal(found.beliefs[trusted], np.eye(3)[given[trusted]])
    assert abs(found.noise_rate - (given != true)[~trusted].mean()) < 0.06


# the members


@pytest.fixture(scope="module")
def cancer():
    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y


def test_trees_say_what_scikit_learn_says(cancer):
    x, y = cancer
    three = load_iris(return_X_y=True)
    for features, labels in ((x, y), (three[0].astype(np.float32), three[1])):
        gaps = features.copy()
        gaps[::5, 2] = np.nan
        classes = int(labels.max()) + 1
        forest = ExtraTreesClassifier(10, random_state=0).fit(gaps, labels)
        np.testing.assert_allclose(of_forest(forest, classes).predict(gaps), forest.predict_proba(gaps), atol=1e-12)
        boosting = HistGradientBoostingClassifier(max_iter=5).fit(gaps, labels)
        found = of_boosting(boosting, classes).predict(gaps)
        np.testing.assert_allclose(found, boosting.predict_proba(gaps), atol=1e-12)


def test_members_on_hard_labels_are_scikit_learns(cancer):
    x, y = cancer
    targets = np.eye(2)[y]
    linear = LogisticRegression(C=0.1, tol=1e-3).fit(x, y).predict_proba(x)
    np.testing.assert_allclose(Linear(0.1).fit(x, targets, 0).predict(x), linear, atol=1e-3)
    counts = np.abs(x).round()
    bayes = MultinomialNB(alpha=0.1).fit(counts, y).predict_proba(counts)
    np.testing.assert_allclose(MEMBERS["bayes"]().fit(counts, targets, 0).predict(counts), bayes, atol=1e-6)
    near = KNeighborsClassifier(15, weights="distance").fit(x[:300], y[:300]).predict_proba(x[300:])
    found = MEMBERS["neighbours"]().fit(x[:300], targets[:300], 0).predict(x[300:])
    np.testing.assert_allclose(found, near, atol=1e-4)


def test_trees_grow_from_a_part_of_very_many_samples(cancer, monkeypatch):
    x, y = cancer
    monkeypatch.setattr(members, "_GROWN", 200)
    forest = MEMBERS["forest"]().fit(x, np.eye(2)[y], 0)
    assert forest._model.estimators_[0].tree_.n_node_samples[0] == 200
    for name in ("forest", "boosting"):
        assert (MEMBERS[name]().fit(x, np.eye(2)[y], 0).predict(x).argmax(1) == y).mean() > 0.9


def test_a_forest_takes_little_room_however_many_classes(cancer):
    x, y = cancer
    few, many = (MEMBERS["forest"]().fit(x, np.eye(count)[y], 0).arrays() for count in (2, 200))
    assert {name: len(part) for name, part in few.items() if name not in ("start", "logits")} == {
        name: len(part) for name, part in many.items() if name not in ("start", "logits")
    }


@pytest.mark.parametrize("name", MEMBERS)
def test_members_learn_from_doubts_and_come_back_from_arrays(cancer, name):
    x, y = cancer
    x = np.abs(x)
    doubts = np.full((len(y), 3), [0.3, 0.7, 0.0])  # of three classes, one that never appears
    doubts[y == 1] = [1.0, 0.0, 0.0]
    member = MEMBERS[name]().fit(x, doubts, 0)
    said = member.predict(x)
    np.testing.assert_allclose(said.sum(1), 1, atol=1e-6)
    assert said[y == 1, 0].mean() > 0.75
    assert 0.2 < said[y == 0, 0].mean() < 0.65  # not surer than its targets were
    assert said[:, 2].max() < 0.01
    np.testing.assert_allclose(type(member).from_arrays(member.arrays()).predict(x), said, atol=1e-6)


# the classifier


def noisy_digits(count=600, rate=0.3):
    x, y = load_digits(return_X_y=True)
    x, y = x[:count], y[:count]
    return x, noise.flip(None, torch.from_numpy(y), num_classes=10, rate=rate, seed=0).labels.numpy(), y


def test_a_second_look_at_the_labels_finds_flips_and_makes_a_better_classifier():
    x, given, true = noisy_digits()
    clf = VRIClassifier(evidence=["linear", "neighbours", "forest"], random_state=0).fit(x, given)
    wrong = given != true
    assert average_precision_score(wrong, 1 - clf.label_quality_) > 0.95
    assert (clf.predict(x) == true).mean() > 0.93
    low, high = clf.noise_rate_interval_
    assert low <= wrong.mean() <= high
    assert clf.out_of_sample_proba_.shape == (600, 10)
    assert sum(clf.evidence_weights_.values()) == pytest.approx(1)
    assert set(clf.evidence_weights_) < set(clf.evidence_)  # each one's opinion is there
    assert clf.module_ is None


def test_several_classifiers_in_a_file(tmp_path):
    x, given, _ = noisy_digits(200)
    for number, names in enumerate((["linear", "neighbours", "forest", "boosting"], ["network", "linear"])):
        clf = VRIClassifier(evidence=names, cross_fit=2, **TINY).fit(x, given)
        clf.save(tmp_path / f"{number}")
        np.testing.assert_array_equal(VRIClassifier.load(tmp_path / f"{number}").predict_proba(x), clf.predict_proba(x))


@pytest.mark.parametrize("method", vri.METHODS)
def test_every_method_judges_predicts_and_goes_through_a_file(method, tmp_path):
    x, given, _ = noisy_digits(120)
    clf = VRIClassifier(method=method, evidence="network", **TINY)
    clf.fit(x, given, trusted=np.arange(120) % 3 == 0)
    assert clf.label_quality_.shape == (120,)
    assert len(clf.find_label_issues()) == 120
    clf.save(tmp_path / "c")
    np.testing.assert_array_equal(VRIClassifier.load(tmp_path / "c").predict(x), clf.predict(x))


def test_gaps_are_no_error_and_cost_little(cancer):
    x, true = cancer
    given = noise.uniform(None, torch.from_numpy(true), num_classes=2, rate=0.3, seed=0).labels.numpy()
    gaps = np.where(np.random.default_rng(0).random(x.shape) < 0.05, np.nan, x)
    gaps[:, 0] = np.nan  # a column without any value
    clf = VRIClassifier(evidence=[*FAST, "boosting"], random_state=0).fit(gaps, given)
    assert average_precision_score(given != true, 1 - clf.label_quality_) > 0.85
    assert (clf.predict(gaps) == true).mean() > 0.93
    network = VRIClassifier(evidence="network", **TINY).fit(gaps, given)
    assert np.isfinite(network.predict_proba(gaps)).all()


def test_the_only_sample_of_a_class_is_judged_and_remarked_on():
    x, y = load_iris(return_X_y=True)
    given = y.copy()
    given[0] = 7  # of class 0, and alone with its label
    clf = VRIClassifier(evidence=FAST, random_state=0).fit(x, given)
    assert clf.label_quality_[0] < 0.5
    assert "class 7 has one sample, so there is nothing to compare its label with" in clf.remarks_


def test_a_rare_class_is_not_taken_for_wrong():
    x, y = load_digits(return_X_y=True)
    rare = np.flatnonzero(y == 8)[:12]
    rows = np.concatenate([np.flatnonzero(y < 4)[:600], rare])
    true = (y[rows] == 8).astype(int)
    generator = np.random.default_rng(0)
    given = np.where(generator.random(len(true)) < 0.05, 1 - true, true)
    clf = VRIClassifier(evidence=[*FAST, "forest"], random_state=0).fit(x[rows], given)
    assert average_precision_score(given != true, 1 - clf.label_quality_) > 0.85


def test_texts_are_judged_by_their_words():
    generator = np.random.default_rng(0)
    true = np.arange(300) % 3
    words = generator.poisson(0.02, (300, 900))
    for k in range(3):
        words[true == k, k * 20 : k * 20 + 20] += generator.poisson(0.3, (100, 20))
    given = noise.uniform(None, torch.from_numpy(true), num_classes=3, rate=0.3, seed=0).labels.numpy()
    x = sparse.csr_matrix(words.astype(np.float32))
    clf = VRIClassifier(evidence=["linear", "bayes", "forest"], random_state=0).fit(x, given)
    assert average_precision_score(given != true, 1 - clf.label_quality_) > 0.9
    assert (clf.predict(x) == true).mean() > 0.9


def test_who_is_asked_follows_size_and_kind():
    table, words = np.zeros((10, 30)), sparse.csr_matrix((10, 900))
    assert ensemble.choose(500, 30, 2, table) == ("linear", "kernel", "neighbours", "forest")
    assert "boosting" in ensemble.choose(1500, 30, 2, table)
    assert "boosting" not in ensemble.choose(1500, 784, 10, table)
    assert "bayes" in ensemble.choose(500, 900, 2, words)
    assert "bayes" not in ensemble.choose(500, 900, 2, -sparse.eye(10, format="csr"))
    assert ensemble.choose(10_000, 512, 2, table) == ("gaussian", "kernel", "neighbours")
    assert ensemble.choose(50_000, 512, 2, table) == ("gaussian", "kernel")
    assert ensemble.choose(200_000, 512, 2, table) == ensemble.choose(50_000, 900, 2, words) == ("network",)
    assert ensemble.choose(900_000, 30, 2, table) == ("forest", "boosting")
    assert ensemble.choose(50_000, 30, 20, table) == ("kernel", "forest")
    x, given, _ = noisy_digits(100)
    assert VRIClassifier(random_state=0).fit(x, given).module_ is None
    # who says how the network is to learn wants the network
    assert VRIClassifier(random_state=0, epochs=2, hidden=(8,)).fit(x, given).module_ is not None


def test_a_network_alone_is_cross_fitted_only_where_data_is_small():
    x, given, _ = noisy_digits(100)
    module = torch.nn.Linear(64, 10)
    small = VRIClassifier(module, **TINY).fit(x.astype(np.float32), given)
    assert len(np.unique(small.fold_)) == 3
    assert not hasattr(VRIClassifier(module, cross_fit=0, **TINY).fit(x.astype(np.float32), given), "fold_")
    assert not hasattr(VRIClassifier(evidence="network", **TINY).fit(x, given), "fold_")


@pytest.mark.parametrize("ratio", [1, 10, 100])
def test_wrong_labels_are_found_whatever_the_class_sizes(ratio):
    generator = np.random.default_rng(ratio)
    rare = max(1000 // (1 + ratio), 9)
    true = np.r_[np.zeros(1000 - rare, int), np.ones(rare, int)]
    x = generator.normal(size=(1000, 6)) + 4 * true[:, None] * (np.arange(6) < 2)
    wrong = generator.permutation(1000) < 50
    given = np.where(wrong, 1 - true, true)
    clf = VRIClassifier(evidence=["linear", "kernel", "neighbours"], random_state=0).fit(x, given)
    assert average_precision_score(wrong, 1 - clf.label_quality_) > 0.9
    assert not clf.find_label_issues()["is_label_issue"].to_numpy()[(given == 1) & (true == 1)].all()
    low, high = clf.noise_rate_interval_
    assert low <= 0.05 <= high


def test_wrong_labels_are_found_among_200_classes_also_where_a_class_has_one_sample():
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(200, 16))
    true = np.r_[np.repeat(np.arange(198), 6), 198, 199]
    x = centres[true] + 0.2 * generator.normal(size=(len(true), 16))
    given = true.copy()
    moved = generator.permutation(198 * 6)[:60]
    given[moved] = (true[moved] + generator.integers(1, 198, 60)) % 198
    given[0] = 198  # of the two labels 198, one is wrong; label 199 has one sample
    clf = VRIClassifier(evidence=FAST, random_state=0).fit(x, given)
    wrong = given != true
    assert average_precision_score(wrong, 1 - clf.label_quality_) > 0.9
    assert clf.label_quality_[0] < 0.5
    assert clf.label_quality_[-1] < 1  # judged like all others, and remarked on
    assert any("199" in text and "one sample" in text for text in clf.remarks_)
