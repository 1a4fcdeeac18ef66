"""How exact the meta gradient is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vri.backbones import resnet32
from vri.bench.report import Bar, Measurement
from vri.bench.timing import (
    Layout,
    Options,
    Samples,
    Sizes,
    attempt,
    images,
    one_thread,
    resnet_method,
    torch_warnings_ignored,
)
from vri.core.checks import Batch
from vri.methods import VRI
from vri.training.precision import prepare_bfloat16


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[0][:, -1])
        return out


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x).mean(1))
        return out


def _mlp_with_dropout() -> nn.Module:
    dropout = nn.Dropout(0.3)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), dropout, nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # builder, shape of an input
    "ResNet-32": (partial(resnet32, 4), (3, 8, 8)),
    "MLP with dropout": (_mlp_with_dropout, (20,)),
    "GRU": (_Recurrent, (7, 6)),
    "transformer encoder": (_Transformer, (7, 16)),
}


def measure_accuracy(sizes: Sizes, device: str) -> tuple[list[Measurement], dict[str, Any]]:
    """Relative difference between the meta gradient and double backpropagation, one sample for each KL route.

    With KL in the objective its weight is 0 here: added to both sides, it would hide part of the difference.
    """
    bars = {"jvp": Bar("<=", 1e-10), "finite_difference": Bar("<=", 1e-2)}
    routes: list[Options] = [{"kl_route": "objective", "kl_weight": 0.0}, {"kl_route": "features"}]
    rows = []
    for dtype in (torch.float64, torch.float32):
        for name, (build, shape) in NETWORKS.items():
            differences: Samples = {way: [] for way in bars}
            for route in routes:
                reference = _meta_gradient(build, shape, dtype, device, {"hypergradient": "backprop", **route})
                for way in bars:
                    gradient = _meta_gradient(build, shape, dtype, device, {"hypergradient": way, **route})
                    differences[way].append(float((gradient - reference).norm() / reference.norm()))
            for way, values in differences.items():
                precision = str(dtype).removeprefix("torch.")
                bar = bars[way] if dtype == torch.float64 else None
                # the worse of the two, not their median
                rows.append(Measurement(f"meta gradient, {precision}", f"{name}: {way}", [max(values)], "", bar))
    rows += _in_half_precision(sizes, device)
    return rows, {row.heading + ": " + row.name: row.samples for row in rows}


def _in_half_precision(sizes: Sizes, device: str) -> list[Measurement]:
    """Cosine between the meta gradients of ResNet-32 under bfloat16 autocast and in float32.

    The trusted images are the noisy ones: with unrelated images of noise the gradient has hardly any signal to turn.
    """
    request = {"sizes": asdict(sizes), "device": device}
    found, note = attempt("vri.bench.accuracy:cosines", request)
    bars = {"jvp": Bar(">=", 0.99)}
    heading = "meta gradient, bfloat16 autocast, cosine with float32"
    return [
        Measurement(heading, f"ResNet-32: {way}", [found[way]] if found else [], "", bars.get(way), note)
        for way in ("jvp", "finite_difference")
    ]


def cosines(request: Mapping[str, Any]) -> dict[str, float]:
    """By way to the meta gradient; runs in its own process, since torch's bfloat16 kernels crash on some CPUs."""
    sizes, device = Sizes(**request["sizes"]), request["device"]
    prepare_bfloat16(torch.device(device))
    batches = [images(sizes, Layout(), device)] * 2

    def gradient(way: str, layout: Layout) -> Tensor:
        method = resnet_method(way, layout, device)
        assert isinstance(method, VRI)
        method.kl_weight = 0.0  # added to both sides, it would hide part of the difference
        return _first_gradient(method, batches)

    exact = gradient("jvp", Layout())
    ways = ("jvp", "finite_difference")
    return {way: float(F.cosine_similarity(gradient(way, Layout(bfloat16=True)), exact, dim=0)) for way in ways}


def _meta_gradient(
    build: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype, device: str, options: Options
) -> Tensor:
    """∇_{φ,ω} of the first step, in one vector."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = build().to(device, dtype)
        batches = [(torch.randn(12, *shape, dtype=dtype), torch.arange(12) % 4) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = VRI(model, 4, optimizer, hidden=(16, 16), **{"clean_weight": 0.0, **options})
    with one_thread():
        return _first_gradient(method, batches)


@torch_warnings_ignored()
def _first_gradient(method: VRI, batches: Sequence[Batch]) -> Tensor:
    seen: list[Tensor] = []
    method.meta_optimizer.register_step_pre_hook(
        lambda opt, *_: seen.extend(p.grad.flatten() for g in opt.param_groups for p in g["params"])
    )
    method.step(*batches)
    return torch.cat(seen).double()
