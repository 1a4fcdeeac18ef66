"""The methods, one file each. `METHODS` collects every class in this folder that has a `name`."""

import importlib
import pkgutil

from vri.methods.base import Cost, Method
from vri.methods.cross_entropy import CleanOnly, CrossEntropy, FineTuned
from vri.methods.meta import MetaMethod
from vri.methods.vri import VRI

FIRST = ("cross-entropy", "clean-only", "fine-tuned")  # the baselines


def _found() -> dict[str, type[Method]]:
    """Baselines first and VRI last; the others by what they need, then by name."""
    methods: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        for member in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            own = isinstance(member, type) and issubclass(member, Method) and member.__dict__.get("name")
            if own and member.__module__ == f"{__name__}.{module.name}":
                if member.name in methods:
                    raise ImportError(f"{member.__name__} and {methods[member.name].__name__} are both {member.name!r}")
                methods[member.name] = member

    def order(name: str) -> tuple[object, ...]:
        kind = methods[name]
        baseline = FIRST.index(name) if name in FIRST else len(FIRST)
        return baseline, issubclass(kind, VRI), kind.needs_trusted, kind.networks, name == "vri", name

    return {name: methods[name] for name in sorted(methods, key=order)}


METHODS = _found()

__all__ = ["METHODS", "VRI", "CleanOnly", "Cost", "CrossEntropy", "FineTuned", "MetaMethod", "Method"]
