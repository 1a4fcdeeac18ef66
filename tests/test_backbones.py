"""The small classifiers: sizes counted by hand, forward passes written out, seeded initialisation."""

import inspect
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import vri.backbones
from classifiers import built, images, norm_relu, size, with_used_statistics
from vri.backbones import (
    BACKBONES,
    build,
    load_weights,
    mlp,
    resnet18,
    resnet32,
    resnet50,
    small_cnn,
    vgg19_bn,
    wide_resnet28_10,
)

Factory = Callable[[int | None], nn.Sequential]
CASES: list[tuple[str, Factory, tuple[int, ...]]] = [
    ("resnet32", lambda seed: resnet32(7, seed=seed), (3, 32, 32)),
    ("small_cnn", lambda seed: small_cnn(7, seed=seed), (1, 28, 28)),
    ("small_cnn", lambda seed: small_cnn(7, in_channels=2, seed=seed), (2, 8, 8)),
    ("mlp", lambda seed: mlp(48, 7, seed=seed), (3, 4, 4)),
]
IDS = ["resnet32", "small_cnn 28", "small_cnn 8", "mlp"]


def test_every_backbone_is_in_the_dict() -> None:
    public = {name: member for name, member in vars(vri.backbones).items() if inspect.isfunction(member)}
    assert {**BACKBONES, "build": build, "load_weights": load_weights} == public
    assert all(factory.__name__ == name for name, factory in BACKBONES.items())


@pytest.mark.parametrize(("name", "factory", "shape"), CASES, ids=IDS)
def test_logits_of_a_fixed_size_from_a_linear_last_layer(name: str, factory: Factory, shape: tuple[int, ...]) -> None:
    model = factory(0).eval()
    with torch.no_grad():
        logits = model(images(2, shape))
    assert logits.shape == (2, 7)
    assert float(logits.std(0).min()) > 0  # the output depends on the input
    last = list(model.modules())[-1]
    assert isinstance(last, nn.Linear)
    assert last.out_features == 7


