"""Checkpoints: written whole or not at all, free of code; the previous one is kept.

The file is a zip archive as `torch.save` writes it, with its SHA-256 as the archive's comment at the end.
"""

import hashlib
import io
import os
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vri.files import atomic_write

FORMAT = 2  # of the file; raised whenever the meaning of its content changes

_MARK = b"vri sha256 "
_COMMENT = len(_MARK) + 64  # bytes

_PLAIN = (str, int, float, bool, type(None))


class CheckpointError(ValueError):
    """A checkpoint can't be used: damaged, of another format or of another run."""


def save_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state` (plain containers, numbers and tensors) to `path`, replacing what was there.

    At any moment, even after a power failure, the file is either the old one or the new one. The old one is kept as
    `previous_checkpoint(path)`.
    """
    _check_plain(dict(state), "state")
    content = io.BytesIO()  # not to the file itself: on a full disk torch.save hides the reason behind another error
    torch.save({"format": FORMAT, **state}, content)
    body = content.getbuffer()[:-2]  # the archive ends with the length of its comment, 0 so far
    path = Path(path)
    with atomic_write(path, previous_checkpoint(path)) as file:
        file.write(body)
        file.write(_ending(body))


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, with tensors on the CPU; runs no code from the file.

    If it is damaged, the previous one is used instead, and a line on stderr says so.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    fix = "delete it, or pass resume=False, to start over"
    state, before = _read(path), previous_checkpoint(path)
    if state is None:
        also = " and the one before it are" if before.exists() else " is"
        state = _read(before) if before.exists() else None
        if state is None:
            raise CheckpointError(f"the checkpoint {path}{also} damaged or not vri's: expected a whole file; {fix}")
        # moved, not copied: the next write must not keep the damaged one instead of the good one
        os.replace(before, path)
        print(f"the checkpoint {path} is damaged; the one before it is used, {before}", file=sys.stderr)
    if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} is from another version of vri: expected format {FORMAT}; resume with the "
            f"version that wrote it; or {fix}"
        )
    loaded: dict[str, Any] = state
    return loaded


def previous_checkpoint(path: Path) -> Path:
    """Where the previous checkpoint is kept: checkpoint.previous.pt."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def _read(path: Path) -> Any:
    """The content of a file of `torch.save`, or None if it is not whole."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True) if _is_whole(path) else None
    except OSError:
        raise
    except Exception:  # torch raises whatever its parser raised
        return None


def _is_whole(path: Path) -> bool:
    """Whether the file is as it was written; `torch.load` itself doesn't notice a changed byte."""
    content = memoryview(path.read_bytes())
    end = max(len(content) - _COMMENT - 2, 0)
    return content[end:] == _ending(content[:end])


def _ending(body: memoryview) -> bytes:
    """What ends the archive: the length of its comment, and the comment, which has the SHA-256 of all before."""
    return _COMMENT.to_bytes(2, "little") + _MARK + hashlib.sha256(body).hexdigest().encode()


def check_settings(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume with different settings, naming all that differ."""
    names = [*now, *(name for name in saved if name not in now)]
    different = [
        f"{name} was {saved.get(name)!r} and is {now.get(name)!r}" for name in names if saved.get(name) != now.get(name)
    ]
    if different:
        raise CheckpointError(
            f"the checkpoint {path} is of another run: {'; '.join(different)}. "
            "Use the same settings to resume; pass resume=False, or another out=, to start over"
        )


def _check_plain(value: Any, where: str) -> None:
    """Refuse when saving what `load_checkpoint` would refuse when loading."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            _check_plain(key, where)
            _check_plain(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple, torch.Size):
        for place, item in enumerate(value):
            _check_plain(item, f"{where}[{place}]")
    elif type(value) not in _PLAIN and not isinstance(value, Tensor):
        raise TypeError(
            f"{where} is a {type(value).__name__}, which a checkpoint can't hold: expected dict, list, "
            "tuple, str, int, float, bool, None or tensor; convert it in state_dict()"
        )
