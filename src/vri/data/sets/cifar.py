"""CIFAR-10 and CIFAR-100 from their official files, with human labels (10N, 100N) and as an open set (80N)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vri.data.archives import file_md5
from vri.data.images import ImageData
from vri.data.pickles import read_pickle, read_torch
from vri.data.places import FileCheck, closest, default_root, examine, find, find_or_raise, folders

_PIXELS = 3 * 32 * 32
_CLOSED = 80  # classes of CIFAR-80N; the other 20 of CIFAR-100 are its open set
PLACES = "train_index.npy"  # in a folder with a part of CIFAR-100: each row's place in the whole


@dataclass(frozen=True)
class Cifar:
    """What is known of CIFAR-10 or CIFAR-100.

    Attributes:
        name: name of the data set.
        folder: the folder its archive unpacks to.
        rows: number of images in each file, the test file last.
        meta: the file with the names of the classes.
        labels_key: where a file keeps its labels.
        names_key: where `meta` keeps the names.
        num_classes: number of classes.
        mean: published mean of each channel.
        std: published standard deviation of each channel.
        url: of the official archive.
        archive_md5: its checksum.
        content: sha256 of images and labels of each file, however they were pickled.
        md5: checksum of each file as published, for those whose `content` is not known.
    """

    name: str
    folder: str
    rows: Mapping[str, int]
    meta: str
    labels_key: str
    names_key: str
    num_classes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    url: str
    archive_md5: str
    content: Mapping[str, str] = field(default_factory=dict)
    md5: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        """All files of the folder."""
        return [*self.rows, self.meta]

    @property
    def archive(self) -> str:
        """Name of the official archive."""
        return self.url.rpartition("/")[2]


CIFAR10 = Cifar(
    name="cifar10",
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
)

CIFAR100 = Cifar(
    name="cifar100",
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


@dataclass(frozen=True)
class Human:
    """What is known of the human labels of CIFAR-10N or CIFAR-100N.

    Attributes:
        name: name of the data set.
        images: the data set the labels are for.
        file: the file with the labels.
        keys: our name of each round of labels, and the file's.
        url: of the official file.
        content: sha256 of the clean labels and of all rounds.
    """

    name: str
    images: Cifar
    file: str
    keys: Mapping[str, str]
    url: str
    content: str

    @property
    def size(self) -> int:
        """Number of labels a round."""
        *train, _test = self.images.rows.values()
        return sum(train)


_HUMAN_URL = "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/"

CIFAR10N = Human(
    name="cifar10n",
    images=CIFAR10,
    file="CIFAR-10_human.pt",
    keys={
        "aggre": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
        "worse": "worse_label",
    },
    url=f"{_HUMAN_URL}CIFAR-10_human.pt",
    content="ccd448d8e30eb75a457513df753fee57cb090f8cee36441d12ba293cb4e4e628",
)
CIFAR100N = Human(
    name="cifar100n",
    images=CIFAR100,
    file="CIFAR-100_human.pt",
    keys={"noisy": "noisy_label"},
    url=f"{_HUMAN_URL}CIFAR-100_human.pt",
    content="06872140a9a2cc6255a7b877008e2587e14b06843363ca45148ffc7fcf0c4234",
)


def cifar10(root: str | Path | None = None) -> ImageData:
    """Read CIFAR-10, 50,000 + 10,000 images of 32x32 pixels, from ``cifar-10-batches-py``."""
    return _load(CIFAR10, root)[0]


def cifar100(root: str | Path | None = None) -> ImageData:
    """Read CIFAR-100, 50,000 + 10,000 images of 32x32 pixels, from ``cifar-100-python``.

    A part of it in the same layout is read, too, if ``train_index.npy`` gives each row's place in the whole.
    """
    return _load(CIFAR100, root)[0]


def cifar10n(root: str | Path | None = None) -> ImageData:
    """Read CIFAR-10 with five rounds of human labels: aggre, random1, random2, random3, worse."""
    return _load_human(CIFAR10N, root)


def cifar100n(root: str | Path | None = None) -> ImageData:
    """Read CIFAR-100 with one round of human labels: noisy."""
    return _load_human(CIFAR100N, root)


def cifar80n(root: str | Path | None = None) -> ImageData:
    """Read CIFAR-100 as an open set: training images of its last 20 classes stay, the test has the first 80.

    `train_y` keeps the labels 0 to 99, `open_set` marks those from 80 on: they belong to none of the classes.
    """
    whole, _ = _load(CIFAR100, root)
    closed = whole.test_y < _CLOSED
    return replace(
        whole,
        name="cifar80n",
        test_x=whole.test_x[closed],
        test_y=whole.test_y[closed],
        class_names=whole.class_names[:_CLOSED],
        open_set=whole.train_y >= _CLOSED,
    )


def find_cifar(known: Cifar, root: str | Path | None = None) -> Path | None:
    """The folder with all files of CIFAR-10 or CIFAR-100."""
    return find(known.files, _candidates(known, folders(known.name, root)))


def find_human(known: Human, root: str | Path | None = None) -> Path | None:
    """The file with the human labels, if the images are there, too."""
    folder = find([known.file], folders(known.name, root))
    return folder / known.file if folder and find_cifar(known.images, root) else None


def check_cifar(known: Cifar, root: str | Path | None = None, *, only_root: bool = True) -> list[FileCheck]:
    """Check the files of CIFAR-10 or CIFAR-100 one by one; where `root` is given, by default only those in it."""
    folder = closest(known.files, _candidates(known, folders(known.name, root, only_root=only_root)))
    return check_folder(known, folder or Path(root or default_root()) / known.folder)


def check_folder(known: Cifar, folder: Path) -> list[FileCheck]:
    """Check the files in this folder one by one."""
    is_part = (folder / PLACES).is_file()
    checks = [examine(folder / name, lambda path: _check_content(known, path, is_part)) for name in known.files]
    if is_part and all(check.ok for check in checks):
        checks.append(examine(folder / PLACES, lambda path: _check_places(known, path)))
    return checks


def check_human(known: Human, root: str | Path | None = None) -> list[FileCheck]:
    """Check the images, wherever they are, and the human labels, where `root` is given only those in it."""
    folder = find([known.file], folders(known.name, root, only_root=True))
    labels = (folder or Path(root or default_root())) / known.file
    return [*check_cifar(known.images, root, only_root=False), check_labels(known, labels)]


def check_labels(known: Human, path: Path) -> FileCheck:
    """Check a file with human labels."""
    return examine(path, lambda path: _check_labels(known, path))


def _candidates(known: Cifar, bases: list[Path]) -> list[Path]:
    """The folders themselves, and the folder of the official archive in each."""
    return [folder for base in bases for folder in (base / known.folder, base)]


def _load(known: Cifar, root: str | Path | None) -> tuple[ImageData, Tensor | None]:
    """Images and labels; for a part of the set also each row's place in the whole."""
    fix = f"run vri data get {known.name}{f' --root {root}' if root else ''}, or put the files there"
    candidates = _candidates(known, folders(known.name, root))
    folder = find_or_raise(known.name, known.files, candidates, fix)
    is_part = (folder / PLACES).is_file()
    *train, test = (_read_batch(known, folder / name, is_part) for name in known.rows)
    train_x, train_y = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*train, strict=True))
    places = _read_places(known, folder / PLACES, len(train_y)) if is_part else None
    test_x, test_y = map(torch.from_numpy, test)
    images = ImageData(
        known.name,
        train_x.reshape(-1, 3, 32, 32),
        train_y,
        test_x.reshape(-1, 3, 32, 32),
        test_y,
        _read_names(known, folder / known.meta),
        known.mean,
        known.std,
    )
    return images, places


