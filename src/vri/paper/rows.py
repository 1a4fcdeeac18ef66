"""Rows and columns of the paper's tables and figures: data, methods and their options."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from vri.methods import METHODS, CrossEntropy
from vri.methods.vri_literal import PAPER
from vri.paper.experiments import Column, Grid, TableRow
from vri.paper.published import published
from vri.paper.settings import Settings, resolve

Values = Mapping[str, Any]
MakeRows = Callable[[Callable[..., TableRow]], list[TableRow]]  # from `quick` or `paper`

# the paper's settings that variants of VRI can't use
_WITHOUT = {"mc": ("kl_route", "kl_weight"), "non-bayesian": ("kl_route", "kl_weight", "samples")}
# what VRI's defaults add to the paper and any meta-learning method can use; at quick scale rivals use it too
GAMMA: dict[str, Any] = {"clean_weight": 4.0, "clean_updates": 300, "meta_smoothing": 0.1}
OURS = ("vri", "mc", "non-bayesian")  # with VRI's networks and options
META = ("mw-net", "pmw-net", "mlc", "mslc", "warpi", "l2rw", "famus")

DIGITS: Values = {"dataset": "digits", "clean": 100, "limit": 1000, "epochs": 70, "backbone": "mlp"}
FASHION: Values = {"dataset": "fashion-mnist", "clean": 1000, "limit": 10_000, "epochs": 10, "backbone": "mlp"}
LONGER: Values = {**FASHION, "epochs": 20}
_PHOTOS: Values = {"limit": 10_000, "test_limit": 5000, "epochs": 10, "backbone": "small_cnn"}
HUMAN: Values = {**_PHOTOS, "dataset": "cifar10n", "noise": "worse", "clean": 1000}
OPEN: Values = {**_PHOTOS, "dataset": "cifar80n", "clean": 800, "limit": 8000, "test_limit": 4000, "epochs": 6}
CNN: Values = {**FASHION, "epochs": 6, "test_limit": 5000, "backbone": "small_cnn"}
SMALL = {"digits": DIGITS, "Fashion-MNIST": FASHION}

# medium scale: as long as it takes to memorise wrong labels, and a short schedule that never does
FASHION_40: Values = {**FASHION, "limit": 20_000, "validation": 5000, "epochs": 40}
DIGITS_500: Values = {**DIGITS, "validation": 200, "epochs": 500, "evaluate_every": 50}
LONG = {"Fashion-MNIST": FASHION_40, "digits": DIGITS_500}
LONG_SIZED = {name: {**settings, "selection_size": settings["clean"]} for name, settings in LONG.items()}
LONG_WORDS = (
    "Fashion-MNIST: 20,000 noisy + 1,000 trusted images, 40 epochs; digits: 1,000 noisy + 100 trusted images, 500 "
    "epochs; an MLP, batches of 100."
)
PHOTOS: Values = {"dataset": "cifar10", "clean": 1000, "validation": 2000, "backbone": "fast", "evaluate_every": 3}
PHOTOS_100: Values = {**PHOTOS, "dataset": "cifar100", "validation": 1000}
_LENGTHS = {
    "digits": (70, 500),
    "fashion-mnist": (10, 40),
    "cifar10": (6, 18),
    "cifar100": (12, 36),
    "cifar80": (12, 36),
}
_DIGITS_RATES = ((0.02, 5e-3), (0.05, 5e-4))  # learning rate and weight decay; elsewhere `Rates` of each method
MEDIUM_WORDS = (
    "Full CIFAR-10: 47,000 noisy + 1,000 trusted + 2,000 validation images, the backbone fast, 6 or 18 epochs; "
    "Fashion-MNIST: 20,000 noisy + 1,000 trusted + 5,000 validation images, an MLP, 10 or 40 epochs; digits: 1,000 "
    "noisy + 100 trusted + 200 validation images, an MLP, 70 or 500 epochs, with a learning rate of 0.02 and a decay "
    "of 0.005 or 0.05 and 0.0005. Every row takes what is best on the validation images of the first seed, for each "
    "column; methods that use no trusted images train on them with noisy labels."
)

SETTING = (
    "digits: 1,000 noisy + 100 clean samples, 70 epochs; Fashion-MNIST: 10,000 noisy + 1,000 clean, 10 epochs; an MLP"
)
QUICK_WORDS = f"{SETTING}, batches of 100."
PAPER_WORDS = "the paper's data, backbone, schedule and options; 1,000 clean samples."


# By data set and backbone, and by method: learning rate and weight decay.
_TUNED = {"digits, mlp": "digits_mlp", "fashion-mnist, mlp": "fashion_mlp"}
_TUNED |= {f"{name}, small_cnn": "small_cnn" for name in ("fashion-mnist", "cifar10n", "cifar80n")}
RATES: dict[str, dict[str, tuple[float, float]]] = {
    setting: {name: getattr(method.tuned or CrossEntropy.tuned, field) for name, method in METHODS.items()}
    for setting, field in _TUNED.items()
}


def quick(label: str, method: str, printed: tuple[str, ...] | None = None, **changes: Any) -> TableRow:
    """A row at quick scale: VRI and its variants with their defaults, meta-learning rivals with the same γ."""
    options = {**(GAMMA if method in META else {}), **changes.pop("options", {})}
    return TableRow(label, {"method": method, **changes, "options": options}, printed)


def paper(label: str, method: str, printed: tuple[str, ...] | None = None, **changes: Any) -> TableRow:
    """A row at the paper's scale: the paper's options for VRI and its variants, each rival's own defaults."""
    own = {k: v for k, v in PAPER.items() if k not in _WITHOUT.get(method, ())}
    options = {**(own if method in OURS else {}), **changes.pop("options", {})}
    return TableRow(label, {"method": method, **changes, "options": options}, printed)


