"""Measures: small functions from a notebook's evidence to one or several numbers with intervals, found by their names.

A function of a module in this folder that is decorated with `measure` can be named in the ledger; its keyword arguments
are the ledger's. It raises `NotTested` where the profile has not trained what it needs.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from suite.claims.evidence import Measured

_FOUND: dict[str, Measure] = {}


@dataclass(frozen=True)
class Measure:
    """A function by name. exact: its number has no chance in it. every: it compares several, and each must agree.
    by_run: each run has one number, so that fewer than three seeds have no interval."""
    name: str
    function: Callable[..., Measured]
    unit: str
    exact: bool = False
    every: bool = False
    by_run: bool = False

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """Its keyword arguments, as a model that checks them."""
        hints, signature = get_type_hints(self.function), inspect.signature(self.function)
        fields = {name: (hints[name], ... if own.default is own.empty else own.default)
                  for name, own in signature.parameters.items() if own.kind is own.KEYWORD_ONLY}
        return create_model(self.name, __config__=ConfigDict(extra="forbid", strict=True), **fields)


def measure(unit: str, **kind: bool) -> Callable[[Callable[..., Measured]], Callable[..., Measured]]:
    """Declare a function as a measure in `unit`; `kind` is what `Measure` says of it."""
    def declare(function: Callable[..., Measured]) -> Callable[..., Measured]:
        _FOUND[function.__name__] = Measure(function.__name__, function, unit, **kind)
        return function
    return declare


@lru_cache(maxsize=None)
def known() -> dict[str, Measure]:
    """All measures by name; every module of this folder is read."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(_FOUND)
