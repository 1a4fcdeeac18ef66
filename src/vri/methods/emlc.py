"""Enhanced meta label correction: a teacher weighs its own prediction against the label, learned over several steps."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.core import bilevel, objective
from vri.core.bilevel import LookAhead
from vri.core.checks import Batch, to_device
from vri.core.model import Classifier, Forward, Outputs
from vri.core.randomness import draw_seed, seeded
from vri.methods.base import Cost, Metrics, accuracy, read_metrics, warm_up_epochs
from vri.methods.losses import one_hot
from vri.methods.meta import WITHOUT_BACKPROP, MetaMethod
from vri.methods.options import option, refused
from vri.methods.views import take_rows


class RetainNetwork(nn.Module):
    """How far a label is to be trusted, in (0, 1), from the teacher's features and the label."""

    def __init__(self, feature_dim: int, num_classes: int, hidden: int, label_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, label_dim)
        self.layers = nn.Sequential(nn.Linear(feature_dim + label_dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """(n, 1); `labels` are probability vectors, embedded as the mixture of their classes."""
        return torch.sigmoid(self.layers(torch.cat([features, labels @ self.embedding.weight], dim=1)))


class EMLC(MetaMethod):
    """Train on w·y + (1 − w)·p of a teacher: a second network with prediction p, and a small one that gives w.

    The student takes k real steps, each on cross-entropy with the teacher's labels on the noisy batch plus
    cross-entropy on one half of the clean batch. Then the teacher takes one, down the sum of three: the student's loss
    on the other half of the clean batch, by the meta gradient Σ_t (1 − α)^(k − t)·α·∇_φ⟨q_t, J_t·g⟩, where q_t are the
    labels of step t, J_t the Jacobian of the student's log-probabilities at the weights it had before, and g the
    gradient at the weights it has now; its own cross-entropy on the clean batch; and the binary cross-entropy of w, on
    clean samples of which every other has a wrong label, the class that the teacher finds likeliest of all but the
    right one. w is an MLP with one hidden layer on the teacher's features and an embedding of the label. Only the
    student predicts.

    For k = 1 the meta gradient is exact; for more it takes the Hessians for the identity, which is the paper's
    approximation. It is computed by forward-mode differentiation, as the authors do. k = 5, widths 128 and SGD without
    momentum, learning rate 0.02 times the schedule and weight decay 5e-4, are from their code for CIFAR. Departures:
    there both networks start from self-supervised weights; here the student learns the noisy labels first, and the
    teacher starts as its copy. Noisy and clean samples pass in two forwards; halves of a clean batch are its even and
    its odd rows. `hypergradient` can't be "backprop", and options of the student's step are refused, as it is fixed
    here; `lookahead` names the layers whose J_t and g count. Gradients of the teacher longer than `clip` are cut: on
    the backbone fast the meta gradient was some hundred times longer than the rest, and undid the teacher in one
    step. In a loop of your own call `begin_epoch`: there is no warm-up otherwise.

    Args:
        steps_ahead: k, steps of the student for each of the teacher.
        hidden: width of the network that gives w.
        label_dim: size of the label embedding.
        warmup_share: share of the epochs in which the student learns the noisy labels, at least one if it isn't 0.
        clip: greatest length of the teacher's gradient; infinity cuts nothing.
        meta_lr: learning rate of the teacher.
        meta_weight_decay: its weight decay.
    """

    name = "emlc"
    paper = "Taraday, Baskin, Enhanced Meta Label Correction for Coping with Label Corruption (ICCV 2023)"
    cost = Cost(5.8, 1.6)
    networks = 2

    steps_ahead: int = option(5, "at least 1")
    hidden: int = option(128, "at least 1")
    label_dim: int = option(128, "at least 1")
    warmup_share: float = option(0.1, "a number in [0, 1)")
    clip: float = option(10.0, "more than 0")
    meta_lr = 0.02
    meta_weight_decay = 5e-4
    hypergradient: str = option("jvp", "jvp or finite_difference", lambda m: m.hypergradient in WITHOUT_BACKPROP)
    meta_every = clean_weight = clean_updates = meta_amsgrad = lookahead_lr = lagged = refused(
        "the student's real steps are the look-ahead"
    )

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        student = self.classifier
        self.teacher = copy.deepcopy(model)
        with seeded(draw_seed(self.generator), torch.device("cpu")):
            retain = RetainNetwork(student.feature_dim, num_classes, self.hidden, self.label_dim)
        self.retain = retain.to(student.device, student.dtype)
        named = dict(self.teacher.named_parameters())
        mine = [named[name] for name in student.parameters]
        self.meta_parameters = learned = [*mine, *self.retain.parameters()]
        sgd = partial(torch.optim.SGD, lr=self.meta_lr, weight_decay=self.meta_weight_decay)
        self.meta_optimizer = (self.meta_optimizer or sgd)(learned)
        head, width = options.get("head"), options.get("feature_dim")
        # only its forward is used: the teacher is trained by the meta optimizer
        self._teacher = Classifier(
            self.teacher, num_classes, torch.optim.SGD(mine, lr=0.0), head, width, options.get("autocast")
        )
        self.history: list[dict[str, Any]] = []  # what is needed of the student's steps since the teacher's last
        self.saved += ["teacher", "retain", "meta_optimizer", "history"]
        self.warming = False

    @property
    def meta_due(self) -> bool:
        """Clean samples at every step: half of them teach the student."""
        return not self.warming

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set the phase."""
        self.warming = epoch < warm_up_epochs(self.warmup_share, epochs)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of the student, and after k of them one of the teacher."""
        if self.warming:
            found = self.warm_up(batch)
            self.teacher.load_state_dict(self.model.state_dict())
            return found
        classifier = self.classifier
        inputs, given = classifier.unpack(batch, "training")
        clean_inputs, clean_labels = self.unpack_meta(meta_batch)
        if self.teacher.training != self.model.training:
            self.teacher.train(self.model.training)
        with torch.no_grad():
            labels, retained = self._correct(inputs, given)
        noisy, clean = self.forward(inputs), self.forward(_every_other(clean_inputs, 0, len(clean_labels)))
        half = _every_other(clean_labels, 0, len(clean_labels))
        before = {name: p.detach().clone() for name, p in classifier.parameters.items()}
        self.history.append(
            {"weights": before, "inputs": inputs, "labels": given, "outputs": list(noisy.detached), "seed": noisy.seed}
        )
        loss, of_noisy = classifier.loss_gradient(noisy, lambda z: objective.cross_entropy(z, labels))
        clean_loss, of_clean = classifier.loss_gradient(clean, lambda z: objective.cross_entropy(z, half))
        found = read_metrics(
            noisy,
            clean.outputs.logits.detach(),
            loss=loss + clean_loss,
            accuracy=accuracy(noisy.outputs.logits, given),
            clean_accuracy=accuracy(clean.outputs.logits, half),
            retained=retained.mean(),
        )
        classifier.update({name: of_noisy[name] + of_clean[name] for name in of_noisy})
        self.steps += 1
        if len(self.history) >= self.steps_ahead:
            found |= self._teach(clean_inputs, clean_labels)
            self.history = []
        return found

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state."""
        names = ("steps_ahead", "warmup_share", "clip", "meta_lr", "meta_smoothing")
        return {name: getattr(self, name) for name in names} | {"lookahead": sorted(self._look_ahead_names)}

    def _correct(self, inputs: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's labels (n, c), and its trust in the given ones (n, 1)."""
        logits, features = self._teacher.forward(inputs, draw_seed(self.generator)).outputs
        given = one_hot(given, logits)
        retained = self.retain(features, given)
        return retained * given + (1 - retained) * F.softmax(logits, dim=1), retained

    def _teach(self, inputs: Any, labels: Tensor) -> Metrics:
        """One step of the teacher."""
        classifier, rate = self.classifier, max(self.classifier.rates.values())
        rates = {name: value for name, value in classifier.rates.items() if name in self._look_ahead_names}
        now = {name: p.detach().clone().requires_grad_() for name, p in classifier.parameters.items()}
        here = LookAhead(classifier, Forward(None, Outputs(labels, labels), 0), rates, (), {}, now, False)
        odd = [_every_other(part, 1, len(labels)) for part in (inputs, labels)]
        clean = bilevel.clean_gradient(here, *odd, seed=draw_seed(self.generator), smoothing=self.meta_smoothing)
        own, right = self._own_loss(inputs, labels)
        total = bilevel.backprop(here, replace(clean, loss=own), self.meta_parameters)
        discount = 1.0
        for step in reversed(self.history):
            held = {key: to_device(value, classifier.device) for key, value in step.items() if key != "seed"}
            outputs = Outputs(*held["outputs"])
            corrected, _ = self._correct(held["inputs"], held["labels"])
            output_gradient = (F.softmax(outputs.logits, dim=1) - corrected) / len(corrected)  # of cross-entropy
            forward = Forward(held["inputs"], outputs, step["seed"])
            then = {name: discount * rate for name, rate in rates.items()}
            ahead = LookAhead(classifier, forward, then, (output_gradient, None), {}, {}, False)
            with self._at(held["weights"]):
                gradient = self.meta_gradient(ahead, clean)
            total = [a + b for a, b in zip(total, gradient, strict=True)]
            discount *= 1 - rate
        for group in self.meta_optimizer.param_groups:  # follows the student's schedule
            group["lr"] = self.meta_lr * rate / max(max(self._first_rates.values()), 1e-12)
        found = {"meta_loss": clean.loss, "meta_accuracy": accuracy(clean.logits, odd[1]), "teacher_accuracy": right}
        metrics = read_metrics(forward, clean.logits, **found)
        share = (self.clip / torch.nn.utils.get_total_norm(total)).clamp(max=1.0)
        self.learn([share * g for g in total])
        return metrics

    def _own_loss(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What the teacher learns from clean samples directly, and its accuracy on them."""
        logits, features = self._teacher.forward(inputs, draw_seed(self.generator)).outputs
        given = one_hot(labels, logits)
        wrong = logits.detach().masked_fill(one_hot(given.argmax(1), logits) > 0, -torch.inf).argmax(1)
        every_other = torch.arange(len(labels), device=labels.device).unsqueeze(1) % 2 == 0
        shown = torch.where(every_other, one_hot(wrong, logits), given)
        trust = F.binary_cross_entropy(self.retain(features, shown), (~every_other).to(logits.dtype))
        return objective.cross_entropy(logits, labels) + trust, accuracy(logits, labels)

    @contextmanager
    def _at(self, weights: dict[str, Tensor]) -> Iterator[None]:
        """The student as it was."""
        parameters = self.classifier.parameters
        now = {name: p.detach().clone() for name, p in parameters.items()}
        with torch.no_grad():
            for name, value in weights.items():
                parameters[name].copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in now.items():
                    parameters[name].copy_(value)


def _every_other(inputs: Any, first: int, count: int) -> Any:
    """The even or the odd rows; a single row is both."""
    return take_rows(inputs, torch.arange(first if count > 1 else 0, count, 2))
