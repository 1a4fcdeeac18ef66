"""Which labels are wrong, by probabilities that the user brings: no training.

Probabilities may be a memory map of many gigabytes: they are read in parts. What is kept of each sample is a handful of
numbers; no array has as many cells as samples × classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from vri import quality
from vri.estimator import noise_model
from vri.estimator.labels import MISSING, Indices, Mask, as_mask, encode, encode_as
from vri.estimator.noise_model import SHAPES, NoiseModel
from vri.estimator.uniform_noise import UniformNoise

Floats = NDArray[np.float64]

PRECISION = 0.8  # share of wrong labels among those that are named, by default
_CELLS = 2_000_000  # samples × classes that are in memory at a time
_ROWS = 20_000  # samples that tell enough about the noise
_MANY = 1000  # classes above which confusions can't be told from chance, and a matrix of them takes too much memory
_LIKELY = 4  # classes kept for each sample: three to show, and the given one
_SLACK = 0.02  # that a row of probabilities may miss 1 by: half precision, and thousands of classes


@dataclass(frozen=True, eq=False)
class LabelIssues:
    """What is thought of every label.

    Attributes:
        classes: (c,) their names.
        given: (n,) number of the class that the label says; -1 for a sample without label.
        quality: (n,) probability that the label is right; NaN without label.
        likely: (n, 4) the most probable classes given inputs and label, best first; fewer if there are fewer classes.
        probability: (n, 4) theirs.
        outlier: (n,) from 0 to 1; above 0.5 a sample looks like no class, or like many.
        threshold: labels of a quality below it are named as issues.
        noise_rate: estimated share of wrong labels among those that are not trusted.
        noise_interval: low and high end of it.
        transitions: (c, c) P(given label j | true class i); None for more than 1,000 classes.
    """

    classes: NDArray[Any]
    given: Indices
    quality: Floats
    likely: Indices
    probability: Floats
    outlier: Floats
    threshold: float
    noise_rate: float
    noise_interval: tuple[float, float]
    transitions: Floats | None

    @property
    def issue(self) -> Mask:
        """(n,) which labels are named."""
        found: Mask = self.quality < self.threshold  # NaN is not
        return found

    def suggestions(self) -> tuple[Indices, Floats]:
        """(n, 3) classes that a sample may be of, best first, and their probabilities; -1 and NaN past the last class.

        The class of a label that is named as an issue is not among them, even where it is the most probable one.
        """
        shown = np.pad(self.likely, ((0, 0), (0, _LIKELY - self.likely.shape[1])), constant_values=-1)
        chance = np.pad(self.probability, ((0, 0), (0, _LIKELY - self.probability.shape[1])), constant_values=np.nan)
        unwanted = self.issue[:, None] & (shown == self.given[:, None])
        order = np.argsort(unwanted, axis=1, kind="stable")  # moves it behind the others
        shown, chance = np.take_along_axis(shown, order, 1), np.take_along_axis(chance, order, 1)
        last = np.take_along_axis(unwanted, order, 1)
        return np.where(last, -1, shown)[:, :3], np.where(last, np.nan, chance)[:, :3]

    def frame(self, index: Any = None) -> pd.DataFrame:
        """One row for each sample, in their order, with cleanlab's names; `attrs` has threshold and noise rate."""
        classes, chance = self.suggestions()
        frame = pd.DataFrame(
            {
                "given_label": self._names(self.given),
                "predicted_label": self._names(classes[:, 0]),
                "label_quality": self.quality,
                "is_label_issue": self.issue,
                "predicted_probability": chance[:, 0],
                "second_label": self._names(classes[:, 1]),
                "second_probability": chance[:, 1],
                "third_label": self._names(classes[:, 2]),
                "third_probability": chance[:, 2],
                "outlier_score": self.outlier,
            },
            index=index,
        )
        frame.attrs.update(
            threshold=self.threshold, noise_rate=self.noise_rate, noise_rate_interval=self.noise_interval
        )
        return frame

    def _names(self, numbers: Indices) -> NDArray[Any]:
        """Names of classes, None for -1."""
        none = numbers < 0
        if not none.any():
            found: NDArray[Any] = self.classes[numbers]
            return found
        named = self.classes.astype(object)[numbers]
        named[none] = None
        return named


