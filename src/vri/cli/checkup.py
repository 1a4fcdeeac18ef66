"""`vri doctor`: what this machine has, and whether it computes the meta gradient correctly."""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vri import __version__
from vri.core.randomness import seeded
from vri.data.catalogue import CATALOGUE
from vri.data.places import default_root
from vri.methods import VRI
from vri.training.precision import VARIABLE, WITHOUT_AMX

PACKAGES = ("torch", "numpy", "scikit-learn", "scipy", "pandas", "pillow", "safetensors", "matplotlib")
OPTIONAL = ("tensorboard", "pyarrow")
# no others: no secrets
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES", "VRI_DATA")

NEEDED_SPACE = 2**30  # bytes; CIFAR-10 with its archive takes a third of it
TOLERANCES = {
    "forward-mode meta gradient": ("jvp", 1e-10),
    "finite differences": ("finite_difference", 1e-4),
}  # float64
ALIKE = 0.9  # least cosine between the meta gradients in bfloat16 and in float32

_PATIENCE = 300  # seconds; the machine may be busy
_CLASSES = 3


class Check(NamedTuple):
    """One check of this machine and its result."""

    name: str
    ok: bool
    detail: str


def run(options: argparse.Namespace) -> int:
    """Print what was found; 1 if a check failed."""
    about, data = about_machine(), found_data()
    checks = [check._replace(detail=tilde(check.detail)) for check in all_checks()]
    failed = sum(not check.ok for check in checks)
    if options.json:
        found = {"well": not failed, "about": about, "data": data, "checks": [check._asdict() for check in checks]}
        print(json.dumps(found, indent=1))
        return int(failed > 0)
    about["data sets"] = ", ".join(f"{name} ({where})" for name, where in data.items() if where) or "none found"
    width = max(map(len, about))
    for name, value in about.items():
        print(f"{name:<{width}}  {value}")
    print()
    for check in checks:
        print(f"{'ok' if check.ok else 'FAILED':<6}  {check.name}: {check.detail}")
    print(f"\n{f'{failed} of {len(checks)} checks failed' if failed else 'all is well'}")
    print("In a bug report, please paste all of the above.")
    return int(failed > 0)


# the machine; the home folder, which may hold a person's name, is ~


def about_machine() -> dict[str, str]:
    """Versions, devices, threads and the like, by name."""
    processors = len(os.sched_getaffinity(0))
    torch_blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    numpy_blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    about = {
        "vri": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        **{name: _version(name) for name in (*PACKAGES, *OPTIONAL)},
        "system": platform.platform(),
        "devices": ", ".join(map(_device_name, devices())),
        "threads": f"{torch.get_num_threads()} of torch, {processors} processors to run on",
        "blas": f"{torch_blas[1] if torch_blas else 'unknown'} (torch), "
        f"{numpy_blas['name']} {numpy_blas['version']} (numpy)",
        "settings": ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "none",
    }
    return {name: tilde(value) for name, value in about.items()}


def found_data() -> dict[str, str | None]:
    """Where each data set was found; None if it wasn't."""
    places = {name: entry.find() for name, entry in CATALOGUE.items()}
    return {name: None if where is None else tilde(str(where)) for name, where in places.items()}


def tilde(text: str) -> str:
    """The text with ~ for the home folder."""
    home = str(Path.home())
    return text if home == os.sep else re.sub(rf"{re.escape(home)}(?=[\W_]|$)", "~", text)


def devices() -> list[torch.device]:
    """The devices that vri can train on here."""
    return [torch.device("cpu"), *(torch.device("cuda", number) for number in range(torch.cuda.device_count()))]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)}, {torch.version.cuda or torch.version.hip})"
    return f"{device} ({platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"


# the checks


def all_checks() -> list[Check]:
    """Run all checks; takes some seconds and leaves nothing behind."""
    checks = [writing_check("data folder", default_root()), writing_check("current folder", Path.cwd())]
    for device in devices():
        checks += [*meta_gradient_checks(device), bfloat16_check(device)]
    return checks


