"""Co-teaching: two networks choose samples for each other."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vri.core.checks import Batch
from vri.methods.base import Metrics, accuracy
from vri.methods.shared import check_options
from vri.methods.twins import TwoNetworks, descend_on, disagreement, forget_rate, smallest_of_all
from vri.training import distributed as parallel


class CoTeaching(TwoNetworks):
    """Train two networks, each on the samples that the other finds easy.

    Each network marks the share R(T) of a batch with the smallest cross-entropy, and the other takes a step on
    these; R(T) = 1 − τ·min(T^c / T_k, 1) in epoch T, counted from 0. Only the first network predicts.

    τ is the share of wrong labels. The paper takes it as known; here it must be given or guessed: 0.2 is no more
    than the first of the paper's settings. In a loop of your own call `begin_epoch`, which sets R.

    Args:
        noise_rate: τ.
        num_gradual: T_k, epochs over which the share left out grows to τ (at c = 1).
        exponent: c.
        options: as in `TwoNetworks`.
    """

    paper = (
        "Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama, Co-teaching: Robust Training of Deep Neural Networks with "
        "Extremely Noisy Labels (NeurIPS 2018)"
    )

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
        *,
        noise_rate: float = 0.2,
        num_gradual: int = 10,
        exponent: float = 1.0,
        **options: Any,
    ) -> None:
        check_options(
            "CoTeaching",
            noise_rate=(noise_rate, 0 <= noise_rate < 1, "a number in [0, 1)"),
            num_gradual=(num_gradual, num_gradual >= 1, "at least 1"),
            exponent=(exponent, exponent > 0, "more than 0"),
        )
        super().__init__(model, num_classes, optimizer, **options)
        self.noise_rate, self.num_gradual, self.exponent = noise_rate, num_gradual, exponent
        self.forget = 0.0  # 1 − R(T)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set the share of a batch to leave out."""
        self.forget = forget_rate(epoch, self.noise_rate, self.num_gradual, self.exponent)

    def step(self, batch: Batch, meta_batch: Batch | None = None) -> Metrics:
        """One step of each network on the other's small-loss samples."""
        inputs, labels, part = self.classifiers[0].unpack(batch, "training")
        forwards = self.forward(inputs)
        logits = [forward.outputs.logits.detach() for forward in forwards]
        losses = [F.cross_entropy(z, labels, reduction="none") for z in logits]
        (mine, of_mine), (others, of_others) = (smallest_of_all(each, self.forget, part) for each in losses)
        first, second = self.classifiers
        loss = descend_on(others, first, forwards[0], labels, of_others)
        second_loss = descend_on(mine, second, forwards[1], labels, of_mine)
        own = {
            "accuracy": accuracy(logits[0], labels),
            "kept": len(mine) / len(labels),
            "disagreement": float(disagreement(forwards).double().mean()),
        }
        return parallel.sums({"loss": loss, "second_loss": second_loss} | part.of(own))

    def settings(self) -> dict[str, Any]:
        """The schedule of R."""
        return {"noise_rate": self.noise_rate, "num_gradual": self.num_gradual, "exponent": self.exponent}

    def state_dict(self) -> dict[str, Any]:
        """Both networks and R."""
        return super().state_dict() | {"forget": self.forget}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`."""
        super().load_state_dict(state)
        self.forget = float(state["forget"])
