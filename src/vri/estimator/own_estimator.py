"""Judging labels by a scikit-learn classifier of the user's own, cross-fitted."""

import inspect
from typing import Any

import numpy as np
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from vri.estimator import noise_model
from vri.estimator.ensemble import Evidence
from vri.estimator.evidence import Floats, Fold, Labels, Pool, cross_fit
from vri.estimator.labels import Mask

NAME = "estimator"
_LEAST = 0.02  # of a sample's belief below which a class is left out: rows would double for nothing


def check(estimator: Any) -> str | None:
    """Why it can't be used, or None."""
    kind = type(estimator).__name__
    if inspect.isclass(estimator):
        return f"estimator is the class {estimator.__name__} (expected an object: write {estimator.__name__}())"
    if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params") or not is_classifier(estimator):
        return f"estimator is a {kind} (expected a classifier of scikit-learn, or one that can be cloned like it)"
    if not hasattr(estimator, "predict_proba"):
        return (
            f"estimator is a {kind} without predict_proba (expected one that gives probabilities: wrap it in "
            "sklearn.calibration.CalibratedClassifierCV)"
        )
    return None


class OwnEstimator:
    """The user's estimator as a classifier that learns from soft targets.

    It learns from a sample once for each class that it may be of, weighted by the probability, where the estimator
    takes `sample_weight`; else once, from the most probable class.

    Attributes:
        estimator: a fitted copy of the user's.
        classes: (c,) all of them, also those that the copy has not seen.
    """

    def __init__(self, estimator: Any, classes: Any) -> None:
        self.estimator, self.classes = estimator, classes

    def fit(self, x: Any, targets: Floats) -> "OwnEstimator":
        """A copy that has learned from inputs and class probabilities (n, c)."""
        copy = clone(self.estimator)
        weight = weight_parameter(copy)
        if weight is None or (targets.max(1) == 1).all():
            return OwnEstimator(copy.fit(x, self.classes[targets.argmax(1)]), self.classes)
        kept = np.where(targets < _LEAST, 0.0, targets)
        rows, labels = np.nonzero(kept)
        weights = (kept / kept.sum(1, keepdims=True))[rows, labels]
        return OwnEstimator(copy.fit(_safe_indexing(x, rows), self.classes[labels], **{weight: weights}), self.classes)

    def predict(self, x: Any) -> Floats:
        """(n, c) probabilities; 0 for a class that it has not seen."""
        said = np.asarray(self.estimator.predict_proba(x), np.float64)
        place = {name: number for number, name in enumerate(self.classes.tolist())}
        found = np.zeros((len(said), len(self.classes)))
        found[:, [place[name] for name in np.asarray(self.estimator.classes_).tolist()]] = said
        return found


def weight_parameter(estimator: Any) -> str | None:
    """What the weights of samples are called in its `fit`; None if it takes none."""
    if sklearn.get_config()["enable_metadata_routing"]:
        return None  # weights then go where the user has requested them, which may be nowhere
    if has_fit_parameter(estimator, "sample_weight"):
        return "sample_weight"
    steps = getattr(estimator, "steps", None)
    if steps:
        name, last = steps[-1]
        own = weight_parameter(last)
        return None if own is None else f"{name}__{own}"
    return weight_parameter(estimator.estimator) if isinstance(estimator, GridSearchCV | RandomizedSearchCV) else None


def gather(own: OwnEstimator, x: Any, given: Labels, trusted: Mask | None, folds: list[Fold], seed: int) -> Evidence:
    """Evidence about the given labels: by copies that have not seen them, and once more by copies that learned from
    what the first ones found."""

    def fit(rows: Labels, held: Labels, targets: Floats, number: int) -> Floats:
        return own.fit(_safe_indexing(x, rows), targets[rows]).predict(_safe_indexing(x, held))

    targets = np.eye(len(own.classes))[given]
    said = cross_fit({NAME: fit}, targets, folds)[NAME]
    corrected = noise_model.judge(Pool.fit([said], targets)([said]), given, trusted, seed).beliefs
    said = cross_fit({NAME: fit}, corrected, folds)[NAME]
    pool = Pool.fit([said], corrected)
    pooled = pool([said])
    return Evidence({NAME: said}, pooled, noise_model.judge(pooled, given, trusted, seed), corrected, pool)
