"""The figures of the paper: what is run for each, at either scale; `vri.paper.figures` draws them."""

from collections.abc import Mapping
from typing import Any

from vri.paper import figures as draw
from vri.paper import verdicts
from vri.paper.experiments import Column, Experiment, Grid, TableRow
from vri.paper.rows import (
    CIFARS,
    FASHION,
    LONG,
    PAPER_WORDS,
    Values,
    columns,
    grid,
    paper,
    quick,
    rivals,
)


def figures() -> list[Experiment]:
    """All figures."""
    cifar = {"dataset": "cifar10", "backbone": "resnet32"}
    rates = (0.2, 0.4, 0.6)
    vis = Experiment(
        "fig:vis",
        "losses before and after rectification, and the transition matrix",
        "Rectification lowers the losses, the more so the more labels are wrong, and the transition matrix is found.",
        {
            "quick": grid([quick("VRI", "vri")], columns({"Fashion-MNIST": FASHION}, "flip", rates)),
            "paper": Grid([paper("VRI", "vri")], columns({"CIFAR-10": cifar}, "flip", rates), PAPER_WORDS),
        },
        verdicts.rectification,
        draw.rectification,
        examine="rectification",
        compare=None,
    )
    bounds = {"log σ² within ±1": "log_var", "free σ²": "prior"}

    def collapse_rows(make: Any) -> list[TableRow]:
        return [
            make(f"{name}, k = {k}, {words}", method, options={"samples": k, "bound": bound})
            for words, bound in bounds.items()
            for name, method in (("MC", "mc"), ("VRI", "vri"))
            for k in (1, 2, 5)
        ]

    collapse = Experiment(
        "fig:collapse",
        "variance of the rectifying vector at 70 % uniform noise",
        "Without prior (MC) the variance goes to zero; VRI's stays.",
        {
            "quick": grid(
                collapse_rows(quick),
                columns({"Fashion-MNIST": LONG}, "uniform", (0.7,)),
                "Fashion-MNIST: 10,000 noisy + 1,000 clean images, an MLP, 20 epochs, batches of 100. Variance is "
                "‖σ²‖/√c of the posterior, on average over an epoch: 1 for a standard Gaussian. log σ² is bounded "
                "by our default, and free as in the paper's code.",
            ),
            "paper": Grid(collapse_rows(paper), columns({"CIFAR-10": cifar}, "uniform", (0.7,)), PAPER_WORDS),
        },
        verdicts.collapse,
        draw.collapse,
        compare=None,
    )
    many = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    four = rivals("GLC", "MW-Net", "MSLC") | {"VRI": ("vri", None)}
    robustness = Experiment(
        "fig:robustness",
        "accuracy as flip noise grows to 70 %",
        "VRI stays accurate up to 70 % flip noise, ahead of GLC, MW-Net and MSLC.",
        {
            "quick": grid(
                [quick(label, method) for label, (method, _) in four.items()],
                _axis(columns({"Fashion-MNIST": FASHION}, "flip", many), "Fashion-MNIST", [100 * r for r in many]),
            ),
            "paper": Grid(
                [paper(label, method, backbone="resnet32") for label, (method, _) in four.items()],
                [
                    column
                    for name, data in CIFARS.items()
                    for column in _axis(columns({name: data}, "flip", many), name, [100 * r for r in many])
                ],
                PAPER_WORDS,
            ),
        },
        verdicts.vri_is_ahead,
        draw.lines("flip noise (%)", "accuracy against noise"),
    )
    two: dict[str, str] = {"VRI": "vri", "MW-Net": "mw-net"}
    convergence = Experiment(
        "fig:more_ana2",
        "training and meta loss, and the squared norm of the meta gradient",
        "Both losses of VRI converge under 60 % flip noise, and the mean squared norm of the meta gradient falls at "
        "least as fast as 1/√T.",
        {
            "quick": grid(
                [quick(label, method) for label, method in two.items()],
                columns({"Fashion-MNIST": FASHION}, "flip", (0.4, 0.6)),
            ),
            "paper": Grid(
                [paper(label, method, backbone="resnet32") for label, method in two.items()],
                columns({"CIFAR-10": {"dataset": "cifar10"}}, "flip", (0.4, 0.6)),
                PAPER_WORDS,
            ),
        },
        verdicts.convergence,
        draw.convergence,
        compare=None,
    )
    return [vis, collapse, robustness, convergence, _number_of_draws(), _sensitivity()]


def _number_of_draws() -> Experiment:
    """fig:number_k."""
    draws = (1, 2, 3, 5)

    def cells(data: Mapping[str, Values]) -> list[Column]:
        return [
            Column(f"{c.label}, k = {k}", {**c.settings, "options": {"samples": k}}, c.label, k)
            for c in columns(data, "flip", (0.2, 0.4))
            for k in draws
        ]

    return Experiment(
        "fig:number_k",
        "accuracy against the number of draws k",
        "VRI needs only one or two draws; Monte-Carlo rectification (MC) gains from more.",
        {
            "quick": grid([quick("MC", "mc"), quick("VRI", "vri")], cells({"Fashion-MNIST": FASHION})),
            "paper": Grid(
                [_free_draws("MC", "mc"), _free_draws("VRI", "vri")],
                cells({name: {**data, "backbone": "resnet32"} for name, data in CIFARS.items()}),
                PAPER_WORDS,
            ),
        },
        verdicts.draws,
        draw.lines("draws k", "accuracy against the number of draws"),
    )


def _free_draws(label: str, method: str) -> TableRow:
    row = paper(label, method)
    options = {k: v for k, v in row.settings["options"].items() if k != "samples"}  # the column says how many
    return TableRow(label, {**row.settings, "options": options})


def _sensitivity() -> Experiment:
    """fig:sensitivity."""
    weights, sizes = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0), (50, 100, 250, 500, 1000, 2000)

    def cells(data: Values, noises: Mapping[str, float]) -> list[Column]:
        found = [
            Column(f"flip 40 %, λ = {w:g}", {**data, "noise": "flip", "rate": 0.4, "options": {"kl_weight": w}}, "λ", w)
            for w in weights
        ]
        for noise, rate in noises.items():
            name = f"{noise} {100 * rate:.0f} %"
            found += [
                Column(f"{name}, {n} clean", {**data, "noise": noise, "rate": rate, "clean": n}, name, n) for n in sizes
            ]
        return found

    noises = {"flip": 0.4, "uniform": 0.4}
    return Experiment(
        "fig:sensitivity",
        "sensitivity to λ and to the number of clean samples",
        "The best λ is near 0.001, and more clean samples help.",
        {
            "quick": grid([quick("VRI", "vri")], cells(FASHION, noises)),
            "paper": Grid(
                [paper("VRI", "vri")], cells({"dataset": "cifar10", "backbone": "resnet18"}, noises), PAPER_WORDS
            ),
        },
        verdicts.sensitivity,
        draw.sensitivity,
        compare=None,
    )


def _axis(found: list[Column], group: str, places: list[float]) -> list[Column]:
    return [Column(c.label, c.settings, group, x) for c, x in zip(found, places, strict=True)]
