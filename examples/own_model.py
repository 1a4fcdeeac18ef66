"""A network of your own, on images in memory, with some labels known to be right.

python examples/own_model.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import vri


class Net(nn.Module):
    """Any module that returns logits will do."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(32 * 4 * 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


images, true = load_digits(return_X_y=True)
images = (images * 15.9).astype(np.uint8).reshape(-1, 1, 8, 8)
noisy = vri.noise.flip(None, torch.from_numpy(true), num_classes=10, rate=0.4, seed=0).labels.numpy()
trusted = np.arange(len(true)) % 18 == 0  # 100 labels that somebody checked
given = np.where(trusted, true, noisy)

train, test = np.arange(len(true)) < 1400, np.arange(len(true)) >= 1400
for method in ("cross-entropy", "vri"):
    clf = vri.VRIClassifier(Net, method=method, epochs=12, random_state=0)
    clf.fit(images[train], given[train], trusted=trusted[train])
    print(f"{method:<14} {np.mean(clf.predict(images[test]) == true[test]):.1%} on new images")
named = clf.find_label_issues().is_label_issue.to_numpy()
print(f"{named.sum()} labels named, {np.mean(given[train][named] != true[train][named]):.0%} of them wrong")
