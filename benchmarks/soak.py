"""Stop vri's commands in every bad way at random moments, let them go on, and compare with runs never stopped.

    python benchmarks/soak.py --rounds 200 --jobs 2 --minutes 120 --out benchmarks/results/soak.json

A round takes one command and one accident: SIGKILL, SIGTERM or SIGINT at a random moment, a disk that gets full, or a
folder that can't be written to. The exit code and the message must be right, and the same command must then end with
the same files, bit by bit, as a run that nothing happened to. Full and read-only disks are small ones in memory, for
which one must be root on Linux; elsewhere those rounds are left out and said to be. The same call goes on with the
rounds in --out.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from soak_jobs import Job, file_hash, jobs, make_inputs, served

SIGNALS = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143, "SIGINT": 130}  # with the exit code that is right
ACCIDENTS = (*SIGNALS, "full disk", "read-only folder")
DISK = "1g"  # size of the small disk when it is not full
_PATIENCE = 300  # seconds for one command

# a round


@dataclass(frozen=True)
class Known:
    """What a command does when nothing happens: what comes out, and how much and for how long it writes."""

    expected: Mapping[str, Any]
    kilobytes: int
    seconds: float


def play(
    job: Job,
    accident: str,
    folder: Path,
    known: Known,
    rng: random.Random,
) -> dict[str, Any]:
    """One round; what happened, and what was wrong."""
    out = folder / "out"
    wrong: list[str] = []
    told: dict[str, Any] = {}
    if accident in SIGNALS:
        moment = _stop(job.begin, out, accident, known.seconds, rng)
        told = {"seconds": round(moment["seconds"], 2), "exit": moment["exit"]}
        if moment["exit"] == 0 or (moment["exit"] < 0 and _done(job, out, known.expected)):
            told["too late"] = True  # it was faster; to go on with a finished run must change nothing
        elif moment["exit"] != SIGNALS[accident] and not (moment["early"] and moment["exit"] < 0):
            wrong.append(f"exit code {moment['exit']}, expected {SIGNALS[accident]}: {moment['said'][-300:]}")
    elif accident == "full disk":
        size = rng.randint(4, known.kilobytes)
        told = {"kilobytes": size}
        _remount(folder, f"size={size}k")
        wrong += _refused(job.begin, told, "disk")
        _remount(folder, f"size={DISK}")
    else:
        if rng.random() < 0.5:
            told["before it"] = _stop(job.begin, out, "SIGKILL", known.seconds, rng)["exit"]
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
    wrong += [f"{part} differs" for part, value in known.expected.items() if found.get(part) != value]
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


def _stop(command: list[str], out: Path, accident: str, longest: float, rng: random.Random) -> dict[str, Any]:
    """Start the command, wait until it has begun to write, then a random while; and stop it."""
    with tempfile.TemporaryFile("w+") as said:
        # in a session of its own: by its number one sees when the last of its processes has ended
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )
        start, early = time.monotonic(), rng.random() < 0.1  # now and then before it has written anything
        while not early and process.poll() is None and not out.exists() and time.monotonic() - start < _PATIENCE:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, longest))
        process.send_signal(getattr(signal, accident))
        code = process.wait(_PATIENCE)
        seconds = time.monotonic() - start
        _wait_for_all_of(process.pid)
        said.seek(0)
        return {"exit": code, "seconds": seconds, "said": said.read(), "early": early}


def _wait_for_all_of(session: int) -> None:
    """Workers of a command that was killed finish what they are at before they notice."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise RuntimeError(f"processes of a command that was stopped live on after {_PATIENCE} s (session {session})")


def _run(command: list[str]) -> tuple[int, str]:
    result = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, env=_environment(), check=False)
    return result.returncode, result.stdout + result.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _listing(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): file_hash(path) for path in sorted(folder.rglob("*")) if path.is_file()}


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="in all, with those in --out")
    parser.add_argument("--minutes", type=float, help="no new round is begun after so many")
    parser.add_argument("--jobs", type=int, default=1, help="rounds at a time, each on a disk of its own")
    parser.add_argument(
        "--again", action="store_true", help="those in --out that went wrong, once more, after a repair"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options = parser.parse_args()
    rounds: list[dict[str, Any]] = json.loads(options.out.read_text())["rounds"] if options.out.exists() else []
    deadline = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would ours
    with tempfile.TemporaryDirectory() as temporary, served(work := make_inputs(Path(temporary) / "work")) as url:
        places: Queue[Place] = Queue()
        for number in range(options.jobs):
            places.put(_prepare(work, Path(temporary) / f"disk {number}", url))

        def part(number: int) -> dict[str, Any] | None:
            if time.monotonic() > deadline:
                return None
            place = places.get()
            try:
                return _round(number, options.seed, place)
            finally:
                places.put(place)

        bad = [number for number, each in enumerate(rounds) if options.again and each.get("wrong")]
        numbers = [*bad, *range(len(rounds), options.rounds)]
        with ThreadPoolExecutor(options.jobs) as pool:
            for number, told in zip(numbers, pool.map(part, numbers), strict=True):
                if told is None:
                    continue
                if number < len(rounds):
                    rounds[number] = told | {"before": rounds[number]["wrong"]}
                else:
                    rounds.append(told)
                print(f"round {number + 1}: {json.dumps(told)}", flush=True)
                _write(options.out, rounds, options.seed)
    well = sum(not each.get("wrong") for each in rounds)
    print(f"{well} of {len(rounds)} rounds went well")
    return 0 if well == len(rounds) else 1


@dataclass(frozen=True)
class Place:
    """A folder in which rounds are played, one at a time."""

    folder: Path
    mounts: bool  # whether a disk in memory can be had there
    jobs: Mapping[str, Job]
    known: Mapping[str, Known]


def _prepare(work: Path, folder: Path, url: str) -> Place:
    folder.mkdir()
    out, known = folder / "out", {}
    commands = jobs(work, out, url)
    for name, job in commands.items():
        begun: list[float] = []
        watch = threading.Thread(target=_note_beginning, args=(out, begun), daemon=True)
        watch.start()
        code, said = _run(job.begin)
        if code != 0:
            raise RuntimeError(f"{name} failed without an accident: {said}")
        watch.join()
        seconds = time.monotonic() - begun[0]
        kilobytes = sum(path.stat().st_size for path in folder.rglob("*")) // 1024
        known[name] = Known(job.content(out), kilobytes, seconds)
        shutil.rmtree(out)
    return Place(folder, can_mount(folder), commands, known)


def _note_beginning(out: Path, begun: list[float]) -> None:
    while not out.exists():
        time.sleep(0.01)
    begun.append(time.monotonic())


def _round(number: int, seed: int, place: Place) -> dict[str, Any]:
    pairs = [(name, accident) for accident in ACCIDENTS for name in place.jobs]
    name, accident = pairs[number % len(pairs)]
    told = {"command": name, "accident": accident}
    if accident not in SIGNALS and not place.mounts:
        return told | {"left out": "no disk in memory can be mounted here"}
    rng = random.Random(f"{seed} {number}")
    part = partial(play, place.jobs[name], accident, place.folder, place.known[name], rng)
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
        "too late": sum("too late" in each for each in played),
        "went well": sum(well.values()),
        "by kind": dict(sorted(well.items())),
    }
    temporary = path.with_suffix(".tmp")
    about = {"seed": seed, "torch": torch.__version__, "counts": counts}
    temporary.write_text(json.dumps({**about, "rounds": rounds}, indent=1) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
