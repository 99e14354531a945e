"""Parameters of a notebook: its parameters cell declares them, `parameters_of` makes that a strict pydantic model.

A cell holds lines `name: type = default  # meaning` and is tagged `parameters`. Papermill only warns of an unknown
name, YAML reads `1e-4` as a string, and `papermill -p` can pass a list only as a string. Here the first is an error,
the second an error that names the remedy, and the third is understood. `checked` says in words what pydantic finds.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, create_model,
                      field_validator)

from lib import paths
from lib.errors import SuiteError, one_of

SCALARS = {"int": int, "float": float, "str": str, "bool": bool}
WANTED = {"int_type": "int", "float_type": "float", "string_type": "str", "bool_type": "bool"}   # by pydantic's error
NUMBER = re.compile(r"([-+]?\d+(?:\.\d*)?)(?:e([-+]?\d+))?", re.IGNORECASE)
KERNEL, TAG = "python3", "parameters"
# The most that a number may be, by a part of its name: far beyond any use, yet a plan of it ends. `MOST` is for tokens
# and whatever has no such name, `LONGEST` for the entries of a list.
LIMITS = {"length": 2 ** 17, "window": 2 ** 17, "radius": 2 ** 17, "budget": 2 ** 14, "distance": 2 ** 17,
          "layers": 512, "depths": 512, "heads": 512, "width": 2 ** 16, "d_model": 2 ** 16, "head_dim": 2 ** 12,
          "hidden": 2 ** 18, "vocab": 2 ** 20, "batch": 2 ** 12, "workers": 1024, "factors": 1024, "seed": 2 ** 31}
MOST, LONGEST = 10 ** 12, 100


class Strict(BaseModel):
    """A model without unknown names, conversions, NaN and infinity. Defaults are held to their types too."""
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    @field_validator("*")
    @classmethod
    def bounded(cls, value: Any, info: ValidationInfo) -> Any:
        """The value, if it is text that can be written, and not beyond `LIMITS`; seeds are there, and differ."""
        values = value if isinstance(value, tuple) else (value,)
        most = min((limit for part, limit in LIMITS.items() if part in info.field_name), default=MOST)
        for entry in values:
            if isinstance(entry, str):
                entry.encode()                              # half a surrogate pair is a ValueError
            elif isinstance(entry, int | float) and abs(entry) > most:
                raise ValueError(f"it should be at most {most:,}")
        if len(values) > LONGEST:
            raise ValueError(f"it should have at most {LONGEST:,} entries")
        if info.field_name.endswith("seeds") and not 0 < len(values) == len(set(values)):
            raise ValueError("it should have one seed or more, each once")
        return value


class Undeclared(SuiteError, AttributeError):
    """An experiment reads a parameter that its notebook's parameters cell does not declare."""


class Parameters(Strict):
    """What every notebook declares; the model of a notebook adds its own parameters, and all defaults."""
    profile: str                    # model, recipe and corpus: a file of profiles/
    corpus: str                     # folder of a person's own text; empty: the profile's corpus
    seeds: tuple[int, ...]          # initialisation and order of the data; one run each
    tokens: int                     # training tokens a run; 0: the profile's

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattr__(name)
        raise Undeclared(f"the experiment reads {name}, which the parameters cell of its notebook does not declare")


Model = TypeVar("Model", bound=Strict)


# Values held to their types

@contextmanager
def located(where: str) -> Iterator[None]:
    """A `SuiteError` that is raised inside begins with `where`."""
    try:
        yield
    except SuiteError as error:
        raise SuiteError(f"{where}: {error}") from None


def require_known(names: Iterable[str], known: Iterable[str], where: str, kind: str = "parameter") -> None:
    with located(where):
        for name in names:
            one_of(name, known, kind)


