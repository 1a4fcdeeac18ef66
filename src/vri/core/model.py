"""Any `nn.Module` seen as the classifier F_θ of the paper: logits and features, at θ or at other parameters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vri.core import share
from vri.core.checks import Batch, unpack
from vri.core.randomness import seeded
from vri.core.tangents import Kept, Record

Parameters = dict[str, Tensor]
_PLAIN: AbstractContextManager[None] = nullcontext()


class Outputs(NamedTuple):
    """The classifier's outputs for a batch."""

    logits: Tensor  # z (n, c)
    features: Tensor  # f (n, d), input of the last linear layer


class Forward(NamedTuple):
    """The training forward of one batch, with its graph; look-ahead and real update share it."""

    inputs: Any
    outputs: Outputs
    seed: int  # of its dropout masks
    kept: Sequence[Kept] = ()  # intermediate outputs, for a tangent pass

    @property
    def detached(self) -> Outputs:
        """Logits and features without their graph."""
        return Outputs(*(o.detach() for o in self.outputs))


class Classifier:
    """A model, the optimizer that trains it, and access to its features.

    θ, in `parameters`, are the tensors that the optimizer holds and that require a gradient; all others stay frozen.
    """

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        head: str | None = None,
        feature_dim: int | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        if autocast not in (None, torch.bfloat16):
            raise ValueError(
                f"autocast={autocast} is not supported: expected torch.bfloat16 or None; "
                "float16 would need loss scaling inside the meta gradient"
            )
        self.model, self.num_classes, self.optimizer = model, num_classes, optimizer
        self.parameters = _trained_parameters(model, optimizer)
        self.device = next(iter(self.parameters.values())).device
        self.dtype = torch.promote_types(next(iter(self.parameters.values())).dtype, torch.float32)
        self.head_name, self.feature_dim = find_head(model, num_classes, head, feature_dim)
        self._head = model.get_submodule(self.head_name) if self.head_name is not None else None
        self.autocast = autocast
        self._slots = _slots(model)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self._scratch, self._buffers = buffers, [self._slots[name][0] for name in buffers]

    @property
    def rates(self) -> dict[str, float]:
        """The optimizer's current learning rate α of each parameter."""
        by_id = {id(p): float(g["lr"]) for g in self.optimizer.param_groups for p in g["params"]}
        return {name: by_id[id(p)] for name, p in self.parameters.items()}

    def unpack(self, batch: Batch, what: str) -> tuple[Any, Tensor]:
        """Inputs and labels of a batch, checked and moved to the model's device."""
        return unpack(batch, what, self.num_classes, self.device, self.dtype)

    def batch_mean(self, values: Tensor) -> Tensor:
        """Mean over the samples (n, ...) of the whole batch, whatever share of it this process has; differentiable."""
        (mean,) = share.current().average([values.mean(0)])
        return mean

    def normal(self, samples: int, count: int, generator: torch.Generator) -> Tensor:
        """ε (samples, count, c): standard normal numbers for `count` samples of a batch."""
        drawn = share.current().normal((samples, count, self.num_classes), generator, self.dtype)
        return drawn if drawn.device == self.device else drawn.to(self.device, non_blocking=True)

    def forward(self, inputs: Any, seed: int, keep: bool = False) -> Forward:
        """The training forward: keeps its graph and updates BatchNorm's buffers.

        `keep` also keeps the outputs that make a tangent pass on the same batch cheaper.
        """
        record = Record()
        outputs = self._run(inputs, seed, within=record if keep else _PLAIN)
        return Forward(inputs, outputs, seed, record.kept)

    def at(
        self,
        parameters: Mapping[str, Tensor],
        inputs: Any,
        seed: int,
        autocast: bool = True,
        within: AbstractContextManager[Any] = _PLAIN,
    ) -> Outputs:
        """The same at other parameters (those not named stay as they are); buffers don't change.

        The model's own forward, and nothing else, runs in the context `within`.
        """
        for copy, (members, key) in zip(self._scratch.values(), self._buffers, strict=True):
            copy.copy_(members[key])
        with self._substituted({**parameters, **self._scratch}):
            return self._run(inputs, seed, autocast, within)

    def gradient(
        self, forward: Forward, loss_gradient: Sequence[Tensor | None], names: Sequence[str], keep: bool
    ) -> Parameters:
        """∇_θ of a loss of the outputs, from its gradient in (logits, features), through the graph of `forward`.

        It covers the whole batch, whatever share this process has. `keep` retains the graph for one more call.
        """
        pairs = [
            (out, grad.to(out.dtype))
            for out, grad in zip(forward.outputs, loss_gradient, strict=True)
            if grad is not None
        ]
        grads = share.current().gradients(
            [out for out, _ in pairs], [self.parameters[name] for name in names], [grad for _, grad in pairs], keep
        )
        return dict(zip(names, grads, strict=True))

    def loss_gradient(self, forward: Forward, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Parameters]:
        """A loss of the logits, and its ∇_θ; frees the graph of `forward`."""
        value = loss(forward.outputs.logits)
        grads = share.current().gradients(value, list(self.parameters.values()))
        return value.detach(), dict(zip(self.parameters, grads, strict=True))

    def update(self, gradient: Parameters) -> None:
        """One step of the optimizer on `gradient`; the user's `.grad` stays as it was."""
        take_step(self.optimizer, self.parameters.values(), (gradient[name] for name in self.parameters))

    def _run(
        self, inputs: Any, seed: int, autocast: bool = True, within: AbstractContextManager[Any] = _PLAIN
    ) -> Outputs:
        seen: list[Tensor] = []
        hook = (
            self._head.register_forward_pre_hook(
                lambda _, args, kwargs: seen.append(next(iter((*args, *kwargs.values())))), with_kwargs=True
            )
            if self._head is not None
            else None
        )
        enabled = autocast and self.autocast is not None
        try:
            with (
                seeded(share.current().seed(seed), self.device),
                torch.autocast(self.device.type, self.autocast, enabled=enabled)
                if self.autocast is not None
                else _PLAIN,
                within,
            ):
                out = call(self.model, inputs)
        finally:
            if hook is not None:
                hook.remove()
        return self._outputs(out, seen)

    def _outputs(self, out: Any, seen: list[Tensor]) -> Outputs:
        logits, features = read_outputs(out)
        if features is not None:
            source = "the model returns"
        elif seen:
            features, source = seen[-1], f"the layer {self.head_name!r} reads"
        else:
            raise ValueError(
                f"the layer {self.head_name!r} did not run in the model's forward, so there are no features; "
                "name the last linear layer with head=, or return (logits, features)"
                if self._head is not None
                else "the model returned logits alone, but feature_dim= says that it returns (logits, features); "
                "return both, or name the last linear layer with head="
            )
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ValueError(
                f"the model returns logits of shape {tuple(logits.shape)}, expected "
                f"(n, {self.num_classes}); num_classes={self.num_classes} must be the model's number of outputs"
            )
        if features.shape != (len(logits), self.feature_dim):
            raise ValueError(
                f"{source} features of shape {tuple(features.shape)}, expected "
                f"({len(logits)}, {self.feature_dim}): one vector per sample; pass feature_dim= or another head="
            )
        if logits.dtype == features.dtype == self.dtype:
            return Outputs(logits, features)
        return Outputs(logits.to(self.dtype), features.to(self.dtype))

    @contextmanager
    def _substituted(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Replace parameters and buffers by `tensors`; faster than `torch.func.functional_call`."""
        saved = [(d, k, d[k]) for name in tensors for d, k in self._slots[name]]
        try:
            for name, tensor in tensors.items():
                for members, key in self._slots[name]:
                    members[key] = tensor
            yield
        finally:
            for members, key, tensor in saved:
                members[key] = tensor


def take_step(optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], gradients: Iterable[Tensor]) -> None:
    """One step of an optimizer on the gradients of these parameters, on no others; their `.grad` stays as it was."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.grad for p in held]
    given = {id(p): g for p, g in zip(parameters, gradients, strict=True)}  # by id: a tensor's hash is slow
    for p in held:
        p.grad = given.get(id(p))
    try:
        optimizer.step()
    finally:
        for p, grad in zip(held, before, strict=True):
            p.grad = grad


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group of parameters."""
    if isinstance(group["lr"], Tensor):  # as in compiled optimizers
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def find_head(
    model: nn.Module, num_classes: int, head: str | None = None, feature_dim: int | None = None
) -> tuple[str | None, int]:
    """Name of the last linear layer and the width of the features it reads.

    Without `head`, it is the one `nn.Linear` with `num_classes` outputs. A model that returns (logits, features) needs
    no head; `feature_dim` then gives their width.
    """
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    listed = ", ".join(f"{n or 'the model'!r} ({m.in_features} to {m.out_features})" for n, m in linear.items())
    if head is not None:
        modules = dict(model.named_modules())
        if head not in modules:
            raise ValueError(f"head={head!r} is not a layer of the model; its linear layers are: {listed or 'none'}")
        layer = modules[head]
        outputs = getattr(layer, "out_features", num_classes)
        if outputs != num_classes:
            raise ValueError(
                f"num_classes={num_classes} disagrees with the head {head!r}, which has {outputs} outputs; "
                f"pass num_classes={outputs} or another head="
            )
        width = feature_dim or getattr(layer, "in_features", None)
        if width is None:
            raise ValueError(f"the head {head!r} does not tell how wide its input is; pass feature_dim= as well")
        return head, int(width)
    candidates = [name for name, m in linear.items() if m.out_features == num_classes]
    if len(candidates) == 1:
        return candidates[0], feature_dim or linear[candidates[0]].in_features
    if feature_dim is not None:
        return None, feature_dim
    if candidates:
        raise ValueError(
            f"several layers could be the last linear layer: {', '.join(map(repr, candidates))} all have "
            f"{num_classes} outputs; name the one that gives the logits, for example head={candidates[-1]!r}"
        )
    if linear:
        raise ValueError(
            f"num_classes={num_classes} disagrees with the model: no linear layer has {num_classes} outputs; "
            f"its linear layers are: {listed}; correct num_classes, or name the last layer with head="
        )
    raise ValueError(
        "the model has no nn.Linear layer, so its features can't be found; name the last layer with head= "
        "and feature_dim=, or let the model return (logits, features) and pass feature_dim="
    )


def _trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    named = dict(model.named_parameters())
    held = {p for group in optimizer.param_groups for p in group["params"]}
    foreign = held - set(named.values())
    if foreign:
        raise ValueError(
            f"the optimizer does not hold the model's parameters: {len(foreign)} of its {len(held)} tensors "
            "are not in the model; build it from model.parameters() after the last change to the model's layers"
        )
    trained = {name: p for name, p in named.items() if p in held and p.requires_grad}
    if not trained:
        raise ValueError(
            "the optimizer holds no parameter of the model that requires a gradient; "
            "unfreeze some, or build the optimizer from model.parameters()"
        )
    return trained


def _slots(model: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Which modules hold each parameter and buffer; a tied one is held by several."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for members in (module._parameters, module._buffers):
            for key, tensor in members.items():
                if tensor is not None:
                    places.setdefault(id(tensor), []).append((members, key))
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: places[id(tensor)] for name, tensor in named}


def read_outputs(out: Any) -> tuple[Tensor, Tensor | None]:
    """Logits and, where the model gives them, features.

    A model may return logits, (logits, features), a mapping with "logits", or an object with `logits`.
    """
    if isinstance(out, Tensor):
        return out, None
    out = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", out)
    if isinstance(out, (tuple, list)):
        return out[0], out[1] if len(out) > 1 else None
    if not isinstance(out, Tensor):
        raise TypeError(
            f"the model returns a {type(out).__name__}, expected logits, (logits, features), or an object with "
            "logits; wrap the model in a module that returns them"
        )
    return out, None


def logits_of(model: nn.Module, inputs: Any) -> Tensor:
    """The logits of a model, whatever else it returns."""
    return read_outputs(call(model, inputs))[0]


def call(model: nn.Module, inputs: Any) -> Any:
    """Run a model on a tensor, a tuple (by position) or a mapping (by keyword)."""
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(**inputs) if not isinstance(inputs, Tensor) and isinstance(inputs, Mapping) else model(inputs)


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Afterwards each layer is in training or evaluation mode as before; a frozen layer stays frozen."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within this block; afterwards each layer is in its previous mode."""
    with modes_restored(model):
        model.eval()
        yield
