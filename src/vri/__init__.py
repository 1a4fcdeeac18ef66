"""Train any PyTorch classifier on wrongly labelled data: Variational Rectification Inference."""

from vri import backbones, noise
from vri.methods import METHODS, VRI, CleanOnly, CrossEntropy, FineTuned, Method

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "VRI",
    "CleanOnly",
    "CrossEntropy",
    "FineTuned",
    "Method",
    "backbones",
    "noise",
]
