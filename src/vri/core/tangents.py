"""A tangent pass that computes tangents alone, since the training forward on the same batch has computed the values.

Forward mode computes every value together with its tangent. Here the training forward went before, and its graph keeps
most values: inputs of convolutions and of BatchNorm, outputs of ReLU. `Record` notes which are still there at its end,
and which nobody needs any more: the output of BatchNorm if only a ReLU reads it, that of a convolution if it only goes
into a sum. `Replay` takes the first and leaves out the second. This costs no memory: next to nothing is held that the
graph does not hold anyway.

Convolution and linear layer: PyTorch's rule computes the output and two tangent terms, ours the two terms.

BatchNorm: PyTorch composes the tangent in training mode from a dozen elementwise operators, which cost more than the
convolutions around it. Its Jacobian with respect to the input, γr (I − 11ᵀ/n − x̂x̂ᵀ/n) for each channel, is symmetric,
so the fused backward kernel applied to the tangent is the Jacobian-vector product.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Operator = Callable[..., Any]
_LAYERS: frozenset[Operator] = frozenset({torch.conv1d, torch.conv2d, torch.conv3d, F.linear})
_RELUS: frozenset[Operator] = frozenset({F.relu, torch.relu, Tensor.relu})
_SUMS: frozenset[Operator] = frozenset({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__})
_QUESTIONS: frozenset[Operator] = frozenset(  # about a tensor, not about its values
    {Tensor.dim, Tensor.size, Tensor.ndim.__get__, Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__}  # type: ignore[attr-defined]
)


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


class Diverged(RuntimeError):
    """The model did something else than in the forward that was recorded."""


class _Held:
    """A tensor of the training forward, as long as nobody writes over it."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor.detach(), tensor._version

    def read(self) -> Tensor | None:
        return self._tensor if self._tensor._version == self._version else None


@dataclass(eq=False)
class Kept:
    """One operator of the training forward, what identifies it, and what is left of it."""

    operator: Operator
    shape: torch.Size  # of the input
    weight: int = 0  # its address
    held: _Held | None = None  # the output
    unneeded: bool = False  # ... isn't there and nobody needs it
    statistics: tuple[Tensor, Tensor] | None = None  # of BatchNorm: mean and 1/σ

    @property
    def output(self) -> Tensor | None:
        """The output; None if it is not there, or has been overwritten since."""
        return None if self.held is None else self.held.read()


@dataclass(eq=False)
class _Seen:
    """What is known of an output while the forward runs."""

    kept: Kept
    output: weakref.ref[Tensor]
    version: int
    layer: Tensor | None  # the output of a layer: held until it is clear that nobody needs it
    terms: Sequence["_Seen"] = ()  # of a sum
    read: bool = False
    needed: bool = False  # to compute what follows

    def remains(self) -> Tensor | None:
        """The output if it is still as it was, and either costs no memory or much work."""
        if not self.needed and self.read:
            self.layer = None
        tensor = self.output()
        return tensor if tensor is not None and tensor._version == self.version else None


class Record(TorchFunctionMode):
    """Within this context, note the operators that have a rule here, in order, and what is left of each at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Kept] = []
        self._seen: list[_Seen] = []
        self._by_id: dict[int, _Seen] = {}

    def __torch_function__(
        self, func: Operator, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator and note it."""
        kwargs = kwargs or {}
        if not _has_rule(func, args, kwargs):
            if func not in _QUESTIONS:
                self._read((*args, *kwargs.values()))
            return func(*args, **kwargs)
        kept, terms = Kept(func, args[0].shape, _address(func, args)), []
        if func is F.batch_norm:
            out, kept.statistics = _normalise(*args, **kwargs)
        else:
            out = func(*args, **kwargs)
        if func in _RELUS:
            kept.held = _Held(out)  # the backward pass of ReLU holds it, too
            self._read(args, needed=False)
        elif func in _SUMS:
            terms = self._read(args, needed=False)
        else:
            self._read((*args, *kwargs.values()))
        self._seen.append(_Seen(kept, weakref.ref(out), out._version, out if func in _LAYERS else None, terms))
        self._by_id[id(out)] = self._seen[-1]
        return out

    def __exit__(self, *error: object) -> None:
        """Hold what is alive; what follows from the rest is seen from the end."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for seen in reversed(self._seen):
            kept, output = seen.kept, seen.remains()
            if output is not None:
                kept.held = _Held(output)
            elif kept.output is None:
                kept.held = None
                kept.unneeded = seen.read and not seen.needed
                if not kept.unneeded:
                    for term in seen.terms:
                        term.needed = True
        self.kept = [seen.kept for seen in self._seen]
        self._seen.clear()
        self._by_id.clear()

    def _read(self, values: Iterable[Any], needed: bool = True) -> list[_Seen]:
        """Note that an operator reads these; those among them that have been noted."""
        found = []
        for tensor in _tensors(values):
            seen = self._by_id.get(id(tensor))
            if seen is not None and seen.output() is tensor:  # not another one at the same address
                seen.read = True
                seen.needed |= needed
                found.append(seen)
        return found


class Replay(TorchFunctionMode):
    """Within this context, use the rules above for dual tensors.

    A value that nobody needs is not computed: the tensor then has its tangent, and in place of the value anything.
    """

    def __init__(self, kept: Sequence[Kept] = ()) -> None:
        super().__init__()
        self._kept, self._left_out = iter(kept), dict[int, weakref.ref[Tensor]]()

    def __torch_function__(
        self, func: Operator, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace the operators where their rule applies."""
        kwargs = kwargs or {}
        kept = self._next(func, args) if _has_rule(func, args, kwargs) else None
        left = kept if kept is not None and (kept.held is not None or kept.unneeded) else None
        if not (func in _QUESTIONS or (left is not None and (func in _RELUS or func in _SUMS))):
            self._check((*args, *kwargs.values()))
        if func is F.batch_norm:
            value, moved = _batch_norm(left, *args, **kwargs)
            return value if moved is None else self._dual(left, value, moved)  # no tangent, no omission
        moved = None if left is None else _tangent(func, args, left)
        return func(*args, **kwargs) if moved is None or left is None else self._dual(left, left.output, moved)

    def _check(self, values: Iterable[Any]) -> None:
        """None of these may be a value that was left out."""
        if self._left_out and any(self._left_out.get(id(t), lambda: None)() is t for t in _tensors(values)):
            raise Diverged("the model's forward is not the same when it runs again with the same seed")

    def _next(self, func: Operator, args: Sequence[Any]) -> Kept | None:
        """What was recorded of this operator."""
        kept = next(self._kept, None)
        if kept is None:
            return None
        same = (kept.operator, kept.shape, kept.weight) == (func, args[0].shape, _address(func, args))
        if same and (kept.held is None or kept.output is not None):
            return kept
        self._kept = iter(())  # what reads a value that was left out is then found
        return None

    def _dual(self, kept: Kept | None, value: Tensor | None, moved: Tensor) -> Tensor:
        dual = make_dual(moved if value is None else value, moved)
        if kept is not None and value is None:
            self._left_out[id(dual)] = weakref.ref(dual)
        return dual


