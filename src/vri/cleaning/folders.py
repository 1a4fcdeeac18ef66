"""Folders of images, `root/class/image`: listed, and decoded once to bytes or to features of a trained network."""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from vri import backbones
from vri.data.files import image_folder
from vri.data.image_files import BrokenImage, Preparation, centre, read_image
from vri.data.lists import shorten
from vri.files import atomic_write
from vri.training.progress import report

THUMBNAIL = 160  # longest side, in pixels
_MAX_PIXELS = Preparation().max_pixels
_CHUNK = 512  # images whose features are saved together; a stopped run loses fewer than these
_BATCH = 32

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Listing:
    """The images of a folder.

    Attributes:
        root: the folder.
        paths: of the images, relative to `root`, with / between their parts.
        labels: the folder each is in.
        notes: files that were skipped.
    """

    root: Path
    paths: list[str]
    labels: list[str]
    notes: list[str]


def list_images(root: Path) -> Listing:
    """All images in the folders of `root`, sorted; those with names that are not UTF-8 are left out and noted."""
    files = image_folder(root).train
    paths = [files.relative_path(index) for index in range(len(files))]
    sound = [path for path in paths if path == path.encode("utf-8", "ignore").decode()]
    notes = []
    if len(sound) < len(paths):
        odd = sorted(set(paths) - set(sound))
        names = shorten(os.fsencode(path).decode("utf-8", "backslashreplace") for path in odd)
        notes.append(f"{len(odd):,} images have names that are not UTF-8 and are left out: {names}")
    return Listing(root, sound, [path.partition("/")[0] for path in sound], notes)


def readable(listing: Listing, size: int | None) -> tuple[Listing, Bytes | None, str]:
    """Read all images: return the readable ones, their pixels, and a hash of the files.

    Args:
        listing: the images to read.
        size: side of the squares that the whole pictures are resized to; None leaves the pixels out.

    Returns:
        The listing without broken images, which its notes name; (n, 3, size, size) bytes or None; the hash.
    """
    digest = hashlib.sha256()
    prepare = None if size is None else Preparation(size=size, resize=size, keep_ratio=False)
    kept, pixels, broken = [], [], []
    for index in range(len(listing.paths)):
        report(index / len(listing.paths))
        path = listing.root / listing.paths[index]
        content = path.read_bytes()
        digest.update(f"{listing.paths[index]}\0{len(content)}\0".encode())
        digest.update(content)
        try:
            image = read_image(path, _MAX_PIXELS)
        except BrokenImage as error:
            broken.append(f"left out: {str(error).partition('; ')[0]}")
            continue
        kept.append(index)
        if prepare is not None:
            pixels.append(_pixels(image, prepare))
    paths, labels = [listing.paths[i] for i in kept], [listing.labels[i] for i in kept]
    sound = Listing(listing.root, paths, labels, [*listing.notes, *broken])
    if not kept:
        raise BrokenImage(
            f"none of the {len(listing.paths)} images under {listing.root} can be read; check one by hand"
        )
    return sound, np.stack(pixels) if prepare is not None else None, digest.hexdigest()[:16]


def thumbnail(path: Path) -> bytes:
    """A small JPEG of an image."""
    image = read_image(path, _MAX_PIXELS)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return content.getvalue()


@dataclass(frozen=True)
class Backbone:
    """A factory of classifiers of one name, as `VRIClassifier` takes it."""

    name: str
    image_size: int
    seed: int

    def __call__(self, num_classes: int) -> nn.Module:
        """The classifier, with weights that depend only on the seed."""
        return backbones.build(
            self.name, num_classes=num_classes, in_channels=3, image_size=self.image_size, seed=self.seed
        )


def embeddings(
    listing: Listing,
    cache: Path,
    backbone: str,
    weights: Path,
    image_size: int,
    device: torch.device,
) -> NDArray[np.float32]:
    """Features of all images, (n, d): what the last linear layer of a trained network reads.

    They are kept in `cache`, so that they are computed only once, even if a run is stopped in between.
    """
    cache.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(listing.paths), _CHUNK)
    network: nn.Module | None = None
    parts: list[NDArray[np.float32]] = []
    for start in starts:
        report(start / len(listing.paths))
        file = cache / f"{start:09d}.npy"
        if not file.exists():
            if network is None:
                network = _network(backbone, weights, image_size).to(device)
            found = _features(network, listing.root, listing.paths[start : start + _CHUNK], image_size, device)
            with atomic_write(file) as out:
                np.save(out, found, allow_pickle=False)
        parts.append(np.load(file, allow_pickle=False))
    return np.concatenate(parts)


def check_backbone(name: str, image_size: int, weights: Path | None) -> None:
    """Check that the backbone can be built and its weights fit, before any image is read."""
    try:
        Backbone(name, image_size, 0)(2) if weights is None else _network(name, weights, image_size)
    except TypeError as error:  # module:package.module.factory doesn't name a factory
        raise ValueError(str(error)) from error


def _network(name: str, weights: Path, image_size: int) -> nn.Module:
    """The network without its last linear layer."""
    model = backbones.build(name, num_classes=1000, image_size=image_size, seed=0, weights=weights)
    head = next((n for n, module in reversed(list(model.named_modules())) if isinstance(module, nn.Linear)), None)
    if head is None:
        raise ValueError(f"--backbone {name} has no linear layer; expected one at its end: use resnet50")
    model.set_submodule(head, nn.Identity())
    return model.eval()


def _features(
    network: nn.Module, root: Path, paths: Sequence[str], image_size: int, device: torch.device
) -> NDArray[np.float32]:
    prepare = Preparation(size=image_size, resize=image_size * 8 // 7)
    mean, std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (prepare.mean, prepare.std))
    found = []
    with torch.inference_mode():
        for start in range(0, len(paths), _BATCH):
            pixels = np.stack(
                [_pixels(read_image(root / path, _MAX_PIXELS), prepare) for path in paths[start : start + _BATCH]]
            )
            images = torch.from_numpy(pixels).to(device).float() / 255
            found.append(network((images - mean) / std).flatten(1).float().cpu().numpy())
    return np.concatenate(found)


def _pixels(image: Image.Image, prepare: Preparation) -> Bytes:
    """(3, height, width)."""
    return np.asarray(centre(image, prepare)).transpose(2, 0, 1)
