"""Patterns by name. Every file of this folder that defines a `Pattern` is found; nothing else is to be edited."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any

from lib.errors import one_of
from lib.patterns.base import EdgeTable, HeadOffsets, Keys, LearnedOffsets, Offsets, Pattern, SoftWindow, count_pairs, expand

__all__ = ["EdgeTable", "HeadOffsets", "Keys", "LearnedOffsets", "Offsets", "Pattern", "SoftWindow",
           "count_pairs", "expand", "build", "names", "pattern_class"]


def _subclasses(cls: type) -> list[type]:
    return [s for direct in cls.__subclasses__() for s in (direct, *_subclasses(direct))]


def _all() -> dict[str, type[Pattern]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {cls.name: cls for cls in _subclasses(Pattern) if "name" in vars(cls)}


def names() -> list[str]:
    return sorted(_all())


def pattern_class(name: str) -> type[Pattern]:
    known = _all()
    return known[one_of(name, known, "pattern")]


def build(name: str, *, layers: int = 1, heads: int = 1, **parameters: Any) -> Pattern:
    """The pattern `name` for a stack of `layers` layers of `heads` heads; an unknown parameter is an error."""
    cls = pattern_class(name)
    allowed = {f.name for f in dataclasses.fields(cls)} - {"layers", "heads"}
    for parameter in parameters:
        one_of(parameter, allowed, f"parameter of pattern {name}")
    return cls(layers=layers, heads=heads, **parameters)
