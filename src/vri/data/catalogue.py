"""The data sets behind `vri data`: what each is, where it is, how to get it and whether its files are whole."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vri.data import fetch
from vri.data.fetch import Say
from vri.data.files import FileData
from vri.data.images import ImageData
from vri.data.places import FileCheck, check_root, default_root, folders
from vri.data.sets import cifar, small
from vri.data.sets.animal10n import animal10n, check_animal10n
from vri.data.sets.clothing1m import check_clothing1m, clothing1m
from vri.data.sets.food101n import check_food101n, food101n

Root = str | Path | None


@dataclass(frozen=True)
class Entry:
    """One data set.

    Attributes:
        description: what it is, in a line.
        classes: number of classes.
        check: checks the files one by one; where a root is given, only those in it.
        find: the place of the files, or None.
        get: fetches the files into a folder and says where they came from; None where no program can.
        instructions: how to get the files by hand, where `get` is None.
        load: reads the data set into memory; None where its images stay in their files.
        load_files: reads the lists of such a data set.
    """

    description: str
    classes: int
    check: Callable[[Root], list[FileCheck]]
    find: Callable[[Root], Path | None]
    get: Callable[[Path, Say], str] | None = None
    instructions: str = ""
    load: Callable[[Root], ImageData] | None = None
    load_files: Callable[[Root], FileData] | None = None


def _cifar(known: cifar.Cifar, description: str, load: Callable[[Root], ImageData], classes: int) -> Entry:
    return Entry(
        description,
        classes,
        check=partial(cifar.check_cifar, known),
        find=partial(cifar.find_cifar, known),
        get=fetch.get_cifar10 if known is cifar.CIFAR10 else fetch.get_cifar100,
        load=load,
    )


def _human(known: cifar.Human, description: str, load: Callable[[Root], ImageData]) -> Entry:
    return Entry(
        description,
        known.images.num_classes,
        check=partial(cifar.check_human, known),
        find=partial(cifar.find_human, known),
        get=fetch.get_cifar10n if known is cifar.CIFAR10N else fetch.get_cifar100n,
        load=load,
    )


def _files(
    name: str,
    description: str,
    classes: int,
    load: Callable[[Path], FileData],
    check: Callable[[Path], list[FileCheck]],
    marks: tuple[str, ...],
    instructions: str,
) -> Entry:
    """A data set of image files that its authors hand out; `marks` are paths one of which its folder has."""

    def find(root: Root, only_root: bool = False) -> Path | None:
        candidates = folders(name, root, only_root=only_root)
        return next((f for f in candidates if any((f / mark).exists() for mark in marks)), None)

    def load_files(root: Root) -> FileData:
        # Where it isn't found, the loader says what it misses in the first folder.
        return load(find(root) or Path(root or default_root() / name))

    def check_files(root: Root) -> list[FileCheck]:
        return check(find(root, only_root=True) or Path(root or default_root() / name))

    return Entry(description, classes, check_files, find, instructions=instructions, load_files=load_files)


CATALOGUE: Mapping[str, Entry] = {
    "digits": Entry(
        "1,437 + 360 digits, 8x8 grey",
        10,
        check=small.check_digits,
        find=small.find_digits,
        instructions="it comes with scikit-learn",
        load=small.digits,
    ),
    "fashion-mnist": Entry(
        "60,000 + 10,000 clothes, 28x28 grey",
        10,
        check=small.check_fashion,
        find=small.find_fashion,
        get=fetch.get_fashion,
        load=small.fashion_mnist,
    ),
    "cifar10": _cifar(cifar.CIFAR10, "50,000 + 10,000 objects, 32x32 colour", cifar.cifar10, 10),
    "cifar100": _cifar(cifar.CIFAR100, "50,000 + 10,000 objects, 32x32 colour", cifar.cifar100, 100),
    "cifar80n": _cifar(cifar.CIFAR100, "CIFAR-100 with its last 20 classes as open set", cifar.cifar80n, 80),
    "cifar10n": _human(cifar.CIFAR10N, "CIFAR-10 with five rounds of human labels", cifar.cifar10n),
    "cifar100n": _human(cifar.CIFAR100N, "CIFAR-100 with human labels", cifar.cifar100n),
    "clothing1m": _files(
        "clothing1m",
        "a million clothes of online shops",
        14,
        clothing1m,
        check_clothing1m,
        ("category_names_eng.txt", "annotations/category_names_eng.txt"),
        "ask its authors (Xiao et al. 2015) for the link and unpack images and key lists into one folder",
    ),
    "food101n": _files(
        "food101n",
        "310,009 dishes from the web",
        101,
        food101n,
        check_food101n,
        ("meta/imagelist.tsv", "Food-101N_release/meta/imagelist.tsv"),
        "unpack the archive of https://kuanghuei.github.io/Food-101N/ and, beside it, food-101.tar.gz",
    ),
    "animal10n": _files(
        "animal10n",
        "50,000 + 5,000 animals, 64x64 colour",
        10,
        animal10n,
        check_animal10n,
        ("training", "raw_image/training"),
        "ask for the archive at https://dm.kaist.ac.kr/datasets/animal-10n and unpack it",
    ),
}


def entry(name: str) -> Entry:
    """The data set of this name."""
    if name not in CATALOGUE:
        nearest = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.0)[0]
        raise ValueError(f"data set is {name!r}; expected one of {', '.join(CATALOGUE)}: did you mean {nearest!r}?")
    return CATALOGUE[name]


def check(name: str, root: Root = None) -> list[FileCheck]:
    """Check the files of a data set one by one; where `root` is given, only those in it."""
    found = entry(name)
    if root:
        check_root(root, name)
    return found.check(root)


def get(name: str, root: Root = None, say: Say = print) -> str:
    """Fetch a data set, if it is not there yet, into `root`, by default $VRI_DATA or ~/.cache/vri.

    Returns:
        Where it came from.
    """
    found, target = entry(name), Path(root or default_root())
    if target.exists() and not target.is_dir():
        raise ValueError(f"root is {target}, a file; expected a folder to put {name} into: choose another")
    if root is None or target.is_dir():
        checks = found.check(root)
        if all(each.ok for each in checks):
            return f"already in {checks[-1].path.parent}"
    if found.get is None:
        raise ValueError(
            f"{name} cannot be fetched by a program: {found.instructions}; put it in {target / name} "
            f"or pass --root, then run vri data check {name}"
        )
    return found.get(target, say)
