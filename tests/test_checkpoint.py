"""Checkpoints: whole, plain, of this run; and kept when training diverges or is interrupted."""

import errno
import json
import math
import os
import signal
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from loop_helpers import CLASSES, NAN, Recorder, cross_entropy, data, fit, vri
from vri.cli import main
from vri.core.checks import DivergenceError
from vri.files import atomic_write
from vri.methods import CrossEntropy, Method
from vri.training.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from vri.training.loop import train

# checkpoints


def checksum(labels: Tensor) -> str:
    return f"{zlib.crc32(labels.double().numpy().tobytes()):08x}"


def test_other_settings_are_named(tmp_path: Path) -> None:
    fit(cross_entropy(), out=tmp_path)
    x, y = data(20)
    options = {"epochs": 3, "batch_size": 4, "seed": 1, "progress": False, "out": tmp_path}
    with pytest.raises(CheckpointError) as caught:
        train(cross_entropy(lr=0.2), (x, y.flip(0)), schedule="constant", **options)
    assert str(caught.value) == (
        f"the checkpoint {tmp_path / 'checkpoint.pt'} is of another run: epochs was 2 and is 3; "
        "batch_size was 5 and is 4; meta_batch_size was 5 and is 4; learning rates was [0.1] and is [0.2]; "
        "schedule was 'cosine' and is 'constant'; seed was 0 and is 1; "
        f"checksum of the training labels was {checksum(y)!r} and is {checksum(y.flip(0))!r}. "
        "Use the same settings to resume; pass resume=False, or another out=, to start over"
    )
    with pytest.raises(CheckpointError, match="method was 'CrossEntropy' and is 'Recorder'"):
        fit(Recorder(), out=tmp_path)


def test_other_options_of_the_method_are_named(tmp_path: Path) -> None:
    fit(vri(), out=tmp_path, meta_set=data(6))
    other = vri()
    other.kl_weight, other.meta_every = 0.5, 7
    with pytest.raises(CheckpointError, match=r"meta_every was \d and is 7; kl_weight was 0.001 and is 0.5"):
        fit(other, out=tmp_path, meta_set=data(6))


def test_other_model_is_refused(tmp_path: Path) -> None:
    fit(cross_entropy(), out=tmp_path)
    net = nn.Linear(4, CLASSES)
    with pytest.raises(CheckpointError, match="does not fit the method: Error"):
        fit(CrossEntropy(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1)), out=tmp_path)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "byte":
        weights = load_checkpoint(path)["method"]["model"]["0.weight"].numpy().tobytes()
        content[content.index(weights) + 5] ^= 1  # torch.load alone would not notice
        path.write_bytes(content)
    elif how == "code":
        torch.save({"format": 1, "settings": print}, path)
    else:
        path.write_bytes(b"" if how == "empty" else b"not a checkpoint")


@pytest.mark.parametrize("how", ["cut", "byte", "empty", "text", "code"])
def test_damaged_checkpoint(how: str, tmp_path: Path) -> None:
    fit(cross_entropy(), out=tmp_path)
    path, before = tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt"
    damage(path, how)
    before.unlink()
    with pytest.raises(CheckpointError) as caught:
        fit(cross_entropy(), out=tmp_path)
    fix = "damaged or not vri's: expected a whole file; delete it, or pass resume=False, to start over"
    assert str(caught.value) == f"the checkpoint {path} is {fix}"
    before.write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        fit(cross_entropy(), out=tmp_path)
    assert str(caught.value) == f"the checkpoint {path} and the one before it are {fix}"
    fit(cross_entropy(), out=tmp_path, resume=False)
    assert load_checkpoint(path)["step"] == 8


@pytest.mark.parametrize("how", ["cut", "byte", "code"])
def test_damaged_checkpoint_gives_way_to_the_one_before(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = cross_entropy()
    history = fit(whole, out=tmp_path)
    path, before = tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt"
    assert load_checkpoint(before)["step"] == 4
    damage(path, how)
    capsys.readouterr()
    resumed = cross_entropy()
    again = fit(resumed, out=tmp_path)
    assert capsys.readouterr().err == f"the checkpoint {path} is damaged; the one before it is used, {before}\n"
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])
    untimed = [[{k: v for k, v in row.items() if k != "seconds"} for row in rows] for rows in (history, again)]
    assert untimed[0] == untimed[1]
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == again  # the row that was ahead was cut off, then came again
    assert [load_checkpoint(each)["step"] for each in (before, path)] == [4, 8]


