"""Train any PyTorch classifier on wrongly labelled data: Variational Rectification Inference."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vri import backbones, data, encoders, noise, quality
    from vri.estimator import VRIClassifier, find_label_issues
    from vri.methods import METHODS, VRI, CleanOnly, CrossEntropy, FineTuned, Method
    from vri.training.loop import evaluate, train
    from vri.training.selection import Selection

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
    "encoders",
    "evaluate",
    "find_label_issues",
    "noise",
    "quality",
    "train",
]

_WHERE = {
    **dict.fromkeys(("METHODS", "VRI", "CleanOnly", "CrossEntropy", "FineTuned", "Method"), "vri.methods"),
    **dict.fromkeys(("evaluate", "train"), "vri.training.loop"),
    **dict.fromkeys(("VRIClassifier", "find_label_issues"), "vri.estimator"),
    "Selection": "vri.training.selection",
}


def __getattr__(name: str) -> Any:
    """Import torch, scikit-learn and pandas only when they are used: `vri --help` needn't wait for them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_WHERE[name]), name) if name in _WHERE else import_module(f"vri.{name}")
    globals()[name] = found
    return found
