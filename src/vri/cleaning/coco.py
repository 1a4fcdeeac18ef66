"""Images with their classes in a JSON file of COCO's form: images, annotations, categories; one class per image."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vri.cleaning.folders import Listing
from vri.cleaning.tables import label_texts
from vri.data.lists import check_present, leaves_root, shorten

Content = dict[str, Any]


def read_coco(path: Path, root: Path | None = None, unlabelled: bool | str = False) -> tuple[Listing, Content]:
    """The images that a file lists, and all that is in it.

    Args:
        path: the file.
        root: folder that the names of the images start from, which are then looked for; None leaves them alone.
        unlabelled: whether images may be without label, see `label_texts`.
    """
    content = _read(path)
    names = {each["id"]: str(each["name"]) for each in content["categories"]}
    found: dict[Any, set[str]] = {each["id"]: set() for each in content["images"]}
    for number, each in enumerate(content["annotations"]):
        if each["image_id"] not in found or each["category_id"] not in names:
            raise ValueError(
                f"{path}: annotation {number} (from 0) has image_id {each['image_id']!r} and category_id "
                f"{each['category_id']!r}; expected the ids of an image and of a category in the same file"
            )
        found[each["image_id"]].add(names[each["category_id"]])
    paths = [str(each["file_name"]) for each in content["images"]]
    several = [name for name, each in zip(paths, content["images"], strict=True) if len(found[each["id"]]) > 1]
    if several:
        raise ValueError(
            f"{path} has {len(several):,} of {len(paths):,} images with several categories: {shorten(several)}; "
            "expected one class for each image: cut the objects out, and list them as images of their own"
        )
    if outside := [name for name in paths if leaves_root(name)]:
        raise ValueError(
            f"{path} names images outside of their folder: {shorten(outside)}; expected paths inside of it"
        )
    if root is not None:
        check_present(root, paths, str(path))
    labels = [next(iter(found[each["id"]]), None) for each in content["images"]]
    return Listing(root or path.parent, paths, label_texts(labels, str(path), unlabelled), []), content


def _read(path: Path) -> Content:
    needed = {"images": ("id", "file_name"), "annotations": ("image_id", "category_id"), "categories": ("id", "name")}
    try:
        content: Content = json.loads(path.read_text(encoding="utf-8"))
        values = [(each[key], key) for name, keys in needed.items() for each in content[name] for key in keys]
        sound = all(isinstance(value, str if key in ("name", "file_name") else int | str) for value, key in values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # of json.loads, and of another form
        sound = False
    if not sound or not content["images"]:
        raise ValueError(
            f"{path} is no list of images in COCO's form; expected images (id, file_name), annotations (image_id, "
            "category_id) and categories (id, name) in JSON"
        )
    for name in ("images", "categories"):
        for key in needed[name]:
            counts = Counter(str(each[key]) for each in content[name])
            if twice := [value for value, count in counts.items() if count > 1]:
                raise ValueError(f"{path}: {name} have the {key} {shorten(twice)} more than once; expected each once")
    return content


def relabelled(path: Path, content: Content, given: Sequence[str], new: Sequence[str | None]) -> str:
    """The file with new labels; images with the label None are dropped, with their annotations."""
    numbers = {str(each["name"]): each["id"] for each in content["categories"]}
    if unknown := sorted({label for label in new if label} - numbers.keys()):
        raise ValueError(
            f"{path} has the categories {shorten(numbers)}, and not {shorten(unknown)}; choose one of them"
        )
    ids = [each["id"] for each in content["images"]]
    changed = {each: label for each, old, label in zip(ids, given, new, strict=True) if label and label != old}
    dropped = {each for each, label in zip(ids, new, strict=True) if label is None}
    annotations = [dict(each) for each in content["annotations"] if each["image_id"] not in dropped]
    for each in annotations:
        if each["image_id"] in changed:
            each["category_id"] = numbers[changed[each["image_id"]]]
    first = 1 + max((each["id"] for each in annotations if isinstance(each.get("id"), int)), default=0)
    blank = [each for each in changed if each not in {annotation["image_id"] for annotation in annotations}]
    for number, each in enumerate(blank, first):
        annotations.append({"id": number, "image_id": each, "category_id": numbers[changed[each]]})
    images = [each for each in content["images"] if each["id"] not in dropped]
    return json.dumps(content | {"images": images, "annotations": annotations}, indent=1, ensure_ascii=False)
