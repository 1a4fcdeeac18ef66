"""The classifiers of the paper that are too large to play with: sizes, amounts of work, forward passes written out."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import vri.backbones
from classifiers import built, images, norm_relu, on_meta, size, with_used_statistics
from vri import VRI
from vri.backbones import (
    BasicBlock,
    Bottleneck,
    build,
    preact_resnet18,
    preact_resnet34,
    resnet18,
    resnet34,
    resnet50,
    vgg19_bn,
    wide_resnet28_10,
)
from vri.core.model import find_head

LARGE = [
    "resnet18",
    "resnet34",
    "preact_resnet18",
    "preact_resnet34",
    "wide_resnet28_10",
    "resnet50",
    "vgg19_bn",
]


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
def test_large_ones_train_and_show_their_features(name: str) -> None:
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
def test_large_ones_by_name_and_seed(name: str) -> None:
    state = torch.get_rng_state()
    again = build(name, num_classes=7, in_channels=2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    pairs = [p for p in zip(built(name).parameters(), again.parameters(), strict=True) if p[0].ndim > 1]
    assert all(torch.equal(a, b) and float(a.detach().std()) > 0 for a, b in pairs)


def statistics(norm: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(norm, nn.BatchNorm2d)
    return functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


@torch.no_grad()
def test_post_activation_forward_written_out() -> None:
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
def test_resnet50_forward_written_out() -> None:
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
def test_vgg19_forward_written_out() -> None:
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
