"""The training set as a method sees it: predictions over all of it, and streams of samples that the method chooses."""

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn

from vri.core.checks import Batch
from vri.core.randomness import derive_seed
from vri.data.batches import Batches, Data, Transform, length, take
from vri.methods.base import Method, TrainingData
from vri.training.evaluation import predict_all
from vri.training.state import RunState

_STREAM = 3  # derives the seeds of streams from that of the run


class Streams(TrainingData):
    """The value of `Method.data` during training. Streams are part of the run's state, so a resumed run draws the same.

    `views` holds the transform of each kind of view, `where` options of `Batches`: device and workers.
    """

    def __init__(
        self,
        run: RunState,
        method: Method,
        train_set: Data,
        batch_size: int,
        seed: int,
        *,
        views: dict[str, Transform | None],
        test_transform: Transform | None,
        **where: Any,
    ) -> None:
        self.size = length(train_set)
        self._run, self._method, self._train_set = run, method, train_set
        self._batch_size, self._seed = batch_size, seed
        self._views, self._test_transform, self._where = views, test_transform, where
        self._open: dict[str, Iterator[Any]] = {}

    def predict(self, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Logits (float64) and labels of all training samples, in order, on the CPU."""
        chosen = self._method.predictor if model is None else model
        how: dict[str, Any] = {"transform": self._test_transform, "autocast": self._method.classifier.autocast}
        return predict_all(chosen, self._train_set, num_workers=self._where.get("num_workers", 0), **how)

    def stream(self, name: str, rows: Tensor, views: Collection[str] = ("weak",)) -> None:
        """Make `draw(name)` return batches of these samples, shuffled, endlessly."""
        unknown = [view for view in views if view not in self._views]
        if unknown or len(rows) < 1:
            raise ValueError(
                f"a stream of {len(rows)} samples with views {list(views)}: expected some, and known views"
            )
        at = {"rows": rows.cpu(), "views": list(views), "step": self._run.at.step, "draws": 0}
        self._run.at.streams[name] = at
        self._open.pop(name, None)

    def draw(self, name: str) -> Batch:
        """The next batch (inputs, labels, index) of a stream."""
        at = self._run.at.streams[name]
        if name not in self._open:
            batches = Batches(
                take(self._train_set, at["rows"]),
                self._batch_size,
                seed=derive_seed(self._seed, _STREAM, at["step"], *name.encode()),
                views=[self._views[view] for view in at["views"]],
                with_index=True,
                **self._where,
            )
            self._open[name] = batches.endless(at["draws"])
        at["draws"] += 1
        *batch, index = next(self._open[name])
        return (*batch, at["rows"].to(index.device)[index])
