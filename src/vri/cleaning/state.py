"""What `vri clean` keeps in DIR/state, so that the same command resumes where it was stopped."""

import json
import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vri.files import atomic_write

STATE = "state"
ISSUES, CORRECTED, CLASSIFIER, SUMMARY, REPORT = OUTPUTS = (
    "label_issues.csv",  # if an .npy file is streamed, the first two are folders without .csv
    "corrected.csv",
    "classifier.safetensors",
    "summary.json",
    "report.html",
)
FINDINGS = "findings.npz"
FEATURES = "features"  # of an encoder, by a hash of all they depend on
READ_WITH = "read_with"  # in summary.json: the options that `vri apply` needs again
KNOWN = ("label", "id", "encoding", "separator", "unlabelled")

_SETTINGS = "settings.json"

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Findings:
    """What training found about the labels; arrays have one entry per sample, in the order of the source.

    Attributes:
        classes: the labels in order.
        judged: False for a sample without label, and for the only one of its class, which can't be compared.
        suggested: index in `classes` of the label that it should have if the given one is wrong; -1 for none.
        confidence: probability of that label.
        quality: probability that the given label is right; NaN if it is not judged.
        issue: whether it is considered wrong.
        outlier: from 0 to 1, high for samples that belong to no class.
        transition_matrix: (c, c) rows true class, columns given label.
        noise_rate: estimated share of wrong labels.
        noise_interval: its lower and upper end.
        threshold: quality below which a label is an issue.
        accuracy: of the classifier, or None.
        measured_on: which labels the accuracy was measured on.
        seconds: that training took.
        remarks: what was odd about the inputs.
        likely: (n, k) indices of the most probable classes, best first, -1 past the last; None if unknown.
        likely_probability: (n, k) of these.
        near: (n, m) numbers of the samples most like it, nearest first, -1 where they were not looked for; or None.
    """

    classes: list[str]
    judged: NDArray[np.bool_]
    suggested: NDArray[np.int64]
    confidence: NDArray[np.float64]
    quality: NDArray[np.float64]
    issue: NDArray[np.bool_]
    outlier: NDArray[np.float64]
    transition_matrix: NDArray[np.float64]
    noise_rate: float
    noise_interval: tuple[float, float]
    threshold: float
    accuracy: float | None
    measured_on: str
    seconds: float
    remarks: list[str] = field(default_factory=list)
    likely: NDArray[np.int64] | None = None
    likely_probability: NDArray[np.float64] | None = None
    near: NDArray[np.int64] | None = None


def save_found(path: Path, found: Any) -> None:
    """Write a dataclass of arrays and of values that JSON can hold."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    rest = json.dumps({name: value for name, value in values.items() if name not in arrays})
    with atomic_write(path) as file:
        np.savez(file, allow_pickle=False, rest=np.frombuffer(rest.encode(), np.uint8), **arrays)


def load_found(path: Path, kind: type[Found]) -> Found | None:
    """What `save_found` wrote, or None."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            rest = json.loads(file["rest"].tobytes())
            rest["noise_interval"] = tuple(rest["noise_interval"])
            return kind(**rest, **{f.name: file[f.name] for f in fields(kind) if f.name in file})  # type: ignore[arg-type]
    except OSError:
        raise
    except Exception:  # a damaged file can raise anything
        raise ValueError(f"{path} is damaged; pass --fresh to start again, or another --out") from None


def check_out(out: Path, source: Path) -> None:
    """Refuse an unusable folder before anything is read or written."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out is {out}, a file; expected a folder: give another name")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"--out is {out}, inside {source}, which is never changed; expected a folder outside of it")
    check_writable(out)
    foreign = any(path.is_file() and path.suffix != ".tmp" for path in out.rglob("*"))  # .tmp: left by a killed run
    if foreign and not (out / STATE / _SETTINGS).exists():
        raise ValueError(
            f"--out is {out}, which has other files in it; expected a new or empty folder: give another name"
        )


def check_writable(out: Path) -> None:
    """Check that the folder can be made and written to, by a try: permissions don't tell everything."""
    parent = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    try:
        with TemporaryDirectory(dir=parent, prefix=".vri."):
            pass
    except OSError:
        raise PermissionError(f"--out is {out}, and nothing can be written in {parent}; give another folder") from None


def begin(out: Path, settings: dict[str, Any], fresh: bool) -> bool:
    """Prepare the folder for these settings.

    Returns:
        Whether a run with the same settings was started there before, which then continues. One with different
        settings is refused, or removed with `fresh`.
    """
    path = out / STATE / _SETTINGS
    if fresh and path.exists():
        _remove(out)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(json.dumps(settings, indent=1).encode())
        return False
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path} is damaged; pass --fresh to start again, or another --out") from None
    different = [
        f"{name} was {before.get(name)!r} and is {settings.get(name)!r}"
        for name in settings | before
        if before.get(name) != settings.get(name)
    ]
    if different:
        raise ValueError(
            f"{out} holds a run with other settings: {'; '.join(different)}; "
            "use the same to resume, give another --out, or pass --fresh to start again"
        )
    return True


def _remove(out: Path) -> None:
    """Delete a run: its settings last, so that the folder is recognised as ours until all is deleted."""
    for name in OUTPUTS:
        (out / name).unlink(missing_ok=True)
    for name in (ISSUES, CORRECTED):
        shutil.rmtree(out / Path(name).stem, ignore_errors=True)
    for path in (out / STATE).iterdir():
        if path.name == FEATURES:
            continue  # the same for every run
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _SETTINGS:
            path.unlink()
    (out / STATE / _SETTINGS).unlink()
