"""Probabilistic Meta-Weight-Net: the weight of a sample is drawn from a distribution that depends on its loss."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta, kl_divergence

from vri.core.model import Outputs
from vri.core.randomness import draw_seed, seeded
from vri.methods.base import Cost, Rates
from vri.methods.losses import sample_losses
from vri.methods.meta import LossNetwork, MetaMethod
from vri.methods.options import option

_SMALLEST = 1e-2  # of the two parameters; closer to 0 the derivative of a draw grows without bound


class BetaNetwork(nn.Module):
    """Maps a sample's loss to the two parameters of a Beta distribution, each by its own MLP; also holds the prior."""

    prior: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.alpha, self.beta = LossNetwork(hidden, F.softplus), LossNetwork(hidden, F.softplus)
        self.register_buffer("prior", torch.ones(2))  # Beta(1, 1) is uniform

    def forward(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters α and β of each sample, (n,) both."""
        return self.alpha(losses) + _SMALLEST, self.beta(losses) + _SMALLEST


class Weights(NamedTuple):
    """Sample weights and where they come from."""

    drawn: Tensor  # (n,)
    alpha: Tensor
    beta: Tensor


class PMWNet(MetaMethod):
    """Weight each sample by a draw from Beta(α(Lᵢ), β(Lᵢ)); both are MLPs 1-100-1 with a softplus.

    The classifier minimises 1/n Σ wᵢ·Lᵢ with wᵢ drawn, and the meta networks L_meta(θ̂) + α·λ·KL(posterior ‖ prior).
    The prior is a Beta distribution too, learned as the paper's empirical Bayes: its parameters are the means of
    α(Lᵢ) and β(Lᵢ) over the last batch; it begins as the uniform distribution.

    Departures: the paper's text was not available to us, only what the VRI paper says about it and the settings of its
    public code. That code resets the prior to uniform at every epoch; here it persists. 0.01 is added to α and β, since
    the derivative of a draw grows without bound as they approach 0. The authors use Adam with learning rate 1e-3 and
    weight decay 1e-4.

    Args:
        kl_weight: λ.
        hidden: width of the hidden layers.
    """

    name = "pmw-net"
    paper = "Zhao et al. 2023, A Probabilistic Formulation for Meta-Weight-Net, IEEE TNNLS"
    cost = Cost(3.6, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))

    kl_weight: float | None = option(1e-3, "0 or more")
    hidden: int = option(100, "at least 1")
    meta_weight_decay = 1e-4

    beta_network: BetaNetwork

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.learn_with(lambda: {"beta_network": BetaNetwork(self.hidden)})

    def draw(self, count: int) -> int:
        """Seed of the weights: Beta distributions use only the global generator."""
        return draw_seed(self.generator)

    def correct(self, outputs: Outputs, labels: Tensor, drawn: int) -> Weights:
        """Draw the weights."""
        alpha, beta = self.beta_network(sample_losses(outputs.logits, labels))
        with seeded(drawn, alpha.device):
            weights = Beta(alpha, beta, validate_args=False).rsample()
        return Weights(weights, alpha, beta)

    def loss(self, logits: Tensor, labels: Tensor, correction: Weights) -> Tensor:
        """Weighted cross-entropy."""
        return (correction.drawn * sample_losses(logits, labels)).mean()

    def kl(self, correction: Weights) -> Tensor:
        """KL(Beta(αᵢ, βᵢ) ‖ prior), averaged over the samples."""
        posterior = Beta(correction.alpha, correction.beta, validate_args=False)
        prior = Beta(self.beta_network.prior[0], self.beta_network.prior[1], validate_args=False)
        return kl_divergence(posterior, prior).mean()

    def finish(self, correction: Weights, labels: Tensor) -> dict[str, Tensor]:
        """Set the prior of the next step; report the mean weight."""
        parameters = torch.stack([correction.alpha, correction.beta], dim=1)  # (n, 2)
        self.beta_network.prior.copy_(self.classifier.batch_mean(parameters))
        return {"weight": correction.drawn.mean()}
