"""What a step of VRI does and leaves alone, and that every option does what it says."""

import copy
import inspect
import io
import math
import re
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import reference
from reference import Reference, weights
from vri import VRI
from vri.backbones import small_cnn
from vri.core.bilevel import HYPERGRADIENTS
from vri.core.networks import BOUNDS, belief_in
from vri.core.objective import Gaussian

CLASSES, WIDTH, COUNT = 3, 5, 12  # features are 5 wide
OPTIONS: dict[str, Any] = {  # the paper's; no test here leans on a default
    "hidden": (8,),
    "label_dim": 4,
    "samples": 1,
    "kl_weight": 0.01,
    "kl_route": "objective",
    "squash": "sigmoid",
    "bound": "log_var",
    "log_var_bound": 2.0,
    "initial_mean": 0.0,
    "normalize": False,
    "beliefs": False,
    "clean_weight": 0.0,
    "clean_updates": None,
    "meta_every": 1,
    "meta_lr": 1e-2,
    "meta_amsgrad": False,
    "meta_smoothing": 0.0,
    "lookahead": "all",
    "lookahead_lr": None,
    "lagged": False,
}


def network(*first: nn.Module, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        middle = first or (nn.BatchNorm1d(6), nn.Dropout(0.3))
        return nn.Sequential(
            nn.Linear(4, 6), *middle, nn.Tanh(), nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
        ).double()


def batch(seed: int, count: int = COUNT) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def method(
    model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, seed: int = 0, **options: Any
) -> VRI:
    model = network() if model is None else model
    if optimizer is None:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    generator = torch.Generator().manual_seed(seed)
    return VRI(model, CLASSES, optimizer, **{**OPTIONS, "generator": generator, **options})


def run(vri: VRI, steps: int = 1, first: int = 0) -> list[dict[str, float]]:
    return [vri.step(batch(100 + i), batch(200 + i)) for i in range(first, first + steps)]


def literal(vri: VRI, steps: int = 1, head: str = "6", **options: Any) -> dict[str, Tensor]:
    """Weights after these steps of the reference, which starts where `vri` stands."""
    copied = Reference(vri, head=head, **{"kl_weight": OPTIONS["kl_weight"], **options})
    for i in range(steps):
        copied.step(batch(100 + i), batch(200 + i))
    return copied.weights()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    assert a.keys() == b.keys()
    return all(torch.equal(a[k], b[k]) for k in a)


def part(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in state.items() if k.startswith(f"{name}.")}


def draws(vri: VRI, count: int) -> list[Tensor]:
    """The next ε: each step takes a seed and ε for the look-ahead, a seed and a fresh ε for the real step."""
    generator = torch.Generator()
    generator.set_state(vri.generator.get_state())
    noise = []
    for _ in range(count):
        torch.randint(2**62, (), generator=generator)
        shape = (vri.samples, COUNT, CLASSES)
        noise.append(torch.randn(shape, generator=generator, dtype=torch.float64))
    return noise


def snapshot(vri: VRI) -> dict[str, Tensor]:
    return copy.deepcopy(weights(vri))


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    torch.manual_seed(0)


# what a step leaves alone


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_sees_the_training_batch_once(hypergradient: str, momentum: float | None) -> None:
    vri = method(network(nn.BatchNorm1d(6, momentum=momentum)), hypergradient=hypergradient)
    plain = copy.deepcopy(vri.model)
    for i in range(3):
        plain.load_state_dict({**plain.state_dict(), **dict(vri.model.named_parameters())})
        plain(batch(100 + i)[0])
        run(vri, 1, first=i)
        assert int(vri.model[1].num_batches_tracked) == i + 1
        torch.testing.assert_close(dict(vri.model.named_buffers()), dict(plain.named_buffers()), rtol=0, atol=0)


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_gradients_and_flags_of_the_user_stay(hypergradient: str) -> None:
    model = network()
    model[0].bias.requires_grad_(False)
    vri = method(model, torch.optim.SGD(model.parameters(), lr=0.1), hypergradient=hypergradient)
    mine = {n: torch.full_like(p, 7.0) for n, p in model.named_parameters() if n != "6.bias"}
    for name, p in model.named_parameters():
        p.grad = mine.get(name)
    objects = {n: id(p) for n, p in model.named_parameters()}
    flags = {n: p.requires_grad for n, p in model.named_parameters()}
    run(vri, 2)
    for name, p in model.named_parameters():
        assert p.grad is mine.get(name)
        assert p.grad is None or bool((p.grad == 7).all())
    assert {n: p.requires_grad for n, p in model.named_parameters()} == flags
    assert {n: id(p) for n, p in model.named_parameters()} == objects


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_frozen_parameters_stay_bit_for_bit(hypergradient: str) -> None:
    """Some are frozen by their flag, though the optimizer has them; some by being absent from the optimizer."""
    model = network()
    model[0].requires_grad_(False)
    held = [p for n, p in model.named_parameters() if not n.startswith("4.")]
    vri = method(
        model,
        torch.optim.SGD(held, lr=0.1, weight_decay=0.1),
        hypergradient=hypergradient,
        clean_weight=0.5,
    )
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    run(vri, 3)
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {"1.weight", "1.bias", "6.weight", "6.bias"}


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_global_randomness_stays(hypergradient: str) -> None:
    before = torch.get_rng_state()
    vri = method(hypergradient=hypergradient)
    run(vri, 2)
    features = torch.zeros(COUNT, WIDTH, dtype=torch.float64)
    vri.rectify(torch.zeros(COUNT, CLASSES, dtype=torch.float64), features, batch(0)[1])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_the_model_is_given_back_as_it_was(hypergradient: str) -> None:
    model = network()
    model[5].eval()
    modes = [m.training for m in model.modules()]
    members = [set(vars(m)) for m in model.modules()]
    run(method(model, hypergradient=hypergradient), 2)
    assert [m.training for m in model.modules()] == modes
    assert [set(vars(m)) for m in model.modules()] == members
    for module in model.modules():
        hooks = [name for name, value in vars(module).items() if name.endswith("_hooks") and value]
        assert hooks == []


def test_a_failed_step_leaves_no_hooks_and_no_foreign_parameters() -> None:
    class Fails(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 2:  # the look-ahead's forward
                raise ArithmeticError("out of luck")
            return x

    model = network(Fails())
    own = {n: id(p) for n, p in model.named_parameters()}
    vri = method(model)
    with pytest.raises(ArithmeticError, match="out of luck"):
        run(vri)
    assert {n: id(p) for n, p in model.named_parameters()} == own
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_gru_can_be_copied_after_a_step() -> None:
    """Recurrent layers keep a list of their weights on the side; it must not hold on to a look-ahead."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(4, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x.unsqueeze(1))[0][:, -1])

    vri = method(Recurrent().double())
    run(vri, 2)
    copied, x = copy.deepcopy(vri.model), batch(0)[0]
    torch.testing.assert_close(copied(x), vri.model(x), rtol=0, atol=0)


# randomness and resuming


def test_the_seed_decides_everything() -> None:
    def trained(seed: int) -> VRI:
        vri = method(seed=seed)
        run(vri, 3)
        return vri

    assert same(weights(trained(1)), weights(trained(1)))
    one, two = weights(trained(1)), weights(trained(2))
    for name in ("model.6.weight", "meta.embedding.weight"):
        assert not torch.equal(one[name], two[name])


def test_the_generator_is_the_one_given() -> None:
    generator = torch.Generator().manual_seed(3)
    vri = method(generator=generator)
    assert vri.generator is generator
    before = generator.get_state()
    run(vri)
    assert not torch.equal(generator.get_state(), before)


def test_without_a_generator_two_methods_are_equal() -> None:
    one, two = method(generator=None), method(generator=None)
    run(one, 2)
    run(two, 2)
    assert same(weights(one), weights(two))


@pytest.mark.parametrize("steps", [2, 3])  # before a step with and one without an update of the meta networks
def test_a_saved_method_goes_on_exactly(steps: int) -> None:
    def build() -> VRI:
        model = network()
        return method(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), meta_every=2)

    whole = build()
    run(whole, 6)
    first = build()
    run(first, steps)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = build()
    run(second, 1)  # somewhere else before it is loaded
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.steps == steps
    run(second, 6 - steps, first=steps)
    assert same(weights(second), weights(whole))
    assert torch.equal(second.generator.get_state(), whole.generator.get_state())


# options


def test_the_options_tested_here_are_all_there_are() -> None:
    """A new option must come with a test; add it to OPTIONS once it has one."""
    elsewhere = {"generator", "head", "feature_dim", "autocast", "hypergradient", "meta_optimizer"}
    signature = inspect.signature(VRI).parameters.values()
    keywords = {p.name for p in signature if p.kind is p.KEYWORD_ONLY}
    assert keywords - elsewhere == set(OPTIONS)


@pytest.mark.parametrize(
    "options",
    [
        {"kl_route": "features"},
        {"samples": 3},
        {"kl_weight": 5.0},
        {"squash": "tanh"},
        {"squash": "none"},
        {"clean_weight": 0.7},
        {"meta_every": 2},
        {"meta_smoothing": 0.3},
        {"lagged": True},
        {"lagged": True, "clean_weight": 0.7, "meta_every": 2},
    ],
    ids=str,
)
def test_each_option_is_that_of_the_reference(options: dict[str, Any]) -> None:
    vri = method(**options)
    expected, plain = literal(vri, 3, **options), literal(method(), 3)
    run(vri, 3)
    torch.testing.assert_close(weights(vri), expected, rtol=0, atol=1e-9)
    assert max(float((expected[k] - plain[k]).abs().max()) for k in plain) > 1e-5  # it changes something


@pytest.mark.parametrize(
    ("lookahead", "names"),
    [
        ("head", ["6.weight", "6.bias"]),
        ("4", ["4.weight", "4.bias"]),
        (["0", "6.bias"], ["0.weight", "0.bias", "6.bias"]),
    ],
)
def test_lookahead_of_a_subset(lookahead: Any, names: list[str]) -> None:
    vri = method(lookahead=lookahead)
    expected = literal(vri, 3, lookahead=names)
    run(vri, 3)
    torch.testing.assert_close(weights(vri), expected, rtol=0, atol=1e-9)


def test_lagged_refuses_a_lookahead_of_a_subset() -> None:
    with pytest.raises(ValueError, match=re.escape("lagged=True (expected False where lookahead is not 'all')")):
        method(lookahead="head", lagged=True)


def test_lookahead_of_the_head_of_a_model_that_is_one_layer() -> None:
    """The head is all there is."""
    head, whole = (method(nn.Linear(4, CLASSES).double(), lookahead=which) for which in ("head", "all"))
    head.model.load_state_dict(whole.model.state_dict())
    for vri in (head, whole):
        run(vri, 2)
    torch.testing.assert_close(weights(head), weights(whole), rtol=0, atol=1e-14)


def test_lookahead_lr_is_the_rate_of_the_look_ahead_alone() -> None:
    """The meta networks move as with that rate everywhere; a schedule scales it."""
    scheduled = 0.5
    own, slow, plain = method(lookahead_lr=0.03, kl_weight=0.0), method(kl_weight=0.0), method(kl_weight=0.0)
    for vri, rate in ((own, 0.1), (slow, 0.03), (plain, 0.1)):
        for group in vri.optimizer.param_groups:
            group["lr"] = scheduled * rate
    for vri in (own, slow, plain):
        run(vri)
    same_meta = {name: value for name, value in weights(slow).items() if name in part("meta", weights(slow))}
    torch.testing.assert_close(part("meta", weights(own)), same_meta, rtol=0, atol=1e-14)
    assert not same(part("meta", weights(own)), part("meta", weights(plain)))


def test_clean_weight_adds_the_clean_gradient() -> None:
    """With plain SGD the classifier moves by −lr·γ·g more, and nothing else changes."""
    gamma, lr = 0.7, 0.1
    without, with_clean = method(), method(clean_weight=gamma)
    found = Reference(without, head="6", kl_weight=OPTIONS["kl_weight"]).step(batch(100), batch(200))
    run(without)
    run(with_clean)
    a, b = weights(without), weights(with_clean)
    for name, g in found["clean"].items():
        assert g.norm() > 1e-4 or name == "0.bias"  # BatchNorm takes a bias away
        moved = b[f"model.{name}"] - a[f"model.{name}"]
        torch.testing.assert_close(moved, -lr * gamma * g, rtol=0, atol=1e-12)
    assert same(part("meta", a), part("meta", b))
    assert same(part("prior", a), part("prior", b))


def test_clean_updates_let_the_clean_gradient_fade() -> None:
    """γ for two updates, then γ·2/3, γ·2/4, ...: each step equals that of a method with just this γ."""
    fading = method(clean_weight=0.6, clean_updates=2, meta_every=2)
    for update, gamma in enumerate([0.6, 0.6, 0.4, 0.3]):
        assert fading.current_clean_weight == pytest.approx(gamma)
        constant = method(clean_weight=gamma, meta_every=2)
        constant.load_state_dict(copy.deepcopy(fading.state_dict()))
        for i in (2 * update, 2 * update + 1):
            constant.step(batch(100 + i), batch(200 + i))
            fading.step(batch(100 + i), batch(200 + i))
        torch.testing.assert_close(weights(fading), weights(constant), rtol=0, atol=1e-14)


def test_meta_every() -> None:
    vri = method(meta_every=3)
    due = []
    for i in range(7):
        due.append(vri.meta_due)
        before = snapshot(vri)
        metrics = vri.step(batch(100 + i), batch(200 + i) if vri.meta_due else None)
        after = weights(vri)
        for name in ("meta", "prior"):
            assert same(part(name, before), part(name, after)) is not due[-1]
        assert not same(part("model", before), part("model", after))
        for name in ("meta_loss", "meta_accuracy", "meta_gradient", "kl"):
            assert (name in metrics) is due[-1]
    assert due == [True, False, False, True, False, False, True]


def test_lagged_takes_the_look_ahead_as_the_real_step() -> None:
    """θ ends at θ̂, which belongs to the old φ, while φ itself moves as ever."""
    lr, vri, usual = 0.1, method(lagged=True), method()
    found = Reference(vri, head="6", kl_weight=OPTIONS["kl_weight"]).step(batch(100), batch(200))
    before = snapshot(vri)
    run(vri)
    run(usual)
    after = weights(vri)
    for name, gradient in found["step"].items():
        torch.testing.assert_close(after[f"model.{name}"], before[f"model.{name}"] - lr * gradient, rtol=0, atol=1e-12)
    assert same(part("meta", after), part("meta", weights(usual)))
    assert not same(part("model", after), part("model", weights(usual)))


@pytest.mark.parametrize("samples", [1, 4])
def test_samples_is_the_number_of_draws(samples: int) -> None:
    vri = method(samples=samples)
    expected = torch.Generator()
    expected.set_state(vri.generator.get_state())
    for _ in range(2):  # a seed and ε for the look-ahead, a seed and a fresh ε for the real step
        torch.randint(2**62, (), generator=expected)
        torch.randn(samples, COUNT, CLASSES, generator=expected, dtype=torch.float64)
    run(vri)
    assert torch.equal(vri.generator.get_state(), expected.get_state())


def test_a_larger_kl_weight_brings_the_posterior_to_the_prior() -> None:
    def last_kl(weight: float) -> float:
        return run(method(kl_weight=weight), 40)[-1]["kl"]

    small, large = last_kl(1e-6), last_kl(10.0)
    assert large < 0.5 * small


@pytest.mark.parametrize(
    ("bound", "posterior", "prior"),
    [  # ranges of (mean, log σ²)
        ("log_var", (None, (-0.7, 0.7)), (None, (-0.7, 0.7))),
        ("sigmoid", ((0, 1), (0, 1)), ((0, 1), (0, 1))),
        ("prior", (None, None), (None, (-0.7, 0.7))),
        ("none", (None, None), (None, None)),
    ],
)
def test_bounds(bound: str, posterior: tuple[Any, Any], prior: tuple[Any, Any]) -> None:
    """Huge inputs reach both ends of a bounded range, and go far beyond where there is none."""
    vri = method(bound=bound, log_var_bound=0.7)
    features = 1e3 * torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        for net in (vri.meta_network, vri.prior_network):
            for p in net.parameters():
                p.mul_(30)
        q, p = vri.posterior(features, torch.arange(200) % CLASSES), vri.prior(features)
    for gaussian, ranges in ((q, posterior), (p, prior)):
        for values, limits in zip(gaussian, ranges, strict=True):
            low, high = float(values.min()), float(values.max())
            if limits is None:
                assert low < -2
                assert high > 2
            else:
                assert limits[0] <= low < limits[0] + 1e-3
                assert limits[1] - 1e-3 < high <= limits[1]


def test_every_bound_is_tested_above() -> None:
    assert set(BOUNDS) == {"log_var", "sigmoid", "prior", "none"}


def test_a_bound_by_tanh_is_smooth_at_zero() -> None:
    """limit·tanh(s / limit): s itself near 0, so that the bound does not scale what is far from it."""
    free, bounded = method(bound="none"), method(bound="log_var", log_var_bound=2.0)
    features, labels = torch.randn(4, WIDTH).double(), torch.tensor([0, 1, 2, 0])
    s = free.posterior(features, labels).log_var
    torch.testing.assert_close(bounded.posterior(features, labels).log_var, 2 * torch.tanh(s / 2))
    torch.testing.assert_close(bounded.posterior(features, labels).mean, free.posterior(features, labels).mean)


def test_beliefs_are_what_the_logits_say_about_a_label() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [1.0 - 2e-30, 1e-30, 1e-30]]).double()
    found = belief_in(torch.tensor([1, 2]), p.log())
    entropy = 1.5 * math.log(2)
    expected = torch.tensor([[math.log(0.25), math.log(0.5), entropy], [-10.0, -10.0, 0.0]]).double()
    torch.testing.assert_close(found, expected)
    soft = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).double()
    torch.testing.assert_close(belief_in(soft, p.log()), expected)


def test_a_meta_network_that_reads_beliefs_needs_logits() -> None:
    vri = method(beliefs=True)
    features, labels = torch.randn(4, WIDTH).double(), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ValueError, match=r"reads beliefs \(beliefs=True\): expected logits, too; pass logits="):
        vri.posterior(features, labels)
    surer = vri.posterior(features, labels, 9 * torch.eye(CLASSES).double()[labels])
    assert not torch.allclose(surer.mean, vri.posterior(features, labels, torch.zeros(4, CLASSES).double()).mean)


def test_initial_mean_is_added_to_both_means() -> None:
    base, lowered = method(initial_mean=0.0), method(initial_mean=-3.0)
    features, labels = torch.randn(4, WIDTH).double(), torch.tensor([0, 1, 2, 0])
    for a, b in (
        (base.posterior(features, labels), lowered.posterior(features, labels)),
        (base.prior(features), lowered.prior(features)),
    ):
        torch.testing.assert_close(b.mean, a.mean - 3, rtol=0, atol=1e-6)  # added in float32
        torch.testing.assert_close(b.log_var, a.log_var, rtol=0, atol=0)


def test_normalize_makes_the_scale_of_features_irrelevant() -> None:
    features, labels = torch.randn(4, WIDTH).double(), torch.tensor([0, 1, 2, 0])
    normalizing, plain = method(normalize=True), method(normalize=False)
    for vri, equal in ((normalizing, True), (plain, False)):
        for a, b in (
            (vri.posterior(features, labels), vri.posterior(50 * features + 9, labels)),
            (vri.prior(features), vri.prior(50 * features + 9)),
        ):
            assert torch.allclose(a.mean, b.mean, atol=1e-3) is equal
    # mean 0 and variance 1 over the features of a sample, by hand; the same weights then read them
    standard = (features - features.mean(1, keepdim=True)) / features.std(1, keepdim=True, correction=0)
    for a, b in zip(normalizing.prior(features), plain.prior(standard), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_shapes_of_the_meta_networks() -> None:
    vri = method(hidden=(11, 7), label_dim=9)
    shapes = [tuple(p.shape) for p in vri.meta_network.parameters()]
    assert shapes == [(CLASSES, 9), (11, WIDTH + 9), (11,), (7, 11), (7,), (2 * CLASSES, 7), (2 * CLASSES,)]
    shapes = [tuple(p.shape) for p in vri.prior_network.parameters()]
    assert shapes == [(11, WIDTH), (11,), (7, 11), (7,), (2 * CLASSES, 7), (2 * CLASSES,)]


@pytest.mark.parametrize(
    ("features", "widths", "rate"),
    [(5, (256, 128), 1.2e-3), (256, (256, 128), 1.2e-3), (300, (512, 256), 6e-4), (4000, (1024, 512), 3e-4)],
)
def test_width_and_rate_of_the_meta_networks_follow_the_features(
    features: int, widths: tuple[int, int], rate: float
) -> None:
    model = nn.Sequential(nn.Linear(2, features), nn.Linear(features, CLASSES))
    vri = VRI(model, CLASSES, torch.optim.SGD(model.parameters(), lr=0.1))
    for network in (vri.meta_network, vri.prior_network):
        assert [layer.out_features for layer in network.body.layers[::2]] == [*widths, 2 * CLASSES]
    assert vri.meta_optimizer.param_groups[0]["lr"] == pytest.approx(rate)


def test_given_widths_and_rates_are_taken_as_they_are() -> None:
    assert method(hidden=(16, 8), meta_lr=None).meta_optimizer.param_groups[0]["lr"] == 3e-4
    assert method(hidden="auto", meta_lr=0.5).meta_optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("amsgrad", [False, True])
def test_meta_amsgrad_stops_the_networks_when_the_meta_gradient_fades(amsgrad: bool) -> None:
    """With gradients a thousand times smaller, Adam soon walks as fast as before; AMSGrad does not."""
    vri = method(meta_amsgrad=amsgrad)
    run(vri, 3)
    (group,) = vri.meta_optimizer.param_groups
    group["betas"] = (0.9, 0.9)  # a short memory, for a short test
    parameter = next(vri.meta_network.body.parameters())

    def walk(scale: float, steps: int) -> float:
        before = parameter.detach().clone()
        for _ in range(steps):
            for each in group["params"]:
                each.grad = torch.full_like(each, scale)
            vri.meta_optimizer.step()
        return float((parameter.detach() - before).abs().mean()) / steps

    walk(1.0, 100)
    walk(1e-3, 300)  # until the gradients of before have left the running averages
    assert (walk(1e-3, 10) < 0.01 * OPTIONS["meta_lr"]) is amsgrad


@pytest.mark.parametrize("meta_lr", [1e-3, 1e-2])
def test_meta_lr_is_the_first_step_of_adam(meta_lr: float) -> None:
    """Adam's first step is lr·sign(gradient), but for gradients near its ε."""
    vri = method(meta_lr=meta_lr)
    before = snapshot(vri)
    run(vri)
    moved = [(weights(vri)[k] - before[k]).abs().max() for k in part("meta", before)]
    assert float(max(moved)) == pytest.approx(meta_lr, rel=1e-3)


def test_meta_optimizer_is_built_from_the_meta_networks() -> None:
    vri = method(meta_optimizer=lambda p: torch.optim.SGD(p, lr=0.3))
    held = {id(p) for g in vri.meta_optimizer.param_groups for p in g["params"]}
    assert held == {id(p) for net in (vri.meta_network, vri.prior_network) for p in net.parameters()}
    before = snapshot(vri)
    found = Reference(vri, head="6", kl_weight=OPTIONS["kl_weight"]).step(batch(100), batch(200))
    run(vri)
    names = [*(f"meta.{n}" for n, _ in vri.meta_network.named_parameters())]
    names += [f"prior.{n}" for n, _ in vri.prior_network.named_parameters()]
    for name, gradient in zip(names, found["meta"].values(), strict=True):
        torch.testing.assert_close(weights(vri)[name], before[name] - 0.3 * gradient, rtol=0, atol=1e-12)


class TwoHeads(nn.Module):
    """Two layers with as many outputs as there are classes, the one that counts being the first."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.auxiliary = nn.Linear(4, CLASSES), nn.Linear(CLASSES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.main(x)
        self.auxiliary(out)
        return out


@pytest.mark.parametrize(("head", "width"), [("main", 4), ("auxiliary", CLASSES)])
def test_head_says_which_features_are_read(head: str, width: int) -> None:
    vri = method(TwoHeads().double(), head=head)
    assert vri.prior_network.body.layers[0].in_features == width
    expected = literal(vri, 3, head=head)
    run(vri, 3)
    torch.testing.assert_close(weights(vri), expected, rtol=0, atol=1e-9)


class Functional(nn.Module):
    """No linear layer at all; returns (logits, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 7))
        self.last = nn.Parameter(torch.randn(7, CLASSES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(x @ self.weight)
        return features @ self.last, features


def test_feature_dim_of_a_model_that_returns_its_features() -> None:
    vri = method(Functional().double(), feature_dim=7)
    assert vri.prior_network.body.layers[0].in_features == 7
    before = snapshot(vri)
    run(vri)
    for name in ("model", "meta", "prior"):
        assert not same(part(name, before), part(name, weights(vri)))


@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_autocast_in_bfloat16(hypergradient: str) -> None:
    """Close to single precision, and the meta networks, the meta gradient and the weights stay in it."""
    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images, labels = x.to(memory_format=torch.channels_last), torch.arange(16) % CLASSES

    def losses(autocast: torch.dtype | None) -> list[dict[str, float]]:
        model = small_cnn(CLASSES, seed=0).to(memory_format=torch.channels_last)
        vri = method(model, autocast=autocast, hypergradient=hypergradient)
        seen = []
        model[-1].register_forward_hook(lambda _, args, out: seen.append(out.dtype))
        out = [vri.step((images, labels), (images, labels)) for _ in range(3)]
        assert seen[0] == (autocast or torch.float32)
        for net in (vri.model, vri.meta_network, vri.prior_network):
            assert {p.dtype for p in net.parameters()} == {torch.float32}
        return out

    full, half = losses(None), losses(torch.bfloat16)
    for a, b in zip(full, half, strict=True):
        for name in ("loss", "meta_loss", "kl"):
            assert b[name] == pytest.approx(a[name], rel=0.05)
    assert full != half


# what the user may ask and give


def test_posterior_and_prior_are_the_networks() -> None:
    vri = method()
    features = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    labels = torch.tensor([0, 2, 1, 1])
    q, p = vri.posterior(features, labels), vri.prior(features)
    embedded = torch.cat([features, vri.meta_network.embedding.weight[labels]], dim=1)
    for gaussian, inputs, net in ((q, embedded, vri.meta_network), (p, features, vri.prior_network)):
        first, last = net.body.layers[0], net.body.layers[2]
        raw = torch.tanh(inputs @ first.weight.T + first.bias) @ last.weight.T + last.bias
        assert isinstance(gaussian, Gaussian)
        torch.testing.assert_close(gaussian.mean, raw[:, :CLASSES])
        torch.testing.assert_close(gaussian.log_var, 2 * torch.tanh(raw[:, CLASSES:] / 2))


def test_posterior_of_a_soft_label_mixes_the_embeddings() -> None:
    vri = method()
    features, labels = torch.randn(4, WIDTH).double(), torch.tensor([0, 2, 1, 1])
    one_hot = F.one_hot(labels, CLASSES).double()
    torch.testing.assert_close(vri.posterior(features, one_hot), vri.posterior(features, labels))
    half = torch.tensor([[0.5, 0.5, 0.0]]).double()
    with torch.no_grad():
        mixed = vri.posterior(features[:1], half)
        table = vri.meta_network.embedding.weight
        table[2] = 0.5 * table[0] + 0.5 * table[1]
        torch.testing.assert_close(mixed, vri.posterior(features[:1], torch.tensor([2])))


@pytest.mark.parametrize("squash", reference.SQUASHES)
@pytest.mark.parametrize("samples", [None, 4])
def test_rectify_draws_and_multiplies(squash: str, samples: int | None) -> None:
    vri = method(squash=squash, samples=2)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(COUNT, CLASSES, generator=generator).double()
    features, labels = torch.randn(COUNT, WIDTH, generator=generator).double(), torch.arange(COUNT) % CLASSES
    q = vri.posterior(features, labels)
    ahead = torch.Generator()
    ahead.set_state(vri.generator.get_state())
    rectified = vri.rectify(logits, features, labels, samples)
    noise = torch.randn(samples or 2, COUNT, CLASSES, generator=ahead, dtype=torch.float64)
    v = q.mean + (0.5 * q.log_var).exp() * noise
    torch.testing.assert_close(rectified, reference.SQUASHES[squash](v) * logits)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(torch.tanh(scale * self.layer(x)))


def pack_tuple(x: Tensor, scale: Tensor) -> Any:
    return x, scale


def pack_list(x: Tensor, scale: Tensor) -> Any:
    return [x, scale]


def pack_dict(x: Tensor, scale: Tensor) -> Any:
    return {"scale": scale, "x": x}


def pack_mapping(x: Tensor, scale: Tensor) -> Any:
    return UserDict(scale=scale, x=x)


@pytest.mark.parametrize("pack", [pack_tuple, pack_list, pack_dict, pack_mapping])
@pytest.mark.parametrize("hypergradient", HYPERGRADIENTS)
def test_several_inputs(pack: Callable[[Tensor, Tensor], Any], hypergradient: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vri = method(TwoInputs().double(), hypergradient=hypergradient)
    generator = torch.Generator().manual_seed(1)
    scale = torch.randn(COUNT, 1, generator=generator, dtype=torch.float64)
    (x, y), (meta_x, meta_y) = batch(100), batch(200)
    literal_vri = Reference(vri, head="head", kl_weight=OPTIONS["kl_weight"])
    literal_vri.step(((x, scale), y), ((meta_x, scale), meta_y))
    vri.step((pack(x, scale), y), (pack(meta_x, scale), meta_y))
    # Adam's first step divides by the gradient's size: a finite difference has eight digits of 0.01
    torch.testing.assert_close(weights(vri), literal_vri.weights(), rtol=0, atol=1e-7)


def test_further_elements_of_a_batch_are_ignored() -> None:
    short, long = method(), method()
    (x, y), (meta_x, meta_y) = batch(100), batch(200)
    short.step((x, y), (meta_x, meta_y))
    long.step((x, y, torch.arange(COUNT), "index"), [meta_x, meta_y, None])
    assert same(weights(short), weights(long))


def test_batches_may_differ_in_size() -> None:
    vri = method()
    expected = Reference(vri, head="6", kl_weight=OPTIONS["kl_weight"])
    expected.step(batch(100, 9), batch(200, 4))
    vri.step(batch(100, 9), batch(200, 4))
    torch.testing.assert_close(weights(vri), expected.weights(), rtol=0, atol=1e-9)


def test_the_look_ahead_follows_the_learning_rate_of_the_optimizer() -> None:
    vri = method()
    for group in vri.optimizer.param_groups:
        group["lr"] = 0.02  # as a schedule would
    expected = literal(vri)
    run(vri)
    torch.testing.assert_close(weights(vri), expected, rtol=0, atol=1e-9)


def test_metrics() -> None:
    """All numbers of one step, from the reference's own pieces."""
    vri = method(network(nn.Identity()), meta_smoothing=0.2)
    (x, y), (meta_x, meta_y) = batch(100), batch(200)
    logits, features = vri.model(x).detach(), vri.model[:-1](x).detach()
    q, p = vri.posterior(features, y), vri.prior(features)
    theta = {n: p.detach().clone() for n, p in vri.model.named_parameters()}
    noise = draws(vri, 2)[1]
    found = Reference(vri, head="5", kl_weight=OPTIONS["kl_weight"], meta_smoothing=0.2)
    seen = found.step((x, y), (meta_x, meta_y))
    ahead = seen["step"]
    metrics = vri.step((x, y), (meta_x, meta_y))

    normal_q, normal_p = (torch.distributions.Normal(g.mean, g.log_var.exp().sqrt()) for g in (q, p))
    theta_hat = {n: p - 0.1 * ahead[n] for n, p in theta.items()}
    meta_logits = torch.func.functional_call(vri.model, theta_hat, (meta_x,))
    new_q = vri.posterior(features, y)
    vectors = new_q.mean + new_q.log_var.exp().sqrt() * noise[0]
    expected = {
        "loss": F.cross_entropy(vectors.sigmoid() * logits, y),
        "accuracy": (logits.argmax(1) == y).double().mean(),
        "meta_loss": F.cross_entropy(meta_logits, meta_y, label_smoothing=0.2),
        "meta_accuracy": (meta_logits.argmax(1) == meta_y).double().mean(),
        "meta_gradient": torch.stack([g.square().sum() for g in seen["meta"].values()]).sum(),
        "kl": torch.distributions.kl_divergence(normal_q, normal_p).sum(1).mean(),
        "variance": new_q.log_var.exp().square().sum(1).sqrt().mean(),
    }
    numbers = {name: float(value.detach()) for name, value in expected.items()}
    assert metrics == pytest.approx(numbers, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int8, torch.int16])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    (x, y), (meta_x, meta_y) = batch(100), batch(200)
    short, long = method(), method()
    short.step((x, y.to(dtype)), (meta_x, meta_y.to(dtype)))
    long.step((x, y), (meta_x, meta_y))
    assert same(weights(short), weights(long))


def test_soft_labels_of_another_precision() -> None:
    (x, y), (meta_x, meta_y) = batch(100), batch(200)
    one, two = method(), method()
    y, meta_y = F.one_hot(y, CLASSES), F.one_hot(meta_y, CLASSES)
    one.step((x, y.float()), (meta_x, meta_y.float()))
    two.step((x, y.double()), (meta_x, meta_y.double()))
    assert same(weights(one), weights(two))
