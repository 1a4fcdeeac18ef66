"""The meta network V_φ and the prior network H_ω."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.core.objective import Gaussian

_RULED_OUT = 10.0  # nats
PAPER_WIDTH, PAPER_RATE = 1024, 3e-4

Bound = Callable[[Tensor, Tensor, float], Gaussian]


def _bounded_log_var(mean: Tensor, log_var: Tensor, limit: float) -> Gaussian:
    return Gaussian(mean, torch.tanh(log_var) if limit == 1 else limit * torch.tanh(log_var / limit))


BOUNDS: dict[str, tuple[Bound, Bound]] = {  # name: (meta network, prior network)
    # our default: the mean is free, log σ² stays in (−limit, limit)
    "log_var": (_bounded_log_var, _bounded_log_var),
    # the paper's table of architectures: a sigmoid on both outputs
    "sigmoid": (lambda m, s, _: Gaussian(m.sigmoid(), s.sigmoid()),) * 2,
    # the authors' code: free posterior, tanh-bounded prior
    "prior": (lambda m, s, _: Gaussian(m, s), _bounded_log_var),
    "none": (lambda m, s, _: Gaussian(m, s),) * 2,
}


def follow_features(feature_dim: int) -> tuple[int, int]:
    """Hidden widths for features of this width: the next power of two, from 256 to 1024, and half of that.

    The paper uses 1024 and 512 throughout, which costs more than a small classifier itself.
    """
    width = min(max(2 ** math.ceil(math.log2(feature_dim)), 256), PAPER_WIDTH)
    return width, width // 2


def follow_width(width: int) -> float:
    """Learning rate of Adam for meta networks of this width: the paper's, times how much narrower they are.

    Every weight moves by about the learning rate, and the outputs by the sum over the width.
    """
    return PAPER_RATE * PAPER_WIDTH / width


class _GaussianMLP(nn.Module):
    """Linear layers with tanh between them; outputs mean and log-variance of one Gaussian per class."""

    def __init__(
        self,
        width: int,
        num_classes: int,
        prior: bool,
        *,
        hidden: Sequence[int] = (1024, 512),
        bound: str = "log_var",
        log_var_bound: float = 1.0,
        initial_mean: float = 0.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.Tanh()]
            width = size
        last = nn.Linear(width, 2 * num_classes)
        with torch.no_grad():
            last.bias[:num_classes] += initial_mean
        self.layers = nn.Sequential(*layers, last)
        self._bound, self._limit = BOUNDS[bound][prior], log_var_bound

    def forward(self, inputs: Tensor) -> Gaussian:
        mean, log_var = self.layers(inputs).chunk(2, dim=1)  # (n, c) each
        return self._bound(mean, log_var, self._limit)


class MetaNetwork(nn.Module):
    """V_φ: features and label to the posterior q(v | x, y).

    With `normalize`, each sample's features are first scaled to mean 0 and variance 1: their scale drifts during
    training, and tanh would saturate. With `beliefs`, it also reads what the classifier thinks of the label: how far a
    label disagrees with the features is a product of both, which layers that read them side by side learn slowly.
    `shape` is that of `_GaussianMLP`.
    """

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        label_dim: int = 64,
        normalize: bool = True,
        beliefs: bool = False,
        **shape: Any,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, label_dim)
        self.body = _GaussianMLP(feature_dim + label_dim + 3 * beliefs, num_classes, prior=False, **shape)
        self.normalize, self.beliefs = normalize, beliefs

    def forward(self, features: Tensor, labels: Tensor, logits: Tensor | None = None) -> Gaussian:
        """Posterior of each sample; a soft label is embedded as the mixture of its classes."""
        soft = labels.is_floating_point()
        embedded = labels @ self.embedding.weight if soft else self.embedding(labels)  # (n, label_dim)
        features = F.layer_norm(features, features.shape[1:]) if self.normalize else features
        seen = [features, embedded]
        if self.beliefs:
            assert logits is not None
            seen.append(belief_in(labels, logits).to(features.dtype))
        gaussian: Gaussian = self.body(torch.cat(seen, dim=1))
        return gaussian


def belief_in(labels: Tensor, logits: Tensor) -> Tensor:
    """What logits say about a label: log p(y), log p(y) − max log p, and the entropy (n, 3); no gradient passes."""
    log_p = logits.detach().log_softmax(1)
    own = (log_p * labels).sum(1) if labels.is_floating_point() else log_p.gather(1, labels[:, None]).squeeze(1)
    entropy = -(log_p.exp() * log_p).sum(1)
    # a label that is all but ruled out is no clearer for being ruled out further
    return torch.stack([own.clamp_min(-_RULED_OUT), (own - log_p.amax(1)).clamp_min(-_RULED_OUT), entropy], dim=1)


class PriorNetwork(nn.Module):
    """H_ω: features alone to the prior p(v | x)."""

    def __init__(self, feature_dim: int, num_classes: int, *, normalize: bool = True, **shape: Any) -> None:
        super().__init__()
        self.body = _GaussianMLP(feature_dim, num_classes, prior=True, **shape)
        self.normalize = normalize

    def forward(self, features: Tensor) -> Gaussian:
        """Prior of each sample."""
        features = F.layer_norm(features, features.shape[1:]) if self.normalize else features
        gaussian: Gaussian = self.body(features)
        return gaussian
