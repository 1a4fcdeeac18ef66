"""Label-noise models: given the right labels, draw wrong ones.

All models in `NOISES` share one signature, ``model(x, y, *, num_classes, rate, seed=0)``, so they are interchangeable.
Only `instance` uses the inputs `x`; the others also accept ``None``. Every call draws from its own generator, seeded
with `seed`: the same call gives the same labels, and the global RNG is not touched. Results are on the CPU.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vri.noise.result import ArrayLike, Noise, as_labels

_INSTANCE_SD = 0.1  # spread of the per-sample noise rates, as in Xia et al. (2020)
_CHUNK_ELEMENTS = 2**24  # input values converted to float32 at a time: 64 MB


def uniform(x: ArrayLike | None, y: ArrayLike, *, num_classes: int, rate: float, seed: int = 0) -> Noise:
    """Draw a label from all classes with probability `rate`.

    The draw may return the original label, so the expected share of changed labels is rate * (1 - 1 / num_classes).
    """
    clean_labels = _check(x, y, num_classes, rate, fewest_classes=1)
    matrix = torch.full((num_classes, num_classes), rate / num_classes, dtype=torch.float64)
    matrix.diagonal().add_(1 - rate)
    noisy_labels = _draw_by_class(clean_labels, matrix, _generator(seed))
    return _noise(clean_labels, noisy_labels, matrix, "uniform", rate, seed)


def flip(x: ArrayLike | None, y: ArrayLike, *, num_classes: int, rate: float, seed: int = 0) -> Noise:
    """Replace a label with probability `rate` by one other class, chosen at random for each class.

    The class map depends only on `seed` and `num_classes`, not on the labels.
    """
    clean_labels = _check(x, y, num_classes, rate, fewest_classes=2)
    generator = _generator(seed)
    # A shift of 1..c-1 reaches every other class with the same probability.
    shift = torch.randint(1, num_classes, (num_classes,), generator=generator)
    target = (torch.arange(num_classes) + shift) % num_classes
    matrix = _one_target_matrix(target, rate)
    return _noise(clean_labels, _draw_by_class(clean_labels, matrix, generator), matrix, "flip", rate, seed)


def pair(x: ArrayLike | None, y: ArrayLike, *, num_classes: int, rate: float, seed: int = 0) -> Noise:
    """Replace a label i with probability `rate` by (i + 1) mod num_classes."""
    clean_labels = _check(x, y, num_classes, rate, fewest_classes=2)
    matrix = _pair_matrix(num_classes, rate)
    return _noise(clean_labels, _draw_by_class(clean_labels, matrix, _generator(seed)), matrix, "pair", rate, seed)


def instance(x: ArrayLike | None, y: ArrayLike, *, num_classes: int, rate: float, seed: int = 0) -> Noise:
    """Draw wrong labels that depend on the input, as in Xia et al., "Part-dependent label noise" (2020).

    Sample i has its own noise rate q_i, from a normal with mean `rate` and standard deviation 0.1 truncated
    to [0, 1], and its own wrong classes: softmax of x_i W[y_i] over the classes other than y_i, W standard
    normal. At rates 0 and 1 every q_i is the rate itself, so that none or all of the labels change. Near these two,
    truncation pulls the realised rate inwards (rate 0.05 changes about a tenth of the labels).

    Inputs may have any shape after the first axis and are flattened. They are used as given: the published
    noise takes raw images with values 0 to 255 (uint8), where the softmax nearly always picks one class;
    floats in [0, 1] give softer choices and thus different noise.

    W depends only on `seed`, `num_classes` and the input size, not on the number of samples. `Noise.matrix` is the mean
    of the samples' distributions, class by class; a class without samples has a row of the identity.
    """
    clean_labels = _check(x, y, num_classes, rate, fewest_classes=2)
    if x is None:
        raise ValueError("x is None; instance noise expected the inputs: pass the images the labels belong to")
    generator = _generator(seed)
    wrong = _wrong_class_shares(_as_rows(x), clean_labels, num_classes, generator)  # n x c
    flip_rates = _flip_rates(len(clean_labels), rate, generator)  # n
    probabilities = _mix(wrong, clean_labels, flip_rates)  # n x c
    uniforms = torch.rand(len(clean_labels), 1, dtype=torch.float64, generator=generator)

    noisy_labels = _invert(probabilities.cumsum(1), uniforms).squeeze(1)
    counts = torch.bincount(clean_labels, minlength=num_classes)
    total = torch.zeros(num_classes, num_classes, dtype=torch.float64).index_add_(0, clean_labels, probabilities)
    return _noise(clean_labels, noisy_labels, _mean_rows(total, counts), "instance", rate, seed)


def open_set(
    x: ArrayLike | None, y: ArrayLike, *, num_classes: int, rate: float, seed: int = 0, kind: str = "uniform"
) -> Noise:
    """Give samples that belong to none of the classes a random label, and draw wrong labels for the others: CIFAR-80N.

    A sample with a label of `num_classes` or more is out of distribution: it gets a label from 0 to num_classes - 1,
    each with the same probability, and counts as changed. A label i of the others is replaced with probability `rate`:
    by any other class, each with the same probability (kind "uniform"), or by (i + 1) mod num_classes (kind "pair").
    `Noise.matrix` covers the classes themselves.
    """
    if kind not in ("uniform", "pair"):
        raise ValueError(f"kind is {kind!r}; expected 'uniform' or 'pair': choose one of them")
    true_labels = _check(x, y, num_classes, rate, fewest_classes=2, open_set=True)
    if kind == "pair":
        matrix = _pair_matrix(num_classes, rate)
    else:
        matrix = torch.full((num_classes, num_classes), rate / (num_classes - 1), dtype=torch.float64)
        matrix.fill_diagonal_(1 - rate)
    generator = _generator(seed)
    noisy_labels = _draw_by_class(true_labels, matrix, generator)
    strange = true_labels >= num_classes
    noisy_labels[strange] = torch.randint(num_classes, (int(strange.sum()),), generator=generator)
    return _noise(true_labels, noisy_labels, matrix, f"open-{kind}", rate, seed)


def human(x: ArrayLike | None, y: ArrayLike, *, num_classes: int, labels: ArrayLike) -> Noise:
    """Use the labels that people gave; `Noise.matrix` holds how often they took class i for class j.

    A class without samples has a row of the identity.
    """
    clean_labels = _check(x, y, num_classes, 0.0, fewest_classes=1)
    noisy_labels = as_labels(labels, num_classes)
    if len(noisy_labels) != len(clean_labels):
        raise ValueError(
            f"there are {len(noisy_labels)} human labels and {len(clean_labels)} right ones; expected as many: "
            "pass one label per sample"
        )
    pairs = torch.bincount(clean_labels * num_classes + noisy_labels, minlength=num_classes**2)
    total = pairs.view(num_classes, num_classes).double()
    matrix = _mean_rows(total, torch.bincount(clean_labels, minlength=num_classes))
    return _noise(clean_labels, noisy_labels, matrix, "human")


NOISES: dict[str, Callable[..., Noise]] = {
    "uniform": uniform,
    "flip": flip,
    "pair": pair,
    "instance": instance,
    "open-uniform": partial(open_set, kind="uniform"),
    "open-pair": partial(open_set, kind="pair"),
}


def _check(
    x: ArrayLike | None,
    y: ArrayLike,
    num_classes: int,
    rate: float,
    *,
    fewest_classes: int,
    open_set: bool = False,
) -> Tensor:
    """Validate the arguments common to all models and return the labels as a tensor."""
    if num_classes < fewest_classes:
        raise ValueError(
            f"num_classes is {num_classes}; expected at least {fewest_classes}: pass the number of classes"
        )
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; expected 0 to 1: pass a share, such as 0.4 for 40 %")
    labels = as_labels(y, None if open_set else num_classes)
    if x is not None and len(x) != len(labels):
        raise ValueError(f"x has {len(x)} samples and y {len(labels)}; expected as many: pass one label per sample")
    return labels


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _noise(
    clean_labels: Tensor,
    noisy_labels: Tensor,
    matrix: Tensor,
    name: str,
    asked_rate: float | None = None,
    seed: int | None = None,
) -> Noise:
    changed = noisy_labels != clean_labels
    return Noise(noisy_labels, changed, matrix, changed.double().mean().item(), name, asked_rate, seed)


def _mean_rows(total: Tensor, counts: Tensor) -> Tensor:
    """Divide row i by counts[i]; a row without counts becomes that of the identity."""
    matrix = total / counts.clamp(min=1)[:, None]
    matrix.diagonal()[counts == 0] = 1.0
    return matrix


def _pair_matrix(num_classes: int, rate: float) -> Tensor:
    return _one_target_matrix((torch.arange(num_classes) + 1) % num_classes, rate)


def _one_target_matrix(target: Tensor, rate: float) -> Tensor:
    """Transition matrix that keeps class i with 1 - rate and moves it to target[i] with rate."""
    classes = torch.arange(len(target))
    matrix = torch.zeros(len(target), len(target), dtype=torch.float64)
    matrix[classes, classes] = 1 - rate
    matrix[classes, target] = rate
    return matrix


def _draw_by_class(clean_labels: Tensor, matrix: Tensor, generator: torch.Generator) -> Tensor:
    """Draw each noisy label from its class's row of `matrix`; labels without a row stay."""
    uniforms = torch.rand(len(clean_labels), dtype=torch.float64, generator=generator)
    noisy_labels = clean_labels.clone()
    # Class by class: matrix[clean_labels] would be n x c, too much for many samples of many classes.
    for k, cumulative in enumerate(matrix.cumsum(1)):
        members = clean_labels == k
        noisy_labels[members] = _invert(cumulative, uniforms[members])
    return noisy_labels


