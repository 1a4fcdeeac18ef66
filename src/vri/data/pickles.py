"""Read and write the pickles CIFAR comes in, without ever executing their content.

A pickle is a program. The reader calls nothing from numpy or any other package: the few names that these files mention
stand for classes of this module, which keep bytes and shape until the array is built outside of the pickle.
"""

import io
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"u1": np.uint8, "i4": np.int32, "i8": np.int64}
_LARGEST = 1 << 28  # bytes of the pickle in a zip file; the real ones have 2.4 million


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a dict of arrays, lists, numbers and strings; names that were bytes become text."""
    return _read(path, path.read_bytes())


def read_torch(path: Path) -> dict[str, Any]:
    """Read such a dict from a file of `torch.save`, a zip file with a pickle in it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith("data.pkl")]
            if len(members) != 1:
                raise zipfile.BadZipFile("no data.pkl in it")
            (member,) = members
            if member.file_size > _LARGEST:
                raise ValueError(
                    f"{path} unpacks to {member.file_size} bytes; expected {_LARGEST} at most: fetch the file again"
                )
            content = archive.read(member)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); expected a file of torch.save: fetch the file again"
        ) from error
    return _read(path, content)


def write_pickle(path: Path, content: Mapping[bytes, Any]) -> None:
    """Write a dict of bytes, integers, lists of these and uint8 matrices as Python 2 did in protocol 2.

    Today's `pickle` would write strings and numpy's names in a way that common readers of CIFAR do not expect.
    """
    path.write_bytes(b"\x80\x02}(" + b"".join(_value(k) + _value(v) for k, v in content.items()) + b"u.")


def _read(path: Path, content: bytes) -> dict[str, Any]:
    try:
        _check_memo(content)
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    except _Refused as error:
        raise ValueError(
            f"{path} asks for {error}; expected only arrays, lists and strings: "
            "refused, because it could run any code; fetch the file from its authors"
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); expected a whole pickle: fetch the file again"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}; expected a dict: fetch the file again")
    return {_text(key): value.array if isinstance(value, _Array) else value for key, value in found.items()}


def _check_memo(content: bytes) -> None:
    """Check memo indices: a huge one would make the reader allocate as much memory."""
    for operation, argument, _ in pickletools.genops(content):
        if "PUT" in operation.name and isinstance(argument, int) and argument > len(content):
            raise pickle.UnpicklingError(f"it remembers a value as number {argument:,}")


def _text(key: Any) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


class _Refused(Exception):
    """A pickle names something that it doesn't need."""


class _Dtype:
    """In place of `numpy.dtype`: only the types in use."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        self.dtype = np.dtype(_DTYPES[_text(code)])

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if _text(state[1]) not in "|<":  # the byte order
            raise ValueError(f"byte order {state[1]!r}")


class _Array:
    """In place of `numpy.ndarray`: bytes and a shape."""

    def __init__(self, *_: object) -> None:
        self.array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _, shape, dtype, by_column, raw = state
        flat = np.frombuffer(raw, dtype.dtype)
        self.array = np.array(flat.reshape(shape, order="F" if by_column else "C"), order="C")  # writable


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "ndarray",  # an argument of _reconstruct, which ignores it
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): str.encode,  # how Python 3 writes bytes in protocol 2
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise _Refused(f"{module}.{name}")
        return _ADMITTED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused(f"the stored object {pid!r}")


def _value(value: Any) -> bytes:
    match value:
        case bytes():
            size = b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))
            return size + value
        case int():
            return b"J" + struct.pack("<i", value)
        case list():
            return b"](" + b"".join(map(_value, value)) + b"e"
        case np.ndarray(dtype=np.uint8, shape=(rows, columns)):
            empty = (
                b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
                + _value(0)
                + b"\x85"
                + _value(b"b")
                + b"\x87R"
            )
            dtype = b"cnumpy\ndtype\n" + _value(b"u1") + _value(0) + _value(1) + b"\x87R"
            dtype += b"(" + _value(3) + _value(b"|") + b"NNN" + _value(-1) + _value(-1) + _value(0) + b"tb"
            shape = _value(1) + _value(rows) + _value(columns) + b"\x86"
            return empty + b"(" + shape + dtype + b"\x89" + _value(value.tobytes()) + b"tb"  # \x89: by row
    raise TypeError(f"cannot write a {type(value).__name__}; expected bytes, int, list or uint8 matrix")
