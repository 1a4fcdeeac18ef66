"""The figures of the paper: the runs of each, at all scales; `vri.paper.figures` draws them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vri.paper import figures as draw
from vri.paper import verdicts
from vri.paper.experiments import Column, Experiment, TableRow
from vri.paper.rows import FASHION, LONG, LONG_WORDS, LONGER, Values, cifars, columns, grids

_FASHION = {"Fashion-MNIST": FASHION}
_LONG = {"Fashion-MNIST": LONG["Fashion-MNIST"]}


def figures() -> list[Experiment]:
    """All figures."""
    rates = (0.2, 0.4, 0.6)
    vis = Experiment(
        "fig:vis",
        "losses before and after rectification, and the transition matrix",
        "Rectification lowers the losses, more so with more wrong labels, and recovers the transition matrix.",
        grids(
            _vri,
            columns(_FASHION, "flip", rates),
            columns(_LONG, "flip", rates),
            columns(cifars("resnet32", "CIFAR-10"), "flip", rates),
            medium_words=LONG_WORDS,
        ),
        verdicts.rectification,
        draw.rectification,
        examine="rectification",
        compare=None,
    )

    def bounded(make: Any) -> list[TableRow]:
        return [
            make(f"{name}, k = {k}, {words}", name.lower(), options={"samples": k, "bound": bound})
            for words, bound in (("log σ² within ±1", "log_var"), ("free σ²", "prior"))
            for name in ("MC", "VRI")
            for k in (1, 2, 5)
        ]

    collapse = Experiment(
        "fig:collapse",
        "variance of the rectifying vector at 70 % uniform noise",
        "Without prior (MC) the variance goes to zero; VRI's stays.",
        grids(
            bounded,
            columns({"Fashion-MNIST": LONGER}, "uniform", (0.7,)),
            columns(_LONG, "uniform", (0.7,)),
            columns(cifars("resnet32", "CIFAR-10"), "uniform", (0.7,)),
            "Fashion-MNIST: 10,000 noisy + 1,000 clean images, an MLP, 20 epochs, batches of 100. Variance is "
            "‖σ²‖/√c of the posterior, averaged over an epoch: 1 for a standard Gaussian. log σ² is either bounded, "
            "our default, or free, as in the paper's code.",
            medium_words=f"{LONG_WORDS} Variance as at quick scale.",
        ),
        verdicts.collapse,
        draw.collapse,
        compare=None,
    )

    def by_rate(data: Mapping[str, Values]) -> list[Column]:
        found = columns(data, "flip", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7))
        return [replace(c, group=c.label.split(",")[0], x=100 * c.settings["rate"]) for c in found]

    robustness = Experiment(
        "fig:robustness",
        "accuracy as flip noise grows to 70 %",
        "VRI stays accurate up to 70 % flip noise, ahead of GLC, MW-Net and MSLC.",
        grids(
            lambda make: [make(name, name.lower()) for name in ("GLC", "MW-Net", "MSLC", "VRI")],
            by_rate(_FASHION),
            by_rate(_LONG),
            by_rate(cifars("resnet32")),
            medium_words=LONG_WORDS,
        ),
        verdicts.vri_is_ahead,
        draw.lines("flip noise (%)", "accuracy against noise"),
    )
    convergence = Experiment(
        "fig:more_ana2",
        "training and meta loss, and the squared norm of the meta gradient",
        "Both losses of VRI converge under 60 % flip noise, and the mean squared norm of the meta gradient falls at "
        "least as fast as 1/√T.",
        grids(
            lambda make: [make(name, name.lower()) for name in ("VRI", "MW-Net")],
            columns(_FASHION, "flip", (0.4, 0.6)),
            columns(_LONG, "flip", (0.4, 0.6)),
            columns(cifars("resnet32", "CIFAR-10"), "flip", (0.4, 0.6)),
            medium_words=LONG_WORDS,
        ),
        verdicts.convergence,
        draw.convergence,
        compare=None,
    )
    return [vis, collapse, robustness, convergence, _number_of_draws(), _sensitivity()]


def _vri(make: Any) -> list[TableRow]:
    return [make("VRI", "vri")]


def _number_of_draws() -> Experiment:
    """fig:number_k."""

    def by_k(data: Mapping[str, Values]) -> list[Column]:
        return [
            Column(f"{c.label}, k = {k}", {**c.settings, "options": {"samples": k}}, c.label, k)
            for c in columns(data, "flip", (0.2, 0.4))
            for k in (1, 2, 3, 5)
        ]

    return Experiment(
        "fig:number_k",
        "accuracy against the number of draws k",
        "VRI needs only one or two draws; Monte-Carlo rectification (MC) gains from more.",
        grids(
            lambda make: [make(name, name.lower()) for name in ("MC", "VRI")],
            by_k(_FASHION),
            by_k(_LONG),
            by_k(cifars("resnet32")),
            medium_words=LONG_WORDS,
        ),
        verdicts.draws,
        draw.lines("draws k", "accuracy against the number of draws"),
    )


def _sensitivity() -> Experiment:
    """fig:sensitivity."""

    def varied(data: Values) -> list[Column]:
        flip, uniform = ({**data, "noise": noise, "rate": 0.4} for noise in ("flip", "uniform"))
        weights = [
            Column(f"flip 40 %, λ = {w:g}", {**flip, "options": {"kl_weight": w}}, "λ", w)
            for w in (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
        ]
        return weights + [
            Column(f"{each['noise']} 40 %, {n} clean", {**each, "clean": n}, f"{each['noise']} 40 %", n)
            for each in (flip, uniform)
            for n in (50, 100, 250, 500, 1000, 2000)
        ]

    return Experiment(
        "fig:sensitivity",
        "sensitivity to λ and to the number of clean samples",
        "The best λ is near 0.001, and more clean samples help.",
        grids(
            _vri,
            varied(FASHION),
            varied(_LONG["Fashion-MNIST"]),
            varied(cifars("resnet18", "CIFAR-10")["CIFAR-10"]),
            medium_words=LONG_WORDS,
        ),
        verdicts.sensitivity,
        draw.sensitivity,
        compare=None,
    )
