"""For methods that learn how labels were corrupted: the matrix T_ij = p(noisy label j | true class i)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri.core.model import Classifier
from vri.core.randomness import draw_seed, seeded
from vri.methods.losses import one_hot


def second_head(classifier: Classifier, generator: torch.Generator) -> nn.Linear:
    """A linear layer on the classifier's features, to learn the noisy labels with."""
    with seeded(draw_seed(generator), torch.device("cpu")):
        head = nn.Linear(classifier.feature_dim, classifier.num_classes)
    return head.to(classifier.device, classifier.dtype)


def corruption_matrix(probabilities: Tensor, clean_labels: Tensor) -> Tensor:
    """Ĉ (c, c): row i is the mean of p̂(noisy label | x) over the trusted samples of class i.

    A soft label counts in every class in proportion.
    """
    members = one_hot(clean_labels, probabilities).to(probabilities.dtype)  # (n, c)
    return members.T @ probabilities / members.sum(0).unsqueeze(1)


def matrix_of_batch(classifier: Classifier, probabilities: Tensor, clean_labels: Tensor, before: Tensor) -> Tensor:
    """Ĉ of the whole trusted batch, whatever share of it this process has; classes that it lacks keep their rows."""
    members = one_hot(clean_labels, probabilities)  # (m, c)
    sums = classifier.batch_mean((members.T @ probabilities / len(probabilities)).unsqueeze(0))
    counts = classifier.batch_mean(members).unsqueeze(1)
    return torch.where(counts > 0, sums / counts.clamp_min(1e-12), before)


def noisy_logits(logits: Tensor, matrix: Tensor) -> Tensor:
    """log Σ_i p_i·T_ij, logits of the noisy label (n, c)."""
    noisy = F.softmax(logits, dim=-1) @ matrix
    return noisy.clamp_min(torch.finfo(noisy.dtype).tiny).log()


def corrected_cross_entropy(logits: Tensor, noisy_labels: Tensor, matrix: Tensor) -> Tensor:
    """Mean of −log Σ_i p_i·T_iy: cross-entropy of the noisy labels that the matrix predicts."""
    return -(one_hot(noisy_labels, logits) * noisy_logits(logits, matrix)).sum(1).mean()