def test_a_damaged_checkpoint_never_takes_the_place_of_the_good_one(tmp_path: Path) -> None:
    path, before = tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt"
    save_checkpoint(path, {"step": 1})
    save_checkpoint(path, {"step": 2})
    path.write_bytes(path.read_bytes()[:-1])
    assert load_checkpoint(path) == {"step": 1}
    assert not before.exists()
    save_checkpoint(path, {"step": 3})
    assert (load_checkpoint(before), load_checkpoint(path)) == ({"step": 1}, {"step": 3})


def test_every_changed_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"weights": torch.arange(4.0)})
    content = path.read_bytes()
    unnoticed = []
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 0x10
        for damaged in (changed, content[:place]):
            path.write_bytes(damaged)
            try:
                load_checkpoint(path)
                unnoticed.append((place, len(damaged)))
            except CheckpointError:
                pass
    assert unnoticed == []


def test_checkpoint_without_a_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": 2, "weights": torch.arange(4.0)}, path)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(path)


def test_a_new_run_forgets_the_checkpoint_before(tmp_path: Path) -> None:
    path, before = tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt"
    for step in (1, 2):
        save_checkpoint(path, {"step": step})
    path.unlink()  # as resume=False does
    save_checkpoint(path, {"step": 3})
    assert not before.exists()


@pytest.mark.parametrize("links", [True, False])
def test_the_checkpoint_is_in_its_place_at_any_moment(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt"
    replace, seen = os.replace, []

    def watch(a: Path, b: Path) -> None:
        seen.append(path.exists() and load_checkpoint(path)["step"])
        replace(a, b)
        seen.append(load_checkpoint(path)["step"])

    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "replace", watch)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    for step in (1, 2, 3):
        save_checkpoint(path, {"step": step})
    assert seen == [False, 1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert load_checkpoint(before) == {"step": 2}
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_killed_between_the_two_names(tmp_path: Path) -> None:
    """Both names are then of one file, which must not confuse the next write."""
    path, before = tmp_path / "checkpoint.pt", tmp_path / "checkpoint.previous.pt"
    save_checkpoint(path, {"step": 1})
    os.link(path, before)
    save_checkpoint(path, {"step": 2})
    assert (load_checkpoint(before), load_checkpoint(path)) == ({"step": 1}, {"step": 2})
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_checkpoint_of_another_format(tmp_path: Path) -> None:
    with patch("vri.training.checkpoints.FORMAT", 99):
        save_checkpoint(tmp_path / "a.pt", {})
    with pytest.raises(CheckpointError, match="is from another version of vri: expected format 2"):
        load_checkpoint(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "c.pt")


def test_checkpoint_holds_no_code(tmp_path: Path) -> None:
    fit(vri(), meta_set=data(9), out=tmp_path)
    torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    with pytest.raises(TypeError) as caught:
        save_checkpoint(tmp_path / "a.pt", {"method": {"step": [1, print]}})
    assert str(caught.value) == (
        "state['method']['step'][1] is a builtin_function_or_method, which a checkpoint can't hold: expected "
        "dict, list, tuple, str, int, float, bool, None or tensor; convert it in state_dict()"
    )
    assert not (tmp_path / "a.pt").exists()


@pytest.mark.parametrize("function", ["os.replace", "os.fsync", "torch.save"])
def test_failed_write_keeps_the_old_checkpoint(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"step": 1})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(function, full)
        with pytest.raises(OSError, match=r"No space left|the disk is full: .* what was there before is kept") as error:
            save_checkpoint(path, {"step": 2})
        assert error.value.errno == errno.ENOSPC
    assert load_checkpoint(path) == {"step": 1}
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_new_checkpoint_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        calls.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", lambda a, b: calls.append("replace") or replace(a, b))  # type: ignore
    save_checkpoint(tmp_path / "checkpoint.pt", {"step": 1})
    assert calls == ["file", "replace", "folder"]


