"""VRI as in its paper's text, without our changes."""

from typing import Any

from vri.methods.base import Cost, Rates
from vri.methods.vri import VRI


class LiteralVRI(VRI):
    """VRI with the settings of its paper: KL inside the look-ahead and through the features, nothing beyond the paper.

    The defaults that differ from those of `VRI` are in `PAPER`.
    """

    name = "vri-literal"
    paper = "Sun et al., Variational Rectification Inference for Learning with Noisy Labels: to the letter"
    cost = Cost(3.4, 2.1)
    tuned = Rates((0.02, 5e-3), (0.02, 5e-3))

    kl_route = "features"
    kl_weight = 1e-3
    samples = 2  # as on CIFAR; 1 elsewhere
    clean_weight = 0.0
    initial_mean = 0.0
    meta_smoothing = 0.0
    meta_every = 1
    normalize = False
    bound = "sigmoid"  # as in the table of architectures
    hidden = (1024, 512)
    meta_lr = 3e-4
    meta_amsgrad = False


PAPER: dict[str, Any] = {name: value for name, value in vars(LiteralVRI).items() if name in VRI.options}
