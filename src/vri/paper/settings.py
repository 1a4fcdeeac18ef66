"""The settings of an experiment: one flat record, read from a file, the command line or both."""

import difflib
import inspect
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from vri.methods import METHODS, VRI
from vri.methods.meta import MetaMethod
from vri.methods.vri_literal import LiteralVRI
from vri.training.loop import SCHEDULES
from vri.training.selection import KINDS

PRECISIONS = ("fp32", "bf16", "auto")  # auto: bf16 where the device has instructions for it
OPTIMIZERS = ("sgd", "adam", "orthogonal")
# select with a first network, train a second one on the rest: how the first one selects
TWO_PHASES = {"two-phase": "balanced", "two-phase-smallest": "smallest"}
AUGMENTATIONS = ("none", "crop-flip", "shift-flip", "rand-augment")
# For backbones that are trained differently from the paper's: defaults that override those of `Settings`
RECIPES: dict[str | None, dict[str, Any]] = {
    "fast": {
        "epochs": 7,
        "batch_size": 1000,
        "optimizer": "orthogonal",
        "lr": 0.24,
        "momentum": 0.6,
        "weight_decay": 0.002,
        "schedule": "linear",
        "augment": "shift-flip",
        "precision": "auto",
    }
}
# ... and for methods that learn from a look-ahead, which need more steps
META_RECIPES: dict[str | None, dict[str, Any]] = {
    "fast": {"batch_size": 250, "lr": 0.15, "meta_batch_size": 100, "options": {"lookahead": "head"}}
}
# ... and for VRI and its variants, but not to the letter: chosen on validation images, docs/experiments.md
OWN_OPTIONS: dict[str | None, dict[str, Any]] = {"fast": {"initial_mean": 1.0, "clean_weight": 1.0}}
_NOT_IN_A_FILE = ("generator", "autocast", "meta_optimizer", "second", "mistakes")  # set by the run, or objects


class SettingsError(ValueError):
    """Settings that can't be used; the message lists all mistakes."""


@dataclass(frozen=True)
class Settings:
    """All settings of one training run, with the paper's values for CIFAR-10 as defaults."""

    dataset: str = "cifar10"  # a name of `vri data list`, a folder of images by class, or a CSV manifest
    root: str | None = None  # folder with the data set's files
    noise: str = "none"  # a noise model, a set of human labels, a file of `vri noise`, or "none"
    rate: float = 0.4  # of the noise model
    noise_seed: int | None = None  # of the noise; that of the run if not given
    method: str = "vri"
    options: dict[str, Any] = field(default_factory=dict)  # keywords of the method
    backbone: str | None = None  # by default chosen for the data set
    weights: str | None = None  # file with pretrained weights, for resnet50
    epochs: int = 160
    batch_size: int = 100
    meta_batch_size: int | None = None
    optimizer: str = "sgd"
    lr: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    augment: str | None = None  # by default crop-flip, except for digits and Fashion-MNIST
    mixup: float = 0.0  # of noisy and of trusted samples; 0 mixes nothing
    clean: int = 1000  # trusted samples set aside, unless the data set has its own; with 0, vri selects samples
    selection: str = "balanced"  # how it selects: a kind of `vri.training.selection`, or one of TWO_PHASES
    join_selected: bool = False  # use selected samples in addition to trusted ones
    selection_size: int | None = None
    warm_up: int | None = None  # epochs of cross-entropy before it; with trusted samples only, none if not given
    first_epochs: int | None = None  # of the first network, in two phases; `epochs` if not given
    validation: int = 0  # samples set aside for validation
    split: str | None = None  # a file split.npz of another run; replaces clean, validation and limit
    limit: int | None = None  # training samples; all that are left if not given
    test_limit: int | None = None
    image_size: int | None = None  # of images read from files
    broken_images: str = "raise"  # or "skip"
    seed: int = 0
    precision: str = "fp32"
    device: str = "auto"
    workers: int = 0
    threads: int | None = None
    tensorboard: bool = True
    checkpoint_every: int | None = None  # steps; an epoch if not given
    evaluate_every: int = 1  # epochs; the last one is always evaluated

    def as_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


_NAMES = [f.name for f in fields(Settings)]
_TYPES = get_type_hints(Settings)


def resolve(
    config: str | None = None, given: Mapping[str, Any] | None = None, assignments: Iterable[str] = ()
) -> Settings:
    """Settings from a file, then `given` (None means not given), then ``key=value`` texts; later ones win.

    All mistakes are reported in one `SettingsError`.
    """
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    if config is not None:
        path = find_config(config)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SettingsError(f"{path} is no TOML file ({error}); expected lines like epochs = 12") from None
        _merge(values, content, str(path), mistakes)
    _merge(values, {k: v for k, v in (given or {}).items() if v is not None}, "the command line", mistakes)
    for text in assignments:
        _merge(values, _assignment(text, mistakes), "the command line", mistakes)
    values = with_recipe(values)
    settings = Settings(**{name: value for name, value in values.items() if name in _NAMES})
    mistakes += _mistakes(settings)
    if mistakes:
        raise SettingsError(mistakes[0] if len(mistakes) == 1 else "".join(f"\n  - {m}" for m in mistakes))
    return settings