# divergence and interrupts


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"loss": NAN}, "loss is nan"),
        ({"loss": math.inf}, "loss is inf"),
        ({"loss": 1.0, "kl": math.inf}, "kl is inf"),
    ],
)
def test_divergence_keeps_the_checkpoint(metrics: dict[str, float], reason: str, tmp_path: Path) -> None:
    with pytest.raises(DivergenceError) as caught:
        fit(Recorder([{"loss": 1.0}] * 6 + [metrics]), out=tmp_path, schedule="constant")
    path = tmp_path / "checkpoint.pt"
    assert str(caught.value) == (
        f"training diverged in epoch 2, step 7 of 8: {reason}. The checkpoint of step 4 is kept: {path}. Try "
        "a lower learning rate (here it was 1), starting over with resume=False or another out="
    )
    assert load_checkpoint(path)["step"] == 4


def test_real_divergence(tmp_path: Path) -> None:
    x, y = data(20)
    method = cross_entropy(lr=1e30)
    with pytest.raises(DivergenceError, match="training diverged in epoch 1, step 2 of 8") as caught:
        train(method, (x, y), epochs=2, batch_size=5, out=tmp_path, checkpoint_every=1, progress=False)
    assert isinstance(caught.value.__cause__, DivergenceError)
    weights = load_checkpoint(tmp_path / "checkpoint.pt")["method"]["model"]
    assert all(bool(value.isfinite().all()) for value in weights.values())


def test_lost_weights_are_not_saved(tmp_path: Path) -> None:
    method = Recorder()
    original = method.step

    def lose(batch: Any, meta_batch: Any = None) -> dict[str, float]:
        if method.steps == 5:
            method.model.weight.data[0, 0] = NAN
        return original(batch, meta_batch)

    method.step = lose  # type: ignore[method-assign]
    with pytest.raises(DivergenceError, match=r"epoch 2, step 6 of 8: weights are NaN or Inf. The checkpoint of"):
        fit(method, out=tmp_path, checkpoint_every=3)
    state = load_checkpoint(tmp_path / "checkpoint.pt")
    assert state["step"] == 3
    assert bool(state["method"]["model"]["weight"].isfinite().all())


def interrupt_at(method: Method, step: int, times: int = 1) -> None:
    original, count = method.step, 0

    def interrupted(batch: Any, meta_batch: Any = None) -> dict[str, float]:
        nonlocal count
        if count == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        count += 1
        return original(batch, meta_batch)

    method.step = interrupted  # type: ignore[method-assign]


def test_interrupt_finishes_the_step_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = cross_entropy()
    fit(whole)
    stopped = cross_entropy()
    interrupt_at(stopped, 2)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, out=tmp_path)
    path = tmp_path / "checkpoint.pt"
    assert capsys.readouterr().err == (
        f"interrupted after step 3 of 8; {path} holds step 3: the same call with resume=True continues from there\n"
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = cross_entropy()
    fit(resumed, out=tmp_path)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])


def test_second_interrupt_stops_inside_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped = cross_entropy()
    interrupt_at(stopped, 5, times=2)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, out=tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 4
    assert "interrupted after step 5 of 8; " in capsys.readouterr().err


def test_interrupt_without_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    stopped = cross_entropy()
    interrupt_at(stopped, 0)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped)
    assert capsys.readouterr().err == (
        "interrupted after step 1 of 8; nothing is saved: pass out= to be able to resume\n"
    )


# the command line: SIGTERM, a full disk, a folder that can't be written to

TRAIN = ["train", "--dataset", "digits", "--noise", "flip", "--method", "cross-entropy", "--backbone", "mlp", "--quiet"]
TRAIN += ["epochs=2", "limit=60", "batch_size=20", "clean=0", "test_limit=20", "tensorboard=false"]


def signal_in_step(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, step: int, times: int = 1) -> None:
    original, count = CrossEntropy.step, 0

    def interrupted(self: CrossEntropy, batch: Any, meta_batch: Any = None) -> dict[str, float]:
        nonlocal count
        count += 1
        if count == step:
            for _ in range(times):
                signal.raise_signal(number)
        return original(self, batch, meta_batch)

    monkeypatch.setattr(CrossEntropy, "step", interrupted)


