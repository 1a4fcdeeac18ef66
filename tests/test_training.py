"""The loop: schedule, history, evaluation, errors at the border and what is shown."""

import errno
import json
import math
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from loop_helpers import CLASSES, NAN, Recorder, cross_entropy, data, fit, network, vri
from vri.core.checks import DivergenceError
from vri.methods import CleanOnly, CrossEntropy, FineTuned
from vri.training.checkpoints import load_checkpoint
from vri.training.evaluation import memorisation
from vri.training.loop import SCHEDULES, KeepBest, evaluate, train

# the loop


def test_schedules_are_their_closed_form() -> None:
    assert [SCHEDULES["cosine"](p) for p in (0, 1 / 3, 0.5, 1)] == pytest.approx([1, 0.75, 0.5, 0])
    assert [SCHEDULES["constant"](p) for p in (0, 0.5, 1)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1] * 8),
        ("cosine", [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)]),
        (lambda p: 1 - p, [1 - i / 8 for i in range(8)]),
    ],
)
def test_learning_rate_of_each_step_and_group(schedule: Any, factors: list[float]) -> None:
    method = Recorder()
    history = fit(method, schedule=schedule)
    assert method.rates == [pytest.approx([f, 0.1 * f]) for f in factors]
    assert [row["lr"] for row in history] == pytest.approx([factors[3], factors[7]])
    assert [g["lr"] for g in method.optimizer.param_groups] == [1.0, 0.1]  # given back


def test_fine_tuning_runs_through_the_schedule_twice() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    method = FineTuned(net, CLASSES, optimizer, tune_share=0.5, tune_lr=0.5)
    rates = []
    original = method.step
    method.step = lambda *batch: rates.append(optimizer.param_groups[0]["lr"]) or original(*batch)  # type: ignore
    fit(method, meta_set=data(9))
    cosine = [(1 + math.cos(math.pi * i / 4)) / 2 for i in range(4)]
    assert rates == pytest.approx([*cosine, *(0.5 * c for c in cosine)])


def test_evaluating_less_often_trains_the_same() -> None:
    always, seldom = cross_entropy(), cross_entropy()
    known = data(20)[1]
    sets = {"test_set": data(7), "validation_set": data(6), "true_labels": (known + 1) % CLASSES}
    each = fit(always, epochs=5, **sets)
    some = fit(seldom, epochs=5, evaluate_every=2, **sets)
    for mine, other in zip(always.model.parameters(), seldom.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    names = ("test_accuracy", "test_loss", "validation_accuracy", "memorised")
    for epoch, (row, fewer) in enumerate(zip(each, some, strict=True), 1):
        assert row["loss"] == fewer["loss"]
        for name in names:
            assert fewer.get(name) == (row[name] if epoch in (2, 4, 5) else None)


def test_evaluating_less_often_can_not_be_with_the_best_epoch() -> None:
    with pytest.raises(ValueError, match=r"^keep_best with evaluate_every=2: it compares all epochs; leave one out"):
        fit(cross_entropy(), validation_set=data(6), keep_best=KeepBest(), evaluate_every=2)
    with pytest.raises(ValueError, match=r"^evaluate_every=0: expected 1 or more"):
        fit(cross_entropy(), evaluate_every=0)


def test_a_warm_up_is_plain_training() -> None:
    """Against cross-entropy for as long, and the method itself from then on."""
    warm, net = vri(), network()
    plain = CrossEntropy(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1))
    calls: list[str] = []
    for name in ("step", "warm_up"):
        original = getattr(warm, name)
        setattr(warm, name, lambda *batch, name=name, call=original: calls.append(name) or call(*batch))
    weights: list[dict[str, Tensor]] = []
    for method, warm_up in ((warm, 2), (plain, 0)):
        fit(
            method,
            meta_set=data(9, seed=1) if warm_up else None,
            epochs=3,
            warm_up=warm_up,
            on_epoch=lambda row, m=method: weights.append({k: v.clone() for k, v in m.model.state_dict().items()}),
        )
    assert calls == ["warm_up"] * 8 + ["step"] * 4
    for after_two, alike in ((weights[1], weights[4]), (weights[0], weights[3])):
        assert all(torch.equal(after_two[name], alike[name]) for name in alike)
    assert not all(torch.equal(weights[2][name], weights[5][name]) for name in weights[2])


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (vri, {"warm_up": 2, "meta_set": 9}, "warm_up=2 of 2 epochs"),
        (vri, {"warm_up": -1, "meta_set": 9}, "warm_up=-1"),
        (vri, {"warm_up": 1}, "Selection"),
        (cross_entropy, {"warm_up": 1}, "CrossEntropy"),
    ],
)
def test_warm_up_that_can_not_be(make: Any, options: dict[str, Any], message: str) -> None:
    if "meta_set" in options:
        options = {**options, "meta_set": data(options["meta_set"], seed=1)}
    with pytest.raises(ValueError, match=message):
        fit(make(), **options)


