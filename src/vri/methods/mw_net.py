"""Meta-Weight-Net: the weight of a sample is a learned function of its loss."""

from typing import Any

import torch
from torch import Tensor, nn

from vri.core.model import Outputs
from vri.methods.base import Cost, Rates
from vri.methods.losses import sample_losses
from vri.methods.meta import LossNetwork, MetaMethod
from vri.methods.options import option


class MWNet(MetaMethod):
    """Weight each sample by V(Lᵢ): an MLP 1-100-1 with a sigmoid, learned from the trusted samples.

    The classifier minimises 1/n Σ V(Lᵢ)·Lᵢ. As in the paper's update equations, V multiplies ∇Lᵢ: no gradient passes to
    the classifier through the input of V.

    Departures: none. The paper uses Adam with learning rate 1e-3 and weight decay 1e-4.

    Args:
        hidden: width of the hidden layer.
        normalize: divide the weights by their sum instead of by n. The paper's equations don't; the authors' code for
            imbalanced classes does.
    """

    name = "mw-net"
    paper = "Shu et al. 2019, Meta-Weight-Net: Learning an Explicit Mapping for Sample Weighting, NeurIPS"
    cost = Cost(3.5, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))

    hidden: int = option(100, "at least 1")
    normalize: bool = option(False)
    meta_weight_decay = 1e-4

    weight_network: LossNetwork

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.learn_with(lambda: {"weight_network": LossNetwork(self.hidden, torch.sigmoid)})

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Any) -> Tensor:
        """Weights V(Lᵢ) (n,)."""
        weights: Tensor = self.weight_network(sample_losses(outputs.logits, labels))
        return weights

    def loss(self, logits: Tensor, labels: Tensor, correction: Tensor) -> Tensor:
        """Weighted cross-entropy."""
        weighted = (correction * sample_losses(logits, labels)).mean()
        return weighted / self.classifier.batch_mean(correction) if self.normalize else weighted

    def finish(self, correction: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Mean weight."""
        return {"weight": correction.mean()}

    def settings(self) -> dict[str, Any]:
        """Those of all meta methods, and the divisor."""
        return super().settings() | {"normalize": self.normalize}
