"""The meta network V_φ and the prior network H_ω."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vri.objective import Gaussian

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


def _tanh_mlp(width: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.Tanh()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class MetaNetwork(nn.Module):
    """V_φ: features and label to the posterior q(v | x, y)."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        hidden: Sequence[int] = (1024, 512),
        label_dim: int = 64,
        bound: str = "log_var",
        log_var_bound: float = 4.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, label_dim)
        self.body = _tanh_mlp(feature_dim + label_dim, hidden, 2 * num_classes)
        self._bound, self._limit = BOUNDS[bound][0], log_var_bound

    def forward(self, features: Tensor, labels: Tensor) -> Gaussian:
        """Posterior of each sample; a soft label is embedded as the mixture of its classes."""
        soft = labels.is_floating_point()
        embedded = labels @ self.embedding.weight if soft else self.embedding(labels)  # (n, label_dim)
        mean, log_var = self.body(torch.cat([features, embedded], dim=1)).chunk(2, dim=1)
        return self._bound(mean, log_var, self._limit)


class PriorNetwork(nn.Module):
    """H_ω: features alone to the prior p(v | x)."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        hidden: Sequence[int] = (1024, 512),
        bound: str = "log_var",
        log_var_bound: float = 4.0,
    ) -> None:
        super().__init__()
        self.body = _tanh_mlp(feature_dim, hidden, 2 * num_classes)
        self._bound, self._limit = BOUNDS[bound][1], log_var_bound

    def forward(self, features: Tensor) -> Gaussian:
        """Prior of each sample."""
        mean, log_var = self.body(features).chunk(2, dim=1)
        return self._bound(mean, log_var, self._limit)
