"""Features of many samples: computed once, kept in a file, and continued there after a stop."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vri.encoders.encoder import Encoder, Floats, fingerprint
from vri.training.progress import report


def features(encoder: Encoder, read: Callable[[int], Any], count: int, content: str, folder: Path) -> Floats:
    """(count, d) features, as a file of `folder` in the address space.

    They are written batch by batch. The file's length says how many there are, so that the same call goes on after a
    stop at any time.

    Args:
        encoder: makes them.
        read: sample i, as the encoder takes it.
        count: of the samples.
        content: a fingerprint of the samples: features of others, or of another encoder, are in another file.
        folder: for the file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fingerprint(encoder.fingerprint, content, count)}.npy"
    if not path.exists():
        part = path.with_suffix(".part")
        try:
            with open(part, "r+b" if part.exists() else "w+b") as file:
                _complete(file, encoder, read, count)
        except OSError as error:
            if error.filename is not None:  # of another file
                raise
            raise OSError(f"{part} can't be written ({error.strerror}); free some space and call again") from error
        os.replace(part, path)
    found: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def _complete(file: BinaryIO, encoder: Encoder, read: Callable[[int], Any], count: int) -> None:
    width = _width(file, count)
    done = 0
    if width is not None:
        start = file.tell()
        done = min((os.fstat(file.fileno()).st_size - start) // (4 * width), count) // encoder.batch * encoder.batch
        file.seek(start + 4 * width * done)
    file.truncate()
    for first in range(done, count, encoder.batch):
        some = [encoder.sample(read(i)) for i in range(first, min(first + encoder.batch, count))]
        rows = encoder.checked(encoder.rows(some), len(some), width, first)
        if width is None:
            width = rows.shape[1]
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
            )
        file.write(rows.astype("<f4").tobytes())
        file.flush()
        report((first + len(some)) / count)
    os.fsync(file.fileno())


def _width(file: BinaryIO, count: int) -> int | None:
    """The width in the header of a file that was begun, and its place after the header; None where there is none."""
    try:
        if np.lib.format.read_magic(file) == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            if dtype == np.float32 and len(shape) == 2 and shape[0] == count:
                return int(shape[1])
    except ValueError:
        pass
    file.seek(0)
    return None
