"""MixMatch: the common part of methods that use some samples with their labels and others without."""

import warnings

import torch
from torch import Tensor
from torch.nn import functional as F


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), divided by its sum; 1 leaves p as it is."""
    powers = probabilities ** (1 / temperature)
    return powers / powers.sum(1, keepdim=True)


def labelled_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each sample (n,) with probability vectors."""
    return -(targets * F.log_softmax(logits, dim=1)).sum(1)


def unlabelled_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Squared distance of prediction and target, per class, of each sample (n,)."""
    return (F.softmax(logits, dim=1) - targets).square().mean(1)


def ramp_up(epoch: float, start: float, length: float) -> float:
    """0 until `start`, then linearly to 1."""
    return min(max((epoch - start) / length, 0.0), 1.0) if length > 0 else float(epoch >= start)


def probably_clean(losses: Tensor) -> Tensor:
    """Probability (n,) of each sample to belong to the lower of two Gaussians on the losses, scaled to [0, 1].

    The mixture is fitted as in DivideMix: from two groups found by k-means, at most 10 rounds of EM, until the
    log-likelihood rises by less than 0.01, with 5e-4 added to the variances. (From means of 0 and 1, the second
    Gaussian would stay with the few largest losses.) Samples with indistinguishable losses all count as clean.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    low, high = losses.min(), losses.max()
    if not bool(high > low):
        return torch.ones_like(losses)
    scaled = ((losses - low) / (high - low)).double().cpu().numpy().reshape(-1, 1)
    model = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        shares = model.fit(scaled).predict_proba(scaled)
    return torch.as_tensor(shares[:, model.means_.argmin()]).to(losses)
