"""The rival methods, literally: double backpropagation through the look-ahead, losses sample by sample.

Slow and plain on purpose, and independent of `vri.core` and `vri.methods.meta`: every forward is a
`torch.func.functional_call` of its own, and the small networks are written out as matrices. A literal method takes over
the networks, the optimizers and the state of the generator of the method it is to be compared with, and draws in the
same order. The variants of VRI have theirs in `reference.py`.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta
from torch.func import functional_call

from reference import Reference
from vri.core.randomness import seeded

Parameters = dict[str, Tensor]


class Literal:
    """A copy of `method` that trains literally; a subclass has its loss."""

    names: Sequence[str] = ()  # of the meta networks

    def __init__(
        self,
        method: Any,
        *,
        head: str,
        clean_weight: float = 0.0,
        meta_every: int = 1,
        meta_smoothing: float = 0.0,
        lagged: bool = False,
        lookahead: Sequence[str] | None = None,
        **own: Any,
    ) -> None:
        self.clean_weight, self.meta_every, self.smoothing = clean_weight, meta_every, meta_smoothing
        self.lagged, self.own, self.steps = lagged, own, 0
        networks = [getattr(method, name) for name in self.names]
        self.model, self.networks, self.optimizer, self.meta_optimizer = copy.deepcopy(
            (method.model, networks, method.optimizer, getattr(method, "meta_optimizer", None))
        )
        self.generator = torch.Generator()
        self.generator.set_state(method.generator.get_state())
        self.theta = dict(self.model.named_parameters())
        self.look_ahead_names = list(self.theta) if lookahead is None else list(lookahead)
        self.features: list[Tensor] = []
        self.model.get_submodule(head).register_forward_pre_hook(lambda _, args: self.features.append(args[0]))

    # a method's own

    def loss(self, z: Tensor, f: Tensor, y: Tensor, drawn: Any) -> Tensor:
        raise NotImplementedError

    def draw(self, count: int) -> Any:
        return None

    def penalty(self) -> Tensor | float:
        return 0.0

    def meta_parameters(self, count: int) -> list[Tensor]:
        return [p for network in self.networks for p in network.parameters()]

    def learn(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.meta_parameters(0), gradients, strict=True):
            parameter.grad = gradient
        self.meta_optimizer.step()

    def after(self, z: Tensor, y: Tensor) -> None:
        pass

    # the step

    def step(self, batch: Any, meta_batch: Any) -> dict[str, Any]:
        (x, y), (meta_x, meta_y) = batch[:2], meta_batch[:2]
        due, found, seed = self.due(), {}, self.seed()
        self.steps += 1
        if due:
            drawn, meta_seed = self.draw(len(y)), self.seed()
            meta_parameters = self.meta_parameters(len(y))
            z, f = self.forward(self.theta, x, seed)
            looking = {n: self.theta[n] for n in self.look_ahead_names}
            step = self.gradient(self.loss(z, f, y, drawn), looking, create_graph=True)
            rates = {p: group["lr"] for group in self.optimizer.param_groups for p in group["params"]}
            ahead = {n: p - rates[p] * step[n] for n, p in looking.items()}
            at = {n: ahead[n] if n in ahead else p.detach().requires_grad_() for n, p in self.theta.items()}
            meta_z, _ = self.forward(at, meta_x, meta_seed)
            meta_loss = F.cross_entropy(meta_z, meta_y, label_smoothing=self.smoothing)
            clean = self.gradient(meta_loss, at, retain_graph=True)
            objective = meta_loss + max(rates[p] for p in looking.values()) * self.penalty()
            named = {str(i): p for i, p in enumerate(meta_parameters)}
            meta = list(self.gradient(objective, named).values())
            self.learn(meta)
            found = {"meta": meta, "clean": clean, "step": step, "meta_loss": float(meta_loss.detach())}

        z, f = self.forward(self.theta, x, seed, keep_buffers=True)
        loss = self.loss(z, f, y, self.draw(len(y)))
        gradient = self.gradient(loss, self.theta)
        if due and self.lagged:
            gradient = found["step"]
        if due and self.clean_weight:
            gradient = {n: g + self.clean_weight * found["clean"][n] for n, g in gradient.items()}
        for name, parameter in self.theta.items():
            parameter.grad = gradient[name].detach()
        self.optimizer.step()
        self.after(z.detach(), y)
        return found

    def due(self) -> bool:
        return self.steps % self.meta_every == 0

    def seed(self) -> int:
        return int(torch.randint(2**62, (), generator=self.generator))

    def forward(self, theta: Parameters, x: Tensor, seed: int, keep_buffers: bool = False) -> tuple[Tensor, Tensor]:
        buffers = {} if keep_buffers else {n: b.clone() for n, b in self.model.named_buffers()}
        self.features.clear()
        with seeded(seed, torch.device("cpu")):
            z = functional_call(self.model, {**theta, **buffers}, (x,))
        return z, self.features[-1]

    @staticmethod
    def gradient(loss: Tensor, of: Parameters, **options: bool) -> Parameters:
        grads = torch.autograd.grad(loss, list(of.values()), **options, allow_unused=True, materialize_grads=True)
        return dict(zip(of, grads, strict=True))

    def weights(self) -> dict[str, Tensor]:
        """All that training changes, under the names of `weights`."""
        parts = {"model": self.model, **dict(zip(self.names, self.networks, strict=True))}
        return {f"{part}.{k}": v for part, net in parts.items() for k, v in net.state_dict().items()}


def weights(method: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """The same of the method under test."""
    parts = {"model": method.model, **{name: getattr(method, name) for name in names}}
    return {f"{part}.{k}": v for part, net in parts.items() for k, v in net.state_dict().items()}


def losses(z: Tensor, y: Tensor) -> Tensor:
    """−Σ y log p of each sample, one after the other."""
    out = []
    for row, label in zip(z, y, strict=True):
        log_p = row - torch.logsumexp(row, 0)
        out.append(-(label * log_p).sum() if y.is_floating_point() else -log_p[label])
    return torch.stack(out)


def mlp(network: nn.Module, values: Tensor) -> Tensor:
    """Numbers (n,) through 1-h-1 with ReLU, written out."""
    (w1, b1, w2, b2) = network.parameters()
    return ((torch.relu(values[:, None] * w1[:, 0] + b1)) * w2[0]).sum(1) + b2


class LiteralL2RW(Literal):
    """Ren et al. 2018, Algorithm 1."""

    def meta_parameters(self, count: int) -> list[Tensor]:
        dtype = next(iter(self.theta.values())).dtype
        self.epsilon = torch.zeros(count, dtype=dtype, requires_grad=True)
        return [self.epsilon]

    def learn(self, gradients: Sequence[Tensor]) -> None:
        positive = torch.tensor([max(-float(g), 0.0) for g in gradients[0]], dtype=gradients[0].dtype)
        self.epsilon = positive if float(positive.sum()) == 0 else positive / positive.sum()

    def loss(self, z: Tensor, f: Tensor, y: Tensor, drawn: Any) -> Tensor:
        return sum((e * loss for e, loss in zip(self.epsilon, losses(z, y), strict=True)), torch.zeros(()))


class LiteralMWNet(Literal):
    """Shu et al. 2019, equations 3 to 6: the weight multiplies the gradient of the sample's loss."""

    names = ("weight_network",)

    def loss(self, z: Tensor, f: Tensor, y: Tensor, drawn: Any) -> Tensor:
        costs = losses(z, y)
        v = 1 / (1 + torch.exp(-mlp(self.networks[0], costs.detach())))
        return (v * costs).sum() / (v.sum() if self.own.get("normalize") else len(y))


