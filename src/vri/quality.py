"""What a trained classifier tells about the labels."""

import math

import torch
from torch import Tensor


def transition_matrix(probabilities: Tensor, noisy_labels: Tensor) -> Tensor:
    """How labels got confused: entry (i, j) estimates P(noisy label j | true class i).

    Each sample counts for every class as much as the classifier believes in it; rows sum to 1. A class that the
    classifier never believes in gets its identity row.

    Args:
        probabilities: (n, c) the classifier's beliefs about the true classes.
        noisy_labels: (n,) the labels that were given.
    """
    beliefs = probabilities.double()
    given = torch.nn.functional.one_hot(noisy_labels, beliefs.shape[1]).double()
    counts = beliefs.T @ given  # (c, c)
    totals = counts.sum(1, keepdim=True)
    identity = torch.eye(len(counts), dtype=torch.float64, device=counts.device)
    return torch.where(totals > 0, counts / totals.clamp_min(1e-300), identity)


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


def noise_rate(label_quality: Tensor, probabilities: Tensor, given: Tensor) -> tuple[float, tuple[float, float]]:
    """Estimated share of wrong labels, and an interval around it.

    The interval spans the mean probability of being wrong and the share of labels that are not the classifier's first
    choice, which err to different sides, and the sampling error at 95 %.
    """
    estimate = float((1 - label_quality).double().mean())
    disagreed = float((probabilities.argmax(1) != given).double().mean())
    low, high = min(estimate, disagreed), max(estimate, disagreed)
    return estimate, (max(low - _sampling(low, len(given)), 0.0), min(high + _sampling(high, len(given)), 1.0))


def outlier_score(features: Tensor, classes: Tensor) -> Tensor:
    """(n,) from 0 to 1: how far a sample's features are from those of its class, compared with the others of it.

    Distance to the centre of the class in units of the features' common spread; 0.5 is four robust standard deviations
    above the usual distance.

    Args:
        features: (n, d) of the classifier.
        classes: (n,) that the samples are thought to belong to.
    """
    x = features.double()
    present, place = classes.unique(return_inverse=True)
    sums = torch.zeros(len(present), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, place, x)
    centres = sums / torch.bincount(place)[:, None]
    rest = x - centres[place]
    covariance = rest.T @ rest / len(x)
    ridge = 1e-3 * covariance.diagonal().mean().clamp_min(1e-12)
    factor = torch.linalg.cholesky(covariance + ridge * torch.eye(len(covariance), dtype=x.dtype, device=x.device))
    distance = torch.linalg.solve_triangular(factor, rest.T, upper=False).norm(dim=0)
    usual = distance.median()
    spread = 1.4826 * (distance - usual).abs().median().clamp_min(1e-12)
    return torch.sigmoid((distance - usual) / spread - 4.0)


def _sampling(share: float, count: int) -> float:
    return 1.96 * math.sqrt(max(share * (1 - share), 1 / count) / count)
