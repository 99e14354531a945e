"""Typed parameters: what a parameters cell or a profile declares, and values held to it strictly.

Papermill only warns of an unknown name, YAML reads `1e-4` as a string, and `papermill -p` can pass a list only as a
string. Here the first is an error, the second an error that names the cell's type, and the third is understood.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from lib.errors import SuiteError, one_of

SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
SEQUENCES = ("list", "tuple")


@dataclasses.dataclass(frozen=True)
class Declared:
    """One line of a parameters cell: `name: type = default  # meaning`."""
    name: str
    type: str
    default: Any
    meaning: str = ""


def parse_cell(source: str, where: str) -> dict[str, Declared]:
    """The declarations of a parameters cell. Only lines `name: type = literal  # meaning` may stand in one."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise SuiteError(f"{where}: the parameters cell is not Python (line {error.lineno}: {error.msg})") from None
    lines = source.splitlines()
    found = {}
    for statement in body:
        text = lines[statement.lineno - 1]
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value):
            raise SuiteError(f"{where}: parameters cell, {text.strip()!r} is not a parameter: "
                             "write 'name: type = value  # meaning'")
        name, annotation = statement.target.id, ast.unparse(statement.annotation).strip("'\"")
        default = coerce(literal(statement.value, text, where), annotation, name, where)
        found[name] = Declared(name, annotation, default, comment(lines[statement.end_lineno - 1], statement.end_col_offset))
    return found


def literal(node: ast.expr, text: str, where: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise SuiteError(f"{where}: parameters cell, {text.strip()!r}: the value must be a literal, not derived") from None


def comment(line: str, end: int) -> str:
    """What stands behind `#`; `end` counts bytes, as `ast` does."""
    return line.encode()[end:].decode().strip().removeprefix("#").strip()


def assigned(source: str) -> list[str]:
    """The names that papermill's injected cell sets."""
    return [target.id for statement in ast.parse(source).body if isinstance(statement, ast.Assign)
            for target in statement.targets if isinstance(target, ast.Name)]


def declared_by(cls: type) -> dict[str, Declared]:
    """The fields of a dataclass whose module has postponed annotations, as declarations."""
    return {f.name: Declared(f.name, str(f.type), None if f.default is dataclasses.MISSING else f.default)
            for f in dataclasses.fields(cls)}


def validated(values: Mapping[str, Any], declared: Mapping[str, Declared], where: str,
              kind: str = "parameter") -> dict[str, Any]:
    """`values` with every name known and every value of its declared type; sequences come back as tuples."""
    require_known(values, declared, where, kind)
    return {name: coerce(value, declared[name].type, name, where) for name, value in values.items()}


def require_known(names: Iterable[str], declared: Iterable[str], where: str, kind: str = "parameter") -> None:
    for name in names:
        try:
            one_of(name, declared, kind)
        except SuiteError as error:
            raise SuiteError(f"{where}: {error}") from None


def coerce(value: Any, annotation: str, name: str, where: str) -> Any:
    """`value` as the type that `annotation` names, or a `SuiteError`. An int is a float; a bool is no int.

    Types: int, float, str, bool, `list[X]`, `tuple[X, ...]`, and `X | None`. A list or tuple comes back as a tuple.
    """
    options = [part.strip() for part in annotation.split("|")]
    if value is None and "None" in options:
        return None
    wanted = [option for option in options if option != "None"]
    if len(wanted) > 1:
        raise SuiteError(f"{where}: {name}: the type {annotation} is not supported; use one type, or one type | None")
    base, _, rest = wanted[0].partition("[")
    if base in SEQUENCES and rest.endswith("]"):
        item = rest[:-1].removesuffix("...").rstrip().removesuffix(",").strip()
        return tuple(coerce(v, item, name, where) for v in as_sequence(value, annotation, name, where))
    if base not in SCALARS or rest:
        raise SuiteError(f"{where}: {name}: the type {annotation} is not supported; use int, float, str, bool or list[...]")
    return as_scalar(value, base, name, where)


def as_sequence(value: Any, annotation: str, name: str, where: str) -> tuple[Any, ...]:
    """A list or tuple, also written as a string: `papermill -p seeds '[1,2]'` can pass nothing else."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise SuiteError(f"{where}: {name} = {value!r} is not valid: {annotation}, for instance '[1, 2]'") from None
    if not isinstance(value, (list, tuple)):
        raise SuiteError(f"{where}: {name} = {value!r} is not valid: {annotation}; one value is written [{value!r}]")
    return tuple(value)


def as_scalar(value: Any, wanted: str, name: str, where: str) -> Any:
    accepted = (int, float) if wanted == "float" else (SCALARS[wanted],)
    if not isinstance(value, accepted) or (isinstance(value, bool) and wanted != "bool"):
        given = type(value).__name__
        raise SuiteError(f"{where}: {name} = {value!r} is a {given}, but its type is {wanted}{hint(value, wanted)}")
    if wanted == "float" and not math.isfinite(value):
        raise SuiteError(f"{where}: {name} = {value!r} is not valid: a finite number is needed")
    return float(value) if wanted == "float" else value


def hint(value: Any, wanted: str) -> str:
    """The remedy for the commonest slip: YAML 1.1 takes a number in scientific notation without a point for a string."""
    if isinstance(value, str) and wanted in ("int", "float"):
        try:
            number = float(value)
        except ValueError:
            return ""
        written = f"{number:e}" if "e" in value.lower() else value
        mantissa, mark, exponent = written.partition("e")
        if not mark:
            return f": write {value} without quotes"
        point = mantissa.rstrip("0")
        return f": YAML reads {value} as a string, write {point + '0' if point.endswith('.') else point}e{int(exponent)}"
    return ""


def plain(value: Any) -> Any:
    """Tuples as lists, for YAML, JSON and papermill's injected cell."""
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value
