"""The interface of a method: what the loop needs from it, and what it may ask of the loop."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vri.core import objective
from vri.core.checks import Batch, DivergenceError, check_finite
from vri.core.model import Classifier, Forward, logits_of
from vri.core.randomness import draw_seed
from vri.methods.memory import SampleMemory

Metrics = dict[str, float]


class Cost(NamedTuple):
    """Cost of a step relative to plain cross-entropy: ResNet-32, batches of 100, two CPU cores, default options."""

    time: float
    memory: float  # at its peak


class Rates(NamedTuple):
    """Learning rate and weight decay that did best on validation samples, by data set and backbone.

    Chosen by benchmarks/family.py, averaged over three kinds of noise, from the same grid for all methods.
    """

    digits_mlp: tuple[float, float]
    fashion_mlp: tuple[float, float]
    small_cnn: tuple[float, float] = (0.1, 5e-4)  # on Fashion-MNIST; the best for most methods


class TrainingData(Protocol):
    """What a method can ask of the training set, in `Method.survey` and in steps; the loop provides it."""

    size: int

    def predict(self, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Logits and labels of all training samples, in order, from the method's predictor or from one network."""

    def stream(self, name: str, rows: Tensor, views: Collection[str] = ("weak",)) -> None:
        """Make `draw(name)` return batches of these samples, shuffled, endlessly."""

    def draw(self, name: str) -> Batch:
        """The next batch (inputs, labels, index) of a stream; inputs are a tuple of views if it has several."""


