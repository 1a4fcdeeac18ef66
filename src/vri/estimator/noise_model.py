"""Which labels are wrong, by probabilities from classifiers that never saw them.

A sample's true class comes from the classifiers' probabilities, made sharper or softer; its label comes out of the true
class by a matrix T of transitions. Both are found by expectation-maximisation on the labels alone. T has one of three
shapes, from one number to a full matrix. Each shape is weighted by how well it predicts labels that it was not fitted
on, so that few samples get a simple matrix, and confusions that stand out a full one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]

SHAPES = ("uniform", "by class", "full")
_ROUNDS, _ENOUGH = 30, 1e-5  # of expectation-maximisation; it ends early where the mean log-likelihood gains less
_PSEUDO = 10.0  # labels' worth of belief that a row of T looks like that of the simpler shape
RIDGE = 5.0  # labels' worth of belief that no class is over- or underrated
# Probabilities that explain the labels perfectly leave nothing for T to explain, whatever the noise. What decides is
# the belief that classes are further apart than labels: the power of the probabilities stays near this one.
POWER, POWER_RIDGE = 2.0, 0.1  # the belief grows with the number of labels
POWERS = (-1.0, np.log(6.0))  # logarithms of the smallest and the largest
_FARTHEST, _STEPS = 1.0, 6  # of a Newton step: how far it goes, and the conjugate gradients that find it
_START = 0.3  # share of wrong labels that the search begins with
# nats that a shape must be better by than the next simpler one, at least and for each label: a full T also gains a
# little by explaining the classifiers' own confusions, and with many labels a little is much
_PARSIMONY, _PER_LABEL = 3.0, 0.0025
_FOLDS = 3
_CELLS = 300_000  # probabilities above which one of the folds has to do
_ENOUGH_LABELS, _OF_EACH = 10_000, 50  # labels that T is learned from at most, and as many of each class
_OF_DISAGREEMENT, _LEAST_SHARE = 0.4, 0.4  # see `_rate`
_TINY = 1e-6


@dataclass(eq=False)
class NoiseModel:
    """True classes and transitions of one shape.

    Attributes:
        shape: of T: "uniform", one rate for all; "by class", a rate for each class; "full".
        power: of the probabilities.
        bias: (c,) added to their logarithms.
        transitions: T, (c, c): P(given label j | true class i).
    """

    shape: str
    power: float = 1.0
    bias: Floats = field(default_factory=lambda: np.zeros(0))
    transitions: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def fit(self, probabilities: Floats, given: Labels, trusted: Mask | None = None) -> Self:
        """Expectation-maximisation; trusted labels are right, and tell nothing of T."""
        classes = probabilities.shape[1]
        logs = _logs(probabilities)
        free = slice(None) if trusted is None else ~trusted
        elsewhere = (1 - np.eye(classes)) / max(classes - 1, 1)
        self.power, self.bias = POWER, np.zeros(classes)
        self.transitions = (1 - _START) * np.eye(classes) + _START * elsewhere
        counted = _counter(given[free], classes)
        before = -np.inf
        for turn in range(_ROUNDS):
            classes_now = self._softmax(logs)
            beliefs, likelihood = self._posterior(classes_now, given, trusted)
            if turn > 5 and likelihood - before < _ENOUGH:
                break
            before = likelihood
            self._fit_transitions(counted @ beliefs[free], elsewhere)
            self._fit_classes(logs, classes_now, beliefs)
        return self

    def posterior(self, probabilities: Floats, given: Labels, trusted: Mask | None = None) -> tuple[Floats, float]:
        """P(true class | inputs, given label), (n, c), and the mean log-likelihood of the labels."""
        return self._posterior(self.true_classes(probabilities), given, trusted)

    def _posterior(self, classes: Floats, given: Labels, trusted: Mask | None) -> tuple[Floats, float]:
        joint = classes * self.transitions.T[given]
        if trusted is not None:
            joint[trusted] = joint[trusted] * np.eye(joint.shape[1])[given[trusted]] + 1e-300
        total = joint.sum(1, keepdims=True).clip(1e-300)
        joint /= total
        if trusted is not None:
            joint[trusted] = np.eye(joint.shape[1])[given[trusted]]
        return joint, float(np.log(total).mean())

    def true_classes(self, probabilities: Floats) -> Floats:
        """P(true class | inputs), (n, c)."""
        return self._softmax(_logs(probabilities))

    def _softmax(self, logs: Floats) -> Floats:
        # logarithms end at that of `_TINY` and the bias is drawn to 0, so nothing overflows
        found: Floats = logs * self.power
        found += self.bias
        np.exp(found, out=found)
        found /= found.sum(1, keepdims=True)
        return found

    def labels(self, probabilities: Floats) -> Floats:
        """P(given label | inputs), (n, c)."""
        found: Floats = self.true_classes(probabilities) @ self.transitions
        return found

    def _fit_transitions(self, believed: Floats, elsewhere: Floats) -> None:
        """T from the beliefs in true classes, summed over the labels of each given class."""
        classes = len(elsewhere)
        counts = believed.T  # (true, given)
        kept, sizes = np.diag(counts), counts.sum(1)
        rate = float(np.clip(1 - (kept.sum() + 0.9) / (sizes.sum() + 1), 1e-3, 0.8))
        simple = (1 - rate) * np.eye(classes) + rate * elsewhere
        if self.shape == "uniform":
            self.transitions = simple
        elif self.shape == "by class":
            rates = (sizes - kept + _PSEUDO * rate) / (sizes + _PSEUDO)
            self.transitions = np.diag(1 - rates) + rates[:, None] * elsewhere
        else:
            self.transitions = (counts + _PSEUDO * simple) / (sizes[:, None] + _PSEUDO)

    def _fit_classes(self, logs: Floats, classes: Floats, beliefs: Floats) -> None:
        """Power and bias by a Newton step on the expected log-likelihood of the true classes, now `classes`.

        One step a round does as well as the maximum (Lange 1995, the EM gradient algorithm), and needs no exponential.
        """
        power, count = self.power, len(logs)
        weighed = classes * logs
        of_rows, of_classes, squares = weighed.sum(1), weighed.sum(0), float(np.vdot(weighed, logs))
        expected = classes.sum(0)
        ridge = np.full(1 + logs.shape[1], 2 * RIDGE)
        ridge[0] = 2 * max(RIDGE, POWER_RIDGE * count)
        slope = np.append(power * (np.vdot(beliefs, logs) - of_rows.sum()), beliefs.sum(0) - expected)
        slope -= ridge * np.append(np.log(power / POWER), self.bias)
        spread = expected - np.einsum("nc,nc->c", classes, classes)
        scale = ridge + np.append(power**2 * (squares - of_rows @ of_rows), spread)

        def curvature(step: Floats) -> Floats:
            """The matrix of second derivatives times `step`, by products with `classes` alone."""
            by_power, by_bias = power * step[0], step[1:]
            moved = by_power * of_rows + classes @ by_bias
            turned = by_power * squares + of_classes @ by_bias - of_rows @ moved
            shifted = by_power * of_classes + expected * by_bias - moved @ classes
            found: Floats = ridge * step + np.append(power * turned, shifted)
            return found

        step = np.clip(_solve(curvature, slope, scale), -_FARTHEST, _FARTHEST)
        self.power = float(np.exp(np.clip(np.log(power) + step[0], *POWERS)))
        self.bias = self.bias + step[1:]


@dataclass(frozen=True, eq=False)
class Judgement:
    """What is thought of the labels.

    Attributes:
        quality: (n,) how probable it is that a label is right.
        beliefs: (n, c) P(true class | inputs, given label), over the shapes of T.
        transitions: (c, c) likewise.
        shapes: weight of each shape.
        noise_rate: share of wrong labels.
        noise_interval: low and high end of it.
    """

    quality: Floats
    beliefs: Floats
    transitions: Floats
    shapes: dict[str, float]
    noise_rate: float
    noise_interval: tuple[float, float]


def judge(
    probabilities: Floats, given: Labels, trusted: Mask | None = None, seed: int = 0, margins: bool = True
) -> Judgement:
    """Judge labels by probabilities (n, c) from classifiers that never saw them.

    Without `margins`, labels are ordered by the model of the noise alone, and a small gain is enough for a full T: so
    linear discriminant analysis of embeddings does best.
    """
    most = max(_ENOUGH_LABELS, _OF_EACH * probabilities.shape[1])
    some = np.random.default_rng(seed).permutation(len(given))[:most] if len(given) > most else np.arange(len(given))
    learned = probabilities[some], given[some], None if trusted is None else trusted[some]
    weights = shape_weights(*learned, seed, _PER_LABEL if margins else 0.0)
    models = [NoiseModel(shape).fit(*learned) for shape in SHAPES]
    found = [model.posterior(probabilities, given, trusted)[0] for model in models]
    beliefs: Floats = np.einsum("s,snc->nc", weights, np.stack(found))
    if trusted is not None:
        beliefs[trusted] = np.eye(beliefs.shape[1])[given[trusted]]
    transitions = np.einsum("s,sij->ij", weights, np.stack([model.transitions for model in models]))
    free = np.ones(len(given), bool) if trusted is None or trusted.all() else ~trusted
    quality = np.ones(len(given))
    right = beliefs[np.arange(len(given)), given][free]
    uniform = float(weights[0])
    quality[free] = _quality(probabilities[free], given[free], beliefs[free], uniform) if margins else right
    rate, interval = _rate(probabilities[free], given[free], right)
    shapes = dict(zip(SHAPES, weights.tolist(), strict=True))
    return Judgement(quality, beliefs, transitions, shapes, rate, interval)


def shape_weights(
    probabilities: Floats, given: Labels, trusted: Mask | None, seed: int, per_label: float = _PER_LABEL
) -> Floats:
    """(3,) how far each shape is believed, by the likelihood of labels that it was not fitted on."""
    fold = np.random.default_rng(seed).permutation(len(given)) % _FOLDS
    gains = -max(_PARSIMONY, per_label * len(given)) * np.arange(len(SHAPES), dtype=np.float64)
    tried = 1 if probabilities.size > _CELLS else _FOLDS
    for k in range(tried if len(given) >= 10 * _FOLDS else 0):
        fitted, held = fold != k, fold == k
        for place, shape in enumerate(SHAPES):
            known = None if trusted is None else trusted[fitted]
            model = NoiseModel(shape).fit(probabilities[fitted], given[fitted], known)
            asked = held if trusted is None else held & ~trusted
            if asked.any():
                gains[place] += model.posterior(probabilities[asked], given[asked])[1] * asked.sum() * _FOLDS / tried
    raised = np.exp(gains - gains.max())
    weights: Floats = raised / raised.sum()
    return weights


def _quality(probabilities: Floats, given: Labels, beliefs: Floats, uniform: float = 0.0) -> Floats:
    """(n,) how probable it is that each label is right.

    The probabilities are those of the model of the noise. Which label gets which of them also depends on the margin by
    which the label's class is ahead of the best other one: it finds confusions of two classes that the model was too
    cautious to believe in. As far as noise is believed to be uniform, nothing but the label's own probability tells
    (Bayes' rule for a T with one rate for all): the model's power would only blur it where classes overlap.
    """
    rows = np.arange(len(given))
    right = beliefs[rows, given]
    others = probabilities.copy()
    others[rows, given] = 0
    own = probabilities[rows, given]
    lead = (1 + own - others.max(1)) / 2
    found = np.empty(len(given))
    order = uniform * own + (1 - uniform) * (right + lead) / 2
    found[np.argsort(order, kind="stable")] = np.sort(right)
    return found


def _rate(probabilities: Floats, given: Labels, right: Floats) -> tuple[float, tuple[float, float]]:
    """The share of wrong labels, and its range.

    From labels and inputs alone, wrong labels can't be told for sure from classes that look alike. At most all labels
    that the classifiers disagree with are wrong. The least share, and how it is found where the model says next to
    nothing, was chosen on half of the cases in docs/label_issues.md.
    """
    disagreement = float((probabilities.argmax(1) != given).mean())
    modelled = float(1 - right.mean())
    rate = max(modelled, _OF_DISAGREEMENT * disagreement)
    low, high = _LEAST_SHARE * min(modelled, rate), max(disagreement, rate)
    return rate, (max(low - _sampling(low, len(given)), 0.0), min(high + _sampling(high, len(given)), 1.0))


def _sampling(share: float, count: int) -> float:
    return float(1.96 * np.sqrt(max(share * (1 - share), 1 / count) / count))


def _counter(given: Labels, classes: int) -> sparse.csr_matrix:
    """(c, n) a matrix that sums rows by their label."""
    count = len(given)
    return sparse.csr_matrix((np.ones(count), (given, np.arange(count))), (classes, count))


def _logs(probabilities: Floats) -> Floats:
    found: Floats = np.log(np.clip(probabilities, _TINY, 1))
    return found


def _solve(matrix: Callable[[Floats], Floats], right: Floats, scale: Floats) -> Floats:
    """x with matrix(x) = right, about: some steps of conjugate gradients, preconditioned by the diagonal `scale`."""
    found = np.zeros_like(right)
    left = right.copy()
    direction = left / scale
    size = left @ direction
    for _ in range(min(_STEPS, len(right))):
        if size < 1e-20:
            break
        turned = matrix(direction)
        length = size / (direction @ turned)
        found += length * direction
        left -= length * turned
        scaled = left / scale
        before, size = size, left @ scaled
        direction = scaled + (size / before) * direction
    return found
