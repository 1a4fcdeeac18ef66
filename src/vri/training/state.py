"""The state of a training run, in memory and in its folder."""

import json
import math
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vri.core.checks import Batch, DivergenceError
from vri.files import atomic_write, remove_leftovers
from vri.methods.base import Method, Metrics
from vri.training import checkpoints as checkpoint
from vri.training import distributed
from vri.training.progress import Row

History = list[Row]  # one dict per epoch; pandas.DataFrame(history) is the table


@dataclass
class Position:
    """The position of a run."""

    step: int = 0  # steps done
    meta_draws: int = 0  # trusted batches drawn
    seconds: float = 0.0  # spent so far, including before resuming
    sums: dict[str, list[float]] = field(default_factory=dict)  # metric -> [sum, count] in this epoch
    history: History = field(default_factory=list)
    selected: Tensor | None = None  # training samples that take the place of trusted ones
    selected_in: int = -1  # the epoch they were selected in
    selected_draws: int = 0  # batches of them drawn since
    selection_scores: dict[str, float] = field(default_factory=dict)
    surveyed: int = -1  # the last epoch for which the method has looked over the training set
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)  # of training samples that the method has set up
    best_epoch: int = 0  # with the highest validation accuracy so far; 0 if none yet
    best_accuracy: float = -math.inf
    best_weights: dict[str, Tensor] | None = None  # its weights, if they are to be kept
    worse: int = 0  # epochs in a row that were clearly worse than it


