"""What `vri clean` reads: a folder of images, a table, or embeddings in an .npz file. None of it is ever changed."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vri.cleaning import folders
from vri.cleaning.arrays import Arrays, read_arrays
from vri.cleaning.features import table_inputs
from vri.cleaning.tables import (
    PARQUET_SUFFIXES,
    SUFFIXES,
    Table,
    check_unique,
    label_texts,
    read_table,
)
from vri.data.lists import shorten

IMAGES, TABLE, TEXT, EMBEDDINGS = "images", "table", "text", "embeddings"

_YES_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "1.0": True, "0.0": False}
_LONGEST_CELL, _LONGEST_TEXT, _MOST_FIELDS = 300, 5_000, 30  # characters and fields that a suspect shows
_MOST_CLASSES = 2_000  # the page holds a number for each pair of them
_SHOWN_NUMBERS = 8  # of an embedding

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class SourceOptions:
    """How to read a source; what plays no part for its kind must be None.

    Attributes:
        label: column of the labels; in an .npz file the name of their array (y or labels by default).
        features: columns to learn from; in an .npz file the one name of the embeddings (X, embeddings or features).
        text: column of text, read by TF-IDF.
        id: column or array of ids; rows are counted from 0 without it.
        trusted: column, array, or file with one id a line: whose labels are known to be right.
        encoding: of a CSV file; UTF-8 by default.
        backbone: network for images; `small_cnn` by default, `resnet50` with weights.
        image_size: side of the images the network sees; 32 by default, 224 with weights.
        weights: file of weights; the network then is left as it is, and its features are the embeddings.
        seed: of the initial weights.
    """

    label: str | None = None
    features: tuple[str, ...] | None = None
    text: str | None = None
    id: str | None = None
    trusted: str | None = None
    encoding: str | None = None
    backbone: str | None = None
    image_size: int | None = None
    weights: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class Description:
    """What there is to see of a sample."""

    image: bytes | None = None
    fields: Mapping[str, str] | None = None
    text: str | None = None


@dataclass(frozen=True, eq=False)
class Source:
    """Samples with their given labels.

    Attributes:
        kind: images, table, text or embeddings.
        name: for people.
        ids: one a sample: path of an image, cell of the id column, or number of the row from 0.
        labels: the given ones, as text.
        trusted: which labels are known to be right, or None.
        make_inputs: what `VRIClassifier` learns from, given a folder to keep slow work in, a device, and whether to
            show progress.
        module: factory of a network for it, or None for the default one.
        describe: what to show of sample i.
        fingerprint: of all that the inputs and labels depend on.
        notes: what is to be told about it: what was left out.
    """

    kind: str
    name: str
    ids: list[str]
    labels: list[str]
    trusted: Mask | None
    make_inputs: Callable[[Path, torch.device, bool], Any]
    module: Callable[[int], nn.Module] | None
    describe: Callable[[int], Description]
    fingerprint: str
    notes: list[str] = field(default_factory=list)


def open_source(path: Path, options: SourceOptions, progress: bool = False) -> Source:
    """Read a source and check it; every mistake in it is told now."""
    kind = kind_of(path)
    check_options(path, kind, options)
    opened = {IMAGES: _open_images, TABLE: _open_table, EMBEDDINGS: _open_embeddings}[kind](path, options, progress)
    return _checked(path, opened)


def kind_of(path: Path) -> str:
    """images, table or embeddings, by what is there."""
    if path.is_dir():
        return IMAGES
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not there; expected a folder of images by class, a table "
            f"({', '.join(SUFFIXES)}), an .npz or an .npy file"
        )
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return EMBEDDINGS
    if suffix in SUFFIXES:
        return TABLE
    raise ValueError(
        f"{path} ends in {suffix or 'nothing'!r}; expected a folder of images by class, a table "
        f"({', '.join(SUFFIXES)}), an .npz or an .npy file"
    )


# images


def _open_images(path: Path, options: SourceOptions, progress: bool) -> Source:
    weights = options.weights
    backbone = options.backbone or ("small_cnn" if weights is None else "resnet50")
    size = options.image_size or (32 if weights is None else 224)
    folders.check_backbone(backbone, size, weights)
    listing, pixels, digest = folders.readable(folders.list_images(path), size if weights is None else None, progress)

    def make_inputs(cache: Path, device: torch.device, progress: bool) -> Any:
        if weights is None:
            return pixels
        return folders.embeddings(
            listing,
            cache / "features",
            backbone=backbone,
            weights=weights,
            image_size=size,
            device=device,
            progress=progress,
        )

    return Source(
        kind=IMAGES,
        name=path.resolve().name,
        ids=listing.paths,
        labels=listing.labels,
        trusted=_trusted_file(options.trusted, listing.paths, "the path of an image, such as")
        if options.trusted
        else None,
        make_inputs=make_inputs,
        module=folders.Backbone(backbone, size, options.seed) if weights is None else None,
        describe=lambda i: Description(image=folders.thumbnail(path / listing.paths[i])),
        fingerprint=digest if weights is None else f"{digest} {file_hash(weights)}",
        notes=listing.notes,
    )


# tables


def _open_table(path: Path, options: SourceOptions, progress: bool) -> Source:
    table = read_table(path, options.encoding or "utf-8")
    label = label_column(table, options.label)
    labels = table_labels(table, label)
    ids = table_ids(table, options.id)
    other = {label}
    trusted = None
    if options.id is not None:
        other.add(options.id)
    if options.trusted is not None and options.trusted in table.columns:
        trusted = _marks(table.columns[options.trusted], f"{path}: column {options.trusted!r}")
        other.add(options.trusted)
    elif options.trusted is not None:
        if not Path(options.trusted).is_file():
            raise ValueError(
                f"--trusted is {options.trusted!r}, which is neither a column of {path} ({', '.join(table.columns)}) "
                "nor a file; expected one with true or false in each row, or a file with one id a line"
            )
        trusted = _trusted_file(
            options.trusted, ids, "an id such as" if options.id else "the number of a row from 0, such as"
        )
    found = table_inputs(table, options.features, options.text, other, options.seed)

    def describe(i: int) -> Description:
        cells = {name: _cell(values[i]) for name, values in table.columns.items() if name not in (label, found.text)}
        shown = dict(list(cells.items())[:_MOST_FIELDS])
        text = None if found.text is None else _cell(table.columns[found.text][i], _LONGEST_TEXT)
        return Description(fields=shown or None, text=text)

    return Source(
        kind=TABLE if found.text is None else TEXT,
        name=path.name,
        ids=ids,
        labels=labels,
        trusted=trusted,
        make_inputs=lambda cache, device, progress: found.X,
        module=None,
        describe=describe,
        fingerprint=file_hash(path),
        notes=[f"learning from {shorten(found.names)} ({len(found.names)} columns)", *found.notes],
    )


def table_labels(table: Table, label: str) -> list[str]:
    """The labels of a table, as text."""
    return label_texts(table.columns[label], f"{table.path}: column {label!r}")


def table_ids(table: Table, column: str | None) -> list[str]:
    """The ids of a table: a column of it, or the numbers of the rows from 0."""
    if column is None:
        return [str(row) for row in range(table.rows)]
    ids = [str(value) for value in table.column(column, "--id")]
    check_unique(ids, f"{table.path}: column {column!r}")
    return ids


def label_column(table: Table, label: str | None) -> str:
    """The name of the column with the labels, which is there."""
    if label is None:
        raise ValueError(
            f"--label is missing; {table.path} has the columns {', '.join(table.columns)}: name the one with the labels"
        )
    table.column(label, "--label")
    return label


# embeddings


def _open_embeddings(path: Path, options: SourceOptions, progress: bool) -> Source:
    arrays = open_arrays(path, options)
    labels, ids = array_labels(arrays), array_ids(arrays)
    trusted = None
    if options.trusted is not None and options.trusted not in arrays.all:
        trusted = _trusted_file(
            options.trusted, ids, "an id such as" if arrays.ids else "the number of a row from 0, such as"
        )
    elif arrays.trusted is not None:
        trusted = _marks(arrays.all[arrays.trusted].tolist(), f"{path}: array {arrays.trusted!r}")
    inputs = str(arrays.inputs)
    X = arrays.all[inputs]
    known = (inputs, arrays.labels, arrays.ids, arrays.trusted)
    shown = [name for name in arrays.per_sample() if arrays.all[name].ndim == 1 and name not in known][:_MOST_FIELDS]

    def describe(i: int) -> Description:
        if shown:
            return Description(fields={name: _cell(arrays.all[name][i]) for name in shown})
        numbers = X[i, :_SHOWN_NUMBERS].tolist()
        return Description(fields={f"{inputs}[{place}]": f"{number:.4g}" for place, number in enumerate(numbers)})

    return Source(
        kind=EMBEDDINGS,
        name=path.name,
        ids=ids,
        labels=labels,
        trusted=trusted,
        make_inputs=lambda cache, device, progress: X,
        module=None,
        describe=describe,
        fingerprint=file_hash(path),
    )


def open_arrays(path: Path, options: SourceOptions, only_labels: bool = False) -> Arrays:
    """The arrays of an .npz file, under the names that the options give."""
    if options.features is not None and len(options.features) != 1:
        raise ValueError(
            f"--features is {','.join(options.features)}; expected the name of one array of {path}, the embeddings"
        )
    is_file = options.trusted is not None and Path(options.trusted).is_file()
    return read_arrays(
        path,
        features=options.features[0] if options.features else None,
        label=options.label,
        id=options.id,
        trusted=None if is_file else options.trusted,
        only_labels=only_labels,
    )


def array_labels(arrays: Arrays) -> list[str]:
    """The labels of an .npz file, as text."""
    return label_texts(arrays.all[arrays.labels].tolist(), f"{arrays.path}: array {arrays.labels!r}")


def array_ids(arrays: Arrays) -> list[str]:
    """The ids of an .npz file: an array of it, or the numbers of the rows from 0."""
    if arrays.ids is None:
        return [str(row) for row in range(arrays.count)]
    ids = [str(value) for value in arrays.all[arrays.ids].tolist()]
    check_unique(ids, f"{arrays.path}: array {arrays.ids!r}")
    return ids


# what they share


def check_options(path: Path, kind: str, options: SourceOptions) -> None:
    """Options that play no part for a kind of source are mistakes."""
    no_part = {
        IMAGES: ("label", "features", "text", "id", "encoding"),
        TABLE: ("backbone", "image_size", "weights"),
        EMBEDDINGS: ("text", "encoding", "backbone", "image_size", "weights"),
    }[kind]
    given = [name for name in no_part if getattr(options, name) is not None]
    if path.suffix.lower() in PARQUET_SUFFIXES and options.encoding is not None:
        given.append("encoding")
    if given:
        what = {IMAGES: "a folder of images", TABLE: f"a {path.suffix} table", EMBEDDINGS: "an .npz file"}[kind]
        names = shorten("--" + name.replace("_", "-") for name in given)
        raise ValueError(f"{names} can't be used with {what}; leave it out")
    if options.image_size is not None and options.image_size < 8:
        raise ValueError(f"--image-size is {options.image_size}; expected 8 or more pixels")


def _checked(path: Path, source: Source) -> Source:
    """There are classes to learn; those with a single sample are told."""
    source.notes.extend(check_classes(path, Counter(source.labels)))
    if source.trusted is not None and not source.trusted.any():
        raise ValueError("--trusted marks no sample; expected at least one: mark some, or leave it out")
    return source


def check_classes(path: Path, counts: Counter[str]) -> list[str]:
    """Whether there are classes to learn, by their numbers of samples; returns a note on those with a single one."""
    samples = counts.total()
    if len(counts) < 2:
        raise ValueError(
            f"all {samples:,} samples of {path} have the label {next(iter(counts))!r}; expected at least two classes"
        )
    single = sorted(label for label, count in counts.items() if count == 1)
    if 2 * len(single) > samples:
        raise ValueError(
            f"{path} has {len(counts):,} different labels in {samples:,} samples, such as "
            f"{shorten(counts)}; expected classes with several samples each: is it the column of the labels?"
        )
    if len(counts) - len(single) < 2:
        raise ValueError(
            f"only one label of {path} comes more than once, {counts.most_common(1)[0][0]!r}; "
            "expected at least two classes with several samples each"
        )
    if len(counts) > _MOST_CLASSES:
        raise ValueError(
            f"{path} has {len(counts):,} different labels; expected at most {_MOST_CLASSES:,}, as each is compared "
            "with each: clean a part of the classes at a time"
        )
    return [f"classes with a single sample, whose label can't be judged: {shorten(single)}"] if single else []


def _trusted_file(name: str, ids: Sequence[str], expected: str) -> Mask:
    file = Path(name)
    if not file.is_file():
        raise FileNotFoundError(f"--trusted is {name!r}, which is no file; expected one with one id a line")
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8; expected a text file with one id a line: save it as UTF-8") from None
    chosen = [line.strip() for line in lines if line.strip()]
    place = {each: number for number, each in enumerate(ids)}
    unknown = [each for each in chosen if each not in place]
    if unknown:
        raise ValueError(
            f"{file} names {len(unknown):,} samples that are not there: {shorten(unknown)}; "
            f"expected {expected} {ids[0]} in each line"
        )
    mask = np.zeros(len(ids), dtype=bool)
    mask[[place[each] for each in chosen]] = True
    return mask


def _marks(values: Sequence[Any], where: str) -> Mask:
    texts = [str(value).strip().lower() for value in values]
    wrong = next((row for row, text in enumerate(texts) if text not in _YES_NO), None)
    if wrong is not None:
        raise ValueError(
            f"{where} is {values[wrong]!r} in row {wrong} (from 0); "
            "expected true or false (or 1 or 0, yes or no) in each"
        )
    return np.array([_YES_NO[text] for text in texts])


def _cell(value: Any, longest: int = _LONGEST_CELL) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def file_hash(path: Path) -> str:
    """Of the content of a file, short."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
