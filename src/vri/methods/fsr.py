"""Fast sample re-weighting: L2RW through the last layer alone, on samples that the training itself found good."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import bilevel, objective
from vri.core.checks import Batch
from vri.core.model import Outputs
from vri.core.randomness import draw_seed
from vri.methods.base import Cost, Metrics, accuracy
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot, sample_losses
from vri.methods.mixup import draw_mixture, mix
from vri.methods.options import option


class FSR(CrossEntropy):
    """Weigh samples by the gradient on proxies for clean ones, through the last layer.

    The network trains on mixtures of samples, x̃ᵢ = λxᵢ + (1 − λ)xⱼ with one λ ~ Beta(½, ½) per batch, at least ½, and
    Lᵢ is the loss of a mixture. Before each epoch, the proxies are the samples of each class that gained most. A
    sample's gain is the running average of its meta margin, Lᵢ(θ) − ℓᵢ(θ̂), where ℓᵢ is the loss of the unmixed sample
    and θ̂ = θ − α∇L is a plain step of the last layer on the batch; in the first epoch proxies are drawn at random. As
    mixtures are about equally hard, a large margin means a small ℓᵢ. Without them it means a large gradient, which
    wrong labels have, too: mixing is part of the method.

    From `weigh_share` of the training on, weights are max(−∂L_proxy(θ̂)/∂εᵢ, 0), divided by their mean, with
    θ̂ = θ − α∇Σ εᵢ·Lᵢ at εᵢ = 1/n; before, all are 1. As only the last layer looks ahead, the features of the batch
    serve the look-ahead and the meta gradient, which is exact in closed form: with g the gradient on the proxies,
    −∂L_proxy/∂εᵢ = α⟨∂Lᵢ/∂zᵢ, g·fᵢ⟩. From then on there is also ρ·cross-entropy with pseudo-labels: the softmax of a
    running average of the sample's logits, divided by their root mean square.

    Defaults are those of the authors' code for noisy CIFAR (127 epochs): 2000 proxies of 50,000 samples, 0.9 as memory
    of the gain, weights after 20 epochs, α = 0.1, ρ = 2, 0.1 as memory of the logits. Departures: the look-ahead takes
    no momentum; a batch of proxies is as large as one of the training set (200 there); weight averaging, which the code
    has besides, is left out; that λ is at least ½ could not be ascertained. It needs `vri.train`, which gives it the
    proxies; in a loop of your own all weights are 1. A batch ends with the numbers of its samples.

    Args:
        proxy_share: proxies, as a share of the training samples; at least one for each class.
        memory: of the gain.
        weigh_share: share of the training before weights are used.
        lookahead_lr: α.
        pseudo_weight: ρ; 0 leaves pseudo-labels out.
        pseudo_memory: of the logits.
        alpha: of the Beta distribution; 0 mixes nothing.
    """

    needs_index = True
    name = "fsr"
    paper = "Zhang, Pfister, Learning Fast Sample Re-weighting Without Reward Data (ICCV 2021)"
    cost = Cost(2.4, 2.1)

    proxy_share: float = option(0.04, "a number in (0, 1]")
    memory: float = option(0.9, "a number in [0, 1)")
    weigh_share: float = option(20 / 127, "a number in [0, 1]")
    lookahead_lr: float = option(0.1, "more than 0")
    pseudo_weight: float = option(2.0, "0 or more")
    pseudo_memory: float = option(0.1, "a number in [0, 1)")
    alpha: float = option(0.5, "0 or more")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self._last = _last_layer(self.classifier.head_name, self.classifier.parameters, model)
        self.gains = self.remember("gains")
        self.classes = self.remember("classes", fill=-1.0)  # -1: never seen
        self.logits = self.remember("logits", num_classes)
        self.proxies = False  # whether there are any
        self.weighing = self.weigh_share == 0
        self.saved += ["proxies"]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Use weights after the first part of the training."""
        self.weighing = epoch >= round(self.weigh_share * epochs)

    def survey(self, epoch: int) -> None:
        """Choose the proxies: the best of each class."""
        if self.data is None:
            return
        gains, classes, count = self.gains.values, self.classes.values, max(round(self.proxy_share * self.data.size), 1)
        assert gains is not None
        assert classes is not None
        of_class = [(classes == k).nonzero().squeeze(1) for k in range(self.num_classes)]
        each = max(count // self.num_classes, 1)
        best = [rows[gains[rows].argsort(descending=True, stable=True)[:each]] for rows in of_class]
        rows = torch.cat(best)
        if not len(rows):  # in the first epoch
            order = torch.randperm(self.data.size, generator=self.generator, device=self.generator.device)
            rows = order[: max(count, self.num_classes)]
        self.data.stream("proxies", rows)
        self.proxies = True

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step on weighted samples and pseudo-labels."""
        inputs, labels = self.classifier.unpack(batch, "training")
        index = self.gains.index(batch)
        share, order = 1.0, None
        if self.alpha:
            share, order = draw_mixture(self.alpha, len(index), self.generator, self.classifier.device)
            share = max(share, 1 - share)
        forward = self.forward(inputs if order is None else mix(inputs, order, share))
        outputs = forward.detached
        given = one_hot(labels, outputs.logits)
        targets = given if order is None else given.lerp(given[order], 1 - share)
        weights, found = torch.ones_like(outputs.logits[:, 0]), {}
        if self.proxies:
            assert self.data is not None
            proxies = self.classifier.unpack(self.data.draw("proxies"), "proxy")
            rates = dict.fromkeys(self._last, self.lookahead_lr)
            ahead = bilevel.look_ahead(
                self.classifier, forward, lambda z, f: objective.cross_entropy(z, targets), rates
            )
            clean = bilevel.clean_gradient(ahead, *proxies, seed=draw_seed(self.generator))
            useful = self._usefulness(outputs, targets, clean)
            margin = sample_losses(outputs.logits, targets) - self._losses_ahead(inputs, outputs, given, ahead)
            self.gains[index] = self.memory * self.gains[index] + (1 - self.memory) * margin
            self.classes[index] = given.argmax(1)
            found = {"meta_loss": clean.loss, "meta_accuracy": accuracy(clean.logits, proxies[1])}
            if self.weighing:
                mean = self.classifier.batch_mean(useful)
                weights = useful / torch.where(mean > 0, mean, 1)
                found["used"] = (useful > 0).double().mean()
        pseudo, held = self._pseudo_labels(index, outputs.logits), self.pseudo_weight if self.weighing else 0.0

        def loss(logits: Tensor) -> Tensor:
            value = (weights * sample_losses(logits, targets)).mean()
            return value + held * objective.cross_entropy(logits, pseudo) if held else value

        return self.descend_forward(forward, loss, accuracy=accuracy(outputs.logits, labels), **found)

    def _losses_ahead(self, inputs: Any, outputs: Outputs, given: Tensor, ahead: bilevel.LookAhead) -> Tensor:
        """ℓᵢ(θ̂) (n,)."""
        if not self.alpha:  # the features are there
            return sample_losses(self._linear(outputs, ahead.theta), given)
        with torch.no_grad():
            return sample_losses(self.classifier.at(ahead.theta, inputs, draw_seed(self.generator)).logits, given)

    def _usefulness(self, outputs: Outputs, targets: Tensor, clean: bilevel.CleanGradient) -> Tensor:
        """max(−∂L_proxy/∂εᵢ, 0) (n,): how well a sample's step of the last layer agrees with that of the proxies."""
        moved = self.lookahead_lr * self._linear(outputs, clean.gradient)  # ż
        residual = F.softmax(outputs.logits, dim=1) - targets  # ∂Lᵢ/∂zᵢ
        return (residual * moved).sum(1).clamp_min(0)

    def _linear(self, outputs: Outputs, parameters: Mapping[str, Tensor]) -> Tensor:
        """The last layer with other parameters, on the features of the batch."""
        weight, *bias = (parameters[name].detach() for name in self._last)
        return F.linear(outputs.features, weight, *bias)

    def _pseudo_labels(self, index: Tensor, logits: Tensor) -> Tensor:
        """Softmax of the averaged logits (n, c), which then take in those of the moment."""
        held = self.logits[index]
        scale = (self.classifier.batch_mean(held.square().mean(1)) + 1e-8).rsqrt()
        self.logits[index] = self.pseudo_memory * scale * held + (1 - self.pseudo_memory) * logits
        return F.softmax(scale * held, dim=1)


def _last_layer(head: str | None, parameters: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """Names of weight and bias of the last linear layer."""
    layer = None if head is None else model.get_submodule(head)
    prefix = f"{head}." if head else ""
    names = [] if layer is None else [prefix + name for name, _ in layer.named_parameters()]
    if not isinstance(layer, nn.Linear) or not set(names) <= set(parameters):
        got = "none is known" if layer is None else f"{head!r} is a {type(layer).__name__}"
        raise ValueError(
            f"FSR looks ahead in the last linear layer, but {got}, or it isn't trained; name a trained nn.Linear with "
            "head="
        )
    return names
