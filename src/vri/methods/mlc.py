"""Meta label correction: a network predicts a new soft label for each sample."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.core import objective
from vri.core.model import Outputs
from vri.methods.base import Cost, Rates
from vri.methods.losses import one_hot
from vri.methods.meta import MetaMethod
from vri.methods.options import option


class LabelNetwork(nn.Module):
    """Maps features and noisy label to a soft label."""

    def __init__(self, feature_dim: int, num_classes: int, hidden: Sequence[int], label_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, label_dim)
        widths = [feature_dim + label_dim, *hidden]
        layers: list[nn.Module] = []
        for width, size in zip(widths, hidden, strict=False):
            layers += [nn.Linear(width, size), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """Probabilities (n, c); `labels` are probability vectors too, embedded as the mixture of their classes."""
        inputs = torch.cat([features, labels @ self.embedding.weight], dim=1)
        return F.softmax(self.layers(inputs), dim=1)


class MLC(MetaMethod):
    """Train on soft labels that a network predicts from features and noisy label; trusted samples train it.

    As in the paper, no gradient passes through the features to the classifier, and the look-ahead is the real step too
    (`lagged`), so that the network for labels lags by one step.

    This is meta label correction. The row "MLC (CVPR20)" in the VRI paper's tables is another method, the meta loss
    correction of Wang et al. 2020, which learns a transition matrix.

    Departures: the look-ahead is a single plain SGD step (the paper's k = 1). The public code can also train on half of
    each trusted batch; here `clean_weight` does that. The authors use AMSGrad with learning rate 3e-4.

    Args:
        hidden: hidden widths of the network.
        label_dim: size of the label embedding.
    """

    name = "mlc"
    paper = "Zheng et al. 2021, Meta Label Correction for Noisy Label Learning, AAAI"
    cost = Cost(3.0, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))

    hidden: Sequence[int] = option((128, 128), "widths of at least 1")
    label_dim: int = option(64, "at least 1")
    meta_lr = 3e-4
    meta_amsgrad = True

    label_network: LabelNetwork

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        lagged: bool | None = None,
        **options: Any,
    ) -> None:
        if lagged is None:
            lagged = options.get("lookahead", "all") == "all"  # a partial look-ahead can't be the real step
        super().__init__(model, num_classes, optimizer, lagged=lagged, **options)
        shape = (self.classifier.feature_dim, num_classes, self.hidden, self.label_dim)
        self.learn_with(lambda: {"label_network": LabelNetwork(*shape)})

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Any) -> Tensor:
        """Soft labels (n, c)."""
        corrected: Tensor = self.label_network(outputs.features, one_hot(labels, outputs.logits))
        return corrected

    def loss(self, logits: Tensor, labels: Tensor, correction: Tensor) -> Tensor:
        """Cross-entropy with the corrected labels."""
        return objective.cross_entropy(logits, correction)

    def finish(self, correction: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Share of samples whose most probable class is not the given one."""
        given = one_hot(labels, correction).argmax(1)
        return {"relabelled": (correction.argmax(1) != given).double().mean()}
