"""VRI inside DivideMix: it is VRI's step on DivideMix's labels, and goes on exactly."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vri import VRI, train
from vri.methods.vri_dividemix import VRIDivideMix
from vri.training.selection import Selection

CLASSES, SIZE = 3, 12
X = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(SIZE) % CLASSES
CLEAN = X[:6] + 1, Y[:6]
SMALL: dict[str, Any] = {"hidden": (8,), "label_dim": 4, "samples": 2}


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def build(**options: Any) -> VRIDivideMix:
    nets = network(0), network(1)
    sgd = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    method = VRIDivideMix(nets[0], CLASSES, sgd[0], second=(nets[1], sgd[1]), rectification=SMALL, **options)
    method.begin_training(SIZE, None)
    return method


def test_a_step_is_vris_step_on_the_labels_of_dividemix() -> None:
    method = build()
    method.clean[1].values[::3] = 0.2  # some are unlabelled for the first network
    again = copy.deepcopy(method)
    metrics = method.step((X, Y, torch.arange(SIZE)), CLEAN)
    mixed, _ = again.divided((X, X), Y, torch.arange(SIZE))
    assert 0 < mixed[0].labelled.mean() < 1
    first = VRI(again.model, CLASSES, again.optimizer, **SMALL)
    first.saved = again.first.saved
    first.load_state_dict(again.first.state_dict())
    first.generator = again.generator
    expected = first.step((mixed[0].inputs, mixed[0].targets), CLEAN)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    torch.testing.assert_close(method.model.state_dict(), again.model.state_dict())
    torch.testing.assert_close(method.first.meta_network.state_dict(), first.meta_network.state_dict())


def test_trusted_samples_are_due_after_the_warm_up() -> None:
    method = build()
    method.begin_epoch(0, 10)
    assert not method.meta_due
    before = copy.deepcopy(method.first.meta_network.state_dict())
    method.step((X, Y, torch.arange(SIZE)))
    torch.testing.assert_close(dict(method.first.meta_network.state_dict()), dict(before), rtol=0, atol=0)
    method.begin_epoch(1, 10)
    due = []
    for _ in range(4):
        due.append(method.meta_due)
        method.step((X, Y, torch.arange(SIZE)), CLEAN if method.meta_due else None)
    assert due == [True, False, True, False]  # as VRI
    assert method.first.steps == method.second.steps == 4


def noisy_blobs() -> tuple[Tensor, Tensor, Tensor]:
    """Three classes, of which 30 % are labelled as the next one."""
    generator = torch.Generator().manual_seed(0)
    true = torch.arange(240) % CLASSES
    x = (torch.randn(240, 4, generator=generator) + 3 * F.one_hot(true, 4)).double()
    return x, true, torch.where(torch.rand(240, generator=generator) < 0.3, (true + 1) % CLASSES, true)


@pytest.mark.parametrize("trusted", [True, False])
def test_learns_and_resumes_exactly(trusted: bool, tmp_path: Path) -> None:
    x, true, labels = noisy_blobs()

    def fit(out: Path | None = None, stop: int | None = None) -> tuple[VRIDivideMix, Any]:
        method = build(warmup_share=0.3)
        for optimizer in (method.optimizer, method.second_optimizer):
            optimizer.param_groups[0]["momentum"] = 0.9
        original, done = method.step, 0

        def counting(*batches: Any) -> Any:
            nonlocal done
            if done == stop:
                raise KeyboardInterrupt
            done += 1
            return original(*batches)

        method.step = counting  # type: ignore[method-assign]
        meta_set, selection = ((x[:30], true[:30]), None) if trusted else (None, Selection(warm_up=1))
        options: dict[str, Any] = {"epochs": 8, "batch_size": 40, "progress": False, "checkpoint_every": 5}
        history = train(method, (x, labels), meta_set, selection=selection, test_set=(x, true), out=out, **options)
        return method, history

    whole, history = fit()
    assert history[-1]["test_accuracy"] > 0.8
    assert "meta_loss" in history[-1]
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, stop=27)
    resumed, _ = fit(tmp_path)
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_options_of_vri_are_passed_on() -> None:
    method = build()
    assert method.first.samples == 2
    assert method.settings()["rectification"] == SMALL
    net = network()
    with pytest.raises(ValueError, match=r"^VRI got options it can't use: samples=0 "):
        VRIDivideMix(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1), rectification={"samples": 0})
