"""Which share of each batch this process has, and how gradients of shares become those of the whole batch.

A single process has all of it. When several processes train one model, each on an equal share of every batch,
`vri.training.distributed` sets another `Share`. For mean losses that is enough: the mean of the shares' gradients is
the gradient of the whole batch. Only `core.model` and `core.bilevel` use this module; methods don't know about shares.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vri.core.randomness import derive_seed


class Share:
    """All of the batch: a process that trains alone."""

    index = 0  # the number of this process
    count = 1  # processes

    def gradients(
        self,
        outputs: Tensor | Sequence[Tensor],
        inputs: Sequence[Tensor],
        output_gradients: Sequence[Tensor] | None = None,
        retain_graph: bool = False,
    ) -> list[Tensor]:
        """`torch.autograd.grad` of the whole batch; zeros where nothing depends on an input."""
        return list(
            torch.autograd.grad(
                outputs, inputs, output_gradients, retain_graph=retain_graph, allow_unused=True, materialize_grads=True
            )
        )

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Means over the shares, differentiable."""
        return list(tensors)

    def seed(self, seed: int) -> int:
        """A seed for this process, derived from the one that all have drawn: dropout masks differ between shares."""
        return seed if self.index == 0 else derive_seed(seed, self.index)

    def normal(self, shape: tuple[int, int, int], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers (k, n, c) for n samples of this share.

        Every process draws for the whole batch, so generators stay in step and the draws are those of a single process.
        """
        k, n, c = shape
        drawn = torch.randn((k, n * self.count, c), generator=generator, device=generator.device, dtype=dtype)
        return drawn if self.count == 1 else drawn[:, n * self.index : n * (self.index + 1)]


_current = Share()


def current() -> Share:
    """The share of this process."""
    return _current


def take(share: Share) -> None:
    """Set the share of this process; `Share()` is the whole batch."""
    global _current
    _current = share
