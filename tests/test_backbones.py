"""The classifiers: sizes counted by hand, forward passes written out, seeded initialisation, names and files."""

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import vri.backbones
from vri import VRI
from vri.backbones import (
    BACKBONES,
    BasicBlock,
    Bottleneck,
    build,
    load_weights,
    mlp,
    preact_resnet18,
    preact_resnet34,
    resnet18,
    resnet32,
    resnet34,
    resnet50,
    small_cnn,
    vgg19_bn,
    wide_resnet28_10,
)
from vri.classifier import find_head

Factory = Callable[[int | None], nn.Sequential]
CASES: list[tuple[str, Factory, tuple[int, ...]]] = [
    ("resnet32", lambda seed: resnet32(7, seed=seed), (3, 32, 32)),
    ("small_cnn", lambda seed: small_cnn(7, seed=seed), (1, 28, 28)),
    ("small_cnn", lambda seed: small_cnn(7, in_channels=2, seed=seed), (2, 8, 8)),
    ("mlp", lambda seed: mlp(48, 7, seed=seed), (3, 4, 4)),
]
IDS = ["resnet32", "small_cnn 28", "small_cnn 8", "mlp"]


def images(n: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def built() -> Callable[[str], nn.Module]:
    """Networks built once, for tests that don't mind what BatchNorm has seen."""
    return cache(lambda name: BACKBONES[name](7, 2, seed=3))


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


def with_used_statistics(model: nn.Module) -> nn.Module:
    """Give BatchNorm statistics and weights other than 0 and 1, so that a misplaced norm shows."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
            nn.init.uniform_(module.weight, 0.5, 1.5, generator=generator)
            nn.init.normal_(module.bias, generator=generator)
    return model.eval()


def norm_relu(x: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, nn.BatchNorm2d)
    mean, var = norm.running_mean, norm.running_var
    return functional.batch_norm(x, mean, var, norm.weight, norm.bias).clamp(min=0)


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
    name: str, stem: int, stages: tuple[tuple[int, int], ...], side: int, built: Callable[[str], nn.Module]
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


# larger networks


LARGE = [
    "resnet18",
    "resnet34",
    "preact_resnet18",
    "preact_resnet34",
    "wide_resnet28_10",
    "resnet50",
    "vgg19_bn",
]


def on_meta(factory: Callable[..., nn.Module], *args: int) -> nn.Module:
    """Shapes without numbers: enough to count with, and quick."""
    with torch.device("meta"):
        return factory(*args)


def pre_activation_size(stem: int, stages: tuple[tuple[int, int], ...], classes: int) -> int:
    total, width = 27 * stem, stem
    for depth, out in stages:
        for _ in range(depth):
            total += 2 * width + 9 * width * out + 2 * out + 9 * out * out + (width * out if width != out else 0)
            width = out
    return total + 2 * width + width * classes + classes


@pytest.mark.parametrize(
    ("factory", "classes", "expected"),
    [
        (resnet18, 10, 11_173_962),
        (resnet34, 10, 21_282_122),
        # Where the last BatchNorm is left out it has 11,171,146.
        (preact_resnet18, 10, 11_171_146 + 2 * 512),
        (preact_resnet34, 10, pre_activation_size(64, ((3, 64), (4, 128), (6, 256), (3, 512)), 10)),
        (wide_resnet28_10, 10, 36_479_194),
        (wide_resnet28_10, 100, 36_536_884),
        (resnet50, 1000, 25_557_032),
        # 143,678,248 with the head for ImageNet, of 25088 x 4096, 4096 x 4096 and 4096 x 1000.
        (vgg19_bn, 10, 143_678_248 - 25_089 * 4096 - 4097 * 4096 - 4097 * 1000 + 513 * 10),
    ],
)
def test_known_sizes(factory: Callable[..., nn.Module], classes: int, expected: int) -> None:
    assert size(on_meta(factory, classes)) == expected


def test_known_sizes_counted_by_hand() -> None:
    assert pre_activation_size(64, ((2, 64), (2, 128), (2, 256), (2, 512)), 10) == 11_171_146 + 2 * 512
    assert pre_activation_size(16, ((4, 160), (4, 320), (4, 640)), 10) == 36_479_194
    widths = [3, *[64] * 2, *[128] * 2, *[256] * 4, *[512] * 8]
    convolutions = sum(9 * a * b + b + 2 * b for a, b in pairwise(widths))
    assert convolutions == 20_035_392
    assert size(on_meta(vgg19_bn)) == convolutions + 513 * 10


@pytest.mark.parametrize(
    ("factory", "side", "expected"),  # multiplications and additions, in units of 10^9
    [
        (resnet18, 32, 0.56),
        (resnet34, 32, 1.16),
        (preact_resnet18, 32, 0.56),
        (preact_resnet34, 32, 1.16),
        (wide_resnet28_10, 32, 5.24),
        (resnet50, 224, 4.09),
        (vgg19_bn, 224, 19.51),  # without the head for ImageNet, which has 0.12 of the 19.63
    ],
)
def test_known_amounts_of_work(factory: Callable[..., nn.Module], side: int, expected: float) -> None:
    model = on_meta(factory, 10).eval()
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, side, side, device="meta"))
    assert counter.get_total_flops() / 2e9 == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_train_and_show_their_features(name: str, built: Callable[[str], nn.Module]) -> None:
    model = built(name).train()
    head, width = find_head(model, 7)
    assert head is not None
    layer = list(model.modules())[-1]
    assert model.get_submodule(head) is layer
    assert width == {"wide_resnet28_10": 640, "resnet50": 2048}.get(name, 512)
    seen: list[Tensor] = []
    with layer.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
        logits = model(images(2, (2, 32, 32) if name in ("resnet50", "vgg19_bn") else (2, 8, 8)))
    assert logits.shape == (2, 7)
    assert seen[0].shape == (2, width)
    functional.cross_entropy(logits, torch.tensor([1, 4])).backward()
    norms = [float(p.grad.norm()) for n, p in model.named_parameters() if p.grad is not None and p.ndim > 1]
    assert len(norms) == sum(p.ndim > 1 for p in model.parameters())
    assert min(norms) > 0
    model.zero_grad()


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18", "resnet50", "vgg19_bn"])
def test_large_ones_by_name_and_seed(name: str, built: Callable[[str], nn.Module]) -> None:
    state = torch.get_rng_state()
    again = build(name, num_classes=7, in_channels=2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    pairs = [p for p in zip(built(name).parameters(), again.parameters(), strict=True) if p[0].ndim > 1]
    assert all(torch.equal(a, b) and float(a.detach().std()) > 0 for a, b in pairs)


def statistics(norm: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(norm, nn.BatchNorm2d)
    return functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


@torch.no_grad()
def test_post_activation_forward_written_out(built: Callable[[str], nn.Module]) -> None:
    model = with_used_statistics(built("resnet18"))
    layers = dict(model.named_modules())

    def conv(name: str, h: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
        return functional.conv2d(h, layers[name].weight, stride=stride, padding=padding)

    x = images(2, (2, 16, 16))
    h = statistics(layers["bn1"], conv("conv1", x)).clamp(min=0)
    for stage, side in ((1, 16), (2, 8), (3, 4), (4, 2)):
        for block in range(2):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            shortcut = h
            if stride == 2:
                shortcut = statistics(layers[f"{at}.downsample.1"], conv(f"{at}.downsample.0", h, 2, 0))
            a = statistics(layers[f"{at}.bn1"], conv(f"{at}.conv1", h, stride)).clamp(min=0)
            h = (statistics(layers[f"{at}.bn2"], conv(f"{at}.conv2", a)) + shortcut).clamp(min=0)
            assert h.shape[2:] == (side, side)
    expected = h.mean((2, 3)) @ layers["fc"].weight.T + layers["fc"].bias
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@torch.no_grad()
def test_resnet50_forward_written_out(built: Callable[[str], nn.Module]) -> None:
    model = with_used_statistics(built("resnet50"))
    layers = dict(model.named_modules())

    def conv(name: str, h: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
        return functional.conv2d(h, layers[name].weight, stride=stride, padding=padding)

    x = images(1, (2, 64, 64))
    h = statistics(layers["bn1"], conv("conv1", x, 2, 3)).clamp(min=0)
    h = functional.max_pool2d(h, 3, 2, padding=1)
    for stage, depth in ((1, 3), (2, 4), (3, 6), (4, 3)):
        for block in range(depth):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            shortcut = h
            if block == 0:
                shortcut = statistics(layers[f"{at}.downsample.1"], conv(f"{at}.downsample.0", h, stride))
            a = statistics(layers[f"{at}.bn1"], conv(f"{at}.conv1", h)).clamp(min=0)
            a = statistics(layers[f"{at}.bn2"], conv(f"{at}.conv2", a, stride, 1)).clamp(min=0)
            h = (statistics(layers[f"{at}.bn3"], conv(f"{at}.conv3", a)) + shortcut).clamp(min=0)
        assert h.shape == (1, 256 * 2 ** (stage - 1), 32 >> stage, 32 >> stage)
    expected = h.mean((2, 3)) @ layers["fc"].weight.T + layers["fc"].bias
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@torch.no_grad()
def test_vgg19_forward_written_out(built: Callable[[str], nn.Module]) -> None:
    model = with_used_statistics(built("vgg19_bn"))
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    x = h = images(1, (2, 64, 64))
    for number, (conv, norm) in enumerate(zip(convs, norms, strict=True), 1):
        assert conv.bias is not None
        assert not conv.bias.any()
        h = norm_relu(functional.conv2d(h, conv.weight, padding=1), norm)
        if number in (2, 4, 8, 12, 16):
            h = functional.max_pool2d(h, 2)
    assert h.shape == (1, 512, 2, 2)
    head = list(model.modules())[-1]
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(model(x), h.mean((2, 3)) @ head.weight.T + head.bias, rtol=1e-4, atol=1e-5)


def test_dropout_of_the_wide_network_stands_between_the_convolutions() -> None:
    plain, dropping = on_meta(wide_resnet28_10), None
    with torch.device("meta"):
        dropping = wide_resnet28_10(dropout=0.3)
    assert [m.p for m in dropping.modules() if isinstance(m, nn.Dropout)] == [0.3] * 12
    assert not any(isinstance(m, nn.Dropout) for m in plain.modules())
    assert list(plain.state_dict()) == list(dropping.state_dict())
    block = vri.backbones.PreActBlock(2, 3, 1, dropout=0.999)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        x = images(2, (2, 4, 4))
        shortcut = functional.conv2d(norm_relu_in_training(x, block.norm1), block.shortcut.weight)
        # Nearly all values dropped before the second convolution: the shortcut alone is left.
        agree = (block(x) - shortcut).abs() < 1e-6
    assert float(agree.double().mean()) > 0.5


def norm_relu_in_training(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    return functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True).clamp(min=0)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_tangent_pass_through_post_activation_blocks_is_double_backpropagation(block: Any) -> None:
    def weights_after_a_step(hypergradient: str) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            width = 6 * block.expansion
            layers = [block(2, 4, 1), block(4 * block.expansion, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            model = nn.Sequential(*layers, nn.Linear(width, 3)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        options: dict[str, Any] = {"hidden": (8,), "label_dim": 4, "meta_every": 1, "generator": generator}
        method = VRI(model, 3, optimizer, hypergradient=hypergradient, meta_lr=0.1, **options)
        method.meta_optimizer = torch.optim.SGD(method.meta_optimizer.param_groups[0]["params"], lr=10.0)
        draw = torch.Generator().manual_seed(2)
        noisy, clean = (
            (torch.randn(6, 2, 8, 8, generator=draw).double(), torch.randint(3, (6,), generator=draw)) for _ in range(2)
        )
        before = [p.detach().clone() for p in method.meta_network.parameters()]
        method.step(noisy, clean)
        after = list(method.meta_network.parameters())
        assert any(not torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(before, after, strict=True))
        return [p.detach() for p in [*model.parameters(), *after]]

    for tangent, double in zip(weights_after_a_step("jvp"), weights_after_a_step("backprop"), strict=True):
        torch.testing.assert_close(tangent, double, rtol=1e-10, atol=1e-12)


# files of weights


class Tiny(nn.Module):
    """Some of the names of ResNet-50, and quick to save."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3, fill: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 4, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, num_classes)
        for tensor in [*self.parameters(), self.bn1.running_mean]:
            nn.init.constant_(tensor, fill)

    def values(self) -> dict[str, float]:
        return {name: float(tensor.double().mean()) for name, tensor in self.state_dict().items()}


def saved(folder: Path, content: Any, name: str = "weights.pth") -> Path:
    torch.save(content, folder / name)
    return folder / name


HOW = (
    "for resnet50 fetch https://download.pytorch.org/models/resnet50-0676ba61.pth (or resnet50-11ad3fa6.pth) where "
    "there is internet, or save timm's there: "
    "torch.save(timm.create_model('resnet50', pretrained=True).state_dict(), 'resnet50.pth')"
)


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    model, given = Tiny(fill=1.0), Tiny(fill=2.0)
    load_weights(model, saved(tmp_path, given.state_dict()))
    assert model.values() == given.values()


def test_weights_of_another_number_of_classes_leave_the_last_layer_alone(tmp_path: Path) -> None:
    model = Tiny(num_classes=5, fill=1.0)
    load_weights(model, str(saved(tmp_path, Tiny(num_classes=1000, fill=2.0).state_dict())))
    found = model.values()
    assert [found[n] for n in ("conv1.weight", "bn1.running_mean", "fc.weight", "fc.bias")] == [2.0, 2.0, 1.0, 1.0]


def test_weights_from_before_batch_norm_counted(tmp_path: Path) -> None:
    state = Tiny(fill=2.0).state_dict()
    del state["bn1.num_batches_tracked"]
    model = Tiny(fill=1.0)
    load_weights(model, saved(tmp_path, dict(state)))
    assert model.values()["fc.bias"] == 2.0


def test_weights_in_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    safetensors.save_file(Tiny(fill=2.0).state_dict(), path)
    model = Tiny(fill=1.0)
    load_weights(model, path)
    assert model.values()["conv1.weight"] == 2.0
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match="safetensors") as caught:
        load_weights(model, path)
    assert str(caught.value).startswith(f"{path} needs the package safetensors, which can't be imported (")
    assert str(caught.value).endswith("); pip install safetensors, or pass a .pth file")