def checked(model: type[Model], values: Mapping[str, Any], where: str, kind: str = "parameter") -> Model:
    """`values` as an instance of `model`; a `SuiteError` that begins with `where` names what is wrong."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        # A misspelt name is missing too: the unknown name is what helps.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    *sections, name = [part for part in first["loc"] if isinstance(part, str)]
    with located(", ".join([where, *sections])):
        if first["type"] == "extra_forbidden":
            known = model.model_fields[sections[0]].annotation if sections else model
            one_of(name, known.model_fields, "key" if sections else kind)
        if first["type"] == "missing":
            raise SuiteError(f"the {'key' if sections else kind} {name} is missing")
        raise SuiteError(f"{name} = {first['input']!r:.200} {complaint(first)}")


def complaint(error: Mapping[str, Any]) -> str:
    """What pydantic has against a value, in the suite's words."""
    value, wanted = error["input"], WANTED.get(error["type"])
    if wanted is None:
        return f"is not valid: {error['msg'].removeprefix('Value error, ').replace('Input should', 'it should')}"
    remedy = ""
    if isinstance(value, str) and wanted in ("int", "float") and (number := NUMBER.fullmatch(value)):
        # YAML 1.1 takes it for a string: it is quoted, or its exponent lacks point or sign.
        remedy = (f": write {value} without quotes" if number[2] is None else f": YAML reads {value} as a string, "
                  f"write {number[1]}{'.0' * ('.' not in number[1])}e{int(number[2]):+d}")
    return f"is a {type(value).__name__}, but its type is {wanted}{remedy}"


def as_tuple(declared: str, value: Any) -> tuple[Any, ...]:
    """A list or tuple, also written as a string: `papermill -p seeds '[1,2]'` can pass nothing else."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(f"{declared}, for instance '[1, 2]'") from None
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{declared}; one value is written [{value!r:.200}]")
    return tuple(value)


def type_of(annotation: str, where: str) -> Any:
    """The type that an annotation names: int, float, str, bool, `list[X]`, `tuple[X, ...]` and `X | None`. A list is a
    tuple to pydantic, so that parameters can be hashed."""
    match ast.parse(annotation, mode="eval").body:
        case ast.Name(id=name) if name in SCALARS:
            return SCALARS[name]
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            return type_of(ast.unparse(left), where) | None
        case (ast.Subscript(value=ast.Name(id="list"), slice=item)
              | ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant()]))):
            of = ast.unparse(item)
            return Annotated[tuple[type_of(of, where), ...], BeforeValidator(partial(as_tuple, f"list[{of}]"))]
    raise SuiteError(f"{where}: type {annotation} is not supported: use int, float, str, bool, list[...] or X | None")


# Notebooks

def notebook_names() -> list[str]:
    """The notebooks with an experiment; 00 is for playing, has no plan of runs, and no report executes it."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb") if not path.stem.startswith("00"))


def parameters_of(notebook: str) -> type[Parameters]:
    """The model of the parameters that the notebook declares; the default is the value at the profile `small`."""
    path = paths.NOTEBOOKS / f"{one_of(notebook, notebook_names(), 'notebook')}.ipynb"
    return _model_in(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=None)
def _model_in(path: Path, changed: int) -> type[Parameters]:
    return declared_in(path, Parameters)


def declared_in(path: Path, base: type[Strict] = Strict) -> type[Strict]:
    """The model that a notebook's parameters cell declares beyond `base`; the notebook must have the right kernel."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kernel = content["metadata"].get("kernelspec", {}).get("name")
        tagged = [cell for cell in content["cells"] if TAG in cell.get("metadata", {}).get("tags", [])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{path} is not a notebook of version 4: {error}") from None
    if kernel != KERNEL:
        raise SuiteError(f"{path.name}: the kernel is {kernel!r}, it must be {KERNEL!r}: choose 'Python 3' in "
                         "JupyterLab, and save")
    if len(tagged) != 1 or tagged[0]["cell_type"] != "code":
        raise SuiteError(f"{path.name}: {len(tagged)} cells are tagged {TAG!r}, one code cell must be (else papermill "
                         "puts what it is given above the defaults). In JupyterLab: Property Inspector, Cell Tags")
    return parse_cell("".join(tagged[0]["source"]), path.name, base)


def parse_cell(source: str, where: str, base: type[Strict] = Strict) -> type[Strict]:
    """The model that a parameters cell declares. Only lines `name: type = literal  # meaning` may stand in one."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise SuiteError(f"{where}: the parameters cell is not Python (line {error.lineno}: {error.msg})") from None
    lines, fields = source.splitlines(), {}
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
        fields[name] = (type_of(annotation, f"{where}: {name}"),
                        Field(default, description=behind.strip().removeprefix("#").strip()))
    model = create_model("Parameters", __base__=base, **fields)
    checked(model, {}, f"{where}, parameters cell")
    return model
