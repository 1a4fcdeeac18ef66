"""The tables of the paper: what is run for each, at either scale."""

from typing import Any

from vri.paper import verdicts
from vri.paper.experiments import Column, Experiment, Grid, TableRow
from vri.paper.rows import (
    CIFARS,
    CNN,
    DIGITS,
    FASHION,
    HUMAN,
    OPEN,
    PAPER_WORDS,
    SETTING,
    SMALL,
    columns,
    comparison,
    from_config,
    grid,
    paper,
    quick,
    rivals,
    with_backbone,
)


def tables() -> list[Experiment]:
    """All tables."""
    flip_34 = [
        paper("ELR", "elr", ("ELR",)),
        paper("MSLC", "mslc", ("MSLC",)),
        paper("VRI", "vri", ("VRI",)),
    ]
    flip = Experiment(
        "tab:flip",
        "flip noise: each class has one other class that its labels turn to",
        "VRI is ahead of other meta-learning methods under flip noise.",
        {
            "quick": grid(
                comparison(rivals("MW-Net", "PMW-Net", "MLC (Zheng et al.)", "MSLC", "WarPI", "ELR"), quick),
                columns(SMALL, "flip", (0.2, 0.4)),
            ),
            "paper": Grid(
                with_backbone(
                    comparison(rivals("MW-Net", "PMW-Net", "MLC (Zheng et al.)", "WarPI"), paper),
                    "resnet32",
                    "ResNet-32",
                )
                + with_backbone(flip_34, "resnet34", "ResNet-34"),
                columns(CIFARS, "flip", (0.2, 0.4)),
                PAPER_WORDS,
            ),
        },
        verdicts.vri_is_ahead,
    )
    uniform = Experiment(
        "tab:uniform",
        "uniform noise: labels turn to any class",
        "VRI is level with the best methods under uniform noise.",
        {
            "quick": grid(comparison(rivals("MSLC", "ELR"), quick), columns(SMALL, "uniform", (0.2, 0.4))),
            "paper": Grid(
                comparison(rivals("MSLC", "ELR"), paper, backbone="resnet18"),
                columns(CIFARS, "uniform", (0.2, 0.4)),
                f"{PAPER_WORDS} All with ResNet-18; the published ELR and MSLC have ResNet-34.",
            ),
        },
        verdicts.vri_is_ahead,
    )
    both = {"CIFAR-10": {"dataset": "cifar10", "backbone": "resnet18"}}
    instance = Experiment(
        "tab:instance",
        "instance-dependent noise: hard images get wrong labels more often",
        "VRI is ahead of its rivals under instance-dependent noise.",
        {
            "quick": grid(comparison(rivals("Co-teaching", "WarPI"), quick), columns(SMALL, "instance", (0.2, 0.4))),
            "paper": Grid(
                comparison(rivals("Co-teaching", "WarPI"), paper),
                columns({**both, "CIFAR-100": {"dataset": "cifar100", "backbone": "resnet34"}}, "instance", (0.2, 0.4)),
                f"{PAPER_WORDS} ResNet-18 on CIFAR-10, ResNet-34 on CIFAR-100.",
            ),
        },
        verdicts.vri_is_ahead,
    )
    cloth = Experiment(
        "tab:cloth",
        "labels of the real world",
        "VRI is ahead of its rivals where labels are wrong by nature.",
        {
            "quick": grid(
                comparison(rivals("MW-Net", "WarPI", "ELR"), quick),
                [Column('CIFAR-10N "worse"', HUMAN)],
                "Clothing1M and Food-101N are too large here; in their place CIFAR-10 with the labels of people "
                "(CIFAR-10N, 40 % wrong): 10,000 noisy + 1,000 clean images, 5,000 test images, a small CNN, 10 "
                "epochs, batches of 100.",
            ),
            "paper": Grid(
                comparison(rivals("MW-Net", "WarPI", "ELR"), paper, options={}),
                [from_config("Clothing1M", "clothing1m"), from_config("Food-101N", "food101n")],
                "the paper's data, ResNet-50 with ImageNet weights and schedule.",
            ),
        },
        verdicts.vri_is_ahead,
    )
    open_rows = rivals("Decoupling", "Co-teaching", "JoCoR")
    openset = Experiment(
        "tab:openset",
        "open-set noise: a fifth of the images belong to no class",
        "VRI is better than its rivals under open-set noise.",
        {
            "quick": grid(
                comparison(open_rows, quick),
                columns({"CIFAR-80N": OPEN}, "open-uniform", (0.5,), "uniform")
                + columns({"CIFAR-80N": OPEN}, "open-pair", (0.4,), "pair"),
                "CIFAR-80N: 8,000 noisy images, a fifth of them out of distribution, + 800 clean ones, 4,000 test "
                "images, a small CNN, 6 epochs, batches of 100.",
            ),
            "paper": Grid(
                comparison(open_rows, paper, backbone="resnet18"),
                columns({"CIFAR-80N": {"dataset": "cifar80n"}}, "open-uniform", (0.2, 0.5, 0.8), "uniform")
                + columns({"CIFAR-80N": {"dataset": "cifar80n"}}, "open-pair", (0.4,), "pair"),
                f"{PAPER_WORDS} ResNet-18: the paper names no backbone. Mean of the last 10 epochs, as in the paper.",
            ),
        },
        verdicts.vri_is_ahead,
        score="last_10_mean",
    )
    efficiency = Experiment(
        "tab:efficiency",
        "time and accuracy against the number of draws k",
        "VRI with one draw is better than Monte-Carlo rectification with five, and costs no more than it with one.",
        {
            "quick": grid(
                [_draws(quick, m, k) for m in ("mc", "vri") for k in (1, 3, 5)],
                columns({"Fashion-MNIST": CNN}, "flip", (0.4,)),
                "Fashion-MNIST: 10,000 noisy + 1,000 clean images, a small CNN, 6 epochs, batches of 100. Times are "
                "of a training step against one of plain cross-entropy on the same network, which take turns.",
            ),
            "paper": Grid(
                [_draws(paper, m, k) for m in ("mc", "vri") for k in (1, 3, 5)],
                columns({"CIFAR-10": {"dataset": "cifar10", "backbone": "resnet32"}}, "flip", (0.4,)),
                f"{PAPER_WORDS} ResNet-32.",
            ),
        },
        verdicts.efficiency,
        examine="step-time",
        compare="VRI, k = 1",
    )
    shapes = ((128,), (512, 512), (1024, 512), (1024, 1024), (1024, 1024, 512, 512))
    structure = Experiment(
        "tab:metanet_structure",
        "hidden layers of the meta network",
        "Two hidden layers of 1024 and 512 units are best.",
        {
            "quick": grid([_shape(quick, widths) for widths in shapes], columns(SMALL, "flip", (0.4,))),
            "paper": Grid(
                [_shape(paper, widths) for widths in shapes],
                columns({"CIFAR-10": {"dataset": "cifar10", "backbone": "resnet32"}}, "flip", (0.4,)),
                f"{PAPER_WORDS} ResNet-32.",
            ),
        },
        verdicts.best_row("1024-512"),
        compare="1024-512",
    )
    start: dict[str, Any] = {"initial_mean": 0.0}
    squashes = {"sigmoid": "sigmoid", "tanh": "tanh", "none": "none"}
    output = Experiment(
        "tab:output_layer",
        "function that squashes the rectifying vector",
        "The sigmoid is better than tanh and than none.",
        {
            "quick": grid(
                [
                    quick("sigmoid", "vri", ("VRI", "sigmoid"), options={**start, "squash": "sigmoid"}),
                    quick("tanh", "vri", ("VRI", "tanh"), options={**start, "squash": "tanh"}),
                    quick("none", "vri", ("VRI", "none"), options={**start, "squash": "none"}),
                    quick("sigmoid from a mean of −2 (our default)", "vri"),
                ],
                columns(SMALL, "uniform", (0.4,)),
                f"{SETTING}, batches of 100. The first three rows draw vectors around 0 in the beginning, as in the "
                "paper; the last one has our default.",
            ),
            "paper": Grid(
                [paper(name, "vri", ("VRI", name), options={"squash": name}) for name in squashes],
                columns({"CIFAR-10": {"dataset": "cifar10", "backbone": "resnet18"}}, "uniform", (0.4,)),
                f"{PAPER_WORDS} ResNet-18.",
            ),
        },
        verdicts.best_row("sigmoid"),
        compare="sigmoid",
    )
    names = {"VRI": "vri", "MC": "mc", "non-Bayesian": "non-bayesian"}
    printed = {"VRI": ("VRI",), "MC": None, "non-Bayesian": ("Non-Bayesian VRI",)}
    bayes = Experiment(
        "tab:non_bayesian",
        "what the probabilistic form is worth",
        "VRI is better than Monte-Carlo rectification (MC), and that better than a network without randomness.",
        {
            "quick": grid(
                [quick(label, name, printed[label]) for label, name in names.items()],
                columns(SMALL, "uniform", (0.4,)) + columns(SMALL, "instance", (0.4,)),
            ),
            "paper": Grid(
                [paper(label, name, printed[label], backbone="resnet18") for label, name in names.items()],
                columns(CIFARS, "uniform", (0.4,)) + columns(CIFARS, "instance", (0.4,)),
                f"{PAPER_WORDS} ResNet-18.",
            ),
        },
        verdicts.order("VRI", "MC", "non-Bayesian"),
    )
    return [flip, uniform, instance, cloth, openset, efficiency, structure, output, bayes, _no_clean(), _animal()]


