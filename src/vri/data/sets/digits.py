"""The digits that come with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import torch

from vri.data.downloads import check_unpacked
from vri.data.images import ImageData
from vri.data.places import Entry, FileCheck, Root, examine
from vri.data.splits import split

_TEST_SIZE = 360  # 36 of each class, a fifth of the 1,797 images
_SPLIT_SEED = 0  # part of the data set's definition: results are comparable only on one split
_FILE = Path("datasets", "data", "digits.csv.gz")  # of scikit-learn
_SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"  # once unpacked


class _Digits(Entry):
    def find(self, root: Root = None) -> Path | None:
        package = find_spec("sklearn")
        file = None if package is None or package.origin is None else Path(package.origin).parent / _FILE
        return file if file and file.is_file() else None

    def check(self, root: Root = None) -> list[FileCheck]:
        return [examine(self.find() or Path("sklearn") / _FILE, lambda path: check_unpacked(path, _SHA256))]

    def load(self, root: Root = None) -> ImageData:
        # Imported here because scikit-learn takes a second to load and only this function needs it.
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

        bunch = load_digits()
        pixels = torch.from_numpy(bunch.images)  # n x 8 x 8, values 0..16
        x = (pixels * 255 / 16).round().to(torch.uint8)[:, None]  # n x 1 x 8 x 8
        y = torch.from_numpy(bunch.target).long()
        # The set has no test part of its own.
        parts = split(y, sizes={"test": _TEST_SIZE, "train": -1}, num_classes=10, seed=_SPLIT_SEED)
        train, test = parts["train"], parts["test"]
        names = tuple("0123456789")
        return ImageData("digits", x[train], y[train], x[test], y[test], names, mean=(0.3053,), std=(0.3763,))


DIGITS = _Digits(
    name="digits",
    description="1,437 + 360 digits, 8x8 grey",
    num_classes=10,
    instructions="it comes with scikit-learn",
)
