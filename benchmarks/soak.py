"""Stop vri's commands in every bad way at random moments, let them go on, and compare with runs never stopped.

    python benchmarks/soak.py --rounds 200 --jobs 2 --minutes 120 --out benchmarks/results/soak.json

A round takes one command and one accident: SIGKILL, SIGTERM or SIGINT at a random moment, a disk that gets full, or a
folder that can't be written to. The exit code and the message must be right, and the same command must then end with
the same files, bit by bit, as a run that nothing happened to. Full and read-only disks are small ones in memory, for
which one must be root on Linux; elsewhere those rounds are left out and said to be. The same call goes on with the
rounds in --out.
"""

import argparse
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import torch

SIGNALS = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "SIGINT": 130}  # with the exit code that is right
ACCIDENTS = (*SIGNALS, "full disk", "read-only folder")
DISK = "1g"  # size of the small disk when it is not full
_PATIENCE = 300  # seconds for one command

_FREE = ("seconds", "started", "peak_memory_mb", "commit")  # what may differ between two runs of the same


@dataclass(frozen=True)
class Job:
    """A command, how it goes on, and what must be the same in the end."""

    begin: list[str]
    go_on: list[str]
    content: Callable[[Path], Mapping[str, Any]]


def jobs(work: Path, out: Path) -> dict[str, Job]:
    """The commands that are stopped, with their results in `out`."""
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
    get = [sys.executable, __file__, "--get", str(work), str(out)]
    reproduce = [sys.executable, __file__, "--reproduce", str(out)]
    return {
        "train": Job(train, [*train, "--resume"], _train_content),
        "clean": Job(clean, clean, _clean_content),
        "data get": Job(get, get, _get_content),
        "reproduce": Job(reproduce, reproduce, _reproduce_content),
    }


def _train_content(out: Path) -> Mapping[str, Any]:
    from vri.checkpoint import load_checkpoint

    state = _untimed(load_checkpoint(out / "checkpoint.pt"))
    lines = (out / "history.jsonl").read_text().splitlines()
    record = _untimed(json.loads((out / "record.json").read_text()))
    return {
        "checkpoint": _hash(state),
        "history": _hash([_untimed(json.loads(line)) for line in lines]),
        "record": _hash(record),
        "classifier": _classifier_hash(out / "classifier.safetensors"),
        "split": _file_hash(out / "split.npz"),
    }


def _clean_content(out: Path) -> Mapping[str, Any]:
    summary = _untimed(json.loads((out / "summary.json").read_text()))
    return {
        "label_issues.csv": _file_hash(out / "label_issues.csv"),
        "corrected.csv": _file_hash(out / "corrected.csv"),
        "classifier": _classifier_hash(out / "classifier.safetensors"),
        "summary": _hash(summary),
    }


def _get_content(out: Path) -> Mapping[str, Any]:
    folder = out / "cifar-10-batches-py"
    return {path.name: _file_hash(path) for path in sorted(folder.iterdir())}


def _reproduce_content(out: Path) -> Mapping[str, Any]:
    results = {path.name: json.loads(path.read_text()) for path in sorted((out / "quick" / "jobs").glob("*.json"))}
    found = {name: _hash(_untimed(result)) for name, result in results.items()}
    return found | {name: _file_hash(out / "quick" / "tab-flip" / name) for name in ("table.csv", "table.tex")}


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


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# what the commands work on


