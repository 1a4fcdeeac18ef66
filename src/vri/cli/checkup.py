"""`vri doctor` as a function: what this machine has, and whether it computes the meta gradient rightly."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vri
from vri.core.randomness import seeded
from vri.data.catalogue import CATALOGUE
from vri.data.places import default_root
from vri.methods import VRI

PACKAGES = ("torch", "numpy", "scikit-learn", "scipy", "pandas", "pillow", "safetensors", "matplotlib")
OPTIONAL = ("tensorboard", "pyarrow")
# no others: no secrets
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES", "VRI_DATA")

NEEDED_SPACE = 2**30  # bytes; CIFAR-10 with its archive takes a third of it
EXACT = 1e-10  # largest relative error of jvp in float64
NEAR = 1e-4  # of finite differences in float64
ALIKE = 0.9  # least cosine between the meta gradients in bfloat16 and in float32

_WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
_PATIENCE = 300  # seconds; the machine may be busy
_CLASSES, _NOISY, _CLEAN = 3, 12, 9


@dataclass(frozen=True)
class Check:
    """One question to this machine and its answer."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Findings:
    """All that a bug report should say about a machine; the home folder is ~ in it.

    Attributes:
        about: versions, devices, threads and the like, by name.
        data: where each data set was found; None where it was not.
        checks: what was tried.
    """

    about: dict[str, str]
    data: dict[str, str | None]
    checks: tuple[Check, ...]

    @property
    def well(self) -> bool:
        """Whether all checks passed."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"well": self.well, **asdict(self)}

    def as_text(self) -> str:
        """A block of plain text."""
        width = max(map(len, self.about))
        lines = [f"{name:<{width}}  {value}" for name, value in self.about.items()]
        found = [f"{name} ({where})" for name, where in self.data.items() if where is not None]
        lines += [f"{'data sets':<{width}}  {', '.join(found) or 'none found'}", ""]
        lines += [f"{'ok' if check.ok else 'FAILED':<6}  {check.name}: {check.detail}" for check in self.checks]
        return "\n".join(lines)


def examine() -> Findings:
    """Look at this machine; takes some seconds and leaves nothing behind."""
    about = {
        "vri": vri.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        **{name: _version(name) for name in (*PACKAGES, *OPTIONAL)},
        "system": platform.platform(),
        "devices": ", ".join(map(_device_name, devices())),
        "threads": f"{torch.get_num_threads()} of torch, {_processors()} processors to run on",
        "blas": f"{_torch_blas()} (torch), {_numpy_blas()} (numpy)",
        "settings": ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "none",
    }
    data = {name: entry.find(None) for name, entry in CATALOGUE.items()}
    checks = [_writing("data folder", default_root()), _writing("current folder", Path.cwd())]
    for device in devices():
        checks += [*meta_gradient_checks(device), bfloat16_check(device)]
    return Findings(
        {name: tilde(value) for name, value in about.items()},
        {name: None if where is None else tilde(str(where)) for name, where in data.items()},
        tuple(Check(check.name, check.ok, tilde(check.detail)) for check in checks),
    )


def tilde(text: str) -> str:
    """The text with ~ for the home folder, which may hold a person's name."""
    home = str(Path.home())
    return text if home == os.sep else re.sub(rf"{re.escape(home)}(?=[\W_]|$)", "~", text)


def devices() -> list[torch.device]:
    """Those that vri can train on here."""
    return [torch.device("cpu"), *(torch.device("cuda", number) for number in range(torch.cuda.device_count()))]


# the meta gradient


def meta_gradient_checks(device: torch.device) -> list[Check]:
    """Whether the ways to the meta gradient agree on this device, for a network with convolution and BatchNorm."""
    exact = torch.float64

    def forward_mode() -> tuple[bool, str]:
        error, seconds = _error("jvp", device, exact)
        return error <= EXACT, f"off by {error:.0e} from double backpropagation (float64, {seconds:.1f} s)"

    def differences() -> tuple[bool, str]:
        error, seconds = _error("finite_difference", device, exact)
        return error <= NEAR, f"off by {error:.0e} from double backpropagation (float64, {seconds:.1f} s)"

    questions: Sequence[tuple[str, Callable[[], tuple[bool, str]]]] = (
        ("forward-mode meta gradient", forward_mode),
        ("finite differences", differences),
    )
    return [_asked(f"{name} on {device}", question) for name, question in questions]