def columns(data: Mapping[str, Values], noise: str, rates: Iterable[float], words: str | None = None) -> list[Column]:
    """Every data set with every rate of a noise."""
    return [
        Column(f"{name}, {words or noise} {100 * rate:.0f} %", {**settings, "noise": noise, "rate": rate})
        for name, settings in data.items()
        for rate in rates
    ]


def tuned(label: str, settings: Values, noise: str, rate: float | None = None, seeds: int | None = None) -> Column:
    """A column of the medium scale, where every row chooses its length; on digits all rows, on photographs few."""
    dataset = str(settings["dataset"]).removesuffix("n")
    lengths: dict[str, Values] = {f"{n} epochs": {"epochs": n} for n in _LENGTHS[dataset]}
    if dataset == "digits":
        lengths = {
            f"{name}, rate {lr:g}": {**length, "lr": lr, "weight_decay": decay}
            for name, length in lengths.items()
            for lr, decay in _DIGITS_RATES
        }
    chosen = {k: v for k, v in settings.items() if k != "epochs"} | {"noise": noise}
    chosen |= {} if rate is None else {"rate": rate}
    every = STRONGEST | OTHERS if dataset == "digits" else STRONGEST
    rows = tuple(label for label in every if label not in _AUGMENTED)
    if settings["backbone"] == "fast":
        rows = FEW if seeds == 1 else (*STRONGEST, *_ALSO_ON_PHOTOS)
    own = _GAMMA_ON_FAST if settings["backbone"] == "fast" else {}
    return Column(label, chosen, choices=lengths, seeds=seeds, rows=rows, own=own)


def tuned_columns(noise: str, main: float, other: float, *sets: str) -> list[Column]:
    """The columns of a noise on the sets of the medium scale: 3 seeds of the `main` rate, one of the other."""
    every = {"CIFAR-10": PHOTOS, "Fashion-MNIST": FASHION_40, "digits": DIGITS_500}
    return [
        tuned(f"{name}, {noise} {100 * rate:.0f} %", every[name], noise, rate, 3 if rate == main else 1)
        for rate in (main, other)
        for name in sets or every
    ]


