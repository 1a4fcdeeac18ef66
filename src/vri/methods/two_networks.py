"""What methods with two networks share: the second network, both forwards, joint prediction, small losses."""

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vri.core.model import Classifier, Forward, logits_of, set_rate
from vri.core.randomness import draw_seed
from vri.methods.base import Metrics, accuracy, read_metrics
from vri.methods.layers import renew
from vri.methods.options import Configured

Second = tuple[nn.Module, torch.optim.Optimizer]


class TwoNetworks(Configured):
    """Two classifiers trained side by side; only the first, `model`, predicts, as in the papers' accuracies.

    Args:
        model: the first network.
        optimizer: of the first network; the second's learning rates are copied from it at every step.
        second: the second network and its optimizer. If not given, the network is a copy of the first whose trained
            layers are initialised again by `reset_parameters`, and the optimizer is of the same kind with the same
            options. So give it if the first starts from pretrained weights.
        head: name of the last linear layer of both, if it can't be found.
        feature_dim: width of the features of both, for models that return (logits, features).
    """

    networks = 2
    ensemble = False  # whether both networks predict together

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        second: Second | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.known = {name: options.get(name) for name in ("head", "feature_dim", "autocast")}  # of both networks
        first = self.classifier
        if second is None:
            second = draw_second(first, draw_seed(self.generator))
        else:
            _check_second(first, second)
        self.second_model, self.second_optimizer = second
        self.classifiers = first, Classifier(self.second_model, num_classes, self.second_optimizer, **self.known)
        self.joint = JointNetwork(self.model, self.second_model)
        self.saved += ["second_model", "second_optimizer"]

    @property
    def predictor(self) -> nn.Module:
        """Both networks, or the first."""
        return self.joint if self.ensemble else self.model

    def forwards(self, inputs: Any, second_inputs: Any = None) -> tuple[Forward, Forward]:
        """The training forward of both, after `follow`; the second has the same inputs if it isn't given others."""
        self.follow()
        first, second = self.classifiers
        seeds = draw_seed(self.generator), draw_seed(self.generator)
        others = inputs if second_inputs is None else second_inputs
        return first.forward(inputs, seeds[0]), second.forward(others, seeds[1])

    def follow(self) -> None:
        """Bring the second network to the first's mode and learning rates."""
        if self.second_model.training != self.model.training:
            self.second_model.train(self.model.training)
        for mine, other in zip(self.optimizer.param_groups, self.second_optimizer.param_groups, strict=True):
            set_rate(other, float(mine["lr"]))

    def descend_both(
        self,
        forwards: tuple[Forward, Forward],
        losses: Sequence[Callable[[Tensor], Tensor]],
        said: Sequence[Tensor],
        labels: Tensor,
        **metrics: Tensor | float,
    ) -> Metrics:
        """Update both networks, each by its loss of the logits; `said` is what they predict (n, c).

        Numbers to report in `metrics` replace those of the same name that are reported anyway.
        """
        (loss, gradient), (second_loss, second_gradient) = (
            classifier.loss_gradient(forward, of_logits)
            for classifier, forward, of_logits in zip(self.classifiers, forwards, losses, strict=True)
        )
        numbers = {"loss": loss, "second_loss": second_loss, "accuracy": accuracy(said[0], labels)}
        numbers["disagreement"] = disagreement(said).double().mean()
        found = read_metrics(forwards[0], None, **{**numbers, **metrics})
        for classifier, step in zip(self.classifiers, (gradient, second_gradient), strict=True):
            classifier.update(step)
        return found


class SmallLoss(TwoNetworks):
    """Two networks that leave out the share τ·min(T^c / T_k, 1) of each batch, with the largest losses, in epoch T."""

    noise_rate: float  # τ
    num_gradual: int  # T_k
    exponent: float = 1.0  # c

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.forget = 0.0  # 1 − R(T)
        self.saved += ["forget"]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set the share of a batch to leave out."""
        self.forget = forget_rate(epoch, self.noise_rate, self.num_gradual, self.exponent)


def networks_of(model: nn.Module) -> list[nn.Module]:
    """The networks of an ensemble, or the one there is."""
    return list(model.networks) if isinstance(model, JointNetwork) else [model]


class JointNetwork(nn.Module):
    """Logarithm of the networks' mean probabilities."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Logits (n, c)."""
        batch = named or (inputs[0] if len(inputs) == 1 else inputs)
        log_p = torch.stack([logits_of(network, batch).log_softmax(1) for network in self.networks])
        return log_p.logsumexp(0) - math.log(len(self.networks))


def disagreement(said: Sequence[Tensor]) -> Tensor:
    """Which samples (n,) the two networks predict differently, from what each said (n, c)."""
    return said[0].argmax(1) != said[1].argmax(1)


def forget_rate(epoch: int, noise_rate: float, num_gradual: int, exponent: float) -> float:
    """Share of a batch to drop in this epoch, counted from 0: τ·min(T^c / T_k, 1).

    1 − R(T) of the co-teaching paper, which updates R after epoch T; so the first epoch drops nothing.
    """
    return noise_rate * min(float(epoch**exponent) / num_gradual, 1.0)


def smallest(losses: Tensor, forget: float) -> Tensor:
    """Positions, ascending, of the share 1 − `forget` of samples with the smallest losses; at least one."""
    count = max(round((1 - forget) * len(losses)), 1)
    return losses.argsort(stable=True)[:count].sort().values


def draw_second(first: Classifier, seed: int) -> Second:
    """A copy of a classifier with its trained layers initialised again, and an optimizer of the same kind for it."""
    model = copy.deepcopy(first.model)
    renew(model, first.parameters, seed, first.device)
    parameters = dict(model.named_parameters())
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
    """Check that the second network can be trained with the first, and its learning rates can follow."""
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
