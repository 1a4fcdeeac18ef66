"""What a trained classifier tells about the labels."""

import torch
from torch import Tensor


def transition_matrix(probabilities: Tensor, noisy_labels: Tensor) -> Tensor:
    """How labels got confused: entry (i, j) estimates P(noisy label j | true class i).

    Each sample counts for every class as much as the classifier believes in it; rows sum to 1. A class that the
    classifier never believes in gets its identity row.

    Args:
        probabilities: (n, c) the classifier's beliefs about the true classes.
        noisy_labels: (n,) the labels that were given.
    """
    beliefs = probabilities.double()
    given = torch.nn.functional.one_hot(noisy_labels, beliefs.shape[1]).double()
    counts = beliefs.T @ given  # (c, c)
    totals = counts.sum(1, keepdim=True)
    identity = torch.eye(len(counts), dtype=torch.float64, device=counts.device)
    return torch.where(totals > 0, counts / totals.clamp_min(1e-300), identity)
