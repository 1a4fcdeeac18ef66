"""`VRIClassifier`: learning from wrong labels, and finding them, as scikit-learn has it."""

from vri.estimator.classifier import VRIClassifier
from vri.estimator.issues import find_label_issues

__all__ = ["VRIClassifier", "find_label_issues"]
