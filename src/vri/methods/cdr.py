"""CDR: only critical parameters learn from the labels; the others decay."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vri.core import objective
from vri.core.checks import Batch
from vri.core.model import Parameters
from vri.methods.base import Cost, Metrics, accuracy, read_metrics
from vri.methods.options import Configured, option


def critical_gradient(parameters: Mapping[str, Tensor], gradient: Parameters, kept: float, factor: float) -> Parameters:
    """The gradient where |θ·∇θ| is among the largest share `kept`, times `factor`; 0 elsewhere.

    Matrices and kernels are ranked together; biases and the scales of norms keep their gradient.
    """
    ranked = [name for name, p in parameters.items() if p.ndim >= 2]
    if not ranked:
        return gradient
    scores = {name: (parameters[name].detach() * gradient[name]).abs() for name in ranked}
    together = torch.cat([score.flatten() for score in scores.values()])
    bound = together.topk(max(int(kept * len(together)), 1)).values[-1]
    return {n: factor * g * (scores[n] >= bound) if n in scores else g for n, g in gradient.items()}


class CDR(Configured):
    """Take steps of cross-entropy on the critical parameters only.

    The share 1 − τ of the weights with the largest |w·∂L/∂w| is critical: their gradient is multiplied by 1 − τ. The
    others have gradient 0 and only decay, by the optimizer's weight decay; without one they stay, or move by momentum.

    τ is the share of wrong labels. The paper assumes that it is known, or estimates it; here you must give or guess it.
    The default 0.2 is the first of the paper's settings. The authors' code trains CIFAR with SGD, learning rate 0.01,
    momentum and weight decay 1e-3, and the paper stops early on noisy validation samples, which `keep_best` of
    `vri.train` can do.

    Departures: as in the authors' code, the decay is the optimizer's (‖w‖² where the paper's equations have |w|) and
    1 − τ holds from the first epoch on (the code computes a gradual fall and then doesn't use it).

    Args:
        noise_rate: τ; 0 is cross-entropy.
    """

    name = "cdr"
    paper = (
        "Xia, Liu, Han, Gong, Wang, Ge, Chang, Robust Early-Learning: Hindering the Memorization of Noisy Labels (ICLR "
        "2021)"
    )
    cost = Cost(1.2, 1.0)

    noise_rate: float = option(0.2, "a number in [0, 1)")

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step on the critical parameters."""
        inputs, labels = self.classifier.unpack(batch, "training")
        forward = self.forward(inputs)
        value, gradient = self.classifier.loss_gradient(forward, lambda z: objective.cross_entropy(z, labels))
        metrics = read_metrics(forward, loss=value, accuracy=accuracy(forward.outputs.logits, labels))
        kept = 1 - self.noise_rate
        self.classifier.update(critical_gradient(self.classifier.parameters, gradient, kept, kept))
        return metrics
