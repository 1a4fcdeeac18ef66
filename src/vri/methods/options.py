"""Options of methods, checked all at once: each mistake says what came and what was expected."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from vri.methods.base import Method

RANGES: dict[str, Callable[[Any], bool]] = {
    "anything": lambda x: True,
    "0 or more": lambda x: x >= 0,
    "more than 0": lambda x: x > 0,
    "at least 1": lambda x: x >= 1,
    "a number in [0, 1]": lambda x: 0 <= x <= 1,
    "a number in [0, 1)": lambda x: 0 <= x < 1,
    "a number in (0, 1]": lambda x: 0 < x <= 1,
    "a number in (0, 1)": lambda x: 0 < x < 1,
    "widths of at least 1": lambda x: all(width >= 1 for width in x),
}


# by annotation: a kind of value in words, and the types that are of it
_KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool, np.bool_)),
    int: ("a whole number", (Integral,)),
    float: ("a number", (Real,)),
}


class Option(NamedTuple):
    """A keyword of a method's constructor, also an attribute of the method."""

    default: Any
    expected: str
    fits: Callable[[Any, Any], bool]  # whether a value is as expected, beside the other options of a method


def option(
    default: Any, expected: str | Collection[str] = "anything", right: Callable[[Any], bool] | None = None
) -> Any:
    """An option in the body of a `Configured` class: ``weight: float = option(3.0, "0 or more")``.

    `expected` is a name in `RANGES`, choices, or any words if `right` tells whether a method's options are as they say.
    None is right where it is the default. A subclass changes the default by an attribute of the same name.
    """
    if right is not None:
        return Option(default, str(expected), lambda value, method: right(method))
    if not isinstance(expected, str):
        return Option(default, f"one of {', '.join(expected)}", lambda value, method: value in expected)
    inside, optional = RANGES[expected.removeprefix("None or ")], default is None
    return Option(default, expected, lambda value, method: (optional and value is None) or inside(value))


class Refused(NamedTuple):
    """An option of the parent class that has no effect here."""

    why: str


def refused(why: str) -> Any:
    """In place of an inherited option: ``lagged = refused("there is no meta network")``."""
    return Refused(why)


class Configured(Method):
    """A method with options of its own: keywords of the constructor, attributes, the same when a run is resumed."""

    options: Mapping[str, Option] = {}  # by name, inherited ones included
    refused: Mapping[str, str] = {}  # and why
    words: Mapping[str, str] = {}  # on each keyword, from the docstrings
    __signature__ = inspect.signature(Method)

    def __init_subclass__(cls) -> None:
        """Collect the options, leave their defaults as attributes, and name all keywords in signature and docstring."""
        super().__init_subclass__()
        own: dict[str, Option] = {}
        for name, value in list(vars(cls).items()):
            if isinstance(value, Refused):
                cls.refused = {**cls.refused, name: value.why}
                delattr(cls, name)
            elif isinstance(value, Option):
                own[name] = value
                setattr(cls, name, value.default)
            elif name in cls.options:
                own[name] = cls.options[name]._replace(default=value)
        fresh = {name: held for name, held in own.items() if name not in cls.options}
        cls.options = {n: held for n, held in {**fresh, **cls.options, **own}.items() if n not in cls.refused}
        cls.__signature__ = _signature(cls, own)
        _describe(cls)

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        for name in self.options.keys() & options.keys():
            setattr(self, name, options.pop(name))
        mistakes = []
        kinds = _annotations(type(self))
        for name, held in self.options.items():
            mistakes += _mistake(name, getattr(self, name), held, kinds.get(name), self)
        for name, why in self.refused.items():
            mistakes += useless(options, [name], why)
        refuse(type(self).__name__, mistakes)
        super().__init__(model, num_classes, optimizer, **options)

    def settings(self) -> dict[str, Any]:
        """All options of its own."""
        return {name: getattr(self, name) for name in self.options}


