"""From what users bring (tables, sparse matrices, images) to tensors, the same way at fit and at predict."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

_WIDE = 512  # columns of a sparse matrix above which it is projected to fewer
_COMPONENTS = 256
_CLIP = 8.0  # standard deviations; one absurd cell must not fill a row's activations

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Scaling:
    """How inputs are brought to the scale that networks like; learned on the training inputs.

    Attributes:
        kind: "columns" (each to mean 0, variance 1), "channels" (uint8 images, likewise for each channel), "none", or
            "integers", which stay as they are (token ids).
        mean: of each column or channel.
        scale: standard deviation of each; 1 where it is constant.
        projection: (columns, components) for wide sparse matrices, applied first; None without.
    """

    kind: str
    mean: Floats
    scale: Floats
    projection: Floats | None = None

    @classmethod
    def learn(cls, inputs: Any, own_module: bool, seed: int, integers: bool = False) -> "Scaling":
        """From the training inputs; a user's own module gets everything but uint8 images as it is.

        `integers` leaves integers as they are; else they become floats.
        """
        nothing = np.zeros(0, np.float32)
        if inputs.ndim > 2 and inputs.dtype == np.uint8:
            return cls("channels", *_moments(inputs.reshape(*inputs.shape[:2], -1), (0, 2), 1 / 255))
        if own_module:
            return cls("integers" if integers else "none", nothing, nothing)
        projection = None
        if sparse.issparse(inputs) and inputs.shape[1] > _WIDE:
            projection = _project(inputs, seed)
            reduced = np.asarray(inputs @ projection)
            # one scale for all: to bring the last, weakest components to variance 1 would be to amplify noise
            spread = np.full(reduced.shape[1], max(float(reduced.std()), 1e-12), np.float32)
            return cls("columns", reduced.mean(0).astype(np.float32), spread, projection)
        dense = inputs.toarray() if sparse.issparse(inputs) else inputs
        return cls("columns", *_moments(dense, 0))

    def apply(self, inputs: Any, keep_gaps: bool = False) -> Tensor:
        """Tensor of the scaled inputs; images stay uint8 here and are scaled by `transform`, batch by batch.

        A cell without a value gets its column's mean, and no column that marks it: on tables with few gaps such
        columns do harm. `keep_gaps` leaves them NaN.
        """
        if self.kind == "channels":
            return torch.from_numpy(np.ascontiguousarray(inputs))
        if self.kind == "integers":
            return torch.from_numpy(np.ascontiguousarray(inputs, np.int64))
        if self.projection is not None:
            inputs = np.asarray(inputs @ self.projection)
        dense = np.array(inputs.toarray() if sparse.issparse(inputs) else inputs, dtype=np.float32, order="C")
        if self.kind == "columns":
            dense -= self.mean
            dense /= self.scale
            np.clip(dense, -_CLIP, _CLIP, out=dense)
            if not keep_gaps:
                dense[np.isnan(dense)] = 0.0
        return torch.from_numpy(dense)

    def transform(self, inputs: Tensor, seed: int) -> Tensor:
        """What is left to do for a batch, on its device; nothing is random in it."""
        shape = (1, -1, *[1] * (inputs.ndim - 2))
        mean = torch.from_numpy(self.mean).to(inputs.device).view(shape)
        scale = torch.from_numpy(self.scale).to(inputs.device).view(shape)
        return (inputs.float() / 255 - mean) / scale


def _moments(values: Any, axis: int | tuple[int, ...], unit: float = 1.0) -> tuple[Floats, Floats]:
    gaps = values.dtype.kind == "f" and bool(np.isnan(values).any())
    if gaps:
        empty = np.isnan(values).all(axis)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of columns without any value
            mean, spread = np.nanmean(values, axis, dtype=np.float64), np.nanstd(values, axis, dtype=np.float64)
        mean, spread = np.where(empty, 0.0, mean) * unit, np.where(empty, 0.0, spread) * unit
    else:
        mean = values.mean(axis, dtype=np.float64) * unit
        spread = values.std(axis, dtype=np.float64) * unit
    constant = spread <= 1e-7 * np.maximum(np.abs(mean), 1e-30)
    return mean.astype(np.float32), np.where(constant, 1.0, spread).astype(np.float32)


def _project(inputs: Any, seed: int) -> Floats:
    """Directions of the largest variation (truncated SVD, randomised)."""
    from sklearn.utils.extmath import randomized_svd

    components = min(_COMPONENTS, max(16, inputs.shape[0] // 8), min(inputs.shape) - 1)  # few for few samples
    _, _, directions = randomized_svd(inputs, n_components=max(components, 1), n_iter=4, random_state=seed)
    return np.ascontiguousarray(directions.T, dtype=np.float32)
