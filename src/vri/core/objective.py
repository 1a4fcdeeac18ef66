"""The equations: one pure function each, in the paper's order.

Shapes: n samples, c classes, k draws of the rectifying vector, d features. `log_var` is always log σ².
Labels are class indices (n,) or probability vectors (n, c).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Gaussian(NamedTuple):
    """A factorised Gaussian over rectifying vectors, one row per sample."""

    mean: Tensor  # (n, c)
    log_var: Tensor  # (n, c), log σ²


Squash = Callable[[Tensor], Tensor]

SQUASHES: dict[str, Squash] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "none": lambda v: v,
}


def reparameterize(gaussian: Gaussian, noise: Tensor) -> Tensor:
    """Draw v = μ + σ·ε.

    Eq. (eq:reparam); `noise` is ε of shape (k, n, c).
    """
    return torch.addcmul(gaussian.mean, (0.5 * gaussian.log_var).exp(), noise)  # (k, n, c)


def rectify(vectors: Tensor, logits: Tensor, squash: Squash = torch.sigmoid) -> Tensor:
    """Rectified logits π(v) ⊙ z.

    The argument of L in Eq. (eq:obj0); `vectors` (k, n, c) or (n, c), `logits` (n, c).
    """
    return squash(vectors) * logits


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over all leading dimensions: −Σ_c y_c log softmax(z)_c.

    The loss L of the paper, for hard labels (n,) and soft ones (n, c) alike.
    """
    if labels.is_floating_point():
        return -(labels * F.log_softmax(logits, dim=-1)).sum(-1).mean()
    if logits.ndim > 2:  # k draws of n samples are k·n samples
        labels, logits = labels.expand(logits.shape[:-1]).flatten(), logits.flatten(0, -2)
    return F.cross_entropy(logits, labels)


def gaussian_kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q ‖ p) of each sample, summed over the classes.

    Section "Complexity" of the paper: log σ₂/σ₁ + (σ₁² + (μ₁−μ₂)²) / 2σ₂² − 1/2.
    """
    difference = q.log_var - p.log_var
    mahalanobis = (q.mean - p.mean).square() * (-p.log_var).exp()
    return 0.5 * (difference.expm1() - difference + mahalanobis).sum(-1)  # (n,)


def empirical_loss(vectors: Tensor, logits: Tensor, labels: Tensor, squash: Squash = torch.sigmoid) -> Tensor:
    """Cross-entropy of the rectified logits, averaged over draws and samples.

    Eq. (eq:obj0); first term of Eq. (eq:obj1); the loss of the real update, Eq. (eq:theta_update).
    """
    return cross_entropy(rectify(vectors, logits, squash), labels)


def elbo_loss(
    q: Gaussian,
    p: Gaussian,
    noise: Tensor,
    logits: Tensor,
    labels: Tensor,
    kl_weight: float,
    squash: Squash = torch.sigmoid,
) -> Tensor:
    """Negative evidence lower bound with the KL term weighted by λ.

    Eq. (eq:elbo) as written for training in Eq. (eq:obj1).
    """
    return empirical_loss(reparameterize(q, noise), logits, labels, squash) + kl_weight * gaussian_kl(q, p).mean()


def meta_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of the looked-ahead classifier on trusted samples.

    Eq. (eq:obj2); `smoothing` mixes the labels with the uniform distribution (0 is the paper).
    """
    hard = cross_entropy(logits, labels)
    if smoothing == 0:
        return hard
    return (1 - smoothing) * hard - smoothing * F.log_softmax(logits, dim=-1).mean()
