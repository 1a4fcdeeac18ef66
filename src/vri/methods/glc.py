"""Gold loss correction: learn how the labels were corrupted, then correct the loss for it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch, check_meta_labels
from vri.core.model import evaluating
from vri.methods.base import Cost, Metrics, Rates, accuracy, read_metrics
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.options import option
from vri.methods.restart import go_back, starting_point
from vri.methods.transition import corrected_cross_entropy, corruption_matrix


class GLC(CrossEntropy):
    """Estimate from trusted samples how labels were corrupted, and correct the loss of the noisy ones.

    First the network learns the noisy labels. Its predictions on the trusted samples then give Ĉ_ij, the mean of
    p̂(ỹ = j | x) over those of class i. In the second phase the loss is −log (Ĉᵀp)_ỹ on noisy samples and cross-entropy
    on trusted ones; every sample of both sets counts the same.

    As in the paper, the second phase starts from scratch, from the initial weights; restart=False continues with the
    weights of the first. With a restart the learning-rate schedule runs once in each phase, without one it runs once
    in all. Unlike in the paper, both phases share the epochs; a step processes its noisy and its trusted samples in two
    forwards; and trusted batches are weighted so that each sample counts the same, instead of being drawn less often.
    In your own loop call `begin_training` and `begin_epoch`.

    Args:
        estimate_share: share of the epochs spent on the first phase; each phase has at least one epoch.
        restart: whether the second phase starts from scratch.
    """

    needs_trusted = True
    name = "glc"
    paper = (
        "Hendrycks, Mazeika, Wilson, Gimpel, Using Trusted Data to Train Deep Networks on Labels Corrupted by Severe "
        "Noise (NeurIPS 2018)"
    )
    cost = Cost(2.2, 2.0)
    tuned = Rates((0.05, 5e-3), (0.05, 5e-4))

    estimate_share: float = option(0.5, "a number in (0, 1)")
    restart: bool = option(True)

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.matrix: Tensor | None = None  # Ĉ; None in the first phase
        self.noisy_share = 1.0  # of all samples, noisy and trusted
        self._size = 0
        self._trusted_batches: Callable[[], Iterable[Batch]] | None = None
        self._initial: dict[str, Any] | None = None  # state to start the second phase from
        self.saved += ["matrix", "noisy_share", "_initial"]
        self._switch = self.estimate_share  # share of the training after which it starts

    @property
    def meta_due(self) -> bool:
        """Trusted samples in the second phase."""
        return self.matrix is not None

    def begin_training(self, size: int, trusted_batches: Callable[[], Iterable[Batch]] | None) -> None:
        """Begin with the first phase."""
        if trusted_batches is None:
            raise ValueError(
                "GLC learns from trusted samples, but trusted_batches is None; give a function that goes through them "
                "once"
            )
        self._size, self._trusted_batches, self.matrix = size, trusted_batches, None
        if self.restart:
            self._initial = starting_point(self)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Switch to the second phase after `estimate_share` of the epochs."""
        if epochs < 2:
            raise ValueError(
                f"GLC has two phases, but epochs={epochs}; expected 2 or more: one to learn the noisy labels and one "
                "to train with the corrected loss"
            )
        first = min(max(round(self.estimate_share * epochs), 1), epochs - 1)
        self._switch = first / epochs
        if epoch >= first and self.matrix is None:
            self._correct()

    def lr_scale(self, progress: float, schedule: Callable[[float], float]) -> float:
        """The schedule from its start in each phase, if the second starts from scratch."""
        if not self.restart:
            return schedule(progress)
        if self.matrix is None:
            return schedule(progress / self._switch)
        return schedule((progress - self._switch) / (1 - self._switch))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on noisy labels, or of the corrected loss with trusted samples."""
        if self.matrix is None:
            return self.descend(batch, objective.cross_entropy)
        return self._corrected_step(batch, meta_batch, self.matrix)

    def _corrected_step(self, batch: Batch, meta_batch: Batch | None, matrix: Tensor) -> Metrics:
        classifier = self.classifier
        inputs, labels = classifier.unpack(batch, "training")
        if meta_batch is None:
            raise ValueError(
                "this step trains on clean samples too, but meta_batch is None; pass one whenever method.meta_due "
                "is true"
            )
        clean_inputs, clean_labels = classifier.unpack(meta_batch, "meta")
        noisy, clean = self.forward(inputs), self.forward(clean_inputs)
        noisy_loss, of_noisy = classifier.loss_gradient(noisy, lambda z: corrected_cross_entropy(z, labels, matrix))
        clean_loss, of_clean = classifier.loss_gradient(clean, lambda z: objective.cross_entropy(z, clean_labels))
        weight = self.noisy_share
        metrics = read_metrics(
            noisy,
            clean.outputs.logits.detach(),
            loss=weight * noisy_loss + (1 - weight) * clean_loss,
            accuracy=accuracy(noisy.outputs.logits, labels),
            clean_loss=clean_loss,
            clean_accuracy=accuracy(clean.outputs.logits, clean_labels),
            labels_right=matrix.diagonal().mean(),
        )
        classifier.update({n: weight * of_noisy[n] + (1 - weight) * of_clean[n] for n in of_noisy})
        return metrics

    def _correct(self) -> None:
        """Estimate Ĉ and prepare the second phase."""
        if self._trusted_batches is None:
            raise ValueError("GLC has seen no clean samples to estimate from; call begin_training first")
        probabilities, labels = self._predict(self._trusted_batches())
        check_meta_labels(labels, self.num_classes)
        self.matrix = corruption_matrix(probabilities, labels).to(self.classifier.dtype)
        self.noisy_share = self._size / (self._size + len(labels))
        if self._initial is not None:
            go_back(self, self._initial)
            self._initial = None

    def _predict(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Probabilities (n, c), in float64, and labels of all samples; the modes of the layers stay as they were."""
        probabilities, all_labels = [], []
        with evaluating(self.model), torch.no_grad():
            for batch in batches:
                inputs, labels = self.classifier.unpack(batch, "meta")
                logits = self.classifier.at({}, inputs, seed=0, autocast=False).logits
                probabilities.append(F.softmax(logits.double(), dim=1))
                all_labels.append(labels)
        return torch.cat(probabilities), torch.cat(all_labels)