def test_resnet50_begins_from_the_weights_of_a_larger_head(tmp_path: Path, built: Callable[[str], nn.Module]) -> None:
    shapes = {name: tensor.shape for name, tensor in on_meta(resnet50, 1000, 2).state_dict().items()}
    # One number each, stretched: the file stays small.
    given = {name: torch.tensor(float(number)).expand(shape) for number, (name, shape) in enumerate(shapes.items())}
    model = resnet50(7, 2, seed=3, weights=saved(tmp_path, given, "resnet50.pth"))
    for number, (name, tensor) in enumerate(model.state_dict().items()):
        if name.startswith("fc."):
            assert torch.equal(tensor, built("resnet50").state_dict()[name])  # as the seed has it
        else:
            assert (tensor == number).all()


def test_names_of_resnet50_are_those_of_the_files() -> None:
    names = list(on_meta(resnet50, 1000).state_dict())
    assert len(names) == 320  # as in torchvision's and timm's files
    assert names[:6] == ["conv1.weight", *(f"bn1.{n}" for n in NORM)]
    block = [f"layer1.0.{part}" for k in (1, 2, 3) for part in (f"conv{k}.weight", *(f"bn{k}.{n}" for n in NORM))]
    assert names[6 : 6 + len(block)] == block
    shortcut = ["layer1.0.downsample.0.weight", *(f"layer1.0.downsample.1.{n}" for n in NORM)]
    assert names[6 + len(block) : 6 + len(block) + len(shortcut)] == shortcut
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert "layer3.5.bn3.running_var" in names


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class Runs:
    """Unpickled by anything but a careful reader, it would run a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code ran",)


def test_weights_are_read_without_running_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="can't be read") as caught:
        load_weights(Tiny(), path := saved(tmp_path, {"conv1.weight": Runs()}))
    assert str(caught.value).startswith(f"the weights in {path} can't be read (UnpicklingError: ")
    assert str(caught.value).endswith(f"; expected a state dict, whole and without code: {HOW}")
    assert capsys.readouterr().out == ""


def test_cut_off_weights(tmp_path: Path) -> None:
    path = saved(tmp_path, Tiny().state_dict())
    path.write_bytes(path.read_bytes()[:500])
    model = Tiny(fill=1.0)
    with pytest.raises(ValueError, match=f"^the weights in {re.escape(str(path))} can't be read "):
        load_weights(model, path)
    assert model.values()["fc.bias"] == 1.0


def without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n: t for n, t in state.items() if n != name}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda s: without(s, "bn1.weight"),
            "1 of the model's names are not in it (bn1.weight)",
        ),
        (
            lambda s: {**s, "layer9.weight": torch.ones(2)},
            "1 of its names are not in the model (layer9.weight)",
        ),
        (
            lambda s: {f"module.{n}": t for n, t in s.items()},
            "7 of the model's names are not in it (bn1.bias, bn1.running_mean, bn1.running_var, ...); "
            "8 of its names are not in the model (module.bn1.bias, module.bn1.num_batches_tracked, "
            "module.bn1.running_mean, ...)",
        ),
        (
            lambda s: {**s, "conv1.weight": torch.ones(4, 1, 3, 3)},
            "1 shapes differ (conv1.weight is (4, 1, 3, 3) and not (4, 3, 3, 3))",
        ),
    ],
    ids=["missing", "unknown", "prefixed", "shape"],
)
def test_weights_of_another_model(tmp_path: Path, change: Callable[[Any], Any], problem: str) -> None:
    path, model = saved(tmp_path, change(dict(Tiny(fill=2.0).state_dict()))), Tiny(fill=1.0)
    before = model.values()
    with pytest.raises(ValueError, match="not for this model") as caught:
        load_weights(model, path)
    assert str(caught.value) == (
        f"the weights in {path} are not for this model: {problem}; "
        f"expected the state dict of the same architecture: {HOW}"
    )
    assert model.values() == before


def test_weights_that_are_not_there_or_no_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "none.pth"
    with pytest.raises(FileNotFoundError) as absent:
        load_weights(Tiny(), path)
    assert str(absent.value) == f"no file with weights at {path}; expected a state dict: {HOW}"
    path = saved(tmp_path, {"state_dict": dict(Tiny().state_dict()), "epoch": 3})
    with pytest.raises(ValueError, match="state dict") as nested:
        load_weights(Tiny(), path)
    assert str(nested.value) == (
        f"{path} holds a dict of 'state_dict', 'epoch'; expected a state dict, names to tensors: "
        "save model.state_dict() itself"
    )


# names


def test_build_gives_the_mlp_its_inputs() -> None:
    model = build("mlp", num_classes=3, in_channels=2, image_size=5, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), mlp(50, 3, seed=4).parameters(), strict=True))
    with pytest.raises(ValueError, match=r"^backbone 'mlp' needs image_size, the side of the images; it is None: "):
        build("mlp", num_classes=3)


def test_build_loads_weights_into_any_model(tmp_path: Path) -> None:
    path = saved(tmp_path, small_cnn(10, 3, seed=1).state_dict())
    model = build("small_cnn", num_classes=4, in_channels=3, seed=2, weights=path)
    assert torch.equal(model.state_dict()["0.weight"], small_cnn(10, 3, seed=1).state_dict()["0.weight"])
    assert torch.equal(model.state_dict()["13.weight"], small_cnn(4, 3, seed=2).state_dict()["13.weight"])


def test_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="resnet50") as caught:
        build("resnet-50", num_classes=3)
    assert str(caught.value) == (
        "backbone is 'resnet-50'; expected one of resnet32, small_cnn, mlp, resnet18, resnet34, preact_resnet18, "
        "preact_resnet34, wide_resnet28_10, resnet50, vgg19_bn, timm:NAME, torchvision:NAME or "
        "module:package.module.factory: did you mean 'resnet50'?"
    )


def library(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def convnet(num_classes: int, in_chans: int = 3, pretrained: bool = False) -> nn.Module:
    assert not pretrained
    return nn.Sequential(nn.Conv2d(in_chans, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))


def vit(num_classes: int, in_chans: int = 3, pretrained: bool = False, img_size: int = 224) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * img_size**2, num_classes))


def test_models_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: dict[str, Callable[..., nn.Module]] = {"tinynet_a": convnet, "vit_tiny": vit}
    library(
        monkeypatch,
        "timm",
        create_model=lambda name, **options: makers[name](**options),
        list_models=lambda: list(makers),
    )
    state = torch.get_rng_state()
    model = build("timm:tinynet_a", num_classes=3, in_channels=2, image_size=8, seed=1)
    assert model(images(2, (2, 8, 8))).shape == (2, 3)
    again = build("timm:tinynet_a", num_classes=3, in_channels=2, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    sized = build("timm:vit_tiny", num_classes=3, image_size=8, seed=1)
    assert sized(images(2, (3, 8, 8))).shape == (2, 3)
    with pytest.raises(ValueError, match="timm") as caught:
        build("timm:tinynet_b", num_classes=3)
    assert str(caught.value) == (
        "timm has no model 'tinynet_b'; expected one of its 2 models: did you mean 'timm:tinynet_a'?"
    )


def test_models_of_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, *, weights: None, num_classes: int) -> nn.Module:
        assert (name, weights) == ("tinynet", None)
        return convnet(num_classes)

    models = SimpleNamespace(get_model=get_model, list_models=lambda module: ["tinynet"] if module is models else [])
    library(monkeypatch, "torchvision", models=models)
    model = build("torchvision:tinynet", num_classes=4, image_size=8, seed=1)
    assert model(images(2, (3, 8, 8))).shape == (2, 4)
    with pytest.raises(ValueError, match="channels") as caught:
        build("torchvision:tinynet", num_classes=4, in_channels=1)
    assert str(caught.value) == (
        "torchvision:tinynet takes images of 3 channels, and in_channels is 1; "
        "repeat or convert the channels, or take a model of timm or of this package"
    )


def test_an_error_inside_a_library_is_not_taken_for_an_unknown_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, **options: Any) -> nn.Module:
        if "img_size" in options:
            raise TypeError("something else")
        return nn.Linear(2, 3)

    library(monkeypatch, "timm", create_model=create_model, list_models=lambda: ["a"])
    with pytest.raises(TypeError, match=r"^something else$"):
        build("timm:a", num_classes=3, image_size=8)


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_library_that_is_not_installed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=package) as caught:
        build(f"{package}:resnet50", num_classes=3)
    assert str(caught.value) == (
        f"{package}:resnet50 needs the package {package}, which can't be imported "
        f"(import of {package} halted; None in sys.modules); pip install {package}"
    )


MODELS = """
from torch import nn

