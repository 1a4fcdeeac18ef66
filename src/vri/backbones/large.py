"""Classifiers for larger images: ResNet-50, which can start from ImageNet weights, and VGG-19."""

from pathlib import Path

from torch import nn

from vri.backbones.parts import he_init, pooled_head, seeded_init
from vri.backbones.residual import Bottleneck, ResNet
from vri.backbones.weights import load_weights

_VGG19 = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))  # (convolutions, channels) before each pooling


def resnet50(
    num_classes: int = 10,
    in_channels: int = 3,
    *,
    seed: int | None = None,
    weights: str | Path | None = None,
) -> ResNet:
    """ResNet-50 for images of about 224x224, with the same names and strides as torchvision's and timm's.

    Args:
        num_classes: logits.
        in_channels: channels of the images.
        seed: of the initial weights.
        weights: file with ImageNet weights, from torchvision (``resnet50-0676ba61.pth``, ``-11ad3fa6.pth``) or timm;
            see `load_weights`. A last layer for a different number of classes is not loaded.
    """
    with seeded_init(seed, num_classes=num_classes, in_channels=in_channels):
        model = he_init(ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels, large_images=True))
    if weights is not None:
        load_weights(model, weights)
    return model


def vgg19_bn(num_classes: int = 10, in_channels: int = 3, *, seed: int | None = None) -> nn.Sequential:
    """VGG-19 with BatchNorm, for images of 32x32 and more, such as the 64x64 ones of ANIMAL-10N.

    Simonyan and Zisserman, "Very deep convolutional networks" (2015). The head is one linear layer on the mean of the
    last feature maps: the paper's three layers of 4096 units are made for 7x7 maps and would hold 124 of 144
    million parameters.
    """
    with seeded_init(seed, num_classes=num_classes, in_channels=in_channels):
        layers: list[nn.Module] = []
        width = in_channels
        for count, stage_width in _VGG19:
            for _ in range(count):
                layers += [nn.Conv2d(width, stage_width, 3, padding=1), nn.BatchNorm2d(stage_width), nn.ReLU()]
                width = stage_width
            layers.append(nn.MaxPool2d(2))
        model = he_init(nn.Sequential(*layers, *pooled_head(width, num_classes)))
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)  # BatchNorm cancels it
    return model