class Method(ABC):
    """A way to train a classifier on noisy labels.

    A new one is a class with a `name` and a `step`, in its own file in this folder; `METHODS` finds it there. It owns
    the model, its optimizer and whatever else it learns. `self.saved` names the attributes that a checkpoint must hold;
    what it keeps for each training sample is a `SampleMemory`, made by `self.remember`; `self.data` is the training
    set.

    Args:
        model: any `nn.Module` that returns logits, or (logits, features), already on its device.
        num_classes: c.
        optimizer: trains the model's parameters; those that it doesn't hold stay frozen.
        generator: source of all randomness; seeded with 0 if not given.
        head: name of the last linear layer, if it can't be found.
        feature_dim: width of the features, for a model that returns (logits, features).
        autocast: torch.bfloat16 for mixed precision.
    """

    # facts about a method; all but `name` have defaults
    name: str = ""  # in `METHODS`
    paper: str = ""  # where it comes from
    cost: Cost | None = None  # as `vri bench --methods` measured it
    tuned: Rates | None = None  # None if not tuned: the settings of cross-entropy are used
    rate_scale: float = 1.0  # learning rates are this many times those of cross-entropy: its loss is as much smaller
    needs_trusted: bool = False  # whether it can't work without trusted samples
    can_select: bool = False  # whether selected samples may replace trusted ones; it then has `warm_up`
    needs_index: bool = False  # whether a training batch ends with the samples' numbers
    views: tuple[str, ...] = ("weak",)  # of each training batch; with several, inputs are a tuple of them
    networks: int = 1  # number of classifiers it trains

    def __init_subclass__(cls) -> None:
        """What was measured of a method holds for no method derived from it."""
        super().__init_subclass__()
        for name in ("name", "cost", "tuned"):
            if name not in cls.__dict__:
                setattr(cls, name, getattr(Method, name))

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        generator: torch.Generator | None = None,
        head: str | None = None,
        feature_dim: int | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.classifier = Classifier(model, num_classes, optimizer, head, feature_dim, autocast)
        self.model, self.num_classes, self.optimizer = model, num_classes, optimizer
        self.generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self.memories: dict[str, SampleMemory] = {}
        self.data: TrainingData | None = None  # set by the loop
        self.saved = ["model", "optimizer", "generator"]  # attributes that a checkpoint holds

    # training

    @property
    def meta_due(self) -> bool:
        """Whether the next step reads a trusted batch."""
        return False

    @abstractmethod
    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """Train on one noisy batch, with the help of a trusted one if the method uses it."""

    def warm_up(self, batch: Batch) -> Metrics:
        """One step of plain cross-entropy, before trusted or selected samples are used."""
        return self.descend(batch, objective.cross_entropy)

    def begin_training(self, size: int, trusted_batches: Callable[[], Iterable[Batch]] | None) -> None:
        """Called by the loop once, before it loads a checkpoint.

        Args:
            size: number of training samples.
            trusted_batches: each call iterates over all trusted samples once, in order; None if there are none.
        """
        for memory in self.memories.values():
            memory.make_room(size)

    def begin_epoch(self, epoch: int, epochs: int) -> None:  # noqa: B027 (an optional hook)
        """Set what depends on the epoch, counted from 0; called before each, and again on resuming inside one."""

    def survey(self, epoch: int) -> None:  # noqa: B027 (an optional hook)
        """Look over the training set, `self.data`, before an epoch: predict, choose rows, set up streams.

        Called once per epoch, not again when resuming inside one: its results must be in `saved` or a memory.
        """

    def lr_scale(self, progress: float, schedule: Callable[[float], float]) -> float:
        """Factor on the learning rate at this share of the training; `schedule` maps [0, 1] to a factor."""
        return schedule(progress)

    # prediction

    @property
    def predictor(self) -> nn.Module:
        """What runs at test time: the classifier, or a module that combines several."""
        return self.model

    def predict(self, inputs: Any) -> Tensor:
        """Logits of `predictor` on a batch of inputs."""
        return logits_of(self.predictor, inputs)

    # saving

    def settings(self) -> dict[str, Any]:
        """Options that must be the same when a run is resumed; plain values."""
        return {}

    def remember(self, name: str, *shape: int, fill: float = 0.0) -> SampleMemory:
        """A row of this shape for each training sample, saved with the method."""
        self.memories[name] = memory = SampleMemory(type(self).__name__, shape, self.classifier, fill)
        return memory

    def state_dict(self) -> dict[str, Any]:
        """Everything that must be saved to resume exactly: plain containers, numbers and tensors."""
        state = {name: _state(getattr(self, name)) for name in self.saved}
        return state | {name: memory.values for name, memory in self.memories.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()` of a method built in the same way."""
        for name in self.saved:
            held, value = getattr(self, name), state[name]
            if isinstance(held, torch.Generator):
                held.set_state(value.cpu())
            elif hasattr(held, "load_state_dict"):
                held.load_state_dict(value)
            else:
                moved = value.to(self.classifier.device, copy=True) if isinstance(value, Tensor) else value
                setattr(self, name, moved)
        for name, memory in self.memories.items():
            memory.restore(state[name])

    # building blocks of most steps

    def forward(self, inputs: Any) -> Forward:
        """The training forward of a batch."""
        return self.classifier.forward(inputs, draw_seed(self.generator))

    def mean_where(self, values: Tensor, mask: Tensor) -> Tensor:
        """Mean of the samples' `values` (n,) over those of the whole batch where `mask` is 1; 0 if there are none."""
        return (values * mask).mean() / self.classifier.batch_mean(mask).clamp_min(1e-12)

    def descend_outputs(self, forward: Forward, output_gradient: Tensor) -> None:
        """Update the classifier, given the gradient of a loss with respect to the logits of its forward."""
        names = list(self.classifier.parameters)
        self.classifier.update(self.classifier.gradient(forward, (output_gradient, None), names, keep=False))

    def descend(
        self, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor], what: str = "training", **metrics: float
    ) -> Metrics:
        """One step down `loss(logits, labels)`, a mean over the samples."""
        inputs, labels = self.classifier.unpack(batch, what)
        forward = self.forward(inputs)
        right = accuracy(forward.outputs.logits, labels)
        return self.descend_forward(forward, lambda logits: loss(logits, labels), accuracy=right, **metrics)

    def descend_forward(self, forward: Forward, loss: Callable[[Tensor], Tensor], **metrics: Tensor | float) -> Metrics:
        """One step down a loss of the logits of a forward; reports it along with `metrics`."""
        value, gradient = self.classifier.loss_gradient(forward, loss)
        found = read_metrics(forward, None, loss=value, **metrics)
        self.classifier.update(gradient)
        return found


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Share of samples whose largest logit is the label, or the largest part of a soft one."""
    target = labels.argmax(1) if labels.is_floating_point() else labels
    return (logits.argmax(1) == target).mean(dtype=torch.float64)


def warm_up_epochs(share: float, epochs: int) -> int:
    """How many of all epochs a share of them is: one at least if it isn't 0, and never all."""
    return min(max(round(share * epochs), 1), epochs - 1) if share else 0


def read_metrics(forward: Forward, meta_logits: Tensor | None = None, **values: Tensor | float) -> Metrics:
    """Plain numbers to report, copied from the device all at once.

    A loss that is not finite raises an error that names the outputs at fault. Call this before the update, while
    nothing has changed yet.
    """
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.is_cuda}
    if tensors:  # one transfer instead of one each
        read = torch.stack([value.detach().double() for value in tensors.values()]).tolist()
        values = {**values, **dict(zip(tensors, read, strict=True))}
    found = {name: float(value.item() if isinstance(value, Tensor) else value) for name, value in values.items()}
    for name in ("meta_loss", "loss"):
        if not math.isfinite(found.get(name, 0.0)):
            check_finite(forward.outputs.features.detach(), "features")
            check_finite(forward.outputs.logits.detach(), "logits")
            if meta_logits is not None:
                check_finite(meta_logits, "meta logits")
            raise DivergenceError(
                f"{name} is {found[name]}, expected a finite number; clean the inputs, or lower the learning rate if "
                "this came up during training"
            )
    return found


def _state(held: Any) -> Any:
    if isinstance(held, torch.Generator):
        return held.get_state()
    return held.state_dict() if hasattr(held, "state_dict") else held
