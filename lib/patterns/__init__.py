"""Patterns by name. Every file of this folder that defines a `Pattern` is found; nothing else is to be edited."""

from typing import Any

from lib.patterns.base import (EdgeTable, HeadOffsets, Keys, Knob, LearnedOffsets, Offsets, Pattern, PerHead,
                               SoftWindow, count_pairs, expand)
from lib.registry import Registry

__all__ = ["EdgeTable", "HeadOffsets", "Keys", "Knob", "LearnedOffsets", "Offsets", "Pattern", "PerHead", "SoftWindow",
           "count_pairs", "expand", "build", "names", "pattern_class"]

_patterns = Registry(__name__, Pattern, "pattern")
names, pattern_class = _patterns.names, _patterns.find


def build(name: str, *, layers: int = 1, heads: int = 1, **parameters: Any) -> Pattern:
    """The pattern `name` for a stack of `layers` layers of `heads` heads; lists become tuples.

    Unknown names, unknown parameters and wrong values are a `SuiteError` that names them.
    """
    return _patterns.build(name, {"layers": layers, "heads": heads, **parameters})
