"""Options of methods, checked all at once: each mistake says what came and what was expected."""

from collections.abc import Collection, Mapping


def check_options(method: str, **options: tuple[object, bool, str]) -> None:
    """Refuse options that can't work; each is given as (value, whether it works, what was expected)."""
    refuse(method, [m for name, option in options.items() for m in must_be(name, *option)])


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
