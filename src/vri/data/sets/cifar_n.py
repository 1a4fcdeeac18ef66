"""CIFAR-10N and CIFAR-100N: CIFAR with labels that people gave.

Wei et al., "Learning with noisy labels revisited" (2022).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vri.data.downloads import DownloadError, demand, download, install, workspace
from vri.data.images import ImageData
from vri.data.pickles import read_torch
from vri.data.places import FileCheck, FolderEntry, Root, Say
from vri.data.sets.cifar import CIFAR10, CIFAR100, Cifar, content_hash


@dataclass(frozen=True, kw_only=True)
class Human(FolderEntry):
    """The facts about the human labels of CIFAR-10N or CIFAR-100N."""

    folder: str = ""
    images: Cifar  # the data set the labels are for
    keys: Mapping[str, str]  # our name of each round of labels, and the file's
    url: str  # of the official file
    content: str  # sha256 of the clean labels and of all rounds

    @property
    def file(self) -> str:
        """The file with the labels."""
        return self.url.rpartition("/")[2]

    @property
    def files(self) -> list[str]:
        """That one file."""
        return [self.file]

    def how_to_get(self, root: Root) -> str:
        """What to do if the file is not found."""
        return f"run vri data get {self.name}, or put the file of its authors there ({self.url})"

    def find(self, root: Root = None) -> Path | None:
        """The file with the labels, if the images are there too."""
        folder = super().find(root)
        return folder / self.file if folder and self.images.find(root) else None

    def check(self, root: Root = None, only_root: bool = True) -> list[FileCheck]:
        """Check the images, wherever they are, and the labels; if `root` is given, only the labels in it."""
        return [*self.images.check(root, only_root=False), *super().check(root, only_root)]

    def look(self, path: Path) -> str:
        """Read the labels, and compare their checksum."""
        clean, rounds = self._read(path)
        found = content_hash(*(labels.numpy() for labels in (clean, *rounds.values())))
        if found != self.content:
            raise ValueError(f"labels have sha256 {found}; expected {self.content}")
        return ""

    def load(self, root: Root = None) -> ImageData:
        """The images, with each round of human labels."""
        images, places = self.images.load_with_places(root)
        path = self.find_or_raise(root) / self.file
        clean, rounds = self._read(path)
        if places is not None:
            clean, rounds = clean[places], {name: labels[places] for name, labels in rounds.items()}
        if wrong := int((clean != images.train_y).sum()):
            raise ValueError(
                f"{path}: clean_label differs from the labels of {images.name} in {wrong} of {len(clean)} places; "
                "expected none: fetch both again"
            )
        return replace(images, name=self.name, human_labels=rounds)

    def get(self, root: Path, say: Say) -> str:
        """Fetch the images, if they are not there yet, and the labels."""
        sources, target = [], root / self.file
        if not all(check.ok for check in self.images.check(root if root.is_dir() else None, only_root=False)):
            sources.append(f"{self.images.name} {self.images.get(root, say)}")
        if not all(check.ok for check in self.check_folder(root)):
            say(f"fetching {self.url}")
            try:
                with workspace(root, self.name) as (downloads, new):
                    download(self.url, downloads / self.file)
                    (downloads / self.file).rename(new / self.file)
                    demand(self.check_folder(new), self.url)
                    install(new / self.file, target)
            except DownloadError as error:
                raise DownloadError(
                    f"the human labels cannot be fetched: {error}: get {self.file} from {self.url} and put it there "
                    f"as {target}"
                ) from error
            sources.append(f"{self.file} from {self.url}")
        return "; ".join(sources)

    def _read(self, path: Path) -> tuple[Tensor, dict[str, Tensor]]:
        """The clean labels, and each round of human ones."""
        *train, _test = self.images.rows.values()
        size, top = sum(train), self.images.num_classes - 1
        content, found = read_torch(path), {}
        for name, key in {"clean": "clean_label", **self.keys}.items():
            labels = content.get(key)
            if not isinstance(labels, np.ndarray) or labels.dtype.kind != "i" or labels.shape != (size,):
                what = "missing" if labels is None else f"{getattr(labels, 'dtype', type(labels).__name__)}"
                shape = f" of shape {labels.shape}" if isinstance(labels, np.ndarray) else ""
                raise ValueError(f"{path}: {key} is {what}{shape}; expected {size} integers: fetch the file again")
            if labels.min() < 0 or labels.max() > top:
                raise ValueError(f"{path}: {key} has labels outside 0..{top}: fetch the file again")
            found[name] = torch.from_numpy(labels.astype(np.int64))
        return found.pop("clean"), found


_URL = "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/"

CIFAR10N = Human(
    name="cifar10n",
    description="CIFAR-10 with five rounds of human labels",
    num_classes=10,
    images=CIFAR10,
    keys={
        "aggre": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
        "worse": "worse_label",
    },
    url=f"{_URL}CIFAR-10_human.pt",
    content="ccd448d8e30eb75a457513df753fee57cb090f8cee36441d12ba293cb4e4e628",
)
CIFAR100N = Human(
    name="cifar100n",
    description="CIFAR-100 with human labels",
    num_classes=100,
    images=CIFAR100,
    keys={"noisy": "noisy_label"},
    url=f"{_URL}CIFAR-100_human.pt",
    content="06872140a9a2cc6255a7b877008e2587e14b06843363ca45148ffc7fcf0c4234",
)