def test_sigterm_saves_like_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main([*TRAIN, "--out", str(whole)]) == 0
    with pytest.MonkeyPatch.context() as patch:
        signal_in_step(patch, signal.SIGTERM, 5)
        assert main([*TRAIN, "--out", str(stopped)]) == 143
    assert capsys.readouterr().err == (
        f"interrupted after step 5 of 6; {stopped / 'checkpoint.pt'} holds step 5: the same call with resume=True "
        "continues from there\n\nstopped; the same command with --resume continues where it left off\n"
    )
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert main([*TRAIN, "--out", str(stopped), "--resume"]) == 0
    a, b = (load_checkpoint(folder / "checkpoint.pt")["method"]["model"] for folder in (whole, stopped))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_second_sigterm_stops_inside_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_in_step(monkeypatch, signal.SIGTERM, 5, times=2)
    assert main([*TRAIN, "--out", str(tmp_path)]) == 143
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 3


def test_sigterm_ends_a_background_job_that_ignores_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        signal_in_step(monkeypatch, signal.SIGTERM, 5)
        assert main([*TRAIN, "--out", str(tmp_path)]) == 143
    finally:
        signal.signal(signal.SIGINT, before)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["step"] == 3


def test_ctrl_c_still_gives_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_in_step(monkeypatch, signal.SIGINT, 2)
    assert main([*TRAIN, "--out", str(tmp_path)]) == 130


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes to signal")
def full_disk(patch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """No file of this name can be written any more."""
    original = os.replace

    def replace(a: Path, b: Path) -> None:
        if Path(b).name == name:
            raise OSError(number, os.strerror(number), str(a), None, str(b))
        original(a, b)

    patch.setattr(os, "replace", replace)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_write_that_fails_is_told_in_one_line(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        full_disk(patch, "checkpoint.pt", number)
        assert main([*TRAIN, "--out", str(tmp_path)]) == 2
    path = tmp_path / "checkpoint.pt"
    kept = f"{path} was not written, what was there before is kept"
    expected = (
        f"vri train: the disk is full: {kept}; free some space\n"
        if number in (errno.ENOSPC, errno.EDQUOT)
        else f"vri train: {kept} ({os.strerror(number)}); choose another folder, or change its permissions\n"
    )
    assert capsys.readouterr().err == expected
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    assert main([*TRAIN, "--out", str(tmp_path), "--resume"]) == 0


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (
            errno.ENOSPC,
            "the disk is full (a/history.jsonl); free some space, then run the same command again: "
            "what is whole is kept",
        ),
        (
            errno.EROFS,
            "a/history.jsonl can't be used (Read-only file system); choose another place, or change its permissions",
        ),
        (errno.ENOENT, "[Errno 2] No such file or directory: 'a/history.jsonl'"),
    ],
)
def test_errors_of_the_system_are_told_in_words(
    number: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> int:
        raise OSError(number, os.strerror(number), "a/history.jsonl")

    monkeypatch.setattr("vri.cli.methods._run", fail)
    assert main(["methods"]) == 2
    assert capsys.readouterr().err == f"vri methods: {expected}\n"


def test_an_error_of_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"), atomic_write(tmp_path / "a"):
        (tmp_path / "missing").read_bytes()
    with pytest.raises(PermissionError, match=r"^\[Errno 13\] no: 'source.jpg'$"), atomic_write(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "no", "source.jpg")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("share", "epochs"), [(1.0, [1, 2, 3, 4, 5]), (1e-9, [1, 5])])
def test_checkpoints_of_short_epochs_are_written_as_often_as_is_cheap(
    share: float, epochs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []

    def save(path: Path, state: dict[str, Any]) -> None:
        save_checkpoint(path, state)
        saved.append(state["epoch"])

    monkeypatch.setattr("vri.training.checkpoints.save_checkpoint", save)
    monkeypatch.setattr("vri.training.state.RunState.SAVING_SHARE", share)
    fit(cross_entropy(), epochs=5, out=tmp_path)
    assert saved == epochs
