"""Orthogonalised momentum for convolutions: the optimizer of the backbone `fast`.

`torch.optim.Muon` is similar, but takes only matrices and doesn't control the norm of the weights. With a BatchNorm
after the layer, that norm only divides the learning rate. Here it is fixed, so that a learning rate keeps its meaning
during training.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Quintic Newton-Schulz iteration, as in Muon: a few steps bring singular values between 0 and 1 to roughly 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)

# For parameters that are not orthogonalised: learning rates as multiples of that of the convolutions, and the momentum.
# Biases of BatchNorm need a large rate: the loss is a mean and hardly depends on any one of them.
_LINEAR, _BIAS, _MOMENTUM = 1 / 6, 80.0, 0.85


class Orthogonal(torch.optim.Optimizer):
    """SGD with Nesterov momentum; in groups with ``orthogonal=True`` each step is the nearest orthogonal matrix.

    In these groups a weight (out, ...) is treated as a matrix with `out` rows and kept at the norm √out. The length of
    a step depends only on the learning rate, not on the length of the gradient.

    Args:
        params: parameters, or groups of them with any of the options below.
        lr: learning rate.
        momentum: of the gradients.
        weight_decay: of groups that are not orthogonal; relative to the learning rate, as in `torch.optim.SGD`.
        orthogonal: whether to orthogonalise.
        steps: Newton-Schulz iterations.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.24,
        momentum: float = 0.6,
        weight_decay: float = 0.0,
        orthogonal: bool = False,
        steps: int = 3,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, options | {"orthogonal": orthogonal, "steps": steps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, group)
        return loss

    def _move(self, p: Tensor, group: dict[str, Any]) -> None:
        grad = p.grad
        assert grad is not None
        if group["weight_decay"] and not group["orthogonal"]:
            grad = grad.add(p, alpha=group["weight_decay"])
        buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        buffer.mul_(group["momentum"]).add_(grad)
        update = grad.add(buffer, alpha=group["momentum"])
        if group["orthogonal"] and p.ndim > 1:
            p.mul_(len(p) ** 0.5 / p.norm().clamp_min(1e-12))
            update = orthogonalise(update.flatten(1), group["steps"]).view_as(p)
        p.add_(update, alpha=-float(group["lr"]))


def orthogonalise(matrix: Tensor, steps: int) -> Tensor:
    """About U Vᵀ of the singular value decomposition U S Vᵀ, by `steps` Newton-Schulz iterations."""
    a, b, c = _COEFFICIENTS
    wide = matrix.shape[0] <= matrix.shape[1]
    x: Tensor = matrix if wide else matrix.T
    x = x / x.norm().clamp_min(1e-12)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.T


def orthogonal(model: nn.Module, lr: float = 0.24, momentum: float = 0.6, weight_decay: float = 0.002) -> Orthogonal:
    """`Orthogonal` for a model like the backbone `fast`: its convolutions orthogonalised, the rest by SGD.

    Args:
        model: its parameters that require a gradient are trained.
        lr: of the convolutions; those of linear layers and biases are proportional to it.
        momentum: of the convolutions.
        weight_decay: share of their value that linear layers and biases lose per step, at the full learning rate.
    """
    linear = {p for module in model.modules() if isinstance(module, nn.Linear) for p in module.parameters()}
    groups: dict[str, list[Tensor]] = {"convolution": [], "linear": [], "bias": []}
    for p in model.parameters():
        if p.requires_grad:
            groups["convolution" if p.ndim > 2 else "linear" if p in linear else "bias"].append(p)
    rates = {"linear": _LINEAR * lr, "bias": _BIAS * lr}
    settings: dict[str, dict[str, Any]] = {
        name: {"lr": rate, "momentum": _MOMENTUM, "weight_decay": weight_decay / rate} for name, rate in rates.items()
    }
    settings["convolution"] = {"lr": lr, "momentum": momentum, "orthogonal": True}
    return Orthogonal([{"params": held, **settings[name]} for name, held in groups.items() if held])
