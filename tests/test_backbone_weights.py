"""Weights of classifiers from files: read without running code, refused with a reason when they don't fit."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from classifiers import built, on_meta, saved
from vri.backbones import (
    load_weights,
    resnet50,
)


class Tiny(nn.Module):
    """Some of the names of ResNet-50, and quick to save."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3, fill: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 4, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, num_classes)
        for tensor in [*self.parameters(), self.bn1.running_mean]:
            nn.init.constant_(tensor, fill)

    def values(self) -> dict[str, float]:
        return {name: float(tensor.double().mean()) for name, tensor in self.state_dict().items()}


HOW = (
    "for resnet50 fetch https://download.pytorch.org/models/resnet50-0676ba61.pth (or resnet50-11ad3fa6.pth) where "
    "there is internet, or save timm's there: "
    "torch.save(timm.create_model('resnet50', pretrained=True).state_dict(), 'resnet50.pth')"
)


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    model, given = Tiny(fill=1.0), Tiny(fill=2.0)
    load_weights(model, saved(tmp_path, given.state_dict()))
    assert model.values() == given.values()


def test_weights_of_another_number_of_classes_leave_the_last_layer_alone(tmp_path: Path) -> None:
    model = Tiny(num_classes=5, fill=1.0)
    load_weights(model, str(saved(tmp_path, Tiny(num_classes=1000, fill=2.0).state_dict())))
    found = model.values()
    assert [found[n] for n in ("conv1.weight", "bn1.running_mean", "fc.weight", "fc.bias")] == [2.0, 2.0, 1.0, 1.0]


def test_weights_from_before_batch_norm_counted(tmp_path: Path) -> None:
    state = Tiny(fill=2.0).state_dict()
    del state["bn1.num_batches_tracked"]
    model = Tiny(fill=1.0)
    load_weights(model, saved(tmp_path, dict(state)))
    assert model.values()["fc.bias"] == 2.0


def test_weights_in_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(Tiny(fill=2.0).state_dict(), path)
    model = Tiny(fill=1.0)
    load_weights(model, path)
    assert model.values()["conv1.weight"] == 2.0


def test_resnet50_begins_from_the_weights_of_a_larger_head(tmp_path: Path) -> None:
    shapes = {name: tensor.shape for name, tensor in on_meta(resnet50, 1000, 2).state_dict().items()}
    # One number each, stretched: the file stays small.
    given = {name: torch.tensor(float(number)).expand(shape) for number, (name, shape) in enumerate(shapes.items())}
    model = resnet50(7, 2, seed=3, weights=saved(tmp_path, given, "resnet50.pth"))
    for number, (name, tensor) in enumerate(model.state_dict().items()):
        if name.startswith("fc."):
            assert torch.equal(tensor, built("resnet50").state_dict()[name])  # as the seed has it
        else:
            assert (tensor == number).all()


def test_names_of_resnet50_are_those_of_the_files() -> None:
    names = list(on_meta(resnet50, 1000).state_dict())
    assert len(names) == 320  # as in torchvision's and timm's files
    assert names[:6] == ["conv1.weight", *(f"bn1.{n}" for n in NORM)]
    block = [f"layer1.0.{part}" for k in (1, 2, 3) for part in (f"conv{k}.weight", *(f"bn{k}.{n}" for n in NORM))]
    assert names[6 : 6 + len(block)] == block
    shortcut = ["layer1.0.downsample.0.weight", *(f"layer1.0.downsample.1.{n}" for n in NORM)]
    assert names[6 + len(block) : 6 + len(block) + len(shortcut)] == shortcut
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert "layer3.5.bn3.running_var" in names


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class Runs:
    """Unpickled by anything but a careful reader, it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code ran",)


def test_weights_are_read_without_running_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="can't be read") as caught:
        load_weights(Tiny(), path := saved(tmp_path, {"conv1.weight": Runs()}))
    assert str(caught.value).startswith(f"the weights in {path} can't be read (UnpicklingError: ")
    assert str(caught.value).endswith(f"; expected a state dict, whole and without code: {HOW}")
    assert capsys.readouterr().out == ""


def test_cut_off_weights(tmp_path: Path) -> None:
    path = saved(tmp_path, Tiny().state_dict())
    path.write_bytes(path.read_bytes()[:500])
    model = Tiny(fill=1.0)
    with pytest.raises(ValueError, match=f"^the weights in {re.escape(str(path))} can't be read "):
        load_weights(model, path)
    assert model.values()["fc.bias"] == 1.0


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n: t for n, t in state.items() if n != name}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda s: without(s, "bn1.weight"),
            "1 of the model's names are not in it (bn1.weight)",
        ),
        (
            lambda s: {**s, "layer9.weight": torch.ones(2)},
            "1 of its names are not in the model (layer9.weight)",
        ),
        (
            lambda s: {f"module.{n}": t for n, t in s.items()},
            "7 of the model's names are not in it (bn1.bias, bn1.running_mean, bn1.running_var, ...); "
            "8 of its names are not in the model (module.bn1.bias, module.bn1.num_batches_tracked, "
            "module.bn1.running_mean, ...)",
        ),
        (
            lambda s: {**s, "conv1.weight": torch.ones(4, 1, 3, 3)},
            "1 shapes differ (conv1.weight is (4, 1, 3, 3) and not (4, 3, 3, 3))",
        ),
    ],
    ids=["missing", "unknown", "prefixed", "shape"],
)
def test_weights_of_another_model(tmp_path: Path, change: Callable[[Any], Any], problem: str) -> None:
    path, model = saved(tmp_path, change(dict(Tiny(fill=2.0).state_dict()))), Tiny(fill=1.0)
    before = model.values()
    with pytest.raises(ValueError, match="not for this model") as caught:
        load_weights(model, path)
    assert str(caught.value) == (
        f"the weights in {path} are not for this model: {problem}; "
        f"expected the state dict of the same architecture: {HOW}"
    )
    assert model.values() == before


def test_weights_that_are_not_there_or_no_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "none.pth"
    with pytest.raises(FileNotFoundError) as absent:
        load_weights(Tiny(), path)
    assert str(absent.value) == f"no file with weights at {path}; expected a state dict: {HOW}"
    path = saved(tmp_path, {"state_dict": dict(Tiny().state_dict()), "epoch": 3})
    with pytest.raises(ValueError, match="state dict") as nested:
        load_weights(Tiny(), path)
    assert str(nested.value) == (
        f"{path} holds a dict of 'state_dict', 'epoch'; expected a state dict, names to tensors: "
        "save model.state_dict() itself"
    )
