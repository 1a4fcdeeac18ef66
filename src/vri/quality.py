"""What a trained classifier tells about the labels."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

# measured in docs/label_issues.md
_SHARPNESS = 2.0  # power of the probabilities: label smoothing makes the classifier less sure than it could be
_ROUNDS = 10  # of expectation-maximisation


def transition_matrix(probabilities: Tensor, noisy_labels: Tensor, rounds: int = 0) -> Tensor:
    """How labels got confused: entry (i, j) estimates P(noisy label j | true class i).

    Each sample counts for every class as much as the classifier believes in it; rows sum to 1. A class that the
    classifier never believes in gets its identity row.

    Args:
        probabilities: (n, c) the classifier's beliefs about the true classes.
        noisy_labels: (n,) the labels that were given.
        rounds: of expectation-maximisation, in each of which a sample's label and the matrix so far have a say in
            what its class is: without it, doubts of the classifier count as confusion of the labels.
    """
    given = torch.nn.functional.one_hot(noisy_labels, probabilities.shape[1]).double()
    matrix = _shares(probabilities.double().T @ given)
    for _ in range(rounds):
        matrix = _shares(true_class(probabilities, noisy_labels, matrix).T @ given)
    return matrix


def lift(probabilities: Tensor, noisy_labels: Tensor) -> Tensor:
    """(c, c) how many times as often label j goes with class i as the classifier's own doubts explain.

    If labels were drawn from the classifier's beliefs, all entries would be 1. Confusions of the labels stand out from
    the confusions of a classifier that can't tell two classes apart.
    """
    beliefs = probabilities.double()
    return transition_matrix(beliefs, noisy_labels) / _shares(beliefs.T @ beliefs).clamp_min(1e-12)


def true_class(probabilities: Tensor, given: Tensor, transitions: Tensor) -> Tensor:
    """(n, c) P(true class | inputs, given label), by Bayes' rule.

    The classifier alone says how probable a class is from the inputs; the transitions say how probable it is that the
    given label came out of it.

    Args:
        probabilities: (n, c) the classifier's beliefs about the true classes.
        given: (n,) labels.
        transitions: (c, c) P(given label j | true class i).
    """
    joint = probabilities.double() * transitions.double().T[given]  # (n, c)
    return joint / joint.sum(1, keepdim=True).clamp_min(1e-300)


def sharpen(probabilities: Tensor, power: float) -> Tensor:
    """Probabilities raised to a power and normalised, for a classifier that is less sure than it could be."""
    raised = probabilities.double().clamp_min(1e-300).log().mul(power)
    return raised.softmax(1)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is thought of the labels.

    Attributes:
        label_quality: (n,) probability that a label is right.
        beliefs: (n, c) probability of each class, given inputs and label.
        transitions: (c, c) how labels got confused.
        noise_rate: estimated share of wrong labels.
        noise_interval: range of other estimates of it, with the sampling error at 95 %.
    """

    label_quality: Tensor
    beliefs: Tensor
    transitions: Tensor
    noise_rate: float
    noise_interval: tuple[float, float]


