"""What every encoder is: a function from samples to rows of numbers, with a name and a fingerprint."""

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vri.data.image_files import Preparation, read_image
from vri.data.lists import shorten

IMAGES, TEXTS = KINDS = ("images", "texts")

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Encoder:
    """Turns images or texts into features.

    Attributes:
        name: what `load` takes; "auto" becomes the name of the one it chose.
        kind: of the samples, "images" or "texts".
        about: what it is and where its weights come from, for people.
        fingerprint: of weights and settings: features of one with another fingerprint are others.
        rows: turns a batch, a list of RGB images of Pillow or of strings, into (n, d) numbers.
    """

    name: str
    kind: str
    about: str
    fingerprint: str
    rows: Callable[[list[Any]], Any]
    batch: int = 32

    def __call__(self, samples: Sequence[Any]) -> Floats:
        """(n, d) features of images (of Pillow, uint8 arrays of height × width × 3, or paths) or of strings."""
        found: list[Floats] = []
        for start in range(0, len(samples), self.batch):
            some = [self.sample(each) for each in samples[start : start + self.batch]]
            found.append(self.checked(self.rows(some), len(some), found[0].shape[1] if found else None, start))
        return np.concatenate(found) if found else np.zeros((0, 0), np.float32)

    def sample(self, given: Any) -> Any:
        """A sample as `rows` wants it."""
        if self.kind == TEXTS:
            return "" if given is None else str(given)
        if isinstance(given, (str, Path)):
            return read_image(given, Preparation().max_pixels)
        if isinstance(given, np.ndarray):
            if given.dtype != np.uint8 or given.ndim not in (2, 3) or (given.ndim == 3 and given.shape[2] != 3):
                raise ValueError(
                    f"an image has shape {given.shape} and type {given.dtype}; expected uint8 of height × width × 3"
                )
            given = Image.fromarray(given)
        if not isinstance(given, Image.Image):
            raise TypeError(f"an image is a {type(given).__name__}; expected one of Pillow, an array, or a path")
        return given.convert("RGB")

    def checked(self, found: Any, count: int, width: int | None, first: int) -> Floats:
        """What `rows` returned, as an array; wrong shapes and numbers are errors."""
        if isinstance(found, torch.Tensor):
            found = found.detach().float().cpu().numpy()
        array = np.asarray(found)
        expected = f"({count}, {'d' if width is None else width})"
        wrong = array.ndim != 2 or len(array) != count or (array.shape[1] == 0 if width is None else
                                                           array.shape[1] != width)  # fmt: skip
        if array.dtype.kind not in "biuf" or wrong:
            raise ValueError(
                f"--encoder {self.name} returned shape {array.shape} and type {array.dtype} for {count} {self.kind}; "
                f"expected numbers of shape {expected}, one row for each"
            )
        bad = np.flatnonzero(~np.isfinite(array).all(1))
        if len(bad):
            raise ValueError(
                f"--encoder {self.name} returned NaN or Inf for {len(bad)} of {count} {self.kind}, such as number "
                f"{shorten(map(str, (bad + first).tolist()))} (from 0); expected finite numbers: look at these, or "
                "take another encoder"
            )
        return np.ascontiguousarray(array, dtype=np.float32)


def fingerprint(*parts: Any) -> str:
    """A short hash of all parts; files by their content."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{sha256(part) if isinstance(part, Path) else part}\0".encode())
    return digest.hexdigest()[:16]


def sha256(path: Path) -> str:
    """Of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_of(package: str) -> Path:
    """Where an installed package is; its code is not run."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def verified(path: Path, expected: str, package: str) -> Path:
    """The file, if it is the one we know; packages change, and weights are a program of a kind."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected it to come with {package}: install that again")
    if (found := sha256(path)) != expected:
        raise ValueError(
            f"{path} of {package} has sha256 {found}; expected {expected}, of the version that was examined: "
            f"install that one again, or pass the file itself as --encoder {path} if you trust it"
        )
    return path
