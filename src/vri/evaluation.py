"""How good a model is on a data set, and what it made of wrong labels."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from vri.classifier import call
from vri.data.batches import Batches, Data, Transform


def evaluate(
    model: nn.Module,
    dataset: Data,
    batch_size: int = 500,
    device: torch.device | None = None,
    num_workers: int = 0,
    transform: Transform | None = None,
) -> dict[str, float]:
    """Accuracy and mean cross-entropy of `model` on a data set; the modes of its layers stay as they were."""
    count, right, loss = 0, 0, 0.0
    for logits, labels in predict(model, dataset, batch_size, device, num_workers, transform):
        count += len(labels)
        right += int((logits.argmax(1) == _indices(labels)).sum())
        loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": right / count, "loss": loss / count}


def memorisation(
    model: nn.Module,
    dataset: Data,
    true_labels: Tensor,
    batch_size: int = 500,
    device: torch.device | None = None,
    num_workers: int = 0,
    transform: Transform | None = None,
) -> dict[str, float | None]:
    """Of the wrongly labelled samples, the shares predicted as their wrong and as their right label.

    None where no label is wrong.
    """
    outputs = list(predict(model, dataset, batch_size, device, num_workers, transform))
    predicted = torch.cat([logits.argmax(1) for logits, _ in outputs])
    noisy_labels = torch.cat([_indices(labels) for _, labels in outputs])
    right = true_labels.cpu()
    wrong = noisy_labels != right
    if not bool(wrong.any()):
        return {"memorised": None, "corrected": None}
    return {
        "memorised": float((predicted == noisy_labels)[wrong].double().mean()),
        "corrected": float((predicted == right)[wrong].double().mean()),
    }


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Afterwards each layer is in training or evaluation mode as before; a frozen one stays frozen."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def predict(
    model: nn.Module,
    dataset: Data,
    batch_size: int = 500,
    device: torch.device | None = None,
    num_workers: int = 0,
    transform: Transform | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (float64) and labels of all samples in order, batch by batch, on the CPU."""
    device = next(model.parameters()).device if device is None else device
    batches = Batches(
        dataset,
        batch_size,
        seed=0,
        shuffle=False,
        drop_last=False,
        num_workers=num_workers,
        device=device,
        transform=transform,
    )
    with modes_restored(model):
        model.eval()
        for inputs, labels, *_ in batches.epoch(0):
            with torch.no_grad():
                out = call(model, inputs)
            logits = out[0] if isinstance(out, (tuple, list)) else out
            labels = labels.cpu()
            yield logits.cpu().double(), labels.double() if labels.is_floating_point() else labels.long()


def _indices(labels: Tensor) -> Tensor:
    return labels.argmax(1) if labels.is_floating_point() else labels