def _draws(make: Any, method: str, draws: int) -> TableRow:
    name = {"mc": "MC", "vri": "VRI"}[method]
    published = (name, f"k={draws}") if (method, draws) in (("mc", 1), ("mc", 3), ("mc", 5), ("vri", 1)) else None
    row: TableRow = make(f"{name}, k = {draws}", method, published, options={"samples": draws})
    return row


def _shape(make: Any, widths: tuple[int, ...]) -> TableRow:
    name = "-".join(map(str, widths))
    row: TableRow = make(name, "vri", ("VRI", name), options={"hidden": list(widths)})
    return row


def _no_clean() -> Experiment:
    """tab:unif_nometa."""

    def rows(make: Any, **mixture: Any) -> list[TableRow]:
        nothing: dict[str, Any] = {"clean": 0}
        return [
            make("cross-entropy", "cross-entropy", ("Baseline",), **nothing),
            make("VRI (−)", "vri", ("VRI (-)",), **nothing, selection="smallest"),
            make("VRI (+)", "vri", ("VRI (+)",), **nothing, selection="balanced"),
            make("VRI (Aug.)", "vri", ("VRI (Aug.)",), **nothing, selection="mixture", mixup=1.0, **mixture),
            make("VRI", "vri", ("VRI (Standard)",), warm_up=None),
        ]

    sized = {"digits": {**DIGITS, "selection_size": 100}, "Fashion-MNIST": {**FASHION, "selection_size": 1000}}
    more = quick("VRI (+), half of all samples", "vri", None, clean=0, selection="balanced", selection_size=None)
    return Experiment(
        "tab:unif_nometa",
        "learning without clean samples",
        "VRI (+), which selects as many samples of each class, nearly matches VRI with clean samples; VRI (−), which "
        "just takes the smallest losses, does not.",
        {
            "quick": grid(
                [*rows(quick), more],
                columns(sized, "uniform", (0.4, 0.6)) + columns(sized, "flip", (0.2, 0.4)),
                f"{SETTING}, batches of 100. As many samples are selected as VRI has clean ones, after a warm-up of a "
                "quarter of the epochs, 10 at most; the last row selects half of all, our default. VRI (Aug.) "
                "leaves out RandAugment, which is made for photographs.",
            ),
            "paper": Grid(
                rows(paper, augment="rand-augment"),
                [_no_clean_paper(noise, rate, name) for noise, at in _AT.items() for name in CIFARS for rate in at],
                f"{PAPER_WORDS} ResNet-18 under uniform noise, ResNet-32 under flip noise.",
            ),
        },
        verdicts.no_clean,
    )


