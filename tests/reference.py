"""The literal VRI: Algorithm 1 from the paper's equations, by double backpropagation through the look-ahead.

Slow and plain on purpose, and independent of `vri.core.bilevel` and `vri.core.model`: every forward is a
`torch.func.functional_call` of its own, and the losses are those of `torch.distributions` and
`torch.nn.functional`. It takes over the networks, the optimizers and the state of the generator from
the `VRI` it is to be compared with, and draws in the same order.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import AffineTransform, Normal, kl_divergence
from torch.func import functional_call

from vri.core.randomness import seeded
from vri.methods import VRI

Parameters = dict[str, Tensor]
SQUASHES = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "none": lambda v: v}


class Reference:
    """A copy of `method` that trains literally as the paper says."""

    def __init__(
        self,
        method: VRI,
        *,
        samples: int = 1,
        kl_weight: float,
        kl_route: str = "objective",
        squash: str = "sigmoid",
        clean_weight: float = 0.0,
        meta_every: int = 1,
        meta_smoothing: float = 0.0,
        lagged: bool = False,
        lookahead: Sequence[str] | None = None,  # names of θ's members that look ahead; all without it
        head: str | None = None,  # the layer whose input are the features; a model that returns both needs none
    ) -> None:
        self.samples, self.kl_weight, self.kl_route, self.squash = (
            samples,
            kl_weight,
            kl_route,
            SQUASHES[squash],
        )
        self.clean_weight, self.meta_every = clean_weight, meta_every
        self.smoothing, self.lagged = meta_smoothing, lagged
        self.num_classes, self.steps = method.num_classes, 0
        # one deep copy of all, so that the copies of the optimizers hold the copies of the networks
        self.model, self.meta_network, self.prior_network, self.optimizer, self.meta_optimizer = copy.deepcopy(
            (
                method.model,
                method.meta_network,
                getattr(method, "prior_network", None),  # MC has none
                method.optimizer,
                method.meta_optimizer,
            )
        )
        self.generator = torch.Generator()
        self.generator.set_state(method.generator.get_state())
        held = {p for group in self.optimizer.param_groups for p in group["params"]}
        self.theta = {n: p for n, p in self.model.named_parameters() if p in held and p.requires_grad}
        self.names = list(self.theta) if lookahead is None else list(lookahead)
        self.features: list[Tensor] = []
        if head is not None:
            layer = self.model.get_submodule(head)
            layer.register_forward_pre_hook(lambda _, inputs: self.features.append(inputs[0]))

    def step(self, batch: Any, meta_batch: Any = None) -> dict[str, Parameters]:
        """Lines 3 to 7 of Algorithm 1; returns the meta gradient, g and ∇ℓ where they were computed."""
        (x, y), due = batch[:2], self.steps % self.meta_every == 0
        seed = self._seed()
        self.steps += 1
        found: dict[str, Parameters] = {}
        if due:
            noise, meta_seed = self._noise(len(y)), self._seed()
            found = self.look_ahead(x, y, noise, seed, *meta_batch[:2], meta_seed)
            for parameter, gradient in zip(self._meta_parameters(), found["meta"].values(), strict=True):
                parameter.grad = gradient
            self.meta_optimizer.step()

        # line 7, eq:theta_update: the new φ, fresh ε, no gradient through the vector
        z, f = self._forward(self.theta, x, seed, keep_buffers=True)
        with torch.no_grad():
            q = self._normal(self.meta_network(f, y, z))
            vectors = self._draw(q, self._noise(len(y)))
        gradient = self._gradient(self._rectified_loss(vectors, z, y), self.theta)
        if due and self.lagged:
            gradient = found["step"]
        if due and self.clean_weight:
            gradient = {n: g + self.clean_weight * found["clean"][n] for n, g in gradient.items()}
        for name, parameter in self.theta.items():
            parameter.grad = gradient[name]
        self.optimizer.step()
        return found

    def look_ahead(
        self, x: Any, y: Tensor, noise: Tensor, seed: int, meta_x: Any, meta_y: Tensor, meta_seed: int
    ) -> dict[str, Parameters]:
        """Lines 4 to 6: θ̂ and the gradient of the loss on clean samples in φ and ω, through θ̂."""
        z, f = self._forward(self.theta, x, seed)
        if self.kl_route == "objective":  # our default: v depends on θ through the logits alone
            f = f.detach()
        q, kl = self._normal(self.meta_network(f, y, z)), torch.zeros(())
        if self.prior_network is not None:
            kl = kl_divergence(q, self._normal(self.prior_network(f))).sum(1).mean()
        loss = self._rectified_loss(self._draw(q, noise), z, y)
        if self.kl_route == "features":  # the paper to the letter
            loss = loss + self.kl_weight * kl
        theta = {n: self.theta[n] for n in self.names}
        step = self._gradient(loss, theta, create_graph=True)
        rates = {p: group["lr"] for group in self.optimizer.param_groups for p in group["params"]}
        ahead = {n: p - rates[p] * step[n] for n, p in theta.items()}  # eq:theta_step

        # g is the gradient at θ̂; a parameter that stays where it is gets a leaf of its own there
        everything = {n: ahead[n] if n in ahead else p.detach().requires_grad_() for n, p in self.theta.items()}
        meta_z, _ = self._forward(everything, meta_x, meta_seed)
        meta_loss = F.cross_entropy(meta_z, meta_y, label_smoothing=self.smoothing)  # eq:obj2
        clean = self._gradient(meta_loss, everything, retain_graph=True)
        if self.kl_route == "objective":
            meta_loss = meta_loss + max(rates[p] for p in theta.values()) * self.kl_weight * kl
        names = [str(i) for i in range(len(self._meta_parameters()))]
        meta = dict(zip(names, self._meta_parameters(), strict=True))
        return {"meta": self._gradient(meta_loss, meta), "clean": clean, "step": step}

    def weights(self) -> dict[str, Tensor]:
        """All that training changes."""
        return weights(self)

    def _forward(self, theta: Parameters, inputs: Any, seed: int, keep_buffers: bool = False) -> tuple[Tensor, Tensor]:
        buffers = {} if keep_buffers else {n: b.clone() for n, b in self.model.named_buffers()}
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        self.features.clear()
        with seeded(seed, torch.device("cpu")):
            out = functional_call(self.model, {**theta, **buffers}, args, tie_weights=True)
        return out if isinstance(out, tuple) else (out, self.features[-1])

    def _rectified_loss(self, vectors: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Eq. (eq:obj0), (eq:obj1): the mean over k draws of the loss of π[v] ⊙ F(x)."""
        losses = [F.cross_entropy(self.squash(v) * logits, labels) for v in vectors]
        return sum(losses, torch.zeros(())) / self.samples

    def _meta_parameters(self) -> list[nn.Parameter]:
        prior = [] if self.prior_network is None else [*self.prior_network.parameters()]
        return [*self.meta_network.parameters(), *prior]

    def _seed(self) -> int:
        return int(torch.randint(2**62, (), generator=self.generator))

    def _noise(self, count: int) -> Tensor:
        dtype = next(self.meta_network.parameters()).dtype
        return torch.randn(self.samples, count, self.num_classes, generator=self.generator, dtype=dtype)

    @staticmethod
    def _normal(outputs: tuple[Tensor, Tensor]) -> Normal:
        mean, log_var = outputs
        return Normal(mean, log_var.exp().sqrt())

    @staticmethod
    def _draw(q: Normal, noise: Tensor) -> Tensor:
        return AffineTransform(q.mean, q.stddev)(noise)  # eq:reparam

    @staticmethod
    def _gradient(loss: Tensor, of: Parameters, **options: bool) -> Parameters:
        grads = torch.autograd.grad(loss, list(of.values()), **options, allow_unused=True, materialize_grads=True)
        return dict(zip(of, grads, strict=True))


def weights(method: VRI | Reference) -> dict[str, Tensor]:
    """All that training changes, of the method under test or its reference."""
    networks = {"model": method.model, "meta": method.meta_network, "prior": getattr(method, "prior_network", None)}
    return {f"{part}.{k}": v for part, net in networks.items() if net is not None for k, v in net.state_dict().items()}
