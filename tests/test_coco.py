"""`vri clean` and `vri apply` on lists of images in COCO's form."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fake_classifier import read
from vri.cleaning.coco import read_coco, relabelled
from vri.cleaning.options import SourceOptions
from vri.cleaning.sources import open_source
from vri.cli import main

NAMES = ["cat", "dog", "cat", "dog", "cat", "dog"]


def coco(folder: Path, **more: Any) -> Path:
    """Six images of two classes and one without, in a folder of their own."""
    (folder / "images" / "a").mkdir(parents=True)
    images = [{"id": 10 * k, "file_name": f"a/{k}.png", "width": 8} for k in range(7)]
    for k, image in enumerate(images):
        Image.new("RGB", (8, 8), (30 * k, 0, 0)).save(folder / "images" / str(image["file_name"]))
    categories = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]
    numbers = {"cat": 7, "dog": 3}
    annotations = [{"id": k, "image_id": 10 * k, "category_id": numbers[name]} for k, name in enumerate(NAMES)]
    annotations.append({"id": 6, "image_id": 0, "category_id": 7})  # a second cat
    content = {"info": {"year": 1}, "images": images, "annotations": annotations, "categories": categories} | more
    (folder / "list.json").write_text(json.dumps(content))
    return folder / "list.json"


def test_a_list_is_the_same_as_a_folder(tmp_path: Path) -> None:
    path = coco(tmp_path)
    source = open_source(path, SourceOptions(images_root=tmp_path / "images", unlabelled=True))
    assert source.ids == [f"a/{k}.png" for k in range(7)]
    assert source.labels == [*NAMES, ""]
    pixels = source.make_inputs(tmp_path, None)  # type: ignore[arg-type]
    assert pixels.shape == (7, 3, 32, 32)
    assert (pixels[3] == [[[90]], [[0]], [[0]]]).all()
    assert source.describe(1)["image"].startswith(b"\xff\xd8")


def test_from_clean_to_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = coco(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text("cat,dog\n0.9,0.1\n" + "0.1,0.9\n" * 5 + "0.05,0.95\n")
    call = ["clean", "list.json", "--images-root", "images", "--unlabelled", "--pred-probs", "p.csv", "--quiet"]
    assert main([*call, "--out", "out", "--confidence", "0.5"]) == 0
    corrected = {row["id"]: row["label"] for row in read(tmp_path / "out" / "corrected.csv")}
    assert corrected["a/6.png"] == "dog"
    assert main(["apply", "list.json", "out", "--out", "new"]) == 0
    before, after = (json.loads(file.read_text()) for file in (path, tmp_path / "new" / "list.json"))
    assert {name: after[name] for name in ("info", "images", "categories")} == {
        name: before[name] for name in ("info", "images", "categories")
    }
    assert after["annotations"][-1] == {"id": 7, "image_id": 60, "category_id": 3}
    listing, _ = read_coco(tmp_path / "new" / "list.json")
    assert dict(zip(listing.paths, listing.labels, strict=True)) == corrected


def test_labels_that_are_changed_and_dropped(tmp_path: Path) -> None:
    path = coco(tmp_path)
    listing, content = read_coco(path, unlabelled=True)
    new = ["dog", None, "cat", "dog", "cat", "dog", ""]
    found = json.loads(relabelled(path, content, listing.labels, new))
    assert [each["id"] for each in found["images"]] == [0, 20, 30, 40, 50, 60]
    expected = [(0, 3), (20, 7), (30, 3), (40, 7), (50, 3), (0, 3)]
    assert [(each["image_id"], each["category_id"]) for each in found["annotations"]] == expected
    with pytest.raises(ValueError, match=r"list.json has the categories cat, dog, and not cow; choose one of them$"):
        relabelled(path, content, listing.labels, ["cow"] * 7)


FORM = (
    "PATH is no list of images in COCO's form; expected images (id, file_name), annotations (image_id, category_id) "
    "and categories (id, name) in JSON"
)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"images": []}, FORM),
        ({"annotations": [{"image_id": [1], "category_id": 3}]}, FORM),
        ({"categories": [{"id": 3}]}, FORM),
        (
            {"annotations": [{"image_id": 0, "category_id": 3}, {"image_id": 0, "category_id": 7}]},
            "PATH has 1 of 7 images with several categories: a/0.png; expected one class for each image: cut the "
            "objects out, and list them as images of their own",
        ),
        (
            {"annotations": [{"image_id": 0, "category_id": 4}]},
            "PATH: annotation 0 (from 0) has image_id 0 and category_id 4; expected the ids of an image and of a "
            "category in the same file",
        ),
        (
            {"categories": [{"id": 3, "name": "a"}, {"id": 7, "name": "a"}]},
            "PATH: categories have the name a more than once; expected each once",
        ),
        (
            {"images": [{"id": 0, "file_name": "../x.png"}], "annotations": []},
            "PATH names images outside of their folder: ../x.png; expected paths inside of it",
        ),
        (
            {"images": [{"id": 0, "file_name": "x.png"}], "annotations": []},
            "1 of the images that PATH names are not under ROOT: x.png; unpack them there, or correct the paths",
        ),
        (
            {},
            "PATH has no label in 1 of 7 rows: 6 (from 0); expected one in each: fill them in, remove the rows, or "
            "have them predicted with --unlabelled",
        ),
    ],
)
def test_lists_that_are_refused(more: dict[str, Any], message: str, tmp_path: Path, capsys: Any) -> None:
    path, root = coco(tmp_path, **more), tmp_path / "images"
    call = ["clean", str(path), "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*call, "--images-root", str(root)]) == 2
    expected = message.replace("PATH", str(path)).replace("ROOT", str(root))
    assert capsys.readouterr().err == f"vri clean: {expected}\n"
    path.write_text("[1")
    assert main([*call, "--images-root", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"vri clean: {FORM.replace('PATH', str(path))}\n"
    assert main([*call, "--images-root", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err == (
        f"vri clean: --images-root is {tmp_path / 'no'}, which is no folder; expected the one of the images\n"
    )
    assert main([*call, "--label", "y"]) == 2
    assert capsys.readouterr().err == "vri clean: --label can't be used with a list of images; leave it out\n"
    assert not (tmp_path / "out").exists()
