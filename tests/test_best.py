"""Which epoch a training ends with."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vri import backbones, evaluate, train
from vri.methods import CrossEntropy
from vri.training.early_stopping import KeepBest
from vri.training.state import Position

HELD_OUT = 100


def noted(scores: list[float], patience: int = 2) -> tuple[Position, torch.nn.Module, int]:
    """After epochs with these scores; the weight is the number of the epoch, and so is what is left."""
    model, at, keep = torch.nn.Linear(1, 1, bias=False), Position(), KeepBest(patience)
    for epoch, score in enumerate(scores, 1):
        with torch.no_grad():
            model.weight.fill_(epoch)
        row: dict[str, Any] = {"epoch": epoch, "validation_accuracy": score}
        at.history.append(row)
        keep.note(row, model, at, HELD_OUT)
        if keep.enough(at):
            break
    keep.restore(model, at, HELD_OUT)
    return at, model, int(model.weight)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([0.5, 0.6, 0.7], 3),
        ([0.5, 0.9, 0.5], 2),  # far better than the last
        ([0.5, 0.8, 0.77], 3),  # within a standard error, 0.04 here: the last counts
        ([0.5, 0.8, 0.75], 2),
        ([1.0, 1.0, 1.0], 3),
        ([0.8, 0.8, 0.7], 2),  # of equal ones the later
    ],
)
def test_the_last_epoch_unless_another_is_clearly_better(scores: list[float], kept: int) -> None:
    at, _, weight = noted(scores)
    assert weight == kept
    assert at.history[-1]["kept_epoch"] == kept


def test_stops_when_it_has_been_clearly_worse_for_some_epochs() -> None:
    at, _, weight = noted([0.5, 0.9, 0.7, 0.75, 0.7, 0.7])  # two standard errors: 0.06
    assert len(at.history) == 4
    assert weight == 2
    at, *_ = noted([0.9, 0.7, 0.86, 0.7, 0.86])  # never twice in a row
    assert len(at.history) == 5


def sets(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def run(tmp_path: Path | None = None, stop_at: int | None = None, **options: Any) -> Any:
    model = backbones.mlp(4, 2, (8,), seed=0)
    method = CrossEntropy(model, 2, torch.optim.SGD(model.parameters(), lr=3.0))  # so high that scores jump about
    x, y = sets(40, 0)
    if stop_at is not None:
        original, done = method.step, []

        def step(*batch: Any) -> Any:
            if len(done) == stop_at:
                raise KeyboardInterrupt
            done.append(1)
            return original(*batch)

        method.step = step  # type: ignore[method-assign]
    held = sets(30, 1)
    rows = train(
        method,
        (x, y),
        epochs=8,
        batch_size=10,
        validation_set=held,
        keep_best=KeepBest(patience=3),
        schedule="constant",
        progress=False,
        out=tmp_path,
        checkpoint_every=3,
        **options,
    )
    return model, rows, held


def test_the_model_has_the_weights_of_the_kept_epoch() -> None:
    model, rows, held = run()
    kept = rows[-1]["kept_epoch"]
    assert evaluate(model, held)["accuracy"] == rows[kept - 1]["validation_accuracy"]


@pytest.mark.parametrize("stop_at", [2, 7, 12, 17])
def test_a_stopped_run_keeps_the_same_epoch(tmp_path: Path, stop_at: int) -> None:
    whole, rows, _ = run()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stop_at)
    again, found, _ = run(tmp_path)
    assert [row["validation_accuracy"] for row in found] == [row["validation_accuracy"] for row in rows]
    assert found[-1]["kept_epoch"] == rows[-1]["kept_epoch"]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_needs_a_validation_set() -> None:
    model = backbones.mlp(4, 2, (8,), seed=0)
    method = CrossEntropy(model, 2, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"^keep_best was given without a validation_set to tell which epoch is best"):
        train(method, sets(20, 0), epochs=2, keep_best=KeepBest(), progress=False)
