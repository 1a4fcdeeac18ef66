"""`VRIClassifier`: learning from wrong labels, and finding them, as scikit-learn has it."""

from vri.estimator.classifier import VRIClassifier

__all__ = ["VRIClassifier"]
