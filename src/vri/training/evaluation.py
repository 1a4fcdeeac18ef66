"""How accurate a model is on a data set, and what it has learned from wrong labels."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset

from vri.core.model import evaluating, logits_of
from vri.data.batches import Batches, Data, Transform, length, take
from vri.training import distributed

_BATCH = 200  # activations of more images don't fit a CPU's cache: with 500 the small CNN takes twice as long
_ENOUGH = 10_000  # samples that tell what is memorised to half a percent


def evaluate(
    model: nn.Module,
    dataset: Data,
    batch_size: int = _BATCH,
    device: torch.device | None = None,
    num_workers: int = 0,
    transform: Transform | None = None,
    divide: bool = False,
    autocast: torch.dtype | None = None,
) -> dict[str, float]:
    """Accuracy and mean cross-entropy of `model` on a data set; its layers keep their training or evaluation mode.

    With `divide`, each worker evaluates a part of the set, and all workers must call this.
    """
    sums = {"count": 0.0, "right": 0.0, "loss": 0.0}
    how: dict[str, Any] = {"batch_size": batch_size, "device": device, "num_workers": num_workers}
    outputs = predict_part if divide else predict
    for logits, labels in outputs(model, dataset, transform=transform, autocast=autocast, **how):
        sums["count"] += len(labels)
        sums["right"] += int((logits.argmax(1) == _indices(labels)).sum())
        sums["loss"] += float(functional.cross_entropy(logits, labels, reduction="sum"))
    if divide:
        sums = distributed.sums(sums)
    return {"accuracy": sums["right"] / sums["count"], "loss": sums["loss"] / sums["count"]}


def memorisation(model: nn.Module, dataset: Data, true_labels: Tensor, **how: Any) -> dict[str, float | None]:
    """The shares of wrongly labelled samples that are predicted as their wrong and as their right label.

    None if no label is wrong. Of a large set an evenly spaced part is looked at. All workers must call this; `how` is
    as in `predict`.
    """
    if length(dataset) > _ENOUGH:
        chosen = torch.arange(_ENOUGH) * length(dataset) // _ENOUGH
        dataset, true_labels = take(dataset, chosen), true_labels[chosen.to(true_labels.device)]
    logits, labels = predict_all(model, dataset, **how)
    predicted, noisy_labels, right = logits.argmax(1), _indices(labels), true_labels.cpu()
    wrong = noisy_labels != right
    if not bool(wrong.any()):
        return {"memorised": None, "corrected": None}
    return {
        "memorised": float((predicted == noisy_labels)[wrong].double().mean()),
        "corrected": float((predicted == right)[wrong].double().mean()),
    }


def predict(
    model: nn.Module,
    dataset: Data,
    batch_size: int = _BATCH,
    device: torch.device | None = None,
    num_workers: int = 0,
    transform: Transform | None = None,
    autocast: torch.dtype | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (float64) and labels of all samples in order, batch by batch, on the CPU; `autocast` as in training."""
    device = next(model.parameters()).device if device is None else device
    in_order: dict[str, Any] = {"seed": 0, "shuffle": False, "drop_last": False}
    batches = Batches(dataset, batch_size, **in_order, num_workers=num_workers, device=device, transform=transform)
    with evaluating(model):
        for inputs, labels, *_ in batches.epoch(0):
            with torch.no_grad(), torch.autocast(device.type, autocast, enabled=autocast is not None):
                logits = logits_of(model, inputs)
            labels = labels.cpu()
            yield logits.cpu().double(), labels.double() if labels.is_floating_point() else labels.long()


def predict_part(model: nn.Module, dataset: Data, **how: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """`predict` for this worker's part of the samples; the parts in the order of the workers are the whole set.

    All workers use the buffers of the first, which are the ones that are saved.
    """
    if distributed.world() > 1:
        distributed.copy_from_first(model.buffers())
        rows = distributed.rows_of(length(dataset))
        if not rows:
            return
        nested = isinstance(dataset, Subset)
        # for a tuple of tensors too: `Batches` handles it without copying
        dataset = take(dataset, torch.tensor(rows)) if nested else Subset(cast(Any, dataset), rows)
    yield from predict(model, dataset, **how)


def predict_all(model: nn.Module, dataset: Data, **how: Any) -> tuple[Tensor, Tensor]:
    """Logits and labels of all samples in order, on every worker: each predicts its part. `how` is as in `predict`."""
    outputs = list(predict_part(model, dataset, **how))
    logits, labels = (distributed.gather(torch.cat(parts)) for parts in zip(*outputs, strict=True))
    return logits, labels


def _indices(labels: Tensor) -> Tensor:
    return labels.argmax(1) if labels.is_floating_point() else labels
