"""`vri apply` as a function: a corrected copy of a source, by the decisions in review.csv."""

import importlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.cleaning.arrays import read_arrays
from vri.cleaning.arrow import PARQUET_SUFFIXES, parquet_library, read_arrow, write_dataset
from vri.cleaning.coco import read_coco, relabelled
from vri.cleaning.decisions import known_options, read_decisions
from vri.cleaning.folders import list_images
from vri.cleaning.npy import open_npy
from vri.cleaning.options import ARRAYS, COCO, IMAGES, ROWS, TABLE, SourceOptions, check_options, kind_of
from vri.cleaning.relabelled_images import AUTO, write_images
from vri.cleaning.review import make_plan
from vri.cleaning.state import check_writable
from vri.cleaning.tables import read_table
from vri.cleaning.text_tables import JSON_SUFFIXES, read_text_rows
from vri.data.lists import shorten

_MOST_ROWS = 10_000  # rows of an .npy file that are copied at once

Labels = list[str | None]  # new ones, in the order of the source; None for a sample to drop


@dataclass(frozen=True)
class Applied:
    """What happened to the samples: how many of each kind, and a description of what was written.

    `left` counts the issues that were not sure enough to be corrected; None if that was not asked.
    """

    kept: int
    changed: int
    dropped: int
    untouched: int
    written: str
    notes: Sequence[str] = ()
    left: int | None = None


@dataclass(frozen=True)
class _Opened:
    """Ids and labels of a source; `write` makes the copy in a folder and describes it."""

    ids: list[str]
    labels: list[str]
    write: Callable[[Path, Labels], str]
    notes: Sequence[str] = ()


def apply(
    path: Path, review: Path, out: Path, options: SourceOptions, way: str = AUTO, precision: float | None = None
) -> Applied:
    """Make the corrected copy of a source; leaves nothing in `out` if that fails.

    Args:
        path: what was cleaned; it is only read, never changed.
        review: the decisions, as the page of `vri clean` exports them; or corrected.csv or all that it wrote.
        out: folder for the copy, new or empty.
        options: how to read the source, as for `vri clean`; what isn't given is taken from the results of `vri clean`,
            if `review` is among them.
        way: for a folder of images: "hard" or "symbolic" links, "copy", or "auto": hard links where possible, else
            copies.
        precision: share of the changes that should be right: the surest suggestions are taken, and no decisions.
    """
    kind = kind_of(path)
    known = known_options(review, path)
    options = replace(options, **{name: each for name, each in known.items() if not getattr(options, name)})
    if precision is not None and not 0 < precision <= 1:
        raise ValueError(f"--auto is precision={precision:g}; expected more than 0, and at most 1")
    check_options(path, kind, options)
    if kind != IMAGES and way != AUTO:
        raise ValueError(f"--link and --copy are for folders of images, and {path} is a file; leave them out")
    _check_out(out, path)
    decisions, left = read_decisions(review, precision)
    source = _open_images(path, options, way) if kind == IMAGES else _OPENERS[kind](path, options)
    new, counts = make_plan(source.ids, source.labels, decisions, review, path)
    with _built_aside(out) as folder:
        made = source.write(folder, new)
    kept, changed, dropped, untouched = (counts[name] for name in ("kept", "changed", "dropped", "untouched"))
    return Applied(kept, changed, dropped, untouched, f"{out}{made}", source.notes, left)


def _kept(new: Labels) -> list[int]:
    return [row for row, label in enumerate(new) if label is not None]


# tables


def _open_table(path: Path, options: SourceOptions) -> _Opened:
    encoding = options.encoding or "utf-8"
    table = read_table(path, encoding, options.separator)
    column, labels = table.labels(options.label, options.unlabelled or True)
    forms: Mapping[str, Any] = _forms(labels, table.columns[column])
    if column in table.numbers:
        forms = table.numbers[column] | ({"": -1} if "" in forms else {})

    def write(folder: Path, new: Labels) -> str:
        if column in table.numbers and (unknown := {label for label in new if label is not None} - forms.keys()):
            raise ValueError(
                f"{path}: column {column!r} has the classes {shorten(forms)}, and not {shorten(sorted(unknown))}; "
                "choose one of them"
            )
        if path.is_dir():
            write_dataset(path, folder, _arrow_table(path, column, new, forms))
            return ""
        if path.suffix.lower() in PARQUET_SUFFIXES:
            _write_parquet(path, folder / path.name, _arrow_table(path, column, new, forms))
        else:
            written = dict(forms)
            if path.suffix.lower() in JSON_SUFFIXES:  # which knows numbers from text
                kind, found = (
                    np.array(list(forms.values())).dtype,
                    sorted({label for label in new if label is not None}),
                )
                written = dict(zip(found, _values(found, forms, kind, f"{path}: column {column!r}"), strict=True))
            text = read_text_rows(path, encoding, options.separator).relabelled(column, labels, new, written)
            (folder / path.name).write_bytes(_encoded(path, text, encoding))
        return f"/{path.name}"

    return _Opened(table.ids(options.id), labels, write)


