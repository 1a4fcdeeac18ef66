"""Three ways to the meta gradient: how the loss on clean samples, after a step on noisy ones, depends on φ and ω.

With θ̂ = θ − α ∇_θ ℓ(z, f; φ, ω) and g = ∇_θ̂ L_meta(θ̂), the chain rule gives

    ∇_{φ,ω} L_meta(θ̂) = −∇_{φ,ω} ⟨∇_θ ℓ, α g⟩ = −∇_{φ,ω} ( ⟨∂ℓ/∂z, ż⟩ + ⟨∂ℓ/∂f, ḟ⟩ ),

where (ż, ḟ) is the derivative of the classifier's outputs along α g. `jvp` takes it in one forward-mode pass,
`finite_difference` from one more plain forward, and `backprop` differentiates twice through the classifier,
literally as the paper writes it. The first two work for every loss in which the meta parameters act on the
outputs of the classifier, sample by sample or not.

On several workers `loss`, `meta_loss` and `penalty` are each worker's share of them, whose sum is that of the whole
batch; ∇ℓ, g and the meta gradient are summed, and all three ways are as exact as in one process.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from vri.core.model import Classifier, Forward, Parameters
from vri.core.tangents import Replay
from vri.training import distributed as parallel

# Length of the step, relative to the norm of the parameters it moves. The kinks of ReLU make the error grow with
# the step, rounding makes it grow as the step shrinks: a compromise between ResNet-32 and smooth networks.
FINITE_DIFFERENCE_STEP = {torch.float32: 3e-6, torch.float64: 1e-8}


class ForwardADMissing(RuntimeError):
    """An operator of the classifier has no forward-mode derivative."""

    def __init__(self, operator: str) -> None:
        super().__init__(operator)
        self.operator = operator


@dataclass(frozen=True)
class LookAhead:
    """One look-ahead problem: what all ways of differentiating need to know."""

    classifier: Classifier
    forward: Forward  # training forward on the noisy batch, graph kept
    loss: Callable[[Tensor, Tensor], Tensor]  # ℓ(z, f), differentiable in the meta parameters
    meta_loss: Callable[[Mapping[str, Tensor]], Tensor]  # L_meta(θ̂) on the clean batch
    rates: Mapping[str, float]  # α of each parameter that takes part in the look-ahead
    meta_parameters: Sequence[Tensor]  # φ and ω
    gradient_of: Sequence[str]  # parameters of which g is wanted: those of `rates`, or more
    # added to the meta objective; called after `loss`, so that it may use the graph which `loss` has built
    penalty: Callable[[], Tensor | None] = lambda: None
    own_meta: bool = False  # whether each worker has meta parameters of its own, so that theirs isn't summed


class MetaGradient(NamedTuple):
    """What a look-ahead yields."""

    meta: list[Tensor]  # ∇_{φ,ω} (L_meta(θ̂) + penalty), in the order of the meta parameters
    clean: Parameters  # g = ∇_θ̂ L_meta(θ̂)
    step: Parameters  # ∇_θ ℓ, the direction of the look-ahead


def jvp(problem: LookAhead) -> MetaGradient:
    """Exact, by one tangent pass of the classifier; no graph of a gradient through it."""
    output_gradient, step, clean = _look_ahead(problem)
    tangent = _tangent(problem, clean)
    theta = {n: problem.classifier.parameters[n].detach() for n in tangent}
    try:
        with torch.no_grad(), forward_ad.dual_level():
            duals = {n: forward_ad.make_dual(p, tangent[n].to(p.dtype)) for n, p in theta.items()}
            with Replay(problem.forward.kept):
                outputs = problem.classifier.at(duals, problem.forward.inputs, problem.forward.seed)
            moved = [forward_ad.unpack_dual(o).tangent for o in outputs]
    except NotImplementedError as error:
        raise ForwardADMissing(_operator(error)) from error
    # an output that θ does not reach has no tangent: its derivative is zero
    moved = [torch.zeros_like(o) if m is None else m for o, m in zip(problem.forward.outputs, moved, strict=True)]
    return MetaGradient(_through_meta_networks(problem, output_gradient, moved), clean, step)


def finite_difference(problem: LookAhead) -> MetaGradient:
    """The tangent from one more plain forward, (F(θ + εαg) − F(θ)) / ε: cheaper, and right to 1-5 % in float32."""
    output_gradient, step, clean = _look_ahead(problem)
    tangent = _tangent(problem, clean)
    classifier, (inputs, base, seed, _) = problem.classifier, problem.forward
    theta = {n: classifier.parameters[n].detach() for n in tangent}
    length = _norm(tangent.values())
    if length == 0:
        moved = [torch.zeros_like(o) for o in base]
    else:
        step_length = FINITE_DIFFERENCE_STEP[classifier.dtype]
        epsilon = step_length * max(_norm(theta.values()), 1e-12) / length
        with torch.no_grad():
            if classifier.autocast:  # differences would drown in the rounding of bfloat16
                base = classifier.at({}, inputs, seed, autocast=False)
            shifted = {n: p + epsilon * tangent[n] for n, p in theta.items()}
            outputs = classifier.at(shifted, inputs, seed, autocast=False)
            moved = [(o - b) / epsilon for o, b in zip(outputs, base, strict=True)]
    return MetaGradient(_through_meta_networks(problem, output_gradient, moved), clean, step)


def backprop(problem: LookAhead) -> MetaGradient:
    """Literal double backpropagation through the look-ahead; slow, kept as the reference."""
    theta = {n: problem.classifier.parameters[n] for n in problem.rates}
    loss = problem.loss(*problem.forward.outputs)
    grads = torch.autograd.grad(
        loss, list(theta.values()), create_graph=True, allow_unused=True, materialize_grads=True
    )
    step = dict(zip(theta, parallel.totals(grads), strict=True))
    ahead = {n: p - problem.rates[n] * step[n] for n, p in theta.items()}
    # a layer that doesn't look ahead is cut off too, or its gradient would also run through θ̂
    still = [n for n in problem.gradient_of if n not in ahead]
    ahead |= {n: problem.classifier.parameters[n].detach().requires_grad_() for n in still}
    meta_objective, penalty = problem.meta_loss(ahead), problem.penalty()
    if penalty is not None:
        meta_objective = meta_objective + penalty
    wanted = [ahead[n] for n in problem.gradient_of]
    meta_and_clean = torch.autograd.grad(
        meta_objective,
        [*problem.meta_parameters, *wanted],
        retain_graph=True,  # the real update still needs the training forward
        allow_unused=True,
        materialize_grads=True,
    )
    count = len(problem.meta_parameters)
    meta, clean = meta_and_clean[:count], meta_and_clean[count:]
    return MetaGradient(
        list(meta) if problem.own_meta else parallel.totals(meta),
        dict(zip(problem.gradient_of, parallel.totals(clean), strict=True)),
        {n: g.detach() for n, g in step.items()},
    )


HYPERGRADIENTS: dict[str, Callable[[LookAhead], MetaGradient]] = {
    "jvp": jvp,
    "finite_difference": finite_difference,
    "backprop": backprop,
}


def _look_ahead(problem: LookAhead) -> tuple[list[Tensor | None], Parameters, Parameters]:
    """∂ℓ/∂(z, f) with its graph in the meta parameters; ∇_θ ℓ; and g at θ̂."""
    # leaves cut the graph at the outputs: what follows is differentiated twice, the classifier only once
    leaves = [o.detach().requires_grad_() for o in problem.forward.outputs]
    output_gradient = torch.autograd.grad(problem.loss(*leaves), leaves, create_graph=True, allow_unused=True)
    detached = [None if g is None else g.detach() for g in output_gradient]
    step = problem.classifier.gradient(problem.forward, detached, list(problem.rates), keep=True)
    ahead = {
        n: (problem.classifier.parameters[n].detach() - rate * step[n]).requires_grad_()
        for n, rate in problem.rates.items()
    }
    wanted = [ahead[n] if n in ahead else problem.classifier.parameters[n] for n in problem.gradient_of]
    clean = parallel.gradients(problem.meta_loss(ahead), wanted)
    return list(output_gradient), step, dict(zip(problem.gradient_of, clean, strict=True))


def _tangent(problem: LookAhead, clean: Parameters) -> Parameters:
    return {n: rate * clean[n] for n, rate in problem.rates.items()}  # α g


def _through_meta_networks(
    problem: LookAhead, output_gradient: Sequence[Tensor | None], moved: Sequence[Tensor]
) -> list[Tensor]:
    terms = [-(g * m).sum() for g, m in zip(output_gradient, moved, strict=True) if g is not None]
    penalty = problem.penalty()
    if penalty is not None:
        terms.append(penalty)
    if not problem.own_meta:
        return parallel.gradients(terms, problem.meta_parameters)
    return list(torch.autograd.grad(terms, problem.meta_parameters, allow_unused=True, materialize_grads=True))


def _norm(tensors: Iterable[Tensor]) -> float:
    squares = [t.double().square().sum() for t in tensors]
    return float(torch.stack(squares).sum().sqrt())


def _operator(error: NotImplementedError) -> str:
    found = re.search(r"forward AD with (\S+)", str(error))
    return found.group(1) if found else "a custom autograd.Function without jvp"
