"""What `VRIClassifier` refuses, all mistakes at once."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.estimator import ensemble
from vri.estimator.labels import Indices, Mask
from vri.methods import METHODS
from vri.methods.options import must_be, one_of
from vri.training.selection import KINDS


def settings(classifier: Any) -> None:
    """Raise a ValueError that names every setting it can't use."""
    c = classifier
    k = c.cross_fit
    mistakes = [
        *one_of("method", c.method, METHODS),
        *one_of("selection", c.selection, ("auto", *KINDS)),
        *must_be("lr", c.lr, c.lr is None or c.lr > 0, "None, or more than 0"),
        *must_be("weight_decay", c.weight_decay, c.weight_decay >= 0, "0 or more"),
        *must_be("validation_fraction", c.validation_fraction, 0 <= c.validation_fraction < 1, "0 to below 1"),
        *must_be("precision", c.precision, 0 < c.precision < 1, "between 0 and 1"),
        *must_be("epochs", c.epochs, c.epochs is None or c.epochs >= 1, "None, or at least 1"),
        *must_be("batch_size", c.batch_size, c.batch_size is None or c.batch_size >= 1, "None, or at least 1"),
        *must_be("cross_fit", k, k is None or k == 0 or k >= 2, "None, 0, or at least 2"),
        *_evidence(c),
    ]
    if mistakes:
        raise ValueError("VRIClassifier got settings it can't use: " + "; ".join(mistakes))


def _evidence(c: Any) -> list[str]:
    names = [c.evidence] if isinstance(c.evidence, str) else list(c.evidence)
    known = ("auto", *ensemble.NAMES) if isinstance(c.evidence, str) else ensemble.NAMES
    fine = bool(names) and all(name in known for name in names)
    found = list(must_be("evidence", c.evidence, fine, f'"auto", or names out of {", ".join(ensemble.NAMES)}'))
    alone = names in (["auto"], [ensemble.NETWORK]) or c.module is not None
    if c.cross_fit == 0 and fine and not alone:
        found += must_be("cross_fit", 0, False, f"None or at least 2 with evidence={c.evidence!r}")
    return found


def usable(mask: Mask | None, given: Indices, classes: NDArray[Any]) -> Mask | None:
    """The trusted samples, if they have every class; else none, with a warning."""
    if mask is None:
        return None
    missing = np.setdiff1d(np.arange(len(classes)), given[mask])
    if not len(missing):
        return mask
    names = ", ".join(repr(name) for name in classes[missing[:5]].tolist())
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    warnings.warn(
        f"no trusted sample has the label {names}{more}: expected at least one of each class, so the classifier "
        "learns as if nothing was trusted; trust some samples of every class",
        stacklevel=3,
    )
    return None
