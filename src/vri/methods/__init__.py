"""The methods, one small file each, behind a plain dict."""

from collections.abc import Callable

from vri.methods.base import Method
from vri.methods.cross_entropy import CleanOnly, CrossEntropy, FineTuned
from vri.methods.vri import VRI

METHODS: dict[str, Callable[..., Method]] = {
    "cross-entropy": CrossEntropy,
    "clean-only": CleanOnly,
    "fine-tuned": FineTuned,
    "vri": VRI,
}

__all__ = ["METHODS", "VRI", "CleanOnly", "CrossEntropy", "FineTuned", "Method"]
