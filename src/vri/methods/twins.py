"""What methods with two networks share: the second network, both forwards, and the choice of small losses."""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from vri.core import objective
from vri.core.model import Classifier, Forward
from vri.core.randomness import draw_seed, seeded
from vri.methods.base import Method
from vri.methods.shared import descend
from vri.training import distributed as parallel
from vri.training.distributed import Part

Second = tuple[nn.Module, torch.optim.Optimizer]


class TwoNetworks(Method):
    """Two classifiers trained side by side; only the first, `model`, predicts, as in the papers' accuracies.

    Args:
        model: the first network.
        num_classes: c.
        optimizer: of the first network; the second's learning rates are copied from it at every step.
        second: the second network and its optimizer. Without it the network is a copy of the first whose trained
            layers are drawn anew by their `reset_parameters`, and the optimizer is of the same kind with the same
            options; so give it where the first starts from pretrained weights.
        generator: source of all randomness; seeded with 0 if not given.
        head: name of the last linear layer of both, where it can't be found.
        feature_dim: width of the features of both, for models that return (logits, features).
        autocast: torch.bfloat16 for mixed precision.
    """

    networks = 2
    on_workers = True

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        second: Second | None = None,
        generator: torch.Generator | None = None,
        head: str | None = None,
        feature_dim: int | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self.num_classes, self.optimizer = model, num_classes, optimizer
        self.generator = generator if generator is not None else torch.Generator().manual_seed(0)
        first = Classifier(model, num_classes, optimizer, head, feature_dim, autocast)
        if second is None:
            second = draw_second(first, draw_seed(self.generator))
        else:
            _check_second(first, second)
        self.second_model, self.second_optimizer = second
        twin = Classifier(self.second_model, num_classes, self.second_optimizer, head, feature_dim, autocast)
        self.classifiers = first, twin

    def forward(self, inputs: Any) -> tuple[Forward, Forward]:
        """The training forward of both, the second in the first's mode and at its learning rates."""
        if self.second_model.training != self.model.training:
            self.second_model.train(self.model.training)
        for mine, other in zip(self.optimizer.param_groups, self.second_optimizer.param_groups, strict=True):
            if isinstance(other["lr"], Tensor):  # as compiled optimizers have it
                other["lr"].fill_(float(mine["lr"]))
            else:
                other["lr"] = float(mine["lr"])
        first, second = self.classifiers
        seeds = draw_seed(self.generator), draw_seed(self.generator)
        return first.forward(inputs, seeds[0]), second.forward(inputs, seeds[1])

    def state_dict(self) -> dict[str, Any]:
        """Both networks, their optimizers and the generator."""
        return {
            "model": self.model.state_dict(),
            "second_model": self.second_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "second_optimizer": self.second_optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        for name in ("model", "second_model", "optimizer", "second_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"].cpu())


def disagreement(forwards: tuple[Forward, Forward]) -> Tensor:
    """Which samples (n,) the two networks predict differently."""
    first, second = (forward.outputs.logits.detach().argmax(1) for forward in forwards)
    return first != second


def forget_rate(epoch: int, noise_rate: float, num_gradual: int, exponent: float) -> float:
    """Share of a batch to leave out in this epoch, counted from 0: τ·min(T^c / T_k, 1).

    1 − R(T) of the co-teaching paper, which updates R after epoch T; so the first epoch leaves out nothing.
    """
    return noise_rate * min(float(epoch**exponent) / num_gradual, 1.0)


def smallest(losses: Tensor, forget: float) -> Tensor:
    """Places, ascending, of the share 1 − `forget` of samples with the smallest losses; one at least."""
    count = max(round((1 - forget) * len(losses)), 1)
    return losses.argsort(stable=True)[:count].sort().values


def smallest_of_all(losses: Tensor, forget: float, part: Part) -> tuple[Tensor, Part]:
    """`smallest` of the whole batch: the places of those in this worker's rows, and which part of all they are."""
    chosen = smallest(parallel.gather(losses), forget)
    if part.count == part.total:
        return chosen, Part(0, len(chosen), len(chosen))
    mine = chosen[(chosen >= part.start) & (chosen < part.start + part.count)] - part.start
    return mine, Part(0, len(mine), len(chosen))


def mean_of(losses: Tensor, kept: Tensor, part: Part) -> Tensor:
    """Mean of the losses (n,) at the places `kept`, this worker's share of it; 0 where all are elsewhere."""
    return part.scale(losses[kept].mean()) if len(kept) else 0 * losses.sum()


def descend_on(kept: Tensor, classifier: Classifier, forward: Forward, labels: Tensor, part: Part) -> float:
    """One update on the mean cross-entropy of the samples at the places `kept`, which are `part` of all chosen ones."""
    if len(kept):
        return descend(classifier, forward, lambda z: objective.cross_entropy(z[kept], labels[kept]), part)
    return descend(classifier, forward, lambda z: 0 * z.sum(), part)


def draw_second(first: Classifier, seed: int) -> Second:
    """A copy of a classifier with its trained layers drawn anew, and an optimizer of the same kind for it."""
    model = copy.deepcopy(first.model)
    parameters = dict(model.named_parameters())
    trained = {parameters[name] for name in first.parameters}
    with seeded(seed, first.device):
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and trained.intersection(module.parameters(recurse=False)):
                reset()
    if all(torch.equal(parameters[name], p) for name, p in first.parameters.items()):
        raise ValueError(
            "the second network came out like the first: expected trained layers with random reset_parameters(), but "
            "the model has none; pass second=(model, optimizer) with other initial weights"
        )
    names = {p: name for name, p in first.model.named_parameters()}
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        | {"params": [parameters[names[p]] for p in group["params"]]}
        for group in first.optimizer.param_groups
    ]
    kind = type(first.optimizer)
    accepted = inspect.signature(kind).parameters
    # what a constructor reads once is in no group, such as Adagrad's initial_accumulator_value
    options: dict[str, Any] = {k: copy.deepcopy(v) for k, v in first.optimizer.defaults.items() if k in accepted}
    try:
        return model, kind(groups, **options)
    except TypeError as error:
        raise TypeError(
            f"a {kind.__name__} for the second network can't be built like the first's ({error}); "
            "pass second=(model, optimizer)"
        ) from None


def _check_second(first: Classifier, second: Any) -> None:
    """The second network stands beside the first, and its learning rates can follow."""
    pair = isinstance(second, (tuple, list)) and len(second) == 2
    if not pair or not isinstance(second[0], nn.Module) or not isinstance(second[1], torch.optim.Optimizer):
        raise TypeError(
            f"second is a {type(second).__name__}, expected a pair (model, optimizer); build an optimizer for the "
            "second network and give both"
        )
    model, optimizer = second
    if set(first.model.parameters()) & set(model.parameters()):
        raise ValueError("the second network shares parameters with the first; give it its own, as copy.deepcopy does")
    groups, expected = len(optimizer.param_groups), len(first.optimizer.param_groups)
    if groups != expected:
        raise ValueError(
            f"the second optimizer has {groups} parameter groups, expected {expected} like the first, whose learning "
            "rates it follows; build both in the same way"
        )
    device = next(model.parameters()).device
    if device != first.device:
        raise ValueError(
            f"the second network is on {device}, expected {first.device} like the first; move it there before its "
            "optimizer is built"
        )