class LiteralPMWNet(Literal):
    """Beta weights, and KL by its closed form."""

    names = ("beta_network",)

    def draw(self, count: int) -> int:
        return self.seed()

    def loss(self, z: Tensor, f: Tensor, y: Tensor, drawn: int) -> Tensor:
        costs, network = losses(z, y), self.networks[0]
        a, b = (0.01 + torch.log1p(torch.exp(mlp(net, costs.detach()))) for net in (network.alpha, network.beta))
        with seeded(drawn, torch.device("cpu")):
            w = Beta(a, b).rsample()
        self.ab = a, b
        return (w * costs).mean()

    def penalty(self) -> Tensor:
        (a, b), (a0, b0) = self.ab, self.networks[0].prior
        log_beta, psi = lambda p, q: torch.lgamma(p) + torch.lgamma(q) - torch.lgamma(p + q), torch.digamma
        kl = log_beta(a0, b0) - log_beta(a, b) + (a - a0) * psi(a) + (b - b0) * psi(b)
        kl = kl + (a0 - a + b0 - b) * psi(a + b)
        return self.own.get("kl_weight", 1e-3) * kl.mean()

    def after(self, z: Tensor, y: Tensor) -> None:
        self.networks[0].prior = torch.stack([parameter.detach().mean() for parameter in self.ab])