def _invert(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """The class whose interval of the cumulative distribution contains each uniform number."""
    # right=True skips classes of probability 0; the clamp is for a sum that rounding left below 1.
    found = torch.searchsorted(cumulative, uniforms, right=True)
    return found.clamp(max=cumulative.shape[-1] - 1)


def _as_rows(x: ArrayLike) -> Tensor:
    """View inputs as n x d, without a copy if the memory layout allows it."""
    if not isinstance(x, Tensor):
        array = np.ascontiguousarray(x)
        x = torch.from_numpy(array if array.flags.writeable else array.copy())
    return x.detach().reshape(len(x), -1)


def _wrong_class_shares(rows: Tensor, clean_labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
    """Softmax of x_i W[y_i] without the sample's own class: float64, n x c, rows sum to 1."""
    n, d = rows.shape
    step = max(1, _CHUNK_ELEMENTS // max(1, d))
    shares = torch.empty(n, num_classes, dtype=torch.float64)
    for k in range(num_classes):
        # One slice at a time: the whole c x d x c tensor W would not fit for large images. Drawn for absent classes
        # too, so that a class gets the same slice whichever others are present.
        weight = torch.randn(d, num_classes, generator=generator)
        members = (clean_labels == k).nonzero().squeeze(1)
        for start in range(0, len(members), step):
            chunk = members[start : start + step]
            logits = rows[chunk].to("cpu", torch.float32) @ weight  # chunk x c
            if not logits.isfinite().all():
                raise ValueError("x holds NaN or infinite values; expected finite inputs: clean or rescale them")
            logits[:, k] = -torch.inf
            shares[chunk] = logits.double().softmax(1)
    return shares


def _flip_rates(n: int, rate: float, generator: torch.Generator) -> Tensor:
    """Draw n noise rates from a normal truncated to [0, 1], by inverting its distribution function."""
    uniforms = torch.rand(n, dtype=torch.float64, generator=generator)
    if rate in (0, 1):
        return torch.full_like(uniforms, rate)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    low, high = torch.special.ndtr((ends - rate) / _INSTANCE_SD)
    standard: Tensor = torch.special.ndtri(low + uniforms * (high - low))
    return (rate + _INSTANCE_SD * standard).clamp(0, 1)


def _mix(wrong: Tensor, clean_labels: Tensor, flip_rates: Tensor) -> Tensor:
    """The distribution of each sample: q_i times the wrong classes' shares, 1 - q_i on its own class."""
    probabilities = wrong * flip_rates[:, None]
    return probabilities.scatter_(1, clean_labels[:, None], (1 - flip_rates)[:, None])
