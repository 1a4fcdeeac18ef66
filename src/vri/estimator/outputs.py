"""What a trained network makes of many samples."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vri.core.model import call, read_outputs
from vri.core.objective import gaussian_kl
from vri.data.batches import Batches, Transform
from vri.estimator.samples import with_labels
from vri.methods import VRI
from vri.methods.two_networks import networks_of

_CHUNK = 1000  # samples of one forward pass


@torch.no_grad()
def of(model: nn.Module, inputs: Any, head: str | None, transform: Transform | None) -> tuple[Tensor, Tensor]:
    """Logits, in double precision, and features of all samples, on the CPU; of an ensemble, the first one's features.

    Args:
        model: in evaluation mode.
        inputs: of all samples, in any way that `samples` knows.
        head: name of the last layer, whose inputs are the features; None for a model that returns them.
        transform: of a batch of inputs.
    """
    networks = networks_of(model)
    if len(networks) > 1:
        found = [of(network, inputs, head, transform) for network in networks]
        log_p = torch.stack([logits.log_softmax(1) for logits, _ in found])
        return log_p.logsumexp(0) - math.log(len(networks)), found[0][1]
    seen: list[Tensor] = []
    hook = None
    if head is not None:
        hook = model.get_submodule(head).register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(next(iter((*args, *kwargs.values())))), with_kwargs=True
        )
    logits, features = [], []
    device = next(model.parameters()).device
    batches = Batches(
        with_labels(inputs), _CHUNK, seed=0, shuffle=False, drop_last=False, device=device, transform=transform
    )
    try:
        for part, _ in batches.epoch(0):
            batch, own = read_outputs(call(model, part))
            logits.append(batch.double().cpu())
            shown = seen.pop() if seen else own
            assert shown is not None  # `find_head` names a layer unless the model returns features
            features.append(shown.float().cpu())
    finally:
        if hook is not None:
            hook.remove()
    return torch.cat(logits), torch.cat(features)


@torch.no_grad()
def rectification(method: VRI, logits: Tensor, features: Tensor, labels: Tensor) -> dict[str, NDArray[np.float64]]:
    """What the meta networks make of the labels; the disagreement only where there is a prior to disagree with."""
    trust, disagreement = [], []
    device = method.classifier.device
    for z, f, y in zip(logits.split(_CHUNK), features.split(_CHUNK), labels.split(_CHUNK), strict=True):
        posterior = method.posterior(f.to(device), y.to(device), z.to(device))
        weights = method.squash(posterior.mean)
        trust.append(weights.gather(1, y.to(device)[:, None]).squeeze(1).double().cpu())
        if method.has_prior:
            disagreement.append(gaussian_kl(posterior, method.prior(f.to(device))).double().cpu())
    found = {"trust": torch.cat(trust).numpy()}
    return found | ({"disagreement": torch.cat(disagreement).numpy()} if disagreement else {})
