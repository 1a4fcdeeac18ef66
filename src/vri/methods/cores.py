"""CORES*: sieve out samples with wrong labels by their regularised loss, then use them without their labels."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, accuracy, read_metrics
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot, sample_losses
from vri.methods.options import option
from vri.methods.restart import go_back, starting_point
from vri.methods.views import concatenate, split_views

_RAMP, _SIEVE = 0.25, 0.75  # shares of the first phase after which β grows, and after which samples are left out
_LEAST = 1e-8  # added to a probability: otherwise the reward for confidence would be unbounded


class CORES(CrossEntropy):
    """Train with confidence regularisation, sieve the samples, and train again with the sieved ones unlabelled.

    The first phase minimises ℓ_y − β·Σ_k π_k·ℓ_k, where ℓ_k = −log(p_k + 1e-8) is the loss of class k and π_k its share
    of the labels kept in the previous epoch: confidence is rewarded. β is 0 for a quarter of the phase and then grows
    to its full value; the learning rate is divided by 1 + β. In the last quarter a sample counts only if ℓ_y ≤ 1/c·Σ_k
    ℓ_k, that is if its label is likelier than a typical class. The second phase starts from scratch: cross-entropy of
    strong views on the samples that counted at the end, and λ·KL(p ‖ p′) on the others, where p′ is the prediction of a
    strong view and p that of a weak one, which gets no gradient.

    Departures: the phases share the epochs, and the learning-rate schedule runs through in each; the authors sieve in
    epochs 31 to 41 and then train for 1,600. In the second phase a batch contains both kinds of samples as they come;
    the authors take twice as many of the first kind. A batch ends with the numbers of its samples; in your own loop
    call `begin_training`, `begin_epoch` and `survey`. The authors' learning rate is 0.1 in the first phase and 0.3 in
    the second.

    Args:
        beta: full value of β.
        threshold: a sample counts if ℓ_y − 1/c·Σ_k ℓ_k is at most this; 0 is the paper. A wrong label that many samples
            of a class share, as with flips, is likelier than a typical class: such noise needs a threshold below 0.
        consistency: λ; the authors' configuration for 40 % of instance-dependent noise.
        sieve_share: share of the epochs spent on the first phase; 1 is CORES² without the second.
        restart: whether the second phase starts from scratch.
    """

    name = "cores"
    paper = (
        "Cheng, Zhu, Li, Gong, Sun, Liu, Learning with Instance-Dependent Label Noise: A Sample Sieve Approach "
        "(ICLR 2021)"
    )
    cost = Cost(2.3, 2.0)
    needs_index = True
    views = ("weak", "strong")

    beta: float = option(2.0, "0 or more")
    threshold: float = option(0.0, "0 or less", lambda m: m.threshold <= 0)
    consistency: float = option(0.4, "0 or more")
    sieve_share: float = option(0.4, "a number in (0, 1]")
    restart: bool = option(True)

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.kept = self.remember("kept", fill=1.0)  # v (size,)
        zeros = torch.zeros(num_classes, device=self.classifier.device, dtype=self.classifier.dtype)
        self.counts, self.prior = zeros, zeros + 1 / num_classes  # labels kept in this epoch, and π
        self.second_phase = False
        self._initial: dict[str, Any] | None = None  # state to start the second phase from
        self.saved += ["counts", "prior", "second_phase", "_initial"]
        self.strength, self.sieving = self.beta, False  # β of this epoch, and whether samples are left out
        self._switch = self.sieve_share  # share of the training after which the second phase starts

    def begin_training(self, size: int, trusted_batches: Callable[[], Iterable[Batch]] | None) -> None:
        """Begin with the first phase."""
        super().begin_training(size, trusted_batches)
        self.second_phase = False
        if self.restart:
            self._initial = starting_point(self)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set β, the sieve and the phase."""
        first = max(round(self.sieve_share * epochs), 1)
        self._switch = first / epochs
        done = epoch / first
        self.strength = self.beta * min(max((done - _RAMP) / (1 - _RAMP), 0.0), 1.0)
        self.sieving = done >= _SIEVE or epoch == first - 1
        if epoch >= first and not self.second_phase:
            self.second_phase = True
            if self._initial is not None:
                go_back(self, self._initial)
                self._initial = None

    def survey(self, epoch: int) -> None:
        """Compute the shares of the labels in the previous epoch."""
        if bool(self.counts.sum() > 0):
            self.prior = self.counts / self.counts.sum()
        self.counts = torch.zeros_like(self.counts)

    def lr_scale(self, progress: float, schedule: Callable[[float], float]) -> float:
        """The schedule from its start in each phase, divided by 1 + β in the first."""
        if self.second_phase:
            start = self._switch
            return schedule((progress - start) / (1 - start) if self.restart else progress)
        return schedule(progress / self._switch if self.restart else progress) / (1 + self.strength)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of the phase."""
        inputs, labels = self.classifier.unpack(batch, "training")
        index = self.kept.index(batch)
        weak, strong = split_views(inputs, 2)
        return self._consist(weak, strong, labels, index) if self.second_phase else self._sieve(weak, labels, index)

    def _sieve(self, inputs: Any, labels: Tensor, index: Tensor) -> Metrics:
        """One step of the first phase."""
        forward = self.forward(inputs)
        logits = forward.detached.logits.requires_grad_()
        losses, of_classes = sample_losses(logits, labels), -(F.softmax(logits, dim=1) + _LEAST).log()
        kept = (
            (losses - of_classes.mean(1) <= self.threshold).to(losses.dtype)
            if self.sieving
            else torch.ones_like(losses)
        )
        self.kept[index] = kept
        self.counts = self.counts + self.classifier.batch_mean(kept.unsqueeze(1) * one_hot(labels, logits)).detach()
        loss = self.mean_where(losses - self.strength * of_classes @ self.prior, kept)
        (of_logits,) = torch.autograd.grad(loss, logits)
        metrics = read_metrics(forward, loss=loss, accuracy=accuracy(logits, labels), kept=kept.mean())
        self.descend_outputs(forward, of_logits)
        return metrics

    def _consist(self, weak: Any, strong: Any, labels: Tensor, index: Tensor) -> Metrics:
        """One step of the second phase."""
        forward = self.forward(concatenate([weak, strong]))
        logits, kept = forward.detached.logits.requires_grad_(), self.kept[index]
        of_weak, of_strong = F.log_softmax(logits, dim=1).chunk(2)
        losses = sample_losses(of_strong, labels)
        divergences = F.kl_div(of_strong, of_weak.detach(), reduction="none", log_target=True).sum(1)
        loss = self.mean_where(losses, kept) + self.consistency * self.mean_where(divergences, 1 - kept)
        (of_logits,) = torch.autograd.grad(loss, logits)
        metrics = read_metrics(
            forward, loss=loss, accuracy=accuracy(of_strong, labels), kept=kept.mean(), divergence=divergences.mean()
        )
        self.descend_outputs(forward, of_logits)
        return metrics
