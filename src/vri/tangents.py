"""A faster forward-mode rule for BatchNorm.

PyTorch composes the tangent of a training-mode BatchNorm from a dozen elementwise operators, which costs more than
the convolutions around it. Its Jacobian in the input, γr (I − 11ᵀ/n − x̂x̂ᵀ/n) for each channel, is symmetric, so
the fused backward kernel applied to the tangent is the Jacobian-vector product.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import make_dual, unpack_dual
from torch.overrides import TorchFunctionMode


class FusedBatchNorm(TorchFunctionMode):
    """Within this context, dual tensors go through training-mode BatchNorm by its fused kernels."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace `F.batch_norm` where the rule holds."""
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    primal, x_dot = unpack_dual(x)
    mixed = any(t is not None and t.dtype != x.dtype for t in (weight, bias))
    if not training or mixed or x_dot is None:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    gamma, gamma_dot = (None, None) if weight is None else unpack_dual(weight)
    beta, beta_dot = (None, None) if bias is None else unpack_dual(bias)
    y, mean, inv_std = torch.native_batch_norm(primal, gamma, beta, running_mean, running_var, training, momentum, eps)
    y_dot = torch.ops.aten.native_batch_norm_backward(
        x_dot, primal, gamma, running_mean, running_var, mean, inv_std, training, eps, [True, False, False]
    )[0]
    shape = (1, -1, *[1] * (x.ndim - 2))  # one number a channel
    if gamma_dot is not None:  # + γ̇ x̂ = γ̇r·x − γ̇rμ
        scale = gamma_dot * inv_std
        shift = scale * mean if beta_dot is None else scale * mean - beta_dot
        y_dot = torch.addcmul(y_dot, primal, scale.view(shape)).sub_(shift.view(shape))
    elif beta_dot is not None:
        y_dot = y_dot + beta_dot.view(shape)
    dual: Tensor = make_dual(y, y_dot)
    return dual
