"""The rules for a cheaper tangent pass against PyTorch's own forward mode."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn

from vri import VRI
from vri.backbones import resnet32
from vri.backbones.residual import BasicBlock
from vri.core import bilevel
from vri.core.tangents import Kept, Record, Replay


class Residual(nn.Module):
    """Writes over the output of a convolution, as many residual networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        out += x
        return out


class Shared(nn.Module):
    """One convolution, twice, on inputs of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.conv(x).tanh()) * self.conv(x)


class Shortcut(nn.Module):
    """Normalises the sum with a shortcut, not the convolution's own output, as a pre-activation block does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.norm(x).relu())


class Twice(nn.Module):
    """Uses the output of a convolution in a sum, and on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return (x + out).tanh() * out.sigmoid()


class WrittenOver(nn.Module):
    """Adds the output of a convolution, then writes over it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        total = x + out
        out *= 2
        return total + out


class ByKeyword(nn.Module):
    """Calls the function in a way the rule does not cover."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.conv.weight, bias=self.conv.bias)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "stride, groups, dilation": lambda: nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, groups=2), nn.Tanh(), nn.Conv2d(8, 4, 3, dilation=2, padding="same", bias=False)
    ),
    "ReLU in place": lambda: nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
    ),
    "sum in place": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), Residual(), nn.BatchNorm2d(4), Residual()),
    "shortcuts": lambda: nn.Sequential(Shortcut(), Shortcut(), Shortcut(), nn.BatchNorm2d(4)),
    "a sum and its term": lambda: nn.Sequential(Twice(), Twice(), nn.BatchNorm2d(4)),
    "a term written over": lambda: nn.Sequential(WrittenOver(), nn.BatchNorm2d(4), WrittenOver(), nn.ReLU()),
    "post-activation": lambda: nn.Sequential(BasicBlock(4, 4, 1), BasicBlock(4, 6, 2), BasicBlock(6, 6, 1)),
    "linear": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(324, 8), nn.ReLU(), nn.Linear(8, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)
    ),
    "linear on every pixel": lambda: nn.Sequential(nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 2)),
    "shared": Shared,
    "by keyword": lambda: nn.Sequential(nn.Conv2d(4, 4, 3), ByKeyword(), nn.Conv2d(4, 4, 3)),
    "circular padding": lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
    "one dimension": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.Conv1d(4, 2, 1)),
    "three dimensions": lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv3d(1, 3, 3, padding=1)),
}


def build(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]().double()


def images() -> Tensor:
    return torch.randn(5, 4, 9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tangent(model: nn.Module, trained: str, mode: Replay | None) -> tuple[Tensor, Tensor]:
    """Output and derivative when the parameters whose name contains `trained` move by one everywhere."""
    names = [n for n, _ in model.named_parameters() if trained in n]
    with torch.no_grad(), forward_ad.dual_level():
        moved = {n: p.detach() for n, p in model.named_parameters()}
        moved |= {n: forward_ad.make_dual(moved[n], torch.ones_like(moved[n])) for n in names}
        if mode is None:
            out = torch.func.functional_call(model, moved, images())
        else:
            with mode:
                out = torch.func.functional_call(model, moved, images())
        return forward_ad.unpack_dual(out)


@pytest.mark.parametrize("trained", ["", "weight", "bias"])
@pytest.mark.parametrize("name", MODELS)
def test_replay_is_forward_mode(name: str, trained: str) -> None:
    model = build(name)
    with Record() as record:
        output = model(images())
    assert record.kept
    before = [None if k.output is None else k.output.clone() for k in record.kept]  # None: overwritten
    expected, expected_dot = tangent(build(name), trained, None)
    found, found_dot = tangent(model, trained, Replay(record.kept))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if expected_dot is None:
        assert found_dot is None
    else:
        torch.testing.assert_close(found_dot, expected_dot, rtol=1e-12, atol=1e-12)
    # nothing that the training forward holds was written over: its backward still works
    for kept, was in zip(record.kept, before, strict=True):
        assert kept.output is None if was is None else torch.equal(kept.output, was)
    output.sum().backward()


def convolutions_run(model: nn.Module, kept: list[Kept]) -> int:
    """How many convolutions the tangent pass computes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        tangent(model, "", Replay(kept))
    return sum(event.count for event in profile.key_averages() if event.key == "aten::_convolution")


def test_a_kept_output_is_not_computed_again() -> None:
    model = build("stride, groups, dilation")
    with Record() as record:
        model(images())
    # the first convolution: the term of its weight; the second: both terms
    assert convolutions_run(model, record.kept) == 3
    assert convolutions_run(model, []) >= 5


