"""Probabilities averaged over the epochs of a training."""

from pathlib import Path

import torch
from torch import nn

from vri.estimator.beliefs import Beliefs


def at_epoch(model: nn.Linear, epoch: int) -> torch.Tensor:
    with torch.no_grad():
        model.weight.fill_(0.1 * epoch)
        model.weight[0] = 0.0
        return model(INPUTS).softmax(1).double()


INPUTS = torch.tensor([[1.0], [-2.0], [3.0]])


def test_mean_over_the_later_epochs(tmp_path: Path) -> None:
    model = nn.Linear(1, 2, bias=False)
    beliefs = Beliefs(model, INPUTS, 20, None, tmp_path / "b.npz")
    seen = []
    for epoch in range(1, 21):
        now = at_epoch(model, epoch)
        beliefs.note({"epoch": epoch})
        if epoch > 2:  # a tenth does not count
            seen.append(now)
    torch.testing.assert_close(beliefs.mean(), torch.stack(seen).mean(0), atol=1e-6, rtol=0)
    assert model.training  # as it was


def test_goes_on_from_its_file_and_counts_no_epoch_twice(tmp_path: Path) -> None:
    model = nn.Linear(1, 2, bias=False)
    whole, first = Beliefs(model, INPUTS, 4, None, None), Beliefs(model, INPUTS, 4, None, tmp_path / "b.npz")
    for epoch in (1, 2, 3):
        at_epoch(model, epoch)
        whole.note({"epoch": epoch})
        first.note({"epoch": epoch})
    second = Beliefs(model, INPUTS, 4, None, tmp_path / "b.npz")
    for epoch in (3, 4):
        at_epoch(model, epoch)
        second.note({"epoch": epoch})
    whole.note({"epoch": 4})
    assert torch.equal(second.mean(), whole.mean())


def test_a_training_of_one_epoch_counts() -> None:
    model = nn.Linear(1, 2, bias=False)
    now = at_epoch(model, 1)
    torch.testing.assert_close(Beliefs(model, INPUTS, 1, None, None).mean(), now, atol=1e-6, rtol=0)
