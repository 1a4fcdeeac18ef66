"""From settings to data that a method can be trained on: load, split, add noise, augment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vri import data, noise
from vri.data.augment import Augment
from vri.data.batches import Data, length, take
from vri.data.files import FileData
from vri.data.images import ImageData
from vri.data.splits import load_split
from vri.paper.settings import Settings, SettingsError, nearest

_PLAIN = ("digits", "fashion-mnist")  # sets that are not cropped or flipped unless asked for
_BACKBONES = {"digits": "mlp", "fashion-mnist": "small_cnn"}
_CROP = 4  # pixels of padding, as usual for 32x32 images
_SHIFT = 2  # likewise, for training of a few epochs, as in the CIFAR-10 speed records
_RAND_AUGMENT = 2  # operations per image


@dataclass(frozen=True, eq=False)
class Prepared:
    """Data sets and transforms of a run, and what is known about their labels."""

    train: Data
    clean: Data | None
    validation: Data | None
    test: Data | None
    true_labels: Tensor | None  # of the training set
    noise: noise.Noise | None  # of the whole training part, before it was split
    split: Mapping[str, Tensor]
    class_names: tuple[str, ...]
    channels: int
    image_size: int
    backbone: str  # the default for the data
    transform: Augment | None = None
    strong_transform: Augment | None = None
    meta_transform: Augment | None = None
    test_transform: Augment | None = None


def prepare(settings: Settings) -> Prepared:
    """Load the data of an experiment; the same settings give the same split and labels for every method."""
    loaded = _load(settings)
    if isinstance(loaded, ImageData):
        return _from_memory(settings, loaded)
    return _from_files(settings, loaded)


def _load(settings: Settings) -> ImageData | FileData:
    path = Path(settings.dataset)
    if settings.dataset in data.DATASETS:
        return data.load(settings.dataset, settings.root)
    if settings.dataset in data.FILE_DATASETS:
        return data.load_files(settings.dataset, settings.root)
    if path.suffix.lower() == ".csv":
        return data.manifest(path, settings.root)
    if path.is_dir():
        return data.image_folder(path)
    known = [*data.DATASETS, *data.FILE_DATASETS]
    raise SettingsError(
        f"dataset={settings.dataset!r}: expected a name, a folder of images by class, or a CSV manifest; the names are "
        f"{', '.join(known)}{nearest(settings.dataset, known)}"
    )


def _from_memory(settings: Settings, images: ImageData) -> Prepared:
    y, drawn = images.train_y, draw_noise(settings, images)
    parts = _split(settings, images) if settings.split is None else _read_split(settings.split, len(y))

    def part(name: str) -> tuple[Tensor, Tensor] | None:
        index = parts[name]
        return (images.train_x[index], y[index]) if len(index) else None

    labels = y if drawn is None else drawn.labels
    train = parts["train"]
    test = slice(settings.test_limit)
    augment = settings.augment or ("none" if settings.dataset in _PLAIN else "crop-flip")
    evaluated = Augment(images.mean, images.std)
    crop = _SHIFT if augment == "shift-flip" else _CROP
    simple = Augment(images.mean, images.std, crop=crop, flip=True) if augment != "none" else evaluated
    strong = simple
    if augment != "none":
        strong = Augment(images.mean, images.std, crop=crop, flip=True, rand_augment=_RAND_AUGMENT)
    return Prepared(
        train=(images.train_x[train], labels[train]),
        clean=part("clean"),
        validation=part("validation"),
        test=(images.test_x[test], images.test_y[test]),
        true_labels=None if drawn is None else y[train],
        noise=drawn,
        split=parts,
        class_names=images.class_names,
        channels=images.train_x.shape[1],
        image_size=images.train_x.shape[-1],
        backbone=_BACKBONES.get(settings.dataset, "resnet32"),
        transform=strong if augment == "rand-augment" else simple,
        strong_transform=strong,
        meta_transform=simple,
        test_transform=evaluated,
    )


def _split(settings: Settings, images: ImageData) -> dict[str, Tensor]:
    """Training, trusted and validation samples of the training part."""
    classes, y = images.num_classes, images.train_y
    # out-of-distribution samples have no class to balance: they all go to training, and its size includes them
    closed = torch.arange(len(y)) if images.open_set is None else (~images.open_set).nonzero().squeeze(1)
    sizes = {"clean": settings.clean, "validation": settings.validation}
    limit = settings.limit
    if limit is not None:
        limit = round(limit * len(closed) / len(y))
    sizes["train"] = -1 if limit is None else limit
    parts = data.split(y[closed], sizes=sizes, num_classes=classes, seed=settings.seed)
    parts = {name: closed[index] for name, index in parts.items()}
    if images.open_set is not None:
        strange = images.open_set.nonzero().squeeze(1)
        if limit is not None and settings.limit is not None:
            generator = torch.Generator().manual_seed(settings.seed)
            keep = torch.randperm(len(strange), generator=generator)[: settings.limit - limit]
            strange = strange[keep]
        parts["train"] = torch.cat([parts["train"], strange]).sort().values
    return parts


def _read_split(path: str, count: int) -> dict[str, Tensor]:
    """A split that another run has written."""
    parts = load_split(path)
    if set(parts) != {"train", "clean", "validation"} or not len(parts["train"]):
        raise SettingsError(
            f"{path} has the parts {', '.join(parts) or 'none'}; expected clean, validation and train: pass the "
            "split.npz of another run"
        )
    last = max(int(index.max()) for index in parts.values() if len(index))
    if last >= count:
        raise SettingsError(
            f"{path} names sample {last}, but the training part has {count}; expected the split of the same data set"
        )
    return parts


def draw_noise(settings: Settings, images: ImageData) -> noise.Noise | None:
    """Noisy labels of the whole training part, so that they don't depend on how it is split."""
    y, classes = images.train_y, images.num_classes
    seed = settings.seed if settings.noise_seed is None else settings.noise_seed
    if settings.noise in images.human_labels:
        return noise.human(None, y, num_classes=classes, labels=images.human_labels[settings.noise])
    if settings.noise.endswith(".npz"):
        return noise.load(settings.noise, y)
    if settings.noise == "none":
        if images.open_set is not None:
            raise SettingsError(
                f"noise='none' on {images.name}: its out-of-distribution images have no right label; "
                "expected open-uniform or open-pair"
            )
        return None
    if settings.noise not in noise.NOISES:
        known = [*noise.NOISES, *images.human_labels]
        raise SettingsError(
            f"noise={settings.noise!r}: expected none, a file written by `vri noise`, or one of {', '.join(known)}"
        )
    drawn: noise.Noise = noise.NOISES[settings.noise](
        images.train_x, y, num_classes=classes, rate=settings.rate, seed=seed
    )
    return drawn


