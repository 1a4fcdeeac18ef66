"""The methods, one small file each, behind a plain dict."""

from vri.methods.base import Method
from vri.methods.cross_entropy import CleanOnly, CrossEntropy, FineTuned
from vri.methods.vri import VRI

METHODS: dict[str, type[Method]] = {
    "cross-entropy": CrossEntropy,
    "clean-only": CleanOnly,
    "fine-tuned": FineTuned,
    "vri": VRI,
}

__all__ = ["METHODS", "VRI", "CleanOnly", "CrossEntropy", "FineTuned", "Method"]
