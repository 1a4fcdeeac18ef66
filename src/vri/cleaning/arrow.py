"""Tables of Apache Arrow: Parquet files, and folders that `save_to_disk` of Hugging Face's datasets writes."""

import importlib
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from vri.data.lists import shorten

PARQUET_SUFFIXES = (".parquet", ".pq")
_STATE, _SPLITS = "state.json", "dataset_dict.json"


def parquet_library(path: Path) -> Any:
    """pyarrow.parquet, or an error that says how to get it."""
    return _library("pyarrow.parquet", path)


def is_dataset(path: Path) -> bool:
    """Whether a folder is a Hugging Face data set, or several splits of one."""
    return path.is_dir() and any((path / name).is_file() for name in (_STATE, _SPLITS))


def read_arrow(path: Path) -> Any:
    """The pyarrow table in a Parquet file or a data set's folder."""
    return _read_dataset(path) if path.is_dir() else read_parquet(path)


def read_parquet(path: Path) -> Any:
    """The pyarrow table in a Parquet file."""
    parquet = parquet_library(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; expected a Parquet file: check the name")
    try:
        return parquet.ParquetFile(path).read()  # this file only: folders named a=b are not columns
    except Exception as error:  # pyarrow has errors of many kinds
        raise ValueError(
            f"{path} can't be read as Parquet ({_first_line(error)}); expected a whole file: write it again"
        ) from None


def class_names(table: Any) -> dict[str, list[str]]:
    """Columns whose whole numbers stand for classes, with the names of these, as Hugging Face's datasets notes them."""
    try:
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: [str(each) for each in kind["names"]]
            for name, kind in features.items()
            if isinstance(kind, dict) and kind.get("_type") == "ClassLabel" and kind.get("names")
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def write_dataset(path: Path, folder: Path, table: Any) -> None:
    """Write a table as a data set like the one at `path`."""
    pyarrow = importlib.import_module("pyarrow")
    name = "data-00000-of-00001.arrow"
    with pyarrow.OSFile(str(folder / name), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    for file in path.glob("*.json"):
        content = _json(file)
        if file.name == _STATE:  # with a new fingerprint, by which datasets finds results that it has cached
            digest = sha256((folder / name).read_bytes()).hexdigest()
            content |= {"_data_files": [{"filename": name}], "_fingerprint": digest[:16]}
        (folder / file.name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _read_dataset(path: Path) -> Any:
    pyarrow = _library("pyarrow", path)
    if (path / _SPLITS).is_file():
        splits = sorted(each.name for each in path.iterdir() if (each / _STATE).is_file())
        first = path / (splits[0] if splits else "train")
        raise ValueError(f"{path} has the splits {shorten(splits) or 'none'}; expected one of them, such as {first}")
    files = [str(each.get("filename")) for each in _json(path / _STATE).get("_data_files") or []]
    if not files or any(Path(name).name != name for name in files):
        raise ValueError(f"{path / _STATE} names no Arrow files; expected a folder that save_to_disk wrote")
    try:
        parts = []
        for name in files:
            with pyarrow.memory_map(str(path / name)) as file:
                parts.append(pyarrow.ipc.open_stream(file).read_all())
        return pyarrow.concat_tables(parts)
    except Exception as error:  # pyarrow has errors of many kinds
        raise ValueError(
            f"{path} can't be read as a Hugging Face data set ({_first_line(error)}); "
            "expected a whole folder: write it again with save_to_disk"
        ) from None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no sound JSON; expected a folder that save_to_disk wrote: write it again")
    return content


def _library(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{path} needs pyarrow, which is not installed: pip install vri[parquet]") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
