"""Time and memory of VRIClassifier beside scikit-learn's MLPClassifier and cleanlab's CleanLearning, in one run.

    python benchmarks/estimator.py --out benchmarks/results/estimator.json

50,000 × 512 embeddings (Fashion-MNIST, randomly projected), 10 classes, 40 % flipped labels. Each fit is a process of
its own, so that peak memory is its own; they take turns. MLPClassifier has the same hidden layers and stops early on
held-out samples, as ours does; CleanLearning wraps it (five folds, then one more fit on what it thinks is right).
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vri import data, noise

METHODS = ("vri", "mlp", "cleanlab")
BARS = {"seconds": 180, "megabytes": 2000}


def embeddings(samples: int, width: int) -> tuple[Any, Any, Any, Any, Any]:
    images = data.load("fashion-mnist")
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(784, width, generator=generator) / 28
    train = (images.train_x[:samples].float().flatten(1) / 255) @ directions
    test = (images.test_x.float().flatten(1) / 255) @ directions
    given = noise.flip(None, images.train_y[:samples], num_classes=10, rate=0.4, seed=0).labels
    true = images.train_y[:samples]
    return train.numpy(), given.numpy(), true.numpy(), test.numpy(), images.test_y.numpy()


def run(method: str, samples: int, width: int) -> dict[str, Any]:
    from sklearn.metrics import average_precision_score
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from vri import VRIClassifier

    x, given, true, x_test, y_test = embeddings(samples, width)
    plain = make_pipeline(StandardScaler(), MLPClassifier((256, 256), early_stopping=True, random_state=0))
    found: dict[str, Any] = {"method": method}
    start = time.perf_counter()
    quality = None
    if method == "vri":
        model: Any = VRIClassifier(random_state=0).fit(x, given)
        quality = model.label_quality_
    elif method == "mlp":
        model = plain.fit(x, given)
    else:
        from cleanlab.classification import CleanLearning  # type: ignore[import-untyped]

        model = CleanLearning(plain, seed=0).fit(x, given)
        quality = model.get_label_issues()["label_quality"].to_numpy()
    found["seconds"] = time.perf_counter() - start
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["test_accuracy"] = float(np.mean(model.predict(x_test) == y_test))
    if quality is not None:
        found["average_precision"] = float(average_precision_score(given != true, -quality))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--one", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            print(json.dumps(run(options.one, options.samples, options.width)))
        raise SystemExit
    rows = []
    for method in options.methods.split(","):
        command = [sys.executable, __file__, "--one", method, "--samples", str(options.samples)]
        command += ["--width", str(options.width)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        print(
            f"{method:<10} {row['seconds']:7.1f} s {row['megabytes']:7.0f} MB  test accuracy {row['test_accuracy']:.3f}"
            + (f"  average precision {row['average_precision']:.3f}" if "average_precision" in row else ""),
            flush=True,
        )
    met = all(rows[0][name] <= bar for name, bar in BARS.items())
    print(f"bars of vri, {BARS['seconds']} s and {BARS['megabytes']} MB: {'met' if met else 'missed'}")
    if options.out:
        machine = {"cores": os.cpu_count(), "system": platform.platform(terse=True), "torch": torch.__version__}
        about = {"samples": options.samples, "width": options.width, "machine": machine, "rows": rows}
        options.out.write_text(json.dumps(about, indent=1) + "\n")
