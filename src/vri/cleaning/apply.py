"""`vri apply` as a function: a corrected copy of a source, by the decisions in review.csv."""

import csv
import importlib
import io
import os
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vri.cleaning.cells import escape, write_rows
from vri.cleaning.folders import list_images
from vri.cleaning.review import Applied, Decision, Plan, make_plan, read_review
from vri.cleaning.sources import (
    EMBEDDINGS,
    IMAGES,
    SourceOptions,
    array_ids,
    array_labels,
    check_options,
    kind_of,
    label_column,
    open_arrays,
    table_ids,
    table_labels,
)
from vri.cleaning.tables import (
    PARQUET_SUFFIXES,
    TEXT_SUFFIXES,
    parquet_library,
    read_parquet,
    read_table,
    read_text_rows,
)

AUTO, HARD, SYMBOLIC, COPY = WAYS = ("auto", "hard", "symbolic", "copy")

_NO_FOLDER = re.compile(r'[\x00-\x1f\x7f/\\<>:"|?*]')  # letters that some system refuses in a name


def apply(path: Path, review: Path, out: Path, options: SourceOptions, way: str = AUTO) -> Applied:
    """Make the corrected copy of a source; nothing is left in `out` if that fails.

    Args:
        path: what was cleaned; it is only read.
        review: the decisions, as the page of `vri clean` exports them.
        out: folder for the copy, new or empty.
        options: how to read the source, as for `vri clean`.
        way: for a folder of images: "hard" or "symbolic" links, "copy", or "auto": hard links where there can be some,
            copies elsewhere.
    """
    kind = kind_of(path)
    check_options(path, kind, options)
    if kind != IMAGES and way != AUTO:
        raise ValueError(f"--link and --copy are for folders of images, and {path} is a file; leave them out")
    _check_out(out, path)
    decisions = read_review(review)
    make = {IMAGES: _apply_images, EMBEDDINGS: _apply_arrays}.get(kind, _apply_table)
    return make(path, decisions, review, out, options, way)


# tables


def _apply_table(
    path: Path, decisions: Mapping[str, Decision], review: Path, out: Path, options: SourceOptions, way: str
) -> Applied:
    table = read_table(path, options.encoding or "utf-8")
    label = label_column(table, options.label)
    labels = table_labels(table, label)
    plan = make_plan(table_ids(table, options.id), labels, decisions, review, path)
    forms = _forms(labels, table.columns[label])
    with _built_aside(out) as folder:
        if path.suffix.lower() in PARQUET_SUFFIXES:
            _write_parquet(path, folder / path.name, label, plan, forms)
        else:
            content = _text_table(path, label, plan, labels, forms, options.encoding or "utf-8")
            (folder / path.name).write_bytes(content)
    return plan.applied(str(out / path.name))


