"""Ways in which models hand over logits and features."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vri import CrossEntropy
from vri.core.model import Classifier

CLASSES = 3


class Network(nn.Module):
    """Two layers; `how` it calls the head and returns its logits is the test's business."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body, self.head, self.how = nn.Linear(4, 5), nn.Linear(5, CLASSES), how

    def forward(self, x: Tensor) -> Any:
        features = self.body(x).tanh()
        logits = self.head(input=features) if self.how == "keyword" else self.head(features)
        return {
            "mapping": {"logits": logits},
            "attribute": SimpleNamespace(logits=logits),
            "pair": (logits, features),
            "text": "logits",
        }.get(self.how, logits)


def classifier(how: str) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Network(how)
    return Classifier(model, CLASSES, torch.optim.SGD(model.parameters(), lr=0.1))


def inputs() -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("how", ["keyword", "mapping", "attribute", "pair"])
def test_logits_and_features_are_found(how: str) -> None:
    plain, special = classifier("plain"), classifier(how)
    expected = plain.forward(inputs(), 0).outputs
    assert torch.equal(expected.features, plain.model.body(inputs()).tanh())
    for a, b in zip(special.forward(inputs(), 0).outputs, expected, strict=True):
        assert torch.equal(a, b)


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError) as error:
        classifier("text").forward(inputs(), 0)
    assert str(error.value) == (
        "the model returns a str, expected logits, (logits, features), or an object with logits; "
        "wrap the model in a module that returns them"
    )


def test_rates_follow_the_optimizer() -> None:
    model = Network("plain")
    groups = [{"params": model.body.parameters(), "lr": 0.1}, {"params": model.head.parameters(), "lr": 0.2}]
    method = CrossEntropy(model, CLASSES, torch.optim.SGD(groups, lr=1.0))
    assert method.classifier.rates == {"body.weight": 0.1, "body.bias": 0.1, "head.weight": 0.2, "head.bias": 0.2}
    method.optimizer.param_groups[1]["lr"] = 0.3
    assert method.classifier.rates["head.bias"] == 0.3
