"""Classifiers by name: ours, those of timm and torchvision, and the user's own."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from classifiers import images, saved
from vri.backbones import (
    build,
    mlp,
    small_cnn,
)


def test_build_gives_the_mlp_its_inputs() -> None:
    model = build("mlp", num_classes=3, in_channels=2, image_size=5, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), mlp(50, 3, seed=4).parameters(), strict=True))
    with pytest.raises(ValueError, match=r"^backbone 'mlp' needs image_size, the side of the images; it is None: "):
        build("mlp", num_classes=3)


def test_build_loads_weights_into_any_model(tmp_path: Path) -> None:
    path = saved(tmp_path, small_cnn(10, 3, seed=1).state_dict())
    model = build("small_cnn", num_classes=4, in_channels=3, seed=2, weights=path)
    assert torch.equal(model.state_dict()["0.weight"], small_cnn(10, 3, seed=1).state_dict()["0.weight"])
    assert torch.equal(model.state_dict()["13.weight"], small_cnn(4, 3, seed=2).state_dict()["13.weight"])


def test_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="resnet50") as caught:
        build("resnet-50", num_classes=3)
    assert str(caught.value) == (
        "backbone is 'resnet-50'; expected one of resnet32, fast, small_cnn, mlp, resnet18, resnet34, "
        "preact_resnet18, preact_resnet34, wide_resnet28_10, resnet50, vgg19_bn, timm:NAME, torchvision:NAME or "
        "module:package.module.factory: did you mean 'resnet50'?"
    )


def library(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def convnet(num_classes: int, in_chans: int = 3, pretrained: bool = False) -> nn.Module:
    assert not pretrained
    return nn.Sequential(nn.Conv2d(in_chans, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))


def vit(num_classes: int, in_chans: int = 3, pretrained: bool = False, img_size: int = 224) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * img_size**2, num_classes))


def test_models_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: dict[str, Callable[..., nn.Module]] = {"tinynet_a": convnet, "vit_tiny": vit}
    library(
        monkeypatch,
        "timm",
        create_model=lambda name, **options: makers[name](**options),
        list_models=lambda: list(makers),
    )
    state = torch.get_rng_state()
    model = build("timm:tinynet_a", num_classes=3, in_channels=2, image_size=8, seed=1)
    assert model(images(2, (2, 8, 8))).shape == (2, 3)
    again = build("timm:tinynet_a", num_classes=3, in_channels=2, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    sized = build("timm:vit_tiny", num_classes=3, image_size=8, seed=1)
    assert sized(images(2, (3, 8, 8))).shape == (2, 3)
    with pytest.raises(ValueError, match="timm") as caught:
        build("timm:tinynet_b", num_classes=3)
    assert str(caught.value) == (
        "timm has no model 'tinynet_b'; expected one of its 2 models: did you mean 'timm:tinynet_a'?"
    )


def test_models_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, *, weights: None, num_classes: int) -> nn.Module:
        assert (name, weights) == ("tinynet", None)
        return convnet(num_classes)

    models = SimpleNamespace(get_model=get_model, list_models=lambda module: ["tinynet"] if module is models else [])
    library(monkeypatch, "torchvision", models=models)
    model = build("torchvision:tinynet", num_classes=4, image_size=8, seed=1)
    assert model(images(2, (3, 8, 8))).shape == (2, 4)
    with pytest.raises(ValueError, match="channels") as caught:
        build("torchvision:tinynet", num_classes=4, in_channels=1)
    assert str(caught.value) == (
        "torchvision:tinynet takes images of 3 channels, and in_channels is 1; "
        "repeat or convert the channels, or take a model of timm or of this package"
    )


def test_an_error_inside_a_library_is_not_taken_for_an_unknown_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, **options: Any) -> nn.Module:
        if "img_size" in options:
            raise TypeError("something else")
        return nn.Linear(2, 3)

    library(monkeypatch, "timm", create_model=create_model, list_models=lambda: ["a"])
    with pytest.raises(TypeError, match=r"^something else$"):
        build("timm:a", num_classes=3, image_size=8)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_library_that_is_not_installed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=package) as caught:
        build(f"{package}:resnet50", num_classes=3)
    assert str(caught.value) == (
        f"{package}:resnet50 needs the package {package}, which can't be imported "
        f"(import of {package} halted; None in sys.modules); pip install {package}"
    )


MODELS = """
from torch import nn

NUMBER = 3

def plain(num_classes):
    return nn.Linear(4, num_classes)

def full(num_classes, in_channels, image_size, seed):
    model = nn.Linear(in_channels * image_size ** 2, num_classes)
    model.seed = seed
    return model

class Net(nn.Linear):
    def __init__(self, num_classes, **others):
        assert not others
        super().__init__(4, num_classes)

def lost(num_classes):
    return "a model"

def stubborn(classes):
    return nn.Linear(4, classes)
"""


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "models_of_a_test.py").write_text(MODELS)
    (tmp_path / "broken_models_of_a_test.py").write_text("import not_a_module_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    yield "models_of_a_test"
    sys.modules.pop("models_of_a_test", None)


def test_factories_of_the_user(my_models: str) -> None:
    plain, again = (build(f"module:{my_models}.plain", num_classes=5, seed=2) for _ in range(2))
    assert torch.equal(plain.weight, again.weight)
    full = build(f"module:{my_models}.full", num_classes=5, in_channels=2, image_size=3, seed=2)
    assert (full.in_features, full.out_features, full.seed) == (18, 5, 2)
    assert build(f"module:{my_models}.Net", num_classes=5, in_channels=2).out_features == 5


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        (
            "factory",
            ValueError,
            "module:factory does not name a factory; expected module:package.module.factory, such as "
            "module:my_models.make",
        ),
        (
            "no_such_models.make",
            ImportError,
            "module:no_such_models.make: no_such_models can't be imported (No module named 'no_such_models'); "
            "expected module:package.module.factory: check the name, and that its folder is on PYTHONPATH",
        ),
        (
            "broken_models_of_a_test.make",
            ImportError,
            "module:broken_models_of_a_test.make: broken_models_of_a_test can't be imported "
            "(No module named 'not_a_module_at_all'); "
            "expected module:package.module.factory: check the name, and that its folder is on PYTHONPATH",
        ),
        (
            "models_of_a_test.fulll",
            ValueError,
            "module:models_of_a_test.fulll: models_of_a_test has no 'fulll'; "
            "expected module:package.module.factory: did you mean 'full'?",
        ),
        (
            "models_of_a_test.NUMBER",
            TypeError,
            "module:models_of_a_test.NUMBER is a int; expected a function or class to call",
        ),
        (
            "models_of_a_test.lost",
            TypeError,
            "module:models_of_a_test.lost returns a str; expected an nn.Module that gives logits",
        ),
        (
            "models_of_a_test.stubborn",
            TypeError,
            "module:models_of_a_test.stubborn takes (classes); expected an argument num_classes: add it",
        ),
    ],
)
def test_factories_that_are_none(my_models: str, path: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        build(f"module:{path}", num_classes=3)
