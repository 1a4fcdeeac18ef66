"""Variational Rectification Inference: the meta network draws a vector that rectifies a sample's logits."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vri.core import objective
from vri.core.checks import Batch, check_finite, check_labels
from vri.core.networks import BOUNDS, PAPER_RATE, MetaNetwork, PriorNetwork, follow_features, follow_width
from vri.core.objective import SQUASHES, Gaussian
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.meta import MetaMethod
from vri.methods.options import option, refused


class VRI(MetaMethod):
    """Train a classifier on noisy labels with the help of a few trusted samples.

    It has no loop of its own: call `step`, the paper's Algorithm 1, with a noisy batch and a trusted one. V_φ draws a
    vector v from (features, label), and π(v) rectifies the logits. At test time only `model` runs.

    Args:
        samples: k, draws of the rectifying vector; more draws cost next to nothing here.
        kl_weight: λ. The meta networks minimise L_meta(θ̂) + α·λ·KL(q ‖ p). The look-ahead multiplies the first term by
            α; with the same factor in the second, λ means the same at every learning rate.
        clean_weight: γ, adds γ·∇L_meta, which the look-ahead has computed anyway, to the classifier's own update.
            Beyond the paper; 0 is the paper.
        clean_updates: after this many updates of the meta networks, γ falls as one over their number; None keeps it
            constant. A large γ helps while these networks have hardly learned; later it would memorise the trusted
            samples, which then no longer give a signal. Beyond the paper.
        generator: source of all randomness (ε, dropout masks, initial meta networks); seeded with 0 if not given.
        hidden: hidden widths of both meta networks. "auto" follows the width of the features, from 256-128 to 1024-512
            (see `networks.follow_features`); (1024, 512) is the paper, and costs more than a small classifier itself.
        label_dim: size of the label embedding.
        squash: π: "sigmoid", "tanh" or "none".
        kl_route: how KL reaches the meta networks: "objective" (features detached, KL in their objective: the
            ELBO) or "features" (KL inside the look-ahead loss and through the features: the paper to the letter).
        bound: range of the Gaussians' parameters: "log_var", "sigmoid", "prior" or "none", see `networks.BOUNDS`.
        log_var_bound: limit of |log σ²|, if it is bounded.
        initial_mean: mean of v before training. Below 0 the classifier starts with little trust in noisy labels and
            learns from them as the meta network finds which ones help. Beyond the paper; 0 is the paper.
        normalize: scale each sample's features to mean 0 and variance 1 before the meta networks read them. Beyond
            the paper; False is the paper.
        beliefs: let the meta network also read how likely the classifier finds the label, how far it is from the
            likeliest class, and the entropy: it then sees a contradiction at once that it would have to learn from
            features and label. Beyond the paper; False is the paper.
        meta_lr: learning rate of the meta networks' Adam. If not given, it is the paper's 3e-4, and with hidden="auto"
            more for narrower networks (see `networks.follow_width`): 1.2e-3 for 256-128.
        meta_amsgrad: let that Adam divide by the largest gradients it has seen (AMSGrad). Plain Adam divides by the
            recent ones: once the trusted samples are learned and the meta gradient fades, KL and noise alone would move
            the networks just as fast, and they would forget. Beyond the paper; False is the paper.
    """

    name = "vri"
    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels"
    cost = Cost(2.2, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))

    hidden: str | Sequence[int] = option(
        "auto", "'auto' or widths", lambda m: not isinstance(m.hidden, str) or m.hidden == "auto"
    )
    squash: Any = option("sigmoid", SQUASHES)  # the name, then the function
    kl_route: str = option("objective", ("objective", "features"))
    bound: str = option("log_var", BOUNDS)
    samples: int = option(4, "at least 1")
    label_dim: int = option(64, "at least 1")
    kl_weight: float | None = option(1e-3, "0 or more")
    log_var_bound: float = option(1.0, "more than 0")
    initial_mean: float = option(-2.0)
    normalize: bool = option(True)
    beliefs: bool = option(False)
    meta_every = 2
    clean_weight = 4.0
    clean_updates = 300
    meta_lr: float | None = option(None, "more than 0")  # type: ignore[assignment]
    meta_amsgrad = True
    meta_smoothing = 0.1
    meta_weight_decay = refused("the meta networks have none")

    has_prior: bool = True  # False for its variants without prior and KL term
    meta_network: MetaNetwork
    prior_network: PriorNetwork

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.squash = SQUASHES[self.squash]
        self.kl_weight = self.kl_weight if self.has_prior else None
        width = self.classifier.feature_dim
        widths = follow_features(width) if self.hidden == "auto" else self.hidden
        names = ("bound", "log_var_bound", "initial_mean", "normalize")
        shape: dict[str, Any] = {"hidden": widths} | {name: getattr(self, name) for name in names}
        of_labels: dict[str, Any] = {"label_dim": self.label_dim, "beliefs": self.beliefs}

        def networks() -> dict[str, nn.Module]:
            posterior = {"meta_network": MetaNetwork(width, num_classes, **of_labels, **shape)}
            return posterior | ({"prior_network": PriorNetwork(width, num_classes, **shape)} if self.has_prior else {})

        rate = follow_width(int(widths[0])) if self.hidden == "auto" else PAPER_RATE
        self.learn_with(networks, **({"lr": rate} if self.meta_lr is None else {}))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One iteration of Algorithm 1."""
        # The batches, checked before anything changes; look-ahead and real update share one forward.
        inputs, y = self.classifier.unpack(batch, "training")
        trusted = self.unpack_meta(meta_batch) if self.meta_due else None
        forward = self.forward(inputs)
        z_now, f = forward.detached  # what the meta networks read
        ahead, clean, found = None, None, {}

        if trusted is not None:
            # Look ahead with vectors v = μ + σε drawn from the posterior q: θ̂ = θ − α∇ℓ, Eq. (eq:theta_step).
            q, epsilon = self.meta_network(f, y, z_now), self.draw(len(y))
            v = objective.reparameterize(q, epsilon)
            kl = objective.gaussian_kl(q, self.prior_network(f)).mean() if self.has_prior else None
            literal = self.kl_route == "features"  # the paper's text: KL inside ℓ, and through the features
            if literal:
                ahead = self.look_ahead(forward, lambda z, f: self.elbo(z, f, y, epsilon))
            else:
                ahead = self.look_ahead(forward, lambda z, f: objective.empirical_loss(v, self.seen(z), y, self.squash))
            # g = ∇L_meta(θ̂) on the trusted samples, Eq. (eq:obj2).
            clean = self.clean_gradient(ahead, *trusted)
            # φ and ω on L_meta(θ̂) + αλKL, Eq. (eq:phi_update) and (eq:omega_update).
            gradient = self.meta_gradient(ahead, clean, None if literal else kl)
            self.learn(gradient)
            found = self.meta_metrics(clean, trusted[1], gradient, kl)

        # θ on the rectified loss, with the updated φ and fresh draws, which carry no gradient: Eq. (eq:theta_update).
        with torch.no_grad():
            q = self.meta_network(f, y, z_now)
            v = objective.reparameterize(q, self.draw(len(y)))
        found |= self.spread(q)
        return self.update(
            forward, y, lambda z: objective.empirical_loss(v, self.seen(z), y, self.squash), ahead, clean, found
        )

    def seen(self, z: Tensor) -> Tensor:
        """The logits that the vector rectifies: the classifier's own."""
        return z

    def elbo(self, z: Tensor, f: Tensor, y: Tensor, epsilon: Tensor) -> Tensor:
        """ℓ(z, f) with λ·KL inside, Eq. (eq:obj1), as in the paper's text."""
        q, p = self.meta_network(f, y, z), self.prior_network(f)
        return objective.elbo_loss(q, p, epsilon, self.seen(z), y, self.kl_weight or 0.0, self.squash)

    def draw(self, count: int) -> Tensor:
        """ε (k, n, c)."""
        return self.classifier.normal(self.samples, count, self.generator)

    def spread(self, posterior: Gaussian) -> Mapping[str, Tensor]:
        """Mean ‖σ²‖, which shows whether the posterior collapses to a point."""
        return {"variance": posterior.log_var.exp().norm(dim=1).mean()}

    def posterior(self, features: Tensor, labels: Tensor, logits: Tensor | None = None) -> Gaussian:
        """q(v | x, y) of samples with these features and labels, and with `beliefs` these logits."""
        check_labels(labels, self.num_classes, "given")
        check_finite(features, "features")
        kind = features.dtype if labels.is_floating_point() else torch.long
        if self.meta_network.beliefs and logits is None:
            raise ValueError("the meta network reads beliefs (beliefs=True): expected logits, too; pass logits=")
        gaussian: Gaussian = self.meta_network(features, labels.to(kind), logits)
        return gaussian

    def prior(self, features: Tensor) -> Gaussian:
        """p(v | x) of samples with these features."""
        if not self.has_prior:
            raise ValueError(f"{type(self).__name__} has no prior; VRI has one")
        check_finite(features, "features")
        gaussian: Gaussian = self.prior_network(features)
        return gaussian

    def rectify(self, logits: Tensor, features: Tensor, labels: Tensor, samples: int | None = None) -> Tensor:
        """Draw rectifying vectors from the posterior and apply them: (samples, n, c) rectified logits."""
        posterior = self.posterior(features, labels, logits)
        noise = self.classifier.normal(samples or self.samples, len(labels), self.generator)
        vectors = objective.reparameterize(posterior, noise)
        return objective.rectify(vectors, self.seen(logits), self.squash)

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state; the shapes of the networks are in the state itself."""
        own = {"kl_route": self.kl_route} if self.has_prior else {}
        return super().settings() | own | {"samples": self.samples}