class LiteralMLC(Literal):
    """Zheng et al. 2021: cross-entropy with labels made of features and noisy label."""

    names = ("label_network",)

    def loss(self, z: Tensor, f: Tensor, y: Tensor, drawn: Any) -> Tensor:
        embedding, *layers = self.networks[0].parameters()
        classes = z.shape[1]
        y = y if y.is_floating_point() else torch.eye(classes, dtype=z.dtype)[y]
        h = torch.cat([f.detach(), y @ embedding], 1)
        for i in range(0, len(layers), 2):
            h = (torch.tanh(h) if i else h) @ layers[i].T + layers[i + 1]
        soft = torch.exp(h) / torch.exp(h).sum(1, keepdim=True)
        return -(soft * torch.log_softmax(z, 1)).sum() / len(y)


class LiteralMSLC(Literal):
    """Three losses with the coefficients a, (1 − a)·b and (1 − a)·(1 − b)."""

    names = ("label_share", "previous_share")
    warming = False

    def step(self, batch: Any, meta_batch: Any) -> dict[str, Any]:
        self.index = [int(i) for i in batch[2]]
        self.__dict__.setdefault("memory", {})
        return super().step(batch, meta_batch)

    def due(self) -> bool:
        return not self.warming and super().due()

    def loss(self, z: Tensor, f: Tensor, y: Tensor, drawn: Any) -> Tensor:
        p = torch.softmax(z.detach(), 1)
        given = losses(z, y)
        if self.warming:
            self.new = p
            return given.mean()
        previous = torch.stack([self.memory.get(i, row) for i, row in zip(self.index, p, strict=True)])
        hard = self.own.get("hard", True)
        to_previous = losses(z, previous.argmax(1) if hard else previous)
        to_current = losses(z, p.argmax(1) if hard else p)
        a = torch.sigmoid(mlp(self.networks[0], given.detach()))
        b = torch.sigmoid(mlp(self.networks[1], to_previous.detach()))
        one_hot = y if y.is_floating_point() else torch.eye(z.shape[1], dtype=z.dtype)[y]
        left, right = a.detach()[:, None], b.detach()[:, None]
        self.new = left * one_hot + (1 - left) * (right * previous + (1 - right) * p)
        return (a * given + (1 - a) * b * to_previous + (1 - a) * (1 - b) * to_current).mean()

    def after(self, z: Tensor, y: Tensor) -> None:
        self.memory |= dict(zip(self.index, self.new, strict=True))


class LiteralWarPI(Literal):
    """Sun et al. 2022: the loss averaged over draws of a vector that rectifies the logits."""

    names = ("meta_network",)

    def draw(self, count: int) -> Tensor:
        shape = (self.own.get("samples", 3), count, self.networks[0].embedding.num_embeddings)
        return torch.randn(shape, generator=self.generator, dtype=next(iter(self.theta.values())).dtype)

    def loss(self, z: Tensor, f: Tensor, y: Tensor, drawn: Tensor) -> Tensor:
        embedding, *layers = self.networks[0].parameters()
        classes = z.shape[1]
        label = y @ embedding if y.is_floating_point() else embedding[y]
        h = torch.cat([z.detach(), label], 1)
        for i in range(0, len(layers), 2):
            h = (torch.tanh(h) if i else h) @ layers[i].T + layers[i + 1]
        mean, variance = h[:, :classes], torch.exp(h[:, classes:])
        per_draw = [losses(torch.sigmoid(mean + variance.sqrt() * e) * z, y).mean() for e in drawn]
        return sum(per_draw, torch.zeros(())) / len(per_draw)


class LiteralNonBayesian(Reference):
    """VRI's reference with ε = 0 and no draw of it."""

    def _noise(self, count: int) -> Tensor:
        dtype = next(self.meta_network.parameters()).dtype
        return torch.zeros(1, count, self.num_classes, dtype=dtype)