def _has_rule(func: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if func in _LAYERS:
        return len(args) >= 2 and not kwargs
    if func in _RELUS:
        return len(args) == 1 and not kwargs.get("inplace")
    if func in _SUMS:
        return len(args) == 2 and not kwargs and _alike(*args)
    return func is F.batch_norm


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype


def _address(func: Operator, args: Sequence[Any]) -> int:
    return int(args[1].data_ptr()) if func in _LAYERS else 0


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())


def _tangent(func: Operator, args: Sequence[Any], kept: Kept) -> Tensor | None:
    """The tangent of a layer, ReLU or sum; None where it has none, or PyTorch's own rule will do."""
    if func in _LAYERS:
        return _layer_tangent(func, *args)
    if func in _RELUS:
        dot = unpack_dual(args[0])[1]
        return None if dot is None else torch.ops.aten.threshold_backward(dot, kept.output, 0)
    first, second = (unpack_dual(term)[1] for term in args)
    if first is not None and second is not None:
        return first + second
    one = second if first is None else first
    return None if one is None else one.clone()  # what writes over the term must not reach the sum


def _layer_tangent(func: Operator, x: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any) -> Tensor | None:
    (x, x_dot), (weight, weight_dot) = unpack_dual(x), unpack_dual(weight)
    bias_dot = None if bias is None else unpack_dual(bias)[1]
    moved: Tensor | None = None if x_dot is None else func(x_dot, weight, None, *how)
    if weight_dot is not None:
        term = func(x, weight_dot, bias_dot, *how)
        return term if moved is None else moved.add_(term)
    if bias_dot is None or moved is None:
        return moved
    return moved.add_(bias_dot if func is F.linear else bias_dot.view(-1, *[1] * (x.ndim - 2)))


def _normalise(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """`F.batch_norm`, and in training mode the mean and 1/σ of the batch."""
    if not training or x.numel() <= x.shape[1]:  # a single value for each channel: its error is PyTorch's
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps), None
    y, mean, inv_std, *_ = torch._batch_norm_impl_index(
        x, weight, bias, running_mean, running_var, training, momentum, eps, torch.backends.cudnn.enabled
    )
    return y, (mean.detach(), inv_std.detach())


def _batch_norm(
    kept: Kept | None,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor | None, Tensor | None]:
    """Value and tangent; the value is that of `kept`, None if nobody needs it."""
    primal, x_dot = unpack_dual(x)
    # under autocast x is in half precision and the parameters are not; the fused kernels accept that
    foreign = any(t is not None and t.dtype not in (x.dtype, torch.float32) for t in (weight, bias))
    if not training or foreign or x_dot is None:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps), None
    gamma, gamma_dot = (None, None) if weight is None else unpack_dual(weight)
    beta, beta_dot = (None, None) if bias is None else unpack_dual(bias)
    if kept is None or kept.statistics is None:
        known = torch.native_batch_norm(primal, gamma, beta, running_mean, running_var, training, momentum, eps)
        y: Tensor | None = known[0]
        mean, inv_std = known[1:]
    else:
        y, (mean, inv_std) = kept.output, kept.statistics
    y_dot = torch.ops.aten.native_batch_norm_backward(
        x_dot, primal, gamma, running_mean, running_var, mean, inv_std, training, eps, [True, False, False]
    )[0]
    if gamma_dot is not None:  # + γ̇ x̂ + β̇, by the kernel that normalises with given statistics
        shift = torch.zeros_like(gamma_dot) if beta_dot is None else beta_dot
        y_dot.add_(F.batch_norm(primal, mean, inv_std.pow(-2), gamma_dot, shift, False, 0.0, 0.0))
    elif beta_dot is not None:
        y_dot.add_(beta_dot.view(-1, *[1] * (x.ndim - 2)))
    return y, y_dot
