"""Small grey images: digits, which come with scikit-learn, and Fashion-MNIST."""

import gzip
import hashlib
import math
import zlib
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from vri.data.images import ImageData
from vri.data.places import FileCheck, closest, default_root, examine, find, find_or_raise, folders
from vri.data.splits import split

_DIGITS_TEST_SIZE = 360  # 36 of each class, a fifth of the 1,797 images
_DIGITS_FILE = Path("datasets", "data", "digits.csv.gz")  # of scikit-learn
_DIGITS_SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"  # once unpacked
_DIGITS_SPLIT_SEED = 0  # part of the data set's definition: results are comparable only on one split

# The files, and the sha256 of what is in each once it is unpacked: Debian packs anew.
_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_MOST_AXES = 8  # of an idx file; torch has room for 64
_FASHION_SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def digits(root: str | Path | None = None) -> ImageData:
    """Read scikit-learn's 1,797 handwritten digits of 8x8 pixels; `root` is not needed.

    The set has no test part of its own: a fixed, class-balanced fifth (360 images) is set aside.
    """
    # Imported here because scikit-learn takes a second to load and only this function needs it.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images)  # n x 8 x 8, values 0..16
    x = (pixels * 255 / 16).round().to(torch.uint8)[:, None]  # n x 1 x 8 x 8
    y = torch.from_numpy(bunch.target).long()
    parts = split(y, sizes={"test": _DIGITS_TEST_SIZE, "train": -1}, num_classes=10, seed=_DIGITS_SPLIT_SEED)
    train, test = parts["train"], parts["test"]
    return ImageData("digits", x[train], y[train], x[test], y[test], tuple("0123456789"), mean=(0.3053,), std=(0.3763,))


def find_digits(root: str | Path | None = None) -> Path | None:
    """The file inside scikit-learn; `root` is not needed."""
    package = find_spec("sklearn")
    files = [] if package is None or package.origin is None else [Path(package.origin).parent / _DIGITS_FILE]
    return next((file for file in files if file.is_file()), None)


def check_digits(root: str | Path | None = None) -> list[FileCheck]:
    """Check the one file of the digits; `root` is not needed."""
    return [examine(find_digits() or Path("sklearn") / _DIGITS_FILE, _digits_problem)]


def _digits_problem(path: Path) -> str | None:
    with gzip.open(path) as file:
        found = hashlib.sha256(file.read()).hexdigest()
    return None if found == _DIGITS_SHA256 else f"sha256 {found} once unpacked; expected {_DIGITS_SHA256}"


def fashion_mnist(root: str | Path | None = None) -> ImageData:
    """Read Fashion-MNIST, 60,000 + 10,000 images of 28x28 pixels, from its four idx.gz files.

    Looks in `root`, $VRI_DATA and ``~/.cache/vri``, in each also in the subfolder ``fashion-mnist``, and where
    Debian's package puts the files.
    """
    fix = "run vri data get fashion-mnist, apt-get install dataset-fashion-mnist, or put the files there"
    folder = find_or_raise("fashion-mnist", list(_FASHION_FILES), _fashion_folders(root), fix)
    train_images, train_labels, test_images, test_labels = (folder / name for name in _FASHION_FILES)
    train_x, train_y = _read_pair(train_images, train_labels)
    test_x, test_y = _read_pair(test_images, test_labels)
    return ImageData("fashion-mnist", train_x, train_y, test_x, test_y, _FASHION_CLASSES, mean=(0.2860,), std=(0.3530,))


def find_fashion(root: str | Path | None = None) -> Path | None:
    """The folder with the four files of Fashion-MNIST."""
    return find(_FASHION_FILES, _fashion_folders(root))


def check_fashion(root: str | Path | None = None) -> list[FileCheck]:
    """Check the files of Fashion-MNIST one by one; where `root` is given, only those in it."""
    candidates = folders("fashion-mnist", root, only_root=True) if root else _fashion_folders(None)
    folder = closest(list(_FASHION_FILES), candidates)
    return check_fashion_folder(folder or Path(root or default_root()) / "fashion-mnist")


def check_fashion_folder(folder: Path) -> list[FileCheck]:
    """Check the four files in this folder one by one."""
    return [examine(folder / name, _fashion_problem) for name in _FASHION_FILES]


def _fashion_problem(path: Path) -> str | None:
    read_idx(path)
    with gzip.open(path) as file:
        found = hashlib.sha256(file.read()).hexdigest()
    expected = _FASHION_FILES[path.name]
    return None if found == expected else f"sha256 {found} once unpacked; expected {expected}"


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


def _fashion_folders(root: str | Path | None) -> list[Path]:
    """List the folders to look in, first come first served."""
    return [*folders("fashion-mnist", root), _FASHION_SYSTEM_FOLDER]


def _read_pair(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    """Read an image and a label file that belong together."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(
            f"{images_path} has shape {tuple(images.shape)} and {labels_path.name} {tuple(labels.shape)}; "
            "expected n x h x w images and n labels: fetch the files again"
        )
    return images[:, None], labels.long()  # n x 1 x h x w, n
