"""Folders of classes and manifests as data sets, and training on them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import PLAIN, picture, said, save, summary, trained
from vri import VRI, train
from vri.backbones import build
from vri.data.files import image_folder, manifest
from vri.data.image_files import Preparation
from vri.data.places import DatasetMissing

# folders of classes


def test_image_folder(tmp_path: Path) -> None:
    for name in ("cat/2.jpg", "cat/10.PNG", "ant/1.jpeg", "cat/.hidden.jpg", "cat/notes.txt", ".git/1.jpg", "top.jpg"):
        path = tmp_path / "train" / name
        if name.endswith("txt"):
            path.write_text("no image")
        else:
            save(path)
    save(tmp_path / "train" / "cat" / "inner" / "3.jpg")
    save(tmp_path / "test" / "cat" / "5.jpg")
    save(tmp_path / "clean" / "ant" / "6.jpg")
    data = image_folder(tmp_path / "train", test=tmp_path / "test", clean=str(tmp_path / "clean"), prepare=PLAIN)
    assert (data.name, data.class_names, data.num_classes) == ("train", ("ant", "cat"), 2)
    assert summary(data.train) == [("ant/1.jpeg", 0), ("cat/10.PNG", 1), ("cat/2.jpg", 1)]
    assert summary(data.test) == [("cat/5.jpg", 1)]
    assert summary(data.clean) == [("ant/6.jpg", 0)]
    assert data.validation is None
    assert trained(data) == {"train": True, "clean": True, "test": False}
    assert data.train[0][0].shape == (3, 8, 8)


def test_image_folder_errors(tmp_path: Path) -> None:
    what = "a folder with one folder of images per class"
    with said(DatasetMissing, f"{tmp_path / 'no'} is not there; expected {what}"):
        image_folder(tmp_path / "no")
    path = save(tmp_path / "flat" / "1.jpg")
    with said(NotADirectoryError, f"{path} is a file; expected {what}"):
        image_folder(path)
    flat = path.parent
    with said(
        ValueError,
        f"{flat} has no folders in it; expected one per class, {flat}/CLASS/IMAGE.jpg: sort the images into them",
    ):
        image_folder(flat)
    for name in ("train/cat/1.jpg", "test/dog/2.jpg"):
        save(tmp_path / "splits" / name)
    splits = tmp_path / "splits"
    with said(
        ValueError,
        f"{splits} has classes without images: test, train; expected files that end in .jpg, .jpeg, .png, .bmp, .gif, "
        f".webp, .tif, .tiff in each: remove the folder, or pass the folder that holds the classes, such as "
        f"{splits / 'test'}",
    ):
        image_folder(splits)
    with said(
        ValueError,
        f"{splits / 'test'} has classes that {splits / 'train'} has not: dog; "
        "expected some of cat: rename or remove them",
    ):
        image_folder(splits / "train", test=splits / "test")


# manifests


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., Path]:
    """Images a.png to f.png, and a CSV file of the lines given."""
    for name in "abcdef":
        save(tmp_path / "images" / f"{name}.png", picture(8, 8))

    def write(*lines: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / "list.csv"
        path.write_text("\n".join(lines) + "\n", encoding=encoding)
        return path

    return write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_manifest(listed: Callable[..., Path], encoding: str) -> None:
    path = listed(
        "Path,label, trusted ,note,split",
        'images/a.png,"Katze, groß",no,,train',
        "./images/b.png,ant,YES,x,train",
        f"{listed().parent}/images/c.png,ant,0,,train",
        "",
        "images/x/../d.png,ant,true,,test",
        "images/e.png,ant,False,,validation",
        "images/f.png,bee,1,,Train",
        encoding=encoding,
    )
    data = manifest(path, prepare=PLAIN)
    assert (data.name, data.class_names) == ("list", ("Katze, groß", "ant", "bee"))
    assert summary(data.train) == [("images/a.png", 0), ("images/c.png", 1)]
    assert summary(data.clean) == [("images/b.png", 1), ("images/f.png", 2)]
    assert summary(data.test) == [("images/d.png", 1)]
    assert summary(data.validation) == [("images/e.png", 1)]
    assert trained(data) == {"train": True, "clean": True, "validation": False, "test": False}
    assert data.train[1][0].shape == (3, 8, 8)


def test_manifest_without_optional_columns(listed: Callable[..., Path]) -> None:
    path = listed("label,path", "10,a.png", "9,b.png", "10,a.png")
    data = manifest(path, path.parent / "images")
    assert data.class_names == ("9", "10")  # by value
    assert summary(data.train) == [("a.png", 1), ("b.png", 0), ("a.png", 1)]
    assert (data.clean, data.validation, data.test) == (None, None, None)


def test_manifest_with_given_classes(listed: Callable[..., Path]) -> None:
    path = listed("path,label", "images/a.png,cat", "images/b.png,ant")
    data = manifest(path, class_names=["dog", "cat", "ant"])
    assert (data.class_names, data.train.targets) == (("dog", "cat", "ant"), [1, 2])
    with said(
        ValueError,
        f"{path}, line 3: label is 'ant'; expected one of class_names ('dog', 'cat'): correct the row or add the class",
    ):
        manifest(path, class_names=["dog", "cat"])


def test_manifest_names_missing_images_at_once(listed: Callable[..., Path]) -> None:
    path = listed("path,label", "images/a.png,0", *(f"images/{i}.png,1" for i in range(7)))
    shown = ", ".join(f"images/{i}.png" for i in range(5))
    with said(
        DatasetMissing,
        f"7 of the images that {path} names are not under {path.parent}: {shown}, ...; "
        "unpack them there, or correct the paths",
    ):
        manifest(path)
    assert len(manifest(path, check_files=False).train) == 8


A, B = "images/a.png,x", "images/b.png,x"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "{} has the columns none; expected path and label, and if wanted trusted and split: "
             "add path and label to the first line"),
        (["file,label", A], "{} has the columns file, label; expected path and label, and if wanted trusted and "
                            "split: add path to the first line"),
        (["path,label"], "{} has no rows; expected one per image below the header"),
        (["path,label,trused", f"{A},1"], "{} has a column 'trused'; did you mean 'trusted'? Rename it"),
        (["path,label,label", f"{A},x"], "{} has a column twice: path, label, label; expected each once: remove one"),
        (["path,label", "images/a,b.png,x"],
         "{}, line 2 has another number of cells than the header; expected as many: put cells with commas in quotes"),
        (["path,label", A, "images/b.png"],
         "{}, line 3 has another number of cells than the header; expected as many: put cells with commas in quotes"),
        (["path,label", A, "images/b.png, "], "{}, line 3: label is empty; fill it in or remove the row"),
        (["path,label", ",x"], "{}, line 2: path is empty; fill it in or remove the row"),
        (["path,label,trusted", f"{A},maybe"],
         "{}, line 2: trusted is 'maybe'; expected one of true, 1, yes, false, 0, no"),
        (["path,label,trusted", f"{A},"], "{}, line 2: trusted is ''; expected one of true, 1, yes, false, 0, no"),
        (["path,label,split", f"{A},dev"], "{}, line 2: split is 'dev'; expected one of train, validation, test"),
        (["path,label,trusted", f"{A},0", f"{B},no"],
         "{} has the column trusted, but no training row is trusted; expected some with true: mark them, or remove the "
         "column"),
        (["path,label,trusted", f"{A},1"],
         "{} leaves no row to train on; expected some with split train that are not trusted"),
        (["path,label", "images/../../a.png,x"],
         "{}, line 2: path 'images/../../a.png' leaves the root {root}; expected a file under it"),
        (["path,label", "/etc/passwd,x"],
         "{}, line 2: path '/etc/passwd' leaves the root {root}; expected a file under it"),
        (["path,label,trusted", f"{A},0", f"{B},1", "images/./a.png,x,1"],
         "{}: images/a.png is in line 2 (train) and line 4 (clean); expected an image in one part only: "
         "remove one of the rows"),
    ],
)  # fmt: skip
def test_manifest_errors(listed: Callable[..., Path], lines: list[str], message: str) -> None:
    path = listed(*lines)
    with said(ValueError, message.format(path, root=path.parent)):
        manifest(path)


def test_manifest_files_that_are_none(listed: Callable[..., Path]) -> None:
    path = listed("path,label", A)
    with said(DatasetMissing, f"{path}x is not there; expected a CSV file with the columns path and label"):
        manifest(f"{path}x")
    root = path.parent / "no"
    with said(DatasetMissing, f"root is {root}, which is no folder; expected the one that the paths begin from"):
        manifest(path, root)
    path = listed("path,label", "images/ä.png,x", encoding="latin-1")
    with pytest.raises(ValueError, match=r" is not UTF-8 \(.*\); save it as UTF-8$"):
        manifest(path)
    path = listed("path,label", 'images/a.png,"x')
    with pytest.raises(ValueError, match=r" is no sound CSV file \(.*\); expected commas between cells and quotes"):
        manifest(path)


# in the loop


def test_a_method_trains_on_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, count in (("train", 24), ("clean", 6), ("test", 8)):
        for i in range(count):
            colour = i % 2
            pixels = generator.integers(0, 80, (10, 12, 3), dtype=np.uint8)
            pixels[:, :, colour] += 150
            wrong = part == "train" and i % 6 == 0  # a sixth: red ones called green
            save(tmp_path / part / ("green" if colour or wrong else "red") / f"{i}.png", Image.fromarray(pixels))
    prepare = Preparation(size=8, resize=9, augment="crop")
    data = image_folder(tmp_path / "train", clean=tmp_path / "clean", test=tmp_path / "test", prepare=prepare)
    model = build("small_cnn", num_classes=data.num_classes, seed=0)
    method = VRI(
        model, data.num_classes, torch.optim.SGD(model.parameters(), lr=0.05), hypergradient="finite_difference"
    )
    history = train(method, data.train, data.clean, epochs=3, batch_size=8, test_set=data.test, progress=False)
    assert len(history) == 3
    assert history[-1]["test_accuracy"] == 1.0
