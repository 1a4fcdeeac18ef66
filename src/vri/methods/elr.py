"""Early-learning regularisation: keep the network close to its predictions before it memorised wrong labels."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates, accuracy
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.options import option

_LEAST = 1e-4  # of 1 − ⟨p, t⟩, so that its logarithm stays finite


def early_learning_penalty(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of log(1 − ⟨p, t⟩): the lower, the more the predictions p agree with the targets t."""
    agreement = (F.softmax(logits, dim=1) * targets).sum(1)
    return (1 - agreement).clamp_min(_LEAST).log().mean()


class ELR(CrossEntropy):
    """Train with a penalty on departing from the running average of the network's own predictions.

    tᵢ ← β·tᵢ + (1 − β)·pᵢ, from tᵢ = 0; L = CE + λ·mean log(1 − ⟨pᵢ, tᵢ⟩), where t carries no gradient. Defaults are
    the paper's for CIFAR-10; for CIFAR-100 it takes λ = 7, β = 0.9.

    1 − ⟨p, t⟩ is kept at 1e-4 or above; the authors' code clamps p instead. A batch ends with the numbers of its
    samples. In your own loop call `begin_training(size, None)` first, which sets all t to 0.

    Args:
        weight: λ; 0 is plain cross-entropy.
        beta: β, memory of the running average.
    """

    needs_index = True
    name = "elr"
    paper = (
        "Liu, Niles-Weed, Razavian, Fernandez-Granda, Early-Learning Regularization Prevents Memorization of Noisy "
        "Labels (NeurIPS 2020)"
    )
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.05, 5e-4), (0.05, 5e-4))

    weight: float = option(3.0, "0 or more")
    beta: float = option(0.7, "a number in [0, 1)")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.targets = self.remember("targets", num_classes)  # t (size, c)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step on cross-entropy and penalty."""
        inputs, labels = self.classifier.unpack(batch, "training")
        index = self.targets.index(batch)
        forward = self.forward(inputs)
        logits = forward.detached.logits
        targets = self.beta * self.targets[index] + (1 - self.beta) * F.softmax(logits, dim=1)  # (n, c)
        self.targets[index] = targets
        return self.descend_forward(
            forward,
            lambda z: objective.cross_entropy(z, labels) + self.weight * early_learning_penalty(z, targets),
            accuracy=accuracy(logits, labels),
            penalty=early_learning_penalty(logits, targets),
            target_accuracy=accuracy(targets, labels),
        )