def bfloat16_check(device: torch.device) -> Check:
    """Whether the meta gradient in bfloat16 points where that in float32 does.

    Asked in a process of its own: on some processors the kernels of torch crash.
    """
    name = f"bfloat16 autocast on {device}"
    ok, detail = _bfloat16_answer(device, {})
    if not ok and device.type == "cpu" and _bfloat16_answer(device, _WITHOUT_AMX)[0]:
        setting = " ".join(f"{key}={value}" for key, value in _WITHOUT_AMX.items())
        detail += f"; it works with {setting} in the environment"
    return Check(name, ok, detail)


def bfloat16_cosine(device: str) -> float:
    """Cosine between the meta gradients in bfloat16 and in float32."""
    wide, narrow = (meta_gradient("jvp", torch.device(device), torch.float32, cast) for cast in (None, torch.bfloat16))
    return float(nn.functional.cosine_similarity(wide.double(), narrow.double(), dim=0))


def _bfloat16_answer(device: torch.device, settings: Mapping[str, str]) -> tuple[bool, str]:
    program = f"from vri.cli.checkup import bfloat16_cosine; print(bfloat16_cosine({str(device)!r}))"
    try:
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {_PATIENCE} s"
    if answer.returncode < 0:
        return False, f"torch crashed with signal {-answer.returncode}"
    if answer.returncode:
        return False, (answer.stderr.strip().splitlines() or ["failed without a word"])[-1]
    cosine = float(answer.stdout)
    return cosine >= ALIKE, f"cosine {cosine:.5f} with float32"


def meta_gradient(
    hypergradient: str, device: torch.device, dtype: torch.dtype, autocast: torch.dtype | None = None
) -> Tensor:
    """The meta gradient of the same small problem each time, as one vector."""
    generator = torch.Generator().manual_seed(0)
    with seeded(0, torch.device("cpu")):
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, _CLASSES)
        ).to(device, dtype)
    parts = []
    for count in (_NOISY, _CLEAN):
        inputs = torch.randn(count, 2, 6, 6, generator=generator, dtype=torch.float64)
        parts.append((inputs.to(device, dtype), (torch.arange(count) % _CLASSES).to(device)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = VRI(
        model,
        _CLASSES,
        optimizer,
        hypergradient=hypergradient,
        meta_optimizer=_Recorder,
        generator=generator,
        autocast=autocast,
        hidden=(8,),
        label_dim=4,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # jvp would fall back to finite differences with a warning
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch's own, on the first tangent pass
        method.step(*parts)
    recorded = method.meta_optimizer
    assert isinstance(recorded, _Recorder)
    return recorded.seen


class _Recorder(torch.optim.Optimizer):
    """In place of the meta optimizer: keeps the gradient it is given and moves nothing."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.seen = torch.empty(0)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Keep the gradient."""
        parameters = self.param_groups[0]["params"]
        self.seen = torch.cat([p.grad.detach().flatten() for p in parameters]).cpu()


def _error(hypergradient: str, device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Relative error against literal double backpropagation, and how long both took."""
    start = time.perf_counter()
    expected = meta_gradient("backprop", device, dtype)
    found = meta_gradient(hypergradient, device, dtype)
    return float((found - expected).norm() / expected.norm()), time.perf_counter() - start


def _asked(name: str, question: Callable[[], tuple[bool, str]]) -> Check:
    try:
        ok, detail = question()
    except Exception as error:  # whatever a broken build raises is the finding
        lines = str(error).strip().splitlines() or [""]
        return Check(name, False, f"{type(error).__name__}: {lines[0]}")
    return Check(name, ok, detail)


# the machine


def _writing(name: str, folder: Path) -> Check:
    """Whether files can be made there, or in the folder that it would be made in; and the space that is left."""

    def question() -> tuple[bool, str]:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        where = str(folder) if there == folder else f"{folder}, to be made in {there}"
        try:
            with tempfile.TemporaryFile(dir=there) as file:
                file.write(b"vri")
        except OSError as error:
            return False, f"{where} can't be written to ({error.strerror})"
        free = shutil.disk_usage(there).free
        return free >= NEEDED_SPACE, f"{where} can be written to, {free / 2**30:.1f} GB free"

    return _asked(name, question)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)}, {torch.version.cuda or torch.version.hip})"
    return f"{device} ({platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _torch_blas() -> str:
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return found.group(1) if found else "unknown"


def _numpy_blas() -> str:
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"
