"""Mistakes at the border, word for word: what came, what was expected, how to fix it."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vri import VRI, CrossEntropy, FineTuned
from vri.core.checks import DivergenceError, check_meta_labels
from vri.core.model import Classifier

CLASSES, COUNT = 3, 4
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])
NAN, INF = float("nan"), float("inf")


def says(kind: type[Exception], text: str) -> AbstractContextManager[Any]:
    return pytest.raises(kind, match=f"^{re.escape(text)}$")


def network(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*(layers or (nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def method(model: nn.Module | None = None, **options: Any) -> VRI:
    model = network() if model is None else model
    return VRI(model, options.pop("num_classes", CLASSES), sgd(model), **{"hidden": (8,), **options})


# batches


BATCHES: list[tuple[Any, type[Exception], str]] = [
    (
        X,
        ValueError,
        "the {what} batch has no labels: got a Tensor, expected a pair (inputs, labels); let the data set return both",
    ),
    (
        (X,),
        ValueError,
        "the {what} batch has no labels: got a tuple of length 1, expected a pair (inputs, labels); "
        "let the data set return both",
    ),
    (
        {"x": X, "y": Y},
        ValueError,
        "the {what} batch has no labels: got a dict, expected a pair (inputs, labels); let the data set return both",
    ),
    (
        (X, Y[:3]),
        ValueError,
        "the {what} batch has 4 inputs but 3 labels; expected one label for each input",
    ),
    (
        ((X, X), Y[:3]),
        ValueError,
        "the {what} batch has 4 inputs but 3 labels; expected one label for each input",
    ),
    (
        ({"x": X}, Y[:3]),
        ValueError,
        "the {what} batch has 4 inputs but 3 labels; expected one label for each input",
    ),
    (
        (X[:0], Y[:0]),
        ValueError,
        "the {what} batch is empty: expected at least one sample; check the data set and its filter",
    ),
    (
        (X, torch.tensor(1)),
        ValueError,
        "the {what} batch is empty: expected at least one sample; check the data set and its filter",
    ),
    (
        (X, [0, 1, 2, 0]),
        TypeError,
        "the {what} labels are a list, expected a torch.Tensor of class indices; "
        "convert them with torch.as_tensor(labels)",
    ),
    (
        (X, Y.numpy()),
        TypeError,
        "the {what} labels are a ndarray, expected a torch.Tensor of class indices; "
        "convert them with torch.as_tensor(labels)",
    ),
    (
        (X, Y + 1),
        ValueError,
        "the {what} labels run from 1 to 3, but num_classes=3 allows 0 to 2; "
        "map the labels to 0..2 or raise num_classes",
    ),
    (
        (X, Y - 1),
        ValueError,
        "the {what} labels run from -1 to 1, but num_classes=3 allows 0 to 2; "
        "map the labels to 0..2 or raise num_classes",
    ),
    (
        (X, Y.float()),
        ValueError,
        "the {what} labels are float32 of shape (4,): expected class indices (integers, shape (n,)) or "
        "probability vectors (shape (n, 3)); if they are indices, convert them with labels.long()",
    ),
    (
        (X, torch.ones(COUNT, 2, dtype=torch.float64) / 2),
        ValueError,
        "the {what} labels are float64 of shape (4, 2): expected class indices (integers, shape (n,)) or "
        "probability vectors (shape (n, 3)); if they are indices, convert them with labels.long()",
    ),
    (
        (X, torch.ones(COUNT, CLASSES)),
        ValueError,
        "the {what} labels are vectors that are not probabilities: expected rows that are non-negative and "
        "sum to 1; normalise them first",
    ),
    (
        (X, torch.tensor([[-0.5, 0.5, 1.0]]).expand(COUNT, 3)),
        ValueError,
        "the {what} labels are vectors that are not probabilities: expected rows that are non-negative and "
        "sum to 1; normalise them first",
    ),
    (
        (X, torch.full((COUNT, CLASSES), NAN)),
        ValueError,
        "the {what} labels are vectors that are not probabilities: expected rows that are non-negative and "
        "sum to 1; normalise them first",
    ),
    (
        (X, Y > 0),
        TypeError,
        "the {what} labels are bool, expected class indices; convert them with labels.long()",
    ),
    (
        (X, Y.to(torch.complex64)),
        TypeError,
        "the {what} labels are complex64, expected class indices; convert them with labels.long()",
    ),
    (
        (X, nn.functional.one_hot(Y, CLASSES)),
        ValueError,
        "the {what} labels have shape (4, 3), expected class indices of shape (n,); "
        "one-hot labels must be floating point",
    ),
]


@pytest.mark.parametrize("what", ["training", "meta"])
@pytest.mark.parametrize(("batch", "kind", "text"), BATCHES)
def test_batches(batch: Any, kind: type[Exception], text: str, what: str) -> None:
    good = (X, Y)
    batches = (batch, good) if what == "training" else (good, batch)
    with says(kind, text.format(what=what)):
        method().step(*batches)


def test_no_batch() -> None:
    net = network()
    with says(
        ValueError,
        "the training batch has no labels: got a NoneType, expected a pair (inputs, labels); "
        "let the data set return both",
    ):
        CrossEntropy(net, CLASSES, sgd(net)).step(None)


def test_clean_batch_missing_when_due() -> None:
    vri = method(meta_every=2)
    with says(
        ValueError,
        "this step updates the meta networks and needs a clean batch, but meta_batch is None; "
        "pass one whenever method.meta_due is true",
    ):
        vri.step((X, Y))
    vri.step((X, Y), (X, Y))
    vri.step((X, Y))  # not due


def test_labels_of_the_posterior() -> None:
    features = torch.zeros(COUNT, 6)
    text = (
        "the given labels run from 5 to 7, but num_classes=3 allows 0 to 2; map the labels to 0..2 or raise num_classes"
    )
    vri = method()
    with says(ValueError, text):
        vri.posterior(features, Y + 5)
    with says(ValueError, text):
        vri.rectify(torch.zeros(COUNT, CLASSES), features, Y + 5)


# the clean set


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (
            torch.tensor([], dtype=torch.long),
            "the meta set is empty: VRI learns to rectify from a few samples with right labels; "
            "give at least one sample of each class",
        ),
        (
            torch.tensor([0, 2, 2]),
            "the meta set lacks class 1: expected at least one clean sample of each of the 3 classes; "
            "add some, or lower num_classes",
        ),
        (
            torch.tensor([1]),
            "the meta set lacks classes 0, 2: expected at least one clean sample of each of the 3 classes; "
            "add some, or lower num_classes",
        ),
        (
            torch.tensor([[0.5, 0.5, 0.0]]),
            "the meta set lacks class 2: expected at least one clean sample of each of the 3 classes; "
            "add some, or lower num_classes",
        ),
        (
            torch.tensor([0, 1, 2, 3]),
            "the meta labels run from 0 to 3, but num_classes=3 allows 0 to 2; "
            "map the labels to 0..2 or raise num_classes",
        ),
    ],
)
def test_clean_labels(labels: Tensor, text: str) -> None:
    with says(ValueError, text):
        check_meta_labels(labels, CLASSES)


# the last linear layer and the features


class Unused(nn.Module):
    """Has the layer that would be the head, but does not run it."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 6), nn.Linear(6, CLASSES)
        self.last = nn.Parameter(torch.ones(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x) @ self.last


class Returns(nn.Module):
    """Applies any function to its input; has one parameter to train."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.ones(())), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.scale * x)


def several() -> nn.Module:
    return network(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        (
            network(),
            {"num_classes": 5},
            "num_classes=5 disagrees with the model: no linear layer has 5 outputs; its linear layers are: "
            "'0' (4 to 6), '2' (6 to 3); correct num_classes, or name the last layer with head=",
        ),
        (
            nn.Linear(4, 3),
            {"num_classes": 5},
            "num_classes=5 disagrees with the model: no linear layer has 5 outputs; its linear layers are: "
            "'the model' (4 to 3); correct num_classes, or name the last layer with head=",
        ),
        (
            network(),
            {"num_classes": 5, "head": "2"},
            "num_classes=5 disagrees with the head '2', which has 3 outputs; pass num_classes=3 or another head=",
        ),
        (
            network(nn.Flatten(), nn.Conv1d(4, 3, 1)),
            {},
            "the model has no nn.Linear layer, so its features can't be found; name the last layer with head= "
            "and feature_dim=, or let the model return (logits, features) and pass feature_dim=",
        ),
        (
            several(),
            {},
            "several layers could be the last linear layer: '0', '1', '2' all have 3 outputs; "
            "name the one that gives the logits, for example head='2'",
        ),
        (
            network(),
            {"head": "classifier"},
            "head='classifier' is not a layer of the model; its linear layers are: '0' (4 to 6), '2' (6 to 3)",
        ),
        (
            network(nn.Conv1d(4, 3, 1)),
            {"head": "fc"},
            "head='fc' is not a layer of the model; its linear layers are: none",
        ),
        (
            network(nn.Linear(4, 6), nn.Conv1d(6, 3, 1)),
            {"head": "1"},
            "the head '1' does not tell how wide its input is; pass feature_dim= as well",
        ),
    ],
)
def test_finding_the_head(model: nn.Module, options: dict[str, Any], text: str) -> None:
    with says(ValueError, text):
        method(model, **options)


@pytest.mark.parametrize(
    ("model", "options", "text"),
    [
        (
            Unused(),
            {},
            "the layer 'spare' did not run in the model's forward, so there are no features; "
            "name the last linear layer with head=, or return (logits, features)",
        ),
        (
            Returns(lambda x: x[:, :3]),
            {"feature_dim": 6},
            "the model returned logits alone, but feature_dim= says that it returns (logits, features); "
            "return both, or name the last linear layer with head=",
        ),
        (
            Returns(lambda x: (x[:, :3], x)),
            {"feature_dim": 6},
            "the model returns features of shape (4, 4), expected (4, 6): one vector per sample; "
            "pass feature_dim= or another head=",
        ),
        (
            Returns(lambda x: (x[:, :3], x[:2])),
            {"feature_dim": 4},
            "the model returns features of shape (2, 4), expected (4, 4): one vector per sample; "
            "pass feature_dim= or another head=",
        ),
        (
            network(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), nn.Flatten(), nn.Linear(6, 3)),
            {"head": "1"},
            "the layer '1' reads features of shape (4, 2, 2), expected (4, 2): one vector per sample; "
            "pass feature_dim= or another head=",
        ),
        (
            network(nn.Linear(4, 3), nn.Unflatten(1, (3, 1))),
            {},
            "the model returns logits of shape (4, 3, 1), expected (n, 3); "
            "num_classes=3 must be the model's number of outputs",
        ),
        (
            network(nn.Linear(4, 3), nn.Linear(3, 5)),
            {},
            "the model returns logits of shape (4, 5), expected (n, 3); "
            "num_classes=3 must be the model's number of outputs",
        ),
    ],
)
def test_outputs_of_the_model(model: nn.Module, options: dict[str, Any], text: str) -> None:
    vri = method(model, **options)
    with says(ValueError, text):
        vri.step((X, Y), (X, Y))
    assert not any(m._forward_pre_hooks for m in model.modules())


# NaN


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_features_that_are_not_finite(bad: float) -> None:
    x = X.clone()
    x[1, 2] = x[3, 0] = bad
    model = network(nn.Linear(4, CLASSES))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with says(
        DivergenceError,
        "the features of 2 of 4 samples contain NaN or Inf, expected finite numbers; "
        "clean the inputs, or lower the learning rate if this came up during training",
    ):
        method(model).step((x, Y), (X, Y))
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_logits_that_are_not_finite() -> None:
    model = network(nn.Linear(4, CLASSES))
    with torch.no_grad():
        model[0].bias[1] = NAN
    with says(
        DivergenceError,
        "the logits of 4 of 4 samples contain NaN or Inf, expected finite numbers; "
        "clean the inputs, or lower the learning rate if this came up during training",
    ):
        method(model).step((X, Y), (X, Y))


def test_meta_logits_that_are_not_finite() -> None:
    x = X.clone()
    x[2] = NAN
    with says(
        DivergenceError,
        "the meta logits of 1 of 4 samples contain NaN or Inf, expected finite numbers; "
        "clean the inputs, or lower the learning rate if this came up during training",
    ):
        method().step((X, Y), (x, Y))


def test_features_given_by_hand_that_are_not_finite() -> None:
    features = torch.zeros(COUNT, 6)
    features[0, 0] = NAN
    text = (
        "the features of 1 of 4 samples contain NaN or Inf, expected finite numbers; "
        "clean the inputs, or lower the learning rate if this came up during training"
    )
    with says(DivergenceError, text):
        method().posterior(features, Y)
    with says(DivergenceError, text):
        method().prior(features)


def test_divergence_is_a_floating_point_error() -> None:
    assert issubclass(DivergenceError, FloatingPointError)


# the optimizer


def test_optimizer_of_another_model() -> None:
    with says(
        ValueError,
        "the optimizer does not hold the model's parameters: 4 of its 4 tensors are not in the model; "
        "build it from model.parameters() after the last change to the model's layers",
    ):
        VRI(network(), CLASSES, sgd(network()))


def test_optimizer_built_before_a_layer_was_replaced() -> None:
    model = network()
    optimizer = sgd(model)
    model[2] = nn.Linear(6, CLASSES)
    with says(
        ValueError,
        "the optimizer does not hold the model's parameters: 2 of its 4 tensors are not in the model; "
        "build it from model.parameters() after the last change to the model's layers",
    ):
        VRI(model, CLASSES, optimizer)


def test_nothing_to_train() -> None:
    model = network()
    with says(
        ValueError,
        "the optimizer holds no parameter of the model that requires a gradient; "
        "unfreeze some, or build the optimizer from model.parameters()",
    ):
        VRI(model.requires_grad_(False), CLASSES, sgd(model))


# options


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (
            {"hypergradient": "exact"},
            "hypergradient='exact' (expected one of jvp, finite_difference, backprop)",
        ),
        ({"squash": "relu"}, "squash='relu' (expected one of sigmoid, tanh, none)"),
        ({"kl_route": "none"}, "kl_route='none' (expected one of objective, features)"),
        ({"bound": "tanh"}, "bound='tanh' (expected one of log_var, sigmoid, prior, none)"),
        ({"samples": 0}, "samples=0 (expected at least 1)"),
        ({"meta_every": 0}, "meta_every=0 (expected at least 1)"),
        ({"label_dim": 0}, "label_dim=0 (expected at least 1)"),
        ({"kl_weight": -1e-3}, "kl_weight=-0.001 (expected 0 or more)"),
        ({"kl_weight": NAN}, "kl_weight=nan (expected 0 or more)"),
        ({"clean_weight": -0.5}, "clean_weight=-0.5 (expected 0 or more)"),
        ({"meta_smoothing": -0.1}, "meta_smoothing=-0.1 (expected a number in [0, 1))"),
        (
            {"squash": "relu", "bound": "tanh", "samples": 0, "meta_every": -2, "clean_weight": NAN},
            "squash='relu' (expected one of sigmoid, tanh, none); "
            "bound='tanh' (expected one of log_var, sigmoid, prior, none); "
            "samples=0 (expected at least 1); meta_every=-2 (expected at least 1); "
            "clean_weight=nan (expected 0 or more)",
        ),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], wrong: str) -> None:
    with says(ValueError, f"VRI got options it can't use: {wrong}"):
        method(**options)


@pytest.mark.parametrize(
    "options",
    [{"log_var_bound": 0.0}, {"log_var_bound": -1.0}, {"meta_smoothing": 1.5}],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    """A bound of 0 gives NaN, a negative one works as its opposite, smoothing above 1 turns the loss around."""
    with pytest.raises(ValueError, match=f"VRI got options it can't use: {next(iter(options))}="):
        method(**options)


@pytest.mark.parametrize(
    ("lookahead", "shown"),
    [("body", "'body'"), (["body", "1"], "['body', '1']"), ("2.weigh", "'2.weigh'"), ([], "[]")],
)
def test_lookahead_that_names_nothing(lookahead: Any, shown: str) -> None:
    with says(
        ValueError,
        f"lookahead={shown} names no trained parameter: expected 'all', 'head' or the name of a layer, "
        "such as ['0', '2']",
    ):
        method(lookahead=lookahead)


@pytest.mark.parametrize("build", [VRI, CrossEntropy, Classifier])
def test_autocast_in_float16(build: Any) -> None:
    model = network()
    with says(
        ValueError,
        "autocast=torch.float16 is not supported: expected torch.bfloat16 or None; "
        "float16 would need loss scaling inside the meta gradient",
    ):
        build(model, CLASSES, sgd(model), autocast=torch.float16)


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1])
def test_share_of_fine_tuning(share: float) -> None:
    model = network()
    with says(
        ValueError,
        f"tune_share={share} is outside (0, 1): it is the share of epochs spent fine-tuning",
    ):
        FineTuned(model, CLASSES, sgd(model), tune_share=share)
