"""Kill a training run with SIGKILL at random moments, let it go on, and compare it with one never stopped.

    python benchmarks/kill_and_resume.py --rounds 20 --out kill_and_resume.json

Each round kills a run and lets it finish; its checkpoint, with weights, optimizers and generator, and its
history must then be those of the uninterrupted run, bit by bit. Some seconds a round.
"""

import argparse
import json
import multiprocessing
import random
import runpy
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from vri.training.checkpoints import load_checkpoint

SCRIPT = Path(__file__).parents[1] / "tests" / "kill_me.py"


def start(folder: Path, epochs: int) -> BaseProcess:
    """The run, in a process of its own, which a server forks that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vri.paper.grid"])
    process = context.Process(target=runpy.run_path, args=(str(SCRIPT), {"FOLDER": str(folder), "EPOCHS": epochs}))
    process.start()
    return process


def ended(process: BaseProcess) -> int | None:
    """Its exit code, when it has ended."""
    process.join()
    return process.exitcode


def kill_and_finish(folder: Path, epochs: int, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill at a random moment after the run moved on, `kills` times, then let it finish."""
    checkpoint, steps = folder / "checkpoint.pt", []
    for _ in range(kills):
        # counted in checkpoints, not in seconds: neither a fast nor a busy machine ends the run too early
        wait_for, before = rng.randint(1, max(24 // kills, 1)), _stamp(checkpoint)
        process = start(folder, epochs)
        while wait_for > 0 and process.is_alive():
            time.sleep(0.001)
            if _stamp(checkpoint) != before:
                wait_for, before = wait_for - 1, _stamp(checkpoint)
        time.sleep(rng.uniform(0, 0.01))
        if not process.is_alive():
            break  # it was faster than the kill: nothing more to stop
        process.kill()
        process.join()
        steps.append(int(load_checkpoint(checkpoint)["step"]))
    code = ended(start(folder, epochs))
    if code != 0:
        raise RuntimeError(f"the run in {folder} ended with exit code {code}")
    return {"kills": len(steps), "steps": steps}


def differences(one: Path, other: Path) -> list[str]:
    """Names of all values that differ between two finished runs, wall time aside."""
    a, b = (load_checkpoint(folder / "checkpoint.pt") for folder in (one, other))
    found = _compare(_untimed(a), _untimed(b), "checkpoint")
    rows = [
        [_untimed(json.loads(line)) for line in (folder / "history.jsonl").read_text().splitlines()]
        for folder in (one, other)
    ]
    return found + _compare(rows[0], rows[1], "history.jsonl")


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(item) for key, item in value.items() if key != "seconds"}
    return [_untimed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _compare(a: Any, b: Any, where: str) -> list[str]:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for key in a for found in _compare(a[key], b[key], f"{where}[{key!r}]")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [found for i in range(len(a)) for found in _compare(a[i], b[i], f"{where}[{i}]")]
    return [] if type(a) is type(b) and a == b else [where]


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="runs to kill")
    parser.add_argument("--kills-a-round", type=int, default=1, help="times each run is killed")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    rng, rounds = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        if ended(start(whole, options.epochs)) != 0:
            raise RuntimeError("the uninterrupted run failed")
        for number in range(options.rounds):
            folder = Path(temporary) / str(number)
            result = kill_and_finish(folder, options.epochs, options.kills_a_round, rng)
            result["differences"] = differences(whole, folder)
            rounds.append(result)
            found = ", ".join(result["differences"]) or "nothing"
            print(f"round {number + 1}: killed at {result['steps']}, differs in {found}", flush=True)
    same = sum(not r["differences"] and r["kills"] == options.kills_a_round for r in rounds)
    print(f"{same} of {len(rounds)} bit-identical")
    if options.out is not None:
        settings = {"epochs": options.epochs, "seed": options.seed, "torch": torch.__version__}
        options.out.write_text(json.dumps({"identical": same, "of": len(rounds), **settings, "rounds": rounds}))
    return 0 if same == len(rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
