"""Options of methods, checked all at once: each mistake says what came and what was expected."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from vri.methods.base import Method

T = TypeVar("T")

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


class Configured(Method):
    """A method with options of its own, which must be the same when a run is resumed.

    Its constructor passes each one through `option` before it calls this one, which refuses all mistakes at once.
    """

    _given: Mapping[str, tuple[Any, bool, str]] = {}  # name: value, whether it works, what was expected

    def __init__(self, model: nn.Module, num_classes: int, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        refuse(type(self).__name__, [m for name, given in self._given.items() for m in must_be(name, *given)])
        super().__init__(model, num_classes, optimizer, **options)

    def option(self, name: str, value: T, expected: str = "anything", right: bool | None = None) -> T:
        """The value, noted for `settings`; `right` says whether it is as expected, unless that is one of `RANGES`."""
        works = RANGES[expected](value) if right is None else right
        self._given = {**self._given, name: (value, works, expected)}
        return value

    def settings(self) -> dict[str, Any]:
        """All options of its own."""
        return {name: getattr(self, name) for name in self._given}


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