def writing_check(name: str, folder: Path) -> Check:
    """Whether files can be created there, or in the folder it would be created in; and the free space."""

    def ask() -> tuple[bool, str]:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        where = str(folder) if there == folder else f"{folder}, to be made in {there}"
        try:
            with tempfile.TemporaryFile(dir=there) as file:
                file.write(b"vri")
        except OSError as error:
            return False, f"{where} can't be written to ({error.strerror})"
        free = shutil.disk_usage(there).free
        return free >= NEEDED_SPACE, f"{where} can be written to, {free / 2**30:.1f} GB free"

    return _asked(name, ask)


def meta_gradient_checks(device: torch.device) -> list[Check]:
    """Whether all ways to compute the meta gradient agree here, for a network with convolution and BatchNorm."""

    def ask(hypergradient: str, tolerance: float) -> tuple[bool, str]:
        expected, found = (meta_gradient(way, device, torch.float64) for way in ("backprop", hypergradient))
        error = float((found - expected).norm() / expected.norm())
        return error <= tolerance, f"off by {error:.0e} from double backpropagation (float64)"

    return [
        _asked(f"{name} on {device}", lambda way=way: ask(*way))  # type: ignore[misc]
        for name, way in TOLERANCES.items()
    ]


def bfloat16_check(device: torch.device) -> Check:
    """Whether the meta gradient in bfloat16 has the same direction as in float32.

    Checked in a separate process: on some processors torch's kernels crash.
    """
    ok, detail = _bfloat16_answer(device, {})
    if not ok and device.type == "cpu" and _bfloat16_answer(device, {VARIABLE: WITHOUT_AMX})[0]:
        detail += f"; it works with {VARIABLE}={WITHOUT_AMX} in the environment"
    return Check(f"bfloat16 autocast on {device}", ok, detail)


def bfloat16_cosine(device: str) -> float:
    """Cosine between the meta gradients in bfloat16 and in float32."""
    wide, narrow = (meta_gradient("jvp", torch.device(device), torch.float32, cast) for cast in (None, torch.bfloat16))
    return float(nn.functional.cosine_similarity(wide.double(), narrow.double(), dim=0))


def _bfloat16_answer(device: torch.device, settings: Mapping[str, str]) -> tuple[bool, str]:
    program = f"from vri.cli.checkup import bfloat16_cosine; print(bfloat16_cosine({str(device)!r}))"
    command, environment = [sys.executable, "-c", program], {**os.environ, **settings}
    try:
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return False, f"no answer within {_PATIENCE} s"
    if answer.returncode < 0:
        return False, f"torch crashed with signal {-answer.returncode}"
    if answer.returncode:
        return False, (answer.stderr.strip().splitlines() or ["failed without a word"])[-1]
    cosine = float(answer.stdout)
    return cosine >= ALIKE, f"cosine {cosine:.5f} with float32"


def _asked(name: str, ask: Callable[[], tuple[bool, str]]) -> Check:
    try:
        return Check(name, *ask())
    except Exception as error:  # whatever a broken build raises is the result
        return Check(name, False, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")


def meta_gradient(
    hypergradient: str, device: torch.device, dtype: torch.dtype, autocast: torch.dtype | None = None
) -> Tensor:
    """The meta gradient of the same small problem each time, as one vector."""
    generator = torch.Generator().manual_seed(0)
    with seeded(0, torch.device("cpu")):
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, _CLASSES)
        ).to(device, dtype)
    batches = []
    for count in (12, 9):  # noisy and trusted samples
        inputs = torch.randn(count, 2, 6, 6, generator=generator, dtype=torch.float64)
        batches.append((inputs.to(device, dtype), (torch.arange(count) % _CLASSES).to(device)))
    how: dict[str, Any] = {"hypergradient": hypergradient, "generator": generator, "autocast": autocast}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = VRI(model, _CLASSES, optimizer, hidden=(8,), label_dim=4, **how)
    seen: list[Tensor] = []
    method.learn = seen.extend  # type: ignore[assignment,method-assign]  # the meta networks stay as they are
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # jvp would fall back to finite differences with a warning
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch's own, on the first tangent pass
        method.step(*batches)
    return torch.cat([part.detach().flatten() for part in seen]).cpu()
