"""The bi-level step in three parts: look ahead, take the clean gradient there, and differentiate the meta networks.

θ̂ = θ − α∇_θ ℓ depends on the meta parameters φ, ω through ℓ. With g = ∇_θ̂ L_meta(θ̂) held constant,

    ∇_φ L_meta(θ̂(φ)) = −α ∇_φ ⟨∇_θ ℓ, g⟩ = −α ∇_φ (⟨∂ℓ/∂z, ż⟩ + ⟨∂ℓ/∂f, ḟ⟩),

since θ reaches ℓ only through logits z and features f; (ż, ḟ) is the Jacobian of (z, f) with respect to θ, times g. The
functions in `HYPERGRADIENTS` differ in how they get (ż, ḟ); `backprop` differentiates twice instead.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from vri.core import objective, share
from vri.core.model import Classifier, Forward, Parameters
from vri.core.tangents import Diverged, Replay, make_dual, unpack_dual

# Length of the step, relative to the norm of the parameters it moves. The kinks of ReLU make the error grow with the
# step; rounding makes it grow as the step shrinks. The values are a compromise between ResNet-32 and smooth networks.
FINITE_DIFFERENCE_STEP = {torch.float32: 3e-6, torch.float64: 1e-8}

Loss = Callable[[Tensor, Tensor], Tensor]  # ℓ(z, f) of logits and features, differentiable in the meta parameters


class ForwardADMissing(RuntimeError):
    """An operator of the classifier has no forward-mode derivative."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self.operator = operator


@dataclass(frozen=True)
class LookAhead:
    """θ̂, and what it was computed from."""

    classifier: Classifier
    forward: Forward  # of the noisy batch, graph kept
    rates: Mapping[str, float]  # α of each parameter that takes part
    output_gradient: Sequence[Tensor | None]  # ∂ℓ/∂z and ∂ℓ/∂f, with their graph in the meta parameters
    step: Parameters  # ∇_θ ℓ
    theta: Parameters  # θ̂; with its graph in the meta parameters if `differentiable`
    differentiable: bool


@dataclass(frozen=True)
class CleanGradient:
    """The loss on trusted samples at θ̂ and its gradient there."""

    loss: Tensor  # L_meta(θ̂)
    logits: Tensor  # (m, c), of the trusted samples
    features: Tensor  # (m, d)
    gradient: Parameters  # g = ∇_θ̂ L_meta(θ̂)


def look_ahead(
    classifier: Classifier, forward: Forward, loss: Loss, rates: Mapping[str, float], differentiable: bool = False
) -> LookAhead:
    """θ̂ = θ − α∇_θ ℓ, Eq. (eq:theta_step): a plain SGD step that leaves the model unchanged.

    `differentiable` keeps θ̂'s graph in the meta parameters, for `backprop`.
    """
    theta = {n: classifier.parameters[n] for n in rates}
    if differentiable:
        total = loss(*forward.outputs)
        wanted = list(theta.values())
        grads = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True, materialize_grads=True)
        averaged = dict(zip(theta, share.current().average(grads), strict=True))
        ahead = {n: p - rates[n] * averaged[n] for n, p in theta.items()}
        step = {n: g.detach() for n, g in averaged.items()}
        return LookAhead(classifier, forward, rates, (), step, ahead, True)
    # leaves cut the graph at the outputs: what follows is differentiated twice, the classifier only once
    leaves = [o.detach().requires_grad_() for o in forward.outputs]
    output_gradient = torch.autograd.grad(loss(*leaves), leaves, create_graph=True, allow_unused=True)
    detached = [None if g is None else g.detach() for g in output_gradient]
    step = classifier.gradient(forward, detached, list(rates), keep=True)
    with torch.no_grad():
        ahead = {n: torch.add(p, step[n], alpha=-rates[n]) for n, p in theta.items()}
    for p in ahead.values():
        p.requires_grad_()
    return LookAhead(classifier, forward, rates, output_gradient, step, ahead, False)


def clean_gradient(
    ahead: LookAhead,
    inputs: Any,
    labels: Tensor,
    *,
    seed: int,
    smoothing: float = 0.0,
    of: Sequence[str] | None = None,
) -> CleanGradient:
    """L_meta(θ̂) of a trusted batch, Eq. (eq:obj2), and g = ∇_θ̂ L_meta.

    `of` names the parameters of which g is wanted: those that look ahead, or more.
    """
    classifier, names = ahead.classifier, list(ahead.rates) if of is None else list(of)
    theta = dict(ahead.theta)
    # detach layers that don't look ahead too, or their gradient would also run through θ̂
    theta |= {n: classifier.parameters[n].detach().requires_grad_() for n in names if n not in theta}
    logits, features = classifier.at(theta, inputs, seed)
    loss = objective.meta_loss(logits, labels, smoothing)
    found = share.current().gradients(loss, [theta[n] for n in names], retain_graph=ahead.differentiable)
    return CleanGradient(loss, logits.detach(), features.detach(), dict(zip(names, found, strict=True)))


