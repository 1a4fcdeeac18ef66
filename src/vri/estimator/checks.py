"""What `VRIClassifier` refuses, all mistakes at once."""

import inspect
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vri.estimator import ensemble, own_estimator
from vri.estimator.labels import MISSING, UNLABELLED, Indices, Mask
from vri.methods import METHODS
from vri.methods.options import must_be, one_of, useless
from vri.training.selection import KINDS

_NETWORK_ONLY = (
    "module",
    "method",
    "method_options",
    "hidden",
    "epochs",
    "batch_size",
    "lr",
    "weight_decay",
    "validation_fraction",
    "selection",
    "evidence",
    "checkpoint_dir",
)


class OddDataWarning(UserWarning):
    """Something about the data is most probably a mistake."""


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
        *one_of("unlabelled", c.unlabelled, UNLABELLED),
        *_evidence(c),
        *_estimator(c),
        *_device(c.device),
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


def _estimator(c: Any) -> list[str]:
    """Mistakes of an estimator of the user's, and settings that would have no effect beside it."""
    if c.estimator is None:
        return []
    reason = own_estimator.check(c.estimator)
    if reason is not None:
        return [reason]
    defaults = inspect.signature(type(c)).parameters
    others = {name: getattr(c, name) for name in _NETWORK_ONLY}
    changed = [name for name, value in others.items() if value is not defaults[name].default]
    found = useless(others, [name for name in changed if others[name] != defaults[name].default], "estimator is set")
    return found + must_be("cross_fit", 0, c.cross_fit != 0, "None or at least 2 with an estimator")


def _device(name: str) -> list[str]:
    if name == "auto":
        return []
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        return [f"device={name!r} (expected 'auto', 'cpu', or a device of this machine; torch says: {reason})"]
    return []


def labelled(given: Indices, trusted: Mask | None) -> Mask:
    """(n,) which samples have a label; a trusted one must."""
    found: Mask = given != MISSING
    if trusted is not None and not found[trusted].all():
        raise ValueError(
            f"sample {int((trusted & ~found).argmax())} is trusted, but has no label; expected only labels that are "
            "known to be right to be trusted"
        )
    return found


def about_text(X: Any, error: ValueError) -> ValueError:
    """The error of scikit-learn, with the column of X that is not numbers."""
    if "could not convert" not in str(error):
        return error
    if np.ndim(X) == 1:
        return ValueError(
            "X is a list of texts; expected a table of numbers: put a TfidfVectorizer before the classifier with "
            "sklearn.pipeline.make_pipeline, or pass a pipeline for texts as estimator="
        )
    names = list(getattr(X, "columns", range(np.shape(X)[1])))
    for place, name in enumerate(names):
        column = np.asarray(X[name] if hasattr(X, "columns") else np.asarray(X, object)[:, place], object)
        for value in column:
            try:
                float(value)
            except (TypeError, ValueError):
                return ValueError(
                    f"column {name!r} of X has the value {value!r}; expected numbers: make a column of 0 and 1 of each "
                    "category (pandas.get_dummies), or leave the column out"
                )
    return error


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
