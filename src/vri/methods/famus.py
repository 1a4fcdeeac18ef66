"""FaMUS: sample weights learned by a meta gradient through a few of the last layers."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.core import bilevel
from vri.core.bilevel import CleanGradient, LookAhead
from vri.core.model import Outputs, take_step
from vri.core.randomness import draw_seed, seeded
from vri.methods.base import Cost
from vri.methods.layers import head_of
from vri.methods.losses import one_hot, sample_losses
from vri.methods.meta import WITHOUT_BACKPROP, LossNetwork, MetaMethod
from vri.methods.options import option

_GATE_HIDDEN = 128  # width of the gates' hidden layers


class Gate(nn.Module):
    """Whether the meta gradient runs through a parameter: 0 or 1, drawn by its gradient."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, hidden)
        self.layers = nn.Sequential(first, nn.PReLU(), second, nn.PReLU(), nn.Linear(hidden, 2))

    def forward(self, gradient: Tensor, noise: Tensor) -> Tensor:
        """Straight-through Gumbel softmax with `noise` (2,): a number that is 0 or 1, with a derivative."""
        sums = gradient.flatten(1).sum(1) if gradient.ndim > 1 else gradient
        scaled = (sums - sums.mean()) / (sums.std(correction=0) + 1e-9)
        soft = F.softmax(self.layers(scaled) + noise, dim=0)[1]
        hard: Tensor = (soft > 0.5).to(soft.dtype) - soft.detach() + soft
        return hard


