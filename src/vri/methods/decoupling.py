"""Decoupling: two networks learn only where they disagree."""

from vri.core import objective
from vri.core.checks import Batch
from vri.methods.base import Cost, Metrics, Rates, accuracy, read_metrics
from vri.methods.losses import sample_losses
from vri.methods.two_networks import TwoNetworks, disagreement


class Decoupling(TwoNetworks):
    """Train two networks on the samples that they predict differently.

    When to update is decoupled from how: D = {i : argmax f₁(xᵢ) ≠ argmax f₂(xᵢ)}, and each network takes a step on its
    mean cross-entropy over D; if D is empty, neither does. Only the first network predicts.

    `loss` reports the first network's cross-entropy of the whole batch, since D may be empty.
    """

    name = "decoupling"
    paper = 'Malach, Shalev-Shwartz, Decoupling "when to update" from "how to update" (NeurIPS 2017)'
    cost = Cost(2.1, 2.0)
    tuned = Rates((0.02, 5e-3), (0.05, 5e-4))

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network on the samples of disagreement."""
        inputs, labels = self.classifier.unpack(batch, "training")
        forwards = self.forwards(inputs)
        logits = forwards[0].detached.logits
        differs = disagreement(forwards).to(logits.dtype)  # (n,)
        share = self.classifier.batch_mean(differs)
        metrics = read_metrics(
            forwards[0],
            loss=objective.cross_entropy(logits, labels),
            accuracy=accuracy(logits, labels),
            disagreement=differs.mean(),
        )
        if float(share) > 0:
            for classifier, forward in zip(self.classifiers, forwards, strict=True):
                _, gradient = classifier.loss_gradient(
                    forward, lambda z: (differs * sample_losses(z, labels)).mean() / share
                )
                classifier.update(gradient)
        return metrics
