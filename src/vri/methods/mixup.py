"""mixup: train on interpolations of samples."""

from typing import Any

import torch
from torch import Tensor

from vri.core import objective
from vri.core.checks import Batch, on_leaves
from vri.core.randomness import draw_seed, seeded
from vri.methods.base import Cost, Metrics, Rates, accuracy
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.options import option


def mix(inputs: Any, order: Tensor, share: float) -> Any:
    """λ·x + (1 − λ)·x[order] of a tensor, or of each in a tuple or mapping."""

    def mixed(tensor: Any) -> Tensor:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.") if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(
                f"mixup got inputs of type {kind}, expected floating-point tensors: only they have values in between; "
                "convert images to float, embed token ids before the model, or take another method"
            )
        return share * tensor + (1 - share) * tensor[order]

    return on_leaves(mixed, inputs)


def draw_mixture(alpha: float, count: int, generator: torch.Generator, device: torch.device) -> tuple[float, Tensor]:
    """λ ~ Beta(α, α), 1 where α = 0, and an order of `count` samples."""
    order = torch.randperm(count, generator=generator, device=generator.device)
    share = 1.0
    if alpha > 0:
        with seeded(draw_seed(generator), torch.device("cpu")):  # Beta uses only the global generator
            share = float(torch.distributions.Beta(alpha, alpha).sample())
    return share, order.to(device)


class Mixup(CrossEntropy):
    """Train on mixtures of two samples and of their labels.

    x̃ = λ·x + (1 − λ)·x′ with one λ ~ Beta(α, α) per batch, where x′ is the batch in another order;
    L = λ·CE(f(x̃), y) + (1 − λ)·CE(f(x̃), y′). The accuracy reported is weighted like the loss.

    Args:
        alpha: α; 1 is the paper's for CIFAR; against noisy labels the paper finds 8 to 32 better there. 0 is λ = 1,
            plain cross-entropy.
    """

    name = "mixup"
    paper = "Zhang, Cisse, Dauphin, Lopez-Paz, mixup: Beyond Empirical Risk Minimization (ICLR 2018)"
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.02, 5e-3), (0.05, 5e-4))

    alpha: float = option(1.0, "0 or more")

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on mixed samples."""
        inputs, labels = self.classifier.unpack(batch, "training")
        share, order = draw_mixture(self.alpha, len(labels), self.generator, self.classifier.device)
        forward = self.forward(mix(inputs, order, share))
        others = labels[order]

        def loss(logits: Tensor) -> Tensor:
            here, there = objective.cross_entropy(logits, labels), objective.cross_entropy(logits, others)
            return share * here + (1 - share) * there

        logits = forward.detached.logits
        right = share * accuracy(logits, labels) + (1 - share) * accuracy(logits, others)
        return self.descend_forward(forward, loss, accuracy=right, share=share)
