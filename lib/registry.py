"""Patterns, tasks, evaluations and experiments by name: found in the files of a package, checked when they are made.

The field types of a dataclass say what its parameters may be: `Count`, `Positive`, `Literal`, pydantic's `Field`. They
are strict: True is no integer and "8" is none, but an integer is a float.
"""

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from lib.errors import SuiteError, one_of, require

T = TypeVar("T")
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Registry(Generic[T]):
    """Every subclass of `base` with a `name` of its own in the files of a package, by that name. `kind`: for errors."""

    def __init__(self, package: str, base: type[T], kind: str) -> None:
        self.package, self.base, self.kind = package, base, kind

    def classes(self) -> dict[str, type[T]]:
        for module in pkgutil.iter_modules(sys.modules[self.package].__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        known: dict[str, type[T]] = {}
        for cls in (cls for cls in subclasses(self.base) if "name" in vars(cls)):
            if cls.name in known:
                raise SuiteError(f"two {self.kind}s are called {cls.name!r}: {known[cls.name].__module__} and "
                                 f"{cls.__module__}")
            known[cls.name] = cls
        return known

    def names(self) -> list[str]:
        return sorted(self.classes())

    def find(self, name: str) -> type[T]:
        """The class called `name`; a `SuiteError` that names the nearest if there is none."""
        known = self.classes()
        return known[one_of(name, known, self.kind)]

    def build(self, name: str, parameters: Mapping[str, Any]) -> T:
        """The dataclass `name` with `parameters`, where lists become tuples; a `SuiteError` names what is wrong."""
        cls = self.find(name)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        for parameter in parameters:
            one_of(parameter, fields, f"parameter of {self.kind} {name}")
        missing = [parameter for parameter, field in fields.items() if parameter not in parameters
                   and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING]
        if missing:
            raise SuiteError(f"{self.kind} {name} needs a value for {', '.join(missing)}")
        return cls(**{parameter: tuples(value) for parameter, value in parameters.items()})


def tuples(value: Any) -> Any:
    """`value` with every list in it, however deep, as a tuple."""
    return tuple(map(tuples, value)) if isinstance(value, (list, tuple)) else value


def check(instance: Any) -> None:
    """Raise a `SuiteError` for the first field of a dataclass instance whose value does not fit its type."""
    cls = type(instance)
    if "_types" not in vars(cls):                       # made once and kept with the class
        hints = get_type_hints(cls, include_extras=True)
        cls._types = {field.name: (hints[field.name], TypeAdapter(hints[field.name], config=ConfigDict(strict=True)))
                      for field in dataclasses.fields(cls)}
    for name, (hint, adapter) in cls._types.items():
        value = getattr(instance, name)
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            if get_origin(hint) is Literal:
                one_of(value, get_args(hint), name)
            allowed = dict.fromkeys(wrong["msg"].removeprefix("Input should be ") for wrong in error.errors())
            require(False, name, value, f"it should be {', or '.join(allowed)}")


def subclasses(cls: type) -> list[type]:
    return [s for direct in cls.__subclasses__() for s in (direct, *subclasses(direct))]