@pytest.mark.parametrize(("name", "factory", "shape"), CASES, ids=IDS)
def test_seed_decides_the_weights_and_the_global_rng_is_untouched(
    name: str, factory: Factory, shape: tuple[int, ...]
) -> None:
    state = torch.get_rng_state()
    first, again, other = (list(factory(seed).parameters()) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    matrices = [(a, b) for a, b in zip(first, other, strict=True) if a.ndim > 1]
    assert matrices
    assert not any(torch.equal(a, b) for a, b in matrices)


def test_without_a_seed_weights_come_from_the_global_rng() -> None:
    with torch.random.fork_rng(devices=[]):
        first, second = (next(mlp(4, 2).parameters()) for _ in range(2))
    assert not torch.equal(first, second)


def test_resnet32_size_counted_by_hand() -> None:
    def block(a: int, b: int) -> int:  # two BatchNorms, two 3x3 convolutions, 1x1 shortcut if the width changes
        return 2 * a + 9 * a * b + 2 * b + 9 * b * b + (a * b if a != b else 0)

    stem, last_norm, head = 9 * 3 * 16, 2 * 64, 64 * 10 + 10
    stages = 5 * block(16, 16) + block(16, 32) + 4 * block(32, 32) + block(32, 64) + 4 * block(64, 64)
    assert size(resnet32(seed=0)) == stem + stages + last_norm + head == 466_714
    # 32 layers: the stem, 3 stages x 5 blocks x 2 convolutions, the head; and two shortcuts beside them.
    layers = [m for m in resnet32(seed=0).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 32 + 2


def test_small_cnn_and_mlp_sizes_counted_by_hand() -> None:
    convolutions, norms = 9 * (1 * 16 + 16 * 32 + 32 * 64), 2 * (16 + 32 + 64)
    assert size(small_cnn(seed=0)) == convolutions + norms + 64 * 10 + 10
    assert size(mlp(20, 3, hidden=(8, 5), seed=0)) == (20 * 8 + 8) + (8 * 5 + 5) + (5 * 3 + 3)
    assert size(mlp(20, 3, hidden=(), seed=0)) == 20 * 3 + 3


@pytest.mark.parametrize(
    ("name", "stem", "stages", "side"),
    [
        ("resnet32", 16, ((5, 16), (5, 32), (5, 64)), 32),
        ("preact_resnet18", 64, ((2, 64), (2, 128), (2, 256), (2, 512)), 8),
        ("preact_resnet34", 64, ((3, 64), (4, 128), (6, 256), (3, 512)), 8),
        ("wide_resnet28_10", 16, ((4, 160), (4, 320), (4, 640)), 4),
    ],
)
@torch.no_grad()
def test_pre_activation_forward_written_out(
    name: str, stem: int, stages: tuple[tuple[int, int], ...], side: int
) -> None:
    model = with_used_statistics(built(name))
    convs = iter([m for m in model.modules() if isinstance(m, nn.Conv2d)])
    norms = iter([m for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
    x = images(2, (2, side, side))
    h, last_width = functional.conv2d(x, next(convs).weight, padding=1), stem
    for stage, (depth, width) in enumerate(stages):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            a = norm_relu(h, next(norms))
            b = functional.conv2d(a, next(convs).weight, stride=stride, padding=1)
            b = functional.conv2d(norm_relu(b, next(norms)), next(convs).weight, padding=1)
            h = b + (functional.conv2d(a, next(convs).weight, stride=stride) if width != last_width else h)
            last_width = width
            assert h.shape == (2, width, side >> stage, side >> stage)
    head = list(model.modules())[-1]
    assert isinstance(head, nn.Linear)
    expected = norm_relu(h, next(norms)).mean((2, 3)) @ head.weight.T + head.bias
    assert next(convs, None) is None
    assert next(norms, None) is None
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@torch.no_grad()
def test_small_cnn_forward_written_out() -> None:
    model = with_used_statistics(small_cnn(seed=0))
    assert isinstance(model, nn.Sequential)
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    x = images(2, (1, 28, 28))
    h = x
    for conv, norm, side in zip(convs, norms, (14, 7, 7), strict=True):
        h = norm_relu(functional.conv2d(h, conv.weight, padding=1), norm)
        if norm is not norms[-1]:
            h = functional.max_pool2d(h, 2)
        assert h.shape[2:] == (side, side)
    head = model[-1]
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(model(x), h.mean((2, 3)) @ head.weight.T + head.bias, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_mlp_forward_written_out() -> None:
    model = mlp(12, 3, hidden=(6, 5), seed=0)
    linears = [m for m in model if isinstance(m, nn.Linear)]
    x = images(4, (3, 2, 2))
    h = x.reshape(4, 12)
    for linear in linears[:-1]:
        h = (h @ linear.weight.T + linear.bias).clamp(min=0)
    torch.testing.assert_close(model(x), h @ linears[-1].weight.T + linears[-1].bias)


@pytest.mark.parametrize("model", [resnet32(seed=0), small_cnn(seed=0)], ids=["resnet32", "small_cnn"])
def test_convolutions_start_he_normal(model: nn.Sequential) -> None:
    for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
        n, fan_out = conv.weight.numel(), conv.out_channels * math.prod(conv.kernel_size)
        expected = math.sqrt(2 / fan_out)
        # The standard deviation of n normal draws is known to about 1 / sqrt(2 n) of itself.
        assert abs(float(conv.weight.detach().std()) / expected - 1) < 5 / math.sqrt(2 * n)


# Forward mode makes torch 2.13 compile rules with a function of its own that it has deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("name", "factory", "shape"), CASES, ids=IDS)
def test_forward_mode_derivative_agrees_with_reverse_mode(name: str, factory: Factory, shape: tuple[int, ...]) -> None:
    model = factory(0).double()
    x = images(4, shape)[..., :8, :8].double()  # cropped for speed
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    generator = torch.Generator().manual_seed(2)
    direction = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()}
    weights = torch.randn(4, 7, generator=generator, dtype=torch.float64)

    def loss(params: dict[str, Tensor]) -> Tensor:
        # Copies of the buffers: BatchNorm in training mode updates them in place.
        state = {name: b.clone() for name, b in buffers.items()}
        logits: Tensor = torch.func.functional_call(model, {**params, **state}, (x,))
        return (logits * weights).sum()

    tangent = torch.func.jvp(loss, (parameters,), (direction,))[1]
    leaves = {name: p.requires_grad_() for name, p in parameters.items()}
    gradients = torch.autograd.grad(loss(leaves), list(leaves.values()))
    expected = sum((g * direction[name]).sum() for name, g in zip(leaves, gradients, strict=True))
    torch.testing.assert_close(tangent, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: resnet32(0), "num_classes is 0; expected 1 or more: pass the size of the data"),
        (
            lambda: small_cnn(3, in_channels=-1),
            "in_channels is -1; expected 1 or more: pass the size of the data",
        ),
        (lambda: mlp(0, 3), "in_features is 0; expected 1 or more: pass the size of the data"),
        (lambda: mlp(4, 3, hidden=(5, 0)), "hidden is 0; expected 1 or more: pass the size of the data"),
        (lambda: resnet18(0), "num_classes is 0; expected 1 or more: pass the size of the data"),
        (lambda: resnet50(in_channels=0), "in_channels is 0; expected 1 or more: pass the size of the data"),
        (lambda: vgg19_bn(-2), "num_classes is -2; expected 1 or more: pass the size of the data"),
        (lambda: wide_resnet28_10(0), "num_classes is 0; expected 1 or more: pass the size of the data"),
        (
            lambda: wide_resnet28_10(dropout=1.0),
            "dropout is 1.0; expected 0 or more and below 1: pass a share, such as 0.3",
        ),
    ],
)
def test_errors(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()
