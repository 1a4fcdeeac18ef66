"""The training loop and what it needs: state, trusted samples, evaluation, progress, several processes."""

from vri.training.early_stopping import KeepBest
from vri.training.evaluation import evaluate
from vri.training.loop import SCHEDULES, History, train
from vri.training.selection import Selection

__all__ = ["SCHEDULES", "History", "KeepBest", "Selection", "evaluate", "train"]
