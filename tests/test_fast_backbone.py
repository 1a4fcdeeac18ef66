"""The fast backbone: its layers written out, its optimizer against the SVD, and every method on top of it."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from classifiers import images, size
from vri.backbones import FastNet, build, fast
from vri.backbones.fastnet import IdentityConv, ShiftNorm, Whitening
from vri.cli.train import _OPTIONS
from vri.data.images import ImageData
from vri.methods import METHODS, VRI
from vri.methods.co_teaching import CoTeaching
from vri.paper import prepare as preparation
from vri.paper import training_run
from vri.paper.settings import Settings, resolve
from vri.paper.training_run import train_run
from vri.training import precision
from vri.training.batchnorm import SynchronisedBatchNorm, synchronise
from vri.training.loop import train
from vri.training.optimizers import Orthogonal, orthogonal, orthogonalise

CLASSES, CHANNELS, WIDTHS = 3, 2, (12, 8, 8)


def small(seed: int = 0) -> FastNet:
    return fast(CLASSES, CHANNELS, widths=WIDTHS, seed=seed)


def data(count: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, CHANNELS, 11, 11, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.arange(count) % CLASSES


# the network


def test_size_counted_by_hand() -> None:
    whitening = 24 * 3 * 2 * 2 + 24
    convolutions = 9 * (24 * 32 + 32 * 32 + 32 * 128 + 3 * 128 * 128)
    shifts = 2 * (32 + 128 + 128)
    assert size(fast(seed=0)) == size(build("fast", num_classes=10, seed=0)) == whitening + convolutions + shifts + 1290


def used(model: FastNet) -> FastNet:
    """BatchNorm with statistics and shifts other than 0 and 1, so that a misplaced norm shows."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, ShiftNorm):
            assert module.norm.running_mean is not None
            assert module.norm.running_var is not None
            module.norm.running_mean.normal_(generator=generator)
            module.norm.running_var.uniform_(0.5, 1.5, generator=generator)
            nn.init.normal_(module.shift, generator=generator)
    return model.eval()