def _forms(labels: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """How the labels are written in the file: the class 1 may be 1.0 there."""
    return dict(zip(reversed(labels), reversed(values), strict=True))


def _encoded(path: Path, text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        letter = error.object[error.start : error.end]
        raise ValueError(
            f"a new label has {letter!r}, which the encoding {encoding} of {path} does not know; save it as UTF-8"
        ) from None


def _arrow_table(path: Path, name: str, new: Labels, forms: Mapping[str, Any]) -> Any:
    """The pyarrow table in a file, with new labels."""
    table = read_arrow(path)
    pyarrow = importlib.import_module("pyarrow")
    place = table.column_names.index(name)
    kind = table.schema.field(place).type
    plain = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    rows = _kept(new)
    values = _values([new[row] for row in rows], forms, plain, f"{path}: column {name!r}")
    if plain is kind:
        column = pyarrow.array(values, type=plain)
    else:  # categories: the existing ones, in order, then new ones
        known = table.column(place).unify_dictionaries().chunk(0).dictionary.to_pylist()
        known += [value for value in dict.fromkeys(values) if value not in known]
        numbers = {value: number for number, value in enumerate(known)}
        indices = pyarrow.array([numbers[value] for value in values], type=kind.index_type)
        column = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(known, type=plain), ordered=kind.ordered)
    kept = table.take(pyarrow.array(rows, type=pyarrow.int64()))
    return kept.set_column(place, table.schema.field(place), column)


def _write_parquet(path: Path, target: Path, table: Any) -> None:
    parquet = parquet_library(path)
    groups = parquet.ParquetFile(path).metadata
    compression = groups.row_group(0).column(0).compression if groups.num_row_groups else "SNAPPY"
    parquet.write_table(table, target, compression="NONE" if compression == "UNCOMPRESSED" else compression)


# embeddings


def _open_npz(path: Path, options: SourceOptions) -> _Opened:
    arrays = read_arrays(path, options, only_labels=True)
    labels = arrays.label_texts(options.unlabelled or True)

    def write(folder: Path, new: Labels) -> str:
        rows, per_sample = _kept(new), arrays.per_sample()
        with zipfile.ZipFile(path) as archive:
            compression = archive.infolist()[0].compress_type
        with zipfile.ZipFile(folder / path.name, "w", compression) as archive:
            for name, array in arrays.all.items():
                written: NDArray[Any] = array[rows] if name in per_sample else array
                if name == arrays.labels:
                    written = _new_array(array, labels, new, f"{path}: array {name!r}")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, written, allow_pickle=False)
        return f"/{path.name}"

    return _Opened(arrays.id_texts(), labels, write)


def _open_npy(path: Path, options: SourceOptions) -> _Opened:
    source = open_npy(path, replace(options, unlabelled=options.unlabelled or True))
    labels = source.label_texts()

    def write(folder: Path, new: Labels) -> str:
        rows = np.array(_kept(new), np.int64)
        for file in filter(None, (source.embeddings, source.ids)):
            shape = (len(rows), *file.shape[1:])
            copy = np.lib.format.open_memmap(folder / file.path.name, "w+", file.dtype, shape)
            for start in range(0, len(rows), _MOST_ROWS):
                copy[start : start + _MOST_ROWS] = file.take(rows[start : start + _MOST_ROWS])
        given = source.labels.read(0, source.rows)
        np.save(folder / source.labels.path.name, _new_array(given, labels, new, str(source.labels.path)))
        return f" ({', '.join(sorted(file.name for file in folder.iterdir()))})"

    return _Opened(source.id_texts(), labels, write)


def _new_array(y: NDArray[Any], labels: Sequence[str], new: Labels, where: str) -> NDArray[Any]:
    """The remaining labels, in the type of the array; text may become longer, and unchanged ones stay as they are."""
    given, rows = y.tolist(), _kept(new)
    values = _values([new[row] for row in rows], _forms(labels, given), y.dtype, where)
    values = [given[row] if new[row] == labels[row] else value for row, value in zip(rows, values, strict=True)]
    return np.array(values, dtype=None if y.dtype.kind == "U" and values else y.dtype)


def _values(labels: Sequence[str | None], forms: Mapping[str, Any], kind: Any, where: str) -> list[Any]:
    """Labels as values of a type of numpy or pyarrow."""
    parse: Callable[[str], Any] = str
    if "int" in str(kind):
        parse = int
    elif "float" in str(kind) or "double" in str(kind):
        parse = float
    elif str(kind) == "bool":
        parse = {"true": True, "True": True, "false": False, "False": False}.__getitem__
    found = dict(forms)
    for label in {str(label) for label in labels} - forms.keys():
        try:
            found[label] = parse(label)
            if isinstance(kind, np.dtype):
                np.array(found[label], kind if kind.kind != "U" else None)
            else:
                importlib.import_module("pyarrow").scalar(found[label], type=kind)
        except (ValueError, KeyError, OverflowError):  # pyarrow's errors are among them
            raise ValueError(
                f"{where} is of type {kind}, which can't hold the new label {label!r}; choose another label"
            ) from None
    return [found[str(label)] for label in labels]


def _open_images(path: Path, options: SourceOptions, way: str) -> _Opened:
    listing = list_images(path, options.unlabelled)
    return _Opened(
        listing.paths, listing.labels, lambda folder, new: write_images(folder, listing, new, way), listing.notes
    )


def _open_coco(path: Path, options: SourceOptions) -> _Opened:
    listing, content = read_coco(path, unlabelled=options.unlabelled or True)

    def write(folder: Path, new: Labels) -> str:
        (folder / path.name).write_text(relabelled(path, content, listing.labels, new), encoding="utf-8")
        return f"/{path.name}"

    return _Opened(listing.paths, listing.labels, write)


_OPENERS = {COCO: _open_coco, TABLE: _open_table, ARRAYS: _open_npz, ROWS: _open_npy}


# the folder for the copy


def _check_out(out: Path, path: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"--out is {out}, which is there already; expected a new or empty folder: give another name"
        )
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"--out is {out}, inside {path}, which is never changed; expected a folder outside of it")
    check_writable(out)


@contextmanager
def _built_aside(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` once it is complete."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    aside.mkdir()
    try:
        yield aside
        if out.exists():
            out.rmdir()
        aside.rename(out)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
