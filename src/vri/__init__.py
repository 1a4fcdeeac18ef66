"""Train any PyTorch classifier on wrongly labelled data: Variational Rectification Inference."""

from vri import backbones, data, noise, quality
from vri.estimator import VRIClassifier
from vri.methods import METHODS, VRI, CleanOnly, CrossEntropy, FineTuned, Method
from vri.selection import Selection
from vri.training import evaluate, train

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "VRI",
    "CleanOnly",
    "CrossEntropy",
    "FineTuned",
    "Method",
    "Selection",
    "VRIClassifier",
    "backbones",
    "data",
    "evaluate",
    "noise",
    "quality",
    "train",
]
