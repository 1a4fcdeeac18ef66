"""VRI inside DivideMix: rectify the losses of samples whose labels were divided, refined and mixed before."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics
from vri.methods.dividemix import DivideMix
from vri.methods.options import option
from vri.methods.two_networks import disagreement
from vri.methods.views import split_views
from vri.methods.vri import VRI


class VRIDivideMix(DivideMix):
    """Train two networks as DivideMix does, but each by VRI on the labels that DivideMix makes.

    DivideMix divides the samples, refines and guesses labels and mixes both, see there. Its three losses give way to
    one: VRI's step, for each network with meta networks of its own, on the mixed samples with their soft labels and
    on the trusted batch. So VRI rectifies what is still wrong with refined and guessed labels; λ_u and the term on
    the mean prediction are left out. Beyond both papers.

    It learns from trusted samples, or from selected ones where there are none.

    Args:
        rectification: options of `VRI`, as a mapping.
    """

    name = "vri-dividemix"
    paper = "VRI (Sun et al.) on the labels of DivideMix (Li, Socher, Hoi, ICLR 2020); beyond both"
    cost = Cost(9.7, 3.0)
    needs_trusted = True
    can_select = True

    rectification: Mapping[str, Any] = option({})

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        super().__init__(model, num_classes, optimizer, **options)
        self.rectification = dict(self.rectification or {})
        how = {**self.known, **self.rectification}
        self.first, self.second = (
            VRI(one.model, num_classes, one.optimizer, generator=self.generator, **how) for one in self.classifiers
        )
        for one in (self.first, self.second):  # the rest is saved already
            one.saved = [name for name in one.saved if name not in ("model", "optimizer", "generator")]
        self.saved += ["first", "second"]
        networks = [network for one in (self.first, self.second) for network in (one.meta_network, one.prior_network)]
        self.meta_networks = nn.ModuleList(networks)

    @property
    def meta_due(self) -> bool:
        """Trusted samples when VRI needs them, after the warm-up."""
        return not self.warming and self.first.meta_due

    def warm_up(self, batch: Batch) -> Metrics:
        """One step of DivideMix's warm-up."""
        inputs, labels = self.classifier.unpack(batch, "training")
        return self.warm(split_views(inputs, 2)[0], labels)

    def learn(self, views: tuple[Any, ...], labels: Tensor, index: Tensor, meta_batch: Batch | None) -> Metrics:
        """One step of VRI for each network, on its own mixture."""
        mixed, said = self.divided(views, labels, index)
        self.follow()
        steps = zip((self.first, self.second), mixed, strict=True)
        found, other = (rectifier.step((one.inputs, one.targets), meta_batch) for rectifier, one in steps)
        return found | {"second_loss": other["loss"], "disagreement": float(disagreement(said).double().mean())}