def jvp(
    ahead: LookAhead, clean: CleanGradient, meta_parameters: Sequence[Tensor], penalty: Tensor | None = None
) -> list[Tensor]:
    """Exact, by one tangent pass of the classifier; keeps no graph of a gradient."""
    classifier, forward = ahead.classifier, ahead.forward
    tangent = _tangent(ahead, clean)
    theta = {n: classifier.parameters[n].detach() for n in tangent}
    try:
        with torch.no_grad(), forward_ad.dual_level():
            duals = {n: make_dual(p, tangent[n]) for n, p in theta.items()}
            try:
                outputs = classifier.at(duals, forward.inputs, forward.seed, within=Replay(forward.kept))
            except Diverged:
                outputs = classifier.at(duals, forward.inputs, forward.seed, within=Replay())
            moved = [unpack_dual(o)[1] for o in outputs]
    except NotImplementedError as error:
        raise ForwardADMissing(_operator(error)) from error
    return _through_meta_networks(ahead, moved, meta_parameters, penalty)


def finite_difference(
    ahead: LookAhead, clean: CleanGradient, meta_parameters: Sequence[Tensor], penalty: Tensor | None = None
) -> list[Tensor]:
    """The tangent from one more plain forward, (F(θ + εαg) − F(θ)) / ε: cheaper, accurate to 1-5 % in float32."""
    classifier, (inputs, base, seed, _) = ahead.classifier, ahead.forward
    tangent = _tangent(ahead, clean)
    theta = {n: classifier.parameters[n].detach() for n in tangent}
    length = _norm(tangent.values())
    if length == 0:
        moved: list[Tensor | None] = [None for _ in base]
    else:
        epsilon = FINITE_DIFFERENCE_STEP[classifier.dtype] * max(_norm(theta.values()), 1e-12) / length
        with torch.no_grad():
            if classifier.autocast:  # differences would drown in the rounding of bfloat16
                base = classifier.at({}, inputs, seed, autocast=False)
            shifted = {n: p + epsilon * tangent[n] for n, p in theta.items()}
            outputs = classifier.at(shifted, inputs, seed, autocast=False)
            moved = [(o - b) / epsilon for o, b in zip(outputs, base, strict=True)]
    return _through_meta_networks(ahead, moved, meta_parameters, penalty)


def backprop(
    ahead: LookAhead, clean: CleanGradient, meta_parameters: Sequence[Tensor], penalty: Tensor | None = None
) -> list[Tensor]:
    """Literal double backpropagation through a `differentiable` look-ahead; slow, kept as the reference."""
    total = clean.loss if penalty is None else clean.loss + penalty
    return _of_meta_parameters([total], meta_parameters, retain_graph=True)  # the real update still needs the forward


HYPERGRADIENTS: dict[str, Callable[[LookAhead, CleanGradient, Sequence[Tensor], Tensor | None], list[Tensor]]] = {
    "jvp": jvp,
    "finite_difference": finite_difference,
    "backprop": backprop,
}


def _tangent(ahead: LookAhead, clean: CleanGradient) -> Parameters:
    """α g."""
    scaled = torch._foreach_mul([clean.gradient[n] for n in ahead.rates], list(ahead.rates.values()))
    return dict(zip(ahead.rates, scaled, strict=True))


def _through_meta_networks(
    ahead: LookAhead, moved: Sequence[Tensor | None], meta_parameters: Sequence[Tensor], penalty: Tensor | None
) -> list[Tensor]:
    """∇_φ of −⟨∂ℓ/∂z, ż⟩ − ⟨∂ℓ/∂f, ḟ⟩ + penalty; an output that θ does not reach has no tangent: it is zero."""
    both = [(g, m) for g, m in zip(ahead.output_gradient, moved, strict=True) if g is not None]
    pairs = [(g, torch.zeros_like(g) if m is None else -m) for g, m in both]
    if penalty is not None:
        pairs.append((penalty, torch.ones_like(penalty)))
    return _of_meta_parameters([g for g, _ in pairs], meta_parameters, [m for _, m in pairs])


def _of_meta_parameters(
    outputs: Sequence[Tensor],
    meta_parameters: Sequence[Tensor],
    output_gradients: Sequence[Tensor] | None = None,
    retain_graph: bool = False,
) -> list[Tensor]:
    """Gradients of networks are averaged over the shares; sample weights (L2RW) belong to one share only."""
    networks = all(isinstance(p, nn.Parameter) for p in meta_parameters)
    mine = share.current() if networks else share.Share()
    return mine.gradients(outputs, meta_parameters, output_gradients, retain_graph)


def _norm(tensors: Iterable[Tensor]) -> float:
    squares = [t.double().square().sum() for t in tensors]
    return float(torch.stack(squares).sum().sqrt())


def _operator(error: NotImplementedError) -> str:
    found = re.search(r"forward AD with (\S+)", str(error))
    return found.group(1) if found else "a custom autograd.Function without jvp"
