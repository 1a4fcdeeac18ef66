"""Parts of a network by depth: its last layer, its last block, and how to reinitialise them."""

from collections.abc import Collection

import torch
from torch import nn

from vri.core.model import Classifier
from vri.core.randomness import seeded


def head_of(classifier: Classifier) -> list[str]:
    """Names of the last layer's parameters."""
    names = list(classifier.parameters)
    prefix = names[-1].rpartition(".")[0] if classifier.head_name is None else classifier.head_name
    return [name for name in names if name.rpartition(".")[0] == prefix] or names[-1:]


def last_block(classifier: Classifier) -> list[str]:
    """Names of the parameters of the last block, of all after it and of the last layer; none if that were everything.

    The last block are neighbouring modules with a fifth to half of the weight tensors, or with fewer where one more
    module would be too many.
    """
    head = head_of(classifier)
    before = [name for name in classifier.parameters if name not in head]
    weights = [name for name in before if classifier.parameters[name].ndim > 1]
    for depth in range(1, max((name.count(".") for name in weights), default=0) + 1):
        modules = [".".join(name.split(".")[:depth]) for name in weights]
        chosen = 0  # of the weights, from the end
        for place in range(len(weights) - 1, -1, -1):
            if place and modules[place] == modules[place - 1]:
                continue  # inside a module
            if 2 * (len(weights) - place) > len(weights):
                break
            chosen = len(weights) - place
            if 5 * chosen >= len(weights):
                break
        if chosen:
            first = modules[-chosen] + "."
            start = next(place for place, name in enumerate(before) if name.startswith(first))
            return before[start:] + head
    return []


def renew(model: nn.Module, names: Collection[str], seed: int, device: torch.device) -> None:
    """Reinitialise the layers with these parameters, by their `reset_parameters`."""
    chosen = {parameter for name, parameter in model.named_parameters() if name in names}
    with seeded(seed, device):
        for module in model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and chosen.intersection(module.parameters(recurse=False)):
                reset()
