"""Patterns by name. Every file of this folder that defines a `Pattern` is found; nothing else is to be edited."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from lib.errors import SuiteError, one_of
from lib.patterns.base import (EdgeTable, HeadOffsets, Keys, Knob,
                               LearnedOffsets, Offsets, Pattern, PerHead,
                               SoftWindow, count_pairs, expand)
from lib.registry import construct

__all__ = ["EdgeTable", "HeadOffsets", "Keys", "Knob", "LearnedOffsets", "Offsets", "Pattern", "PerHead", "SoftWindow",
           "count_pairs", "expand", "build", "names", "pattern_class"]


def _subclasses(cls: type) -> list[type]:
    return [s for direct in cls.__subclasses__() for s in (direct, *_subclasses(direct))]


def _all() -> dict[str, type[Pattern]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    known: dict[str, type[Pattern]] = {}
    for cls in _subclasses(Pattern):
        if "name" in vars(cls):
            if cls.name in known:
                raise SuiteError(f"two patterns are called {cls.name!r}: {known[cls.name].__module__} and {cls.__module__}")
            known[cls.name] = cls
    return known


def names() -> list[str]:
    return sorted(_all())


def pattern_class(name: str) -> type[Pattern]:
    known = _all()
    return known[one_of(name, known, "pattern")]


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(inside) for key, inside in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def build(name: str, *, layers: int = 1, heads: int = 1, **parameters: Any) -> Pattern:
    """The pattern `name` for a stack of `layers` layers of `heads` heads; lists become tuples.

    Unknown and mistyped parameters are a `SuiteError` that names them.
    """
    return construct(pattern_class(name), f"pattern {name}", {"layers": layers, "heads": heads, **_tuples(parameters)})
