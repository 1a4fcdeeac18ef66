"""A run that was stopped and started again ends exactly like one never stopped."""

import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vri.methods import VRI, CrossEntropy, FineTuned, Method
from vri.training.checkpoints import load_checkpoint
from vri.training.loop import train

_spec = importlib.util.spec_from_file_location(
    "kill_and_resume", Path(__file__).parents[1] / "benchmarks" / "kill_and_resume.py"
)
assert _spec is not None
assert _spec.loader is not None
kill_and_resume = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kill_and_resume)

CLASSES, STEPS = 3, 10  # 2 epochs of 5 steps


@pytest.mark.slow
def test_killed_run_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    reference = kill_and_resume.start(tmp_path / "whole", epochs=4)
    killed = kill_and_resume.kill_and_finish(tmp_path / "killed", 4, kills=2, rng=random.Random(0))
    assert kill_and_resume.ended(reference) == 0
    assert killed["kills"] == 2  # benchmarks/kill_and_resume.py does it more often
    assert any(step > 0 for step in killed["steps"])  # not before the first checkpoint
    assert kill_and_resume.differences(tmp_path / "whole", tmp_path / "killed") == []
    left = sorted(p.name for p in (tmp_path / "killed").iterdir())
    assert left == ["checkpoint.previous.pt", "checkpoint.pt", "history.jsonl"]


class Stop(Exception):
    pass


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def vri(**options: Any) -> Method:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return VRI(net, CLASSES, optimizer, hidden=(8,), label_dim=4, **options)


def cross_entropy() -> Method:
    net = model()
    return CrossEntropy(net, CLASSES, torch.optim.Adam(net.parameters(), lr=0.01))


def fine_tuned() -> Method:
    net = model()
    return FineTuned(net, CLASSES, torch.optim.AdamW(net.parameters(), lr=0.01), tune_share=0.5)


def two_rates() -> Method:
    net = model()
    groups = [{"params": [*net[:4].parameters()], "lr": 0.1}, {"params": [*net[4:].parameters()]}]
    return CrossEntropy(net, CLASSES, torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True))


METHODS: dict[str, Callable[[], Method]] = {
    "VRI": vri,
    "VRI, meta_every=3": lambda: vri(meta_every=3),
    "VRI, finite differences": lambda: vri(hypergradient="finite_difference"),
    "cross-entropy, Adam": cross_entropy,
    "cross-entropy, two learning rates": two_rates,
    "fine-tuned": fine_tuned,
}


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, torch.arange(count) % CLASSES


class Augmented(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Random from all three global generators."""

    def __init__(self, count: int, seed: int) -> None:
        self.x, self.y = data(count, seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index] + 0.1 * torch.randn(4) + 0.1 * random.random(), int(self.y[index])


def run(method: Method, out: Path, augmented: bool = False, **options: Any) -> list[dict[str, Any]]:
    make = Augmented if augmented else data
    return train(
        method,
        make(24, 0),
        make(12, 1),
        test_set=data(9, 2),
        epochs=2,
        batch_size=5,
        meta_batch_size=5,
        out=out,
        progress=False,
        **options,
    )


def stop_at(method: Method, step: int, before: bool) -> None:
    """Let the step with this number fail, before it did anything or after all its work."""
    original, done = method.step, 0

    def failing(batch: Any, meta_batch: Any = None) -> Any:
        nonlocal done
        if done == step and before:
            raise Stop
        metrics = original(batch, meta_batch)
        if done == step:
            raise Stop
        done += 1
        return metrics

    method.step = failing  # type: ignore[method-assign]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("checkpoint_every", [3, None])
def test_stopped_at_every_step(name: str, checkpoint_every: int | None, tmp_path: Path) -> None:
    whole = run(METHODS[name](), tmp_path / "whole", checkpoint_every=checkpoint_every)
    assert [row["step"] for row in whole] == [STEPS // 2, STEPS]
    for step in range(STEPS):
        out = tmp_path / str(step)
        stopped = METHODS[name]()
        stop_at(stopped, step, before=step % 2 == 0)
        with pytest.raises(Stop):
            run(stopped, out, checkpoint_every=checkpoint_every)
        torch.rand(step)  # another state of the global generator
        run(METHODS[name](), out, checkpoint_every=checkpoint_every)
        assert kill_and_resume.differences(tmp_path / "whole", out) == [], step


@pytest.mark.parametrize("step", [0, 2, 5, 7])
def test_random_transforms_resume_exactly(step: int, tmp_path: Path) -> None:
    run(vri(), tmp_path / "whole", augmented=True, checkpoint_every=1)
    stopped = vri()
    stop_at(stopped, step, before=False)
    with pytest.raises(Stop):
        run(stopped, tmp_path / "stopped", augmented=True, checkpoint_every=1)
    random.random()
    run(vri(), tmp_path / "stopped", augmented=True, checkpoint_every=1)
    assert kill_and_resume.differences(tmp_path / "whole", tmp_path / "stopped") == []


def test_stopped_again_and_again_in_one_process(tmp_path: Path) -> None:
    """The same method object goes on: what the failed step changed is loaded over."""
    run(vri(), tmp_path / "whole", checkpoint_every=2)
    method = vri()
    original = method.step
    for step in (3, 4, 1, 2):
        stop_at(method, step, before=False)
        with pytest.raises(Stop):
            run(method, tmp_path / "stopped", checkpoint_every=2)
        method.step = original  # type: ignore[method-assign]
    run(method, tmp_path / "stopped", checkpoint_every=2)
    assert kill_and_resume.differences(tmp_path / "whole", tmp_path / "stopped") == []


def test_finished_run_is_loaded_and_not_repeated(tmp_path: Path) -> None:
    first = vri()
    history = run(first, tmp_path)
    again = vri()
    stop_at(again, 0, before=True)
    assert run(again, tmp_path) == history
    weights = again.model.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in first.model.state_dict().items())


def test_resume_false_starts_anew(tmp_path: Path) -> None:
    run(vri(), tmp_path / "whole")
    stopped = vri()
    stop_at(stopped, 7, before=True)
    with pytest.raises(Stop):
        run(stopped, tmp_path / "again")
    seen = []
    run(vri(), tmp_path / "again", resume=False, on_epoch=lambda row: seen.append(row["epoch"]))
    assert seen == [1, 2]
    assert kill_and_resume.differences(tmp_path / "whole", tmp_path / "again") == []


def test_history_file_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed between the row and the checkpoint, in the middle of a line."""
    stopped = vri()
    stop_at(stopped, 7, before=True)
    with pytest.raises(Stop):
        run(stopped, tmp_path, checkpoint_every=4)  # the last checkpoint, of step 4, has no row yet
    assert load_checkpoint(tmp_path / "checkpoint.pt")["history"] == []
    with open(tmp_path / "history.jsonl", "a") as file:
        file.write('{"epoch": 2, "st')
    (tmp_path / ".checkpoint.pt.123.tmp").write_text("left by a killed run")
    history = run(vri(), tmp_path, checkpoint_every=4)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history
    assert [row["epoch"] for row in history] == [1, 2]
    assert not list(tmp_path.glob(".*"))
