"""What docs/from_cleanlab.md states: time and memory with many classes, time with 100,000 samples, and honest counts.

    python benchmarks/from_cleanlab.py --out benchmarks/results/from_cleanlab.jsonl

Sizes: made probabilities, float32, in a memory-mapped file. Every measurement is a process of its own with one thread;
seconds are processor time, memory is the peak of what the process allocates itself (RssAnon, every 10 ms) above what it
held before the call: pages of the mapped file are the system's to take back. Counts: cross-validated probabilities of
logistic regression, the same for both, labels replaced uniformly at random, 3 seeds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = ((100_000, 10), (100_000, 5000))
TRAINED = ((64, "auto"), (1280, "gaussian"))  # a table; features of photographs, as `vri clean --encoder` judges them
RATES = (0.01, 0.05, 0.2)
_ROWS = 2000  # made at a time


def make(folder: Path, samples: int, classes: int) -> None:
    """A tenth of the labels is wrong; the classifier is right for about nine samples of ten."""
    random = np.random.default_rng(0)
    true = random.integers(0, classes, samples)
    given = np.where(random.random(samples) < 0.1, random.integers(0, classes, samples), true)
    np.save(folder / "labels.npy", given)
    np.save(folder / "true.npy", true)
    out = np.lib.format.open_memmap(folder / "p.npy", "w+", np.float32, (samples, classes))
    for first in range(0, samples, _ROWS):
        logits = random.standard_normal((min(_ROWS, samples - first), classes), np.float32)
        rows = np.arange(len(logits))
        logits[rows, true[first : first + _ROWS]] += np.log(classes) + random.normal(2, 1.5, len(logits))
        logits = np.exp(logits - logits.max(1, keepdims=True))
        out[first : first + _ROWS] = logits / logits.sum(1, keepdims=True)
    out.flush()


class Peak:
    """The most memory that this process has allocated itself while it was watched."""

    def __init__(self) -> None:
        self.start = self.most = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def megabytes(self) -> int:
        """Above what was held in the beginning; ends the watch."""
        self._stop.set()
        self._thread.join()
        return round((self.most - self.start) / 1024)

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def judge(who: str, folder: Path) -> dict[str, Any]:
    """One call, in this process."""
    labels, true = np.load(folder / "labels.npy"), np.load(folder / "true.npy")
    probabilities = np.load(folder / "p.npy", mmap_mode="r")
    if who == "vri":
        from vri import find_label_issues as ours

        ours(labels[:50] % 5, np.full((50, 5), 0.2))  # imports
    else:
        from cleanlab.experimental.label_issues_batched import find_label_issues_batched  # type: ignore[import-untyped]
        from cleanlab.filter import find_label_issues as theirs  # type: ignore[import-untyped]
    peak, start = Peak(), time.process_time()
    if who == "vri":
        named = ours(labels, probabilities)["is_label_issue"].to_numpy().nonzero()[0]
    elif who == "cleanlab":
        named = theirs(labels, probabilities, n_jobs=1).nonzero()[0]
    else:
        named = find_label_issues_batched(labels=labels, pred_probs=probabilities, n_jobs=1, verbose=False)
    seconds = time.process_time() - start
    wrong = labels != true
    return {
        "seconds": round(seconds, 1),
        "megabytes": peak.megabytes(),
        "named": len(named),
        "precision": round(float(wrong[named].mean()), 3),
        "recall": round(float(wrong[named].sum() / wrong.sum()), 3),
    }


def train(samples: int, columns: int, evidence: str) -> dict[str, Any]:
    """`VRIClassifier` on a made table, or on what could be an encoder's features."""
    from sklearn.datasets import make_classification

    from vri import VRIClassifier

    random = np.random.default_rng(0)
    if evidence == "gaussian":  # as encoders give them: a cloud for each class
        true = random.integers(0, 10, samples)
        x = random.standard_normal((samples, columns), np.float32)
        x += 0.15 * random.standard_normal((10, columns), np.float32)[true]
    else:
        x, true = make_classification(
            samples,
            columns,
            n_informative=20,
            n_redundant=0,
            n_classes=10,
            n_clusters_per_class=1,
            flip_y=0,
            random_state=0,
        )
    given = np.where(random.random(samples) < 0.1, random.integers(0, 10, samples), true)
    x = x.astype(np.float32, copy=False)
    peak, start = Peak(), time.process_time()
    clf = VRIClassifier(evidence="auto" if evidence == "auto" else [evidence], random_state=0, device="cpu").fit(
        x, given
    )
    seconds = time.process_time() - start
    named, wrong = clf.find_label_issues()["is_label_issue"].to_numpy(), given != true
    return {
        "seconds": round(seconds, 1),
        "megabytes": peak.megabytes(),
        "named": int(named.sum()),
        "precision": round(float(wrong[named].mean()), 3),
        "recall": round(float(named[wrong].mean()), 3),
    }