def _load_human(known: Human, root: str | Path | None) -> ImageData:
    images, places = _load(known.images, root)
    fix = f"run vri data get {known.name}, or put the file of its authors there ({known.url})"
    path = find_or_raise(known.name, [known.file], folders(known.name, root), fix) / known.file
    clean, rounds = _read_human(known, path)
    if places is not None:
        clean, rounds = clean[places], {name: labels[places] for name, labels in rounds.items()}
    if wrong := int((clean != images.train_y).sum()):
        raise ValueError(
            f"{path}: clean_label differs from the labels of {images.name} in {wrong} of {len(clean)} places; "
            "expected none: fetch both again"
        )
    return replace(images, name=known.name, human_labels=rounds)


def _read_batch(known: Cifar, path: Path, is_part: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images, n x 3072 by channel, row and column, and labels, n."""
    content = read_pickle(path)
    images, labels = content.get("data"), content.get(known.labels_key)
    if not isinstance(images, np.ndarray) or not isinstance(labels, list):
        raise ValueError(
            f"{path} has {', '.join(content) or 'nothing'}; expected data and {known.labels_key}: fetch the file again"
        )
    if images.dtype != np.uint8 or images.shape != (len(labels), _PIXELS):
        raise ValueError(
            f"{path} has {images.dtype} images of shape {images.shape} and {len(labels)} labels; "
            f"expected uint8 of n x {_PIXELS} and n: fetch the file again"
        )
    rows = known.rows[path.name]
    if not (0 < len(labels) < rows if is_part else len(labels) == rows):
        hint = f", or fewer beside a {PLACES} with their places" if known is CIFAR100 else ""
        raise ValueError(f"{path} has {len(labels)} rows; expected {rows}{hint}: fetch the file again")
    if not all(isinstance(k, int) and 0 <= k < known.num_classes for k in labels):
        raise ValueError(f"{path} has labels outside 0..{known.num_classes - 1}: fetch the file again")
    return images, np.array(labels, dtype=np.int64)


def _read_names(known: Cifar, path: Path) -> tuple[str, ...]:
    names = read_pickle(path).get(known.names_key)
    if not isinstance(names, list) or len(names) != known.num_classes:
        raise ValueError(f"{path} has no list {known.names_key} of {known.num_classes} names: fetch the file again")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _read_places(known: Cifar, path: Path, rows: int) -> Tensor:
    """Each row's place in the whole set."""
    try:
        places = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read ({error}); expected an array of {rows} integers") from error
    if places.shape != (rows,) or places.dtype.kind not in "iu":
        raise ValueError(f"{path} is {places.dtype} of shape {places.shape}; expected {rows} integers, one an image")
    whole = known.rows["train"]
    if places.min() < 0 or places.max() >= whole or len(np.unique(places)) < rows:
        raise ValueError(f"{path} has places outside 0..{whole - 1} or twice the same; expected distinct ones")
    return torch.from_numpy(places.astype(np.int64))


def _read_human(known: Human, path: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """The clean labels, and each round of human ones."""
    content, found = read_torch(path), {}
    for name, key in {"clean": "clean_label", **known.keys}.items():
        labels = content.get(key)
        if not isinstance(labels, np.ndarray) or labels.dtype.kind != "i" or labels.shape != (known.size,):
            what = "missing" if labels is None else f"{getattr(labels, 'dtype', type(labels).__name__)}"
            shape = f" of shape {labels.shape}" if isinstance(labels, np.ndarray) else ""
            raise ValueError(f"{path}: {key} is {what}{shape}; expected {known.size} integers: fetch the file again")
        if labels.min() < 0 or labels.max() >= known.images.num_classes:
            raise ValueError(
                f"{path}: {key} has labels outside 0..{known.images.num_classes - 1}: fetch the file again"
            )
        found[name] = torch.from_numpy(labels.astype(np.int64))
    return found.pop("clean"), found


def _check_content(known: Cifar, path: Path, is_part: bool) -> str | None:
    """What is wrong with a file, beyond what its reader finds."""
    if path.name == known.meta:
        _read_names(known, path)
    else:
        images, labels = _read_batch(known, path, is_part)
        if path.name in known.content and (found := content_hash(images, labels)) != known.content[path.name]:
            return f"images and labels have sha256 {found}; expected {known.content[path.name]}"
    if path.name in known.md5 and not is_part and (found := file_md5(path)) != known.md5[path.name]:
        return f"md5 {found}; expected {known.md5[path.name]}"
    return None


def _check_places(known: Cifar, path: Path) -> None:
    labels = _read_batch(known, path.with_name("train"), is_part=True)[1]
    _read_places(known, path, len(labels))


def _check_labels(known: Human, path: Path) -> str | None:
    clean, rounds = _read_human(known, path)
    found = content_hash(*(labels.numpy() for labels in (clean, *rounds.values())))
    return None if found == known.content else f"labels have sha256 {found}; expected {known.content}"


def content_hash(*arrays: NDArray[Any]) -> str:
    """The sha256 of arrays of numbers 0 to 255, whatever integers they are stored as."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.astype(np.uint8).tobytes())
    return digest.hexdigest()
