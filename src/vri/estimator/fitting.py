"""Train one classifier with no setting left to choose: how long, with what held out, and which epoch to keep."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vri.data.batches import Data, Transform
from vri.estimator import samples
from vri.estimator.beliefs import Beliefs
from vri.methods import METHODS, Method
from vri.training.early_stopping import KeepBest
from vri.training.loop import train
from vri.training.selection import Selection
from vri.training.state import History

_STEPS = (1000, 3000)  # least and most steps of a training whose length is not given
_EPOCHS = (15, 40)  # the more passes, the more wrong labels are memorised
_EPOCHS_NORMALISED = (15, 80)  # networks with batch normalisation, mostly for images, learn from more of them
_BATCH = (100, 256)
_PATIENCE = 5  # epochs, or a quarter of all where that is more: few steps make an epoch of small data
_LR, _LR_NORMALISED = 0.02, 0.1  # from scratch, the latter need more (docs/classifier.md)
_ENOUGH_TRUSTED = 100  # trusted samples from which on a part of them can be held out
_ENOUGH = 200  # samples from which on a part can be held out at all


@dataclass(frozen=True)
class Part:
    """Samples of one training: numbers into the whole."""

    train: Tensor
    clean: Tensor | None
    validation: Tensor | None


@dataclass(frozen=True)
class Fitted:
    """A trained method, with the weights of its best epoch.

    `beliefs` are the mean probabilities of the judged samples over the later epochs.
    """

    method: Method
    history: History
    beliefs: Tensor


def schedule(size: int, epochs: int | None, batch_size: int | None, normalised: bool = False) -> tuple[int, int]:
    """Epochs and batch size for so many training samples, where they are not given."""
    if batch_size is None:
        batch_size = int(min(max(size // 50, _BATCH[0]), _BATCH[1], math.ceil(size / 3)))
    if epochs is None:
        per_epoch = max(1, size // batch_size)
        fewest, most = math.ceil(_STEPS[0] / per_epoch), max(1, _STEPS[1] // per_epoch)
        least, longest = _EPOCHS_NORMALISED if normalised else _EPOCHS
        epochs = int(min(max(least, fewest), max(most, least), longest))
    return epochs, batch_size


def divide(
    labels: NDArray[np.int64], trusted: NDArray[np.bool_] | None, share: float, num_classes: int, seed: int
) -> Part:
    """Which samples to learn from, and which to hold out for choosing the epoch.

    Held out is a share of the trusted samples where there are enough of them, else of all. Trusted samples are
    learned from like all others, and are the clean set besides.
    """
    generator = np.random.default_rng(seed)
    everyone = np.arange(len(labels))
    known = everyone[:0] if trusted is None else everyone[trusted]
    held: NDArray[np.int64] = everyone[:0]
    from_trusted = len(known) >= max(_ENOUGH_TRUSTED, 10 * num_classes)
    if share > 0 and from_trusted:
        held = _stratified(known, labels, share, generator)
    elif share > 0 and len(labels) >= max(_ENOUGH, 10 * num_classes):
        held = _stratified(np.setdiff1d(everyone, known), labels, share, generator)
    clean = np.setdiff1d(known, held)
    return Part(
        torch.from_numpy(np.setdiff1d(everyone, held)),
        torch.from_numpy(clean) if len(clean) else None,
        torch.from_numpy(held) if len(held) else None,
    )


def fit_network(
    build: Callable[[], nn.Module],
    inputs: Any,
    labels: Tensor,
    part: Part,
    judged: Any,
    *,
    num_classes: int,
    method: str,
    options: Mapping[str, Any],
    epochs: int | None,
    batch_size: int | None,
    lr: float | None,
    weight_decay: float,
    selection: Selection | None,
    transform: Transform | None,
    device: torch.device,
    seed: int,
    folder: Path | None,
    progress: bool,
    remarks: list[str],
) -> Fitted:
    """Train, and end with the weights of the best epoch where samples are held out, see `KeepBest`.

    `judged` are the inputs whose labels are to be judged; these and `inputs` may be anything that `samples` knows.
    What the user may want to know goes to `remarks`.
    """
    model = build().to(device)
    if isinstance(inputs, Tensor) and inputs.dim() == 4:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # convolutions are faster in it
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if lr is None:
        lr = _LR_NORMALISED if normalised else _LR
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
    kind = METHODS[method]
    generator = torch.Generator().manual_seed(seed)
    trainer = kind(model, num_classes, optimizer, generator=generator, **options)
    epochs, batch_size = schedule(len(part.train), epochs, batch_size, normalised)

    def chosen(rows: Tensor) -> Data:
        return samples.with_labels(samples.part(inputs, rows), labels[rows])

    held = None if part.validation is None else chosen(part.validation)
    clean = None
    if part.clean is not None and (kind.needs_trusted or kind.can_select):
        clean = chosen(part.clean)
    beliefs = Beliefs(model, judged, epochs, transform, None if folder is None else folder / "beliefs.npz")
    history = train(
        trainer,
        chosen(part.train),
        clean,
        epochs=epochs,
        batch_size=batch_size,
        selection=selection if kind.can_select else None,  # beside clean samples, too
        validation_set=held,
        keep_best=None if held is None else KeepBest(max(_PATIENCE, epochs // 4)),
        seed=seed,
        out=folder,
        progress=progress,
        transform=transform,
        test_transform=transform,
        on_epoch=beliefs.note,
        on_remark=remarks.append,
    )
    model.eval()
    return Fitted(trainer, history, beliefs.mean())


def _stratified(
    members: NDArray[np.int64], labels: NDArray[np.int64], share: float, generator: np.random.Generator
) -> NDArray[np.int64]:
    """A share of the members of every class, at random; a class keeps at least one."""
    parts = []
    for k in np.unique(labels[members]):
        own = generator.permutation(members[labels[members] == k])
        parts.append(own[: min(round(share * len(own)), len(own) - 1)])
    found: NDArray[np.int64] = np.sort(np.concatenate(parts))
    return found