def from_config(label: str, name: str) -> Column:
    """A column with the settings of a configuration file, except method and options."""
    defaults, chosen = Settings().as_dict(), resolve(name).as_dict()
    own = {k: v for k, v in chosen.items() if v != defaults[k] or k == "dataset"}
    return Column(label, {k: v for k, v in own.items() if k not in ("method", "options", "seed")})


def cifars(backbone: str, *names: str) -> dict[str, Values]:
    """CIFAR-10 and CIFAR-100, or one of them, with a classifier."""
    sets = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    return {name: {"dataset": sets[name], "backbone": backbone} for name in names or sets}


RIVALS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "MW-Net": ("mw-net", ("MW-Net",)),
    "PMW-Net": ("pmw-net", ("PMW-Net",)),
    "MLC (Zheng et al.)": ("mlc", None),  # the published MLC is another method
    "MSLC": ("mslc", ("MSLC",)),
    "WarPI": ("warpi", ("WarPI",)),
    "ELR": ("elr", ("ELR",)),
    "GLC": ("glc", None),
    "Co-teaching": ("co-teaching", ("Co-teaching",)),
    "Decoupling": ("decoupling", ("Decoupling",)),
    "JoCoR": ("jocor", ("JoCoR",)),
    "VRI": ("vri", ("VRI",)),
}
BASELINES: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "cross-entropy": ("cross-entropy", ("Baseline",)),
    "clean only": ("clean-only", None),
    "fine-tuned": ("fine-tuned", None),
}


def comparison(*names: str) -> MakeRows:
    """Rows of a table that compares methods: the three plain baselines first, VRI last."""
    listed = {**BASELINES, **{name: RIVALS[name] for name in (*names, "VRI")}}
    return lambda make: [make(label, method, printed) for label, (method, printed) in listed.items()]


