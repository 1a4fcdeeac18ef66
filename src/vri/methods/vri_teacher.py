"""VRI with a teacher: rectify the logits against labels that an averaged network has corrected."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vri.core.checks import Batch
from vri.core.objective import Gaussian
from vri.methods.averaged import Averaged
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.losses import one_hot
from vri.methods.options import option
from vri.methods.views import split_views
from vri.methods.vri import VRI

_LEAST = 1e-6  # of a pair of classes, so that none is ruled out for ever


class VRITeacher(VRI):
    """VRI on labels that a teacher corrects first.

    VRI's vector can keep a wrong label from being learned, but can't put the right one in its place. Here a soft label
    takes the place of each noisy label ỹ before VRI sees it: the probability of class k after the label was seen,

        q_k ∝ p̄_k(x) · T_kỹ,

    where p̄ is the prediction of a teacher, the running average of the classifier's weights, and T_kj = p(ỹ = j | y = k)
    a transition matrix. T is learned on the way as in the EM algorithm: T_kj is the share of labels j among the samples
    of class k, each counted in every class as q says, in a running average over batches. VRI's step then uses q
    wherever it would use the label; the trusted samples are as they are.

    At high learning rates the average of the weights predicts far better than the weights themselves, and the teacher
    is earlier: it has learned less of the wrong labels by heart. `vri-transition` uses the classifier's own prediction
    and reads the matrix at the trusted samples. The teacher is that of Mean Teacher (Tarvainen, Valpola, 2017), T by EM
    that of Dawid and Skene (1979); beyond all of these papers.

    It predicts in evaluation mode. At test time only `model` runs, not the teacher.

    With `strong_view` the network learns from strongly augmented views of the samples and the teacher looks at weak
    ones, which it knows better (Nishi, Ding, Rich, Höllerer, 2021). The loop provides both.

    Args:
        decay: of the teacher: it keeps this share of its weights at each step, and less in the first ones:
            (1 + t) / (10 + t) after t steps.
        momentum: of the counts behind T: they keep this share at each step.
        initial_mean: mean of v before training; 2 rectifies little, the teacher does the work at first.
        strong_view: whether the network learns from a strong view of each sample.
    """

    name = "vri-teacher"
    paper = "VRI (Sun et al.) on labels corrected by a teacher (Tarvainen, Valpola, NeurIPS 2017); beyond both"
    cost = Cost(2.5, 2.0)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))  # VRI's

    decay: float = option(0.97, "a number in [0, 1)")
    momentum: float = option(0.98, "a number in [0, 1)")
    initial_mean = 2.0
    strong_view: bool = option(False)

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.views = ("weak", "strong") if self.strong_view else ("weak",)
        first = self.classifier
        self.average = Averaged(model)
        self.followed = 0  # steps
        even = torch.full((num_classes, num_classes), 1 / num_classes, device=first.device, dtype=first.dtype)
        self.joint = (torch.eye(num_classes, device=first.device, dtype=first.dtype) + even) / (2 * num_classes)
        self.saved += ["average", "followed", "joint"]

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One iteration of Algorithm 1 on corrected labels."""
        inputs, labels = self.classifier.unpack(batch, "training")
        views = split_views(inputs, len(self.views))
        corrected = self.correct_labels(views[0], labels)
        metrics = super().step((views[-1], corrected), meta_batch)
        given = one_hot(labels, corrected)
        counted = self.classifier.batch_mean((corrected.T @ given / len(given)).unsqueeze(0))
        self.joint = torch.lerp(counted, self.joint, self.momentum)
        self._follow()
        return metrics

    def warm_up(self, batch: Batch) -> Metrics:
        """One step of plain cross-entropy, which the teacher follows."""
        inputs, labels = self.classifier.unpack(batch, "training")
        metrics = super().warm_up((split_views(inputs, len(self.views))[-1], labels))
        self._follow()
        return metrics

    @property
    def matrix(self) -> Tensor:
        """T (c, c): rows are true classes, columns noisy labels."""
        counts = self.joint + _LEAST
        return counts / counts.sum(1, keepdim=True)

    def correct_labels(self, inputs: Any, labels: Tensor) -> Tensor:
        """q (n, c): what the teacher believes of a batch, after its noisy labels were seen."""
        beliefs = self.average.beliefs(inputs, self.classifier.dtype)
        joint = beliefs * (one_hot(labels, beliefs) @ self.matrix.T)
        return joint / joint.sum(1, keepdim=True)

    def spread(self, posterior: Gaussian) -> Mapping[str, Tensor]:
        """VRI's, and the estimated share of right labels."""
        return {**super().spread(posterior), "labels_right": self.joint.trace()}

    def _follow(self) -> None:
        self.average.update(self.model, min(self.decay, (1 + self.followed) / (10 + self.followed)))
        self.followed += 1

    def settings(self) -> dict[str, Any]:
        """What a step depends on besides the state."""
        return super().settings() | {"decay": self.decay, "momentum": self.momentum, "strong_view": self.strong_view}
