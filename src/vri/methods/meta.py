"""What methods share that learn from clean samples by the gradient of a look-ahead.

All of them put a correction between the classifier and its noisy labels (sample weights, new labels, rectifying
vectors) and learn it so that a step on noisy samples lowers the loss on clean ones.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.core import objective
from vri.core.bilevel import HYPERGRADIENTS, ForwardADMissing, LookAhead, MetaGradient
from vri.core.checks import Batch, check_finite
from vri.core.model import Classifier, Forward, Outputs
from vri.core.randomness import draw_seed, seeded
from vri.methods.base import Method, Metrics, accuracy
from vri.methods.shared import loss_step
from vri.training import distributed as parallel
from vri.training.distributed import Part

NAN = float("nan")


class MetaMethod(Method):
    """Learn a correction of the noisy labels on the gradient of the loss on clean samples after a step.

    A method says how its networks correct a batch (`correct`) and what the classifier then minimises (`loss`); it
    calls `learn_with` in its constructor, and adds `draw`, `kl` and `finish` where it needs them. All share the
    options below.

    Args:
        model: any `nn.Module` that returns logits, or (logits, features); on its device already.
        num_classes: c.
        optimizer: trains the model's parameters; what it doesn't hold stays frozen. Its learning rate is α, in the
            real update and in the look-ahead alike; the look-ahead takes no momentum and no weight decay.
        hypergradient: how the meta gradient is taken: "jvp" (exact), "finite_difference" (cheaper) or "backprop".
        meta_every: update the meta networks at every m-th step.
        clean_weight: γ, adds γ·∇L_meta, which the look-ahead has computed anyway, to the classifier's own update on
            the steps that compute it. Beyond the papers; 0 leaves it out.
        clean_updates: after so many updates of the meta networks γ falls as one over their number; None keeps it.
        generator: source of all randomness; seeded with 0 if not given.
        head: name of the last linear layer, where it can't be found.
        feature_dim: width of the features, for a model that returns (logits, features).
        meta_lr: learning rate of the meta networks' Adam.
        meta_weight_decay: weight decay of that Adam.
        meta_amsgrad: let that Adam divide by the largest gradients it has seen instead of the recent ones (AMSGrad).
        meta_optimizer: builds another optimizer from their parameters, instead of Adam.
        meta_smoothing: label smoothing in the meta loss.
        lookahead: "all" parameters, only the "head", or those of the named layers (a prefix, or several).
        lagged: take the look-ahead step as the real one too; the meta networks then lag one step, and one backward
            is saved.
        autocast: torch.bfloat16 for mixed precision; the meta networks stay in full precision.
        mistakes: what the method itself found wrong with its options, see `one_of` and `must_be`.
    """

    needs_clean = True
    can_select = True
    on_workers = True
    kl_weight: float | None = None  # λ: the meta networks minimise L_meta(θ̂) + α·λ·KL; None if there is no KL term
    kl_route: str = "objective"  # or "features": KL inside the loss of the look-ahead, and through the features
    sums: bool = False  # whether `loss` is a sum over samples with weights of the whole batch, instead of a mean
    own_meta: bool = False  # whether `meta_parameters` belong to the samples of one worker

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        hypergradient: str = "jvp",
        meta_every: int = 1,
        clean_weight: float = 0.0,
        clean_updates: int | None = None,
        generator: torch.Generator | None = None,
        head: str | None = None,
        feature_dim: int | None = None,
        meta_lr: float = 1e-3,
        meta_weight_decay: float = 0.0,
        meta_amsgrad: bool = False,
        meta_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None,
        meta_smoothing: float = 0.0,
        lookahead: str | Sequence[str] = "all",
        lagged: bool = False,
        autocast: torch.dtype | None = None,
        mistakes: Sequence[str] = (),
    ) -> None:
        wrong = [
            *mistakes,
            *one_of("hypergradient", hypergradient, HYPERGRADIENTS),
            *must_be("meta_every", meta_every, meta_every >= 1, "at least 1"),
            *must_be("clean_weight", clean_weight, clean_weight >= 0, "0 or more"),
            *must_be("clean_updates", clean_updates, clean_updates is None or clean_updates >= 1, "None or at least 1"),
            *must_be("meta_lr", meta_lr, meta_lr > 0, "more than 0"),
            *must_be("meta_weight_decay", meta_weight_decay, meta_weight_decay >= 0, "0 or more"),
            *must_be("meta_smoothing", meta_smoothing, 0 <= meta_smoothing < 1, "a number in [0, 1)"),
            *must_be("lagged", lagged, not lagged or lookahead == "all", "False where lookahead is not 'all'"),
        ]
        if wrong:
            raise ValueError(f"{type(self).__name__} got options it can't use: " + "; ".join(wrong))
        self.classifier = Classifier(model, num_classes, optimizer, head, feature_dim, autocast)
        self.model, self.num_classes, self.optimizer = model, num_classes, optimizer
        self.hypergradient, self.meta_every = hypergradient, meta_every
        self.clean_weight, self.clean_updates = clean_weight, clean_updates
        self.meta_smoothing, self.lagged, self.lookahead = meta_smoothing, lagged, lookahead
        self.generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self.steps = 0
        self._look_ahead_names = self._select(lookahead)
        adam = partial(torch.optim.Adam, lr=meta_lr, weight_decay=meta_weight_decay, amsgrad=meta_amsgrad, fused=True)
        self._make_meta_optimizer = adam if meta_optimizer is None else meta_optimizer
        self._meta_parameters: list[nn.Parameter] = []
        self._saved = ["model", "optimizer"]  # attributes that have a state_dict

    def learn_with(self, build: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Make the meta networks, each an attribute of its name, and their optimizer, `meta_optimizer`."""
        with seeded(draw_seed(self.generator), torch.device("cpu")):
            networks = build()
        for name, network in networks.items():
            setattr(self, name, network.to(self.classifier.device, self.classifier.dtype))
            self._meta_parameters += network.parameters()
        self.meta_optimizer = self._make_meta_optimizer(self._meta_parameters)
        self._saved += [*networks, "meta_optimizer"]

    # what a method says of itself

    @abstractmethod
    def correct(self, outputs: Outputs, labels: Tensor, drawn: Any) -> Any:
        """What the meta networks make of a batch: sample weights, new labels, rectifying vectors.

        Runs with a graph in the meta parameters for the look-ahead and without one for the real update. No gradient
        passes to the classifier through `outputs`, unless `kl_route` is "features".
        """

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, correction: Any) -> Tensor:
        """What the classifier minimises."""

    def draw(self, count: int) -> Any:
        """Randomness of `correct` for `count` samples, fresh for the look-ahead and for the real update.

        On several workers all draw the same for the whole batch; of a tensor (..., count, c) each takes its rows.
        """
        return None

    def kl(self, correction: Any) -> Tensor:
        """KL divergence of the posterior from its prior, mean over the samples; for methods with a `kl_weight`."""
        raise NotImplementedError

    def finish(self, correction: Any, labels: Tensor) -> Metrics:
        """After the real update: remember what the next step needs, and report numbers of the method's own."""
        return {}

    # the step

    @property
    def meta_due(self) -> bool:
        """Whether the next step updates the meta networks, and so reads a clean batch."""
        return self.steps % self.meta_every == 0

    @property
    def current_clean_weight(self) -> float:
        """γ of the next update of the meta networks."""
        update = self.steps // self.meta_every + 1
        return self.clean_weight * (1.0 if self.clean_updates is None else min(1.0, self.clean_updates / update))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One iteration: look ahead, learn to correct, update the classifier. For VRI it is Algorithm 1."""
        # line 3 of Algorithm 1: the batches, checked before anything moves
        inputs, labels, part = self.classifier.unpack(batch, "training")
        due = self.meta_due
        if due and meta_batch is None:
            raise ValueError(
                "this step updates the meta networks and needs a clean batch, but meta_batch is None; "
                "pass one whenever method.meta_due is true"
            )
        meta = self.classifier.unpack(meta_batch, "meta") if due else None

        # the training forward; it serves the look-ahead and the real update
        tangent_pass = due and self.hypergradient == "jvp"
        forward = self.classifier.forward(inputs, draw_seed(self.generator), keep=tangent_pass)
        outputs = Outputs(*(o.detach() for o in forward.outputs))

        # lines 4-6: θ̂ = θ − α∇ℓ, then the meta networks (φ, ω) on the gradient of the meta loss at θ̂
        ahead, metrics = None, {"meta_loss": NAN, "meta_accuracy": NAN, "meta_gradient": NAN}
        if self.kl_weight is not None:
            metrics["kl"] = NAN
        if meta is not None:
            ahead, metrics = self._meta_step(forward, labels, part, *meta)

        # line 7: θ with the updated networks and fresh draws; the correction carries no gradient
        with torch.no_grad():
            correction = self.correct(outputs, labels, self._draw(part))
        leaf = outputs.logits.requires_grad_()
        loss = self._share(self.loss(leaf, labels, correction), part)
        if ahead is not None and self.lagged:
            gradient = ahead.step
        else:
            (output_gradient,) = torch.autograd.grad(loss, leaf)
            names = list(self.classifier.parameters)
            gradient = self.classifier.gradient(forward, (output_gradient, None), names, keep=False)
        if ahead is not None and self.clean_weight:
            # beyond the papers: + γ·g, which the look-ahead has computed
            gamma = self.current_clean_weight
            gradient = {n: g + gamma * ahead.clean[n] for n, g in gradient.items()}
        self.classifier.update(gradient)
        self.steps += 1

        own = {"accuracy": accuracy(leaf.detach(), labels)} | self.finish(correction, labels)
        return parallel.sums(metrics | {"loss": float(loss.detach())} | part.of(own))

    def warm_up(self, batch: Batch) -> Metrics:
        """One step of plain cross-entropy; the meta networks stay as they are."""
        return loss_step(self.classifier, self.generator, batch, objective.cross_entropy)

    def _meta_step(
        self, forward: Forward, labels: Tensor, part: Part, meta_inputs: Any, meta_labels: Tensor, meta_part: Part
    ) -> tuple[MetaGradient, Metrics]:
        """Update the meta networks: Eq. (eq:theta_step), (eq:phi_update), (eq:omega_update).

        Returns what the look-ahead found, for the real update, and this worker's share of what to report.
        """
        drawn, meta_seed = self._draw(part), draw_seed(self.generator)
        seen: dict[str, Tensor] = {}
        rates = {n: rate for n, rate in self.classifier.rates.items() if n in self._look_ahead_names}

        def loss(logits: Tensor, features: Tensor) -> Tensor:  # ℓ(z, f) of θ̂ = θ − α∇ℓ
            through = self.kl_route == "features"
            read = Outputs(logits.detach(), features if through else features.detach())
            correction = self.correct(read, labels, drawn)
            corrected = self._share(self.loss(logits, labels, correction), part)
            if self.kl_weight is None:
                return corrected
            seen["kl"] = part.scale(self.kl(correction))
            return corrected + self.kl_weight * seen["kl"] if through else corrected

        def penalty() -> Tensor | None:  # KL in the objective itself, unless it went through the look-ahead
            if self.kl_weight is None or self.kl_route == "features":
                return None
            # the look-ahead gives the meta loss the factor α, so KL has it too
            return max(rates.values()) * self.kl_weight * seen["kl"]

        def meta_loss(theta: Mapping[str, Tensor]) -> Tensor:
            logits = self.classifier.at(theta, meta_inputs, meta_seed).logits
            seen["logits"] = logits.detach()
            check_finite(seen["logits"], "meta logits")
            seen["loss"] = meta_part.scale(objective.meta_loss(logits, meta_labels, self.meta_smoothing))
            return seen["loss"]

        parameters = self.meta_parameters(len(labels))
        gradient_of = list(self.classifier.parameters) if self.clean_weight else list(rates)
        ahead = self._differentiate(
            LookAhead(self.classifier, forward, loss, meta_loss, rates, parameters, gradient_of, penalty, self.own_meta)
        )
        self.learn(ahead.meta)
        right = {"meta_accuracy": accuracy(seen["logits"], meta_labels)}
        norm = float(nn.utils.get_total_norm(ahead.meta))
        if math.isinf(norm):  # the sum of squares, or a gradient itself
            norm = float(nn.utils.get_total_norm([g.double() for g in ahead.meta]))
        shared = 1 if self.own_meta else parallel.world()  # all workers have the same gradient, or each its own
        metrics = {"meta_loss": float(seen["loss"].detach()), "meta_gradient": norm**2 / shared} | meta_part.of(right)
        return ahead, metrics | ({"kl": float(seen["kl"].detach())} if "kl" in seen else {})

    def meta_parameters(self, count: int) -> Sequence[Tensor]:
        """What is learned on the clean samples: the parameters of the meta networks."""
        return self._meta_parameters

    def learn(self, gradient: Sequence[Tensor]) -> None:
        """One step of the meta optimizer."""
        for parameter, grad in zip(self._meta_parameters, gradient, strict=True):
            parameter.grad = grad
        self.meta_optimizer.step()
        self.meta_optimizer.zero_grad(set_to_none=True)

    def _draw(self, part: Part) -> Any:
        drawn = self.draw(part.total)
        return part.rows(drawn, dim=-2) if isinstance(drawn, Tensor) else drawn

    def _share(self, loss: Tensor, part: Part) -> Tensor:
        """Of the loss of the whole batch, what comes from this worker's samples."""
        return loss if self.sums else part.scale(loss)

    def _differentiate(self, problem: LookAhead) -> MetaGradient:
        try:
            return HYPERGRADIENTS[self.hypergradient](problem)
        except ForwardADMissing as missing:
            warnings.warn(
                f"forward-mode differentiation is not available for {missing.operator}: "
                f"{type(self).__name__} goes on with hypergradient='finite_difference'",
                RuntimeWarning,
                stacklevel=4,
            )
            self.hypergradient = "finite_difference"
            return HYPERGRADIENTS[self.hypergradient](problem)

    # saving

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state; shapes of the networks show in the state itself."""
        names = ["meta_every", "clean_weight", "clean_updates", "meta_smoothing", "lagged"]
        names += ["kl_weight", "kl_route"] if self.kl_weight is not None else []
        lookahead = self.lookahead if isinstance(self.lookahead, str) else list(self.lookahead)
        return {name: getattr(self, name) for name in names} | {"lookahead": lookahead}

    def state_dict(self) -> dict[str, Any]:
        """All networks, both optimizers, the generator and the step count."""
        saved = {name: getattr(self, name).state_dict() for name in self._saved}
        return saved | {"generator": self.generator.get_state(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()` of a method with the same networks."""
        for name in self._saved:
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"].cpu())
        self.steps = int(state["steps"])

    def _select(self, lookahead: str | Sequence[str]) -> set[str]:
        names = set(self.classifier.parameters)
        if lookahead == "all":
            return names
        prefixes = [lookahead] if isinstance(lookahead, str) else list(lookahead)
        if prefixes == ["head"] and self.classifier.head_name is not None:
            prefixes = [self.classifier.head_name]
        chosen = {n for n in names for p in prefixes if p in ("", n) or n.startswith(f"{p}.")}
        if not chosen:
            raise ValueError(
                f"lookahead={lookahead!r} names no trained parameter: expected 'all', 'head' or the name of a "
                f"layer, such as {sorted({n.split('.')[0] for n in names})}"
            )
        return chosen


class LossNetwork(nn.Module):
    """A sample's loss to one number, by an MLP with one hidden layer of ReLU."""

    def __init__(self, hidden: int, squash: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self._squash = squash

    def forward(self, losses: Tensor) -> Tensor:
        """One number a sample: (n,) to (n,)."""
        return self._squash(self.layers(losses.unsqueeze(1)).squeeze(1))


def sample_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each sample (n,), for hard labels and soft ones alike."""
    return F.cross_entropy(logits, labels, reduction="none")


def one_of(name: str, value: str, allowed: Collection[str]) -> list[str]:
    """The mistake, if there is one, of an option that is a choice."""
    return [] if value in allowed else [f"{name}={value!r} (expected one of {', '.join(allowed)})"]


def must_be(name: str, value: object, right: bool, what: str) -> list[str]:
    """The mistake, if there is one, of an option that must be `what`."""
    return [] if right else [f"{name}={value!r} (expected {what})"]


def useless(options: Mapping[str, object], names: Collection[str], why: str) -> list[str]:
    """The mistakes of options that would do nothing."""
    return [f"{name}={options[name]!r} (expected to be left out: {why})" for name in names if name in options]