@pytest.mark.parametrize("make", [lambda: cross_entropy(), lambda: vri()], ids=["cross-entropy", "vri"])
def test_loop_is_method_step_by_hand(make: Any) -> None:
    """Against the plainest loop that could be written."""
    looped, by_hand = make(), make()
    seen: list[Any] = []
    original = looped.step
    looped.step = lambda *batch: seen.append(batch) or original(*batch)
    history = fit(looped, meta_set=data(9, seed=1), test_set=data(9))
    losses = []
    for number, batch in enumerate(seen):
        by_hand.optimizer.param_groups[0]["lr"] = 0.1 * (0.5 * (1 + math.cos(math.pi * number / 8)))
        losses.append(by_hand.step(*batch)["loss"])
    for key, value in looped.model.state_dict().items():
        assert torch.equal(value, by_hand.model.state_dict()[key]), key
    assert [row["loss"] for row in history] == [sum(losses[:4]) / 4, sum(losses[4:]) / 4]


def test_clean_batches_only_when_due_and_in_cycles() -> None:
    method = Recorder(every=3)
    clean = data(6, seed=1)
    fit(method, meta_set=clean, meta_batch_size=4)
    drawn = [meta for _, meta in method.batches]
    assert [meta is not None for meta in drawn] == [i % 3 == 0 for i in range(8)]
    sizes = [len(meta[1]) for meta in drawn if meta is not None]
    assert sizes == [4, 2, 4]
    first_cycle = torch.cat([meta[0] for meta in drawn if meta is not None][:2])
    assert torch.equal(first_cycle.sort(0).values, clean[0].sort(0).values)


def test_epochs_are_announced_and_the_model_trains() -> None:
    method = Recorder()
    method.model.eval()
    fit(method, test_set=data(9))
    assert method.epochs == [(0, 2), (1, 2)]
    assert method.training == [True] * 8
    assert not method.model.training  # as it was


def test_epoch_is_announced_again_on_resuming_inside_it(tmp_path: Path) -> None:
    stopped = Recorder([{"loss": 1.0}] * 6 + [{"loss": math.inf}])
    with pytest.raises(DivergenceError):
        fit(stopped, out=tmp_path, checkpoint_every=1)
    method = Recorder()
    fit(method, out=tmp_path)
    assert method.epochs == [(1, 2)]
    assert len(method.rates) == 2


def test_history() -> None:
    steps = [
        {"loss": 1.0, "meta_loss": 4.0, "kl": NAN},
        {"loss": 2.0, "meta_loss": NAN, "kl": NAN},
        {"loss": 3.0, "meta_loss": 5.0, "kl": NAN},
        {"loss": 6.0, "meta_loss": NAN, "kl": NAN},
    ]
    seen: list[dict[str, Any]] = []
    method = Recorder(steps)
    history = fit(method, epochs=1, test_set=data(9), validation_set=data(6), on_epoch=seen.append, schedule="constant")
    assert history == seen
    (row,) = history
    assert type(history) is list
    assert type(row) is dict
    assert row["seconds"] > 0
    test, validation = evaluate(method.model, data(9)), evaluate(method.model, data(6))
    assert {key: value for key, value in row.items() if key != "seconds"} == {
        "epoch": 1,
        "step": 4,
        "lr": 1.0,
        "loss": 3.0,
        "meta_loss": 4.5,
        "kl": None,
        "test_accuracy": test["accuracy"],
        "test_loss": test["loss"],
        "validation_accuracy": validation["accuracy"],
        "validation_loss": validation["loss"],
    }


