"""ANIMAL-10N: 55,000 photographs of ten animals in five pairs that people confuse, 64x64 pixels.

Song et al., "SELFIE: refurbishing unclean samples for robust deep learning" (2019). The authors' archive has the
folders ``training`` and ``testing``; a file's name begins with its label: ``4_12345.jpg``.
"""

import os
import re
from pathlib import Path

from vri.data.files import FileData, FilesEntry, is_image
from vri.data.image_files import ImageFiles, Preparation
from vri.data.lists import inner, shorten
from vri.data.places import DatasetMissing, FileCheck, examine

# In the order of the authors' page, which spells one of them "jaguer" elsewhere.
_CLASSES = ("cat", "lynx", "wolf", "coyote", "cheetah", "jaguar", "chimpanzee", "orangutan", "hamster", "guinea pig")
_PARTS = {"training": "50,000", "testing": "5,000"}  # and the images each has in the published set
_NAME = re.compile(r"([0-9])_.+")

_PREPARE = Preparation(size=64, resize=64, augment="flip")


def animal10n(root: str | Path, *, prepare: Preparation | None = None) -> FileData:
    """Read ANIMAL-10N: noisy training images and clean test images; it has no trusted part for training.

    Args:
        root: folder that holds ``training`` and ``testing``, or ``raw_image`` with both.
        prepare: how an image becomes a tensor; by default in its own size, with half of the training images mirrored.
    """
    root = inner(Path(root), "raw_image")
    lost = [f"{name}/" for name in _PARTS if not (root / name).is_dir()]
    if lost:
        raise DatasetMissing(
            f"animal-10n is not whole in {root}: {', '.join(lost)} not found; "
            "fetch it from https://dm.kaist.ac.kr/datasets/animal-10n"
        )
    train, test = (_read(root, name, prepare or _PREPARE) for name in _PARTS)
    return FileData("animal-10n", train, None, None, test, _CLASSES)


def check_animal10n(root: str | Path) -> list[FileCheck]:
    """Count the images of both folders."""
    root = inner(Path(root), "raw_image")

    def look(path: Path) -> str:
        return f"{len(_read(root, path.name, _PREPARE)):,} images; {_PARTS[path.name]} were published"

    return [examine(root / name, look) for name in _PARTS]


ANIMAL10N = FilesEntry(
    name="animal10n",
    description="50,000 + 5,000 animals, 64x64 colour",
    num_classes=len(_CLASSES),
    instructions="ask for the archive at https://dm.kaist.ac.kr/datasets/animal-10n and unpack it",
    marks=("training", "raw_image/training"),
    read=animal10n,
    look=check_animal10n,
)


def _read(root: Path, name: str, prepare: Preparation) -> ImageFiles:
    images = sorted(entry.name for entry in os.scandir(root / name) if is_image(entry.name))
    unlabelled = [image for image in images if _NAME.fullmatch(image) is None]
    if unlabelled or not images:
        what = f"{len(unlabelled):,} images without a label: {shorten(unlabelled)}" if images else "no images"
        raise ValueError(
            f"{root / name} has {what}; expected names that begin with a class from 0 to 9 and _, such as 4_12345.jpg: "
            "fetch the archive again"
        )
    labels = [int(image[0]) for image in images]
    paths = [f"{name}/{image}" for image in images]
    return ImageFiles(root, paths, labels, prepare, training=name == "training")
