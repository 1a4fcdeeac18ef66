"""WarPI: warped probabilistic inference, a rectifying vector by Monte-Carlo from logits and label."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vri.core import objective
from vri.core.model import Outputs
from vri.core.networks import MetaNetwork
from vri.core.objective import Gaussian
from vri.methods.base import Cost, Rates
from vri.methods.meta import MetaMethod
from vri.methods.options import option


class Vectors(NamedTuple):
    """Rectifying vectors and the distribution they were drawn from."""

    drawn: Tensor  # (k, n, c)
    posterior: Gaussian


class WarPI(MetaMethod):
    """Multiply the logits by π(v), with v drawn from a Gaussian that a network predicts from logits and label.

    The predecessor of VRI: the network is smaller and reads the logits instead of the features, and there is no prior
    and no KL term. The classifier's loss is the mean over k draws. π is the sigmoid; mean and log-variance are free.

    Departures: the layers have PyTorch's default initialisation. The authors use Adam with learning rate 3e-4.

    Args:
        samples: k, draws of the rectifying vector.
        hidden: hidden widths of the network, with tanh between them.
        label_dim: size of the label embedding; c if not given.
    """

    name = "warpi"
    paper = "Sun et al. 2022, Learning to Rectify for Robust Learning with Noisy Labels, Pattern Recognition"
    cost = Cost(3.6, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))

    samples: int = option(3, "at least 1")
    hidden: Sequence[int] = option((100, 100), "widths of at least 1")
    label_dim: int | None = option(None, "at least 1")
    meta_lr = 3e-4

    meta_network: MetaNetwork

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        label_dim = num_classes if self.label_dim is None else self.label_dim
        shape: dict[str, Any] = {"hidden": self.hidden, "label_dim": label_dim, "bound": "none", "normalize": False}
        self.learn_with(lambda: {"meta_network": MetaNetwork(num_classes, num_classes, **shape)})

    def draw(self, count: int) -> Tensor:
        """ε (k, n, c)."""
        return self.classifier.normal(self.samples, count, self.generator)

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Tensor) -> Vectors:
        """Draw the rectifying vectors."""
        posterior: Gaussian = self.meta_network(outputs.logits, labels)
        return Vectors(objective.reparameterize(posterior, drawn), posterior)

    def loss(self, logits: Tensor, labels: Tensor, correction: Vectors) -> Tensor:
        """Cross-entropy of the rectified logits, averaged over draws and samples."""
        return objective.empirical_loss(correction.drawn, logits, labels)

    def finish(self, correction: Vectors, labels: Tensor) -> dict[str, Tensor]:
        """Mean ‖σ²‖."""
        return {"variance": correction.posterior.log_var.exp().norm(dim=1).mean()}

    def settings(self) -> dict[str, Any]:
        """Those of all meta methods, and k."""
        return super().settings() | {"samples": self.samples}
