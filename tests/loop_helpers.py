"""Small data and methods for the tests of the loop."""

from typing import Any

import torch
from torch import Tensor, nn

from vri.methods import VRI, CrossEntropy, Method
from vri.training.loop import train

CLASSES = 3
NAN = float("nan")


def data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, torch.arange(count) % CLASSES


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


class Recorder(Method):
    """Does nothing but write down what the loop asks of it."""

    def __init__(self, metrics: list[dict[str, float]] | None = None, every: int = 2) -> None:
        model = nn.Linear(4, CLASSES)
        groups = [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 0.1}]
        super().__init__(model, CLASSES, torch.optim.SGD(groups))
        self.every, self.steps, self.metrics = every, 0, metrics
        self.rates: list[list[float]] = []
        self.epochs: list[tuple[int, int]] = []
        self.batches: list[Any] = []
        self.training: list[bool] = []

    @property
    def meta_due(self) -> bool:
        return self.steps % self.every == 0

    def step(self, batch: Any, meta_batch: Any = None) -> dict[str, float]:
        self.rates.append([group["lr"] for group in self.optimizer.param_groups])
        self.batches.append((batch, meta_batch))
        self.training.append(self.model.training)
        self.steps += 1
        return {"loss": 1.0} if self.metrics is None else self.metrics[self.steps - 1]

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.epochs.append((epoch, epochs))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.model.load_state_dict(state["model"])


def cross_entropy(lr: float = 0.1) -> CrossEntropy:
    net = network()
    return CrossEntropy(net, CLASSES, torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9))


def vri() -> VRI:
    net = network()
    return VRI(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1), hidden=(8,), label_dim=4)


def fit(method: Method, **options: Any) -> list[dict[str, Any]]:
    return train(method, data(20), **{"epochs": 2, "batch_size": 5, "progress": False, **options})
