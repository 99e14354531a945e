"""The ledger's file, read strictly: a slip in it is an error that names the claim, the key and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from lib import paths
from lib.errors import SuiteError, one_of
from suite.claims.measures import Measure, known
from suite.claims.region import Region
from suite.settings.parameters import validated

LEDGER = Path(__file__).with_name("ledger.yaml")
DOCUMENTS = ("fibonacci", "powerlaw", "christoffel", "audit", "suite")
KEYS = ("id", "document", "statement", "comparison", "published", "supported_if", "notebook", "section", "measure")
OPTIONAL = ("published",)
PUBLISHED = ("value", "unit", "source", "recompute")


@dataclass(frozen=True)
class Call:
    """A measure with its arguments."""
    measure: Measure
    arguments: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Published:
    """What the paper published: the value, where it stands, and how it is computed from the published table."""
    value: float
    unit: str
    source: str
    recompute: Call


@dataclass(frozen=True)
class Claim:
    """One entry of the ledger."""
    id: str
    document: str               # fibonacci | powerlaw | christoffel | audit | suite
    statement: str              # what is claimed, in the suite's words
    comparison: str             # what decides it
    region: Region
    notebook: str               # where the evidence stands
    section: str                # its heading there
    call: Call
    published: Published | None = None

    @property
    def unit(self) -> str:
        return self.call.measure.unit

    @property
    def rule(self) -> str:
        """What is supported and what is contradicted."""
        return self.region.rule(self.call.measure)


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
        keys(entry, KEYS, OPTIONAL)
        for key in set(entry) - {"published", "supported_if", "measure"}:
            if not isinstance(entry[key], str) or not entry[key].strip():
                raise SuiteError(f"{key} = {entry[key]!r} is not valid: words")
        one_of(entry["document"], DOCUMENTS, "document")
        one_of(entry["notebook"], [file.stem for file in paths.NOTEBOOKS.glob("*.ipynb")], "notebook")
        return Claim(id=entry["id"], document=entry["document"], statement=entry["statement"].strip(),
                     comparison=entry["comparison"].strip(), region=Region.read(entry["supported_if"]),
                     notebook=entry["notebook"], section=entry["section"], call=call(entry["measure"]),
                     published=published(entry["published"]) if "published" in entry else None)
    except SuiteError as error:
        raise SuiteError(f"{where}: {error}") from None


def keys(entry: Any, wanted: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """A mapping with all of `wanted` and nothing else."""
    if not isinstance(entry, Mapping):
        raise SuiteError(f"{entry!r} is not valid: a mapping with {', '.join(wanted)}")
    for key in entry:
        one_of(str(key), wanted, "key")
    for key in wanted:
        if key not in entry and key not in optional:
            raise SuiteError(f"the key {key} is missing")


def call(value: Any) -> Call:
    """`{name: loss_difference, series: [...], ...}`."""
    if not isinstance(value, Mapping) or "name" not in value:
        raise SuiteError(f"measure = {value!r} is not valid: a mapping with the name of a function and its arguments")
    measures = known()
    measure = measures[one_of(str(value["name"]), measures, "measure")]
    given = {name: argument for name, argument in value.items() if name != "name"}
    arguments = validated(given, measure.declared, f"measure {measure.name}", "argument")
    for name, declared in measure.declared.items():
        if declared.default is None and name not in arguments:
            raise SuiteError(f"measure {measure.name}: the argument {name} ({declared.type}) is missing")
    return Call(measure, tuple(arguments.items()))


def published(value: Any) -> Published:
    keys(value, PUBLISHED)
    if not isinstance(value["value"], (int, float)) or isinstance(value["value"], bool):
        raise SuiteError(f"published value = {value['value']!r} is not valid: a number")
    return Published(float(value["value"]), str(value["unit"]), str(value["source"]), call(value["recompute"]))
