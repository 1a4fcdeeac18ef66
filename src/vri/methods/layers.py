"""Parts of a network by depth: its last layer, its last block, and how they start again."""

from collections.abc import Collection

from vri.core.model import Classifier
from vri.core.randomness import seeded


def head_of(classifier: Classifier) -> list[str]:
    """Names of the last layer's parameters."""
    names = list(classifier.parameters)
    prefix = names[-1].rpartition(".")[0] if classifier.head_name is None else classifier.head_name
    return [name for name in names if name.rpartition(".")[0] == prefix] or names[-1:]


def last_block(classifier: Classifier) -> list[str]:
    """Names of the last block's parameters and of all after it, with the last layer's; none if it were all there is."""
    head = set(head_of(classifier))
    before = [name for name in classifier.parameters if name not in head]
    weights = [name for name in before if classifier.parameters[name].ndim > 1]
    if not weights:
        return []
    path = weights[-1].split(".")
    for depth in range(1, len(path)):
        prefix = ".".join(path[:depth]) + "."
        members = [name for name in weights if name.startswith(prefix)]
        if len(members) * 2 <= len(weights):
            start = next(place for place, name in enumerate(before) if name.startswith(prefix))
            return [*before[start:], *(name for name in classifier.parameters if name in head)]
    return []


def renew(classifier: Classifier, names: Collection[str], seed: int) -> None:
    """Draw initial weights again for the layers with these parameters, by their `reset_parameters`."""
    chosen = {classifier.parameters[name] for name in names}
    with seeded(seed, classifier.device):
        for module in classifier.model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and chosen.intersection(module.parameters(recurse=False)):
                reset()
