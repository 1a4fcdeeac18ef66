"""Images and texts of a source by a pretrained encoder: found and checked before anything is read, run later."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vri import encoders
from vri.cleaning.options import SourceOptions
from vri.cleaning.state import FEATURES
from vri.encoders.features import features
from vri.encoders.images import from_weights

EVIDENCE = ("gaussian",)  # who judges features: chosen in benchmarks/encoders.py; epochs are for the network


@dataclass(frozen=True, eq=False)
class Encoding:
    """An encoder that was found.

    Attributes:
        encoder: on the CPU, which is known to work.
        load: loads it again, for another device.
    """

    encoder: encoders.Encoder
    load: Callable[..., encoders.Encoder]

    def features(
        self, read: Callable[[int], Any], count: int, content: str, cache: Path, device: torch.device
    ) -> NDArray[np.float32]:
        """(count, d), computed once for this content and encoder, see `vri.encoders.features`."""
        encoder = self.encoder if device.type == "cpu" else self.load(device=device)
        return features(encoder, read, count, content, cache / FEATURES)


def find_encoding(options: SourceOptions, kind: str) -> Encoding | None:
    """The encoder that the options name, or None; one that can't be used is an error."""
    if options.encoder not in (None, "none"):
        load = partial(
            encoders.load,
            str(options.encoder),
            kind,
            image_size=options.image_size,
            backbone=options.backbone,
            weights=options.weights,
        )
    elif options.weights is not None:
        load = partial(from_weights, options.backbone or "resnet50", options.weights, options.image_size)
    else:
        return None
    return Encoding(load(device=torch.device("cpu")), load)
