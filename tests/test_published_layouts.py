"""Clothing1M, Food-101N and ANIMAL-10N, on small folders in the published layouts."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from pictures import PLAIN, picture, said, save, summary, tensor, trained
from vri.data.places import DatasetMissing, FileCheck
from vri.data.sets.animal10n import animal10n, check_animal10n
from vri.data.sets.clothing1m import check_clothing1m, clothing1m
from vri.data.sets.food101n import check_food101n, food101n

# Clothing1M


CLOTHES = ["T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket"]
CLOTHES += ["Downcoat", "Suit", "Shawl", "Dress", "Vest", "Underwear"]


def clothes(root: Path, lists: str) -> Path:
    keys = {
        "noisy_train": ["images/0/00/n1.jpg", "images/0/01/n2.jpg", "images/1/00/both.jpg", "images/9/99/n3.jpg"],
        "clean_train": ["images/2/00/c1.jpg"],
        "clean_val": ["images/3/00/v1.jpg", "images/1/00/both.jpg"],
        "clean_test": ["images/4/00/t1.jpg"],
    }
    noisy = {"images/0/00/n1.jpg": 13, "images/0/01/n2.jpg": 0, "images/1/00/both.jpg": 5, "images/9/99/n3.jpg": 2}
    clean = {"images/2/00/c1.jpg": 1, "images/3/00/v1.jpg": 7, "images/1/00/both.jpg": 6, "images/4/00/t1.jpg": 12}
    folder = root / lists
    folder.mkdir(parents=True, exist_ok=True)
    for name, listed in keys.items():
        (folder / f"{name}_key_list.txt").write_text("".join(f"{key}\n" for key in listed))
        for key in listed:
            save(root / key)
    for name, labels in {"noisy": noisy, "clean": clean}.items():
        (folder / f"{name}_label_kv.txt").write_text("".join(f"{key} {label}\n" for key, label in labels.items()))
    (folder / "category_names_eng.txt").write_text("\n".join(CLOTHES))
    return root


@pytest.mark.parametrize("lists", [".", "annotations"])
def test_clothing1m(tmp_path: Path, lists: str) -> None:
    data = clothing1m(clothes(tmp_path, lists))
    assert (data.name, data.class_names) == ("clothing1m", tuple(CLOTHES))
    # Without the image that is in the clean part as well.
    assert summary(data.train) == [("images/0/00/n1.jpg", 13), ("images/0/01/n2.jpg", 0), ("images/9/99/n3.jpg", 2)]
    assert summary(data.clean) == [("images/3/00/v1.jpg", 7), ("images/1/00/both.jpg", 6)]
    assert data.validation is None
    assert summary(data.test) == [("images/4/00/t1.jpg", 12)]
    assert trained(data) == {"train": True, "clean": True, "test": False}
    assert data.test is not None
    assert data.test[0][0].shape == (3, 224, 224)


def test_clothing1m_with_its_clean_training_images(tmp_path: Path) -> None:
    data = clothing1m(clothes(tmp_path, "."), clean="train", prepare=PLAIN)
    assert summary(data.clean) == [("images/2/00/c1.jpg", 1)]
    assert summary(data.validation) == [("images/3/00/v1.jpg", 7), ("images/1/00/both.jpg", 6)]
    assert len(data.train) == 3
    assert trained(data) == {"train": True, "clean": True, "validation": False, "test": False}
    with said(ValueError, "clean is 'all'; expected validation or train"):
        clothing1m(tmp_path, clean="all")


def test_clothing1m_squeezes_its_images(tmp_path: Path) -> None:
    image = picture(40, 30)
    save(clothes(tmp_path, ".") / "images/4/00/t1.png", image)
    shutil.move(tmp_path / "images/4/00/t1.png", tmp_path / "images/4/00/t1.jpg")  # a PNG by any name
    data = clothing1m(tmp_path)
    assert data.test is not None
    middle = tensor(image.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240)))
    mean, std = torch.tensor(data.test.prepare.mean), torch.tensor(data.test.prepare.std)
    torch.testing.assert_close(data.test[0][0], (middle - mean[:, None, None]) / std[:, None, None])


def test_clothing1m_errors(tmp_path: Path) -> None:
    root = clothes(tmp_path, "annotations")
    lists = root / "annotations"
    (root / "images/4/00/t1.jpg").unlink()
    with said(
        DatasetMissing,
        f"1 of the images that the lists in {lists} names are not under {root}: images/4/00/t1.jpg; "
        "unpack them there, or correct the paths",
    ):
        clothing1m(root)
    assert len(clothing1m(root, check_files=False).train) == 3
    (lists / "noisy_label_kv.txt").write_text("images/0/00/n1.jpg 14\n")
    with said(
        ValueError,
        f"{lists / 'noisy_label_kv.txt'}, entry 1 is 'images/0/00/n1.jpg 14'; expected a path, a space and a class "
        "from 0 to 13: fetch it again",
    ):
        clothing1m(root)
    (lists / "noisy_label_kv.txt").write_text("images/0/00/n1.jpg 3\n")
    with said(
        ValueError,
        f"{lists / 'noisy_train_key_list.txt'} names 2 images without a label in noisy_label_kv.txt: "
        "images/0/01/n2.jpg, images/9/99/n3.jpg; fetch both files again",
    ):
        clothing1m(root, check_files=False)
    (lists / "clean_val_key_list.txt").write_text("images/../../x.jpg\n")
    with said(
        ValueError,
        f"{lists / 'clean_val_key_list.txt'}, entry 1 is 'images/../../x.jpg'; expected a path inside of its folder: "
        "fetch it again",
    ):
        clothing1m(root)
    (lists / "category_names_eng.txt").write_text("Shirt\n")
    with said(ValueError, f"{lists / 'category_names_eng.txt'} has 1 names; expected 14: fetch it again"):
        clothing1m(root)
    (lists / "clean_test_key_list.txt").unlink()
    (lists / "noisy_label_kv.txt").unlink()
    with said(
        DatasetMissing,
        f"clothing1m is not whole in {root}: clean_test_key_list.txt, noisy_label_kv.txt not found there or in "
        f"{lists}; unpack the authors' annotations there",
    ):
        clothing1m(root)


def table(found: list[FileCheck], root: Path) -> dict[str, tuple[str, str]]:
    rows = {str(check.path.relative_to(root)): (check.status, check.reason) for check in found}
    assert len(rows) == len(found)
    return rows


def test_check_clothing1m(tmp_path: Path) -> None:
    root = clothes(tmp_path, "annotations")
    found = table(check_clothing1m(root), root)
    assert {status for status, _ in found.values()} == {"ok"}
    assert found["annotations/noisy_train_key_list.txt"][1] == "4 images; 1,000,000 were published"
    assert found["annotations/clean_label_kv.txt"][1] == "4 labels"
    assert found["annotations/category_names_eng.txt"][1] == "14 classes"
    assert found["images"][1] == "7 images"  # one is in two lists
    assert len(found) == 8

    (root / "annotations/noisy_label_kv.txt").write_text("images/0/00/n1.jpg 3\nimages/0/01/n2.j")
    (root / "annotations/clean_val_key_list.txt").unlink()
    (root / "images/4/00/t1.jpg").unlink()
    found = table(check_clothing1m(root), root)
    assert found["annotations/clean_val_key_list.txt"] == ("missing", "")
    assert found["annotations/noisy_label_kv.txt"][0] == "damaged"
    assert "entry 2 is 'images/0/01/n2.j'" in found["annotations/noisy_label_kv.txt"][1]
    assert found["images"] == ("missing", "1 of 6 images: images/4/00/t1.jpg")


def test_checks_of_an_empty_folder(tmp_path: Path) -> None:
    for check in (check_clothing1m, check_food101n, check_animal10n):
        assert {entry.status for entry in check(tmp_path)} == {"missing"}


# Food-101N


def food(root: Path, header: bool = True, as_json: bool = False, food101: str = "food-101") -> Path:
    release, other = root / "Food-101N_release", root / food101
    keys = ["pie/1.jpg", "pie/2.jpg", "pie/3.jpg", "soup/4.jpg", "soup/5.jpg", "soup/6.jpg", "soup/7.jpg"]
    for key in keys:
        save(release / "images" / key)
    (release / "meta").mkdir()
    (release / "meta/classes.txt").write_text(("class_name\n" if header else "") + "soup\npie\n")
    tables = {
        "imagelist": keys,
        "verified_train": ["pie/1.jpg\t1", "soup/4.jpg\t0"],
        "verified_val": ["pie/2.jpg\t1", "soup/5.jpg\t1", "soup/6.jpg\t0"],
    }
    for name, rows in tables.items():
        first = "class_name/key" + ("" if name == "imagelist" else "\tverification_label")
        (release / f"meta/{name}.tsv").write_text("\n".join([first, *rows]) + "\n")
    (other / "meta").mkdir(parents=True)
    if as_json:
        (other / "meta/test.json").write_text(json.dumps({"pie": ["pie/100"], "soup": ["soup/200"]}))
    else:
        (other / "meta/test.txt").write_text("pie/100\nsoup/200\n")
    for key in ("pie/100.jpg", "soup/200.jpg"):
        save(other / "images" / key)
    return root


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("inner", ["", "Food-101N_release"])
def test_food101n(tmp_path: Path, header: bool, as_json: bool, inner: str) -> None:
    data = food101n(food(tmp_path, header, as_json) / inner, prepare=PLAIN)
    assert (data.name, data.class_names) == ("food-101n", ("soup", "pie"))
    # Verified training images keep the class they came with, also the wrong one.
    assert summary(data.train) == [("images/pie/1.jpg", 1), ("images/soup/4.jpg", 0)]
    assert summary(data.clean) == [("images/pie/2.jpg", 1), ("images/soup/5.jpg", 0)]
    assert summary(data.test) == [("images/pie/100.jpg", 1), ("images/soup/200.jpg", 0)]
    assert data.validation is None
    assert data.test is not None
    assert data.test[1][0].shape == (3, 8, 8)
    assert trained(data) == {"train": True, "clean": True, "test": False}


def test_food101n_with_all_images(tmp_path: Path) -> None:
    data = food101n(food(tmp_path, food101="elsewhere/food-101"), train="all", food101_root=tmp_path / "elsewhere")
    expected = ["images/pie/1.jpg", "images/pie/3.jpg", "images/soup/4.jpg", "images/soup/7.jpg"]
    assert [name for name, _ in summary(data.train)] == expected
    assert food101n(tmp_path, food101_root=tmp_path / "elsewhere/food-101").test is not None
    with said(ValueError, "train is 'clean'; expected verified or all"):
        food101n(tmp_path, train="clean")


def test_food101n_errors(tmp_path: Path) -> None:
    root = food(tmp_path)
    release, meta = root / "Food-101N_release", root / "Food-101N_release" / "meta"
    (root / "food-101/images/pie/100.jpg").unlink()
    with said(
        DatasetMissing,
        f"1 of the images that the list in {root / 'food-101/meta'} names are not under {root / 'food-101'}: "
        "images/pie/100.jpg; unpack them there, or correct the paths",
    ):
        food101n(root)
    assert len(food101n(root, check_files=False).train) == 2
    (root / "food-101/meta/test.txt").write_text("sushi/1\n")
    with said(
        ValueError,
        f"{root / 'food-101/meta/test.txt'} names 'sushi/1'; expected CLASS/NUMBER with a class of Food-101N: "
        "fetch it again",
    ):
        food101n(root)
    (meta / "verified_val.tsv").write_text("class_name/key\tverification_label\npie/2.jpg\t2\n")
    with said(
        ValueError,
        f"{meta / 'verified_val.tsv'}, entry 2 is 'pie/2.jpg\\t2'; expected CLASS/FILE, with a class of "
        "meta/classes.txt, a tab and 0 or 1: fetch it again",
    ):
        food101n(root)
    shutil.rmtree(root / "food-101")
    with said(
        DatasetMissing,
        "the test images of food-101n are those of Food-101, and there is no food-101/meta/test.txt in "
        f"{release} and {root}; unpack food-101.tar.gz there, or pass food101_root=",
    ):
        food101n(root)
    (meta / "classes.txt").unlink()
    with said(
        DatasetMissing,
        f"food-101n is not whole in {release}: meta/classes.txt not found; "
        "fetch it from https://kuanghuei.github.io/Food-101N/",
    ):
        food101n(root)


def test_check_food101n(tmp_path: Path) -> None:
    root = food(tmp_path)
    found = table(check_food101n(root), root)
    assert {status for status, _ in found.values()} == {"ok"}
    at = "Food-101N_release"
    assert found[f"{at}/meta/verified_val.tsv"][1] == "3 images, 2 of them right; 4,741 were published"
    assert found[f"{at}/images"][1] == "7 images"
    assert found["food-101/meta/test.txt"][1] == "2 images; 25,250 were published"

    (root / "food-101/images/pie/100.jpg").unlink()
    (root / at / "meta/verified_train.tsv").write_text("nothing")
    found = table(check_food101n(root), root)
    wrong = {name: status for name, (status, _) in found.items() if status != "ok"}
    assert wrong == {f"{at}/meta/verified_train.tsv": "damaged", "food-101/images": "missing"}


# ANIMAL-10N


@pytest.mark.parametrize("inner", ["", "raw_image"])
def test_animal10n(tmp_path: Path, inner: str) -> None:
    for name in ("training/0_12.jpg", "training/9_3.jpg", "training/5_7.jpg", "testing/4_1.jpg"):
        save(tmp_path / inner / name, picture(64, 64))
    data = animal10n(tmp_path)
    assert summary(data.train) == [("training/0_12.jpg", 0), ("training/5_7.jpg", 5), ("training/9_3.jpg", 9)]
    assert summary(data.test) == [("testing/4_1.jpg", 4)]
    assert (data.clean, data.validation, data.num_classes) == (None, None, 10)
    assert [data.class_names[i] for i in (0, 5, 9)] == ["cat", "jaguar", "guinea pig"]
    assert trained(data) == {"train": True, "test": False}
    assert data.train[0][0].shape == (3, 64, 64)

    found = table(check_animal10n(tmp_path), tmp_path / inner)
    assert found == {
        "training": ("ok", "3 images; 50,000 were published"),
        "testing": ("ok", "1 images; 5,000 were published"),
    }


def test_animal10n_errors(tmp_path: Path) -> None:
    with said(
        DatasetMissing,
        f"animal-10n is not whole in {tmp_path}: training/, testing/ not found; "
        "fetch it from https://dm.kaist.ac.kr/datasets/animal-10n",
    ):
        animal10n(tmp_path)
    save(tmp_path / "training/0_12.jpg")
    save(tmp_path / "training/cat.jpg")
    (tmp_path / "testing").mkdir()
    rest = "expected names that begin with a class from 0 to 9 and _, such as 4_12345.jpg: fetch the archive again"
    with said(ValueError, f"{tmp_path / 'training'} has 1 images without a label: cat.jpg; {rest}"):
        animal10n(tmp_path)
    (tmp_path / "training/cat.jpg").unlink()
    with said(ValueError, f"{tmp_path / 'testing'} has no images; {rest}"):
        animal10n(tmp_path)
    assert [check.status for check in check_animal10n(tmp_path)] == ["ok", "damaged"]
