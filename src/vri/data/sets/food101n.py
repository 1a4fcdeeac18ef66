"""Food-101N: 310,009 photographs of 101 dishes from the web, a fifth of them under a wrong name.

Lee et al., "CleanNet: transfer learning for scalable image classifier training with label noise" (2018). The archive
``Food-101N_release`` has ``images/CLASS/KEY.jpg`` and lists in ``meta/``; ``verification_label`` there says whether a
person confirmed the class. The test images are those of Food-101 (Bossard et al., 2014), a separate archive.
"""

import json
from pathlib import Path

from vri.data.files import FileData, FilesEntry
from vri.data.image_files import ImageFiles, Preparation
from vri.data.lists import check_images, check_present, inner, leaves_root, read_lines
from vri.data.places import DatasetMissing, FileCheck, examine

_CLASSES_FILE = "meta/classes.txt"
_TABLES = {  # and the number of images each has in the published set
    "meta/imagelist.tsv": "310,009",
    "meta/verified_train.tsv": "52,868",
    "meta/verified_val.tsv": "4,741",
}
_ALL, _VERIFIED_TRAIN, _VERIFIED_VAL = _TABLES
_TEST_LISTS = ("meta/test.txt", "meta/test.json")
_WHERE = "https://kuanghuei.github.io/Food-101N/"

_PREPARE = Preparation(size=224, resize=256, augment="crop")


def food101n(
    root: str | Path,
    *,
    train: str = "verified",
    food101_root: str | Path | None = None,
    prepare: Preparation | None = None,
    check_files: bool = True,
) -> FileData:
    """Read Food-101N: noisy training images, verified ones as the trusted part, and Food-101's test images.

    The trusted part consists of the validation images whose class a person confirmed (3,824 of 4,741).

    Args:
        root: folder ``Food-101N_release``, or its parent.
        train: "verified" takes the 52,868 images of ``verified_train.tsv``, under the class they came with, right or
            wrong: the "55k" of the papers. "all" takes every image except those of ``verified_val.tsv``, 305,268.
        food101_root: folder ``food-101``, or its parent; if not given, it is looked for in and next to `root`.
        prepare: how an image becomes a tensor.
        check_files: check that all images exist.
    """
    if train not in ("verified", "all"):
        raise ValueError(f"train is {train!r}; expected verified or all")
    root = inner(Path(root), "Food-101N_release")
    lost = [name for name in (_CLASSES_FILE, *_TABLES) if not (root / name).is_file()]
    if lost:
        raise DatasetMissing(f"food-101n is not whole in {root}: {', '.join(lost)} not found; fetch it from {_WHERE}")
    food101 = _find_food101(root, food101_root)
    if food101 is None:
        looked = food101_root if food101_root is not None else f"{root} and {root.parent}"
        raise DatasetMissing(
            f"the test images of food-101n are those of Food-101, and there is no food-101/meta/test.txt in {looked}; "
            "unpack food-101.tar.gz there, or pass food101_root="
        )
    class_names = _read_classes(root / _CLASSES_FILE)
    verified = _read_table(root / _VERIFIED_VAL, class_names, verified=True)
    clean = [key for key, right in verified.items() if right]
    rows = _read_table(root / (_VERIFIED_TRAIN if train == "verified" else _ALL), class_names, train == "verified")
    noisy = [key for key in rows if key not in verified]
    test = _read_test(food101, class_names)
    if check_files:
        check_present(root, [f"images/{key}" for key in noisy + clean], f"the lists in {root / 'meta'}")
        check_present(food101, [f"images/{key}" for key in test], f"the list in {food101 / 'meta'}")

    def files(folder: Path, keys: list[str], training: bool) -> ImageFiles:
        numbers = {name: number for number, name in enumerate(class_names)}
        labels = [numbers[key.partition("/")[0]] for key in keys]
        return ImageFiles(folder, [f"images/{key}" for key in keys], labels, prepare or _PREPARE, training=training)

    train_files, clean_files = files(root, noisy, training=True), files(root, clean, training=True)
    return FileData("food-101n", train_files, clean_files, None, files(food101, test, training=False), class_names)