def tables() -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    from vri import data

    found = {"digits": load_digits(return_X_y=True)}
    images = data.load("fashion-mnist")
    pixels = images.train_x[:5000].flatten(1).float().numpy() / 255
    found["Fashion-MNIST, 5,000"] = (PCA(50, random_state=0).fit_transform(pixels), images.train_y[:5000].numpy())
    return found


def counts() -> list[dict[str, Any]]:
    """How many labels are named, and how many of them are wrong."""
    from cleanlab.filter import find_label_issues as theirs
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from vri import find_label_issues as ours

    rows = []
    for name, (x, true) in tables().items():
        for rate in RATES:
            for seed in range(3):
                random = np.random.default_rng(seed)
                moved = (true + random.integers(1, 10, len(true))) % 10
                given = np.where(random.random(len(true)) < rate, moved, true)
                model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300))
                folds = StratifiedKFold(5, shuffle=True, random_state=seed)
                p = cross_val_predict(model, x, given, cv=folds, method="predict_proba")
                wrong = given != true
                frame = ours(given, p)
                named = frame["is_label_issue"].to_numpy()
                other = theirs(given, p, n_jobs=1)
                rows.append(
                    {
                        "what": "counts",
                        "data": name,
                        "seed": seed,
                        "rate": rate,
                        "wrong": int(wrong.sum()),
                        "estimated": round(frame.attrs["noise_rate"] * len(true)),
                        "vri_named": int(named.sum()),
                        "vri_expected": round(float((1 - frame["label_quality"][named]).sum())),
                        "vri_wrong": int(wrong[named].sum()),
                        "vri_suggested": int((frame["predicted_label"].to_numpy() == true)[named & wrong].sum()),
                        "cleanlab_named": int(other.sum()),
                        "cleanlab_wrong": int(wrong[other].sum()),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def in_a_process(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=1500,
        )
    except subprocess.TimeoutExpired:
        return {"failed": "stopped after 25 minutes"}
    if done.returncode:
        return {"failed": done.stderr.strip().rpartition("\n")[2][:200]}
    found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/from_cleanlab.jsonl"))
    parser.add_argument("--only", choices=("sizes", "train", "counts"))
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        who, *rest = arguments.one
        print(json.dumps(train(int(rest[0]), int(rest[1]), rest[2]) if who == "train" else judge(who, Path(rest[0]))))
        return
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(row, flush=True)

    if arguments.only in (None, "counts"):
        rows += counts()
    if arguments.only in (None, "train"):
        for columns, evidence in TRAINED:
            what = {"what": "train", "samples": 100_000, "columns": columns, "evidence": evidence}
            keep(what | in_a_process("train", "100000", str(columns), evidence))
    for samples, classes in SIZES if arguments.only in (None, "sizes") else ():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), samples, classes)
            for who in ("vri", "cleanlab, batched", "cleanlab"):
                about = {"what": "sizes", "who": who, "samples": samples, "classes": classes}
                keep(about | in_a_process(who, folder))
    old = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    new = {row["what"] for row in rows}
    kept = [line for line in old if json.loads(line)["what"] not in new]
    arguments.out.write_text("\n".join([*kept, *map(json.dumps, rows)]) + "\n")


if __name__ == "__main__":
    main()
