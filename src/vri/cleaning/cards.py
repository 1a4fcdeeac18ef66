"""What the page shows of a sample beside its numbers: its image or its text, which a person can judge."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vri.cleaning.folders import thumbnail
from vri.cleaning.npy import NpyFile
from vri.cleaning.options import SourceOptions
from vri.data.image_files import BrokenImage
from vri.data.lists import missing_files, shorten

_LONGEST_CELL, _LONGEST_TEXT = 300, 5_000  # characters

Shown = dict[str, Any]  # some of `image`, `fields` and `text`, as in `Suspect`


def cell(value: Any, longest: int = _LONGEST_CELL) -> str:
    """A value as a short text; whole numbers have no decimals."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else str(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def long_cell(value: Any) -> str:
    """A text, of which much is shown."""
    return cell(value, _LONGEST_TEXT)


def with_cards(
    describe: Callable[[int], Shown],
    path: Path,
    options: SourceOptions,
    columns: Mapping[str, Any],
    count: int,
) -> Callable[[int], Shown]:
    """`describe`, with the images and texts that the options name.

    Args:
        describe: what is shown without them.
        path: of the source; paths of images in its columns start in its folder.
        options: of the source.
        columns: that the options may name.
        count: of the samples.
    """
    if options.images is not None:
        paths, root = _values(options.images, "--images", path, columns, count)
        if lost := missing_files(root, map(str, paths)):
            raise FileNotFoundError(
                f"--images names {len(lost):,} files that are not in {root}: {shorten(lost)}; expected the paths of "
                "images, relative to this folder"
            )
    if options.text is not None and options.text not in columns:
        texts, _ = _values(options.text, "--text", path, columns, count)
    elif options.text is not None:
        texts = columns[options.text]

    def shown(i: int) -> Shown:
        found = describe(i)
        if options.text is not None:
            found["text"] = long_cell(texts[i])
        if options.images is not None:
            try:
                found["image"] = thumbnail(root / str(paths[i]))
            except BrokenImage:
                found["fields"] = {"image": f"{paths[i]} (can't be read)", **(found.get("fields") or {})}
        return found

    return shown


def _values(name: str, option: str, path: Path, columns: Mapping[str, Any], count: int) -> tuple[Any, Path]:
    """What an option names: a column, or a file with an entry for each sample; and the folder that it is in."""
    if name in columns:
        return columns[name], path.parent
    file = Path(name)
    if not file.is_file():
        have = f"neither a column of {path} ({shorten(columns, 20)}) nor a file" if columns else "no file"
        raise FileNotFoundError(f"{option} is {name!r}, which is {have}; expected one with an entry for each sample")
    if file.suffix.lower() == ".npy":
        array = NpyFile.open(file)
        values = array.read(0, len(array)).tolist()
    else:
        try:
            values = file.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"{file} is not UTF-8; expected a line for each sample: save it as UTF-8") from None
    if len(values) != count:
        raise ValueError(f"{file} has {len(values):,} entries, and there are {count:,} samples; expected one for each")
    return values, file.parent
