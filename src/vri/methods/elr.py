"""Early-learning regularisation: hold the network to what it said before it memorised wrong labels."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.core.randomness import draw_seed
from vri.methods.base import Metrics, accuracy
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.shared import check_options, descend
from vri.training import distributed as parallel

_LEAST = 1e-4  # of 1 − ⟨p, t⟩, so that its logarithm stays finite


def early_learning_penalty(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of log(1 − ⟨p, t⟩): the lower, the more the predictions p agree with the targets t."""
    agreement = (F.softmax(logits, dim=1) * targets).sum(1)
    return (1 - agreement).clamp_min(_LEAST).log().mean()


class ELR(CrossEntropy):
    """Train with a penalty on leaving the running average of the network's own predictions.

    tᵢ ← β·tᵢ + (1 − β)·pᵢ, from tᵢ = 0; L = CE + λ·mean log(1 − ⟨pᵢ, tᵢ⟩), where t carries no gradient. Defaults are
    the paper's for CIFAR-10; for CIFAR-100 it takes λ = 7, β = 0.9.

    1 − ⟨p, t⟩ is kept from falling below 1e-4; the authors' code clamps p instead. A batch ends with the numbers of its
    samples. In a loop of your own call `begin_training(size, None)` first, which sets all t to 0.

    Args:
        weight: λ; 0 is plain cross-entropy.
        beta: β, memory of the running average.
        options: as in `CrossEntropy`.
    """

    needs_index = True
    paper = (
        "Liu, Niles-Weed, Razavian, Fernandez-Granda, Early-Learning Regularization Prevents Memorization of Noisy "
        "Labels (NeurIPS 2020)"
    )

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        weight: float = 3.0,
        beta: float = 0.7,
        **options: Any,
    ) -> None:
        check_options(
            "ELR",
            weight=(weight, weight >= 0, "0 or more"),
            beta=(beta, 0 <= beta < 1, "a number in [0, 1)"),
        )
        super().__init__(model, num_classes, optimizer, **options)
        self.weight, self.beta = weight, beta
        self.targets: Tensor | None = None  # t (size, c)

    def begin_training(self, size: int, clean_batches: Callable[[], Iterable[Batch]] | None) -> None:
        """Set all targets to 0."""
        device, dtype = self.classifier.device, self.classifier.dtype
        self.targets = torch.zeros(size, self.num_classes, device=device, dtype=dtype)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step on cross-entropy and penalty."""
        inputs, labels, part = self.classifier.unpack(batch, "training")
        all_targets, index = self._index(batch)
        forward = self.classifier.forward(inputs, draw_seed(self.generator))
        logits = forward.outputs.logits.detach()
        targets = self.beta * all_targets[index] + (1 - self.beta) * F.softmax(logits, dim=1)  # (n, c)
        # other workers will meet these samples in the next epoch
        all_targets[parallel.gather(index)] = parallel.gather(targets)
        loss = descend(
            self.classifier,
            forward,
            lambda z: objective.cross_entropy(z, labels) + self.weight * early_learning_penalty(z, targets),
            part,
        )
        own = {
            "accuracy": accuracy(logits, labels),
            "penalty": float(early_learning_penalty(logits, targets)),
            "target_accuracy": accuracy(targets, labels),
        }
        return parallel.sums({"loss": loss} | part.of(own))

    def settings(self) -> dict[str, Any]:
        """Strength and memory of the penalty."""
        return {"weight": self.weight, "beta": self.beta}

    def state_dict(self) -> dict[str, Any]:
        """The classifier, its optimizer, the generator and the targets."""
        return super().state_dict() | {"targets": self.targets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        targets = state["targets"]
        super().load_state_dict(state)
        self.targets = None if targets is None else targets.to(self.classifier.device, copy=True)

    def _index(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The targets of all samples, and the places of the batch's."""
        if self.targets is None:
            raise ValueError(
                "ELR keeps a target for each training sample, but doesn't know how many there are; call "
                "begin_training(size, None) before the first step"
            )
        index, count = batch[-1] if len(batch) > 2 else None, len(batch[1])
        if not isinstance(index, Tensor) or index.shape != (count,) or index.is_floating_point():
            got = "nothing" if index is None else f"a {type(index).__name__}"
            if isinstance(index, Tensor):
                got = f"{str(index.dtype).removeprefix('torch.')} of shape {tuple(index.shape)}"
            raise ValueError(
                f"ELR needs the numbers of the samples as last part of a batch, integers of shape ({count},), and "
                f"got {got}; give batches (inputs, labels, index)"
            )
        low, high, size = int(index.min()), int(index.max()), len(self.targets)
        if low < 0 or high >= size:
            raise ValueError(
                f"the sample numbers run from {low} to {high}, but there are {size} training samples; number them "
                f"0..{size - 1}, or call begin_training with their count"
            )
        return self.targets, index.to(self.targets.device, torch.long)
