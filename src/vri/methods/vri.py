"""Variational Rectification Inference: the meta network draws a vector that rectifies a sample's logits."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vri.core import objective
from vri.core.checks import check_finite, check_labels
from vri.core.model import Outputs
from vri.core.networks import BOUNDS, MetaNetwork, PriorNetwork
from vri.core.objective import SQUASHES, Gaussian
from vri.methods.base import Metrics
from vri.methods.meta import MetaMethod, must_be, one_of


class Rectification(NamedTuple):
    """What the meta network makes of a batch."""

    vectors: Tensor  # v (k, n, c)
    posterior: Gaussian  # q(v | x, y), which they were drawn from
    features: Tensor  # f (n, d), for the prior


class VRI(MetaMethod):
    """Train a classifier on noisy labels with the help of a few clean samples.

    It owns no loop: call `step` with a noisy batch and a clean one; it is the paper's Algorithm 1, line by line, and
    all that is VRI's own in it is below: V_φ draws a vector v from (features, label), π(v) rectifies the logits. At
    test time only `model` runs.

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
        clean_updates: after so many updates of the meta networks γ falls as one over their number; None keeps it. A
            heavy γ helps while these networks have hardly learned; later it would memorise the clean samples, which
            then tell them nothing any more. Beyond the paper.
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

    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels"

    has_prior: bool = True  # False for its variants without prior and KL term
    meta_network: MetaNetwork
    prior_network: PriorNetwork

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
        clean_updates: int | None = 300,
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
        mistakes = [
            *one_of("squash", squash, SQUASHES),
            *one_of("kl_route", kl_route, ("objective", "features")),
            *one_of("bound", bound, BOUNDS),
            *must_be("samples", samples, samples >= 1, "at least 1"),
            *must_be("label_dim", label_dim, label_dim >= 1, "at least 1"),
            *must_be("kl_weight", kl_weight, kl_weight >= 0, "0 or more"),
            *must_be("log_var_bound", log_var_bound, log_var_bound > 0, "more than 0"),
        ]
        super().__init__(
            model,
            num_classes,
            optimizer,
            hypergradient=hypergradient,
            meta_every=meta_every,
            clean_weight=clean_weight,
            clean_updates=clean_updates,
            generator=generator,
            head=head,
            feature_dim=feature_dim,
            meta_lr=meta_lr,
            meta_amsgrad=meta_amsgrad,
            meta_optimizer=meta_optimizer,
            meta_smoothing=meta_smoothing,
            lookahead=lookahead,
            lagged=lagged,
            autocast=autocast,
            mistakes=mistakes,
        )
        self.samples, self.squash = samples, SQUASHES[squash]
        self.kl_weight, self.kl_route = kl_weight if self.has_prior else None, kl_route
        width = self.classifier.feature_dim
        shape: dict[str, Any] = {
            "hidden": hidden,
            "bound": bound,
            "log_var_bound": log_var_bound,
            "initial_mean": initial_mean,
            "normalize": normalize,
        }

        def networks() -> dict[str, nn.Module]:
            posterior = {"meta_network": MetaNetwork(width, num_classes, label_dim=label_dim, **shape)}
            return posterior | ({"prior_network": PriorNetwork(width, num_classes, **shape)} if self.has_prior else {})

        self.learn_with(networks)

    def draw(self, count: int) -> Tensor:
        """ε (k, n, c)."""
        return self._noise(count, self.samples)

    def correct(self, outputs: Outputs, labels: Tensor, drawn: Tensor) -> Rectification:
        """Draw the rectifying vectors: Eq. (eq:reparam)."""
        posterior: Gaussian = self.meta_network(outputs.features, labels)
        return Rectification(objective.reparameterize(posterior, drawn), posterior, outputs.features)

    def loss(self, logits: Tensor, labels: Tensor, correction: Rectification) -> Tensor:
        """Cross-entropy of the rectified logits, averaged over draws and samples: Eq. (eq:theta_update)."""
        return objective.empirical_loss(correction.vectors, logits, labels, self.squash)

    def kl(self, correction: Rectification) -> Tensor:
        """KL(q(v | x, y) ‖ p(v | x)), averaged over samples: Eq. (eq:kl)."""
        return objective.gaussian_kl(correction.posterior, self.prior_network(correction.features)).mean()

    def finish(self, correction: Rectification, labels: Tensor) -> Metrics:
        """Mean ‖σ²‖, which shows a collapse to a point."""
        return {"variance": float(correction.posterior.log_var.exp().norm(dim=1).mean())}

    def posterior(self, features: Tensor, labels: Tensor) -> Gaussian:
        """q(v | x, y) of samples with these features and labels."""
        check_labels(labels, self.num_classes, "given")
        check_finite(features, "features")
        kind = features.dtype if labels.is_floating_point() else torch.long
        gaussian: Gaussian = self.meta_network(features, labels.to(kind))
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
        posterior = self.posterior(features, labels)
        vectors = objective.reparameterize(posterior, self._noise(len(labels), samples or self.samples))
        return objective.rectify(vectors, logits, self.squash)

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state; shapes of the networks show in the state itself."""
        return super().settings() | {"samples": self.samples}

    def _noise(self, count: int, samples: int) -> Tensor:
        device, dtype = self.classifier.device, self.classifier.dtype
        shape = (samples, count, self.num_classes)
        drawn = torch.randn(shape, generator=self.generator, device=self.generator.device, dtype=dtype)
        return drawn.to(device, non_blocking=True)
