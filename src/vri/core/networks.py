"""The meta network V_φ and the prior network H_ω."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.core.objective import Gaussian

Bound = Callable[[Tensor, Tensor, float], Gaussian]


def _bounded_log_var(mean: Tensor, log_var: Tensor, limit: float) -> Gaussian:
    return Gaussian(mean, limit * torch.tanh(log_var / limit))


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
    """Hidden widths for features of this width: the next power of two, from 64 to 1024, and half of that.

    The paper uses 1024 and 512 throughout, which costs more than a small classifier itself.
    """
    width = min(max(2 ** math.ceil(math.log2(feature_dim)), 64), 1024)
    return width, width // 2


class _GaussianMLP(nn.Module):
    """Linear layers with tanh between them; outputs mean and log-variance of one Gaussian per class."""

    def __init__(
        self,
        width: int,
        num_classes: int,
        hidden: Sequence[int],
        bound: Bound,
        limit: float,
        initial_mean: float,
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
        self._bound, self._limit = bound, limit

    def forward(self, inputs: Tensor) -> Gaussian:
        mean, log_var = self.layers(inputs).chunk(2, dim=1)  # (n, c) each
        return self._bound(mean, log_var, self._limit)


class MetaNetwork(nn.Module):
    """V_φ: features and label to the posterior q(v | x, y).

    With `normalize`, each sample's features are first scaled to mean 0 and variance 1: their scale drifts during
    training, and tanh would saturate.
    """

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        hidden: Sequence[int] = (1024, 512),
        label_dim: int = 64,
        bound: str = "log_var",
        log_var_bound: float = 1.0,
        initial_mean: float = 0.0,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, label_dim)
        width = feature_dim + label_dim
        self.body = _GaussianMLP(width, num_classes, hidden, BOUNDS[bound][0], log_var_bound, initial_mean)
        self.normalize = normalize

    def forward(self, features: Tensor, labels: Tensor) -> Gaussian:
        """Posterior of each sample; a soft label is embedded as the mixture of its classes."""
        soft = labels.is_floating_point()
        embedded = labels @ self.embedding.weight if soft else self.embedding(labels)  # (n, label_dim)
        features = F.layer_norm(features, features.shape[1:]) if self.normalize else features
        gaussian: Gaussian = self.body(torch.cat([features, embedded], dim=1))
        return gaussian


class PriorNetwork(nn.Module):
    """H_ω: features alone to the prior p(v | x)."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        hidden: Sequence[int] = (1024, 512),
        bound: str = "log_var",
        log_var_bound: float = 1.0,
        initial_mean: float = 0.0,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        bound_of_prior = BOUNDS[bound][1]
        self.body = _GaussianMLP(feature_dim, num_classes, hidden, bound_of_prior, log_var_bound, initial_mean)
        self.normalize = normalize

    def forward(self, features: Tensor) -> Gaussian:
        """Prior of each sample."""
        features = F.layer_norm(features, features.shape[1:]) if self.normalize else features
        gaussian: Gaussian = self.body(features)
        return gaussian
