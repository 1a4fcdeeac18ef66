"""Which epoch to end with, if there is a validation set."""

import math
from dataclasses import dataclass

from torch import nn

from vri.training.progress import Row
from vri.training.state import Position


@dataclass(frozen=True)
class KeepBest:
    """End with the weights of the best epoch; stop when accuracy has become clearly worse.

    The last epoch is kept unless another one is better by more than a standard error: with few held-out samples, or
    wrong labels among them, the highest of many accuracies is mostly luck.

    Attributes:
        patience: epochs in a row, each two standard errors below the best one, after which training stops.
    """

    patience: int = 5

    def note(self, row: Row, model: nn.Module, at: Position, held_out: int) -> None:
        """Record the accuracy of an epoch; keep its weights if none was higher."""
        accuracy = row["validation_accuracy"]
        assert accuracy is not None
        if accuracy >= at.best_accuracy:
            at.best_accuracy, at.best_epoch = accuracy, int(row["epoch"] or 0)
            at.best_weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        at.worse = at.worse + 1 if accuracy < at.best_accuracy - 2 * _error(at.best_accuracy, held_out) else 0

    def enough(self, at: Position) -> bool:
        """Whether to stop."""
        return at.worse >= self.patience

    def restore(self, model: nn.Module, at: Position, held_out: int) -> None:
        """Load the weights to end with, and note their epoch in the last row."""
        last = at.history[-1]
        accuracy = last["validation_accuracy"]
        assert accuracy is not None
        last["kept_epoch"] = last["epoch"]
        if at.best_weights is not None and at.best_accuracy > accuracy + _error(at.best_accuracy, held_out):
            model.load_state_dict(at.best_weights)
            last["kept_epoch"] = at.best_epoch


def _error(accuracy: float, held_out: int) -> float:
    """Standard error of an accuracy on `held_out` samples; never 0, as it would be for 100 %."""
    share = min(max(accuracy, 1 / (held_out + 2)), 1 - 1 / (held_out + 2))
    return math.sqrt(share * (1 - share) / held_out)
