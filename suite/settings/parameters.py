"""Parameters of a notebook: its parameters cell declares them, `parameters_of` makes that a strict pydantic model.

A cell holds lines `name: type = default  # meaning` and is tagged `parameters`. Papermill only warns of an unknown
name, YAML reads `1e-4` as a string, and `papermill -p` can pass a list only as a string. Here the first is an error,
the second an error that names the remedy, and the third is understood. `checked` says in words what pydantic finds.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from lib import paths
from lib.errors import SuiteError, one_of

SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
WANTED = {"int_type": "int", "float_type": "float", "string_type": "str", "bool_type": "bool"}   # by pydantic's error
STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)
KERNEL, TAG = "python3", "parameters"
Model = TypeVar("Model", bound=BaseModel)


class Undeclared(SuiteError, AttributeError):
    """An experiment reads a parameter that its notebook's parameters cell does not declare."""


class Parameters(BaseModel):
    """What every notebook declares; the model of a notebook adds its own parameters, and all defaults."""
    model_config = STRICT
    profile: str                    # model, recipe and corpus: a file of profiles/
    corpus: str                     # folder of a person's own text; empty: the profile's corpus
    seeds: tuple[int, ...]          # initialisation and order of the data; one run each
    tokens: int                     # training tokens a run; 0: the profile's

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattr__(name)
        raise Undeclared(f"the experiment reads {name}, which the parameters cell of its notebook does not declare")


@dataclass(frozen=True)
class Declared:
    """One line of a parameters cell: `name: type = default  # meaning`."""
    name: str
    type: str
    default: Any
    meaning: str = ""


# Values held to their types

def checked(model: type[Model], values: Mapping[str, Any], where: str, kind: str = "parameter") -> Model:
    """`values` as an instance of the strict `model`; a `SuiteError` that begins with `where` names what is wrong."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        # A misspelt name is missing too: the unknown name is what helps.
        first = min(error.errors(), key=lambda own: own["type"] != "extra_forbidden")
        raise SuiteError(complaint(model, first, where, kind)) from None


def complaint(model: type[BaseModel], error: Mapping[str, Any], where: str, kind: str) -> str:
    """An error of pydantic in the suite's words: where, what, which value, and the remedy."""
    *sections, name = [part for part in error["loc"] if isinstance(part, str)]
    for section in sections:
        model, kind = model_at(model, section), "key"
    where, value, reason = ", ".join([where, *sections]), error["input"], error["type"]
    if reason == "extra_forbidden":
        return f"{where}: {unknown(name, model.model_fields, kind)}"
    if reason == "missing":
        return f"{where}: the {kind} {name} is missing"
    if reason in WANTED:
        wanted = WANTED[reason]
        return (f"{where}: {name} = {value!r} is a {type(value).__name__}, but its type is {wanted}"
                f"{yaml_remedy(value, wanted)}")
    context = error.get("ctx", {})
    words = {"finite_number": "a finite number is needed", "dict_type": "a mapping, {} for an empty one",
             "greater_than": f"above {context.get('gt')}", "greater_than_equal": f"at least {context.get('ge')}",
             "model_type": f"a mapping with {', '.join(model_at(model, name).model_fields)}"}
    said = str(context["error"]) if reason == "value_error" else words.get(reason, error["msg"])
    return f"{where}: {name} = {value!r} is not valid: {said}"


def model_at(model: type[BaseModel], name: str) -> type[BaseModel]:
    """The model of a field; one without fields where the field holds no model."""
    annotation = model.model_fields[name].annotation if name in model.model_fields else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else BaseModel


def unknown(name: str, names: Iterable[str], kind: str) -> str:
    """The message for a name that is none of `names`, with the nearest; empty if it is one."""
    try:
        return "" if one_of(name, names, kind) else ""
    except SuiteError as error:
        return str(error)


def require_known(names: Iterable[str], declared: Iterable[str], where: str, kind: str = "parameter") -> None:
    for name in names:
        if message := unknown(name, declared, kind):
            raise SuiteError(f"{where}: {message}")


def yaml_remedy(value: Any, wanted: str) -> str:
    """How to write a number that YAML took for a string: 1.1 does so with an exponent but no point."""
    if not isinstance(value, str) or wanted not in ("int", "float"):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    if "e" not in value.lower():
        return f": write {value} without quotes"
    mantissa, _, exponent = f"{number:e}".partition("e")
    point = mantissa.rstrip("0")
    return f": YAML reads {value} as a string, write {point + '0' if point.endswith('.') else point}e{int(exponent)}"


