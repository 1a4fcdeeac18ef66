"""Folders of images, `root/class/image`: listed, and decoded once to bytes."""

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from vri import backbones
from vri.cleaning.tables import check_known
from vri.data.files import image_folder, is_image
from vri.data.image_files import BrokenImage, Preparation, centre, read_image
from vri.data.lists import shorten
from vri.training.progress import report

THUMBNAIL = 160  # longest side, in pixels
_MAX_PIXELS = Preparation().max_pixels

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Listing:
    """The images of a folder.

    Attributes:
        root: the folder.
        paths: of the images, relative to `root`, with / between their parts.
        labels: the folder each is in; "" for an image without label.
        notes: files that were skipped.
    """

    root: Path
    paths: list[str]
    labels: list[str]
    notes: list[str]


def list_images(root: Path, unlabelled: bool | str = False) -> Listing:
    """All images in the folders of `root`, sorted; those with names that are not UTF-8 are left out and noted.

    Args:
        root: the folder.
        unlabelled: whether to take images without label, too, which lie in `root` itself. A text is the folder of
            others.
    """
    found = image_folder(root)
    if isinstance(unlabelled, str):
        check_known(unlabelled, unlabelled in found.class_names, str(root), found.class_names)
    paths = [found.train.relative_path(index) for index in range(len(found.train))]
    loose = sorted(entry.name for entry in os.scandir(root) if is_image(entry.name) and entry.is_file())
    paths += loose if unlabelled else []
    sound = [path for path in paths if path == path.encode("utf-8", "ignore").decode()]
    notes = []
    if loose and not unlabelled:
        notes.append(
            f"{len(loose):,} images are in no folder of a class and are left out: {shorten(loose)}; --unlabelled takes "
            "them as samples without label"
        )
    if len(sound) < len(paths):
        odd = sorted(set(paths) - set(sound))
        names = shorten(os.fsencode(path).decode("utf-8", "backslashreplace") for path in odd)
        notes.append(f"{len(odd):,} images have names that are not UTF-8 and are left out: {names}")
    classes = [path.rpartition("/")[0] for path in sound]
    return Listing(root, sound, ["" if name == unlabelled else name for name in classes], notes)


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

    def check(self) -> None:
        """Check that it can be built, before any image is read."""
        try:
            self(2)
        except TypeError as error:  # module:package.module.factory doesn't name a factory
            raise ValueError(str(error)) from error


def _pixels(image: Image.Image, prepare: Preparation) -> Bytes:
    """(3, height, width)."""
    return np.asarray(centre(image, prepare)).transpose(2, 0, 1)
