"""Decoupling: two networks learn only where they disagree."""

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Metrics, accuracy
from vri.methods.twins import TwoNetworks, descend_on, disagreement
from vri.training import distributed as parallel


class Decoupling(TwoNetworks):
    """Train two networks on the samples that they predict differently.

    When to update is decoupled from how: D = {i : argmax f₁(xᵢ) ≠ argmax f₂(xᵢ)}, and each network takes a step on
    its mean cross-entropy over D; where D is empty, none does. Only the first network predicts.

    `loss` reports the first network's cross-entropy of the whole batch, since D may be empty.
    """

    paper = 'Malach, Shalev-Shwartz, Decoupling "when to update" from "how to update" (NeurIPS 2017)'

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network on the samples of disagreement."""
        inputs, labels, part = self.classifiers[0].unpack(batch, "training")
        forwards = self.forward(inputs)
        logits = forwards[0].outputs.logits.detach()
        kept = disagreement(forwards).nonzero().squeeze(1)
        of_kept = parallel.locate(None, len(kept))
        if of_kept.total:
            for classifier, forward in zip(self.classifiers, forwards, strict=True):
                descend_on(kept, classifier, forward, labels, of_kept)
        own = {
            "loss": float(objective.cross_entropy(logits, labels)),
            "accuracy": accuracy(logits, labels),
            "disagreement": len(kept) / len(labels),
        }
        return parallel.sums(part.of(own))
