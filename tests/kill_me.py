"""A small training run for `test_resume.py` and `benchmarks/kill_and_resume.py` to kill and start again.

Run by `runpy.run_path` with FOLDER and EPOCHS.
"""

import torch
from torch import nn

from vri.data import load, split, to_float
from vri.methods import VRI
from vri.training.loop import train


def main(folder: str, epochs: int) -> None:
    torch.set_num_threads(1)
    digits = load("digits")
    x = to_float(digits.train_x).flatten(1)
    parts = split(digits.train_y, sizes={"clean": 100, "noisy": -1}, num_classes=10, seed=0)
    noisy, clean = parts["noisy"], parts["clean"]
    labels = digits.train_y[noisy]
    labels[::3] = (labels[::3] + 1) % 10

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    method = VRI(model, 10, optimizer, hidden=(32,), label_dim=8, meta_every=2)
    train(
        method,
        (x[noisy], labels),
        (x[clean], digits.train_y[clean]),
        test_set=(to_float(digits.test_x).flatten(1), digits.test_y),
        true_labels=digits.train_y[noisy],
        epochs=epochs,
        batch_size=64,
        meta_batch_size=30,
        out=folder,
        checkpoint_every=3,
        progress=False,
    )


if "FOLDER" in globals():
    main(globals()["FOLDER"], globals()["EPOCHS"])
