"""The data sets by name: `vri data` lists, fetches and checks them."""

import difflib
from pathlib import Path

from vri.data.places import Entry, FileCheck, Root, Say, check_root, default_root
from vri.data.sets.animal10n import ANIMAL10N
from vri.data.sets.cifar import CIFAR10, CIFAR80N, CIFAR100
from vri.data.sets.cifar_n import CIFAR10N, CIFAR100N
from vri.data.sets.clothing1m import CLOTHING1M
from vri.data.sets.digits import DIGITS
from vri.data.sets.fashion_mnist import FASHION_MNIST
from vri.data.sets.food101n import FOOD101N

IN_MEMORY = (DIGITS, FASHION_MNIST, CIFAR10, CIFAR100, CIFAR80N, CIFAR10N, CIFAR100N)
IN_FILES = (CLOTHING1M, FOOD101N, ANIMAL10N)  # too large for memory: images are read when they are needed
CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in (*IN_MEMORY, *IN_FILES)}


def entry(name: str) -> Entry:
    """The data set of this name."""
    if name not in CATALOGUE:
        nearest = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.0)[0]
        raise ValueError(f"data set is {name!r}; expected one of {', '.join(CATALOGUE)}: did you mean {nearest!r}?")
    return CATALOGUE[name]


def check(name: str, root: Root = None) -> list[FileCheck]:
    """Check the files of a data set one by one; if `root` is given, only those in it."""
    found = entry(name)
    if root:
        check_root(root, name)
    return found.check(root)


def get(name: str, root: Root = None, say: Say = print) -> str:
    """Fetch a data set into `root`, by default $VRI_DATA or ~/.cache/vri, if it is not there yet.

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
    return found.get(target, say)