def find_label_issues(
    labels: Any,
    pred_probs: Any,
    *,
    classes: Sequence[Any] | None = None,
    trusted: Any = None,
    precision: float = PRECISION,
    threshold: float | None = None,
    unlabelled: str = "error",
) -> pd.DataFrame:
    """Judge labels by predicted probabilities, without training anything.

    Args:
        labels: (n,) given labels: names, or numbers of columns of `pred_probs`.
        pred_probs: (n, c) probabilities of the classes by a classifier that has not learned from these labels, for
            example from `sklearn.model_selection.cross_val_predict`. Array, memory map, tensor or frame.
        classes: names of the columns. By default those of the frame; else 0, 1, … where the labels are such numbers,
            and the sorted labels where there are as many different ones as columns.
        trusted: (n,) mask of the labels known to be right; they are never issues.
        precision: aimed at: about this share of the named labels is wrong.
        threshold: name labels of a quality below it instead.
        unlabelled: "error" refuses missing labels (None, NaN); "predict" gives these samples a predicted label only.

    Returns:
        A row for each sample, in their order and with the index of `labels` or `pred_probs`: `given_label`,
        `predicted_label`, `label_quality` (the probability that the label is right), `is_label_issue`,
        `predicted_probability`, second and third likely label and their probabilities, `outlier_score`. Its `attrs`
        have `noise_rate`, `noise_rate_interval` and `threshold`.
    """
    index = next((x.index for x in (labels, pred_probs) if isinstance(x, (pd.Series, pd.DataFrame))), None)
    found = judge_labels(
        labels, pred_probs, classes=classes, trusted=trusted, precision=precision, unlabelled=unlabelled
    )
    return (found if threshold is None else replace(found, threshold=checked_threshold(threshold))).frame(index)


def judge_labels(
    labels: Any,
    pred_probs: Any,
    *,
    classes: Sequence[Any] | None = None,
    trusted: Any = None,
    precision: float = PRECISION,
    unlabelled: str = "error",
    seed: int = 0,
) -> LabelIssues:
    """`find_label_issues` before it is made a frame; of large data, `seed` chooses the samples to learn from."""
    if not 0 < precision < 1:
        raise ValueError(f"precision={precision!r} (expected between 0 and 1)")
    if classes is None and isinstance(pred_probs, pd.DataFrame):
        classes = pred_probs.columns.tolist()
    probabilities = _array(pred_probs)
    names, given = _encode(labels, probabilities.shape[1], classes, unlabelled)
    if len(given) != len(probabilities):
        raise ValueError(f"pred_probs has {len(probabilities)} rows and labels {len(given)}; expected as many")
    known = as_mask(trusted, len(given))
    _check(probabilities)
    labelled = given != MISSING
    if not labelled.any():
        raise ValueError("no sample has a label; expected some to judge")
    small = probabilities.size <= _CELLS and len(given) <= _ROWS
    judged = (_together if small else _in_parts)(probabilities, given, labelled, known, seed)
    free = labelled if known is None or known[labelled].all() else labelled & ~known
    threshold = quality.threshold(torch.from_numpy(judged.quality[free]), precision)
    return replace(judged, classes=names, threshold=threshold)


def likely_classes(beliefs: Floats) -> tuple[Indices, Floats]:
    """(n, 4) the most probable classes, best first, and their probabilities; fewer where there are fewer classes."""
    count = min(_LIKELY, beliefs.shape[1])
    top = np.argpartition(-beliefs, count - 1, axis=1)[:, :count]
    top = np.take_along_axis(top, np.argsort(-np.take_along_axis(beliefs, top, 1), axis=1, kind="stable"), 1)
    return top.astype(np.int64), np.take_along_axis(beliefs, top, 1)