_AT = {"uniform": (0.4, 0.6), "flip": (0.2, 0.4)}  # flip: what the printed numbers belong to


def _no_clean_paper(noise: str, rate: float, name: str) -> Column:
    settings = {
        **CIFARS[name],
        "noise": noise,
        "rate": rate,
        "backbone": {"uniform": "resnet18", "flip": "resnet32"}[noise],
        "selection_size": 1000,
        "warm_up": {"CIFAR-10": 10, "CIFAR-100": 30}[name],
    }
    return Column(f"{name}, {noise} {100 * rate:.0f} %", settings)


def _animal() -> Experiment:
    """tab:animal."""

    def rows(make: Any) -> list[TableRow]:
        return [
            make("cross-entropy", "cross-entropy", ("Baseline",), clean=0),
            make("VRI (−)", "vri", ("VRI (-)",), clean=0, selection="two-phase-smallest"),
            make("VRI (+)", "vri", ("VRI (+)",), clean=0, selection="two-phase"),
        ]

    return Experiment(
        "tab:animal",
        "labels of people, and no clean samples: one network selects, a second one learns",
        "VRI (+) is better than VRI (−), and both are better than plain training.",
        {
            "quick": grid(
                rows(quick),
                [Column('CIFAR-10N "worse"', {**HUMAN, "selection_size": 1000})],
                "ANIMAL-10N can't be fetched by a program; in its place CIFAR-10 with the labels of people "
                "(CIFAR-10N, 40 % wrong): 10,000 images, 5,000 test images, a small CNN, 10 epochs for either "
                "network, 1,000 samples selected.",
            ),
            "paper": Grid(rows(paper), [from_config("ANIMAL-10N", "animal10n")], "the paper's data, VGG-19, schedule."),
        },
        verdicts.order("VRI (+)", "VRI (−)", "cross-entropy"),
        compare="VRI (+)",
    )
