"""The corrected copy of a folder of images: its files linked or copied to the folders of their new labels."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vri.cleaning.cells import escape, write_rows
from vri.cleaning.folders import Listing

AUTO, HARD, SYMBOLIC, COPY = "auto", "hard", "symbolic", "copy"  # ways to put an image into the copy

_NO_FOLDER = re.compile(r'[\x00-\x1f\x7f/\\<>:"|?*]')  # characters that some systems refuse in a name


def write_images(folder: Path, listing: Listing, new: Sequence[str | None], way: str) -> str:
    """Put the images, but those whose new label is None, into `folder`, with a labels.csv; returns what was done."""
    for added in sorted({label for label in new if label is not None} - set(listing.labels)):
        _check_folder_name(added)
    targets = _targets(listing.paths, listing.labels, new)
    links: Counter[str] = Counter()
    rows = []
    for name, given, label, target in zip(listing.paths, listing.labels, new, targets, strict=True):
        if target is not None and label is not None:
            (folder / target).parent.mkdir(exist_ok=True)
            links[_place(way, Path(os.path.realpath(listing.root / name)), folder / target)] += 1
            rows.append([escape(cell) for cell in (target, label, name, given)])
    write_rows(folder / "labels.csv", ("path", "label", "original", "given_label"), rows)
    return f" ({', '.join(f'{count:,} {what}' for what, count in links.items())}) and its labels.csv"


def _targets(names: Sequence[str], given: Sequence[str], new: Sequence[str | None]) -> list[str | None]:
    """Where each image goes; if its name is taken in the new class, its old class is added to the name."""
    targets: list[str | None] = [None] * len(names)
    taken: set[str] = set()

    def put(row: int, target: str) -> None:
        targets[row] = target
        taken.add(target.casefold())  # some systems don't distinguish a.jpg from A.JPG

    moved = []
    for row, (name, label) in enumerate(zip(names, new, strict=True)):
        if label is not None and label == given[row]:
            put(row, name)
        elif label is not None:
            moved.append(row)
    for row in moved:
        file, origin = Path(names[row]), given[row] or "unlabelled"
        target, number = f"{new[row]}/{file.name}", 1
        while target.casefold() in taken:
            again = "" if number == 1 else f"-{number}"
            target, number = f"{new[row]}/{file.stem}-from-{origin}{again}{file.suffix}", number + 1
        put(row, target)
    return targets


def _place(way: str, source: Path, target: Path) -> str:
    """Link or copy a file to a second place; returns how."""
    if way == SYMBOLIC:
        target.symlink_to(source)
        return "symbolic links"
    if way != COPY:
        try:
            os.link(source, target)
            return "hard links"
        except OSError:  # on another disk, or a file system without links
            if way == HARD:
                raise
    shutil.copy2(source, target)
    return "copies"


def _check_folder_name(label: str) -> None:
    wrong = (
        _NO_FOLDER.search(label) is not None
        or label.startswith(".")
        or label != label.rstrip(" .")
        or len(label.encode("utf-8", "surrogatepass")) > 200
        or label.casefold() == "labels.csv"
    )
    if wrong:
        raise ValueError(
            f"the new label {label!r} can't be the name of a folder; expected letters without "
            'control characters and / \\ < > : " | ? *, no dot in front, and no dot or space at the end'
        )
