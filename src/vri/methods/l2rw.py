"""Learning to reweight: sample weights of a batch from one gradient on trusted samples."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vri.core.checks import Batch
from vri.core.model import Outputs
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.losses import sample_losses
from vri.methods.meta import MetaMethod
from vri.methods.options import option, refused


class L2RW(MetaMethod):
    """Weight each sample by how well its gradient agrees with that of the trusted samples.

    There is no meta network. The look-ahead is θ − α∇Σ εᵢ·Lᵢ at ε = 0, the weights are max(−∂L_meta/∂εᵢ, 0) =
    max(α⟨∇Lᵢ, ∇L_meta⟩, 0), divided by their mean; if none is positive, all are 0 and the classifier doesn't move
    (except by γ, momentum and weight decay). The classifier minimises 1/n Σ wᵢ·Lᵢ.

    Departures: none. `lagged` and the options of the meta optimizer have no meaning here and are refused.

    Args:
        meta_every: must be 1, since weights belong to one batch.
    """

    name = "l2rw"
    paper = "Ren et al. 2018, Learning to Reweight Examples for Robust Deep Learning, ICML"
    cost = Cost(3.6, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))

    meta_every: int = option(1, "1: the weights belong to one batch", lambda m: m.meta_every == 1)
    meta_lr = meta_weight_decay = meta_amsgrad = meta_optimizer = lagged = refused("there is no meta network")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.weights = torch.empty(0)  # of the current batch

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One iteration, from ε = 0."""
        count, device, dtype = len(batch[1]), self.classifier.device, self.classifier.dtype
        epsilon = torch.zeros(count, device=device, dtype=dtype, requires_grad=True)
        self.meta_parameters, self.weights = [epsilon], count * epsilon  # so that the mean below is Σ εᵢ·Lᵢ
        return super().step(batch, meta_batch)

    def learn(self, gradient: Sequence[Tensor]) -> None:
        """Turn the gradient in ε into weights with mean 1."""
        useful = (-gradient[0]).clamp(min=0)
        mean = self.classifier.batch_mean(useful)
        self.weights = useful / torch.where(mean > 0, mean, 1)

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Any) -> Tensor:
        """n·ε in the look-ahead, then the weights (n,)."""
        return self.weights

    def loss(self, logits: Tensor, labels: Tensor, correction: Tensor) -> Tensor:
        """Weighted sum of the cross-entropies, written as a mean."""
        return (correction * sample_losses(logits, labels)).mean()

    def finish(self, correction: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Share of samples with a positive weight."""
        return {"used": (correction > 0).double().mean()}
