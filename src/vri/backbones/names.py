"""Classifiers by name: those of this package, of timm and torchvision, and any factory on the Python path."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from vri.backbones.fastnet import fast
from vri.backbones.large import resnet50, vgg19_bn
from vri.backbones.parts import seeded_init
from vri.backbones.residual import (
    preact_resnet18,
    preact_resnet34,
    resnet18,
    resnet32,
    resnet34,
    wide_resnet28_10,
)
from vri.backbones.small import mlp, small_cnn
from vri.backbones.weights import load_weights

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "resnet32": resnet32,
    "fast": fast,
    "small_cnn": small_cnn,
    "mlp": mlp,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "preact_resnet18": preact_resnet18,
    "preact_resnet34": preact_resnet34,
    "wide_resnet28_10": wide_resnet28_10,
    "resnet50": resnet50,
    "vgg19_bn": vgg19_bn,
}


def build(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    image_size: int | None = None,
    seed: int | None = None,
    weights: str | Path | None = None,
) -> nn.Module:
    """Build a classifier from its name.

    Args:
        name: one of `BACKBONES`; ``timm:NAME`` or ``torchvision:NAME``, if that library is installed; or
            ``module:package.module.factory``, your own function or class. It is called with ``num_classes=`` and those
            of ``in_channels=``, ``image_size=`` and ``seed=`` that its signature names.
        num_classes: logits.
        in_channels: channels of the images.
        image_size: side of the square images; needed by `mlp` and by models of other libraries that are made for one
            size.
        seed: of the initial weights; if None, they come from the global RNG.
        weights: file of weights to start from; see `load_weights`.
    """
    source, colon, inner = name.partition(":")
    makers = {"timm": _from_timm, "torchvision": _from_torchvision, "module": _from_module}
    with seeded_init(seed):
        if colon and source in makers:
            model = makers[source](inner, num_classes, in_channels, image_size, seed)
        elif name == "mlp":
            model = mlp(_mlp_inputs(in_channels, image_size), num_classes, seed=seed)
        elif name in BACKBONES:
            model = BACKBONES[name](num_classes, in_channels, seed=seed)
        else:
            raise ValueError(
                f"backbone is {name!r}; expected one of {', '.join(BACKBONES)}, timm:NAME, torchvision:NAME or "
                f"module:package.module.factory: did you mean {_nearest(name, BACKBONES)!r}?"
            )
    if weights is not None:
        load_weights(model, weights)
    return model


def _mlp_inputs(in_channels: int, image_size: int | None) -> int:
    if image_size is None:
        raise ValueError("backbone 'mlp' needs image_size, the side of the images; it is None: pass image_size=")
    return in_channels * image_size**2


def _from_timm(name: str, num_classes: int, in_channels: int, image_size: int | None, _: int | None) -> nn.Module:
    timm = _library("timm", name)
    _check_listed("timm", name, timm.list_models())
    options = {"num_classes": num_classes, "in_chans": in_channels, "pretrained": False}
    return _sized(lambda **size: timm.create_model(name, **options, **size), "img_size", image_size)


def _from_torchvision(
    name: str, num_classes: int, in_channels: int, image_size: int | None, _: int | None
) -> nn.Module:
    models = _library("torchvision", name).models
    _check_listed("torchvision", name, models.list_models(module=models))
    if in_channels != 3:
        raise ValueError(
            f"torchvision:{name} takes images of 3 channels, and in_channels is {in_channels}; "
            "repeat or convert the channels, or take a model of timm or of this package"
        )
    options = {"num_classes": num_classes, "weights": None}
    return _sized(lambda **size: models.get_model(name, **options, **size), "image_size", image_size)


def _library(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError, OSError) as error:  # a build for a different torch fails in various ways
        raise ImportError(
            f"{package}:{name} needs the package {package}, which can't be imported ({error}); pip install {package}"
        ) from error


def _check_listed(package: str, name: str, names: Iterable[str]) -> None:
    listed = list(names)
    if name not in listed:
        hint = f": did you mean '{package}:{_nearest(name, listed)}'?" if listed else ""
        raise ValueError(f"{package} has no model {name!r}; expected one of its {len(listed)} models{hint}")


def _sized(make: Callable[..., nn.Module], option: str, image_size: int | None) -> nn.Module:
    """Pass the image size to models that are made for one; most accept any size and lack this option."""
    if image_size is not None:
        try:
            return make(**{option: image_size})
        except TypeError as error:
            if option not in str(error):
                raise
    return make()


def _from_module(path: str, num_classes: int, in_channels: int, image_size: int | None, seed: int | None) -> nn.Module:
    module_name, _, attribute = path.rpartition(".")
    expected = "expected module:package.module.factory"
    if not module_name or not attribute:
        raise ValueError(f"module:{path} does not name a factory; {expected}, such as module:my_models.make")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(
            f"module:{path}: {module_name} can't be imported ({error}); {expected}: "
            "check the name, and that its folder is on PYTHONPATH"
        ) from error
    factory = getattr(module, attribute, None)
    if factory is None:
        public = [n for n, member in vars(module).items() if callable(member) and not n.startswith("_")]
        hint = f": did you mean {_nearest(attribute, public)!r}?" if public else ""
        raise ValueError(f"module:{path}: {module_name} has no {attribute!r}; {expected}{hint}")
    if not callable(factory):
        raise TypeError(f"module:{path} is a {type(factory).__name__}; expected a function or class to call")
    offered = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size, "seed": seed}
    known = inspect.signature(factory).parameters
    if "num_classes" not in known:
        raise TypeError(f"module:{path} takes ({', '.join(known)}); expected an argument num_classes: add it")
    model = factory(**{n: value for n, value in offered.items() if n in known})
    if not isinstance(model, nn.Module):
        raise TypeError(f"module:{path} returns a {type(model).__name__}; expected an nn.Module that gives logits")
    return model


def _nearest(name: str, names: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)[0]
