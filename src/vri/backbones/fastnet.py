"""A small convolutional network for small colour images that trains in minutes on one core.

It follows the CIFAR-10 speed records: a frozen first layer that whitens 2x2 patches, three blocks of two convolutions
each, max-pooling, BatchNorm without a learned scale, GELU, and convolutions that start as the identity. Train it with
`vri.training.optimizers.orthogonal`, in large batches and for few epochs, as `vri train --backbone fast` does.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.backbones.parts import seeded_init

SMALLEST = 9  # pixels per side: three poolings leave one
_PATCH = 2  # pixels per side of the whitened patches
_PATCHES = 1000  # images from which their covariance is estimated; more change nothing
_EPS = 5e-4  # added to the variances, so that directions of pure noise aren't amplified


class Whitening(nn.Conv2d):
    """Frozen 2x2 filters, each with its negative, that make the components of a patch uncorrelated with variance one.

    Before `fit` they are the cosine basis of a patch: nearly uncorrelated for photographs, but without variance one.
    Only the bias is trained.
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__(in_channels, 2 * in_channels * _PATCH**2, _PATCH)
        self.weight.requires_grad_(False)
        self._set(_cosine_basis(in_channels))

    def reset_parameters(self) -> None:
        """Start from a bias of zero; the filters stay."""
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Compute the filters from normalised training images (n, channels, height, width)."""
        shape = (self.in_channels, _PATCH, _PATCH)
        patches = images.float().unfold(2, _PATCH, 1).unfold(3, _PATCH, 1).movedim(1, 3).reshape(-1, *shape)
        flat = patches.flatten(1).double()
        variances, directions = torch.linalg.eigh(flat.T.cov())
        self._set((directions / (variances + _EPS).sqrt()).T.reshape(-1, *shape))

    def _set(self, filters: Tensor) -> None:
        with torch.no_grad():
            self.weight.copy_(torch.cat([filters, -filters]))


class IdentityConv(nn.Conv2d):
    """3x3 convolution without bias that starts as the identity; additional channels start at random."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights."""
        super().reset_parameters()
        nn.init.dirac_(self.weight[: self.in_channels])


class ShiftNorm(nn.Module):
    """BatchNorm with a learned shift and no scale.

    The shift is added separately: in mixed precision BatchNorm then has no float32 weights, which would make it slower.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        # training has few steps, so the statistics must follow the recent ones
        self.norm = nn.BatchNorm2d(channels, momentum=0.4, affine=False)
        self.shift = nn.Parameter(torch.zeros(channels))

    def reset_parameters(self) -> None:
        """Start without a shift."""
        nn.init.zeros_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise to mean `shift` and variance one in each channel."""
        normal: Tensor = self.norm(x)
        return normal + self.shift.to(normal.dtype)[:, None, None]


class Block(nn.Module):
    """Two convolutions; the first one halves the image."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = IdentityConv(in_channels, out_channels), ShiftNorm(out_channels)
        self.conv2, self.norm2 = IdentityConv(out_channels, out_channels), ShiftNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, c', h // 2, w // 2)."""
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class FastNet(nn.Module):
    """The network; see `fast`."""

    def __init__(self, num_classes: int, in_channels: int, widths: Sequence[int], mirror: bool) -> None:
        super().__init__()
        self.mirror = mirror
        self.whiten = Whitening(in_channels)
        sizes = (self.whiten.out_channels, *widths)
        self.blocks = nn.Sequential(*[Block(a, b) for a, b in pairwise(sizes)])
        self.head = nn.Linear(sizes[-1], num_classes)
        with torch.no_grad():
            # equivalent to a head scaled by its width, at its learning rate divided by the width squared
            self.head.weight.div_(sizes[-1])
            self.head.bias.zero_()

    def fit_whitening(self, images: Tensor) -> None:
        """Compute the first layer from training images, normalised as in training; call it once, before training."""
        self.whiten.fit(images[:_PATCHES])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images (n, channels, height, width)."""
        if min(x.shape[-2:]) < SMALLEST:
            raise ValueError(
                f"images of {x.shape[-2]}x{x.shape[-1]} pixels are too small for the backbone fast, which halves them "
                f"three times: expected {SMALLEST}x{SMALLEST} or more; enlarge them, or take small_cnn or mlp"
            )
        features = self._features(x)
        if self.mirror and not self.training:
            # the head is linear: this is the mean of both logits
            features = (features + self._features(x.flip(-1))) / 2
        logits: Tensor = self.head(features)
        return logits

    def _features(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(self.blocks(F.gelu(self.whiten(x))), 1).flatten(1)


def fast(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    widths: Sequence[int] = (32, 128, 128),
    mirror: bool = True,
    seed: int | None = None,
) -> FastNet:
    """Three blocks of two 3x3 convolutions after a whitening layer; about 500,000 parameters.

    Call `fit_whitening` with training images before training; without it the first layer is a fixed cosine basis.

    Args:
        num_classes: logits.
        in_channels: channels of the images, which must have 9x9 pixels or more.
        widths: channels of the blocks.
        mirror: predict the mean of an image and its mirror image, when not training.
        seed: of the initial weights; if None, they come from the global RNG.
    """
    with seeded_init(seed, num_classes=num_classes, in_channels=in_channels, widths=widths):
        return FastNet(num_classes, in_channels, widths, mirror)


def _cosine_basis(channels: int) -> Tensor:
    """Orthonormal cosines along the channels and both sides of a patch: (4c, c, 2, 2)."""

    def cosines(n: int) -> Tensor:
        k = torch.arange(n, dtype=torch.float64)
        basis = (torch.pi * (k + 0.5) * k[:, None] / n).cos() * math.sqrt(2 / n)
        basis[0] /= math.sqrt(2)
        return basis

    basis = torch.einsum("ax,by,cz->abcxyz", cosines(channels), cosines(_PATCH), cosines(_PATCH))
    return basis.reshape(-1, channels, _PATCH, _PATCH)
