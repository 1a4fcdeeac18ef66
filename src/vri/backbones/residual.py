"""Residual networks: for 32x32 images, and the class `ResNet` that the one for large images shares.

He et al., "Deep residual learning for image recognition" (2016); He et al., "Identity mappings in deep
residual networks" (2016); Zagoruyko and Komodakis, "Wide residual networks" (2016).
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

from vri.backbones.parts import he_init, pooled_head, seeded_init

# BatchNorm after each convolution (post-activation). Layers have the names that files of ImageNet weights use.


class BasicBlock(nn.Module):
    """Two 3x3 convolutions added to a shortcut, ReLU after the sum."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map n x in x h x w to n x width x h/stride x w/stride."""
        out = relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions added to a shortcut, ReLU after the sum; outputs four times `width` channels.

    The 3x3 convolution has the stride, as in the usual ImageNet weights ("v1.5"); in the paper the first one has it.
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _projection(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map n x in x h x w to n x 4 width x h/stride x w/stride."""
        out = relu(self.bn1(self.conv1(x)))
        out = relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return relu(out + (x if self.downsample is None else self.downsample(x)))


def _projection(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """The shortcut: a projection if the shape changes, else the input itself."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class ResNet(nn.Module):
    """Four stages of 64, 128, 256 and 512 channels (times the block's expansion), each half as large as the last.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: blocks in each of the four stages.
        num_classes: logits.
        in_channels: channels of the images.
        large_images: start with a 7x7 convolution of stride 2 and max-pooling, which reduce a 224x224 image to 56x56;
            otherwise with a 3x3 convolution that keeps the size, as usual for 32x32 images.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        num_classes: int,
        in_channels: int = 3,
        *,
        large_images: bool = False,
    ) -> None:
        super().__init__()
        kernel, stride = (7, 2) if large_images else (3, 1)
        self.conv1 = nn.Conv2d(in_channels, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large_images else nn.Identity()
        width = 64
        for number, (depth, stage_width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True), 1):
            blocks = []
            for place in range(depth):
                blocks.append(block(width, stage_width, stride=2 if number > 1 and place == 0 else 1))
                width = stage_width * block.expansion
            setattr(self, f"layer{number}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of n x channels x h x w images."""
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def resnet18(num_classes: int = 10, in_channels: int = 3, *, seed: int | None = None) -> ResNet:
    """ResNet-18 for 32x32 images: 3x3 stem without pooling."""
    return _small_resnet((2, 2, 2, 2), num_classes, in_channels, seed)


def resnet34(num_classes: int = 10, in_channels: int = 3, *, seed: int | None = None) -> ResNet:
    """ResNet-34 for 32x32 images: 3x3 stem without pooling."""
    return _small_resnet((3, 4, 6, 3), num_classes, in_channels, seed)


def _small_resnet(depths: Sequence[int], num_classes: int, in_channels: int, seed: int | None) -> ResNet:
    with seeded_init(seed, num_classes=num_classes, in_channels=in_channels):
        return he_init(ResNet(BasicBlock, depths, num_classes, in_channels))


# BatchNorm and ReLU before each convolution (pre-activation).


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after BatchNorm and ReLU, added to a shortcut.

    He et al., "Identity mappings in deep residual networks" (2016). `dropout` is applied between the convolutions, as
    in wide residual networks.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = None if same_shape else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map n x in x h x w to n x out x h/stride x w/stride."""
        activated = relu(self.norm1(x))
        # The projection reads the activated input, as in the original; the identity passes x itself.
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        hidden = self.conv1(activated)
        out: Tensor = shortcut + self.conv2(self.dropout(relu(self.norm2(hidden))))
        return out


def resnet32(num_classes: int = 10, in_channels: int = 3, *, seed: int | None = None) -> nn.Sequential:
    """Pre-activation ResNet-32 with 16, 32 and 64 channels, five blocks per stage, for 32x32 images."""
    return _preact(16, ((5, 16), (5, 32), (5, 64)), num_classes, in_channels, seed)


def preact_resnet18(num_classes: int = 10, in_channels: int = 3, *, seed: int | None = None) -> nn.Sequential:
    """Pre-activation ResNet-18 for 32x32 images; BatchNorm and ReLU follow the last block."""
    return _preact(64, ((2, 64), (2, 128), (2, 256), (2, 512)), num_classes, in_channels, seed)


def preact_resnet34(num_classes: int = 10, in_channels: int = 3, *, seed: int | None = None) -> nn.Sequential:
    """Pre-activation ResNet-34 for 32x32 images; BatchNorm and ReLU follow the last block."""
    return _preact(64, ((3, 64), (4, 128), (6, 256), (3, 512)), num_classes, in_channels, seed)


def wide_resnet28_10(
    num_classes: int = 10, in_channels: int = 3, *, dropout: float = 0.0, seed: int | None = None
) -> nn.Sequential:
    """Wide ResNet of depth 28 and width 10: 160, 320 and 640 channels, four blocks per stage, for 32x32 images.

    `dropout` is the probability of dropping a value between the two convolutions of a block; the paper uses 0 or 0.3.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; expected 0 or more and below 1: pass a share, such as 0.3")
    return _preact(16, ((4, 160), (4, 320), (4, 640)), num_classes, in_channels, seed, dropout)


def _preact(
    stem: int,
    stages: Sequence[tuple[int, int]],  # (blocks, channels); all but the first halve the image
    num_classes: int,
    in_channels: int,
    seed: int | None,
    dropout: float = 0.0,
) -> nn.Sequential:
    with seeded_init(seed, num_classes=num_classes, in_channels=in_channels):
        layers: list[nn.Module] = [nn.Conv2d(in_channels, stem, 3, padding=1, bias=False)]
        width = stem
        for number, (depth, stage_width) in enumerate(stages):
            for place in range(depth):
                stride = 2 if number > 0 and place == 0 else 1
                layers.append(PreActBlock(width, stage_width, stride, dropout))
                width = stage_width
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        return he_init(nn.Sequential(*layers, *pooled_head(width, num_classes)))
