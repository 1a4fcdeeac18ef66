"""Fashion-MNIST, from its four idx.gz files."""

import gzip
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vri.data.downloads import DownloadError, check_unpacked, demand, download, install, workspace
from vri.data.images import ImageData
from vri.data.places import FolderEntry, Root, Say, folders

_CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_MOST_AXES = 8  # of an idx file; torch has room for 64


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(FolderEntry):
    """The facts about Fashion-MNIST."""

    url: str  # where the files are published
    md5: Mapping[str, str]  # checksum of each file as published
    content: Mapping[str, str]  # sha256 of each file's unpacked content: Debian packs them differently

    @property
    def files(self) -> list[str]:
        """The four files."""
        return list(self.content)

    def how_to_get(self, root: Root) -> str:
        """What to do if the files are not found."""
        return "run vri data get fashion-mnist, apt-get install dataset-fashion-mnist, or put the files there"

    def candidates(self, root: Root = None, only_root: bool = False) -> list[Path]:
        """Folders to look in: the usual ones, and where Debian's package puts the files."""
        system = [] if root and only_root else (os.environ.get("XDG_DATA_DIRS") or "/usr/share").split(os.pathsep)
        return [*folders(self.name, root, only_root), *(Path(base, "datasets", self.name) for base in system)]

    def look(self, path: Path) -> str:
        """Read a file, and compare its checksum."""
        read_idx(path)
        return check_unpacked(path, self.content[path.name])

    def load(self, root: Root = None) -> ImageData:
        """60,000 + 10,000 images of 28x28 pixels."""
        folder = self.find_or_raise(root)
        train_images, train_labels, test_images, test_labels = (folder / name for name in self.files)
        train, test = _read_pair(train_images, train_labels), _read_pair(test_images, test_labels)
        return ImageData(self.name, *train, *test, _CLASSES, mean=(0.2860,), std=(0.3530,))

    def get(self, root: Path, say: Say) -> str:
        """Fetch the files into ``root/fashion-mnist``."""
        try:
            with workspace(root, self.name) as (downloads, new):
                for name, digest in self.md5.items():
                    if not (downloads / name).is_file():  # else complete from an earlier try
                        say(f"fetching {self.url}{name}")
                        download(self.url + name, downloads / name, digest)
                folder = new / self.folder
                folder.mkdir()
                for name in self.md5:
                    (downloads / name).rename(folder / name)
                demand(self.check_folder(folder), self.url)
                install(folder, root / self.folder)
        except DownloadError as error:
            raise DownloadError(
                f"fashion-mnist cannot be fetched: {error}: apt-get install dataset-fashion-mnist, "
                f"or put {', '.join(self.md5)} into {root / self.folder}"
            ) from error
        return f"from {self.url}"


FASHION_MNIST = FashionMNIST(
    name="fashion-mnist",
    description="60,000 + 10,000 clothes, 28x28 grey",
    num_classes=10,
    folder="fashion-mnist",
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    md5={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    content={
        "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)


def read_idx(path: str | Path) -> Tensor:
    """Read a gzipped idx file of unsigned bytes into a uint8 tensor.

    The format: two zero bytes, the type (8 is unsigned byte), the number of axes, each axis' length as a
    big-endian 32-bit integer, then the values in row-major order.
    """
    fix = "fetch the file again"
    try:
        with gzip.open(path) as file:
            content = bytearray(file.read())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}); expected a whole gzip file: {fix}") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        start = content[:4].hex(" ") or "nothing"
        raise ValueError(f"{path} starts with {start}; expected the idx header 00 00 08 and an axis count: {fix}")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise ValueError(f"{path} ends after {len(content)} bytes; expected a header of {header}: {fix}")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    found, expected = len(content) - header, math.prod(shape)
    if found != expected or not 1 <= len(shape) <= _MOST_AXES:
        raise ValueError(f"{path} holds {found} values; expected {expected} for shape {tuple(shape)}: {fix}")
    if expected == 0:  # torch.frombuffer refuses to read nothing
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def _read_pair(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    """Read an image and a label file that belong together."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"{images_path} has shape {tuple(images.shape)} and {labels_path.name} {tuple(labels.shape)}; "
            "expected n x h x w images and n labels: fetch the files again"
        )
    return images[:, None], labels.long()  # n x 1 x h x w, n
