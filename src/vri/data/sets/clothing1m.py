"""Clothing1M: a million photographs from online shops in 14 classes, labelled by the words around them.

Xiao et al., "Learning from massive noisy labeled data for image classification" (2015). The authors send the link on
request; ``images/`` and eight text files lie in one folder (some copies have the text files in ``annotations/``).
"""

from pathlib import Path

from vri.data.files import FileData, FilesEntry
from vri.data.image_files import ImageFiles, Preparation
from vri.data.lists import check_images, check_present, inner, leaves_root, read_lines, shorten
from vri.data.places import DatasetMissing, FileCheck, examine

_NAMES = "category_names_eng.txt"
_LISTS = {  # key list -> the labels it goes with, and the images it has in the published set
    "noisy_train_key_list.txt": ("noisy_label_kv.txt", 1_000_000),
    "clean_train_key_list.txt": ("clean_label_kv.txt", 47_570),
    "clean_val_key_list.txt": ("clean_label_kv.txt", 14_313),
    "clean_test_key_list.txt": ("clean_label_kv.txt", 10_526),
}
_TRAIN, _CLEAN_TRAIN, _VALIDATION, _TEST = _LISTS
_FILES = (_NAMES, *_LISTS, *dict.fromkeys(labels for labels, _ in _LISTS.values()))
_CLASSES = 14

# The images are squeezed to 256x256, as in the paper.
_PREPARE = Preparation(size=224, resize=256, keep_ratio=False, augment="crop")


def clothing1m(
    root: str | Path, *, clean: str = "validation", prepare: Preparation | None = None, check_files: bool = True
) -> FileData:
    """Read Clothing1M: noisy training images, trusted ones, and the test images.

    Some images have both a noisy and a clean label. Those in the trusted, validation or test part are left out of the
    training part.

    Args:
        root: folder of the images and key lists.
        clean: "validation" (14,313 images; there is no validation part then), as in the paper, or "train"
            (47,570 images; validation is its own part).
        prepare: how an image becomes a tensor; by default squeezed to 256x256, then cut to 224x224.
        check_files: check that all images exist; a million take some seconds.
    """
    root = Path(root)
    if clean not in ("validation", "train"):
        raise ValueError(f"clean is {clean!r}; expected validation or train")
    lists = inner(root, "annotations")
    lost = [name for name in _FILES if not (lists / name).is_file()]
    if lost:
        raise DatasetMissing(
            f"clothing1m is not whole in {root}: {', '.join(lost)} not found there or in {root / 'annotations'}; "
            "unpack the authors' annotations there"
        )
    class_names = _read_names(lists / _NAMES)
    labels = {name: _read_labels(lists / name) for name in {labels for labels, _ in _LISTS.values()}}
    keys = {name: _read_keys(lists / name) for name in _LISTS}
    if clean == "validation":
        wanted = {"train": _TRAIN, "clean": _VALIDATION, "test": _TEST}
    else:
        wanted = {"train": _TRAIN, "clean": _CLEAN_TRAIN, "validation": _VALIDATION, "test": _TEST}
    elsewhere = {key for part, name in wanted.items() if part != "train" for key in keys[name]}
    keys[_TRAIN] = [key for key in keys[_TRAIN] if key not in elsewhere]
    if check_files:
        check_present(root, (key for name in wanted.values() for key in keys[name]), f"the lists in {lists}")

    def files(part: str) -> ImageFiles:
        name = wanted[part]
        found = _look_up(lists / name, keys[name], labels[_LISTS[name][0]])
        return ImageFiles(root, keys[name], found, prepare or _PREPARE, training=part in ("train", "clean"))

    validation = files("validation") if "validation" in wanted else None
    return FileData("clothing1m", files("train"), files("clean"), validation, files("test"), class_names)


def check_clothing1m(root: str | Path) -> list[FileCheck]:
    """Check each list and count the images that are missing."""
    root = Path(root)
    keys: dict[str, None] = {}  # in order, each once

    def look(path: Path) -> str:
        if path.name == _NAMES:
            return f"{len(_read_names(path))} classes"
        if path.name not in _LISTS:
            return f"{len(_read_labels(path)):,} labels"
        listed = _read_keys(path)
        keys.update(dict.fromkeys(listed))
        return f"{len(listed):,} images; {_LISTS[path.name][1]:,} were published"

    return [*(examine(inner(root, "annotations") / name, look) for name in _FILES), check_images(root, keys)]


CLOTHING1M = FilesEntry(
    name="clothing1m",
    description="a million clothes of online shops",
    num_classes=_CLASSES,
    instructions="ask its authors (Xiao et al. 2015) for the link and unpack images and key lists into one folder",
    marks=(_NAMES, f"annotations/{_NAMES}"),
    read=clothing1m,
    look=check_clothing1m,
)


def _read_keys(path: Path) -> list[str]:
    return read_lines(path, lambda key: not leaves_root(key), "a path inside of its folder")


def _read_names(path: Path) -> tuple[str, ...]:
    names = tuple(read_lines(path))
    if len(names) != _CLASSES:
        raise ValueError(f"{path} has {len(names)} names; expected {_CLASSES}: fetch it again")
    return names


def _read_labels(path: Path) -> dict[str, int]:
    def right(line: str) -> bool:
        key, _, label = line.rpartition(" ")
        return bool(key) and label.isdigit() and int(label) < _CLASSES

    lines = read_lines(path, right, f"a path, a space and a class from 0 to {_CLASSES - 1}")
    return {key.strip(): int(label) for key, _, label in (line.rpartition(" ") for line in lines)}


def _look_up(path: Path, keys: list[str], labels: dict[str, int]) -> list[int]:
    unlabelled = [key for key in keys if key not in labels]
    if unlabelled:
        raise ValueError(
            f"{path} names {len(unlabelled):,} images without a label in {_LISTS[path.name][0]}: "
            f"{shorten(unlabelled)}; fetch both files again"
        )
    return [labels[key] for key in keys]