def _forms(labels: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """How the labels stand in the file: the class 1 may be 1.0 there."""
    return dict(zip(reversed(labels), reversed(values), strict=True))


def _text_table(
    path: Path, label: str, plan: Plan, labels: Sequence[str], forms: Mapping[str, str], encoding: str
) -> bytes:
    """The file with new labels; rows that don't change are the same to the byte."""
    text = read_text_rows(path, encoding)
    place = text.header.index(label)
    lines = [text.mark, text.raw[0]]
    row = 0
    for raw, cells in zip(text.raw[1:], text.cells[1:], strict=True):
        if not cells:  # an empty line
            lines.append(raw)
            continue
        new = plan.labels[row]
        if new == labels[row]:
            lines.append(raw)
        elif new is not None:
            changed = [*cells[:place], forms.get(new, new), *cells[place + 1 :]]
            end = raw[len(raw.rstrip("\r\n")) :]
            lines.append(_csv_line(changed, TEXT_SUFFIXES[path.suffix.lower()]) + end)
        row += 1
    try:
        return "".join(lines).encode(encoding)
    except UnicodeEncodeError as error:
        letter = error.object[error.start : error.end]
        raise ValueError(
            f"a new label has {letter!r}, which the encoding {encoding} of {path} does not know; save it as UTF-8"
        ) from None


def _csv_line(cells: Sequence[str], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerow(cells)
    return text.getvalue().removesuffix("\r\n")


def _write_parquet(path: Path, target: Path, label: str, plan: Plan, forms: Mapping[str, Any]) -> None:
    parquet, table = parquet_library(path), read_parquet(path)
    pyarrow = importlib.import_module("pyarrow")
    place = table.column_names.index(label)
    kind = table.schema.field(place).type
    plain = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    rows = plan.kept_rows

    values = [_parquet_value(str(plan.labels[row]), forms, plain, f"{path}: column {label!r}") for row in rows]
    if plain is kind:
        column = pyarrow.array(values, type=plain)
    else:  # categories: those there are, in their order, then new ones
        known = table.column(place).unify_dictionaries().chunk(0).dictionary.to_pylist()
        known += [value for value in dict.fromkeys(values) if value not in known]
        numbers = {value: number for number, value in enumerate(known)}
        indices = pyarrow.array([numbers[value] for value in values], type=kind.index_type)
        column = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(known, type=plain), ordered=kind.ordered)
    kept = table.take(pyarrow.array(rows, type=pyarrow.int64()))
    kept = kept.set_column(place, table.schema.field(place), column)
    groups = parquet.ParquetFile(path).metadata
    compression = groups.row_group(0).column(0).compression if groups.num_row_groups else "SNAPPY"
    parquet.write_table(kept, target, compression="NONE" if compression == "UNCOMPRESSED" else compression)


def _parquet_value(label: str, forms: Mapping[str, Any], kind: Any, where: str) -> Any:
    if label in forms:
        return forms[label]
    pyarrow = importlib.import_module("pyarrow")
    value = _parsed(label, _parser_for(str(kind)), where, kind)
    try:
        pyarrow.scalar(value, type=kind)
    except (pyarrow.ArrowException, OverflowError):
        raise _not_possible(label, where, kind) from None
    return value


# embeddings


def _apply_arrays(
    path: Path, decisions: Mapping[str, Decision], review: Path, out: Path, options: SourceOptions, way: str
) -> Applied:
    arrays = open_arrays(path, options, only_labels=True)
    labels = array_labels(arrays)
    plan = make_plan(array_ids(arrays), labels, decisions, review, path)
    y = arrays.all[arrays.labels]
    rows = plan.kept_rows
    forms = _forms(labels, y.tolist())
    new = [_array_value(str(plan.labels[row]), forms, y, f"{path}: array {arrays.labels!r}") for row in rows]
    with zipfile.ZipFile(path) as archive:
        compression = archive.infolist()[0].compress_type
    with (
        _built_aside(out) as folder,
        zipfile.ZipFile(folder / path.name, "w", compression) as archive,
    ):
        per_sample = arrays.per_sample()
        for name, array in arrays.all.items():
            written: NDArray[Any] = array[rows] if name in per_sample else array
            if name == arrays.labels:
                written = np.array(new, dtype=None if y.dtype.kind == "U" and new else y.dtype)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, written, allow_pickle=False)
    return plan.applied(str(out / path.name))


def _array_value(label: str, forms: Mapping[str, Any], y: NDArray[Any], where: str) -> Any:
    if label in forms:
        return forms[label]
    value = _parsed(label, _parser_for(str(y.dtype)), where, y.dtype)
    if y.dtype.kind in "iu" and not np.iinfo(y.dtype).min <= value <= np.iinfo(y.dtype).max:
        raise _not_possible(label, where, y.dtype)
    return value


def _parser_for(kind: str) -> Callable[[str], Any]:
    """How a label that is new becomes a value of a type of numpy or pyarrow."""
    if "int" in kind:
        return int
    if "float" in kind or "double" in kind:
        return float
    if kind == "bool":
        return lambda text: {"true": True, "false": False}[text.lower()]
    return str


def _parsed(label: str, parse: Callable[[str], Any], where: str, kind: Any) -> Any:
    try:
        return parse(label)
    except (ValueError, KeyError):
        raise _not_possible(label, where, kind) from None