def judge(probabilities: Tensor, given: Tensor) -> Verdict:
    """Judge labels by a classifier's probabilities.

    How good a label is, compared with the others, comes from the `lift`: it withstands a weak classifier. How probable
    it is to be right comes from the transitions: of all labels, the one that is worst by lift gets the lowest
    probability, and so on. docs/label_issues.md has the measurements behind this.

    Args:
        probabilities: (n, c) the classifier's beliefs about the true classes.
        given: (n,) labels.
    """
    sure = sharpen(probabilities, _SHARPNESS)
    transitions = transition_matrix(sure, given, _ROUNDS)
    beliefs = true_class(sure, given, transitions)
    lifts = lift(sure, given)
    ranked = _of(true_class(probabilities, given, lifts), given).argsort(stable=True)
    right = torch.empty(len(given), dtype=torch.float64, device=given.device)
    right[ranked] = _of(beliefs, given).sort().values
    rate = 1 - float(right.mean())
    others = [
        1 - float(_of(true_class(probabilities, given, transitions), given).mean()),
        1 - float(_of(true_class(sure, given, lifts), given).mean()),
        float((probabilities.argmax(1) != given).double().mean()),
    ]
    low, high = min(rate, *others), max(rate, *others)
    interval = (max(low - _sampling(low, len(given)), 0.0), min(high + _sampling(high, len(given)), 1.0))
    return Verdict(right, beliefs, transitions, rate, interval)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What `judge` made of some labels, to judge others like them by, as many at a time as one likes.

    Attributes:
        transitions: (c, c) how labels got confused.
        lifts: (c, c) see `lift`.
        scores: (k,) ascending, how good labels are by lift.
        qualities: (k,) ascending, the probability of being right that goes with each; between them it is interpolated.
    """

    transitions: Tensor
    lifts: Tensor
    scores: Tensor
    qualities: Tensor

    @classmethod
    def learn(cls, probabilities: Tensor, given: Tensor, verdict: Verdict) -> Self:
        """From what `judge` got and what it found."""
        lifts = lift(sharpen(probabilities, _SHARPNESS), given)
        scores, group = _of(true_class(probabilities, given, lifts), given).unique(return_inverse=True)
        # labels that are as good as each other by lift share what they got
        total = torch.zeros_like(scores).index_add_(0, group, verdict.label_quality)
        return cls(verdict.transitions, lifts, scores, total / torch.bincount(group))

    def judge(self, probabilities: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        """Quality (n,) of labels and beliefs (n, c), as `judge` would give them in the company it has seen."""
        beliefs = true_class(sharpen(probabilities, _SHARPNESS), given, self.transitions)
        score = _of(true_class(probabilities, given, self.lifts), given)
        high = torch.searchsorted(self.scores, score).clamp(max=len(self.scores) - 1)
        low = (high - 1).clamp(min=0)
        share = (score - self.scores[low]) / (self.scores[high] - self.scores[low]).clamp_min(1e-300)
        return torch.lerp(self.qualities[low], self.qualities[high], share.clamp(0, 1)), beliefs


def threshold(label_quality: Tensor, precision: float) -> float:
    """The quality below which at least about a share `precision` of the labels is wrong, if the qualities are right.

    As many labels as possible are below it: the worst ones, for as long as each is more probably wrong than right and
    their mean probability of being wrong is at least `precision`. 0, which is below all of them, where even the worst
    are not bad enough.
    """
    ascending = label_quality.double().sort().values
    wrong = (1 - ascending).cumsum(0) / torch.arange(1, len(ascending) + 1, device=ascending.device)
    count = int(((wrong >= precision) & (ascending < 0.5)).sum())  # both fall, so these are the first ones
    if count == 0:
        return 0.0
    above = float(ascending[count]) if count < len(ascending) else 1.0
    return min((float(ascending[count - 1]) + above) / 2, 0.5)


def outlier_score(probabilities: Tensor) -> Tensor:
    """(n,) from 0 to 1: how far the classifier is from having one class in mind, whatever the label says.

    The squared entropy of its beliefs, 1 where all classes are as probable. A sample of two classes at once stays low
    where there are many classes: 0.09 for 10. On images of classes that are not among the labels this is far ahead of
    distances between features (docs/label_issues.md).

    Args:
        probabilities: (n, c) the classifier's beliefs.
    """
    sure = sharpen(probabilities, _SHARPNESS)
    entropy = -(sure * sure.clamp_min(1e-300).log()).sum(1) / math.log(sure.shape[1])
    return entropy.clamp(0, 1).square()


def _shares(counts: Tensor) -> Tensor:
    """Rows of counts to shares; a row without any becomes that of the identity."""
    totals = counts.sum(1, keepdim=True)
    identity = torch.eye(len(counts), dtype=counts.dtype, device=counts.device)
    return torch.where(totals > 0, counts / totals.clamp_min(1e-300), identity)


def _of(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(1, labels[:, None]).squeeze(1)


def _sampling(share: float, count: int) -> float:
    return 1.96 * math.sqrt(max(share * (1 - share), 1 / count) / count)
