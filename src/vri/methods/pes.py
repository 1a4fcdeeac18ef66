"""Progressive early stopping: late layers, which learn wrong labels first, are trained for a shorter time."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.core.model import take_step
from vri.core.randomness import draw_seed
from vri.methods.base import Cost, Metrics, accuracy, read_metrics
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.layers import head_of, last_block, renew
from vri.methods.losses import one_hot
from vri.methods.mixmatch import labelled_losses, ramp_up, sharpen, unlabelled_losses
from vri.methods.mixup import draw_mixture, mix
from vri.methods.options import option
from vri.methods.views import concatenate, split_views

_PATH = 0.25  # learning rate × steps of a refinement: the authors' 1e-4 in 7 epochs of 351 steps
_MIX_LATE = 0.75  # α in the second half of the training
_RAMP_SHARE = 16 / 300  # of the epochs, over which the weight of unlabelled samples grows


class PES(CrossEntropy):
    """Train, retrain late layers for a short time, and continue with samples whose label the network predicts.

    After a first phase with cross-entropy, the last block and the last layer are reinitialised and trained by Adam
    while all layers before them are frozen; then the same with the last layer alone. In the last phase the network
    predicts all samples before each epoch; those where it agrees with the label are confident, and cross-entropy on
    them is weighted by 1 / (size of the class among them). With `semi` the others are used without their labels, by
    MixMatch: their target is the mean prediction of two views, sharpened; L = weighted CE on confident ones + λ_u·‖p −
    ŷ‖²/c on the others.

    The last block is a fifth of the layers or more, whole modules, see `last_block`; the authors' is the last of four
    stages. A network with one hidden layer has none, and only its last layer is refined.

    Departures: the phases share the epochs; refinements come as epochs of their own, and a training of two or three
    epochs has one or none of them. Adam's rate is 0.25 / steps if it isn't given, so that weights get as far as at the
    authors' 1e-4 on CIFAR-10. A batch is divided as it comes. Samples are predicted without augmentation. A batch ends
    with the numbers of its samples; in a loop of your own call `begin_training` and `begin_epoch`, and set
    `method.confident`. The authors' learning rate is 0.1, for `semi` 0.02.

    Args:
        warmup_share: share of the epochs spent on the first phase; the authors have 25 of 200 for CIFAR-10. For
            `semi` they have 30 of 300.
        block_share: likewise with the last block; 7 of 200, and none for `semi`.
        head_share: likewise with the last layer; 7 of 200, and 5 of 300 for `semi`.
        refine_lr: of Adam.
        semi: whether samples that aren't confident are used too.
        unlabelled_weight: full λ_u; the authors' example for 40 % of instance-dependent noise on CIFAR-10. It grows
            over 16/300 of the epochs.
        temperature: of sharpening.
        alpha: of MixMatch's Beta distribution, in the first half of the training; 0.75 in the second. 0 mixes nothing.
    """

    name = "pes"
    paper = (
        "Bai, Yang, Han, Yang, Li, Mao, Niu, Liu, Understanding and Improving Early Stopping for Learning with Noisy "
        "Labels (NeurIPS 2021)"
    )
    cost = Cost(1.0, 1.0)
    needs_index = True

    warmup_share: float = option(
        0.125,
        "more than 0, and less than 1 with the others",
        lambda m: 0 < m.warmup_share < 1 and m.warmup_share + m.block_share + m.head_share < 1,
    )
    block_share: float = option(0.035, "a number in [0, 1)")
    head_share: float = option(0.035, "a number in [0, 1)")
    refine_lr: float | None = option(None, "more than 0", lambda m: m.refine_lr is None or m.refine_lr > 0)
    semi: bool = option(False)
    unlabelled_weight: float = option(15.0, "0 or more")
    temperature: float = option(0.5, "more than 0")
    alpha: float = option(4.0, "0 or more")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.views = ("weak", "weak") if self.semi else ("weak",)
        self.parts = {"block": last_block(self.classifier), "head": head_of(self.classifier)}  # names of parameters
        self.block_optimizer, self.head_optimizer = (
            torch.optim.Adam([self.classifier.parameters[name] for name in names or self.parts["head"]])
            for names in self.parts.values()
        )
        self.confident = self.remember("confident", fill=1.0)
        self.class_weights = torch.ones(num_classes, device=self.classifier.device, dtype=self.classifier.dtype)
        self.renewed: list[str] = []  # parts that were reinitialised
        self.warm_steps = 0
        self.saved += ["block_optimizer", "head_optimizer", "class_weights", "renewed", "warm_steps"]
        self.phase = "confident"
        self.lengths = {"warm": 0, "block": 0, "head": 0}  # of the phases, in epochs
        self.growth, self.late = 1.0, False  # of λ_u, and whether the second half is reached

    def begin_training(self, size: int, trusted_batches: Callable[[], Iterable[Batch]] | None) -> None:
        """Begin with the first phase."""
        super().begin_training(size, trusted_batches)
        self.renewed, self.warm_steps = [], 0

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set the phase; reinitialise layers before they are refined."""
        self.lengths = self._lengths(epochs)
        self.phase, first = "confident", 0
        for name, length in self.lengths.items():
            if first <= epoch < first + length:
                self.phase = name
            first += length
        self.growth = ramp_up(epoch, first, _RAMP_SHARE * epochs)
        self.late = epoch >= epochs / 2
        if self.phase in self.parts and self.phase not in self.renewed:
            renew(self.model, self.parts[self.phase], draw_seed(self.generator), self.classifier.device)
            self.renewed = [*self.renewed, self.phase]

    def survey(self, epoch: int) -> None:
        """Find the confident samples."""
        if self.phase != "confident" or self.data is None:
            return
        logits, labels = self.data.predict()
        given = one_hot(labels, logits)
        agreed = logits.argmax(1) == given.argmax(1)
        self.confident[torch.arange(len(agreed))] = agreed.to(self.class_weights)
        counts = given[agreed].sum(0)  # (c,)
        weights = counts[counts > 0].mean() / counts
        weights = torch.where(counts > 0, weights.clamp_max(3.0) if self.semi else weights, 0.0)
        self.class_weights = weights.to(self.class_weights)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of the phase."""
        inputs, labels = self.classifier.unpack(batch, "training")
        index = self.confident.index(batch)
        views = split_views(inputs, len(self.views))
        if self.phase == "warm":
            self.warm_steps += 1
            return self.descend((views[0], labels), objective.cross_entropy)
        if self.phase != "confident":
            return self._refine(views[0], labels)
        return self._match(views, labels, index) if self.semi else self._agree(views[0], labels, index)

    def _lengths(self, epochs: int) -> dict[str, int]:
        shares = {"warm": self.warmup_share, "block": self.block_share, "head": self.head_share}
        lengths = {name: max(round(share * epochs), 1) if share else 0 for name, share in shares.items()}
        if not self.parts["block"]:
            lengths["block"] = 0
        for name in ("block", "head"):  # the last phase has one epoch at least
            if sum(lengths.values()) >= epochs:
                lengths[name] = 0
        return lengths

    def _refine(self, inputs: Any, labels: Tensor) -> Metrics:
        """One step of cross-entropy on the late layers alone."""
        names = self.parts[self.phase]
        optimizer = self.block_optimizer if self.phase == "block" else self.head_optimizer
        steps = self.warm_steps / max(self.lengths["warm"], 1) * self.lengths[self.phase]
        optimizer.param_groups[0]["lr"] = _PATH / max(steps, 1.0) if self.refine_lr is None else self.refine_lr
        forward = self.forward(inputs)
        logits = forward.detached.logits.requires_grad_()
        loss = objective.cross_entropy(logits, labels)
        (of_logits,) = torch.autograd.grad(loss, logits)
        metrics = read_metrics(forward, loss=loss, accuracy=accuracy(logits, labels))
        gradient = self.classifier.gradient(forward, (of_logits, None), names, keep=False)
        take_step(optimizer, [self.classifier.parameters[name] for name in names], [gradient[name] for name in names])
        return metrics

    def _agree(self, inputs: Any, labels: Tensor, index: Tensor) -> Metrics:
        """One step of weighted cross-entropy on confident samples."""
        confident = self.confident[index]
        forward = self.forward(inputs)
        logits = forward.detached.logits
        given = one_hot(labels, logits)
        weights = confident * (given @ self.class_weights)
        metrics = {"accuracy": accuracy(logits, labels), "confident": confident.mean()}
        return self.descend_forward(forward, lambda z: self.mean_where(labelled_losses(z, given), weights), **metrics)

    def _match(self, views: tuple[Any, ...], labels: Tensor, index: Tensor) -> Metrics:
        """One step of MixMatch."""
        both, confident = concatenate(views), self.confident[index]
        with torch.no_grad():
            said = F.softmax(self.classifier.at({}, both, draw_seed(self.generator)).logits, dim=1)
        first, second = said.chunk(2)
        guessed = sharpen((first + second) / 2, self.temperature)
        targets = torch.where(confident.unsqueeze(1) > 0, one_hot(labels, said), guessed).repeat(2, 1)
        alpha = min(self.alpha, _MIX_LATE) if self.late else self.alpha
        share, order = draw_mixture(alpha, len(targets), self.generator, self.classifier.device)
        share, labelled = max(share, 1 - share), confident.repeat(2)
        targets = targets.lerp(targets[order], 1 - share)
        forward = self.forward(mix(both, order, share))

        def loss(z: Tensor) -> Tensor:
            supervised = self.mean_where(labelled_losses(z, targets * self.class_weights), labelled)
            unsupervised = self.mean_where(unlabelled_losses(z, targets), 1 - labelled)
            return supervised + self.growth * self.unlabelled_weight * unsupervised

        return self.descend_forward(forward, loss, accuracy=accuracy(first, labels), confident=confident.mean())
