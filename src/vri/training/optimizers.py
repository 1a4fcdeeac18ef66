"""Orthogonalised momentum for convolutions: what the backbone `fast` is trained with.

`torch.optim.Muon` is of the same kind, but takes matrices only, and leaves the norm of the weights alone. Behind a
BatchNorm that norm does nothing but divide the learning rate; here it is fixed, so that a rate means the same all the
way.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Quintic Newton-Schulz iteration, as in Muon: singular values from 0 to 1 go to about 1 in few steps, roughly.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)

# Of what is not orthogonalised: learning rates as multiples of that of the convolutions, and the momentum. Biases of
# BatchNorm want a large one; the loss is a mean, and it hardly depends on any one of them.
_LINEAR, _BIAS, _MOMENTUM = 1 / 6, 80.0, 0.85


class Orthogonal(torch.optim.Optimizer):
    """SGD with Nesterov momentum; in groups with ``orthogonal=True`` each step is the nearest orthogonal matrix.

    There a weight (out, ...) is seen as a matrix with `out` rows and is kept at the norm √out; the length of a step
    depends on the learning rate alone, not on that of the gradient.

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
        if group["orthogonal"]:
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
    """`Orthogonal` for a model, as the backbone `fast` wants it: its convolutions orthogonalised, the rest by SGD.

    Args:
        model: its parameters that require a gradient are trained.
        lr: of the convolutions; linear layers and biases have theirs in proportion.
        momentum: of the convolutions.
        weight_decay: share of their value that linear layers and biases lose in a step, at the full rate.
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