def make_inputs(work: Path) -> None:
    """A table of digits, and an archive of a very small CIFAR-10."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(n_class=4, return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = np.where(rng.random(160) < 0.2, rng.integers(0, 4, 160), digits[:160])
    header = ",".join([*(f"p{i}" for i in range(64)), "digit"])
    np.savetxt(work / "digits.csv", np.c_[pixels[:160], wrong], "%g", ",", header=header, comments="")
    _make_archive(work)


def _make_archive(work: Path) -> None:
    from vri.data.cifar import CIFAR10
    from vri.data.pickles import write_pickle

    with tarfile.open(work / "small.tar.gz", "w:gz") as tar:
        for number, name in enumerate(CIFAR10.rows):
            images = np.random.default_rng(number).integers(0, 256, (60, 3072)).astype(np.uint8)
            write_pickle(work / name, {b"labels": [i % 10 for i in range(60)], b"data": images})
            tar.add(work / name, f"{CIFAR10.folder}/{name}")
        write_pickle(work / CIFAR10.meta, {b"label_names": [b"name"] * 10})
        tar.add(work / CIFAR10.meta, f"{CIFAR10.folder}/{CIFAR10.meta}")


def get(work: Path, out: Path) -> int:
    """`vri data get cifar10` as it is, but for a small archive that lies in the folder, known by its checksums."""
    from unittest.mock import patch

    from vri.cli import main
    from vri.data import catalogue, cifar, fetch
    from vri.data.archives import file_md5
    from vri.data.pickles import read_pickle

    content = {}
    for name in cifar.CIFAR10.rows:
        batch = read_pickle(work / name)
        content[name] = cifar.content_hash(batch["data"], np.array(batch["labels"]))
    known = replace(
        cifar.CIFAR10,
        rows=dict.fromkeys(cifar.CIFAR10.rows, 60),
        content=content,
        archive_md5=file_md5(work / "small.tar.gz"),
    )
    try:
        out.mkdir(exist_ok=True)
        shutil.copyfile(work / "small.tar.gz", out / known.archive)
    except OSError as error:  # the user's copy, not ours
        print(f"vri data: the disk is full or can't be written to ({error})", file=sys.stderr)
        return 2
    entry = replace(
        catalogue.CATALOGUE["cifar10"],
        check=lambda root: cifar.check_cifar(known, root),
        get=lambda root, say: fetch.get_cifar10(root, say, known),
    )
    with patch.dict(catalogue.CATALOGUE, {"cifar10": entry}):  # type: ignore[arg-type, unused-ignore]
        return main(["data", "get", "cifar10", "--root", str(out)])


def reproduce(out: Path) -> int:
    """`vri reproduce tab:flip --jobs 2` as it is, but for a table of four short runs."""
    from unittest.mock import patch

    from vri.cli import main
    from vri.experiments.reproduce.catalogue import EXPERIMENTS
    from vri.experiments.reproduce.plan import Column
    from vri.experiments.reproduce.rows import DIGITS, columns, grid, quick

    table = EXPERIMENTS["tab:flip"]
    data = {**DIGITS, "limit": 200, "clean": 30, "epochs": 4, "batch_size": 20, "checkpoint_every": 3}
    cells: list[Column] = columns({"digits": data}, "flip", (0.2, 0.4))
    rows = [
        quick("cross-entropy", "cross-entropy"),
        quick("VRI", "vri", options={"hidden": [16], "label_dim": 4}),
    ]
    small = replace(table, grids={"quick": grid(rows, cells)})
    with patch.dict(EXPERIMENTS, {"tab:flip": small}):
        return main(["reproduce", "tab:flip", "--seeds", "1", "--jobs", "2", "--out", str(out)])


# a round


def play(
    name: str,
    accident: str,
    folder: Path,
    work: Path,
    expected: Mapping[str, Any],
    kilobytes: int,
    rng: random.Random,
) -> dict[str, Any]:
    """One round; what happened, and what was wrong."""
    out = folder / "out"
    job = jobs(work, out)[name]
    wrong: list[str] = []
    told: dict[str, Any] = {}
    if accident in SIGNALS:
        moment = _stop(job.begin, out, accident, rng)
        told = {"seconds": round(moment["seconds"], 2), "exit": moment["exit"]}
        if moment["exit"] == 0 or (moment["exit"] < 0 and _done(job, out, expected)):
            told["too late"] = True  # it was faster; to go on with a finished run must change nothing
        elif moment["exit"] != SIGNALS[accident] and not (moment["early"] and moment["exit"] < 0):
            wrong.append(f"exit code {moment['exit']}, expected {SIGNALS[accident]}: {moment['said'][-300:]}")
    elif accident == "full disk":
        size = rng.randint(4, kilobytes)
        told = {"kilobytes": size}
        _remount(folder, f"size={size}k")
        wrong += _refused(job.begin, told, "disk")
        _remount(folder, f"size={DISK}")
    else:
        if rng.random() < 0.5:
            told["before it"] = _stop(job.begin, out, "SIGKILL", rng)["exit"]
        before = _listing(folder)
        _remount(folder, "ro")
        wrong += _refused(job.go_on, told, "")
        _remount(folder, "rw")
        if _listing(folder) != before:
            wrong.append("files of a folder that can't be written to have changed")
    code, said = _run(job.go_on)
    if code != 0:
        return told | {"wrong": [*wrong, f"it did not go on, exit code {code}: {said[-500:]}"]}
    found = job.content(out)
    wrong += [f"{part} differs" for part in expected if found.get(part) != expected[part]]
    left = [path.name for path in out.rglob("*") if path.name.endswith(".tmp")]
    return told | {"wrong": wrong} | ({"left behind": left} if left else {})


def _done(job: Job, out: Path, expected: Mapping[str, Any]) -> bool:
    """Whether all is there already, so that the signal came while Python was closing."""
    try:
        return job.content(out) == expected
    except (OSError, ValueError):
        return False


def _refused(command: list[str], told: dict[str, Any], word: str) -> list[str]:
    """The command must end with code 2 and one line about why, or well if there was room enough."""
    code, said = _run(command)
    told["exit"] = code
    if code == 0:
        return []
    errors = [line for line in said.splitlines() if re.match(r"vri \w+: ", line)]
    if code != 2 or len(errors) != 1 or word not in errors[0] or "Traceback" in said:
        return [f"exit code {code}, expected 2 and one line about it: {said[-600:]}"]
    return []


def _stop(command: list[str], out: Path, accident: str, rng: random.Random) -> dict[str, Any]:
    """Start the command, wait until it has begun to write, then a random while; and stop it."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=_environment())
        start, early = time.monotonic(), rng.random() < 0.1  # now and then before it has written anything
        while not early and process.poll() is None and not out.exists() and time.monotonic() - start < _PATIENCE:
            time.sleep(0.005)
        time.sleep(rng.choice([rng.uniform(0, 0.2), rng.uniform(0, 3)]))
        process.send_signal(getattr(signal, accident))
        code = process.wait(_PATIENCE)
        seconds = time.monotonic() - start
        said.seek(0)
        return {"exit": code, "seconds": seconds, "said": said.read(), "early": early}


