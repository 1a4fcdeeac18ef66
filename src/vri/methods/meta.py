"""The common part of methods that learn from trusted samples by the gradient of a look-ahead.

All of them put a correction between the classifier and its noisy labels (sample weights, new labels, rectifying
vectors) and learn it so that a step on noisy samples lowers the loss on trusted ones.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vri.core import bilevel
from vri.core.bilevel import HYPERGRADIENTS, CleanGradient, ForwardADMissing, LookAhead
from vri.core.checks import Batch
from vri.core.model import Forward, Outputs, take_step
from vri.core.randomness import draw_seed, seeded
from vri.methods.base import Metrics, accuracy, read_metrics
from vri.methods.options import Configured, option

WITHOUT_BACKPROP = ("jvp", "finite_difference")  # ways to the meta gradient that need no differentiable look-ahead


class MetaMethod(Configured):
    """Learn a correction of the noisy labels from the gradient of the loss on trusted samples after a step.

    A method defines how its networks correct a batch (`correct`) and what the classifier then minimises (`loss`). It
    calls `learn_with` in its constructor, and adds `draw`, `kl` and `finish` if it needs them. `step` is the paper's
    Algorithm 1 for all of them; `VRI.step` is the same with VRI's own equations written out.

    Args:
        optimizer: trains the model's parameters; those that it doesn't hold stay frozen. Its learning rate is α, both
            in the real update and in the look-ahead; the look-ahead uses no momentum and no weight decay.
        hypergradient: how the meta gradient is computed: "jvp" (exact), "finite_difference" (cheaper) or "backprop".
        meta_every: update the meta networks at every m-th step.
        clean_weight: γ, adds γ·∇L_meta, which the look-ahead has computed anyway, to the classifier's own update on
            the steps that compute it. Beyond the papers; 0 leaves it out.
        clean_updates: after this many updates of the meta networks, γ falls as one over their number; None keeps it
            constant.
        meta_lr: learning rate of the meta networks' Adam.
        meta_weight_decay: weight decay of that Adam.
        meta_amsgrad: let that Adam divide by the largest gradients it has seen instead of the recent ones (AMSGrad).
        meta_optimizer: builds another optimizer from their parameters, instead of Adam.
        meta_smoothing: label smoothing in the meta loss.
        lookahead: "all" parameters, only the "head", or those of the named layers (a prefix, or several).
        lookahead_lr: α of the look-ahead, times the schedule; the optimizer's learning rate if not given. For
            optimizers that don't multiply the gradient by the learning rate.
        lagged: use the look-ahead step as the real one too; the meta networks then lag by one step, and one backward
            pass is saved.
        autocast: torch.bfloat16 for mixed precision; the meta networks stay in full precision.
    """

    needs_trusted = True
    can_select = True

    hypergradient: str = option("jvp", HYPERGRADIENTS)
    meta_every: int = option(1, "at least 1")
    clean_weight: float = option(0.0, "0 or more")
    clean_updates: int | None = option(None, "None or at least 1")
    meta_lr: float = option(1e-3, "more than 0")
    meta_weight_decay: float = option(0.0, "0 or more")
    meta_amsgrad: bool = option(False)
    meta_optimizer: Any = option(None)  # builds the optimizer, which then takes its place
    meta_smoothing: float = option(0.0, "a number in [0, 1)")
    lookahead: str | Sequence[str] = option(
        "all", "'all', 'head' or names of layers", lambda m: all(isinstance(name, str) for name in m.lookahead)
    )
    lookahead_lr: float | None = option(None, "None or more than 0")
    lagged: bool = option(False, "False where lookahead is not 'all'", lambda m: not m.lagged or m.lookahead == "all")
    kl_weight: float | None = None  # λ: the meta networks minimise L_meta(θ̂) + α·λ·KL; None if there is no KL term

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self._first_rates = self.classifier.rates  # `lookahead_lr` keeps their proportions
        self._look_ahead_names = self._select(self.lookahead)
        self.steps = 0
        self.meta_parameters: Sequence[Tensor] = []  # what is learned from the trusted samples
        self.saved += ["steps"]

    def learn_with(self, build: Callable[[], Mapping[str, nn.Module]], **adam: Any) -> None:
        """Set up the meta networks, each as an attribute of its name, and their optimizer, `meta_optimizer`.

        `adam` are options of Adam that depend on the networks.
        """
        with seeded(draw_seed(self.generator), torch.device("cpu")):
            networks = build()
        for name, network in networks.items():
            setattr(self, name, network.to(self.classifier.device, self.classifier.dtype))
        self.meta_parameters = learned = [p for network in networks.values() for p in network.parameters()]
        if self.meta_optimizer is None:
            how = {"lr": self.meta_lr, "weight_decay": self.meta_weight_decay, "amsgrad": self.meta_amsgrad}
            self.meta_optimizer = torch.optim.Adam(learned, **{**how, **adam}, fused=True)
        else:
            self.meta_optimizer = self.meta_optimizer(learned)
        self.saved += [*networks, "meta_optimizer"]

    # what a method defines

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Any) -> Any:
        """The meta networks' correction of a batch: sample weights, new labels, rectifying vectors.

        Runs with a graph in the meta parameters for the look-ahead and without one for the real update. No gradient
        passes to the classifier through `outputs`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how it corrects a batch, or have a step of its own")

    def loss(self, logits: Tensor, labels: Tensor, correction: Any) -> Tensor:
        """What the classifier minimises."""
        raise NotImplementedError(f"{type(self).__name__} must say what it minimises, or have a step of its own")

    def draw(self, count: int) -> Any:
        """Randomness of `correct` for `count` samples, drawn separately for the look-ahead and the real update."""
        return None

    def kl(self, correction: Any) -> Tensor:
        """KL divergence of the posterior from its prior, mean over the samples; for methods with a `kl_weight`."""
        raise NotImplementedError

    def finish(self, correction: Any, labels: Tensor) -> Mapping[str, Tensor]:
        """At the end of a step: remember what the next one needs, and return the method's own numbers to report."""
        return {}

    # the step

    @property
    def meta_due(self) -> bool:
        """Whether the next step updates the meta networks, and so reads a trusted batch."""
        return self.steps % self.meta_every == 0

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One iteration: look ahead, learn to correct, update the classifier."""
        inputs, labels = self.classifier.unpack(batch, "training")
        trusted = self.unpack_meta(meta_batch) if self.meta_due else None
        forward = self.forward(inputs)  # shared by the look-ahead and the real update
        outputs = forward.detached
        ahead, clean, found = None, None, {}
        if trusted is not None:
            correction = self.correct(outputs, labels, self.draw(len(labels)))
            ahead = self.look_ahead(forward, lambda z, f: self.loss(z, labels, correction))
            clean = self.clean_gradient(ahead, *trusted)
            kl = None if self.kl_weight is None else self.kl(correction)
            gradient = self.meta_gradient(ahead, clean, kl)
            self.learn(gradient)
            found = self.meta_metrics(clean, trusted[1], gradient, kl)
        with torch.no_grad():  # the correction carries no gradient in the real update
            correction = self.correct(outputs, labels, self.draw(len(labels)))
            found |= self.finish(correction, labels)
        return self.update(forward, labels, lambda z: self.loss(z, labels, correction), ahead, clean, found)

    # its parts, in order

    def unpack_meta(self, meta_batch: Batch | None) -> tuple[Any, Tensor]:
        """Inputs and labels of the trusted batch that a step needs."""
        if meta_batch is None:
            raise ValueError(
                "this step updates the meta networks and needs a clean batch, but meta_batch is None; "
                "pass one whenever method.meta_due is true"
            )
        return self.classifier.unpack(meta_batch, "meta")

    def forward(self, inputs: Any) -> Forward:
        """The training forward; before a tangent pass it keeps outputs that make that pass cheaper."""
        keep = self.meta_due and self.hypergradient == "jvp"
        return self.classifier.forward(inputs, draw_seed(self.generator), keep=keep)

    def look_ahead(self, forward: Forward, loss: bilevel.Loss) -> LookAhead:
        """θ̂ = θ − α∇ℓ."""
        return bilevel.look_ahead(
            self.classifier, forward, loss, self.look_ahead_rates, differentiable=self.hypergradient == "backprop"
        )

    def clean_gradient(self, ahead: LookAhead, inputs: Any, labels: Tensor) -> CleanGradient:
        """g = ∇L_meta(θ̂): of the layers that look ahead, or of all if γ adds it to the real update."""
        of = list(self.classifier.parameters) if self.clean_weight else None
        seed = draw_seed(self.generator)
        return bilevel.clean_gradient(ahead, inputs, labels, seed=seed, smoothing=self.meta_smoothing, of=of)

    def meta_gradient(self, ahead: LookAhead, clean: CleanGradient, kl: Tensor | None = None) -> list[Tensor]:
        """∇_φ (L_meta(θ̂) + α·λ·KL): the look-ahead multiplies the first term by α, so the second has α too."""
        penalty = None if kl is None else max(ahead.rates.values()) * (self.kl_weight or 0.0) * kl
        try:
            return HYPERGRADIENTS[self.hypergradient](ahead, clean, self.meta_parameters, penalty)
        except ForwardADMissing as missing:
            warnings.warn(
                f"forward-mode differentiation is not available for {missing.operator}: "
                f"{type(self).__name__} continues with hypergradient='finite_difference'",
                RuntimeWarning,
                stacklevel=3,
            )
            self.hypergradient = "finite_difference"
            return HYPERGRADIENTS[self.hypergradient](ahead, clean, self.meta_parameters, penalty)

    def learn(self, gradient: Sequence[Tensor]) -> None:
        """One step of the meta optimizer."""
        take_step(self.meta_optimizer, self.meta_parameters, gradient)

    def update(
        self,
        forward: Forward,
        labels: Tensor,
        loss: Callable[[Tensor], Tensor],
        ahead: LookAhead | None,
        clean: CleanGradient | None,
        found: Mapping[str, Tensor],
    ) -> Metrics:
        """The real update: one step of the optimizer on ∇_θ of a loss of the logits, + γ·g. Returns what to report."""
        if ahead is not None and self.lagged:
            with torch.no_grad():
                value, gradient = loss(forward.outputs.logits.detach()), ahead.step
        else:
            value, gradient = self.classifier.loss_gradient(forward, loss)
        if clean is not None and self.clean_weight:  # beyond the papers; the look-ahead has computed g anyway
            gamma = self.current_clean_weight
            gradient = {n: g + gamma * clean.gradient[n] for n, g in gradient.items()}
        own = {"loss": value, "accuracy": accuracy(forward.outputs.logits, labels)}
        metrics = read_metrics(forward, None if clean is None else clean.logits, **found, **own)
        self.classifier.update(gradient)
        self.steps += 1
        return metrics

    def meta_metrics(
        self, clean: CleanGradient, labels: Tensor, gradient: Sequence[Tensor], kl: Tensor | None
    ) -> dict[str, Tensor]:
        """What to report about an update of the meta networks; `meta_gradient` is the squared norm of its gradient."""
        norms = torch.stack(torch._foreach_norm(list(gradient))).double()
        square = norms.dot(norms)
        if not square.is_cuda and math.isinf(square):  # a sum of squares, or a gradient itself
            square = nn.utils.get_total_norm([g.double() for g in gradient]) ** 2
        found = {"meta_loss": clean.loss, "meta_accuracy": accuracy(clean.logits, labels), "meta_gradient": square}
        return found if kl is None else found | {"kl": kl}

    @property
    def look_ahead_rates(self) -> dict[str, float]:
        """α of each parameter that looks ahead."""
        rates = {n: rate for n, rate in self.classifier.rates.items() if n in self._look_ahead_names}
        if self.lookahead_lr is None:
            return rates
        return {n: self.lookahead_lr * rate / (self._first_rates[n] or 1.0) for n, rate in rates.items()}

    @property
    def current_clean_weight(self) -> float:
        """γ of the next update of the meta networks."""
        update = self.steps // self.meta_every + 1
        return self.clean_weight * (1.0 if self.clean_updates is None else min(1.0, self.clean_updates / update))

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state; the shapes of the networks are in the state itself."""
        names = ["meta_every", "clean_weight", "clean_updates", "meta_smoothing", "lagged", "lookahead_lr"]
        names += ["kl_weight"] if self.kl_weight is not None else []
        lookahead = self.lookahead if isinstance(self.lookahead, str) else list(self.lookahead)
        return {name: getattr(self, name) for name in names} | {"lookahead": lookahead}

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
    """Maps a sample's loss to one number, by an MLP with one hidden layer of ReLU."""

    def __init__(self, hidden: int, squash: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self._squash = squash

    def forward(self, losses: Tensor) -> Tensor:
        """One number per sample: (n,) to (n,)."""
        return self._squash(self.layers(losses.unsqueeze(1)).squeeze(1))
