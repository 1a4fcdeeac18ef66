"""DivideMix: two networks tell each other which samples to trust, and use the others without their labels."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.core.model import Classifier, evaluating
from vri.core.randomness import draw_seed
from vri.methods.base import Cost, Metrics, warm_up_epochs
from vri.methods.losses import one_hot, sample_losses
from vri.methods.mixmatch import labelled_losses, probably_clean, ramp_up, sharpen, unlabelled_losses
from vri.methods.mixup import draw_mixture, mix
from vri.methods.options import option
from vri.methods.two_networks import TwoNetworks
from vri.methods.views import concatenate, split_views, take_rows


class Mixed(NamedTuple):
    """Two views of a batch, mixed."""

    inputs: Any  # (2n, ...)
    targets: Tensor  # (2n, c)
    labelled: Tensor  # (2n,): 1 or 0


class DivideMix(TwoNetworks):
    """Train two networks by MixMatch on the samples that the other one divides into labelled and unlabelled.

    After a warm-up with cross-entropy, each network's losses are fitted by a mixture of two Gaussians before each
    epoch; w is the probability of the lower one. For the other network samples with w > τ are labelled, with
    ŷ = w·y + (1 − w)·p̄ where p̄ is its own mean prediction of two views; for the rest ŷ is the mean prediction of both
    networks. All ŷ are sharpened, ŷ^(1/T) / Σ. Both views are mixed with others of the batch, λ ~ Beta(α, α) at least
    ½, and L = CE on labelled ones + λ_u·‖p − ŷ‖²/c on unlabelled ones + Σ_k 1/c·log(1/c / p̄_k), which keeps the mean
    prediction from leaving classes out. λ_u grows linearly. Both networks predict together.

    Departures: a batch is divided as it comes, so that in an epoch both networks see every sample in two views; the
    authors take as many unlabelled as labelled samples, and an epoch covers the labelled ones. Warm-up and growth of
    λ_u are shares of the epochs. Prediction averages probabilities, the authors' code logits; their average over five
    epochs' losses at 90 % of noise is left out. A batch ends with the numbers of its samples; in a loop of your own
    call `begin_training`, `begin_epoch`, and give w in `method.clean`: samples are labelled at first. The authors'
    learning rate is 0.02.

    Args:
        unlabelled_weight: full λ_u; the authors' code has 25 for CIFAR and 0 for Clothing1M.
        threshold: τ.
        temperature: T.
        alpha: α; 0 mixes nothing.
        balance: weight of the term on the mean prediction.
        confidence_penalty: weight of Σ_k p_k·log p_k in the warm-up; the authors have 1 for flips and for real noise,
            and 0 for uniform noise.
        warmup_share: share of the epochs; the authors have 10 epochs of 300 for CIFAR-10, 30 for CIFAR-100.
        ramp_share: share of the epochs over which λ_u grows after the warm-up; the authors have 16 epochs.
    """

    name = "dividemix"
    paper = "Li, Socher, Hoi, DivideMix: Learning with Noisy Labels as Semi-supervised Learning (ICLR 2020)"
    cost = Cost(6.3, 4.0)
    needs_index = True
    views = ("weak", "weak")
    ensemble = True

    unlabelled_weight: float = option(25.0, "0 or more")
    threshold: float = option(0.5, "a number in [0, 1)")
    temperature: float = option(0.5, "more than 0")
    alpha: float = option(4.0, "0 or more")
    balance: float = option(1.0, "0 or more")
    confidence_penalty: float = option(1.0, "0 or more")
    warmup_share: float = option(0.1, "a number in [0, 1)")
    ramp_share: float = option(16 / 300, "a number in [0, 1]")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        # w (size,) as each network sees it
        self.clean = self.remember("clean", fill=1.0), self.remember("second_clean", fill=1.0)
        self.warming, self.growth = False, 1.0  # whether it warms up, and λ_u's share of its full value

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set the phase and λ_u."""
        first = warm_up_epochs(self.warmup_share, epochs)
        self.warming = epoch < first
        self.growth = ramp_up(epoch, first, self.ramp_share * epochs)

    def survey(self, epoch: int) -> None:
        """Divide the samples, by the losses of each network."""
        if self.warming or self.data is None:
            return
        everyone = torch.arange(self.data.size)
        for memory, classifier in zip(self.clean, self.classifiers, strict=True):
            memory[everyone] = probably_clean(sample_losses(*self.data.predict(classifier.model)))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network."""
        inputs, labels = self.classifier.unpack(batch, "training")
        index = self.clean[0].index(batch)
        views = split_views(inputs, 2)
        return self.warm(views[0], labels) if self.warming else self.learn(views, labels, index, meta_batch)

    def warm(self, inputs: Any, labels: Tensor) -> Metrics:
        """One step of cross-entropy, with a penalty on confidence."""

        def loss(logits: Tensor) -> Tensor:
            log_p = F.log_softmax(logits, dim=1)
            sure = (log_p.exp() * log_p).sum(1).mean()
            return objective.cross_entropy(logits, labels) + self.confidence_penalty * sure

        forwards = self.forwards(inputs)
        said = [forward.detached.logits for forward in forwards]
        return self.descend_both(forwards, [loss, loss], said, labels)

    def learn(self, views: tuple[Any, ...], labels: Tensor, index: Tensor, meta_batch: Batch | None) -> Metrics:
        """One step of MixMatch for each network, on the other's division of the batch."""
        mixed, said = self.divided(views, labels, index)
        losses = [partial(self._loss, one.targets, one.labelled) for one in mixed]
        share = mixed[0].labelled.double().mean()
        return self.descend_both(self.forwards(*(one.inputs for one in mixed)), losses, said, labels, labelled=share)

    def divided(self, views: tuple[Any, ...], labels: Tensor, index: Tensor) -> tuple[list[Mixed], list[Tensor]]:
        """The batch as each network trains on it, and what each predicts (n, c)."""
        both = concatenate(views)
        said = [self._mean_prediction(classifier, both) for classifier in self.classifiers]
        given, mixed = one_hot(labels, said[0]), []
        for k, other in enumerate(reversed(self.classifiers)):
            clean = self.clean[1 - k][index].unsqueeze(1)  # w (n, 1)
            labelled = clean > self.threshold
            guessed = said[k].clone()
            rows = (~labelled).squeeze(1).nonzero().squeeze(1)
            if len(rows):
                with evaluating(other.model):
                    theirs = self._mean_prediction(other, concatenate([take_rows(view, rows) for view in views]))
                guessed[rows] = (said[k][rows] + theirs) / 2
            refined = torch.where(labelled, clean * given + (1 - clean) * said[k], guessed)
            targets = sharpen(refined, self.temperature).repeat(2, 1)
            share, order = draw_mixture(self.alpha, len(targets), self.generator, self.classifier.device)
            share = max(share, 1 - share)
            targets = targets.lerp(targets[order], 1 - share)
            mixed.append(Mixed(mix(both, order, share), targets, labelled.squeeze(1).to(targets).repeat(2)))
        return mixed, said

    def _loss(self, targets: Tensor, labelled: Tensor, logits: Tensor) -> Tensor:
        """Of mixed samples, `labelled` being 1 for those that are."""
        weight = self.growth * self.unlabelled_weight
        mean = self.classifier.batch_mean(F.softmax(logits, dim=1))  # (c,)
        return (
            self.mean_where(labelled_losses(logits, targets), labelled)
            + weight * self.mean_where(unlabelled_losses(logits, targets), 1 - labelled)
            - self.balance * (self.num_classes * mean).log().mean()
        )

    def _mean_prediction(self, classifier: Classifier, both: Any) -> Tensor:
        """Mean probabilities (n, c) of two views (2n), without gradient; BatchNorm's statistics stay."""
        with torch.no_grad():
            logits = classifier.at({}, both, draw_seed(self.generator)).logits
        first, second = F.softmax(logits, dim=1).chunk(2)
        return (first + second) / 2