def _run(command: list[str]) -> tuple[int, str]:
    result = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, env=_environment(), check=False)
    return result.returncode, result.stdout + result.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _listing(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): _file_hash(path) for path in sorted(folder.rglob("*")) if path.is_file()}


# small disks


def can_mount(folder: Path) -> bool:
    """Whether disks in memory can be had here."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    if subprocess.run(_mount(folder), capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", str(folder)], check=True)
    return True


def _mount(folder: Path) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]


def _remount(folder: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)


# all rounds


def main() -> int:
    if sys.argv[1:2] == ["--get"]:
        return get(Path(sys.argv[2]), Path(sys.argv[3]))
    if sys.argv[1:2] == ["--reproduce"]:
        return reproduce(Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="in all, with those in --out")
    parser.add_argument("--minutes", type=float, help="no new round is begun after so many")
    parser.add_argument("--jobs", type=int, default=1, help="rounds at a time, each on a disk of its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options = parser.parse_args()
    rounds: list[dict[str, Any]] = json.loads(options.out.read_text())["rounds"] if options.out.exists() else []
    deadline = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary) / "work"
        work.mkdir()
        make_inputs(work)
        places: Queue[Place] = Queue()
        for number in range(options.jobs):
            places.put(_prepare(work, Path(temporary) / f"disk {number}"))

        def part(number: int) -> dict[str, Any] | None:
            if time.monotonic() > deadline:
                return None
            place = places.get()
            try:
                return _round(number, options.seed, work, place)
            finally:
                places.put(place)

        with ThreadPoolExecutor(options.jobs) as pool:
            for told in pool.map(part, range(len(rounds), options.rounds)):
                if told is not None:
                    rounds.append(told)
                    print(f"round {len(rounds)}: {json.dumps(told)}", flush=True)
                    _write(options.out, rounds, options.seed)
    bad = sum(bool(each.get("wrong")) for each in rounds)
    print(f"{len(rounds) - bad} of {len(rounds)} rounds went well")
    return 1 if bad else 0


@dataclass(frozen=True)
class Place:
    """A folder in which rounds are played, one at a time."""

    folder: Path
    mounts: bool  # whether a disk in memory can be had there
    expected: Mapping[str, Mapping[str, Any]]  # by command, what comes out when nothing happens
    kilobytes: Mapping[str, int]  # by command, what it writes


def _prepare(work: Path, folder: Path) -> Place:
    folder.mkdir()
    expected, kilobytes = {}, {}
    for name, job in jobs(work, folder / "out").items():
        code, said = _run(job.begin)
        if code != 0:
            raise RuntimeError(f"{name} failed without an accident: {said}")
        expected[name] = job.content(folder / "out")
        kilobytes[name] = sum(path.stat().st_size for path in folder.rglob("*")) // 1024
        shutil.rmtree(folder / "out")
    return Place(folder, can_mount(folder), expected, kilobytes)


def _round(number: int, seed: int, work: Path, place: Place) -> dict[str, Any]:
    pairs = [(name, accident) for accident in ACCIDENTS for name in place.expected]
    name, accident = pairs[number % len(pairs)]
    told = {"command": name, "accident": accident}
    if accident not in SIGNALS and not place.mounts:
        return told | {"left out": "no disk in memory can be mounted here"}
    rng = random.Random(f"{seed} {number}")
    part = partial(play, name, accident, place.folder, work, place.expected[name], place.kilobytes[name], rng)
    return told | _on_disk(place.folder, place.mounts, part)


def _on_disk(folder: Path, mounts: bool, round: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if mounts:
        subprocess.run(_mount(folder), check=True)
    try:
        return round()
    finally:
        if mounts:
            subprocess.run(["umount", str(folder)], check=True)
        else:
            with suppress(FileNotFoundError):
                shutil.rmtree(folder / "out")


def _write(path: Path, rounds: list[dict[str, Any]], seed: int) -> None:
    played = [each for each in rounds if "left out" not in each]
    well = Counter(f"{each['command']}, {each['accident']}" for each in played if not each["wrong"])
    counts = {
        "rounds": len(rounds),
        "left out": len(rounds) - len(played),
        "went well": sum(well.values()),
        "by kind": dict(sorted(well.items())),
    }
    temporary = path.with_suffix(".tmp")
    about = {"seed": seed, "torch": torch.__version__, "counts": counts}
    temporary.write_text(json.dumps({**about, "rounds": rounds}, indent=1) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