def _from_files(settings: Settings, files: FileData) -> Prepared:
    """Sets of image files: their labels have their own noise, and none is added."""
    if settings.noise != "none":
        raise SettingsError(
            f"noise={settings.noise!r} on {files.name}: noise can be added to sets that fit into memory only; "
            "expected none, for the labels as they are"
        )
    change: dict[str, Any] = {"on_broken": settings.broken_images}
    if settings.image_size is not None:
        resize = files.train.prepare.resize * settings.image_size / files.train.prepare.size
        change |= {"size": settings.image_size, "resize": max(settings.image_size, round(resize))}
    if settings.augment is not None:
        change["augment"] = "none" if settings.augment == "none" else files.train.prepare.augment
    train = files.train.changed(**change)

    labels = torch.as_tensor(train.targets)
    sizes = {"validation": settings.validation if files.validation is None else 0}
    sizes["train"] = -1 if settings.limit is None else settings.limit
    parts = data.split(labels, sizes=sizes, num_classes=files.num_classes, seed=settings.seed)
    validation: Data | None = None if files.validation is None else files.validation.changed(**change)
    if sizes["validation"]:
        validation = take(train.changed(training=False), parts["validation"])
    test: Data | None = None if files.test is None else files.test.changed(**change)
    if test is not None and settings.test_limit is not None and settings.test_limit < length(test):
        test = take(test, torch.arange(settings.test_limit))
    return Prepared(
        train=train if len(parts["train"]) == len(labels) else take(train, parts["train"]),
        clean=None if files.clean is None else files.clean.changed(**change),
        validation=validation,
        test=test,
        true_labels=None,
        noise=None,
        split=parts,
        class_names=files.class_names,
        channels=3,
        image_size=train.prepare.size,
        backbone="resnet50",
    )