class FaMUS(MetaMethod):
    """MW-Net whose meta gradient runs through the last layer and a few more that small networks choose.

    The classifier minimises Σ V(Lᵢ)·Lᵢ / Σ V(Lᵢ) with V an MLP 1-100-1 with a sigmoid. All layers look ahead, but the
    meta gradient −α Σ_l ∇_φ⟨∇_l ℓ, g_l⟩ has only the terms of the last layer and of those among the `top` last
    parameter tensors whose gate is open. A gate is an MLP on the sums of the rows of ∇_l ℓ, standardised, with Gumbel
    noise; gates learn by ∂L_meta/∂a_l, which is −α⟨g_l, ∇_l ℓ⟩ if it is open and the opposite if it is closed, and by
    η·(Σ a_l − k)². V learns besides by a penalty: σ times the squared distance of the means and deviations (of each row
    of a matrix, of a bias as a whole) of the last layer's gradient on the weighted batch from those of g.

    15 tensors, k = 4, η = σ = 0.1, hidden width 128 and 0.1 as learning rate of the gates (SGD with Nesterov momentum)
    are from the authors' code. Departures: there V has SGD with learning rate 1e-3, here Adam as in MW-Net; η counts
    all gates, where the code counts the last alone; and FaMUS is the meta step only: the code puts it into the
    semi-supervised training of DivideMix with two networks, and its clean samples are selected by a mixture of losses,
    which `Selection("mixture")` does. The gradient is the exact one, by a tangent of the chosen parameters.
    `hypergradient` can't be "backprop".

    Args:
        top: number of last parameter tensors that can be chosen, the last layer's included.
        open_gates: k, how many gates should be open.
        gate_weight: η.
        spread_weight: σ.
        gate_lr: learning rate of the gates.
        hidden: width of V's hidden layer.
    """

    name = "famus"
    paper = "Xu, Zhu, Jiang, Yang, Faster Meta Update Strategy for Noise-Robust Deep Learning (CVPR 2021)"
    cost = Cost(2.9, 2.0)

    top: int = option(15, "at least 1")
    open_gates: int = option(4, "0 or more")
    gate_weight: float = option(0.1, "0 or more")
    spread_weight: float = option(0.1, "0 or more")
    gate_lr: float = option(0.1, "more than 0")
    hidden: int = option(100, "at least 1")
    meta_weight_decay = 1e-4
    hypergradient: str = option("jvp", "jvp or finite_difference", lambda m: m.hypergradient in WITHOUT_BACKPROP)

    weight_network: LossNetwork

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.learn_with(lambda: {"weight_network": LossNetwork(self.hidden, torch.sigmoid)})
        head = head_of(self.classifier)
        last = list(self.classifier.parameters)[-self.top :]
        self._head = [name for name in head if name in self._look_ahead_names]
        self._gated = [name for name in last if name in self._look_ahead_names and name not in head]
        widths = [len(self.classifier.parameters[name]) for name in self._gated]
        with seeded(draw_seed(self.generator), torch.device("cpu")):
            gates = nn.ModuleList(Gate(width, _GATE_HIDDEN) for width in widths)
        self.gates = gates.to(self.classifier.device, self.classifier.dtype)
        self.gate_optimizer: torch.optim.Optimizer | None = None
        if self._gated:
            self.gate_optimizer = torch.optim.SGD(self.gates.parameters(), lr=self.gate_lr, momentum=0.9, nesterov=True)
            self.saved += ["gates", "gate_optimizer"]
        self._batch: tuple[Outputs, Tensor, Tensor] | None = None  # outputs, labels and weights of the look-ahead

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Any) -> Tensor:
        """Weights V(Lᵢ) (n,), divided by their mean."""
        weights: Tensor = self.weight_network(sample_losses(outputs.logits, labels))
        weights = weights / self.classifier.batch_mean(weights)
        self._batch = outputs, labels, weights
        return weights

    def loss(self, logits: Tensor, labels: Tensor, correction: Tensor) -> Tensor:
        """Weighted cross-entropy."""
        return (correction * sample_losses(logits, labels)).mean()

    def clean_gradient(self, ahead: LookAhead, inputs: Any, labels: Tensor) -> CleanGradient:
        """g of the parameters that can be chosen, or of all where γ adds it to the real update."""
        of = list(self.classifier.parameters) if self.clean_weight else [*self._gated, *self._head]
        seed = draw_seed(self.generator)
        return bilevel.clean_gradient(ahead, inputs, labels, seed=seed, smoothing=self.meta_smoothing, of=of)

    def meta_gradient(self, ahead: LookAhead, clean: CleanGradient, kl: Tensor | None = None) -> list[Tensor]:
        """The terms of the chosen parameters, and the gradient of the penalty."""
        chosen = [*self._head, *self._open(ahead, clean)]
        part = replace(ahead, rates={name: ahead.rates[name] for name in chosen})
        if not self.spread_weight:
            return super().meta_gradient(part, clean)
        # the penalty depends on V directly: plain backpropagation has its gradient, and keeps the graph for the other
        spread = replace(clean, loss=self.spread_weight * self._spread(clean))
        penalty = bilevel.backprop(ahead, spread, self.meta_parameters)
        return [g + p for g, p in zip(super().meta_gradient(part, clean), penalty, strict=True)]

    def finish(self, correction: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Mean distance of the weights from 1."""
        return {"weight_distance": (correction - 1).abs().mean()}

    def settings(self) -> dict[str, Any]:
        """Those of all meta methods, and of the gates."""
        names = ("top", "open_gates", "gate_weight", "spread_weight", "gate_lr")
        return super().settings() | {name: getattr(self, name) for name in names}

    def _open(self, ahead: LookAhead, clean: CleanGradient) -> list[str]:
        """Draw which gates are open, and let them learn."""
        if self.gate_optimizer is None:
            return []
        noise = torch.rand((len(self._gated), 2), generator=self.generator, device=self.generator.device)
        gumbel = -(-noise.clamp_min(1e-20).log()).log()
        drawn = [
            gate(ahead.step[name].to(self.classifier.dtype), row)
            for gate, name, row in zip(self.gates, self._gated, gumbel.to(ahead.step[self._gated[0]]), strict=True)
        ]
        is_open = [bool(a > 0.5) for a in drawn]
        loss = self.gate_weight * (sum(drawn) - min(self.open_gates, len(drawn))) ** 2
        for name, a, active in zip(self._gated, drawn, is_open, strict=True):
            effect = ahead.rates[name] * (clean.gradient[name] * ahead.step[name]).sum()
            loss = loss + a * (-effect if active else effect)
        learned = list(self.gates.parameters())
        take_step(self.gate_optimizer, learned, torch.autograd.grad(loss, learned))
        return [name for name, active in zip(self._gated, is_open, strict=True) if active]

    def _spread(self, clean: CleanGradient) -> Tensor:
        """How far the last layer's gradient on the weighted batch is from g, in means and deviations."""
        assert self._batch is not None
        (logits, features), labels, weights = self._batch
        residual = weights.unsqueeze(1) * (F.softmax(logits, dim=1) - one_hot(labels, logits))  # n·∂ℓ/∂z
        means = self.classifier.batch_mean
        mine = {2: means((residual.T @ features / len(residual)).unsqueeze(0)), 1: means(residual)}
        total = logits.new_zeros(())
        for name in self._head:
            target = clean.gradient[name].to(logits.dtype)
            found = mine[target.ndim]
            if target.shape == found.shape:  # else the last layer is not known
                pairs = zip(_moments(found), _moments(target), strict=True)
                total = total + sum((a - b).square().mean() for a, b in pairs)
        return total


def _moments(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each row of a matrix, or of a whole vector."""
    return gradient.mean(-1), (gradient.var(-1, correction=0) + 1e-12).sqrt()
