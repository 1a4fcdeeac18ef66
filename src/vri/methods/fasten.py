"""FasTEN: estimate the transition matrix on each clean batch, with a second head, in the pass that trains."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core import objective
from vri.core.checks import Batch
from vri.core.model import Classifier, set_rate
from vri.core.randomness import draw_seed
from vri.methods.base import Cost, Metrics, accuracy, read_metrics
from vri.methods.losses import one_hot
from vri.methods.options import Configured, option
from vri.methods.transition import corrected_cross_entropy, matrix_of_batch, second_head


class FasTEN(Configured):
    """Train through a transition matrix that a second head, of the noisy labels, gives on the clean batch of each step.

    Two linear heads share the features. T_ij is the mean of the noisy head's p(ỹ = j | x) over the clean samples of
    class i in the batch, without gradient. The loss is −log Σ_i p_i·T_iỹ on the n noisy samples and cross-entropy on
    the m clean ones, a mean over all n + m, for the model's own head; plus λ·cross-entropy of the noisy head with the
    labels ỹ. Both train the features. A label is corrected for the next epoch: it is the most probable class where p
    reaches the bound, and the given label elsewhere. λ = 0.5 and the bound 0.8 are the defaults of the authors' code
    (CIFAR, 70 epochs).

    Departures: clean batches needn't have the same number of each class; a class that is not in the batch keeps its row
    of T, at first that of the identity. Noisy and clean samples pass in two forwards, as in the code. The second head
    has an optimizer of the model's kind, with its first options and its learning rate. A batch ends with the numbers of
    its samples; in a loop of your own call `begin_training`.

    Args:
        noisy_weight: λ.
        bound: probability from which on a label is corrected; more than 1 corrects none.
    """

    needs_trusted = True
    needs_index = True
    name = "fasten"
    paper = (
        "Kye, Choi, Yi, Chang, Learning with Noisy Labels by Efficient Transition Matrix Estimation to Combat Label "
        "Miscorrection (ECCV 2022)"
    )
    cost = Cost(2.2, 2.0)

    noisy_weight: float = option(0.5, "more than 0: nothing else teaches the noisy head", lambda m: m.noisy_weight > 0)
    bound: float = option(0.8, "more than 0")

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        first = self.classifier
        self.noisy_head = second_head(first, self.generator)
        self.noisy_optimizer = _alike(optimizer, self.noisy_head)
        self._noisy = Classifier(self.noisy_head, num_classes, self.noisy_optimizer)
        self.matrix = torch.eye(num_classes, device=first.device, dtype=first.dtype)  # T
        self.labels = self.remember("labels", num_classes)  # ỹ; a row of zeros: the given one
        self.saved += ["noisy_head", "noisy_optimizer", "matrix"]

    @property
    def meta_due(self) -> bool:
        """Clean samples at every step."""
        return True

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of both heads and the features."""
        if meta_batch is None:
            raise ValueError(
                "FasTEN estimates its matrix on clean samples in every step, but meta_batch is None; give one"
            )
        classifier, weight = self.classifier, self.noisy_weight
        inputs, given = classifier.unpack(batch, "training")
        clean_inputs, clean_labels = classifier.unpack(meta_batch, "meta")
        index = self.labels.index(batch)
        noisy, clean = self.forward(inputs), self.forward(clean_inputs)
        logits, features = noisy.detached
        given = one_hot(given, logits)
        labels = self._relabel(index, given, F.softmax(logits, dim=1))
        matrix = self._estimate(clean.detached.features, clean_labels)
        share = len(labels) / (len(labels) + len(clean_labels))

        for group in self.noisy_optimizer.param_groups:
            set_rate(group, float(self.optimizer.param_groups[0]["lr"]))
        second = self._noisy.forward(features, draw_seed(self.generator))
        noisy_loss, of_head = self._noisy.loss_gradient(second, lambda z: weight * objective.cross_entropy(z, labels))
        leaves = [logits.clone().requires_grad_(), features.clone().requires_grad_()]
        loss = corrected_cross_entropy(leaves[0], labels, matrix)
        through = F.linear(leaves[1], self.noisy_head.weight.detach(), self.noisy_head.bias.detach())
        total = share * loss + weight * objective.cross_entropy(through, labels)
        of_noisy = classifier.gradient(
            noisy, torch.autograd.grad(total, leaves), list(classifier.parameters), keep=False
        )
        clean_loss, of_clean = classifier.loss_gradient(
            clean, lambda z: (1 - share) * objective.cross_entropy(z, clean_labels)
        )
        metrics = read_metrics(
            noisy,
            clean.outputs.logits.detach(),
            loss=total.detach() + clean_loss,
            accuracy=accuracy(logits, given),
            clean_accuracy=accuracy(clean.outputs.logits, clean_labels),
            noisy_loss=noisy_loss / weight,
            relabelled=(labels.argmax(1) != given.argmax(1)).double().mean(),
            labels_right=matrix.diagonal().mean(),
        )
        classifier.update({name: of_noisy[name] + of_clean[name] for name in of_noisy})
        self._noisy.update(of_head)
        return metrics

    def _relabel(self, index: Tensor, given: Tensor, p: Tensor) -> Tensor:
        """The labels to train on, of the sample's last turn; those of its next are remembered."""
        held = self.labels[index]
        sure = p.max(1, keepdim=True).values >= self.bound
        self.labels[index] = torch.where(sure, one_hot(p.argmax(1), p), given)
        return torch.where(held.sum(1, keepdim=True) > 0, held, given)

    @torch.no_grad()
    def _estimate(self, features: Tensor, labels: Tensor) -> Tensor:
        """T, of the clean samples at hand."""
        p = F.softmax(self.noisy_head(features), dim=1)
        self.matrix = matrix_of_batch(self.classifier, p, labels, self.matrix)
        return self.matrix


def _alike(optimizer: torch.optim.Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of the same kind, with the options of the first group."""
    accepted = inspect.signature(type(optimizer)).parameters
    options = {**optimizer.defaults, **optimizer.param_groups[0]}
    kept = {key: value for key, value in options.items() if key in accepted and key != "params"}
    return type(optimizer)(module.parameters(), **kept)
