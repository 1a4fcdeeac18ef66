"""What benchmarks/soak.py stops: four commands of vri on small data, and what must be the same in the end.

python benchmarks/soak_jobs.py get WORK OUT URL         # one of them, as soak.py calls it
python benchmarks/soak_jobs.py reproduce OUT
"""

import hashlib
import json
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vri.paper.grid import TABLE
from vri.paper.runs import RunTable

_FREE = ("seconds", "started", "peak_memory_mb", "commit")  # what may differ between two runs of the same
_ROWS = 600  # images in each file of the small CIFAR-10
_RATE = 5e6  # bytes per second of the server


@dataclass(frozen=True)
class Job:
    """A command, how it goes on, and what must be the same in the end."""

    begin: list[str]
    go_on: list[str]
    content: Callable[[Path], Mapping[str, Any]]


def jobs(work: Path, out: Path, url: str) -> dict[str, Job]:
    """The commands that are stopped, with their results in `out`; `url` is where the archive is fetched."""
    vri = [sys.executable, "-m", "vri"]
    small = ["--dataset", "digits", "--noise", "flip", "--backbone", "mlp", "--epochs", "4", "--limit", "200"]
    small += [
        "options.hidden=[16]",
        "options.label_dim=4",
        "batch_size=20",
        "clean=30",
        "test_limit=50",
        "checkpoint_every=3",
        "--out",
        str(out),
    ]
    train = [*vri, "train", *small]
    clean = [*vri, "clean", str(work / "digits.csv"), "--label", "digit", "--epochs", "6", "--out", str(out)]
    get = [sys.executable, __file__, "get", str(work), str(out), url]
    reproduce = [sys.executable, __file__, "reproduce", str(out)]
    return {
        "train": Job(train, [*train, "--resume"], _train_content),
        "clean": Job(clean, clean, _clean_content),
        "data get": Job(get, get, _get_content),
        "reproduce": Job(reproduce, reproduce, _reproduce_content),
    }


def _train_content(out: Path) -> Mapping[str, Any]:
    from vri.training.checkpoints import load_checkpoint

    state = _untimed(load_checkpoint(out / "checkpoint.pt"))
    lines = (out / "history.jsonl").read_text().splitlines()
    record = _untimed(json.loads((out / "record.json").read_text()))
    return {
        "checkpoint": _hash(state),
        "history": _hash([_untimed(json.loads(line)) for line in lines]),
        "record": _hash(record),
        "classifier": _classifier_hash(out / "classifier.safetensors"),
        "split": file_hash(out / "split.npz"),
    }


def _clean_content(out: Path) -> Mapping[str, Any]:
    summary = _untimed(json.loads((out / "summary.json").read_text()))
    return {
        "label_issues.csv": file_hash(out / "label_issues.csv"),
        "corrected.csv": file_hash(out / "corrected.csv"),
        "classifier": _classifier_hash(out / "classifier.safetensors"),
        "summary": _hash(summary),
    }


def _get_content(out: Path) -> Mapping[str, Any]:
    folder = out / "cifar-10-batches-py"
    return {path.name: file_hash(path) for path in sorted(folder.iterdir())}