def test_values_that_nobody_needs_are_not_computed() -> None:
    """Of a pre-activation block: BatchNorm's output goes into a ReLU, the convolution's into a sum that is there."""
    model = nn.Sequential(Shortcut(), Shortcut(), Shortcut(), nn.BatchNorm2d(4)).double()
    with Record() as record:
        output = model(images())
    assert output.requires_grad
    assert [kept.unneeded for kept in record.kept] == [*[True, False, True, False] * 3, False]
    assert all(kept.held is not None for kept in record.kept if not kept.unneeded)
    assert convolutions_run(model, record.kept) == 6  # two terms each
    assert convolutions_run(model, []) >= 9


class Wavering(nn.Module):
    """Goes another way when it runs again."""

    def __init__(self, ways: tuple[Callable[[Tensor], Tensor], ...]) -> None:
        super().__init__()
        self.norm, self.fc, self.ways = nn.BatchNorm1d(6), nn.Linear(6, 3), list(ways)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.ways.pop(0)(self.norm(x)))


@pytest.mark.parametrize(
    "second",
    [lambda x: x.tanh().relu(), lambda x: x.mul(2).relu(), torch.tanh, lambda x: torch.cat([x]).relu(), lambda x: x],
)
def test_a_forward_that_goes_another_way_is_run_again_as_it_is(second: Callable[[Tensor], Tensor]) -> None:
    """What was left out because the first forward did not need it must not be read in the second."""
    found, x, y = [], torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(8) % 3
    for within in (Replay, lambda kept: Replay()):
        torch.manual_seed(0)
        ways = (torch.relu, second, second, second) if within is Replay else (torch.relu, second, second)
        model = nn.Sequential(nn.Linear(4, 6), Wavering(ways)).double()
        method = VRI(model, 3, torch.optim.SGD(model.parameters(), lr=0.1), meta_every=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bilevel, "Replay", lambda kept=(), within=within: within(kept))
            found.append(method.step((x, y), (x, y))["meta_gradient"])
        assert model[1].ways == []
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-9)


def test_a_record_of_another_model_is_not_believed() -> None:
    other, model = build("stride, groups, dilation"), build("stride, groups, dilation")
    with torch.no_grad():
        other[0].weight.mul_(3)
    with Record() as record:
        other(images())
    for found, expected in zip(tangent(model, "", Replay(record.kept)), tangent(model, "", None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_meta_gradient_in_bfloat16_points_the_same_way() -> None:
    """ResNet-32 under autocast, against float32: rounding turns it by a little, a wrong rule would turn it by a lot."""

    class Recorder(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.0)

        def step(self, closure: Any = None) -> None:
            self.gradient = torch.cat([p.grad.flatten() for group in self.param_groups for p in group["params"]])

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 3, 16, 16, generator=generator), torch.randint(10, (24,), generator=generator)
    found = []
    for autocast in (None, torch.bfloat16):
        model = resnet32(10, seed=0).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        options: dict[str, Any] = {"meta_every": 1, "kl_weight": 0.0, "meta_optimizer": Recorder}
        method = VRI(model, 10, optimizer, autocast=autocast, **options)
        method.step((x, y), (x.flip(0), y.flip(0)))
        assert method.hypergradient == "jvp"
        found.append(method.meta_optimizer.gradient)
    assert float(F.cosine_similarity(found[0], found[1], dim=0)) > 0.98


def test_batch_norm_in_mixed_precision_takes_the_fused_way() -> None:
    """x in bfloat16, parameters in float32, as under autocast; against PyTorch's own rule in float64."""
    generator = torch.Generator().manual_seed(0)
    x, x_dot = (torch.randn(6, 4, 5, 5, generator=generator).bfloat16() for _ in range(2))
    weight, weight_dot, bias, bias_dot = (torch.randn(4, generator=generator) for _ in range(4))
    tangents = {}
    for name, kind in (("mixed", None), ("exact", torch.float64)):
        cast = [t if kind is None else t.to(kind) for t in (x, x_dot, weight, weight_dot, bias, bias_dot)]
        with torch.no_grad(), forward_ad.dual_level():
            duals = [forward_ad.make_dual(p, t) for p, t in zip(cast[::2], cast[1::2], strict=True)]
            with Replay() if kind is None else nullcontext():
                out = F.batch_norm(duals[0], None, None, duals[1], duals[2], True)
            tangents[name] = forward_ad.unpack_dual(out).tangent
    assert tangents["mixed"].dtype == torch.bfloat16
    difference = (tangents["mixed"].double() - tangents["exact"]).norm() / tangents["exact"].norm()
    assert float(difference) < 0.02
