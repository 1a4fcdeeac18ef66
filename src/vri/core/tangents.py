"""Faster forward-mode rules for the operators that dominate a tangent pass.

Convolution and linear layer: PyTorch computes the output again in addition to its two tangent terms. The training
forward on the same batch has already computed it; keeping it saves a third of the work. Mostly that costs no memory,
since the backward pass needs the output as well. Where it doesn't, because only a sum with a shortcut goes on, as in
residual networks, the output is that sum less the shortcut, and the backward pass needs those two.

BatchNorm: PyTorch composes the tangent in training mode from a dozen elementwise operators, which cost more than the
convolutions around it. Its Jacobian with respect to the input, γr (I − 11ᵀ/n − x̂x̂ᵀ/n) for each channel, is symmetric,
so the fused backward kernel applied to the tangent is the Jacobian-vector product.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

LAYERS = frozenset({torch.conv1d, torch.conv2d, torch.conv3d, F.linear})
_SUMS = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__})


def unpack_dual(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Value and tangent, None where there is none; inside `forward_ad.dual_level`.

    The same as `forward_ad.unpack_dual` at a quarter of its cost: that one looks for an export in progress each time.
    """
    pair: tuple[Tensor, Tensor | None] = torch._unpack_dual(tensor, level=0)  # there are no other levels
    return pair


def make_dual(tensor: Tensor, tangent: Tensor) -> Tensor:
    """A value with a tangent, likewise."""
    dual: Tensor = torch._make_dual(tensor, tangent, level=0)
    return dual


class _Held:
    """A tensor of the training forward, as long as nobody writes over it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor.detach(), tensor._version

    def read(self) -> Tensor | None:
        return self._tensor if self._tensor._version == self._version else None


@dataclass
class Kept:
    """Output of one layer of the training forward, and what identifies that layer."""

    weight: int  # address
    shape: torch.Size  # of the input
    held: tuple[_Held, ...]  # the output, or a sum and what was added to the output

    @property
    def output(self) -> Tensor | None:
        """The output; None if it has been overwritten since."""
        read = [held.read() for held in self.held]
        if any(tensor is None for tensor in read):
            return None
        return read[0] if len(read) == 1 else read[0] - read[1]  # type: ignore[operator]


class Record(TorchFunctionMode):
    """Within this context, keep the outputs of convolutions and linear layers, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Kept] = []
        self._outputs: dict[int, tuple[Tensor, Kept]] = {}  # by id
        self._sums: list[tuple[Kept, list[tuple[weakref.ref[Tensor], int]]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator and keep the output of a layer."""
        out = func(*args, **(kwargs or {}))
        if func in LAYERS and len(args) >= 2:
            x, weight = args[:2]
            kept = Kept(weight.data_ptr(), x.shape, (_Held(out),))
            self.kept.append(kept)
            self._outputs[id(out)] = out, kept
        elif func in _SUMS and len(args) == 2 and not kwargs:
            self._note(out, *args)
        return out

    def __exit__(self, *error: object) -> None:
        """Let go of outputs that follow from a sum which the backward pass keeps alive anyway."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._outputs.clear()
        for kept, references in self._sums:
            found = [(reference(), version) for reference, version in references]
            if all(tensor is not None and tensor._version == version for tensor, version in found):
                kept.held = tuple(_Held(tensor) for tensor, _ in found if tensor is not None)
        self._sums.clear()

    def _note(self, out: Tensor, a: Any, b: Any) -> None:
        for term, other in ((a, b), (b, a)):
            alike = isinstance(other, Tensor) and other.shape == out.shape and other.dtype == out.dtype
            if alike and id(term) in self._outputs and id(other) not in self._outputs:
                pair = [(weakref.ref(tensor), tensor._version) for tensor in (out, other)]
                self._sums.append((self._outputs[id(term)][1], pair))


class Replay(TorchFunctionMode):
    """Within this context, use the rules above for dual tensors."""

    def __init__(self, kept: Sequence[Kept] = ()) -> None:
        super().__init__()
        self._kept = iter(kept)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace the operators where their rule applies."""
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        if func in LAYERS and len(args) >= 2:
            known = next(self._kept, None)
            if known is not None and not kwargs and known.shape == args[0].shape:
                weight = unpack_dual(args[1])
                output = known.output if known.weight == weight[0].data_ptr() else None
                if output is not None:
                    return _layer(func, output, args[0], *weight, *args[2:])
        return func(*args, **(kwargs or {}))


def _layer(
    func: Callable[..., Tensor],
    output: Tensor,
    x: Tensor,
    weight: Tensor,
    weight_dot: Tensor | None,
    bias: Tensor | None = None,
    *how: Any,
) -> Tensor:
    x, x_dot = unpack_dual(x)
    bias_dot = None if bias is None else unpack_dual(bias)[1]
    moved = None if x_dot is None else func(x_dot, weight, None, *how)
    if weight_dot is not None:
        term = func(x, weight_dot, bias_dot, *how)
        moved = term if moved is None else moved.add_(term)
    elif bias_dot is not None:
        term = bias_dot if func is F.linear else bias_dot.view(-1, *[1] * (x.ndim - 2))
        moved = term.to(output.dtype).expand_as(output) if moved is None else moved.add_(term)
    if moved is None:
        return output
    return make_dual(output, moved)


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
    # under autocast x is in half precision and the parameters are not; the fused kernels accept that
    foreign = any(t is not None and t.dtype not in (x.dtype, torch.float32) for t in (weight, bias))
    if not training or foreign or x_dot is None:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    gamma, gamma_dot = (None, None) if weight is None else unpack_dual(weight)
    beta, beta_dot = (None, None) if bias is None else unpack_dual(bias)
    y, mean, inv_std = torch.native_batch_norm(primal, gamma, beta, running_mean, running_var, training, momentum, eps)
    y_dot = torch.ops.aten.native_batch_norm_backward(
        x_dot, primal, gamma, running_mean, running_var, mean, inv_std, training, eps, [True, False, False]
    )[0]
    if gamma_dot is not None:  # + γ̇ x̂ + β̇, by the kernel that normalises with given statistics
        shift = torch.zeros_like(gamma_dot) if beta_dot is None else beta_dot
        y_dot.add_(F.batch_norm(primal, mean, inv_std.pow(-2), gamma_dot, shift, False, 0.0, 0.0))
    elif beta_dot is not None:
        y_dot.add_(beta_dot.view(-1, *[1] * (x.ndim - 2)))
    return make_dual(y, y_dot)
