"""Where trusted batches come from: a trusted set, samples selected again in every epoch (Algorithm 2), or both."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from vri.core.checks import on_leaves
from vri.core.randomness import derive_seed
from vri.data.batches import Batches, Data, Transform, length, take
from vri.methods.base import Method
from vri.training.evaluation import predict_all
from vri.training.selection import Selected, Selection, select
from vri.training.state import Position

_META_STREAM = 1  # derives the seed of trusted batches from that of the run


class GivenSamples:
    """Batches of a trusted set, in cycles, after a warm-up of some epochs."""

    def __init__(self, meta_set: Data, batch_size: int, seed: int, warm_up: int = 0, **options: Any) -> None:
        self.warm_up = warm_up
        self._batches = Batches(meta_set, batch_size, seed=derive_seed(seed, _META_STREAM), **options)
        self._stream: Iterator[Any] | None = None

    def begin_epoch(self, epoch: int, at: Position) -> str | None:
        """Prepare for an epoch, from the run's position on; return a remark for the user or None."""
        if self._stream is None:
            self._stream = self._batches.endless(at.meta_draws)
        return None

    def draw(self, at: Position) -> Any:
        """The next batch."""
        assert self._stream is not None
        at.meta_draws += 1
        return next(self._stream)

    def scores(self, at: Position) -> dict[str, float]:
        """Numbers for the history about the samples of this epoch: none here."""
        return {}

    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {"warm_up": self.warm_up} if self.warm_up else {}


class SelectedSamples:
    """Batches of training samples with small losses, selected at the beginning of every epoch after the warm-up.

    With `given`, as many trusted samples come before them in every batch. Beyond the paper: trusted samples are few;
    selected ones are many, and most of them are right.
    """

    def __init__(
        self,
        method: Method,
        train_set: Data,
        selection: Selection,
        epochs: int,
        batch_size: int,
        seed: int,
        *,
        given: GivenSamples | None,
        true_labels: torch.Tensor | None,
        transform: Transform | None,
        test_transform: Transform | None,
        **where: Any,
    ) -> None:
        self.selection = selection.sized(length(train_set), epochs)
        self.warm_up = self.selection.warm_up
        self._method, self._train_set, self._given = method, train_set, given
        self._true_labels = None if true_labels is None else true_labels.cpu()
        self._batch_size, self._seed = batch_size, seed
        self._transform, self._test_transform, self._where = transform, test_transform, where
        self._stream: Iterator[Any] | None = None

    def begin_epoch(self, epoch: int, at: Position) -> str | None:
        """Select, unless a resumed run has already done so; return a remark for the user or None."""
        if self._given is not None:
            self._given.begin_epoch(epoch, at)
        if epoch < self.warm_up:
            return None
        remark = None
        if at.selected_in != epoch:
            start = time.perf_counter()
            chosen = self._select()
            at.selected, at.selected_in, at.selected_draws = chosen.index, epoch, 0
            at.selection_scores = chosen.scores | {"selection_seconds": time.perf_counter() - start}
            remark = chosen.remark
        assert at.selected is not None
        batches = Batches(
            take(self._train_set, at.selected),
            self._batch_size,
            seed=derive_seed(self._seed, _META_STREAM, epoch),
            transform=self._transform,
            **self._where,
        )
        self._stream = batches.endless(at.selected_draws)
        return remark

    def draw(self, at: Position) -> Any:
        """The next batch, trusted samples first."""
        assert self._stream is not None
        trusted = None if self._given is None else self._given.draw(at)
        at.selected_draws += 1
        selected = next(self._stream)
        return selected if trusted is None else on_leaves(lambda *parts: torch.cat(parts), trusted[:2], selected[:2])

    def scores(self, at: Position) -> dict[str, float]:
        """How good the selection of this epoch is."""
        return dict(at.selection_scores)

    def settings(self) -> dict[str, Any]:
        """How samples are selected."""
        return self.selection.settings()

    def _select(self) -> Selected:
        how: dict[str, Any] = {"transform": self._test_transform, "autocast": self._method.classifier.autocast}
        workers = self._where.get("num_workers", 0)
        logits, labels = predict_all(self._method.predictor, self._train_set, num_workers=workers, **how)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        labels = labels.argmax(1) if labels.ndim > 1 else labels
        return select(self.selection, losses, labels, self._method.num_classes, self._true_labels)
