"""Measures: small functions from a notebook's study to one or several numbers with intervals, found by their names.

A function of a module in this folder that is declared by `measure` or `fact` can be named in the ledger; its keyword
arguments are the ledger's. It raises `NotTested` where the profile has not trained what it needs.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_type_hints

from pydantic import create_model

from suite.settings.parameters import Strict
from suite.study.frames import Model, Study
from suite.study.stats import Interval

_FOUND: "dict[str, Measure]" = {}


class Part(NamedTuple):
    """One number of a claim: what it is of, its interval (or a plain number), and the models that it comes from."""
    what: str
    value: Interval | float
    models: Sequence[Model] = ()

    @property
    def estimate(self) -> float:
        return self.value.estimate if isinstance(self.value, Interval) else float(self.value)

    @property
    def seeds(self) -> int:
        """Training runs of a model, the fewest; 0: no run needed."""
        trained = min((len(model.jobs) for model in self.models), default=0)
        return self.value.seeds if isinstance(self.value, Interval) else trained


@dataclass(frozen=True)
class Measure:
    """A function that yields parts. exact: its number has no chance in it. every: it compares several, and each must
    agree."""
    function: Callable[..., Iterator[Part]]
    unit: str
    exact: bool = False
    every: bool = False

    @functools.cached_property
    def arguments(self) -> type[Strict]:
        """Its keyword arguments, as a model that checks them."""
        hints, signature = get_type_hints(self.function), inspect.signature(self.function)
        fields = {name: (hints[name], ... if own.default is own.empty else own.default)
                  for name, own in signature.parameters.items() if own.kind is own.KEYWORD_ONLY}
        return create_model(self.function.__name__, __base__=Strict, **fields)


def measure(unit: str, **kind: bool) -> Callable[[Callable], Callable]:
    """Declare a function of a study as a measure in `unit`; `kind` is what `Measure` says of it."""
    def declare(function: Callable) -> Callable:
        _FOUND[function.__name__] = Measure(function, unit, **kind)
        return function
    return declare


def fact(unit: str, what: str) -> Callable[[Callable], Callable]:
    """Declare a function that returns one exact number without a run; `what` has its arguments in braces."""
    def declare(function: Callable) -> Callable:
        @measure(unit, exact=True)
        @functools.wraps(function)
        def parts(study: Study, **arguments: object) -> Iterator[Part]:
            yield Part(what.format(**arguments), function(**arguments))
        return function
    return declare


@functools.cache
def known() -> dict[str, Measure]:
    """All measures by name; every module of this folder is read."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _FOUND