def checked_threshold(threshold: float) -> float:
    """The threshold, if it is one."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold!r}; expected a label quality from 0 to 1")
    return float(threshold)


def _together(probabilities: Any, given: Indices, labelled: Mask, trusted: Mask | None, seed: int) -> LabelIssues:
    """By the full model of the noise."""
    p = _normalised(probabilities)
    known = None if trusted is None else trusted[labelled]
    judgement = noise_model.judge(p[labelled], given[labelled], known, seed)
    right = np.full(len(given), np.nan)
    right[labelled] = judgement.quality
    beliefs = p.copy()
    beliefs[labelled] = judgement.beliefs
    outlier = quality.outlier_score(torch.from_numpy(p)).numpy()
    return LabelIssues(
        np.zeros(0),
        given,
        right,
        *likely_classes(beliefs),
        outlier,
        0.0,
        judgement.noise_rate,
        judgement.noise_interval,
        judgement.transitions,
    )


def _in_parts(probabilities: Any, given: Indices, labelled: Mask, trusted: Mask | None, seed: int) -> LabelIssues:
    """By a model of the noise that was fitted to some samples, part by part."""
    free = labelled if trusted is None or trusted[labelled].all() else labelled & ~trusted
    models = _fit_on_some(probabilities, given, np.flatnonzero(free), seed)
    known = np.zeros(len(given), bool) if trusted is None else trusted
    count, classes = probabilities.shape
    likely = np.zeros((count, min(_LIKELY, classes)), np.int64)
    chance = np.zeros(likely.shape)
    outlier, right = np.zeros(count), np.ones(count)
    pairs = np.zeros((count, 2))  # probability of the given class, and of the best other one
    for part in _parts(count, classes):
        p, g = _normalised(probabilities[part]), given[part].clip(0)
        rows = np.arange(len(p))
        beliefs: Floats = sum(weight * model.posterior(p, g)[0] for weight, model in models)  # type: ignore[assignment]
        beliefs[~labelled[part]] = p[~labelled[part]]
        sure = known[part] & labelled[part]
        beliefs[sure] = 0.0
        beliefs[sure, g[sure]] = 1.0
        likely[part], chance[part] = likely_classes(beliefs)
        outlier[part] = quality.outlier_score(torch.from_numpy(p)).numpy()
        right[part] = beliefs[rows, g]
        pairs[part, 0] = p[rows, g]
        p[rows, g] = 0.0
        pairs[part, 1] = p.max(1)
    # what the model makes of a label depends on these two classes only
    first = np.zeros(int(free.sum()), np.int64)
    found = np.where(labelled, 1.0, np.nan)
    found[free] = noise_model._quality(pairs[free], first, np.stack([right[free], 1 - right[free]], 1))
    rate, interval = noise_model._rate(pairs[free], first, right[free])
    full = [weight * model.transitions for weight, model in models if isinstance(model, NoiseModel)]
    transitions = np.sum(full, axis=0) if full else None
    return LabelIssues(np.zeros(0), given, found, likely, chance, outlier, 0.0, rate, interval, transitions)


def _fit_on_some(
    probabilities: Any, given: Indices, rows: Indices, seed: int
) -> list[tuple[float, NoiseModel | UniformNoise]]:
    """Models of the noise with their weights, fitted to as many samples at random as that takes."""
    classes = probabilities.shape[1]
    chosen = np.sort(np.random.default_rng(seed).permutation(rows)[: min(max(_CELLS // classes, 1), _ROWS)])
    p, g = _normalised(probabilities[chosen]), given[chosen]
    if classes > _MANY:
        return [(1.0, UniformNoise.fit(p, g))]
    weights = noise_model.shape_weights(p, g, None, seed)
    return [
        (float(weight), NoiseModel(shape).fit(p, g))
        for weight, shape in zip(weights, SHAPES, strict=True)
        if weight > 1e-3 * weights.max()
    ]


def _encode(labels: Any, columns: int, classes: Sequence[Any] | None, unlabelled: str) -> tuple[NDArray[Any], Indices]:
    """The names of the columns, and each label's column."""
    if classes is not None:
        if len(classes) != columns:
            raise ValueError(f"classes has {len(classes)} names for {columns} columns of pred_probs; expected as many")
        return encode_as(labels, classes, unlabelled)
    names, given = encode(labels, unlabelled, "labels")
    numbers = names.astype(np.int64) if names.dtype.kind in "fiub" else np.zeros(0)
    if np.array_equal(numbers, names) and numbers.min() >= 0 and numbers.max() < columns:
        return np.arange(columns), np.where(given == MISSING, MISSING, numbers[given])
    if len(names) != columns:
        shown = ", ".join(repr(name) for name in names[:5].tolist())
        raise ValueError(
            f"labels has {len(names)} different ones ({shown}{', …' if len(names) > 5 else ''}) and pred_probs "
            f"{columns} columns: expected numbers from 0 to {columns - 1}, or as many labels as columns; pass "
            "classes=, the names of the columns in their order"
        )
    return names, given


def _array(pred_probs: Any) -> Any:
    """As an array that can be read in parts."""
    if isinstance(pred_probs, torch.Tensor):
        pred_probs = pred_probs.detach().cpu().numpy()
    array = np.asanyarray(pred_probs)
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind not in "fiub":
        raise ValueError(
            f"pred_probs is an array of {array.dtype} with shape {array.shape}; expected probabilities with a row for "
            "each sample and a column for each class, at least 2"
        )
    return array


def _check(probabilities: Any) -> None:
    """Refuse what is not probabilities, with the first row that shows it."""
    for part in _parts(*probabilities.shape):
        p = np.asarray(probabilities[part], np.float32)
        odd = ~np.isfinite(p).all(1) | (p < 0).any(1) | (np.abs(p.sum(1, dtype=np.float64) - 1) > _SLACK)
        if odd.any():
            row = int(odd.argmax())
            values = p[row]
            what = (
                f"sums to {values.sum():.4g}"
                if np.isfinite(values).all() and values.min() >= 0
                else f"has the value {values[~(values >= 0) | ~np.isfinite(values)][0]:.4g}"
            )
            raise ValueError(
                f"row {part.start + row} of pred_probs {what}; expected probabilities from 0 to 1 that sum to 1 in "
                "each row: apply softmax to logits first"
            )


def _normalised(probabilities: Any) -> Floats:
    p = np.array(probabilities, np.float64)
    p /= p.sum(1, keepdims=True)
    return p


def _parts(count: int, classes: int) -> Iterator[slice]:
    size = max(_CELLS // classes, 1)
    return (slice(first, min(first + size, count)) for first in range(0, count, size))