def test_files(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    history = fit(cross_entropy(), out=out)
    assert sorted(p.name for p in out.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt", "history.jsonl"]
    assert [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()] == history
    state = load_checkpoint(out / "checkpoint.pt")
    assert (state["epoch"], state["step_in_epoch"], state["step"]) == (2, 0, 8)
    assert state["history"] == history


def test_global_generator_stays_untouched() -> None:
    state = torch.get_rng_state()
    fit(vri(), meta_set=data(9), test_set=data(9))
    assert torch.equal(torch.get_rng_state(), state)


# evaluation


def test_evaluate_by_hand() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.9), nn.Linear(2, 2, bias=False))
    model[2].weight.data = torch.eye(2)
    model[1].eval()  # one layer is frozen and stays so
    x = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0], [0.0, 0.0], [0.0, math.log(7)]])
    y = torch.tensor([1, 1, 0, 1])  # probabilities of the labels: 3/4, 1/4, 1/2, 7/8
    loss = -(math.log(3 / 4) + math.log(1 / 4) + math.log(1 / 2) + math.log(7 / 8)) / 4
    for batch_size in (1, 3, 500):
        result = evaluate(model, (x, y), batch_size)
        assert result["accuracy"] == 0.75  # the tie goes to class 0
        assert result["loss"] == pytest.approx(loss, rel=1e-6)
    assert [m.training for m in model] == [True, False, True]
    soft = torch.tensor([[0.5, 0.5]] * 4)
    expected = -(math.log(3 / 16) * 2 + math.log(1 / 4) + math.log(7 / 64)) / 8
    assert evaluate(model, (x, soft))["loss"] == pytest.approx(expected, rel=1e-6)


def test_evaluate_takes_features_and_several_inputs() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.scale * a + b, a

    a, y = torch.eye(2), torch.tensor([0, 1])
    for inputs in ((a, a), {"b": a, "a": a}):
        assert evaluate(Sum(), (inputs, y))["accuracy"] == 1.0


def test_memorisation_by_hand(tmp_path: Path) -> None:
    model = nn.Linear(3, 3, bias=False)
    model.weight.data = torch.eye(3)
    x = torch.eye(3)[[0, 1, 2, 0, 1]]  # predictions 0 1 2 0 1
    noisy, true = torch.tensor([0, 1, 0, 1, 2]), torch.tensor([1, 2, 2, 2, 2])  # the last is right
    assert memorisation(model, (x, noisy), true) == {"memorised": 0.5, "corrected": 0.25}
    assert memorisation(model, (x, true), true) == {"memorised": None, "corrected": None}
    row = fit(cross_entropy(), true_labels=data(20)[1], out=tmp_path)[-1]
    assert row["memorised"] is None


# errors at the border

