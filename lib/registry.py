"""Things found by name in a folder of files, and built from parameters that are checked before anything runs."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

from lib.errors import SuiteError, one_of, require

T = TypeVar("T")


def discover(package: str, folder: Iterable[str], base: type[T]) -> dict[str, type[T]]:
    """Every subclass of `base` with a `name` of its own in the files of `folder`, by that name."""
    for module in pkgutil.iter_modules(list(folder)):
        importlib.import_module(f"{package}.{module.name}")
    return {cls.name: cls for cls in _subclasses(base) if "name" in vars(cls)}


def construct(cls: type[T], kind: str, parameters: dict[str, Any]) -> T:
    """The dataclass `cls` with `parameters`; unknown, missing and mistyped ones are a `SuiteError` that names them."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    hints = typing.get_type_hints(cls)
    for name, value in parameters.items():
        one_of(name, fields, f"parameter of {kind}")
        require(fits(value, hints[name]), f"{kind}: {name}", value, f"of type {_spell(hints[name])}")
    missing = [n for n, f in fields.items() if n not in parameters
               and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if missing:
        raise SuiteError(f"{kind} needs a value for {', '.join(missing)}")
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()})


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the annotated type: an integer is a float, True is no integer, a list may stand for a tuple."""
    if hint is Any:
        return True
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in inside)
    if origin is tuple:
        if not isinstance(value, (tuple, list)):
            return False
        if len(inside) == 2 and inside[1] is Ellipsis:
            return all(fits(v, inside[0]) for v in value)
        return len(value) == len(inside) and all(fits(v, each) for v, each in zip(value, inside, strict=True))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint)


def _spell(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _subclasses(cls: type) -> list[type]:
    return [s for direct in cls.__subclasses__() for s in (direct, *_subclasses(direct))]