def with_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with those that suit their backbone, where they say nothing themselves."""
    recipe = RECIPES.get(values.get("backbone"), {})
    method = METHODS.get(str(values.get("method", "vri")))
    if method is not None and issubclass(method, MetaMethod):
        recipe = {**recipe, **META_RECIPES.get(values.get("backbone"), {})}
        options = recipe.get("options", {})
        if method is not LiteralVRI and issubclass(method, VRI):
            options = {**options, **OWN_OPTIONS.get(values.get("backbone"), {})}
        known = method_options(method.name)
        recipe["options"] = {name: value for name, value in options.items() if name in known}
    return {**recipe, **values, "options": {**recipe.get("options", {}), **values.get("options", {})}}


def configs() -> dict[str, Path]:
    """The files that come with the package, one for each experiment of the paper."""
    folder = Path(str(resources.files("vri") / "paper" / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find_config(name: str) -> Path:
    """A file by its path, or one of the package's own by its name (with or without ``configs/`` and ``.toml``)."""
    if Path(name).is_file():
        return Path(name)
    known, stem = configs(), Path(name).name.removesuffix(".toml")
    if stem in known and Path(name).parent in (Path("."), Path("configs")):
        return known[stem]
    raise SettingsError(
        f"there is no file {name} and no configuration of that name{nearest(stem, known)}; "
        f"expected a TOML file or one of {', '.join(known)}"
    )


def method_options(method: str) -> list[str]:
    """Keywords that `options` may hold."""
    found: list[str] = []
    for cls in inspect.getmro(METHODS[method]):
        parameters = inspect.signature(cls).parameters.values()
        found += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in (*_NOT_IN_A_FILE, *found)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _merge(values: dict[str, Any], new: Mapping[str, Any], source: str, mistakes: list[str]) -> None:
    for name, value in new.items():
        if name == "options" and isinstance(value, Mapping):
            values["options"] = {**values.get("options", {}), **value}
        elif name not in _NAMES:
            mistakes.append(f"{name!r} in {source} is no setting{nearest(name, _NAMES)}")
        elif (converted := _convert(value, _TYPES[name])) is _WRONG:
            mistakes.append(f"{name}={value!r} in {source}: expected {_kind(_TYPES[name])}")
        else:
            values[name] = converted


def _assignment(text: str, mistakes: list[str]) -> dict[str, Any]:
    """``lr=0.1``, ``noise=flip``, ``options.samples=2`` as a dict; values as in TOML, bare words as text."""
    name, equals, raw = text.partition("=")
    if not equals:
        mistakes.append(f"{text!r} on the command line is no setting; expected key=value, such as lr=0.1")
        return {}
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = {"none": None}.get(raw.lower(), raw) if name != "noise" else raw
    if name.startswith("options."):
        return {"options": {name.removeprefix("options."): value}}
    return {name: value}


_WRONG = object()


def _convert(value: Any, kind: Any) -> Any:
    """`value` as the type of its field, or `_WRONG`."""
    allowed = kind.__args__ if hasattr(kind, "__args__") and kind.__args__[-1] is type(None) else (kind,)
    if value is None:
        return None if type(None) in allowed else _WRONG
    wanted = allowed[0]
    if wanted is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # a whole number of more than 308 digits
            return _WRONG
    if wanted is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if wanted in (int, bool, str) and type(value) is wanted:
        return value
    return _WRONG


def _kind(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    allowed = kind.__args__ if hasattr(kind, "__args__") and kind.__args__[-1] is type(None) else (kind,)
    return names.get(allowed[0], "a table")


_SMALLEST = {
    1: (
        "epochs", "batch_size", "meta_batch_size", "limit", "test_limit", "image_size", "threads", "checkpoint_every",
        "evaluate_every", "selection_size", "first_epochs",
    ),
    0: ("clean", "validation", "workers", "warm_up"),
}  # fmt: skip


def _mistakes(settings: Settings) -> list[str]:
    """What is wrong with the values themselves; checks that depend on the data come when it is loaded."""
    choices: dict[str, Iterable[str]] = {
        "method": METHODS,
        "optimizer": OPTIMIZERS,
        "schedule": SCHEDULES,
        "precision": PRECISIONS,
        "broken_images": ("raise", "skip"),
        "selection": (*KINDS, *TWO_PHASES),
    }
    if settings.augment is not None:
        choices["augment"] = AUGMENTATIONS
    wrong = []
    for name, known in choices.items():
        value = getattr(settings, name)
        if value not in known:
            wrong.append(f"{name}={value!r}: expected one of {', '.join(known)}{nearest(value, known)}")
    for smallest, names in _SMALLEST.items():
        for name in names:
            value = getattr(settings, name)
            if value is not None and value < smallest:
                wrong.append(f"{name}={value}: expected {smallest} or more")
    if not 0 <= settings.rate <= 1:
        wrong.append(f"rate={settings.rate}: expected a share from 0 to 1, such as 0.4 for 40 %")
    if settings.join_selected and settings.selection in TWO_PHASES:
        wrong.append(f"join_selected=true with selection='{settings.selection}': expected one of {', '.join(KINDS)}")
    if not settings.mixup >= 0:
        wrong.append(f"mixup={settings.mixup}: expected 0 or more; 0 mixes nothing")
    if not settings.lr > 0:
        wrong.append(f"lr={settings.lr}: expected a number above 0")
    if not settings.weight_decay >= 0:
        wrong.append(f"weight_decay={settings.weight_decay}: expected 0 or more")
    if not 0 <= settings.momentum < 1:
        wrong.append(f"momentum={settings.momentum}: expected a number in [0, 1)")
    if settings.method in METHODS:
        known_options = method_options(settings.method)
        wrong += [
            f"options.{name} is no option of {settings.method}{nearest(name, known_options)}"
            for name in settings.options
            if name not in known_options
        ]
    return wrong


def nearest(name: str, known: Iterable[str]) -> str:
    """A guess at what was meant, as the end of a sentence; empty if nothing is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
