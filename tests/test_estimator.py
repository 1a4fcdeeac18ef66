"""`VRIClassifier`: what it takes, what it finds, and that nothing is lost on the way."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars
import pytest
import torch
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_blobs
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from torch import nn

import vri
from vri import VRIClassifier, backbones
from vri.estimator import fitting
from vri.methods import VRI
from vri.methods.two_networks import networks_of

QUICK = {
    "epochs": 4,
    "batch_size": 50,
    "random_state": 0,
    "method_options": {"hidden": (32,)},
    "evidence": "network",
}


@pytest.fixture(scope="module")
def blobs():
    x, y = make_blobs(400, n_features=6, centers=4, cluster_std=1.5, random_state=0)
    noisy = vri.noise.flip(None, torch.from_numpy(y), num_classes=4, rate=0.3, seed=0).labels.numpy()
    return x, noisy, y


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    noisy = vri.noise.flip(None, torch.from_numpy(y), num_classes=10, rate=0.3, seed=0).labels.numpy()
    return x, noisy, y


@pytest.fixture(scope="module")
def fitted(digits):
    x, noisy, _ = digits
    return VRIClassifier(random_state=0, epochs=15, evidence="network").fit(x, noisy)


def test_wrong_labels_are_found(fitted, digits):
    _, noisy, true = digits
    wrong = noisy != true
    found = fitted.find_label_issues()
    assert list(found.columns[:4]) == ["given_label", "predicted_label", "label_quality", "is_label_issue"]
    assert (found.given_label == noisy).all()
    named = found.is_label_issue.to_numpy()
    assert wrong[named].mean() > 0.75  # aimed at 0.8
    assert named[wrong].mean() > 0.9
    assert (found.predicted_label[named & wrong] == true[named & wrong]).mean() > 0.9
    assert abs(fitted.noise_rate_ - wrong.mean()) < 0.04
    low, high = fitted.noise_rate_interval_
    assert low < wrong.mean() < high
    # flip noise: every class goes to one other
    exact = np.array([[np.mean(noisy[true == i] == j) for j in range(10)] for i in range(10)])
    assert np.abs(fitted.transition_matrix_ - exact).max() < 0.15


def test_the_issues_are_the_labels_below_the_threshold(fitted):
    found = fitted.find_label_issues()
    assert ((found.label_quality < fitted.threshold_) == found.is_label_issue).all()
    # an issue is told another label than it has; the rest what the classifier believes
    assert (found.predicted_label != found.given_label)[found.is_label_issue].all()
    below = found.label_quality[found.is_label_issue]
    assert (1 - below).mean() >= 0.8  # expected precision: what `precision=0.8` promises


def test_a_better_model_than_plain_training(digits, fitted):
    x, noisy, true = digits
    plain = VRIClassifier(method="cross-entropy", random_state=0, epochs=15, evidence="network").fit(x, noisy)
    assert (fitted.predict(x) == true).mean() > (plain.predict(x) == true).mean() + 0.03


def test_trusted_samples_help_and_are_no_issues(digits):
    x, noisy, true = digits
    trusted = np.zeros(len(x), bool)
    trusted[::12] = True
    labels = np.where(trusted, true, noisy)
    clf = VRIClassifier(random_state=0, epochs=10, evidence="network").fit(x, labels, trusted=trusted)
    assert (clf.predict(x) == true).mean() > 0.93
    assert (clf.label_quality_[trusted] == 1).all()
    assert not clf.find_label_issues().is_label_issue[trusted].any()


def test_cross_fitting_scores_each_label_by_a_network_without_it(blobs):
    x, noisy, _ = blobs
    clf = VRIClassifier(cross_fit=3, **QUICK).fit(x, noisy)
    assert sorted(np.bincount(clf.fold_)) == [133, 133, 134]
    # a network of its own for fold 1, trained on the others: the same numbers
    rows = clf.fold_ != 1
    changed = noisy.copy()
    changed[~rows] = np.roll(changed[~rows], 1)  # the same folds would not come out of other labels: only these move
    alone = VRIClassifier(cross_fit=3, **QUICK)
    alone._folds = lambda given, count, seed: [
        (np.flatnonzero(clf.fold_ != k), np.flatnonzero(clf.fold_ == k)) for k in range(3)
    ]
    alone.fit(x, changed)
    np.testing.assert_array_equal(alone.out_of_sample_proba_[~rows], clf.out_of_sample_proba_[~rows])
    assert np.abs(alone.out_of_sample_proba_[rows] - clf.out_of_sample_proba_[rows]).max() > 0


def test_all_labels_trusted_and_a_class_trusted_in_one_fold_only(blobs):
    x, noisy, _ = blobs
    everything = VRIClassifier(**QUICK).fit(x, noisy, trusted=np.ones(len(x), bool))
    assert (everything.label_quality_ == 1).all()
    assert not everything.find_label_issues().is_label_issue.any()
    few = np.zeros(len(x), bool)
    for k in range(4):
        few[np.flatnonzero(noisy == k)[0]] = True
    found = VRIClassifier(cross_fit=2, **QUICK).fit(x, noisy, trusted=few).find_label_issues()
    assert (found.label_quality[few] == 1).all()


@pytest.mark.parametrize(
    "convert",
    [
        pd.DataFrame,
        polars.from_numpy,
        sparse.csr_matrix,
        sparse.coo_array,
        torch.from_numpy,
        lambda x: x.tolist(),
    ],
)
def test_all_kinds_of_tables_are_the_same(blobs, convert):
    x, noisy, _ = blobs
    expected = VRIClassifier(**QUICK).fit(x, noisy).predict_proba(x)
    frame = convert(x)
    clf = VRIClassifier(**QUICK).fit(frame, noisy)
    np.testing.assert_allclose(clf.predict_proba(frame), expected, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        lambda k: "abcd"[k],
        lambda k: bool(k % 2),
        lambda k: (k, "x"),
        lambda k: [b"x", "a", 3, (1, 2)][k],
        lambda k: np.float64(k),
        lambda k: "a rather long name of a class" * k,
    ],
)
def test_any_hashable_label(blobs, name):
    x, noisy, _ = blobs
    labels = [name(int(k)) for k in noisy]
    clf = VRIClassifier(**QUICK).fit(x, labels)
    predicted = clf.predict(x)
    assert set(predicted) <= set(labels)
    assert set(clf.find_label_issues().given_label) == set(labels)
    assert np.mean([a == b for a, b in zip(predicted, labels, strict=True)]) > 0.5


def test_labels_of_a_frame(blobs):
    x, noisy, _ = blobs
    names = np.array(["ant", "bee", "cat", "dog"])[noisy]
    expected = VRIClassifier(**QUICK).fit(x, names).predict(x)
    for labels in (pd.Series(names), pd.Series(names, dtype="category"), polars.Series(names), list(names)):
        assert (VRIClassifier(**QUICK).fit(x, labels).predict(x) == expected).all()


def test_text_by_tf_idf_in_a_pipeline():
    words = {"sport": "ball goal team match win", "food": "bread soup cook salt taste"}
    generator = np.random.default_rng(0)
    texts, labels = [], []
    for _ in range(150):
        for label, vocabulary in words.items():
            own = generator.choice(vocabulary.split(), 4)
            filler = [f"word{k}" for k in generator.integers(0, 600, 6)]
            texts.append(" ".join([*own, *filler]))
            labels.append(label)
    true = np.array(labels)
    noisy = true.copy()
    flipped = generator.random(len(noisy)) < 0.2
    noisy[flipped] = np.where(noisy[flipped] == "sport", "food", "sport")
    pipe = make_pipeline(TfidfVectorizer(), VRIClassifier(random_state=0, epochs=20, evidence="network"))
    pipe.fit(texts, noisy)
    assert pipe[-1]._scaling.projection is not None  # wide: projected
    assert (pipe.predict(texts) == true).mean() > 0.95
    quality = pipe[-1].label_quality_
    assert quality[flipped].mean() < 0.3 < 0.7 < quality[~flipped].mean()


def test_images_with_a_module_of_ones_own(digits):
    x, noisy, _ = digits
    images = (x[:300] * 15).astype(np.uint8).reshape(-1, 1, 8, 8)
    factory = lambda classes: vri.backbones.small_cnn(classes)  # noqa: E731
    clf = VRIClassifier(factory, **QUICK).fit(images, noisy[:300])
    assert clf.predict_proba(images).shape == (300, 10)
    # the same as standardised floats with the module itself
    seen = []
    clf.module_.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    clf.predict(images[:7])
    scaled = images[:7] / 255
    np.testing.assert_allclose(seen[0], (scaled - (images / 255).mean()) / (images / 255).std(), atol=1e-5)


def test_a_module_is_copied_and_a_model_with_two_outputs_works(blobs):
    x, noisy, _ = blobs

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x):
            features = self.first(x).relu()
            return self.last(features), features

    module = Two()
    before = [p.clone() for p in module.parameters()]
    clf = VRIClassifier(module, **QUICK).fit(x.astype(np.float32), noisy)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert clf.predict(x).shape == (400,)


def test_clone_pickle_and_file(blobs, tmp_path):
    x, noisy, _ = blobs
    names = np.array(["ant", "bee", "cat", "dog"])[noisy]
    clf = VRIClassifier(**QUICK).fit(x, names)
    expected = clf.predict_proba(x)
    assert clone(clf).get_params() == clf.get_params()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(x), expected)
    clf.save(tmp_path / "c.safetensors")
    other = VRIClassifier.load(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(other.predict_proba(x), expected)
    assert (other.predict(x) == clf.predict(x)).all()
    assert other.classes_.dtype == clf.classes_.dtype
    with pytest.raises(FileNotFoundError, match=r"none is not a file; expected one written by VRIClassifier.save"):
        VRIClassifier.load(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"bad can't be read .* expected a file written by VRIClassifier.save"):
        VRIClassifier.load(tmp_path / "bad")


def test_file_of_wide_text_and_of_an_own_module(tmp_path):
    generator = np.random.default_rng(0)
    x = sparse.random(60, 700, 0.05, random_state=0, format="csr")
    y = generator.integers(0, 2, 60)
    clf = VRIClassifier(**QUICK).fit(x, y)
    clf.save(tmp_path / "wide")
    np.testing.assert_array_equal(VRIClassifier.load(tmp_path / "wide").predict_proba(x), clf.predict_proba(x))

    dense = x.toarray()[:, :5]
    own = VRIClassifier(nn.Linear(5, 2), **QUICK).fit(dense, y)
    own.save(tmp_path / "own")
    with pytest.raises(ValueError, match=r"which is not in the file; pass it as module="):
        VRIClassifier.load(tmp_path / "own")
    again = VRIClassifier.load(tmp_path / "own", module=nn.Linear(5, 2))
    np.testing.assert_array_equal(again.predict_proba(dense), own.predict_proba(dense))


def test_trusted_goes_through_searches_by_metadata_routing(blobs):
    x, noisy, true = blobs
    trusted = np.arange(len(x)) % 5 == 0
    labels = np.where(trusted, true, noisy)
    with config_context(enable_metadata_routing=True):
        clf = VRIClassifier(**QUICK).set_fit_request(trusted=True)
        scores = cross_validate(clf, x, labels, params={"trusted": trusted}, cv=2, error_score="raise")
        assert (scores["test_score"] > 0.5).all()
        search = GridSearchCV(clf, {"lr": [1e-6, 0.02]}, cv=2, error_score="raise")
        search.fit(x, labels, trusted=trusted)
    assert search.best_params_ == {"lr": 0.02}


@pytest.mark.parametrize("cross_fit", [None, 2])
def test_a_fit_that_was_stopped_goes_on_exactly(blobs, tmp_path, monkeypatch, cross_fit):
    x, noisy, _ = blobs
    settings = {**QUICK, "cross_fit": cross_fit, "validation_fraction": 0.2}
    step, calls, stop_at = VRI.step, [], None

    def step_or_stop(self, *batches):
        calls.append(1)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return step(self, *batches)

    monkeypatch.setattr(VRI, "step", step_or_stop)
    monkeypatch.setattr(
        "vri.training.state.RunState.SAVING_SHARE", 1.0
    )  # a checkpoint after every epoch, however short
    whole = VRIClassifier(**settings).fit(x, noisy)
    total = len(calls)
    stop_at = total + 2 * total // 3
    stopped = VRIClassifier(**settings, checkpoint_dir=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(x, noisy)
    before = len(calls)
    stopped.fit(x, noisy)
    assert len(calls) - before < total  # what was done is not done again
    np.testing.assert_array_equal(stopped.label_quality_, whole.label_quality_)
    np.testing.assert_array_equal(stopped.predict_proba(x), whole.predict_proba(x))
    assert [row["loss"] for row in stopped.history_] == [row["loss"] for row in whole.history_]


def test_small_and_odd_data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(20, 3))
    assert len(VRIClassifier(random_state=0, epochs=5).fit(x, [0, 1] * 10).predict(x)) == 20
    many = np.arange(600) % 200
    x = np.eye(200)[many]
    clf = VRIClassifier(random_state=0, epochs=10, evidence="network").fit(x, many)
    assert clf.transition_matrix_.shape == (200, 200)
    same = VRIClassifier(**QUICK).fit(np.ones((50, 4)), [0, 1] * 25)
    assert np.allclose(same.predict_proba(np.ones((3, 4))), 0.5, atol=0.1)


def test_what_cannot_work_says_why(blobs):
    x, noisy, _ = blobs
    with pytest.raises(ValueError, match=r"^y has one class, 1: expected at least 2 classes to tell apart$"):
        VRIClassifier().fit(x, np.ones(len(x), int))
    with pytest.raises(
        ValueError,
        match=r"^VRIClassifier got settings it can't use: method='vry' \(expected one of .*\); "
        r"lr=0 \(expected None, or more than 0\); cross_fit=1 \(expected None, 0, or at least 2\)$",
    ):
        VRIClassifier(method="vry", lr=0, cross_fit=1).fit(x, noisy)
    with pytest.raises(ValueError, match=r"^trusted has shape \(3,\) for 400 samples; expected a mask with one truth"):
        VRIClassifier().fit(x, noisy, trusted=[True, False, True])
    with pytest.raises(ValueError, match=r"^trusted has values like 2; expected a mask of True and False"):
        VRIClassifier().fit(x, noisy, trusted=np.arange(400) // 50)
    with pytest.warns(UserWarning, match=r"^no trusted sample has the label 2, 3: expected at least one of each"):
        VRIClassifier(**QUICK).fit(x, noisy, trusted=noisy < 2)
    with pytest.raises(ValueError, match=r"^y has a label of type dict, which can't be hashed; expected numbers"):
        VRIClassifier().fit(x[:2], [{}, {}])
    with pytest.raises(ValueError, match=r"evidence='forrest' \(expected \"auto\", or names out of network, linear"):
        VRIClassifier(evidence="forrest").fit(x, noisy)
    with pytest.raises(ValueError, match=r"cross_fit=0 \(expected None or at least 2 with evidence=\['linear'\]\)"):
        VRIClassifier(evidence=["linear"], cross_fit=0).fit(x, noisy)


def test_how_long_to_train():
    for samples in (20, 200, 2_000, 50_000, 1_000_000):
        epochs, batch = fitting.schedule(samples, None, None)
        assert epochs >= 15
        assert batch <= 256
        assert batch <= samples
        assert 80 <= epochs * (samples // batch) <= max(3000, 15 * samples // 256)
    assert fitting.schedule(1000, 3, 10) == (3, 10)


def test_trusted_samples_are_held_out_where_there_are_enough():
    labels = np.arange(1000) % 4
    trusted = np.arange(1000) < 200
    part = fitting.divide(labels, trusted, 0.2, 4, seed=0)
    assert len(part.validation) == 40
    assert (part.validation < 200).all()
    assert len(part.clean) == 160
    assert len(part.train) == 960
    assert not set(part.validation.tolist()) & set(part.train.tolist())
    few = fitting.divide(labels, np.arange(1000) < 40, 0.2, 4, seed=0)
    assert (few.validation >= 40).all()
    assert len(few.clean) == 40
    assert fitting.divide(labels[:60], None, 0.2, 4, seed=0).validation is None


def test_a_network_with_batch_normalisation_learns_faster_and_longer(monkeypatch):
    seen = {}

    class Stop(Exception):
        pass

    def train(trainer, *_, epochs, **__):
        seen.update(lr=trainer.optimizer.param_groups[0]["lr"], epochs=epochs)
        raise Stop

    monkeypatch.setattr(fitting, "train", train)
    images = np.random.default_rng(0).normal(size=(300, 1, 8, 8)).astype(np.float32)
    for module, lr, epochs in ((backbones.mlp(64, 3, seed=0), 0.02, 40), (backbones.small_cnn(3, seed=0), 0.1, 80)):
        with pytest.raises(Stop):
            VRIClassifier(module, random_state=0).fit(images, np.arange(300) % 3)
        assert seen == {"lr": lr, "epochs": epochs}


def test_networks_that_predict_together_do_so_here(tmp_path: Path) -> None:
    """DivideMix averages the probabilities of its two networks, also after saving."""
    x, y = load_iris(return_X_y=True)
    classifier = VRIClassifier(method="dividemix", epochs=4, evidence="network", random_state=0).fit(x, y)
    assert classifier.module_ is not None
    scaled = classifier._scaling.apply(x).float()
    shares = [network.eval()(scaled).softmax(1) for network in networks_of(classifier.module_)]
    assert len(shares) == 2
    together = torch.stack(shares).mean(0).detach().numpy()
    np.testing.assert_allclose(classifier.predict_proba(x), together, atol=1e-5)
    classifier.save(tmp_path / "c.safetensors")
    np.testing.assert_allclose(VRIClassifier.load(tmp_path / "c.safetensors").predict_proba(x), together, atol=1e-5)
