"""`VRIClassifier` with a small CNN from scratch on few images, beside plain training of the same network.

    python benchmarks/images.py --jobs 2      # benchmarks/results/images.jsonl; about 10 minutes on 2 cores

1,500 images of Fashion-MNIST with flipped labels, nothing known to be clean, defaults everywhere. Accuracy is that of
the true labels of 5,000 test images; average precision tells how well the wrong labels are found.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from sklearn.metrics import average_precision_score

from table import RESULTS, fill, read
from vri import VRIClassifier, backbones, data, noise

RUNS = RESULTS / "images.jsonl"
SAMPLES, RATES, SEEDS, METHODS = 1500, (0.1, 0.3), (0, 1, 2), ("vri", "cross-entropy")


def network(classes: int) -> torch.nn.Module:
    return backbones.small_cnn(classes, 1, seed=0)


def measure(settings: dict[str, Any]) -> dict[str, Any]:
    method, rate, seed = settings["method"], settings["rate"], settings["seed"]
    images = data.load("fashion-mnist")
    chosen = data.split(images.train_y, sizes={"train": SAMPLES}, num_classes=10, seed=seed)["train"]
    x, y = images.train_x[chosen], images.train_y[chosen]
    drawn = noise.flip(x, y, num_classes=10, rate=rate, seed=seed)
    start = time.perf_counter()
    model = VRIClassifier(network, method=method, random_state=seed).fit(x.numpy() / 255, drawn.labels.numpy())
    seconds = time.perf_counter() - start
    predicted = model.predict(images.test_x[:5000].numpy() / 255)
    return {
        "accuracy": float((predicted == images.test_y[:5000].numpy()).mean()),
        "average_precision": float(average_precision_score(drawn.changed.numpy(), 1 - model.label_quality_)),
        "noise_rate": model.noise_rate_,
        "true_rate": drawn.rate,
        "epochs": len(model.history_),
        "seconds": seconds,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    runs = [{"method": method, "rate": rate, "seed": seed} for seed in SEEDS for rate in RATES for method in METHODS]
    fill(
        RUNS,
        runs,
        measure,
        lambda r: f"{r['method']} {r['rate']} seed {r['seed']}: {r['accuracy']:.3f}",
        processes=given.jobs,
    )
    rows = read(RUNS)
    for rate in RATES:
        for method in METHODS:
            own = [r for r in rows if (r["method"], r["rate"]) == (method, rate)]
            cells = []
            for name in ("accuracy", "average_precision", "noise_rate", "seconds"):
                values = [r[name] for r in own]
                cells.append(f"{name} {statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}")
            print(f"flip {rate:.0%}, {method}: {', '.join(cells)}")