# method and settings, the most telling rows first; on photographs all but the last ones
_NOTHING: dict[str, Any] = {"clean": 0}
STRONGEST: dict[str, tuple[str, dict[str, Any]]] = {
    "cross-entropy": ("cross-entropy", _NOTHING),
    "label smoothing": ("label-smoothing", {**_NOTHING, "options": {"smoothing": 0.2}}),
    "label smoothing on strong views": (
        "label-smoothing",
        {**_NOTHING, "options": {"smoothing": 0.2}, "augment": "rand-augment"},
    ),
    "VRI": ("vri", {}),
    "VRI with selected samples": ("vri", {"join_selected": True}),
    "VRI with selected samples and beliefs": ("vri", {"join_selected": True, "options": {"beliefs": True}}),
    "VRI with a transition matrix": ("vri-transition", {}),
    "VRI with a transition matrix and selected samples": ("vri-transition", {"join_selected": True}),
    "VRI with a teacher": ("vri-teacher", {}),
    "VRI with a teacher and strong views": ("vri-teacher", {"options": {"strong_view": True, "decay": 0.99}}),
    "fine-tuned": ("fine-tuned", {}),
    "MW-Net": ("mw-net", {}),
    "GLC": ("glc", {}),
    "VRI (+)": ("vri", {**_NOTHING, "selection": "balanced"}),
    "VRI (+) with a transition matrix": ("vri-transition", {**_NOTHING, "selection": "balanced"}),
    "VRI (+) with a teacher": ("vri-teacher", {**_NOTHING, "selection": "balanced"}),
    "ELR": ("elr", _NOTHING),
    "MC": ("mc", {}),
    "MSLC": ("mslc", {}),
    "L2RW": ("l2rw", {}),
    "clean only": ("clean-only", {}),
    "SOP+": ("sop+", _NOTHING),
    "DivideMix": ("dividemix", _NOTHING),
    "VRI (mixture)": ("vri", {**_NOTHING, "selection": "mixture"}),
    "non-Bayesian": ("non-bayesian", {}),
    "WarPI": ("warpi", {}),
    "VRI (−)": ("vri", {**_NOTHING, "selection": "smallest"}),
    "ELR+": ("elr+", _NOTHING),
    "FSR": ("fsr", _NOTHING),
    "EMLC": ("emlc", {}),
}
# ... and all others, which run on digits
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SOP": ("sop", _NOTHING),
    "CORES*": ("cores", _NOTHING),
    "PES": ("pes", _NOTHING),
    "NCR": ("ncr", _NOTHING),
    "PLC": ("plc", _NOTHING),
    "Peer loss": ("peer-loss", _NOTHING),
    "JNPL": ("jnpl", _NOTHING),
    "SR": ("sr", _NOTHING),
    "GJS": ("gjs", _NOTHING),
    "CDR": ("cdr", _NOTHING),
    "Co-teaching": ("co-teaching", _NOTHING),
    "Co-teaching+": ("co-teaching+", _NOTHING),
    "CoDis": ("codis", _NOTHING),
    "Decoupling": ("decoupling", _NOTHING),
    "JoCoR": ("jocor", _NOTHING),
    "bootstrapping": ("bootstrapping", _NOTHING),
    "GCE": ("gce", _NOTHING),
    "SCE": ("sce", _NOTHING),
    "mixup": ("mixup", _NOTHING),
    "FaMUS": ("famus", {}),
    "FasTEN": ("fasten", {}),
    "PMW-Net": ("pmw-net", {}),
    "MLC (Zheng et al.)": ("mlc", {}),
    "VRI in DivideMix": ("vri-dividemix", {}),
}
# on the backbone fast, better on the validation images of CIFAR-10, flip 40 %; VRI has its own there, MSLC keeps 4
_GAMMA_ON_FAST = {name: {"clean_weight": 1.0} for name in ("mw-net", "l2rw")}
_AUGMENTED = ("label smoothing on strong views", "VRI with a teacher and strong views")  # on photographs only
_ALSO_ON_PHOTOS = ("CORES*", "PES")
FEW = (
    "cross-entropy",
    "label smoothing",
    "VRI",
    "VRI with selected samples",
    "VRI with a transition matrix",
    "VRI with a teacher",
    "VRI with a teacher and strong views",
    "MW-Net",
    "GLC",
    "VRI (+)",
    "ELR",
)


def strongest(table: str) -> MakeRows:
    """Rows of the main tables at medium scale, with their numbers in a table of the paper."""
    printed = {p.method for p in published(table)}
    names = {"cross-entropy": "Baseline", "VRI (−)": "VRI (-)"}
    every = {**STRONGEST, **OTHERS}
    known = {label: (name,) if (name := names.get(label, label)) in printed else None for label in every}
    return lambda make: [make(label, method, known[label], **more) for label, (method, more) in every.items()]


def with_backbone(rows: Iterable[TableRow], backbone: str, word: str) -> list[TableRow]:
    """The same rows on another classifier, which is part of their published names."""
    return [
        TableRow(
            f"{row.label} ({word})" if row.label != "VRI" or backbone != "resnet32" else row.label,
            {**row.settings, "backbone": backbone},
            None if row.published is None else (row.published[0], "", word),
        )
        for row in rows
    ]


def grids(
    rows: MakeRows,
    quick_columns: Sequence[Column],
    medium_columns: Sequence[Column],
    paper_columns: Sequence[Column],
    quick_words: str = QUICK_WORDS,
    paper_words: str = PAPER_WORDS,
    medium_words: str = MEDIUM_WORDS,
    medium_rows: MakeRows | None = None,
) -> dict[str, Grid]:
    """The same rows at all scales, unless there are others for medium."""
    return {
        "quick": Grid(rows(quick), quick_columns, quick_words, RATES),
        "medium": Grid((medium_rows or rows)(quick), medium_columns, medium_words, RATES),
        "paper": Grid(rows(paper), paper_columns, paper_words),
    }