EMPTY = (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs=0: expected 1 or more; correct the setting"),
        (
            {"batch_size": 0, "meta_batch_size": -1, "checkpoint_every": 0},
            "batch_size=0, meta_batch_size=-1, checkpoint_every=0: expected 1 or more; correct the setting",
        ),
        ({"schedule": "step"}, "schedule='step': expected one of cosine, linear, constant, or a function"),
        (
            {"meta_set": EMPTY},
            "the meta set is empty: VRI learns to rectify from a few samples with right labels; "
            "give at least one sample of each class",
        ),
        (
            {"meta_set": (torch.zeros(2, 4), torch.tensor([0, 2]))},
            "the meta set lacks class 1: expected at least one clean sample of each of the 3 classes; "
            "add some, or lower num_classes",
        ),
        (
            {"meta_set": [(torch.zeros(4), 1), (torch.zeros(4), 1)]},
            "the meta set lacks classes 0, 2: expected at least one clean sample of each of the 3 classes; "
            "add some, or lower num_classes",
        ),
        (
            {"train_set": EMPTY},
            "the training set is empty: expected at least one sample; check it and its filter",
        ),
        (
            {"test_set": EMPTY},
            "the test set is empty: expected at least one sample; check it and its filter",
        ),
        (
            {"train_set": (torch.zeros(3, 4), torch.tensor([0, 1, 3]))},
            "the training labels run from 0 to 3, but num_classes=3 allows 0 to 2; "
            "map the labels to 0..2 or raise num_classes",
        ),
        (
            {"true_labels": torch.zeros(7)},
            "true_labels has 7 labels for 20 training samples; expected one for each, in the order of the training set",
        ),
        (
            {"log_tensorboard": True, "out": None},
            "log_tensorboard=True needs a folder for the events; pass out= as well",
        ),
    ],
)
def test_refused_before_all_else(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """And nothing was written."""
    given = {"train_set": data(20), "meta_set": data(9), "epochs": 2, "out": tmp_path / "out"} | options
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        train(vri(), **given)
    assert not (tmp_path / "out").exists()


def test_samples_without_labels_are_refused_by_the_method() -> None:
    class Unlabelled(Dataset[Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Tensor:
            return torch.zeros(4)

    with pytest.raises(ValueError, match="the training batch has no labels: got a Tensor"):
        train(cross_entropy(), Unlabelled(), epochs=1, progress=False)


def test_out_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(NotADirectoryError) as caught:
        fit(cross_entropy(), out=tmp_path / "out")
    path = str(tmp_path / "out")
    assert str(caught.value) == f"out={path!r} is a file, expected a folder; give another name"


def test_out_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    message = (
        f"out={str(tmp_path)!r} can't be written to (Permission denied); expected a folder that can: "
        "give another one, or change its permissions"
    )
    with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
        fit(cross_entropy(), out=tmp_path)


# what is shown


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    fit(cross_entropy())
    assert capsys.readouterr() == ("", "")


def test_a_line_an_epoch_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    fit(Recorder(), progress=True, test_set=data(9))
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("epoch 1/2: loss 1.0000, test accuracy 0.")
    assert second.endswith("(0 s left)")


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fit(Recorder(), progress=True)
    err = capsys.readouterr().err
    assert "8/8" in err
    assert "loss 1.0000" in err


def test_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert [row["epoch"] for row in fit(Recorder(), progress=True)] == [1, 2]


def test_tensorboard_has_each_epoch_once_after_resuming(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stopped = Recorder([{"loss": float(i)} for i in range(6)] + [{"loss": NAN}])
    with pytest.raises(DivergenceError):
        fit(stopped, out=tmp_path, checkpoint_every=1, log_tensorboard=True)
    resumed = Recorder([{"loss": float(i)} for i in range(8)])
    history = fit(resumed, out=tmp_path, log_tensorboard=True)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(r["step"], r["loss"]) for r in history]


def test_tensorboard_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError) as caught:
        fit(cross_entropy(), out=tmp_path / "out", log_tensorboard=True)
    assert str(caught.value) == (
        "log_tensorboard=True needs TensorBoard, which is not installed: pip install 'vri[tensorboard]'"
    )
    assert not (tmp_path / "out").exists()


def test_history_is_plain(tmp_path: Path) -> None:
    history = fit(vri(), meta_set=data(9), out=tmp_path)
    assert pickle.loads(pickle.dumps(history)) == history == json.loads(json.dumps(history))


def test_a_method_that_cannot_do_without_clean_samples() -> None:
    net = network()
    method = CleanOnly(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1))
    message = (
        "CleanOnly learns from clean samples, but meta_set is None: expected (inputs, labels) with at least "
        "one sample of each class; pass meta_set="
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        train(method, data(20), epochs=2)
