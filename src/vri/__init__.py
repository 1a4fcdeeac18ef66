"""Train any PyTorch classifier on wrongly labelled data: Variational Rectification Inference."""

from typing import TYPE_CHECKING, Any

from vri import backbones, data, noise, quality
from vri.methods import METHODS, VRI, CleanOnly, CrossEntropy, FineTuned, Method
from vri.training.loop import evaluate, train
from vri.training.selection import Selection

if TYPE_CHECKING:
    from vri.estimator import VRIClassifier, find_label_issues

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
    "find_label_issues",
    "noise",
    "quality",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import scikit-learn and pandas only when they are used."""
    if name in ("VRIClassifier", "find_label_issues"):
        from vri import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