def as_tuple(declared: str, value: Any) -> tuple[Any, ...]:
    """A list or tuple, also written as a string: `papermill -p seeds '[1,2]'` can pass nothing else."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(f"{declared}, for instance '[1, 2]'") from None
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{declared}; one value is written [{value!r}]")
    return tuple(value)


def type_of(annotation: str, where: str) -> Any:
    """The type that an annotation names: int, float, str, bool, `list[X]`, `tuple[X, ...]` and `X | None`.

    A list is a tuple to pydantic, so that parameters can be hashed. Other types are a `SuiteError`.
    """
    def resolved(node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in SCALARS:
                return SCALARS[name]
            case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
                return resolved(left) | None
            case (ast.Subscript(value=ast.Name(id="list"), slice=item)
                  | ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant()]))):
                text = f"list[{ast.unparse(item)}]"
                return Annotated[tuple[resolved(item), ...], BeforeValidator(partial(as_tuple, text))]
        raise SuiteError(f"{where}: the type {annotation} is not supported; use int, float, str, bool, list[...] or "
                         "X | None")
    return resolved(ast.parse(annotation, mode="eval").body)


def model_of(declared: Iterable[Declared], where: str, base: type[BaseModel] | None = None) -> type[BaseModel]:
    """A strict pydantic model of these declarations; a default of `...` must be given."""
    fields = {own.name: (type_of(own.type, f"{where}: {own.name}"), Field(own.default, description=own.meaning))
              for own in declared}
    config = {} if base else {"__config__": STRICT}
    return create_model("Parameters", __base__=base, **config, **fields)


def validated(values: Mapping[str, Any], declared: Mapping[str, Declared], where: str,
              kind: str = "parameter") -> dict[str, Any]:
    """`values` with every name known and every value of its declared type; sequences come back as tuples."""
    valid = checked(model_of(declared.values(), where), values, where, kind)
    return {name: getattr(valid, name) for name in values}


# Notebooks

def notebook_names() -> list[str]:
    """Names of the suite's notebooks, in their order."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb"))


def parameters_of(notebook: str) -> type[Parameters]:
    """The model of the parameters that the notebook declares; the default is the value at the profile `small`."""
    path = paths.NOTEBOOKS / f"{one_of(notebook, notebook_names(), 'notebook')}.ipynb"
    return _model_in(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=None)
def _model_in(path: Path, changed: int) -> type[Parameters]:
    declared = declared_in(path)
    require_declared(Parameters.model_fields, declared, path.name)
    return model_of(declared.values(), path.name, Parameters)


def require_declared(names: Iterable[str], declared: Iterable[str], where: str) -> None:
    absent = [name for name in names if name not in declared]
    if absent:
        raise SuiteError(f"{where}, parameters cell: {', '.join(absent)} missing, which the experiment has")


def declared_in(path: Path) -> dict[str, Declared]:
    """What the parameters cell of a notebook declares; the notebook must have the right kernel."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kernel = content["metadata"].get("kernelspec", {}).get("name")
        tagged = [cell for cell in content["cells"] if TAG in cell.get("metadata", {}).get("tags", [])]
    except FileNotFoundError:
        raise SuiteError(f"{path} does not exist") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{path} is not a notebook of version 4: {error}") from None
    if kernel != KERNEL:
        raise SuiteError(f"{path.name}: the kernel is {kernel!r}, it must be {KERNEL!r}: choose 'Python 3' in "
                         "JupyterLab, and save")
    if len(tagged) != 1 or tagged[0]["cell_type"] != "code":
        raise SuiteError(f"{path.name}: {len(tagged)} cells are tagged {TAG!r}, one code cell must be (else papermill "
                         "puts what it is given above the defaults). In JupyterLab: Property Inspector, Cell Tags")
    return parse_cell("".join(tagged[0]["source"]), path.name)


def parse_cell(source: str, where: str) -> dict[str, Declared]:
    """The declarations of a parameters cell. Only lines `name: type = literal  # meaning` may stand in one."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise SuiteError(f"{where}: the parameters cell is not Python (line {error.lineno}: {error.msg})") from None
    lines, declared = source.splitlines(), {}
    for statement in body:
        text = f"{where}: parameters cell, {lines[statement.lineno - 1].strip()!r}"
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value):
            raise SuiteError(f"{text} is not a parameter: write 'name: type = value  # meaning'")
        try:
            default = ast.literal_eval(statement.value)
        except ValueError:
            raise SuiteError(f"{text}: the value must be a literal, not derived") from None
        behind = lines[statement.end_lineno - 1].encode()[statement.end_col_offset:].decode()    # `ast` counts bytes
        name, annotation = statement.target.id, ast.unparse(statement.annotation).strip("'\"")
        declared[name] = Declared(name, annotation, default, behind.strip().removeprefix("#").strip())
    defaults = validated({name: own.default for name, own in declared.items()}, declared, f"{where}, parameters cell")
    return {name: Declared(name, own.type, defaults[name], own.meaning) for name, own in declared.items()}


def assigned(source: str) -> list[str]:
    """The names that papermill's injected cell sets."""
    return [target.id for statement in ast.parse(source).body if isinstance(statement, ast.Assign)
            for target in statement.targets if isinstance(target, ast.Name)]


def plain(value: Any) -> Any:
    """Tuples as lists, for YAML, JSON and papermill's injected cell."""
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value
