"""Small classifiers, for digits, Fashion-MNIST and vectors."""

from collections.abc import Sequence

from torch import nn

from vri.backbones.parts import he_init, pooled_head, seeded_init


def small_cnn(num_classes: int = 10, in_channels: int = 1, *, seed: int | None = None) -> nn.Sequential:
    """Three convolutions with 16, 32 and 64 channels, for 28x28 or 8x8 images; about 24,000 parameters."""
    with seeded_init(seed, num_classes=num_classes, in_channels=in_channels):
        layers: list[nn.Module] = []
        width = in_channels
        for next_width, pool in ((16, True), (32, True), (64, False)):
            layers += [nn.Conv2d(width, next_width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(next_width), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pool else []
            width = next_width
        return he_init(nn.Sequential(*layers, *pooled_head(width, num_classes)))


def mlp(
    in_features: int, num_classes: int, hidden: Sequence[int] = (256, 256), *, seed: int | None = None
) -> nn.Sequential:
    """Fully connected network with ReLU; flattens its input first, so it also takes images."""
    with seeded_init(seed, in_features=in_features, num_classes=num_classes, hidden=hidden):
        layers: list[nn.Module] = [nn.Flatten()]
        width = in_features
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        return nn.Sequential(*layers, nn.Linear(width, num_classes))
