"""The ledger's file, read strictly by pydantic: a slip in it is an error that names the claim, the key and the
remedy."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (AfterValidator, BeforeValidator, ConfigDict, Field,
                      StrictFloat, StringConstraints, TypeAdapter,
                      ValidationError)
from pydantic.dataclasses import dataclass

from lib import paths
from lib.errors import SuiteError, one_of
from suite.claims.measures import Measure, known
from suite.claims.region import Region

LEDGER = Path(__file__).with_name("ledger.yaml")
KEYS = ("id", "document", "statement", "comparison", "published", "supported_if", "notebook", "section", "measure")
DOCUMENTS = ("fibonacci", "powerlaw", "christoffel", "audit", "suite")
CLOSED = ConfigDict(extra="forbid", arbitrary_types_allowed=True, populate_by_name=True)
Words = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


@dataclass(frozen=True, config=CLOSED)
class Call:
    """A measure with its arguments."""
    measure: Measure
    arguments: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def read(cls, value: Any) -> Call:
        """From the ledger: `{name: loss_difference, series: [...], ...}`."""
        if isinstance(value, Call):
            return value
        if not isinstance(value, dict) or "name" not in value:
            raise SuiteError(f"measure = {value!r} is not valid: a mapping with the name of a function and its "
                             "arguments")
        measure = known()[one_of(str(value["name"]), known(), "measure")]
        given = {name: tuple(each) if isinstance(each, list) else each
                 for name, each in value.items() if name != "name"}
        try:
            checked = measure.arguments.model_validate(given)
        except ValidationError as error:
            wrong = explained(error, measure.arguments.model_fields, "argument")
            raise SuiteError(f"measure {measure.name}: {wrong}") from None
        return cls(measure, tuple((name, getattr(checked, name)) for name in given))


Called = Annotated[Call, BeforeValidator(Call.read)]


@dataclass(frozen=True, config=CLOSED)
class Published:
    """What the paper published: the value, where it stands, and how it is computed from the published table."""
    value: StrictFloat
    unit: str
    source: Words
    recompute: Called


@dataclass(frozen=True, config=CLOSED)
class Claim:
    """One entry of the ledger. notebook, section: where the evidence stands, and its heading there."""
    id: Words
    document: Annotated[str, AfterValidator(lambda name: one_of(name, DOCUMENTS, "document"))]
    statement: Words            # what is claimed, in the suite's words
    comparison: Words           # what decides it
    region: Annotated[Region, BeforeValidator(Region.read), Field(validation_alias="supported_if")]
    notebook: Annotated[str, AfterValidator(lambda name: one_of(name, notebooks(), "notebook"))]
    section: Words
    call: Annotated[Called, Field(validation_alias="measure")]
    published: Published | None = None

    @property
    def unit(self) -> str:
        return self.call.measure.unit

    @property
    def rule(self) -> str:
        """What is supported and what is contradicted."""
        return self.region.rule(self.call.measure)


def notebooks() -> list[str]:
    return [file.stem for file in paths.NOTEBOOKS.glob("*.ipynb")]


@lru_cache(maxsize=None)
def load(path: Path = LEDGER) -> tuple[Claim, ...]:
    """The claims, in the order of the file."""
    from suite.settings.profiles import StrictLoader
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
    except (yaml.YAMLError, SuiteError) as error:
        raise SuiteError(f"{path.name}: not YAML: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise SuiteError(f"{path.name} is not a list of claims")
    claims = [read(entry, f"{path.name}, {named(entry, number)}") for number, entry in enumerate(entries, 1)]
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise SuiteError(f"{path.name}: two claims have the id {claim.id}: give one another")
        seen.add(claim.id)
    return tuple(claims)


def named(entry: Any, number: int) -> str:
    return f"claim {entry['id']}" if isinstance(entry, dict) and "id" in entry else f"claim number {number}"


def read(entry: Any, where: str) -> Claim:
    """One entry as a claim; errors begin with `where`."""
    try:
        return TypeAdapter(Claim).validate_python(entry)
    except ValidationError as error:
        raise SuiteError(f"{where}: {explained(error, KEYS, 'key')}") from None


def explained(error: ValidationError, names: Iterable[str], kind: str) -> str:
    """The first thing that pydantic found wrong, with the remedy. names: what a mapping may hold; kind: what it
    holds."""
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"the {kind} {name} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        try:
            one_of(name, names, kind)
        except SuiteError as unknown:
            return str(unknown)
    own = first.get("ctx", {}).get("error")
    return str(own) if isinstance(own, SuiteError) else f"{name} = {first['input']!r} is not valid: {first['msg']}"
