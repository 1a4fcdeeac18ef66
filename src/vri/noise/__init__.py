"""Label noise: models that draw wrong labels, and files that keep them."""

from vri.noise.models import NOISES, flip, human, instance, open_set, pair, uniform
from vri.noise.result import ArrayLike, Noise, as_labels, load

__all__ = [
    "NOISES",
    "ArrayLike",
    "Noise",
    "as_labels",
    "flip",
    "human",
    "instance",
    "load",
    "open_set",
    "pair",
    "uniform",
]
