"""Variational Rectification Inference: the paper's Algorithm 1 as `VRI.step`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vri import objective
from vri.bilevel import HYPERGRADIENTS, ForwardADMissing, LookAhead, MetaGradient
from vri.checks import Batch, check_finite, check_labels
from vri.classifier import Classifier, Forward
from vri.methods.base import Method, Metrics, accuracy
from vri.networks import BOUNDS, MetaNetwork, PriorNetwork
from vri.objective import SQUASHES, Gaussian
from vri.randomness import draw_seed, seeded

NAN = float("nan")


class VRI(Method):
    """Train a classifier on noisy labels with the help of a few clean samples.

    It owns no loop: call `step` with a noisy batch and a clean one. At test time only `model` runs.

    Args:
        model: any `nn.Module` that returns logits, or (logits, features); on its device already.
        num_classes: c.
        optimizer: trains the model's parameters; what it doesn't hold stays frozen. Its learning rate is α, in the
            real update and in the look-ahead alike.
        hypergradient: how the meta gradient is taken: "jvp" (exact), "finite_difference" (cheaper) or "backprop".
        samples: k, draws of the rectifying vector; they cost next to nothing here.
        kl_weight: λ. The meta networks minimise L_meta(θ̂) + α·λ·KL(q ‖ p): the look-ahead gives the first term
            the factor α, so the second has it too, and λ means the same at every learning rate.
        meta_every: update the meta networks at every m-th step.
        clean_weight: γ, adds γ·∇L_meta, which the look-ahead has computed anyway, to the classifier's own update.
            Beyond the paper; 0 is the paper.
        clean_floor: leave that out while the meta loss is below this value, so that the clean samples are not
            memorised and go on telling the meta networks something; for long trainings. Beyond the paper.
        generator: source of all randomness (ε, dropout masks, initial meta networks); seeded with 0 if not given.
        head: name of the last linear layer, where it can't be found.
        feature_dim: width of the features, for a model that returns (logits, features).
        hidden: hidden widths of both meta networks.
        label_dim: size of the label embedding.
        squash: π: "sigmoid", "tanh" or "none".
        kl_route: how KL reaches the meta networks: "objective" (features detached, KL in their objective: the
            ELBO) or "features" (KL inside the look-ahead loss and through the features: the paper to the letter).
        bound: range of the Gaussians' parameters: "log_var", "sigmoid", "prior" or "none", see `networks.BOUNDS`.
        log_var_bound: limit of |log σ²| where it is bounded.
        initial_mean: mean of v before training. Below 0 the classifier starts by trusting noisy labels little, and
            learns from them as the meta network finds which ones help. Beyond the paper; 0 is the paper.
        normalize: bring each sample's features to mean 0 and variance 1 before the meta networks read them. Beyond
            the paper; False is the paper.
        meta_lr: learning rate of the meta networks' Adam.
        meta_amsgrad: let that Adam divide by the largest gradients it has seen (AMSGrad). Plain Adam divides by the
            recent ones: once the clean samples are learned and the meta gradient fades, KL and noise alone would
            move the networks as fast as ever, and they forget. Beyond the paper; False is the paper.
        meta_optimizer: builds another optimizer from their parameters, instead of Adam.
        meta_smoothing: label smoothing in the meta loss.
        lookahead: "all" parameters, only the "head", or those of the named layers (a prefix, or several).
        lagged: take the look-ahead step as the real one too; φ then lags one step, and one backward is saved.
        autocast: torch.bfloat16 for mixed precision; the meta networks stay in full precision.
    """

    needs_clean = True

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        hypergradient: str = "jvp",
        samples: int = 4,
        kl_weight: float = 1e-3,
        meta_every: int = 2,
        clean_weight: float = 4.0,
        clean_floor: float = 0.0,
        generator: torch.Generator | None = None,
        head: str | None = None,
        feature_dim: int | None = None,
        hidden: Sequence[int] = (1024, 512),
        label_dim: int = 64,
        squash: str = "sigmoid",
        kl_route: str = "objective",
        bound: str = "log_var",
        log_var_bound: float = 1.0,
        initial_mean: float = -2.0,
        normalize: bool = True,
        meta_lr: float = 3e-4,
        meta_amsgrad: bool = True,
        meta_optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None,
        meta_smoothing: float = 0.1,
        lookahead: str | Sequence[str] = "all",
        lagged: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        _check_options(
            {
                "hypergradient": (hypergradient, HYPERGRADIENTS),
                "squash": (squash, SQUASHES),
                "kl_route": (kl_route, ("objective", "features")),
                "bound": (bound, BOUNDS),
            },
            {
                "samples": (samples, samples >= 1, "at least 1"),
                "meta_every": (meta_every, meta_every >= 1, "at least 1"),
                "label_dim": (label_dim, label_dim >= 1, "at least 1"),
                "kl_weight": (kl_weight, kl_weight >= 0, "0 or more"),
                "clean_weight": (clean_weight, clean_weight >= 0, "0 or more"),
                "clean_floor": (clean_floor, clean_floor >= 0, "0 or more"),
                "log_var_bound": (log_var_bound, log_var_bound > 0, "more than 0"),
                "meta_smoothing": (meta_smoothing, 0 <= meta_smoothing < 1, "a number in [0, 1)"),
                "lagged": (lagged, not lagged or lookahead == "all", "False where lookahead is not 'all'"),
            },
        )
        self.classifier = Classifier(model, num_classes, optimizer, head, feature_dim, autocast)
        self.model, self.num_classes, self.optimizer = model, num_classes, optimizer
        self.hypergradient, self.samples, self.squash = hypergradient, samples, SQUASHES[squash]
        self.kl_weight, self.kl_route = kl_weight, kl_route
        self.meta_every, self.clean_weight, self.clean_floor = meta_every, clean_weight, clean_floor
        self.meta_smoothing, self.lagged = meta_smoothing, lagged
        self.lookahead = lookahead
        self.generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self.steps = 0

        device, dtype, width = self.classifier.device, self.classifier.dtype, self.classifier.feature_dim
        with seeded(draw_seed(self.generator), torch.device("cpu")):
            shape: dict[str, Any] = {
                "hidden": hidden,
                "bound": bound,
                "log_var_bound": log_var_bound,
                "initial_mean": initial_mean,
                "normalize": normalize,
            }
            meta = MetaNetwork(width, num_classes, label_dim=label_dim, **shape)
            prior = PriorNetwork(width, num_classes, **shape)
        self.meta_network = meta.to(device, dtype)
        self.prior_network = prior.to(device, dtype)
        self._meta_parameters = [*self.meta_network.parameters(), *self.prior_network.parameters()]
        self.meta_optimizer = (
            torch.optim.Adam(self._meta_parameters, lr=meta_lr, amsgrad=meta_amsgrad, fused=True)
            if meta_optimizer is None
            else meta_optimizer(self._meta_parameters)
        )
        self._look_ahead_names = self._select(lookahead)

    @property
    def meta_due(self) -> bool:
        """Whether the next step updates the meta networks, and so reads a clean batch."""
        return self.steps % self.meta_every == 0

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One iteration of Algorithm 1: look ahead, learn to rectify, update the classifier."""
        # line 3: the batches, checked before anything moves
        inputs, labels = self.classifier.unpack(batch, "training")
        meta_due = self.meta_due
        if meta_due and meta_batch is None:
            raise ValueError(
                "this step updates the meta networks and needs a clean batch, but meta_batch is None; "
                "pass one whenever method.meta_due is true"
            )
        meta = self.classifier.unpack(meta_batch, "meta") if meta_due else None

        # the training forward; it serves the look-ahead and the real update
        tangent_pass = meta_due and self.hypergradient == "jvp"
        forward = self.classifier.forward(inputs, draw_seed(self.generator), keep=tangent_pass)
        logits, features = (o.detach() for o in forward.outputs)

        # lines 4-6: θ̂ = θ − α∇ℓ, then φ and ω on the gradient of the meta loss at θ̂
        ahead, metrics = None, {"meta_loss": NAN, "meta_accuracy": NAN, "kl": NAN}
        if meta is not None:
            ahead, metrics = self._meta_step(forward, labels, *meta)

        # line 7: θ with the updated φ and a fresh ε; the rectifying vector carries no gradient
        with torch.no_grad():
            posterior = self.meta_network(features, labels)
            vectors = objective.reparameterize(posterior, self._noise(len(labels)))
        leaf = logits.requires_grad_()
        loss = objective.empirical_loss(vectors, leaf, labels, self.squash)
        if ahead is not None and self.lagged:
            gradient = ahead.step
        else:
            (output_gradient,) = torch.autograd.grad(loss, leaf)
            names = list(self.classifier.parameters)
            gradient = self.classifier.gradient(forward, (output_gradient, None), names, keep=False)
        if ahead is not None and self.clean_weight and metrics["meta_loss"] >= self.clean_floor:
            # beyond the paper: + γ·g, which the look-ahead has computed
            gradient = {n: g + self.clean_weight * ahead.clean[n] for n, g in gradient.items()}
        self.classifier.update(gradient)
        self.steps += 1

        return metrics | {
            "loss": float(loss.detach()),
            "accuracy": accuracy(logits.detach(), labels),
            "variance": float(posterior.log_var.exp().norm(dim=1).mean()),  # ‖σ²‖
        }

    def _meta_step(
        self, forward: Forward, labels: Tensor, meta_inputs: Any, meta_labels: Tensor
    ) -> tuple[MetaGradient, Metrics]:
        """Lines 4-6 of Algorithm 1: Eq. (eq:theta_step), (eq:phi_update), (eq:omega_update)."""
        noise, meta_seed = self._noise(len(labels)), draw_seed(self.generator)
        seen: dict[str, Tensor] = {}
        rates = {n: rate for n, rate in self.classifier.rates.items() if n in self._look_ahead_names}

        def loss(logits: Tensor, features: Tensor) -> Tensor:  # ℓ of Eq. (eq:theta_step)
            if self.kl_route == "objective":
                features = features.detach()
            q, p = self.meta_network(features, labels), self.prior_network(features)
            seen["kl"] = objective.gaussian_kl(q, p).mean()
            rectified = objective.empirical_loss(objective.reparameterize(q, noise), logits, labels, self.squash)
            return rectified if self.kl_route == "objective" else rectified + self.kl_weight * seen["kl"]

        def penalty() -> Tensor | None:  # KL in the objective of φ and ω, unless it went through the look-ahead
            return max(rates.values()) * self.kl_weight * seen["kl"] if self.kl_route == "objective" else None

        def meta_loss(theta: Mapping[str, Tensor]) -> Tensor:  # Eq. (eq:obj2)
            logits = self.classifier.at(theta, meta_inputs, meta_seed).logits
            seen["logits"] = logits.detach()
            check_finite(seen["logits"], "meta logits")
            seen["loss"] = objective.meta_loss(logits, meta_labels, self.meta_smoothing)
            return seen["loss"]

        gradient_of = list(self.classifier.parameters) if self.clean_weight else list(rates)
        ahead = self._differentiate(
            LookAhead(self.classifier, forward, loss, meta_loss, rates, self._meta_parameters, gradient_of, penalty)
        )
        for parameter, gradient in zip(self._meta_parameters, ahead.meta, strict=True):
            parameter.grad = gradient
        self.meta_optimizer.step()
        self.meta_optimizer.zero_grad(set_to_none=True)
        return ahead, {
            "meta_loss": float(seen["loss"].detach()),
            "meta_accuracy": accuracy(seen["logits"], meta_labels),
            "kl": float(seen["kl"].detach()),
        }

    def _differentiate(self, problem: LookAhead) -> MetaGradient:
        try:
            return HYPERGRADIENTS[self.hypergradient](problem)
        except ForwardADMissing as missing:
            warnings.warn(
                f"forward-mode differentiation is not available for {missing.operator}: "
                "VRI goes on with hypergradient='finite_difference'",
                RuntimeWarning,
                stacklevel=4,
            )
            self.hypergradient = "finite_difference"
            return HYPERGRADIENTS[self.hypergradient](problem)

    def posterior(self, features: Tensor, labels: Tensor) -> Gaussian:
        """q(v | x, y) of samples with these features and labels."""
        check_labels(labels, self.num_classes, "given")
        check_finite(features, "features")
        kind = features.dtype if labels.is_floating_point() else torch.long
        gaussian: Gaussian = self.meta_network(features, labels.to(kind))
        return gaussian

    def prior(self, features: Tensor) -> Gaussian:
        """p(v | x) of samples with these features."""
        check_finite(features, "features")
        gaussian: Gaussian = self.prior_network(features)
        return gaussian

    def rectify(self, logits: Tensor, features: Tensor, labels: Tensor, samples: int | None = None) -> Tensor:
        """Draw rectifying vectors from the posterior and apply them: (samples, n, c) rectified logits."""
        posterior = self.posterior(features, labels)
        vectors = objective.reparameterize(posterior, self._noise(len(labels), samples))
        return objective.rectify(vectors, logits, self.squash)

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state; shapes of the networks show in the state itself."""
        names = ["samples", "kl_weight", "kl_route", "meta_every", "clean_weight", "clean_floor", "meta_smoothing"]
        lookahead = self.lookahead if isinstance(self.lookahead, str) else list(self.lookahead)
        return {name: getattr(self, name) for name in names} | {"lookahead": lookahead, "lagged": self.lagged}

    def state_dict(self) -> dict[str, Any]:
        """The three networks, both optimizers, the generator and the step count."""
        return {
            "model": self.model.state_dict(),
            "meta_network": self.meta_network.state_dict(),
            "prior_network": self.prior_network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "meta_optimizer": self.meta_optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()` of a method with the same networks."""
        for name in ("model", "meta_network", "prior_network", "optimizer", "meta_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"].cpu())
        self.steps = int(state["steps"])

    def _noise(self, count: int, samples: int | None = None) -> Tensor:
        shape = (samples or self.samples, count, self.num_classes)
        device, dtype = self.classifier.device, self.classifier.dtype
        drawn = torch.randn(shape, generator=self.generator, device=self.generator.device, dtype=dtype)
        return drawn.to(device, non_blocking=True)

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


def _check_options(choices: Mapping[str, tuple[str, Any]], numbers: Mapping[str, tuple[float, bool, str]]) -> None:
    """All mistakes at once."""
    wrong = [f"{n}={v!r} (expected one of {', '.join(c)})" for n, (v, c) in choices.items() if v not in c]
    wrong += [f"{n}={v!r} (expected {what})" for n, (v, right, what) in numbers.items() if not right]
    if wrong:
        raise ValueError("VRI got options it can't use: " + "; ".join(wrong))