class RunState:
    """The state of a run, in memory and in its folder."""

    SAVING_SHARE = 0.05  # of the time may go into checkpoints, unless `checkpoint_every` is given

    def __init__(
        self, method: Method, total: int, per_epoch: int, settings: dict[str, Any], folder: Path | None
    ) -> None:
        self.method, self.total, self.per_epoch = method, total, per_epoch
        self.settings, self.folder = settings, folder
        self.at = Position()
        self._saved_step: int | None = None
        self._saved_at, self._saving = 0.0, 0.0  # when the last checkpoint was written, and how long that took
        self._start = time.perf_counter()

    def open(self, resume: bool) -> None:
        """Continue from the checkpoint, or prepare the folder for a new run."""
        if self.folder is None:
            return
        path = self.folder / "checkpoint.pt"
        state = distributed.on_first(partial(self._read, path, resume))
        if state is not None:
            try:
                self.at = Position(**{name: state[name] for name in asdict(self.at)})
                self.method.load_state_dict(state["method"])
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise checkpoint.CheckpointError(
                    f"the checkpoint {path} does not fit the method: {error}. Build model and method as in "
                    "the first call to resume; pass resume=False, or another out=, to start over"
                ) from None
            self._saved_step = self.at.step
            self._start -= self.at.seconds
        distributed.on_first(partial(self._make_ready, self.folder))

    def step(self, batch: Batch, meta_batch: Batch | None, warming_up: bool = False) -> Metrics:
        """One step of the method; its numbers go into the averages of the epoch."""
        try:
            metrics = self.method.warm_up(batch) if warming_up else self.method.step(batch, meta_batch)
        except DivergenceError as error:
            raise self._diverged(str(error), self.at.step + 1) from error
        metrics = distributed.means(metrics)
        for name, value in metrics.items():
            # NaN stands for "not computed in this step", except in the loss
            if math.isinf(value) or (name == "loss" and math.isnan(value)):
                raise self._diverged(f"{name} is {value}", self.at.step + 1)
            total = self.at.sums.setdefault(name, [0.0, 0])
            if not math.isnan(value):
                total[0] += value
                total[1] += 1
        self.at.step += 1
        return metrics

    def end_epoch(self, scores: Row) -> Row:
        """Turn the averages of the epoch into a row of the history."""
        self._check_weights()
        row: Row = {
            "epoch": self.at.step // self.per_epoch,
            "step": self.at.step,
            "lr": float(self.method.optimizer.param_groups[0]["lr"]),
            "seconds": time.perf_counter() - self._start,
        }
        row |= {name: total / count if count else None for name, (total, count) in self.at.sums.items()}
        # JSON has no Inf
        row |= {name: v if v is None or math.isfinite(v) else None for name, v in scores.items()}
        self.at.sums = {}
        self.at.history.append(row)
        return row

    def due(self, every: int | None) -> bool:
        """Whether to write a checkpoint now: every `checkpoint_every` steps, or after epochs, as often as is cheap."""
        if self.at.step == self.total:
            return True
        if every is not None:
            return self.at.step % every == 0
        if self.folder is None or self.at.step % self.per_epoch:
            return False
        waited = time.perf_counter() - self._saved_at
        return distributed.anywhere(distributed.first() and waited >= self._saving * (1 / self.SAVING_SHARE - 1))

    def save(self) -> None:
        """Write the checkpoint, unless the weights are NaN or Inf."""
        self._check_weights()
        if self.folder is None:
            return
        begun = time.perf_counter()
        distributed.merge(self.method.memories.values())
        distributed.on_first(partial(self._write, self.folder))
        self._saved_at = time.perf_counter()
        self._saving = self._saved_at - begun
        self._saved_step = self.at.step

    def save_rest(self) -> None:
        """Write a checkpoint if the last one is out of date."""
        if self.folder is not None and self._saved_step != self.at.step:
            self.save()

    def _read(self, path: Path, resume: bool) -> dict[str, Any] | None:
        """The checkpoint to continue from; without `resume` it is deleted."""
        if not (resume and path.exists()):
            path.unlink(missing_ok=True)
            return None
        state = checkpoint.load_checkpoint(path)
        checkpoint.check_settings(path, state.get("settings", {}), self.settings)
        return state

    def _make_ready(self, folder: Path) -> None:
        history = folder / "history.jsonl"
        for file in (folder / "checkpoint.pt", history):
            remove_leftovers(file)
        with atomic_write(history) as lines:
            lines.write("".join(json.dumps(row) + "\n" for row in self.at.history).encode())

    def _write(self, folder: Path) -> None:
        self.at.seconds = time.perf_counter() - self._start
        epoch, step_in_epoch = divmod(self.at.step, self.per_epoch)
        where = {"epoch": epoch, "step_in_epoch": step_in_epoch, **asdict(self.at)}
        state = {"settings": self.settings, **where, "method": self.method.state_dict()}
        checkpoint.save_checkpoint(folder / "checkpoint.pt", state)

    def append(self, row: Row) -> None:
        """Add a row to the file; if it gets lost, the checkpoint still has it."""
        if self.folder is not None and distributed.first():
            with open(self.folder / "history.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def how_to_go_on(self) -> str:
        """One line for the user who pressed Ctrl-C."""
        where = f"interrupted after step {self.at.step} of {self.total}"
        if self.folder is None:
            return f"{where}; nothing is saved: pass out= to be able to resume"
        if self._saved_step is None:
            return f"{where}, before the first checkpoint: the same call starts from the beginning"
        return (
            f"{where}; {self.folder / 'checkpoint.pt'} holds step {self._saved_step}: "
            "the same call with resume=True continues from there"
        )

    def _check_weights(self) -> None:
        modules = [part for part in vars(self.method).values() if isinstance(part, nn.Module)]
        finite = [p.detach().isfinite().all() for module in modules for p in module.parameters()]
        if not all(torch.stack(finite).tolist()):
            raise self._diverged("weights are NaN or Inf", self.at.step)

    def _diverged(self, reason: str, step: int) -> DivergenceError:
        epoch = (step - 1) // self.per_epoch + 1
        kept = ""
        if self.folder is not None and self._saved_step is not None:
            kept = f" The checkpoint of step {self._saved_step} is kept: {self.folder / 'checkpoint.pt'}."
        rate = float(self.method.optimizer.param_groups[0]["lr"])
        return DivergenceError(
            f"training diverged in epoch {epoch}, step {step} of {self.total}: {reason}.{kept} Try a lower "
            f"learning rate (here it was {rate:g}), starting over with resume=False or another out="
        )
