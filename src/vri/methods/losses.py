"""Building blocks of several methods' losses."""

from torch import Tensor
from torch.nn import functional as F


def one_hot(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels as probability vectors (n, c) that match `logits`; soft ones stay as they are."""
    if labels.is_floating_point():
        return labels
    return F.one_hot(labels, logits.shape[1]).to(logits.dtype)


def sample_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each sample (n,), for hard labels and soft ones alike."""
    return F.cross_entropy(logits, labels, reduction="none")
