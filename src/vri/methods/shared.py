"""What several methods share: a step down a loss of the logits, and checked options."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.core.model import Classifier, Forward
from vri.core.randomness import draw_seed
from vri.methods.base import Metrics, accuracy
from vri.training import distributed as parallel
from vri.training.distributed import Part


def loss_step(
    classifier: Classifier, generator: torch.Generator, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor]
) -> Metrics:
    """One step on `loss(logits, labels)` of a training batch."""
    inputs, labels, part = classifier.unpack(batch, "training")
    forward = classifier.forward(inputs, draw_seed(generator))
    value = descend(classifier, forward, lambda logits: loss(logits, labels), part)
    right = accuracy(forward.outputs.logits.detach(), labels)
    return parallel.sums({"loss": value} | part.of({"accuracy": right}))


def descend(classifier: Classifier, forward: Forward, loss: Callable[[Tensor], Tensor], part: Part) -> float:
    """One update on the mean loss of the rows `part`, a function of the logits; returns this worker's share of it."""
    leaf = forward.outputs.logits.detach().requires_grad_()
    value = part.scale(loss(leaf))
    (output_gradient,) = torch.autograd.grad(value, leaf)
    descend_along(classifier, forward, output_gradient)
    return float(value.detach())


def descend_along(classifier: Classifier, forward: Forward, output_gradient: Tensor) -> None:
    """One update on the gradient of a loss in the logits, summed over all workers."""
    names = list(classifier.parameters)
    classifier.update(classifier.gradient(forward, (output_gradient, None), names, keep=False))


def one_hot(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels as probability vectors (n, c) that match `logits`; soft ones stay as they are."""
    if labels.is_floating_point():
        return labels
    return F.one_hot(labels, logits.shape[1]).to(logits.dtype)


def check_options(method: str, **options: tuple[float, bool, str]) -> None:
    """Refuse options that can't work, all at once; each is given as (value, whether it can, what was expected)."""
    wrong = [
        f"{name}={value!r} (expected {expected})" for name, (value, right, expected) in options.items() if not right
    ]
    if wrong:
        raise ValueError(f"{method} got options it can't use: " + "; ".join(wrong))