@torch.no_grad()
def test_forward_written_out() -> None:
    model = used(fast(7, 2, seed=0))
    convs = [m for m in model.modules() if isinstance(m, IdentityConv)]
    norms = [m for m in model.modules() if isinstance(m, ShiftNorm)]
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)

    def logits(x: Tensor) -> Tensor:
        whiten = model.get_submodule("whiten")
        assert isinstance(whiten, Whitening)
        x = functional.gelu(functional.conv2d(x, whiten.weight, whiten.bias))
        for conv, norm, pool in zip(convs, norms, [True, False] * 3, strict=True):
            x = functional.conv2d(x, conv.weight, padding=1)
            x = functional.max_pool2d(x, 2) if pool else x
            x = functional.batch_norm(x, norm.norm.running_mean, norm.norm.running_var, bias=norm.shift)
            x = functional.gelu(x)
        return x.amax((2, 3)) @ head.weight.T + head.bias

    x = images(3, (2, 32, 32))
    expected = (logits(x) + logits(x.flip(-1))) / 2
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x.flip(-1)), model(x), rtol=1e-4, atol=1e-5)
    model.mirror = False
    torch.testing.assert_close(model(x), logits(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_whitened_patches_are_uncorrelated_and_of_variance_one() -> None:
    generator = torch.Generator().manual_seed(0)
    x = functional.avg_pool2d(torch.randn(40, 3, 22, 22, generator=generator), 3, stride=1)  # neighbours are alike
    x = 10 * (x + x[:, :1])  # and so are channels; large, so that what is added to the variances is nothing
    model = fast(seed=0)
    model.fit_whitening(x)
    out = model.whiten(x).movedim(1, -1).reshape(-1, 24).double()
    covariance = out[:, :12].T.cov()
    torch.testing.assert_close(covariance, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-3)
    assert torch.equal(out[:, 12:], -out[:, :12])
    unfitted = fast(seed=0).whiten.weight.flatten(1)[:12]
    torch.testing.assert_close(unfitted @ unfitted.T, torch.eye(12))


@torch.no_grad()
def test_convolutions_begin_as_the_identity() -> None:
    x = images(2, (4, 6, 6))
    wider, narrower = IdentityConv(4, 7), IdentityConv(4, 3)
    torch.testing.assert_close(wider(x)[:, :4], x)
    assert float(wider(x)[:, 4:].abs().min(dim=0).values.max()) > 0  # not the input, and not nothing
    torch.testing.assert_close(narrower(x), x[:, :3])


def test_images_that_are_too_small_are_refused() -> None:
    assert small()(torch.zeros(2, CHANNELS, 9, 9)).shape == (2, CLASSES)
    with pytest.raises(ValueError, match=r"images of 9x8 pixels are too small .* expected 9x9 or more"):
        small()(torch.zeros(2, CHANNELS, 9, 8))


def test_workers_can_share_its_statistics() -> None:
    model = synchronise(small())
    assert sum(isinstance(m, SynchronisedBatchNorm) for m in model.modules()) == 6


# the optimizer


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)])
def test_orthogonalise_acts_on_the_singular_values_alone(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(3):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(orthogonalise(matrix, 3), u * s @ vh)
    many = torch.linalg.svdvals(orthogonalise(matrix, 8))
    assert 0.6 < float(many.min()) <= float(many.max()) < 1.3  # what the quintic settles to


def test_a_step_written_out() -> None:
    generator = torch.Generator().manual_seed(0)
    conv, bias = (nn.Parameter(torch.randn(s, generator=generator).double()) for s in ((4, 2, 3, 3), (4,)))
    optimizer = Orthogonal([{"params": [conv], "orthogonal": True}, {"params": [bias], "weight_decay": 0.1}], lr=0.2)
    buffers = [torch.zeros_like(p) for p in (conv, bias)]
    for _ in range(3):
        conv.grad, bias.grad = torch.randn_like(conv), torch.randn_like(bias)
        buffers[0] = 0.6 * buffers[0] + conv.grad
        direction = orthogonalise((conv.grad + 0.6 * buffers[0]).flatten(1), 3).view_as(conv)
        moved_conv = conv.detach() * 2 / conv.detach().norm() - 0.2 * direction
        decayed = bias.grad + 0.1 * bias.detach()
        buffers[1] = 0.6 * buffers[1] + decayed
        moved_bias = bias.detach() - 0.2 * (decayed + 0.6 * buffers[1])
        optimizer.step()
        torch.testing.assert_close(conv.detach(), moved_conv)
        torch.testing.assert_close(bias.detach(), moved_bias)


def test_every_trained_parameter_is_in_one_group() -> None:
    model = small()
    groups = orthogonal(model).param_groups
    held = [p for group in groups for p in group["params"]]
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(held) == len(set(held)) == len(trained)
    assert trained == {n for n, _ in model.named_parameters()} - {"whiten.weight"}
    convolutions = {p for group in groups if group["orthogonal"] for p in group["params"]}
    assert convolutions == {m.weight for m in model.modules() if isinstance(m, IdentityConv)}


# methods


class Seen(torch.optim.Optimizer):
    """In place of the meta optimizer: keeps the gradient and moves nothing."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.gradient = torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]])


def test_the_tangent_pass_equals_double_backpropagation() -> None:
    found = {}
    for way in ("jvp", "backprop"):
        model = small().double()
        with torch.no_grad():
            model.head.weight.mul_(100)  # at first it is so small that nothing reaches the convolutions
        method = VRI(
            model,
            CLASSES,
            torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5),
            hypergradient=way,
            kl_weight=0,
            hidden=(8,),
            meta_optimizer=Seen,
            generator=torch.Generator().manual_seed(0),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # jvp would fall back with a warning
            method.step(data(12, 1, torch.float64), data(9, 2, torch.float64))
        assert isinstance(method.meta_optimizer, Seen)
        found[way] = method.meta_optimizer.gradient
    assert float(found["backprop"].norm()) > 0
    assert float((found["jvp"] - found["backprop"]).norm()) <= 1e-10 * float(found["backprop"].norm())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains(name: str) -> None:
    model = small()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    method = METHODS[name](model, CLASSES, orthogonal(model, lr=0.05), autocast=torch.bfloat16)
    history = train(
        method,
        data(24, 1),
        data(12, 2) if method.needs_trusted else None,
        epochs=2,
        batch_size=12,
        schedule="linear",
        progress=False,
    )
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in history)
    after = model.state_dict()
    assert torch.equal(after["whiten.weight"], before["whiten.weight"])
    moved = [n for n, p in model.named_parameters() if p.requires_grad and not torch.equal(p, before[n])]
    assert moved == [n for n, p in model.named_parameters() if p.requires_grad]
    assert all(torch.isfinite(p).all() for p in after.values())


def test_a_second_network_has_the_same_first_layer_and_other_weights() -> None:
    model = small()
    model.fit_whitening(data(20, 3)[0])
    method = CoTeaching(model, CLASSES, orthogonal(model))
    second = method.second_model
    assert isinstance(second, FastNet)
    assert torch.equal(second.whiten.weight, model.whiten.weight)
    assert not torch.equal(second.head.weight, model.head.weight)


# vri train


def test_the_recipe_gives_defaults_and_no_more() -> None:
    chosen = resolve(given={"backbone": "fast", "dataset": "cifar10"}, assignments=["lr=0.1"])
    assert (chosen.optimizer, chosen.momentum, chosen.schedule, chosen.precision) == (
        "orthogonal",
        0.6,
        "linear",
        "auto",
    )
    assert (chosen.lr, chosen.epochs) == (0.1, 7)
    assert resolve(given={"backbone": "resnet32"}) == Settings(backbone="resnet32")
    assert chosen.options == {"lookahead": "head", "initial_mean": 1.0, "clean_weight": 1.0}
    variants = [name for name, kind in METHODS.items() if issubclass(kind, VRI) and name != "vri-literal"]
    assert {"mc", "vri-transition", "vri-teacher"} <= set(variants)
    for name in variants:  # whether or not they have a step of their own
        assert resolve(None, {"backbone": "fast", "method": name}).options == chosen.options
    own = resolve(given={"backbone": "fast"}, assignments=["options.clean_weight=4.0"]).options
    assert own == {**chosen.options, "clean_weight": 4.0}
    for method in ("mw-net", "vri-literal"):  # VRI's own options are not for others, nor for the paper to the letter
        assert resolve(given={"backbone": "fast", "method": method}).options == {"lookahead": "head"}
    for name in ("l2rw", "mslc", "emlc"):  # they look ahead in a step of their own
        learned = resolve(given={"backbone": "fast", "method": name})
        assert (learned.batch_size, learned.meta_batch_size) == (250, 100)
        assert learned.options == {"lookahead": "head"}
    assert resolve(given={"backbone": "fast", "method": "cross-entropy"}).options == {}
    assert "backbone" in _OPTIONS


def test_a_resumed_run_keeps_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for suits in (True, False):
        monkeypatch.setattr(training_run, "suits_bfloat16", lambda device, suits=suits: suits)
        assert training_run.in_bfloat16(Settings(precision="auto"), CPU, {}) is suits
        assert training_run.in_bfloat16(Settings(precision="auto"), CPU, {"precision": "bf16"})
        assert not training_run.in_bfloat16(Settings(precision="auto"), CPU, {"precision": "fp32"})
        assert training_run.in_bfloat16(Settings(precision="bf16"), CPU, {})
        assert not training_run.in_bfloat16(Settings(precision="fp32"), CPU, {})


def test_training_from_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (60, 3, 12, 12), generator=generator, dtype=torch.uint8)
    x[:, :, 1:] = x[:, :, :-1] // 2 + x[:, :, 1:] // 2
    y = torch.arange(60) % 3
    fake = ImageData("fake", x, y, x[:9], y[:9], tuple("abc"), (0.5,) * 3, (0.25,) * 3)
    monkeypatch.setattr(preparation.data, "load", lambda name, root: fake)
    settings = resolve(
        given={"backbone": "fast", "method": "cross-entropy"},
        assignments=["clean=0", "epochs=1", "batch_size=20", "tensorboard=false"],
    )
    fitted: list[Tensor] = []
    monkeypatch.setattr(FastNet, "fit_whitening", lambda self, images: fitted.append(images))
    record = train_run(settings, tmp_path / "out", progress=False)
    assert record["finished"]
    assert record["backbone"] == "fast"
    (seen,) = fitted  # normalised training images, not augmented, in an order of their own
    expected = (x / 255 - 0.5) / 0.25
    assert seen.shape == expected.shape
    torch.testing.assert_close(
        seen.flatten(1).sum(1).sort().values, expected.flatten(1).sum(1).sort().values, rtol=1e-3, atol=1e-3
    )


# bfloat16 where torch's kernels crash


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A processor that is not here: (flags that torch finds, instructions with which the trial survives)."""

    def fake(flags: set[str], survives: set[str]) -> list[str]:
        tried: list[str] = []
        monkeypatch.delenv(precision.VARIABLE, raising=False)
        monkeypatch.setenv(precision.VARIABLE, "x")  # so that it is taken back after the test
        monkeypatch.delenv(precision.VARIABLE)
        monkeypatch.setattr(precision, "_has", lambda question: question in flags)
        monkeypatch.setattr(precision.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(precision, "_works", lambda what: tried.append(what) or what in survives)  # type: ignore[func-returns-value]
        return tried

    return fake


AMX, BF16, CPU = "_is_amx_tile_supported", "_is_avx512_bf16_supported", torch.device("cpu")


def test_a_processor_that_crashes_goes_on_without_amx(processor: Any) -> None:
    tried = processor({AMX, BF16}, {"AVX512_CORE_BF16"})
    remark = precision.prepare_bfloat16(CPU)
    assert remark is not None
    assert "continuing without AMX" in remark
    assert tried == ["", "AVX512_CORE_BF16"]
    assert precision.os.environ[precision.VARIABLE] == "AVX512_CORE_BF16"
    assert precision.prepare_bfloat16(CPU) is None  # said and done
    assert len(tried) == 2


def test_a_processor_that_always_crashes_is_refused(processor: Any) -> None:
    processor({AMX, BF16}, set())
    with pytest.raises(RuntimeError, match="train in float32: precision=fp32, or autocast=None"):
        precision.prepare_bfloat16(CPU)


@pytest.mark.parametrize(
    ("flags", "remark"), [({AMX, BF16}, None), ({BF16}, None), (set(), "no bfloat16 instructions")]
)
def test_a_processor_that_works(flags: set[str], remark: str | None, processor: Any) -> None:
    tried = processor(flags, {""})
    found = precision.prepare_bfloat16(CPU)
    assert (found is None) if remark is None else (remark in str(found))
    assert tried == ([""] if AMX in flags else [])
    assert precision.VARIABLE not in precision.os.environ


def test_bfloat16_is_taken_where_it_is_faster(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in ({AMX, BF16}, {BF16}):
        processor(flags, {""})
        assert precision.suits_bfloat16(CPU)
    monkeypatch.setenv(precision.VARIABLE, "AVX2")
    assert not precision.suits_bfloat16(CPU)
    processor(set(), {""})
    assert not precision.suits_bfloat16(CPU)  # emulated: many times slower than float32


def test_the_trial_tells_a_crash_from_success(monkeypatch: pytest.MonkeyPatch) -> None:
    precision._works.cache_clear()
    crash = "import os, signal\nif 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setenv(precision.VARIABLE, "AVX2")  # of the user; not passed on to the trial
    monkeypatch.setattr(precision, "_TRIAL", crash)
    assert not precision._works("")
    assert precision._works("AVX512_CORE_BF16")
    precision._works.cache_clear()


def test_the_trial_runs() -> None:
    exec(compile(precision._TRIAL, "trial", "exec"), {})  # raises if it asks torch for something wrong
