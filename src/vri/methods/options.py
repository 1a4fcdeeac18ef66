"""Options of methods, checked all at once: each mistake says what came and what was expected."""

import inspect
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from typing import Any, NamedTuple

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
}


class Option(NamedTuple):
    """A keyword of a method's constructor, also an attribute of the method."""

    default: Any
    expected: str
    right: Callable[[Any], bool] | None  # whether the options of a method are as expected; None: see `RANGES`


def option(default: Any, expected: str = "anything", right: Callable[[Any], bool] | None = None) -> Any:
    """An option in the body of a `Configured` class: ``weight: float = option(3.0, "0 or more")``."""
    return Option(default, expected, right)


class Configured(Method):
    """A method with options of its own: keywords of the constructor, attributes, the same when a run is resumed."""

    options: Mapping[str, Option] = {}  # by name, inherited ones included
    __signature__ = inspect.signature(Method)

    def __init_subclass__(cls) -> None:
        """Collect the options, leave their defaults as attributes, and name all keywords in the signature."""
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}
        cls.options = {**cls.options, **own}
        for name, held in own.items():
            setattr(cls, name, held.default)
        _, *named = inspect.signature(cls.__init__).parameters.values()
        if named and named[-1].kind is Parameter.VAR_KEYWORD:  # stands for its options and its parent's keywords
            named.pop()
            parent = next(base for base in cls.__mro__[1:] if issubclass(base, Configured))
            kinds, kind = cls.__annotations__, Parameter.KEYWORD_ONLY
            keywords = [Parameter(n, kind, default=o.default, annotation=kinds.get(n)) for n, o in own.items()]
            keywords += [p for p in inspect.signature(parent).parameters.values() if p.kind is kind]
            named += [p for p in keywords if p.name not in {q.name for q in named}]
        cls.__signature__ = inspect.Signature(named)

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        for name in self.options.keys() & options.keys():
            setattr(self, name, options.pop(name))
        mistakes = []
        for name, (_, expected, right) in self.options.items():
            value = getattr(self, name)
            mistakes += must_be(name, value, right(self) if right else RANGES[expected](value), expected)
        refuse(type(self).__name__, mistakes)
        super().__init__(model, num_classes, optimizer, **options)

    def settings(self) -> dict[str, Any]:
        """All options of its own."""
        return {name: getattr(self, name) for name in self.options}


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
