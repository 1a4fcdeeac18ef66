"""Learning without trusted samples: which training samples take their place (Algorithm 2).

Networks learn right labels before wrong ones, so samples with a small loss are likely to be right. The selection uses
the losses of all training samples at the beginning of an epoch.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_UNLEARNED = 0.9  # share of log(c), the loss of guessing, above which even small losses mean nothing
_SHARE = 2  # one sample in this many is selected
_WARM_UP = (4, 10)  # one epoch in 4 is warm-up, but at most 10 epochs
_LOW, _HIGH = 0.005, 0.995  # quantiles between which the mixture is fitted: one outlier would be a component


@dataclass(frozen=True)
class Selection:
    """How to select samples that take the place of trusted ones.

    Attributes:
        kind: "balanced", the same number from each class, VRI(+); "proportional" to the number of its labels, for
            classes of very different sizes; "smallest", the smallest losses overall, VRI(−); or "mixture",
            all samples that a mixture of two Gaussians on the losses considers right, VRI(Aug.).
        size: M, how many; by default half of the training set. The paper takes 1,000: these are the purest, but also
            the easiest samples, which say little about the others. "mixture" determines the number itself.
        warm_up: epochs of plain cross-entropy before the first selection; by default a quarter of all, at most 10
            (the paper's number for CIFAR-10; it takes 30 for CIFAR-100), before wrong labels are memorised.
        names: of the classes, for remarks; their numbers if not given.
    """

    kind: str = "balanced"
    size: int | None = None
    warm_up: int | None = None
    names: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        wrong = []
        if self.kind not in KINDS:
            wrong.append(f"kind={self.kind!r} (expected one of {', '.join(KINDS)})")
        if self.size is not None and self.size < 1:
            wrong.append(f"size={self.size} (expected at least 1)")
        if self.warm_up is not None and self.warm_up < 0:
            wrong.append(f"warm_up={self.warm_up} (expected 0 or more)")
        if wrong:
            raise ValueError("Selection got options it can't use: " + "; ".join(wrong))

    def sized(self, samples: int, epochs: int) -> "SizedSelection":
        """The selection with defaults replaced by numbers, for this many training samples and epochs."""
        size = max(1, samples // _SHARE) if self.size is None else self.size
        warm_up = max(1, min(epochs // _WARM_UP[0], _WARM_UP[1])) if self.warm_up is None else self.warm_up
        if size > samples:
            raise ValueError(f"selection of size={size} from {samples} training samples: expected no more; lower size")
        if warm_up >= epochs:
            raise ValueError(
                f"warm_up={warm_up} of {epochs} epochs: expected fewer, so that some are left to learn with the "
                "selected samples; lower warm_up or raise epochs"
            )
        return SizedSelection(self.kind, size, warm_up, self.names)


@dataclass(frozen=True)
class SizedSelection:
    """A selection with all numbers set."""

    kind: str
    size: int
    warm_up: int
    names: Sequence[Any] | None = None

    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {"selection": self.kind, "selection size": self.size, "warm_up": self.warm_up}


@dataclass(frozen=True, eq=False)
class Selected:
    """The samples selected for an epoch, and how good they are."""

    index: Tensor  # their numbers, ascending
    # `selected`, how many; `selected_share` of the training set; `selection_balance`, the entropy of their labels
    # relative to that of equally frequent classes; `selected_classes`, how many classes occur;
    # `selection_purity`, the share of right labels, where they are known
    scores: dict[str, float]
    remark: str | None  # what the user should know, such as a class with too few samples; or None


def select(
    selection: SizedSelection, losses: Tensor, labels: Tensor, num_classes: int, true_labels: Tensor | None = None
) -> Selected:
    """Select samples by their losses.

    A class with fewer samples than asked for contributes all it has; one without any is left out. A remark says so.

    `losses` and `labels` (n,) are those of the training samples; `true_labels`, if known, tell how many of the selected
    ones are right.
    """
    finite = losses.isfinite()
    if not bool(finite.any()):
        raise ValueError("no training sample has a finite loss: expected a trained classifier; lower the learning rate")
    losses = torch.where(finite, losses, losses[finite].max()).double()
    index = KINDS[selection.kind](losses, labels, num_classes, selection.size).sort().values
    counts = torch.bincount(labels[index], minlength=num_classes)
    scores = {
        "selected": float(len(index)),
        "selected_share": len(index) / len(labels),
        "selected_classes": float((counts > 0).sum()),
        "selection_balance": _balance(counts),
    }
    if true_labels is not None:
        scores["selection_purity"] = float((labels == true_labels)[index].double().mean())
    available = torch.bincount(labels, minlength=num_classes)
    return Selected(
        index, scores, _remark(selection, counts, available, float(losses.kthvalue(1 + len(losses) // 10).values))
    )


def smallest(losses: Tensor, labels: Tensor, num_classes: int, size: int) -> Tensor:
    """The `size` smallest losses overall."""
    return losses.argsort(stable=True)[:size]


def balanced(losses: Tensor, labels: Tensor, num_classes: int, size: int) -> Tensor:
    """The smallest losses of each class, the same number from each; a remainder goes to the first classes."""
    whole, rest = divmod(size, num_classes)
    return _smallest_of_each(losses, labels, [whole + (k < rest) for k in range(num_classes)])


def proportional(losses: Tensor, labels: Tensor, num_classes: int, size: int) -> Tensor:
    """The smallest losses of each class, in proportion to its labels; one at least.

    Where classes are of very different sizes, `balanced` asks a rare class for more samples than it has right ones.
    """
    counts = torch.bincount(labels, minlength=num_classes).tolist()
    return _smallest_of_each(losses, labels, [max(1, round(size * count / len(labels))) for count in counts])


def _smallest_of_each(losses: Tensor, labels: Tensor, takes: Sequence[int]) -> Tensor:
    members = [(labels == k).nonzero().squeeze(1) for k in range(len(takes))]
    return torch.cat([m[losses[m].argsort(stable=True)[:take]] for m, take in zip(members, takes, strict=True)])


def mixture(losses: Tensor, labels: Tensor, num_classes: int, size: int) -> Tensor:
    """All samples that belong to the lower of two Gaussians on the losses rather than to the upper one.

    If all losses are alike, this falls back to `balanced`.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    values = losses.cpu().numpy()
    low, high = np.quantile(values, [_LOW, _HIGH])
    if not high > low:
        return balanced(losses, labels, num_classes, size)
    scaled = ((np.clip(values, low, high) - low) / (high - low))[:, None]
    model = GaussianMixture(2, reg_covar=1e-4, max_iter=100, means_init=[[0.0], [1.0]], random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scaled)
    lower = int(model.means_[:, 0].argmin())
    right = model.predict_proba(scaled)[:, lower] > 0.5
    # far below the narrow Gaussian the wide one may be likelier again; but a smaller loss never means less right
    if right.any():
        right = values <= values[right].max()
    index = torch.from_numpy(right).nonzero().squeeze(1)
    return index if len(index) else balanced(losses, labels, num_classes, size)


KINDS: dict[str, Callable[[Tensor, Tensor, int, int], Tensor]] = {
    "balanced": balanced,
    "proportional": proportional,
    "smallest": smallest,
    "mixture": mixture,
}


def _balance(counts: Tensor) -> float:
    if len(counts) < 2:
        return 1.0
    shares = counts[counts > 0].double() / counts.sum()
    return float(-(shares * shares.log()).sum() / math.log(len(counts)))


def _remark(selection: SizedSelection, counts: Tensor, available: Tensor, loss: float) -> str | None:
    """What is unusual about a selection, in one line."""
    num_classes = len(counts)
    parts = []
    if loss > _UNLEARNED * math.log(num_classes):
        parts.append(
            f"nine tenths of the training losses are above {loss:.2f}, near the {math.log(num_classes):.2f} of "
            "guessing: the classifier has hardly learned yet, and small losses mean little; raise warm_up or the "
            "learning rate"
        )
    gone = (available == 0).nonzero().squeeze(1).tolist()
    missing = ((available > 0) & (counts == 0)).nonzero().squeeze(1).tolist()
    few: list[int] = []
    if selection.kind == "balanced":
        wanted = selection.size // num_classes
        few = ((available > 0) & (available < wanted)).nonzero().squeeze(1).tolist()
    if gone:
        parts.append(f"no training sample has label {_names(gone, selection.names)}")
    if missing:
        parts.append(f"none of label {_names(missing, selection.names)} was selected")
    if few:
        parts.append(
            f"label {_names(few, selection.names)} has fewer samples than the {selection.size // num_classes} asked for"
        )
    return "; ".join(parts) or None


def _names(classes: list[int], names: Sequence[Any] | None) -> str:
    shown = ", ".join(repr(k if names is None else names[k]) for k in classes[:5])
    return shown if len(classes) <= 5 else f"{shown} and {len(classes) - 5} more"
