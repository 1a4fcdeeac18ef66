"""Classifiers for small images and vectors: plain modules that return logits and end in an `nn.Linear`.

Every factory takes `seed`: with a number the initial weights are the same at every call and the global RNG
stays as it was; with ``None`` they come from the global RNG, as for any PyTorch module.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from vri.randomness import seeded


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU, added to a shortcut.

    He et al., "Identity mappings in deep residual networks" (2016).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = None if same_shape else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map n x in x h x w to n x out x h/stride x w/stride."""
        activated = relu(self.norm1(x))
        # The projection reads the activated input, as in the original; the identity passes x itself.
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        hidden = self.conv1(activated)
        out: Tensor = shortcut + self.conv2(relu(self.norm2(hidden)))
        return out


def resnet32(num_classes: int = 10, in_channels: int = 3, *, seed: int | None = None) -> nn.Sequential:
    """Pre-activation ResNet-32 with 16, 32 and 64 channels, five blocks a stage, for 32x32 images."""
    _check_positive(num_classes=num_classes, in_channels=in_channels)
    with _seeded(seed):
        layers: list[nn.Module] = [nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)]
        width = 16
        for stage_width in (16, 32, 64):
            for _ in range(5):
                layers.append(PreActBlock(width, stage_width, stride=1 if width == stage_width else 2))
                width = stage_width
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        return _he_init(nn.Sequential(*layers, *_pooled_head(width, num_classes)))


def small_cnn(num_classes: int = 10, in_channels: int = 1, *, seed: int | None = None) -> nn.Sequential:
    """Three convolutions with 16, 32 and 64 channels, for 28x28 or 8x8 images; about 24,000 parameters."""
    _check_positive(num_classes=num_classes, in_channels=in_channels)
    with _seeded(seed):
        layers: list[nn.Module] = []
        width = in_channels
        for next_width, pool in ((16, True), (32, True), (64, False)):
            layers += [nn.Conv2d(width, next_width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(next_width), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pool else []
            width = next_width
        return _he_init(nn.Sequential(*layers, *_pooled_head(width, num_classes)))


def mlp(
    in_features: int, num_classes: int, hidden: Sequence[int] = (256, 256), *, seed: int | None = None
) -> nn.Sequential:
    """Fully connected network with ReLU; flattens first, so images go in as well."""
    _check_positive(in_features=in_features, num_classes=num_classes)
    for size in hidden:
        _check_positive(hidden=size)
    with _seeded(seed):
        layers: list[nn.Module] = [nn.Flatten()]
        width = in_features
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        return nn.Sequential(*layers, nn.Linear(width, num_classes))


BACKBONES: dict[str, Callable[..., nn.Sequential]] = {
    "resnet32": resnet32,
    "small_cnn": small_cnn,
    "mlp": mlp,
}


def _pooled_head(width: int, num_classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)]


def _he_init(model: nn.Sequential) -> nn.Sequential:
    """Draw all convolution weights anew, He normal."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _seeded(seed: int | None) -> AbstractContextManager[None]:
    return nullcontext() if seed is None else seeded(seed, torch.device("cpu"))


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; expected 1 or more: pass the size of the data")
