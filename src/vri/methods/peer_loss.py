"""Peer loss: the loss of a label minus the loss of a label that is unrelated to the input."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics
from vri.methods.losses import one_hot
from vri.methods.options import Configured, option

_LEAST = 1e-5  # added to a probability, so that the loss that is subtracted stays bounded
START, FULL = 20 / 300, 50 / 300  # shares of the training between which α grows


def bounded_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of −Σ_c y_c log(p_c + 1e-5), at most 11.5."""
    log_p = (F.softmax(logits, dim=1) + _LEAST).log()
    return -(one_hot(labels, logits) * log_p).sum(1).mean()


def peer_loss(logits: Tensor, labels: Tensor, inputs: Tensor, others: Tensor, alpha: float) -> Tensor:
    """L(f(xᵢ), yᵢ) − α·L(f(x_j), y_k), where j and k are the places `inputs` and `others`."""
    return bounded_cross_entropy(logits, labels) - alpha * bounded_cross_entropy(logits[inputs], labels[others])


def ramp(progress: float) -> float:
    """Factor on α at a share of the training."""
    return min(max((progress - START) / (FULL - START), 0.0), 1.0)


class PeerLoss(Configured):
    """Train on ℓ(f(xᵢ), yᵢ) − α·ℓ(f(x_j), y_k), with j and k drawn independently of each other.

    ℓ is −log(p_y + 1e-5), as in the authors' code for several classes. As there, α grows from 0 between 20 and 50 of
    300 epochs, and the learning rate is divided by 1 + α. The default α = 1 is the paper's value for balanced classes;
    there it is constant. The code's α has grown to 2 after 50 epochs and goes on to 20, while the learning rate falls
    tenfold every 40 epochs, so that little comes of it. With schedules that fall more slowly a large α gains more or
    fails: with α > 1 a network that always says the same has a low loss, too. On digits with an MLP (70 epochs, 3
    seeds) α = 1, 1.5 and 2 reach 68, 73 and 78 % under 40 % flips, where cross-entropy has 69 %, and 88, 89 and 53 %
    under 60 % uniform noise, where it has 87 %.

    Departures: j and k are two random orders of the batch, so no other samples pass through the network; the code draws
    two more batches. The code creates a new optimizer in every epoch.

    Args:
        weight: α after its growth; 0 is cross-entropy except for the 1e-5.
    """

    name = "peer-loss"
    paper = "Liu, Guo, Peer Loss Functions: Learning from Noisy Labels without Knowing Noise Rates (ICML 2020)"
    cost = Cost(1.0, 1.0)

    weight: float = option(1.0, "0 or more")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.alpha = self.weight  # now; a loop of its own has no progress
        self.saved += ["alpha"]

    def lr_scale(self, progress: float, schedule: Callable[[float], float]) -> float:
        """The schedule, divided by 1 + α."""
        self.alpha = self.weight * ramp(progress)
        return schedule(progress) / (1 + self.alpha)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step down the peer loss."""
        device = self.classifier.device
        inputs, others = (self._order(len(batch[1])).to(device) for _ in range(2))
        return self.descend(batch, lambda z, y: peer_loss(z, y, inputs, others, self.alpha), peer_weight=self.alpha)

    def _order(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self.generator, device=self.generator.device)
