"""Classifiers for images and vectors: plain modules that return logits and end in an `nn.Linear`.

Every factory takes `seed`. With a number, the initial weights are the same at every call and the global RNG is not
touched; with ``None`` they come from the global RNG, as for any PyTorch module.
"""

from vri.backbones.fastnet import FastNet, fast
from vri.backbones.large import resnet50, vgg19_bn
from vri.backbones.names import BACKBONES, build
from vri.backbones.residual import (
    BasicBlock,
    Bottleneck,
    PreActBlock,
    ResNet,
    preact_resnet18,
    preact_resnet34,
    resnet18,
    resnet32,
    resnet34,
    wide_resnet28_10,
)
from vri.backbones.small import mlp, small_cnn
from vri.backbones.weights import load_weights

__all__ = [
    "BACKBONES",
    "BasicBlock",
    "Bottleneck",
    "FastNet",
    "PreActBlock",
    "ResNet",
    "build",
    "fast",
    "load_weights",
    "mlp",
    "preact_resnet18",
    "preact_resnet34",
    "resnet18",
    "resnet32",
    "resnet34",
    "resnet50",
    "small_cnn",
    "vgg19_bn",
    "wide_resnet28_10",
]