NUMBER = 3

def plain(num_classes):
    return nn.Linear(4, num_classes)

def full(num_classes, in_channels, image_size, seed):
    model = nn.Linear(in_channels * image_size ** 2, num_classes)
    model.seed = seed
    return model

class Net(nn.Linear):
    def __init__(self, num_classes, **others):
        assert not others
        super().__init__(4, num_classes)

def lost(num_classes):
    return "a model"

def stubborn(classes):
    return nn.Linear(4, classes)
"""


@pytest.fixture
def my_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "models_of_a_test.py").write_text(MODELS)
    (tmp_path / "broken_models_of_a_test.py").write_text("import not_a_module_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    yield "models_of_a_test"
    sys.modules.pop("models_of_a_test", None)


def test_factories_of_the_user(my_models: str) -> None:
    plain, again = (build(f"module:{my_models}.plain", num_classes=5, seed=2) for _ in range(2))
    assert torch.equal(plain.weight, again.weight)
    full = build(f"module:{my_models}.full", num_classes=5, in_channels=2, image_size=3, seed=2)
    assert (full.in_features, full.out_features, full.seed) == (18, 5, 2)
    assert build(f"module:{my_models}.Net", num_classes=5, in_channels=2).out_features == 5


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        (
            "factory",
            ValueError,
            "module:factory does not name a factory; expected module:package.module.factory, such as "
            "module:my_models.make",
        ),
        (
            "no_such_models.make",
            ImportError,
            "module:no_such_models.make: no_such_models can't be imported (No module named 'no_such_models'); "
            "expected module:package.module.factory: check the name, and that its folder is on PYTHONPATH",
        ),
        (
            "broken_models_of_a_test.make",
            ImportError,
            "module:broken_models_of_a_test.make: broken_models_of_a_test can't be imported "
            "(No module named 'not_a_module_at_all'); "
            "expected module:package.module.factory: check the name, and that its folder is on PYTHONPATH",
        ),
        (
            "models_of_a_test.fulll",
            ValueError,
            "module:models_of_a_test.fulll: models_of_a_test has no 'fulll'; "
            "expected module:package.module.factory: did you mean 'full'?",
        ),
        (
            "models_of_a_test.NUMBER",
            TypeError,
            "module:models_of_a_test.NUMBER is a int; expected a function or class to call",
        ),
        (
            "models_of_a_test.lost",
            TypeError,
            "module:models_of_a_test.lost returns a str; expected an nn.Module that gives logits",
        ),
        (
            "models_of_a_test.stubborn",
            TypeError,
            "module:models_of_a_test.stubborn takes (classes); expected an argument num_classes: add it",
        ),
    ],
)
def test_factories_that_are_none(my_models: str, path: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        build(f"module:{path}", num_classes=3)
