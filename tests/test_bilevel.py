"""The meta gradient: exact ways against each other and against the literal reference, then the cheap way."""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

import vri.core.tangents
from reference import Reference, weights
from vri import VRI
from vri.backbones import resnet32
from vri.core.bilevel import HYPERGRADIENTS
from vri.core.tangents import Replay

CLASSES, COUNT = 3, 8
OPTIONS: dict[str, Any] = {  # the paper's; no test here leans on a default
    "hidden": (16, 8),
    "label_dim": 5,
    "samples": 1,
    "kl_weight": 0.3,
    "kl_route": "objective",
    "squash": "sigmoid",
    "bound": "log_var",
    "log_var_bound": 4.0,
    "initial_mean": 0.0,
    "normalize": False,
    "clean_weight": 0.0,
    "meta_every": 1,
    "meta_smoothing": 0.0,
    "lookahead": "all",
    "lagged": False,
}
NETWORK_OPTIONS = {
    "bound",
    "log_var_bound",
    "initial_mean",
    "normalize",
    "beliefs",
}  # the reference takes the networks over


# classifiers of many kinds


class Tokens(nn.Module):
    """Token ids to logits through `body`, a module on (n, length, 8) vectors."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.body = body
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        out = self.body(self.embedding(ids))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


class Both(nn.Module):
    """Returns (logits, features); no linear layer has as many outputs as there are classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 7)
        self.weight = nn.Parameter(0.5 * torch.randn(7, CLASSES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.layer(x))
        return features @ self.weight, features


class Tied(nn.Module):
    """One matrix used three times: as a layer twice, and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.again = self.first
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(torch.tanh(self.again(x)) @ self.first.weight)


def gru() -> nn.Module:
    return nn.GRU(8, 8, num_layers=2, dropout=0.3, batch_first=True)


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.2, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2)


def perceptron(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), *between, nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, CLASSES))


# name: (classifier, shape of an input, name of the last linear layer)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str | None]] = {
    "resnet": (lambda: resnet32(CLASSES, seed=0), (3, 16, 16), "20"),
    "dropout": (lambda: perceptron(nn.Dropout(0.4)), (6,), "5"),
    "batch norm": (lambda: perceptron(nn.BatchNorm1d(10)), (6,), "5"),
    "gru": (lambda: Tokens(gru()), (5,), "head"),
    "transformer": (lambda: Tokens(transformer()), (5,), "head"),
    "logits and features": (Both, (6,), None),
    "tied weights": (Tied, (6,), "head"),
}


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name][0]().to(dtype)


def batch(name: str, seed: int, dtype: torch.dtype = torch.float64, soft: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (COUNT, *MODELS[name][1])
    if name in ("gru", "transformer"):
        x = torch.randint(11, shape, generator=generator)
    else:
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(CLASSES, (COUNT,), generator=generator)
    return x, torch.randn(COUNT, CLASSES, generator=generator).softmax(1).to(dtype) if soft else labels


class Recorder(torch.optim.SGD):
    """Writes down the meta gradient and leaves the networks as they are."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.0)
        self.gradient = torch.empty(0)

    def step(self, closure: Any = None) -> None:
        self.gradient = torch.cat([p.grad.flatten() for g in self.param_groups for p in g["params"]])


def groups(model: nn.Module, lr: float = 0.5) -> torch.optim.Optimizer:
    """Every other parameter at a fifth of the learning rate."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD([{"params": parameters[::2]}, {"params": parameters[1::2], "lr": lr / 5}], lr=lr)


def method(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> VRI:
    if optimizer is None:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    known = {"feature_dim": 7} if isinstance(model, Both) else {}
    generator = torch.Generator().manual_seed(5)
    return VRI(model, CLASSES, optimizer, **{**OPTIONS, **known, "generator": generator, **options})


def meta_gradient(name: str, *, dtype: torch.dtype = torch.float64, soft: bool = False, **options: Any) -> Tensor:
    model = build(name, dtype)
    vri = method(model, groups(model), meta_optimizer=Recorder, **options)
    vri.step(batch(name, 1, dtype, soft), batch(name, 2, dtype, soft))
    return vri.meta_optimizer.gradient


def reference_gradient(name: str, *, soft: bool = False, **options: Any) -> Tensor:
    model = build(name)
    chosen = options.pop("lookahead_names", None)
    vri = method(model, groups(model), **options)
    known = {k: v for k, v in options.items() if k not in NETWORK_OPTIONS}
    reference = Reference(vri, kl_weight=OPTIONS["kl_weight"], head=MODELS[name][2], lookahead=chosen, **known)
    found = reference.step(batch(name, 1, soft=soft), batch(name, 2, soft=soft))
    return torch.cat([g.flatten() for g in found["meta"].values()])


def relative(actual: Tensor, expected: Tensor) -> float:
    assert expected.norm() > 1e-6  # a zero would agree with anything that is small
    return float((actual - expected).norm() / expected.norm())


# exact ways


@pytest.mark.parametrize("kl_route", ["objective", "features"])
@pytest.mark.parametrize("name", MODELS)
def test_tangent_pass_is_double_backpropagation(name: str, kl_route: str) -> None:
    expected = reference_gradient(name, kl_route=kl_route)
    assert relative(meta_gradient(name, kl_route=kl_route), expected) <= 1e-10
    assert relative(meta_gradient(name, kl_route=kl_route, hypergradient="backprop"), expected) <= 1e-10


@pytest.mark.parametrize("kl_route", ["objective", "features"])
@pytest.mark.parametrize(
    "options",
    [
        {"soft": True},
        {"samples": 3},
        {"squash": "tanh"},
        {"squash": "none"},
        {"meta_smoothing": 0.2},
        {"bound": "sigmoid"},
        {"bound": "none"},
        {"initial_mean": -2.0},
        {"normalize": True},
        {"beliefs": True},
        {"soft": True, "beliefs": True},
        {"soft": True, "samples": 3, "meta_smoothing": 0.2},
    ],
    ids=str,
)
def test_tangent_pass_is_exact_with_every_option(options: dict[str, Any], kl_route: str) -> None:
    expected = reference_gradient("batch norm", kl_route=kl_route, **options)
    plain = reference_gradient("batch norm", kl_route=kl_route)
    assert expected.shape != plain.shape or relative(expected, plain) > 1e-3  # the option matters
    assert relative(meta_gradient("batch norm", kl_route=kl_route, **options), expected) <= 1e-10
    backprop = meta_gradient("batch norm", kl_route=kl_route, hypergradient="backprop", **options)
    assert relative(backprop, expected) <= 1e-10


@pytest.mark.parametrize("hypergradient", ["jvp", "backprop"])
@pytest.mark.parametrize(
    ("name", "lookahead", "names"),
    [
        ("dropout", "head", ["5.weight", "5.bias"]),
        ("dropout", "3", ["3.weight", "3.bias"]),
        ("dropout", ["0", "5.bias"], ["0.weight", "0.bias", "5.bias"]),
        ("batch norm", "1", ["1.weight", "1.bias"]),
        ("gru", "head", ["head.weight", "head.bias"]),
        ("gru", "embedding", ["embedding.weight"]),
        ("logits and features", "layer", ["layer.weight", "layer.bias"]),
    ],
)
def test_look_ahead_of_some_layers(name: str, lookahead: Any, names: list[str], hypergradient: str) -> None:
    expected = reference_gradient(name, lookahead_names=names)
    assert relative(reference_gradient(name), expected) > 1e-3
    assert relative(meta_gradient(name, lookahead=lookahead, hypergradient=hypergradient), expected) <= 1e-10


@pytest.mark.parametrize("hypergradient", ["jvp", "backprop"])
@pytest.mark.parametrize("kl_route", ["objective", "features"])
def test_frozen_parameters_take_no_part(kl_route: str, hypergradient: str) -> None:
    """The embedding is frozen by its flag, one layer of the body by being absent from the optimizer."""

    def frozen() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = build("transformer")
        model.embedding.requires_grad_(False)
        held = [p for n, p in model.named_parameters() if not n.startswith("body.layers.0")]
        return model, torch.optim.SGD(held, lr=0.5)

    reference = Reference(method(*frozen()), kl_weight=OPTIONS["kl_weight"], head="head", kl_route=kl_route)
    assert not any(n.startswith(("embedding", "body.layers.0")) for n in reference.theta)
    found = reference.step(batch("transformer", 1), batch("transformer", 2))
    expected = torch.cat([g.flatten() for g in found["meta"].values()])
    assert relative(reference_gradient("transformer", kl_route=kl_route), expected) > 1e-3
    model, optimizer = frozen()
    vri = method(model, optimizer, meta_optimizer=Recorder, kl_route=kl_route, hypergradient=hypergradient)
    vri.step(batch("transformer", 1), batch("transformer", 2))
    assert relative(vri.meta_optimizer.gradient, expected) <= 1e-10


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_without_a_learning_rate_the_meta_gradient_is_zero(hypergradient: str) -> None:
    model = build("dropout")
    vri = method(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        meta_optimizer=Recorder,
        hypergradient=hypergradient,
    )
    vri.step(batch("dropout", 1), batch("dropout", 2))
    assert vri.meta_optimizer.gradient.count_nonzero() == 0


# the cheap way


@pytest.mark.parametrize("name", MODELS)
def test_finite_difference_is_close(name: str) -> None:
    # without KL, whose gradient does not come from the look-ahead and is exact anyway
    exact = meta_gradient(name, kl_weight=0.0)
    cheap = meta_gradient(name, kl_weight=0.0, hypergradient="finite_difference")
    assert relative(cheap, exact) <= 1e-2


@pytest.mark.parametrize("name", MODELS)
def test_finite_difference_is_close_in_single_precision(name: str) -> None:
    exact = meta_gradient(name, dtype=torch.float32, kl_weight=0.0)
    assert exact.dtype == torch.float32
    cheap = meta_gradient(name, dtype=torch.float32, kl_weight=0.0, hypergradient="finite_difference")
    assert relative(cheap, exact) <= 7e-2  # by how processors round; a wrong factor would be 1


# whole steps


@pytest.mark.parametrize("kl_route", ["objective", "features"])
@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
@pytest.mark.parametrize("name", ["dropout", "batch norm", "transformer", "logits and features"])
def test_five_steps_are_algorithm_1(name: str, hypergradient: str, kl_route: str) -> None:
    """Weights and buffers of all three networks; every second step updates the meta networks."""
    settings = {"samples": 2, "kl_weight": 0.1, "clean_weight": 0.4, "meta_every": 2, "kl_route": kl_route}
    model = build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    # plain SGD for φ and ω: Adam would blow up the rounding of gradients that are nearly zero
    vri = method(
        model,
        optimizer,
        hypergradient=hypergradient,
        meta_optimizer=lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5),
        **settings,
    )
    reference = Reference(vri, head=MODELS[name][2], **settings)
    start = copy.deepcopy(reference.weights())
    for i in range(5):
        noisy, clean = batch(name, 10 + i), batch(name, 20 + i)
        vri.step(noisy, clean)
        reference.step(noisy, clean)
    expected = reference.weights()
    for part in ("model", "meta", "prior"):
        assert max(float((expected[k] - start[k]).abs().max()) for k in start if k.startswith(part)) > 1e-4
    torch.testing.assert_close(weights(vri), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("hypergradient", ["jvp", "backprop"])
def test_five_steps_with_adam(hypergradient: str) -> None:
    """The default optimizer of the meta networks, on both sides."""
    model = build("batch norm")
    vri = method(model, hypergradient=hypergradient, kl_weight=0.1, meta_lr=1e-2)
    assert isinstance(vri.meta_optimizer, torch.optim.Adam)
    reference = Reference(vri, head="5", kl_weight=0.1)
    for i in range(5):
        noisy, clean = batch("batch norm", 10 + i), batch("batch norm", 20 + i)
        vri.step(noisy, clean)
        reference.step(noisy, clean)
    torch.testing.assert_close(weights(vri), reference.weights(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_clean_gradient_with_a_look_ahead_of_the_head(hypergradient: str) -> None:
    """γ·g moves all layers, and g is the gradient at θ̂ for those that stay in place too."""
    settings = {"kl_weight": 0.1, "clean_weight": 0.4}
    vri = method(
        build("dropout"),
        hypergradient=hypergradient,
        lookahead="head",
        meta_optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
        **settings,
    )
    reference = Reference(vri, head="5", lookahead=["5.weight", "5.bias"], **settings)
    for i in range(2):
        noisy, clean = batch("dropout", 10 + i), batch("dropout", 20 + i)
        vri.step(noisy, clean)
        reference.step(noisy, clean)
    torch.testing.assert_close(weights(vri), reference.weights(), rtol=0, atol=1e-9)


# operators without forward-mode differentiation


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(11, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(ids)))


class Square(torch.autograd.Function):
    """Has a backward, but no jvp."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


class Custom(Bag):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(Square.apply(self.embedding(ids).mean(1)))


@pytest.mark.parametrize(
    ("build_model", "operator"),
    [
        (lambda: Tokens(nn.LSTM(8, 8, num_layers=2, dropout=0.3, batch_first=True)), "mkldnn_rnn_layer"),
        (Bag, "_embedding_bag"),
        (Custom, "a custom autograd.Function without jvp"),
    ],
    ids=["lstm", "embedding bag", "custom"],
)
def test_falls_back_to_finite_differences_and_says_so_once(build_model: Callable[[], nn.Module], operator: str) -> None:
    if operator == "mkldnn_rnn_layer" and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no oneDNN")

    def train(hypergradient: str) -> VRI:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            vri = method(build_model(), hypergradient=hypergradient)
        for i in range(3):
            vri.step(batch("gru", 10 + i), batch("gru", 20 + i))
        return vri

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fallen_back = train("jvp")
    ours = [w for w in caught if w.category is RuntimeWarning]
    assert [str(w.message) for w in ours] == [
        f"forward-mode differentiation is not available for {operator}: "
        "VRI continues with hypergradient='finite_difference'"
    ]
    assert ours[0].filename == __file__  # points at the caller of step
    assert fallen_back.hypergradient == "finite_difference"
    torch.testing.assert_close(weights(fallen_back), weights(train("finite_difference")), rtol=0, atol=0)


def test_a_mistake_in_the_model_is_not_taken_for_a_missing_operator() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not torch.is_grad_enabled():  # the tangent pass
                raise KeyError("my own mistake")
            return super().forward(x)

    vri = method(Broken(6, CLASSES))
    with pytest.raises(KeyError, match="my own mistake"):
        vri.step(batch("dropout", 1, torch.float32), batch("dropout", 2, torch.float32))
    assert vri.hypergradient == "jvp"


# BatchNorm's tangent


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Tangents that went through the fused rule."""
    seen: list[Tensor] = []

    def make_dual(primal: Tensor, tangent: Tensor) -> Tensor:
        seen.append(tangent)
        return forward_ad.make_dual(primal, tangent)

    monkeypatch.setattr(vri.core.tangents, "make_dual", make_dual)
    return seen


def push(norm: nn.Module, shape: tuple[int, ...], dual: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Output and tangent of a BatchNorm whose input and parameters have tangents, and its buffers after."""
    generator = torch.Generator().manual_seed(0)
    norm = copy.deepcopy(norm).double()
    x = 3 + 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    values = {
        "x": x,
        **{n: torch.randn(p.shape, generator=generator).double() for n, p in norm.named_parameters()},
    }
    tangents = {n: torch.randn(v.shape, generator=generator, dtype=torch.float64) for n, v in values.items()}
    duals = {n: forward_ad.make_dual(v, tangents[n]) if n in dual else v for n, v in values.items()}
    x = duals.pop("x")
    norm._parameters.update(duals)
    y, y_dot = forward_ad.unpack_dual(norm(x))
    buffers = [b.double() for b in norm.buffers()]
    return y, y_dot, torch.cat([b.flatten() for b in buffers]) if buffers else torch.empty(0)


ALL = ("x", "weight", "bias")


@pytest.mark.parametrize(
    ("norm", "shape", "dual"),
    [
        (nn.BatchNorm1d(4), (6, 4), ALL),
        (nn.BatchNorm1d(4), (6, 4, 5), ALL),
        (nn.BatchNorm2d(4), (6, 4, 5, 3), ALL),
        (nn.BatchNorm3d(4), (3, 4, 2, 3, 2), ALL),
        (nn.BatchNorm2d(4, affine=False), (6, 4, 5, 3), ("x",)),
        (nn.BatchNorm1d(4, affine=False), (6, 4), ("x",)),
        (nn.BatchNorm2d(4, track_running_stats=False), (6, 4, 5, 3), ALL),
        (nn.BatchNorm2d(4, momentum=None), (6, 4, 5, 3), ALL),
        (nn.BatchNorm2d(4, momentum=0.7, eps=0.3), (6, 4, 5, 3), ALL),
        (nn.BatchNorm2d(4), (6, 4, 5, 3), ("x",)),
        (nn.BatchNorm2d(4), (6, 4, 5, 3), ("x", "weight")),
        (nn.BatchNorm2d(4), (6, 4, 5, 3), ("x", "bias")),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_fused_batch_norm_is_pytorchs_own(
    norm: nn.Module, shape: tuple[int, ...], dual: tuple[str, ...], fused: list[Tensor]
) -> None:
    with torch.no_grad(), forward_ad.dual_level():
        expected = push(norm, shape, dual)
        assert not fused
        with Replay():
            actual = push(norm, shape, dual)
    assert len(fused) == 1
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("norm", "dual"),
    [(nn.BatchNorm2d(4).eval(), ALL), (nn.BatchNorm2d(4), ("weight", "bias"))],
    ids=["evaluation mode", "input without tangent"],
)
def test_batch_norm_is_left_alone_where_the_rule_does_not_hold(
    norm: nn.Module, dual: tuple[str, ...], fused: list[Tensor]
) -> None:
    with torch.no_grad(), forward_ad.dual_level():
        expected = push(norm, (6, 4, 5, 3), dual)
        with Replay():
            actual = push(norm, (6, 4, 5, 3), dual)
    assert not fused
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
