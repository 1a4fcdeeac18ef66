"""The rival methods as wholes: limiting cases, phases, resuming, mistakes, and training on digits."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vri
from vri.core.checks import Batch
from vri.methods.base import Method
from vri.methods.bootstrapping import Bootstrapping, hard_bootstrapping, soft_bootstrapping
from vri.methods.cdr import CDR
from vri.methods.co_teaching import CoTeaching, CoTeachingPlus
from vri.methods.codis import CoDis
from vri.methods.cores import CORES
from vri.methods.cross_entropy import CrossEntropy
from vri.methods.decoupling import Decoupling
from vri.methods.dividemix import DivideMix
from vri.methods.elr import ELR
from vri.methods.elr_plus import ELRPlus
from vri.methods.emlc import EMLC
from vri.methods.famus import FaMUS
from vri.methods.fasten import FasTEN
from vri.methods.fsr import FSR
from vri.methods.gce import GCE, generalised_cross_entropy
from vri.methods.gjs import GJS
from vri.methods.glc import GLC
from vri.methods.jnpl import JNPL
from vri.methods.jocor import JoCoR
from vri.methods.label_smoothing import LabelSmoothing, smoothed_cross_entropy
from vri.methods.mixup import Mixup, draw_mixture
from vri.methods.ncr import NCR
from vri.methods.peer_loss import PeerLoss
from vri.methods.pes import PES
from vri.methods.plc import PLC
from vri.methods.sce import SCE, symmetric_cross_entropy
from vri.methods.sop import SOP, SOPPlus
from vri.methods.sr import SR
from vri.training.checkpoints import load_checkpoint, save_checkpoint

CLASSES, SIZE, BATCH, EPOCHS = 3, 12, 6, 3  # so an epoch has 2 steps
X = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(SIZE) % CLASSES
SOFT = F.softmax(torch.randn(SIZE, CLASSES, generator=torch.Generator().manual_seed(1)), 1)
CLEAN = torch.randn(9, 4, generator=torch.Generator().manual_seed(2)), torch.arange(9) % CLASSES

RIVALS: dict[str, Callable[..., Method]] = {
    "label smoothing": LabelSmoothing,
    "mixup": Mixup,
    "GCE": GCE,
    "SCE": SCE,
    "soft bootstrapping": Bootstrapping,
    "hard bootstrapping": lambda *args, **options: Bootstrapping(*args, hard=True, **options),
    "co-teaching": lambda *args, **options: CoTeaching(*args, **{"noise_rate": 0.5, "num_gradual": 2, **options}),
    "CORES": CORES,
    "decoupling": Decoupling,
    "DivideMix": DivideMix,
    "JoCoR": lambda *args, **options: JoCoR(*args, **{"noise_rate": 0.5, "num_gradual": 2, **options}),
    "ELR": ELR,
    "ELR+": ELRPlus,
    "GJS": GJS,
    "co-teaching+": lambda *args, **options: CoTeachingPlus(
        *args, **{"noise_rate": 0.5, "num_gradual": 2, "warmup_epochs": 1, **options}
    ),
    "CoDis": lambda *args, **options: CoDis(*args, **{"noise_rate": 0.5, "num_gradual": 2, **options}),
    "PLC": lambda *args, **options: PLC(*args, **{"warmup_epochs": 0, **options}),
    "peer loss": PeerLoss,
    "JNPL": JNPL,
    "sparse regularisation": SR,
    "CDR": CDR,
    "FSR": FSR,
    "FasTEN": FasTEN,
    "FaMUS": FaMUS,
    "EMLC": lambda *args, **options: EMLC(*args, **{"steps_ahead": 2, **options}),
    "GLC": GLC,
    "GLC without restart": lambda *args, **options: GLC(*args, restart=False, **options),
    "NCR": NCR,
    "PES": PES,
    "PES, semi": lambda *args, **options: PES(*args, **{"semi": True, **options}),
    "SOP": SOP,
    "SOP+": SOPPlus,
}


def network(seed: int = 0, dropout: float = 0.3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES))


def build(kind: Callable[..., Method], seed: int = 0, dropout: float = 0.3, **options: Any) -> Any:
    net = network(seed, dropout)
    return kind(net, CLASSES, torch.optim.Adam(net.parameters(), lr=0.01), **options)


def clean_batches() -> Iterator[Batch]:
    for start in range(0, 9, 4):
        yield CLEAN[0][start : start + 4], CLEAN[1][start : start + 4]


def steps(method: Method, first: int = 0, last: int = 2 * EPOCHS, labels: Tensor = Y) -> list[dict[str, float]]:
    """What the loop does from step `first` to before step `last`."""
    metrics, begun = [], -1
    for step in range(first, last):
        epoch, place = divmod(step, 2)
        if epoch != begun:
            method.begin_epoch(epoch, EPOCHS)
            begun = epoch
        method.optimizer.param_groups[0]["lr"] = 0.01 * method.lr_scale(step / (2 * EPOCHS), lambda t: 1 - t / 2)
        rows = torch.arange(place * BATCH, (place + 1) * BATCH)
        batch = (X[rows], labels[rows], rows) if method.needs_index else (X[rows], labels[rows])
        metrics.append(method.step(batch, CLEAN if method.meta_due else None))
    return metrics


def trained(kind: Callable[..., Method], labels: Tensor = Y, **options: Any) -> Any:
    method = build(kind, **options)
    method.begin_training(SIZE, clean_batches)
    steps(method, labels=labels)
    return method


def same_state(a: Any, b: Any, where: str = "state") -> None:
    """Bit by bit."""
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            same_state(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same_state(x, y, f"{where}[{i}]")
    else:
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b, where


def says(kind: type[Exception], text: str) -> AbstractContextManager[Any]:
    return pytest.raises(kind, match=f"^{re.escape(text)}$")


# all of them


@pytest.mark.parametrize("stop", [3, 5])
@pytest.mark.parametrize("name", RIVALS)
def test_goes_on_exactly_from_a_checkpoint(name: str, stop: int, tmp_path: Path) -> None:
    whole = build(RIVALS[name])
    whole.begin_training(SIZE, clean_batches)
    expected = steps(whole, 0, stop)
    save_checkpoint(tmp_path / "state.pt", whole.state_dict())
    expected = steps(whole, stop)

    resumed = build(RIVALS[name], seed=5, generator=torch.Generator().manual_seed(99))  # so all must come from the file
    resumed.begin_training(SIZE, clean_batches)
    resumed.load_state_dict(load_checkpoint(tmp_path / "state.pt"))
    assert repr(steps(resumed, stop)) == repr(expected)  # NaN is equal to itself here
    same_state(resumed.state_dict(), whole.state_dict())


@pytest.mark.parametrize("name", RIVALS)
def test_soft_labels_that_are_one_hot_train_like_hard_ones(name: str) -> None:
    hard, soft = trained(RIVALS[name]), trained(RIVALS[name], labels=F.one_hot(Y, CLASSES).float())
    torch.testing.assert_close(soft.model.state_dict(), hard.model.state_dict(), rtol=1e-3, atol=1e-4)
    assert all(p.isfinite().all() for p in trained(RIVALS[name], labels=SOFT).model.parameters())


@pytest.mark.parametrize("name", RIVALS)
def test_global_generator_and_frozen_layers_stay(name: str) -> None:
    state = torch.get_rng_state()
    net = network()
    net[0].requires_grad_(False)
    frozen = net[0].weight.clone()
    method = RIVALS[name](net, CLASSES, torch.optim.SGD([*net[1:].parameters()], lr=0.1, weight_decay=0.1))
    method.begin_training(SIZE, clean_batches)
    moved = net[4].weight.clone()
    steps(method, 0, 3)
    assert torch.equal(net[0].weight, frozen)
    assert not torch.equal(net[4].weight, moved)
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", RIVALS)
def test_mixed_precision(name: str) -> None:
    method = trained(RIVALS[name], autocast=torch.bfloat16)
    full = trained(RIVALS[name])
    for p, q in zip(method.model.parameters(), full.model.parameters(), strict=True):
        assert p.dtype == torch.float32
        assert p.isfinite().all()
        assert not torch.equal(p, q)  # so it did something


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LabelSmoothing, {"smoothing": 0.0}),
        (Mixup, {"alpha": 0.0}),
        (Bootstrapping, {"beta": 1.0}),
        (Bootstrapping, {"beta": 1.0, "hard": True}),
        (SCE, {"alpha": 1.0, "beta": 0.0}),
        (ELR, {"weight": 0.0}),
    ],
)
def test_limiting_case_is_cross_entropy(kind: Callable[..., Method], options: dict[str, Any]) -> None:
    method, plain = trained(kind, dropout=0.0, **options), trained(CrossEntropy, dropout=0.0)
    torch.testing.assert_close(method.model.state_dict(), plain.model.state_dict(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "options", "loss"),
    [
        (LabelSmoothing, {"smoothing": 0.3}, lambda z, y: smoothed_cross_entropy(z, y, 0.3)),
        (GCE, {"q": 0.4}, lambda z, y: generalised_cross_entropy(z, y, 0.4)),
        (SCE, {"alpha": 2.0, "beta": 0.5, "log_zero": -6.0}, lambda z, y: symmetric_cross_entropy(z, y, 2, 0.5, -6)),
        (Bootstrapping, {}, lambda z, y: soft_bootstrapping(z, y, 0.95)),
        (Bootstrapping, {"hard": True}, lambda z, y: hard_bootstrapping(z, y, 0.8)),
        (Bootstrapping, {"hard": True, "beta": 0.5}, lambda z, y: hard_bootstrapping(z, y, 0.5)),
    ],
)
def test_step_descends_its_loss(
    kind: Callable[..., Method], options: dict[str, Any], loss: Callable[[Tensor, Tensor], Tensor]
) -> None:
    net = network(dropout=0.0)
    literal = copy.deepcopy(net)
    method = kind(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1), **options)
    metrics = method.step((X, Y))
    logits = literal(X)
    expected = loss(logits, Y)
    expected.backward()
    torch.optim.SGD(literal.parameters(), lr=0.1).step()
    torch.testing.assert_close(net.state_dict(), literal.state_dict())
    right = (logits.argmax(1) == Y).double().mean()
    assert metrics == pytest.approx({"loss": expected.item(), "accuracy": right.item()})


@pytest.mark.parametrize("name", RIVALS)
def test_settings_are_options_with_which_it_was_built(name: str) -> None:
    method = build(RIVALS[name])
    again = type(method)(method.model, CLASSES, method.optimizer, **method.settings())
    assert again.settings() == method.settings()
    assert method.paper


# mixup


def test_mixup_draws_from_its_beta_distribution() -> None:
    """Mean ½ and variance 1 / 4(2α + 1), in other orders each time."""
    for alpha in (0.5, 1.0, 8.0):
        generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
        draws = [draw_mixture(alpha, 5, generator, device) for _ in range(1500)]
        shares, orders = zip(*draws, strict=True)
        drawn = torch.tensor(shares)
        assert float(drawn.mean()) == pytest.approx(0.5, abs=0.03)
        assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)
        assert len({tuple(order.tolist()) for order in orders}) == 120


def test_mixup_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(dropout=0.0)
    literal, order = copy.deepcopy(net), torch.tensor([3, 0, 5, 1, 2, 4])
    method = Mixup(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1))
    monkeypatch.setattr("vri.methods.mixup.draw_mixture", lambda *_: (0.7, order))
    metrics = method.step((X[:6], Y[:6]))
    logits = literal(0.7 * X[:6] + 0.3 * X[order])
    targets = 0.7 * F.one_hot(Y[:6], CLASSES) + 0.3 * F.one_hot(Y[order], CLASSES)
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    torch.optim.SGD(literal.parameters(), lr=0.1).step()
    torch.testing.assert_close(net.state_dict(), literal.state_dict())
    right = 0.7 * (logits.argmax(1) == Y[:6]).double().mean() + 0.3 * (logits.argmax(1) == Y[order]).double().mean()
    assert metrics == pytest.approx({"loss": loss.item(), "accuracy": right.item(), "share": 0.7})


# ELR


def test_elr_targets_and_step_by_hand() -> None:
    net = network(dropout=0.0)
    literal = copy.deepcopy(net)
    method = ELR(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1), weight=2.0, beta=0.6)
    method.begin_training(SIZE, None)
    optimizer, targets = torch.optim.SGD(literal.parameters(), lr=0.1), torch.zeros(SIZE, CLASSES)
    for rows in (torch.tensor([0, 3, 5, 2]), torch.tensor([3, 2, 7, 8])):
        logits = literal(X[rows])
        p = F.softmax(logits, 1)
        targets[rows] = 0.6 * targets[rows] + 0.4 * p.detach()
        penalty = torch.log(1 - (p * targets[rows]).sum(1)).mean()
        loss = F.cross_entropy(logits, Y[rows]) + 2 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = method.step((X[rows], Y[rows], rows))
        torch.testing.assert_close(method.targets.values, targets)
        torch.testing.assert_close(net.state_dict(), literal.state_dict())
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert metrics["penalty"] == pytest.approx(penalty.item(), rel=1e-5)
        assert metrics["target_accuracy"] == (targets[rows].argmax(1) == Y[rows]).double().mean()
    assert not targets[1].any()  # never seen


def test_elr_shares_no_targets_with_a_loaded_state() -> None:
    method = build(ELR)
    method.begin_training(SIZE, None)
    state = {**method.state_dict(), "targets": torch.zeros(SIZE, CLASSES)}
    method.load_state_dict(state)
    steps(method, 0, 2)
    assert method.targets.values.any()
    assert not state["targets"].any()


def test_elr_mistakes() -> None:
    method = build(ELR)
    with says(
        ValueError,
        "ELR keeps something for each training sample, but doesn't know how many there are; call "
        "begin_training(size, None) before the first step, or train with vri.train",
    ):
        method.step((X, Y, torch.arange(SIZE)))
    method.begin_training(SIZE, None)
    state = copy.deepcopy(method.state_dict())
    wrong: list[tuple[Any, str]] = [
        ((X, Y), "nothing"),
        ((X, Y, [0] * SIZE), "a list"),
        ((X, Y, torch.arange(SIZE).float()), "float32 of shape (12,)"),
        ((X, Y, torch.arange(5)), "int64 of shape (5,)"),
    ]
    for batch, got in wrong:
        with says(
            ValueError,
            "ELR needs the numbers of the samples as last part of a batch, integers of shape (12,), and got "
            f"{got}; give batches (inputs, labels, index)",
        ):
            method.step(batch)
    for shift, low, high in ((-1, -1, 10), (1, 1, 12)):
        with says(
            ValueError,
            f"the sample numbers run from {low} to {high}, but there are 12 training samples; number them 0..11, or "
            "call begin_training with their count",
        ):
            method.step((X, Y, torch.arange(SIZE) + shift))
    same_state(method.state_dict(), state)  # nothing moved


# GLC


def test_glc_estimates_the_matrix_of_the_trained_network() -> None:
    method = build(GLC)
    method.begin_training(SIZE, clean_batches)
    steps(method, 0, 4)
    literal = copy.deepcopy(method.model).eval()
    p = F.softmax(literal(CLEAN[0]), 1).detach()
    expected = torch.stack([p[CLEAN[1] == k].mean(0) for k in range(CLASSES)])
    method.model[1].eval()  # a layer's own mode stays
    running = method.model[1].running_mean.clone()
    method.restart, method._initial = False, None
    method.begin_epoch(2, EPOCHS)
    torch.testing.assert_close(method.matrix, expected)
    assert torch.equal(method.model[1].running_mean, running)
    assert [m.training for m in method.model] == [True, False, True, True, True]
    assert method.noisy_share == SIZE / (SIZE + 9)


@pytest.mark.parametrize("restart", [True, False])
def test_glc_phases(restart: bool) -> None:
    method, plain = build(GLC, restart=restart), build(CrossEntropy)
    initial = copy.deepcopy(method.model.state_dict())
    method.begin_training(SIZE, clean_batches)
    first = steps(method, 0, 4)
    steps(plain, 0, 4)
    assert not any("clean_loss" in m for m in first)
    if not restart:  # else the schedules differ
        same_state(method.model.state_dict(), plain.model.state_dict())
    assert not method.meta_due
    before = copy.deepcopy(method.model.state_dict())
    method.begin_epoch(2, EPOCHS)
    assert method.meta_due
    same_state(dict(method.model.state_dict()), dict(initial if restart else before))
    assert bool(method.optimizer.state) is not restart
    assert method.optimizer.param_groups[0]["lr"] != 0.01  # the loop's rate is left alone
    matrix = method.matrix
    steps(method, 4)
    assert method.matrix is matrix  # estimated once
    method.begin_training(SIZE, clean_batches)
    assert not method.meta_due  # a second training begins anew


def test_glc_learning_rates() -> None:
    method = build(GLC, estimate_share=0.25)
    method.begin_training(SIZE, clean_batches)
    rates = []
    for epoch in range(8):
        method.begin_epoch(epoch, 8)
        rates.append(method.lr_scale(epoch / 8, lambda progress: 1 - progress))
    assert rates == pytest.approx([1, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    going_on = build(GLC, restart=False)
    assert going_on.lr_scale(0.75, lambda progress: 1 - progress) == 0.25


def test_glc_step_counts_each_sample_the_same() -> None:
    """With the identity as matrix it is cross-entropy on both batches together."""
    net = nn.Linear(4, CLASSES)
    literal = copy.deepcopy(net)
    method = GLC(net, CLASSES, torch.optim.SGD(net.parameters(), lr=0.1))
    method.matrix, method.noisy_share = torch.eye(CLASSES), SIZE / (SIZE + 9)
    metrics = method.step((X, Y), CLEAN)
    loss = F.cross_entropy(literal(torch.cat([X, CLEAN[0]])), torch.cat([Y, CLEAN[1]]))
    loss.backward()
    torch.optim.SGD(literal.parameters(), lr=0.1).step()
    torch.testing.assert_close(net.state_dict(), literal.state_dict())
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["labels_right"] == 1.0


def test_glc_mistakes() -> None:
    method = build(GLC)
    with says(
        ValueError,
        "GLC learns from trusted samples, but trusted_batches is None; give a function that goes through them once",
    ):
        method.begin_training(SIZE, None)
    with says(ValueError, "GLC has seen no clean samples to estimate from; call begin_training first"):
        method.begin_epoch(2, EPOCHS)
    with says(
        ValueError,
        "GLC has two phases, but epochs=1; expected 2 or more: one to learn the noisy labels and one to train with "
        "the corrected loss",
    ):
        method.begin_epoch(0, 1)
    method.begin_training(SIZE, lambda: [(CLEAN[0][:2], CLEAN[1][:2])])
    with says(
        ValueError,
        "the meta set lacks class 2: expected at least one clean sample of each of the 3 classes; add some, or "
        "lower num_classes",
    ):
        method.begin_epoch(2, EPOCHS)
    assert method.matrix is None
    method.begin_training(SIZE, clean_batches)
    method.begin_epoch(2, EPOCHS)
    with says(
        ValueError,
        "this step trains on clean samples too, but meta_batch is None; pass one whenever method.meta_due is true",
    ):
        method.step((X, Y))


# options


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LabelSmoothing, {"smoothing": 1.0}, "smoothing=1.0 (expected a number in [0, 1))"),
        (Mixup, {"alpha": -1.0}, "alpha=-1.0 (expected 0 or more)"),
        (GCE, {"q": 0.0}, "q=0.0 (expected a number in (0, 1]; 'cross-entropy' is q → 0)"),
        (
            SCE,
            {"alpha": -1.0, "beta": -0.5, "log_zero": 0.0},
            "alpha=-1.0 (expected 0 or more); beta=-0.5 (expected 0 or more, and not 0 like alpha); log_zero=0.0 "
            "(expected less than 0)",
        ),
        (SCE, {"alpha": 0.0, "beta": 0.0}, "beta=0.0 (expected 0 or more, and not 0 like alpha)"),
        (Bootstrapping, {"beta": 1.1}, "beta=1.1 (expected a number in (0, 1])"),
        (
            ELR,
            {"weight": -1.0, "beta": 1.0},
            "weight=-1.0 (expected 0 or more); beta=1.0 (expected a number in [0, 1))",
        ),
        (GLC, {"estimate_share": 1.0}, "estimate_share=1.0 (expected a number in (0, 1))"),
    ],
)
def test_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with says(ValueError, f"{kind.__name__} got options it can't use: {message}"):
        build(kind, **options)


# training


@pytest.fixture(scope="module")
def digits() -> dict[str, Any]:
    """Digits of which a fifth is wrongly labelled, 100 clean ones, and the test part."""
    source = vri.data.load("digits")
    x = vri.data.to_float(source.train_x).flatten(1)
    parts = vri.data.split(source.train_y, sizes={"clean": 100, "noisy": -1}, num_classes=10, seed=0)
    noisy, clean = parts["noisy"], parts["clean"]
    labels = vri.noise.uniform(None, source.train_y[noisy], num_classes=10, rate=0.2).labels
    return {
        "train_set": (x[noisy], labels),
        "meta_set": (x[clean], source.train_y[clean]),
        "test_set": (vri.data.to_float(source.test_x).flatten(1), source.test_y),
    }


@pytest.mark.parametrize("name", [name for name in RIVALS if name != "JNPL"])  # which learns slowly
def test_learns_digits(name: str, digits: dict[str, Any]) -> None:
    net = vri.backbones.mlp(64, 10, hidden=(64,), seed=0)
    # in so few steps JoCoR's networks hear too little of the labels at the published λ = 0.9
    options: dict[str, Any] = {
        **{key: {"noise_rate": 0.2} for key in ("co-teaching", "co-teaching+", "CoDis")},
        "JoCoR": {"noise_rate": 0.2, "co_weight": 0.5},
    }.get(name, {})
    method = RIVALS[name](net, 10, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), **options)
    history = vri.train(method, **digits, epochs=6, batch_size=50, progress=False)
    assert history[-1]["test_accuracy"] > 0.8