def _annotations(cls: type) -> dict[str, Any]:
    """Those of all attributes, inherited ones included."""
    return {name: kind for base in reversed(cls.__mro__) for name, kind in inspect.get_annotations(base).items()}


def _mistake(name: str, value: Any, held: Option, annotation: Any, method: "Configured") -> list[str]:
    """The mistake, if any, of a value of another kind or outside of its range."""
    words, kinds = next((_KINDS[kind] for kind in _KINDS if annotation in (kind, kind | None)), ("", (object,)))
    alike = value is None or (isinstance(value, kinds) and (bool in kinds or not words or not isinstance(value, bool)))
    try:
        fits = alike and held.fits(value, method)
    except TypeError:  # it can't be compared
        alike = fits = False
    return must_be(name, value, fits, held.expected if alike else _expected(words, held.expected))


def _expected(words: str, bounds: str) -> str:
    """What is expected of a value: its kind and its range, such as "None or a whole number, at least 1"."""
    if not words or bounds.startswith("a number"):
        return bounds
    if bounds == "anything":
        return words
    optional = "None or " if bounds.startswith("None or ") else ""
    return f"{optional}{words}, {bounds.removeprefix('None or ')}"


def _signature(cls: type[Configured], own: Mapping[str, Option]) -> inspect.Signature:
    """That of the constructor; ``**options`` stands for the options and the keywords of the parent class."""
    _, *named = inspect.signature(cls.__init__).parameters.values()
    if named and named[-1].kind is Parameter.VAR_KEYWORD:
        named.pop()
        parent, keyword = next(base for base in cls.__mro__[1:] if issubclass(base, Configured)), Parameter.KEYWORD_ONLY
        inherited = {p.name: p for p in inspect.signature(parent).parameters.values() if p.kind is keyword}
        kinds = _annotations(cls)
        mine = {n: Parameter(n, keyword, default=held.default, annotation=kinds.get(n)) for n, held in own.items()}
        fresh = {name: p for name, p in mine.items() if name not in inherited}
        hidden = {p.name for p in named} | set(cls.refused)
        named += [p for name, p in {**fresh, **inherited, **mine}.items() if name not in hidden]
    return inspect.Signature(named)


def _describe(cls: type[Configured]) -> None:
    """Let the docstring's Args name all keywords, inherited ones too, in the order of the signature."""
    about, own = _words(cls.__doc__)
    cls.words = {**(cls.words or _words(Method.__doc__)[1]), **own}
    shown = [cls.words[name] for name in inspect.signature(cls).parameters if name in cls.words]
    if about:
        cls.__doc__ = "\n".join([about, "", "Args:", *shown])


def _words(doc: str | None) -> tuple[str, dict[str, str]]:
    """A docstring without its Args, and these by name, each with its line breaks."""
    about, _, arguments = inspect.cleandoc(doc or "").partition("\n\nArgs:\n")
    entries = re.split(r"\n(?=    \w)", arguments) if arguments else []
    return about, {entry.partition(":")[0].strip(): entry for entry in entries}


def refuse(method: str, mistakes: Collection[str]) -> None:
    """One error for all mistakes, if there are any."""
    if mistakes:
        raise ValueError(f"{method} got options it can't use: " + "; ".join(mistakes))


def one_of(name: str, value: str, allowed: Collection[str]) -> list[str]:
    """The mistake, if any, of an option that must be one of several choices."""
    return must_be(name, value, value in allowed, f"one of {', '.join(allowed)}")


def must_be(name: str, value: object, right: bool, what: str) -> list[str]:
    """The mistake, if any, of an option that must be `what`."""
    return [] if right else [f"{name}={value!r} (expected {what})"]


def useless(options: Mapping[str, object], names: Collection[str], why: str) -> list[str]:
    """The mistakes of options that would have no effect."""
    return [f"{name}={options[name]!r} (expected to be left out: {why})" for name in names if name in options]