def _reproduce_content(out: Path) -> Mapping[str, Any]:
    rows = RunTable(out / "quick" / TABLE).rows()
    found = {key: _hash(_untimed(row)) for key, row in sorted(rows.items())}
    return found | {name: file_hash(out / "quick" / "tab-flip" / name) for name in ("table.csv", "table.tex")}


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(item) for key, item in value.items() if key not in (*_FREE, "command")}
    return [_untimed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _hash(value: Any) -> str:
    """Of plain values and tensors, to the last bit."""
    digest = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            digest.update(f"{item.dtype} {tuple(item.shape)}".encode() + item.contiguous().numpy().tobytes())
        elif isinstance(item, dict):
            for key in item:
                digest.update(repr(key).encode())
                add(item[key])
        elif isinstance(item, (list, tuple)):
            digest.update(f"[{len(item)}".encode())
            for each in item:
                add(each)
        else:
            digest.update(repr(item).encode())

    add(value)
    return digest.hexdigest()


def _classifier_hash(path: Path) -> str:
    """Of what is in it: safetensors writes the description in another order each time."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = sorted((file.metadata() or {}).items())
        return _hash([about, {name: file.get_tensor(name) for name in sorted(file.keys())}])


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# what the commands work on


def make_inputs(work: Path) -> Path:
    """A table of digits, and an archive of a very small CIFAR-10; the folder they are in."""
    from sklearn.datasets import load_digits

    work.mkdir()
    pixels, digits = load_digits(n_class=4, return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = np.where(rng.random(160) < 0.2, rng.integers(0, 4, 160), digits[:160])
    header = ",".join([*(f"p{i}" for i in range(64)), "digit"])
    np.savetxt(work / "digits.csv", np.c_[pixels[:160], wrong], "%g", ",", header=header, comments="")
    _make_archive(work)
    return work


def _make_archive(work: Path) -> None:
    from vri.data.pickles import write_pickle
    from vri.data.sets.cifar import CIFAR10

    with tarfile.open(work / "small.tar.gz", "w:gz") as tar:
        for number, name in enumerate(CIFAR10.rows):
            images = np.random.default_rng(number).integers(0, 256, (_ROWS, 3072)).astype(np.uint8)
            write_pickle(work / name, {b"labels": [i % 10 for i in range(_ROWS)], b"data": images})
            tar.add(work / name, f"{CIFAR10.folder}/{name}")
        write_pickle(work / CIFAR10.meta, {b"label_names": [b"name"] * 10})
        tar.add(work / CIFAR10.meta, f"{CIFAR10.folder}/{CIFAR10.meta}")


@contextmanager
def served(work: Path) -> Iterator[str]:
    """A slow server on this machine alone that has the archive; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.content = (work / "small.tar.gz").read_bytes()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/small.tar.gz"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content: bytes = self.server.content  # type: ignore[attr-defined]
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        piece = 1 << 16
        for place in range(start, len(content), piece):
            try:
                self.wfile.write(content[place : place + piece])
            except OSError:  # who asked was killed
                return
            time.sleep(piece / _RATE)

    def log_message(self, *_: object) -> None:
        pass


def get(work: Path, out: Path, url: str) -> int:
    """`vri data get cifar10` as it is, but for a small archive on this machine, known by its checksums."""
    from unittest.mock import patch

    from vri.cli import main
    from vri.data import catalogue
    from vri.data.downloads import file_md5
    from vri.data.pickles import read_pickle
    from vri.data.sets import cifar

    content = {}
    for name in cifar.CIFAR10.rows:
        batch = read_pickle(work / name)
        content[name] = cifar.content_hash(batch["data"], np.array(batch["labels"]))
    known = replace(
        cifar.CIFAR10,
        url=url,
        rows=dict.fromkeys(cifar.CIFAR10.rows, _ROWS),
        content=content,
        archive_md5=file_md5(work / "small.tar.gz"),
    )
    with patch.dict(catalogue.CATALOGUE, {"cifar10": known}):
        return main(["data", "get", "cifar10", "--root", str(out)])


def reproduce(out: Path) -> int:
    """`vri reproduce tab:flip --jobs 2` as it is, but for a table of four short runs."""
    from unittest.mock import patch

    from vri.cli import main
    from vri.paper.catalogue import EXPERIMENTS
    from vri.paper.experiments import Column, Grid
    from vri.paper.rows import DIGITS, columns, quick

    table = EXPERIMENTS["tab:flip"]
    data = {**DIGITS, "limit": 200, "clean": 30, "epochs": 4, "batch_size": 20, "checkpoint_every": 3}
    cells: list[Column] = columns({"digits": data}, "flip", (0.2, 0.4))
    rows = [
        quick("cross-entropy", "cross-entropy"),
        quick("VRI", "vri", options={"hidden": [16], "label_dim": 4}),
    ]
    small = replace(table, grids={"quick": Grid(rows, cells, "four short runs.")})
    with patch.dict(EXPERIMENTS, {"tab:flip": small}):
        return main(["reproduce", "tab:flip", "--seeds", "1", "--jobs", "2", "--out", str(out)])


if __name__ == "__main__":
    _, which, *places = sys.argv
    sys.exit(get(Path(places[0]), Path(places[1]), places[2]) if which == "get" else reproduce(Path(places[0])))
