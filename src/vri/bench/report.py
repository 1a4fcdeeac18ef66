"""The report of the benchmark: rows with their bars, the machine, a table and a JSON file."""

import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from vri.files import atomic_write

FORMAT = 2  # of the JSON file


@dataclass(frozen=True)
class Bar:
    """What a value has to reach: `sign` is "<=", ">=" or "<"."""

    sign: str
    limit: float

    def met(self, value: float) -> bool:
        """Whether `value` reaches it; NaN never does."""
        return {"<=": value <= self.limit, ">=": value >= self.limit, "<": value < self.limit}[self.sign]

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"


@dataclass(frozen=True)
class Measurement:
    """One measurement: the median of its samples, and all of them; without samples, `note` says why."""

    heading: str  # of its table
    name: str
    samples: list[float]
    unit: str = ""
    bar: Bar | None = None
    note: str = ""

    @property
    def value(self) -> float | None:
        """The median."""
        return median(self.samples) if self.samples else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """First and third quartile, if there is more than one sample."""
        if len(self.samples) < 2:
            return None
        low, _, high = quantiles(self.samples, n=4, method="inclusive")
        return low, high

    @property
    def met(self) -> bool | None:
        """Whether the value reaches the bar; None if there is no bar. A missing value doesn't."""
        return None if self.bar is None else self.value is not None and self.bar.met(self.value)


@dataclass
class Report:
    """All measurements, the machine, and the raw times and sizes they come from."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Measurement] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)  # by measure: seconds or bytes, one list per variant
    seconds: float = 0.0

    @property
    def missed(self) -> list[Measurement]:
        """The rows whose bar isn't met."""
        return [row for row in self.rows if row.met is False]

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        rows = [{**asdict(r), "value": r.value, "spread": r.spread, "met": r.met} for r in self.rows]
        content = {"format": FORMAT, **vars(self), "rows": rows}
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")


def format_table(report: Report) -> str:
    """The machine, then one line per measurement: value, quartiles, bar and whether it is met."""
    lines = [f"{key}: {value}" for key, value in report.machine.items()]
    lines += [f"{key}: {value}" for key, value in report.settings.items()]
    header = ("measurement", "value", "quartiles", "bar", "met?")
    cells = [
        (
            f"  {row.name}",
            f"{_number(row.value)} {row.unit}".rstrip() if row.samples else "none",
            "" if row.spread is None else f"{_number(row.spread[0])} … {_number(row.spread[1])}",
            "" if row.bar is None else str(row.bar),
            {None: "", True: "met", False: "missed"}[row.met],
        )
        for row in report.rows
    ]
    widths = [max(len(line[i]) for line in (header, *cells)) for i in range(len(header))]
    lines += ["", _line(header, widths), _line(["-" * w for w in widths], widths)]
    heading = None
    for row, line in zip(report.rows, cells, strict=True):
        if row.heading != heading:
            heading = row.heading
            lines.append(heading)
        lines.append(_line(line, widths) + (f"  ({row.note})" if row.note else ""))
    barred = sum(row.bar is not None for row in report.rows)
    lines += ["", f"{barred - len(report.missed)} of {barred} bars met; {report.seconds:.0f} s"]
    lines += [f"missed: {r.heading}: {r.name}: {_number(r.value)}, bar {r.bar}" for r in report.missed]
    return "\n".join(lines)


def describe_machine(device: str) -> dict[str, Any]:
    """The machine and the versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load before": round(os.getloadavg()[0], 2),  # a busy machine explains a wide spread
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if value != value or (value != 0 and abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
