"""VRI with a transition matrix: rectify the logits of the noisy label instead of those of the true class."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.bilevel import CleanGradient, LookAhead
from vri.core.model import Classifier, Forward
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.options import option
from vri.methods.transition import matrix_of_batch, noisy_logits, second_head
from vri.methods.vri import VRI


class VRITransition(VRI):
    """VRI on the noisy labels that a transition matrix predicts.

    VRI's vector can keep a wrong label from being learned, but can't put the right one in its place. A transition
    matrix T_ij = p(ỹ = j | y = i) can, as far as the noise depends on the class: log (Tᵀp)_j are the logits of the
    noisy label ỹ, and a label ỹ then speaks for all classes that turn into it. VRI rectifies these logits instead of
    z, sample by sample; the step is VRI's own. With T the identity and vectors of one it is plain training, with
    vectors of one it is GLC's loss.

    T is learned on the way. A second linear head reads the classifier's features, scaled to mean 0 and variance 1 in
    each sample, and learns the noisy labels; no gradient passes to the features. At every update of the meta networks T
    moves towards the mean of its p(ỹ | x) over the trusted samples of each class. Where the matrix comes from is GLC's
    idea, the second head is FasTEN's. Beyond all three papers.

    Args:
        momentum: of T: it keeps this share of what it was at every update. It begins as the identity.
        head_lr: learning rate of the second head's Adam.
        initial_mean: mean of v before training; 2 rectifies little, the matrix does the work at first.
    """

    name = "vri-transition"
    paper = "VRI (Sun et al.) on the noisy label that a transition matrix predicts (GLC, FasTEN); beyond all three"
    cost = Cost(2.2, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))  # VRI's; on Fashion-MNIST better than GLC's

    momentum: float = option(0.9, "a number in [0, 1)")
    head_lr: float = option(1e-2, "more than 0")
    initial_mean = 2.0

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        first = self.classifier
        self.noisy_head = second_head(first, self.generator)
        self.head_optimizer = torch.optim.Adam(self.noisy_head.parameters(), lr=self.head_lr, fused=True)
        self._noisy = Classifier(self.noisy_head, num_classes, self.head_optimizer)
        self.matrix = torch.eye(num_classes, device=first.device, dtype=first.dtype)  # T
        self.saved += ["noisy_head", "head_optimizer", "matrix"]

    def seen(self, z: Tensor) -> Tensor:
        """Logits of the noisy label."""
        return noisy_logits(z, self.matrix)

    def clean_gradient(self, ahead: LookAhead, inputs: Any, labels: Tensor) -> CleanGradient:
        """VRI's; the features of the trusted samples also tell what their labels would have turned into."""
        clean = super().clean_gradient(ahead, inputs, labels)
        with torch.no_grad():
            p = F.softmax(self.noisy_head(_scaled(clean.features)), dim=1)
            found = matrix_of_batch(self.classifier, p, labels, self.matrix)
            self.matrix = torch.lerp(found, self.matrix, self.momentum)
        return clean

    def update(
        self,
        forward: Forward,
        labels: Tensor,
        loss: Callable[[Tensor], Tensor],
        ahead: LookAhead | None,
        clean: CleanGradient | None,
        found: Mapping[str, Tensor],
    ) -> Metrics:
        """VRI's real update, and one of the second head."""
        self._learn_noisy(forward, labels)
        found = {**found, "labels_right": self.matrix.diagonal().mean()}
        return super().update(forward, labels, loss, ahead, clean, found)

    def _learn_noisy(self, forward: Forward, labels: Tensor) -> None:
        second = self._noisy.forward(_scaled(forward.detached.features), seed=0)
        _, gradient = self._noisy.loss_gradient(second, lambda z: objective.cross_entropy(z, labels))
        self._noisy.update(gradient)

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state."""
        return super().settings() | {"momentum": self.momentum}


def _scaled(features: Tensor) -> Tensor:
    return F.layer_norm(features, features.shape[1:])
