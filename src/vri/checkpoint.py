"""Checkpoints: written whole or not at all, and without any code inside."""

import io
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vri.files import atomic_write

FORMAT = 1  # of the file; raised whenever its content changes its meaning

_PLAIN = (str, int, float, bool, type(None))


class CheckpointError(ValueError):
    """A checkpoint can't be used: damaged, of another format or of another run."""


def save_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state`, plain containers, numbers and tensors, in the place of what was at `path`.

    The file is the old one or the new one at any moment, also across a power failure.
    """
    _check_plain(dict(state), "state")
    content = io.BytesIO()  # not to the file itself: on a full disk torch.save hides the reason behind another error
    torch.save({"format": FORMAT, **state}, content)
    with atomic_write(Path(path)) as file:
        file.write(content.getbuffer())


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, with tensors on the CPU; runs no code from the file."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    fix = "delete it, or pass resume=False, to start anew"
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load itself doesn't notice a changed byte
        state = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # torch raises whatever its parser met
        state = None
    if state is None:
        raise CheckpointError(f"the checkpoint {path} is damaged: expected a whole file; {fix}") from None
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(f"{path} is no checkpoint of vri: it names no format; {fix}")
    if state.pop("format") != FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} is of another version of vri: expected format {FORMAT}; go on with the "
            f"version that wrote it; or {fix}"
        )
    return state


def check_settings(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings, naming all that differ."""
    names = [*now, *(name for name in saved if name not in now)]
    different = [
        f"{name} was {saved.get(name)!r} and is {now.get(name)!r}" for name in names if saved.get(name) != now.get(name)
    ]
    if different:
        raise CheckpointError(
            f"the checkpoint {path} is of another run: {'; '.join(different)}. "
            "Use the same settings to go on; pass resume=False, or another out=, to start anew"
        )


def _check_plain(value: Any, where: str) -> None:
    """Find now what `load_checkpoint` would refuse."""
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
