"""Label smoothing: cross-entropy with labels moved towards the uniform distribution."""

from torch import Tensor

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.losses import one_hot
from vri.methods.options import option


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy with the labels (1 − ε)·y + ε/c."""
    y = one_hot(labels, logits)
    return objective.cross_entropy(logits, (1 - smoothing) * y + smoothing / logits.shape[1])


class LabelSmoothing(CrossEntropy):
    """Train on labels that are moved towards the uniform distribution.

    L = CE(z, (1 − ε)·y + ε/c). Lukasik et al. (ICML 2020) study it on noisy labels.

    Args:
        smoothing: ε; 0 is plain cross-entropy.
    """

    name = "label-smoothing"
    paper = (
        "Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, Rethinking the Inception Architecture for Computer Vision "
        "(CVPR 2016)"
    )
    cost = Cost(1.0, 1.0)
    tuned = Rates((0.02, 5e-3), (0.05, 5e-3))

    smoothing: float = option(0.1, "a number in [0, 1)")

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of cross-entropy on smoothed labels."""
        return self.descend(batch, lambda z, y: smoothed_cross_entropy(z, y, self.smoothing))
