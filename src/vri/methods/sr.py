"""Sparse regularisation: nearly one-hot outputs, by a temperature and an ℓp penalty."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics
from vri.methods.options import Configured, option

_TIMES = 120  # that λ grows: once in each of the authors' epochs
_LEAST = 1e-7  # of a probability, so that the derivative of its small power stays finite


def sharpened(logits: Tensor, temperature: float, normalize: bool) -> Tensor:
    """z / τ, or z / (‖z‖·τ)."""
    return (F.normalize(logits, dim=1) if normalize else logits) / temperature


def sparsity(logits: Tensor, power: float) -> Tensor:
    """Mean of ‖softmax(z)‖_p^p = Σ_c p_c^p: 1 for a single class, c^(1 − p) if all are alike."""
    return F.softmax(logits, dim=1).clamp_min(_LEAST).pow(power).sum(1).mean()


class SR(Configured):
    """Train with cross-entropy on sharpened outputs, and a penalty on outputs that are not one-hot.

    L = CE(s, y) + λ·Σ_c softmax(s)_c^p with s = z / (‖z‖₂·τ); λ grows by the factor ρ 120 times in the course of the
    training, as often as in the authors' 120 epochs. If outputs are nearly permutations of one fixed vector, any loss
    is robust to symmetric noise.

    Defaults are those of the authors' code for CIFAR-10 with cross-entropy (120 epochs): τ = 0.5, p = 0.1, λ = 1.2,
    ρ = 1.03. For CIFAR-100 it has p = 0.01, λ = 10, ρ = 1.02; for MNIST τ = 0.1, λ = 4, ρ = 2 every 5 epochs and no
    division by ‖z‖. The authors also clip the gradient's norm at 5, which is left out here. If z is divided by its
    length, that length is not trained: the model's own softmax then shows the class, but not the confidence.

    Args:
        temperature: τ.
        power: p.
        weight: λ in the first epoch; 0 leaves out the penalty.
        growth: ρ.
        every: epochs after which λ grows, instead; in many epochs it grows beyond all bounds, and nothing is learned.
        normalize: whether z is divided by its length.
    """

    name = "sr"
    paper = "Zhou, Liu, Wang, Zhai, Jiang, Ji, Learning with Noisy Labels via Sparse Regularization (ICCV 2021)"
    cost = Cost(1.0, 1.0)

    temperature: float = option(0.5, "more than 0")
    power: float = option(0.1, "a number in (0, 1)")
    weight: float = option(1.2, "0 or more")
    growth: float = option(1.03, "1 or more", lambda m: m.growth >= 1)
    every: int | None = option(None, "None or at least 1")
    normalize: bool = option(True)

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.current_weight = self.weight
        self.saved += ["current_weight"]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set λ."""
        grown = _TIMES * epoch / epochs if self.every is None else epoch // self.every
        self.current_weight = self.weight * self.growth**grown

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy and penalty."""

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            outputs = sharpened(logits, self.temperature, self.normalize)
            return objective.cross_entropy(outputs, labels) + self.current_weight * sparsity(outputs, self.power)

        return self.descend(batch, loss, penalty_weight=self.current_weight)