def _not_possible(label: str, where: str, kind: Any) -> ValueError:
    return ValueError(f"{where} is of type {kind}, which can't hold the new label {label!r}; choose another label")


# folders of images


def _apply_images(
    path: Path, decisions: Mapping[str, Decision], review: Path, out: Path, options: SourceOptions, way: str
) -> Applied:
    listing = list_images(path)
    plan = make_plan(listing.paths, listing.labels, decisions, review, path)
    known = set(listing.labels)
    for label in sorted({label for label in plan.labels if label is not None} - known):
        _check_folder_name(label, review)
    targets = _targets(listing.paths, listing.labels, plan.labels)
    place, links = _placer(way), Counter[str]()
    with _built_aside(out) as folder:
        for name, target in zip(listing.paths, targets, strict=True):
            if target is not None:
                (folder / target).parent.mkdir(exist_ok=True)
                links[place(Path(os.path.realpath(path / name)), folder / target)] += 1
        write_rows(
            folder / "labels.csv",
            ("path", "label", "original", "given_label"),
            (
                (escape(target), escape(new), escape(name), escape(given))
                for name, given, new, target in zip(listing.paths, listing.labels, plan.labels, targets, strict=True)
                if target is not None and new is not None
            ),
        )
    how = ", ".join(f"{count:,} {what}" for what, count in links.items())
    return plan.applied(f"{out} ({how}) and its labels.csv", listing.notes)


def _targets(names: Sequence[str], given: Sequence[str], new: Sequence[str | None]) -> list[str | None]:
    """Where each image goes; one that comes to a class where its name is taken gets its old class into the name."""
    targets: list[str | None] = [None] * len(names)
    taken: set[str] = set()

    def put(row: int, target: str) -> None:
        targets[row] = target
        taken.add(target.casefold())  # some systems don't tell a.jpg from A.JPG

    moved = []
    for row, (name, label) in enumerate(zip(names, new, strict=True)):
        if label is not None and label == given[row]:
            put(row, name)
        elif label is not None:
            moved.append(row)
    for row in moved:
        file = Path(names[row].partition("/")[2])
        target, number = f"{new[row]}/{file}", 1
        while target.casefold() in taken:
            again = "" if number == 1 else f"-{number}"
            target, number = f"{new[row]}/{file.stem}-from-{given[row]}{again}{file.suffix}", number + 1
        put(row, target)
    return targets


def _placer(way: str) -> Callable[[Path, Path], str]:
    """A function that makes a file appear at a second place, and says how it did."""

    def hard(source: Path, target: Path) -> str:
        os.link(source, target)
        return "hard links"

    def symbolic(source: Path, target: Path) -> str:
        target.symlink_to(source)
        return "symbolic links"

    def copy(source: Path, target: Path) -> str:
        shutil.copy2(source, target)
        return "copies"

    def auto(source: Path, target: Path) -> str:
        try:
            return hard(source, target)
        except OSError:  # on another disk, or a file system without links
            return copy(source, target)

    return {HARD: hard, SYMBOLIC: symbolic, COPY: copy, AUTO: auto}[way]


def _check_folder_name(label: str, review: Path) -> None:
    wrong = (
        _NO_FOLDER.search(label) is not None
        or label.startswith(".")
        or label != label.rstrip(" .")
        or len(label.encode("utf-8", "surrogatepass")) > 200
        or label.casefold() == "labels.csv"
    )
    if wrong:
        raise ValueError(
            f"{review} has the new label {label!r}, which can't be the name of a folder; expected letters without "
            'control characters and / \\ < > : " | ? *, no dot in front, and no dot or space at the end'
        )


# the folder for the copy


def _check_out(out: Path, path: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"--out is {out}, which is there already; expected a new or empty folder: give another name"
        )
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"--out is {out}, inside {path}, which is never changed; expected a folder outside of it")


@contextmanager
def _built_aside(out: Path) -> Iterator[Path]:
    """A folder that takes the place of `out` once it is whole."""
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