def check_food101n(root: str | Path, *, food101_root: str | Path | None = None) -> list[FileCheck]:
    """Check each list and count the images that are missing."""
    root = inner(Path(root), "Food-101N_release")
    food101 = _find_food101(root, food101_root) or root.parent / "food-101"
    class_names: tuple[str, ...] | None = None
    keys: dict[str, None] = {}  # in order, each once

    def look(path: Path) -> str:
        nonlocal class_names
        name = f"meta/{path.name}"
        if name == _CLASSES_FILE:
            class_names = _read_classes(path)
            return f"{len(class_names)} classes; 101 were published"
        rows = _read_table(path, class_names, name != _ALL)
        keys.update(dict.fromkeys(f"images/{key}" for key in rows))
        right = f", {sum(rows.values()):,} of them right" if name != _ALL else ""
        return f"{len(rows):,} images{right}; {_TABLES[name]} were published"

    def look_at_test(path: Path) -> str:
        test.extend(f"images/{key}" for key in _read_test(food101, class_names))
        return f"{len(test):,} images; 25,250 were published"

    found = [examine(root / name, look) for name in (_CLASSES_FILE, *_TABLES)]
    found.append(check_images(root, keys))
    test: list[str] = []
    found.append(examine(_test_list(food101), look_at_test))
    return [*found, check_images(food101, test)] if found[-1].ok else found


FOOD101N = FilesEntry(
    name="food101n",
    description="310,009 dishes from the web",
    num_classes=101,
    instructions="unpack the archive of https://kuanghuei.github.io/Food-101N/ and, beside it, food-101.tar.gz",
    marks=(_ALL, f"Food-101N_release/{_ALL}"),
    read=food101n,
    look=check_food101n,
)


def _find_food101(root: Path, given: str | Path | None) -> Path | None:
    bases = [root, root.parent] if given is None else [Path(given)]
    places = [base / "food-101" for base in bases] + ([] if given is None else bases)
    return next((place for place in places if any((place / name).is_file() for name in _TEST_LISTS)), None)


def _test_list(food101: Path) -> Path:
    text, table = (food101 / name for name in _TEST_LISTS)
    return table if table.is_file() and not text.is_file() else text


def _read_classes(path: Path) -> tuple[str, ...]:
    names = tuple(name for name in read_lines(path) if name != "class_name")  # the first line is a header
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path} has {len(names)} names, {len(set(names))} of them different; fetch it again")
    return names


def _is_key(key: str, class_names: tuple[str, ...] | None) -> bool:
    name, _, file = key.partition("/")
    return bool(file) and not leaves_root(key) and (class_names is None or name in class_names)


def _read_table(path: Path, class_names: tuple[str, ...] | None, verified: bool) -> dict[str, bool]:
    """Keys CLASS/FILE of a table, each with whether a person confirmed the class (True in a plain list)."""

    def right(line: str) -> bool:
        key, *rest = line.split("\t")
        header = key.startswith("class_name")
        return header or (_is_key(key, class_names) and (rest in (["0"], ["1"]) if verified else not rest))

    expected = f"CLASS/FILE, with a class of {_CLASSES_FILE}" + (", a tab and 0 or 1" if verified else "")
    lines = [line.split("\t") for line in read_lines(path, right, expected)]
    rows = {key: rest != ["0"] for key, *rest in lines if not key.startswith("class_name")}
    if not rows:
        raise ValueError(f"{path} names no images; fetch it again")
    return rows


def _read_test(food101: Path, class_names: tuple[str, ...] | None) -> list[str]:
    """Keys CLASS/FILE.jpg of Food-101's test images, from its text or JSON list."""
    path = _test_list(food101)
    if path.suffix == ".json":
        try:
            by_class = json.loads(path.read_text(encoding="utf-8"))
            keys = [str(key) for name in by_class for key in by_class[name]]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} can't be read ({error}); fetch it again") from error
    else:
        keys = read_lines(path)
    if wrong := [key for key in keys if not _is_key(key, class_names)]:
        raise ValueError(f"{path} names {wrong[0]!r}; expected CLASS/NUMBER with a class of Food-101N: fetch it again")
    if not keys:
        raise ValueError(f"{path} names no images; fetch it again")
    return [f"{key}.jpg" for key in keys]
