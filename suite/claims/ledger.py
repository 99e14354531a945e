"""The ledger's file, read strictly: a slip in it is an error that names the claim, the key and the remedy."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from lib.errors import SuiteError, one_of
from lib.registry import tuples
from suite.claims.measures import Measure, Part, known
from suite.claims.region import Region
from suite.settings.parameters import Strict, checked, notebook_names
from suite.settings.profiles import StrictLoader
from suite.study.frames import Study
from suite.study.stats import LEVEL

LEDGER = Path(__file__).with_name("ledger.yaml")
# Short and long names of the documents, in the order of the page.
DOCUMENTS = {"fibonacci": ("Fibonacci", "Depth-staggered Fibonacci offsets"),
             "powerlaw": ("Power law", "Critical power-law edges"),
             "christoffel": ("Christoffel", "Christoffel-balanced offsets"),
             "audit": ("Audit", "Audit of the documents"), "suite": ("Suite", "The suite's own questions")}
Words = Annotated[str, Field(min_length=1)]


class Call(Strict):
    """A measure with its arguments."""
    model_config = ConfigDict(arbitrary_types_allowed=True)
    kind: Measure
    arguments: dict[str, Any] = {}

    @classmethod
    def read(cls, value: Any) -> "Call":
        """From the ledger: `{name: loss_difference, series: [...], ...}`."""
        if isinstance(value, Call):
            return value
        if not isinstance(value, dict) or "name" not in value:
            raise SuiteError("a mapping with the name of a function and its arguments is needed")
        given = {name: tuples(own) for name, own in value.items() if name != "name"}
        kind = known()[one_of(str(value["name"]), known(), "measure")]
        valid = checked(kind.arguments, given, f"measure {value['name']}", "argument")
        return cls(kind=kind, arguments={name: getattr(valid, name) for name in given})

    def parts(self, study: Study | None) -> list[Part]:
        return list(self.kind.function(study, **self.arguments))


Called = Annotated[Call, BeforeValidator(Call.read)]


class Published(Strict):
    """What the paper published: the value, where it stands, and how it is computed from the published table."""
    value: float
    unit: str
    source: Words
    recompute: Called


class Claim(Strict):
    """One entry of the ledger. notebook, section: where the evidence stands, and its heading there."""
    id: Words
    document: Annotated[str, AfterValidator(lambda name: one_of(name, DOCUMENTS, "document"))]
    statement: Words            # what is claimed, in the suite's words
    comparison: Words           # what decides it
    supported_if: Annotated[Region, BeforeValidator(Region.read)]
    notebook: Annotated[str, AfterValidator(lambda name: one_of(name, notebook_names(), "notebook"))]
    section: Words
    measure: Called
    published: Annotated[Published | None, BeforeValidator(lambda given: (    # no mapping: left to pydantic
        checked(Published, given, "published", "key") if isinstance(given, dict) else given))] = None

    @property
    def unit(self) -> str:
        return self.measure.kind.unit

    @property
    def exact(self) -> bool:
        """Whether there is no chance in the number."""
        return self.measure.kind.exact

    @property
    def rule(self) -> str:
        """What is supported and what is contradicted, in words."""
        measure, where = self.measure.kind, f"{self.supported_if.words} {self.unit}".strip()
        if measure.exact:
            whose = "every number is" if measure.every else "the number is"
            return f"Supported if {whose} {where}, else contradicted; it is exact, so there is no interval."
        what, other, again = (("every comparison's", "of one of them ", " after a correction for their number")
                              if measure.every else ("its", "", ""))
        return (f"Supported if the effect is {where}: {what} whole {100 * LEVEL:.0f} % interval, with "
                f"p < {1 - LEVEL:.2g} after Holm's correction over its document; contradicted if the whole interval "
                f"{other}lies outside, with the same p{again}; else undecided.")


@cache
def load(path: Path = LEDGER) -> tuple[Claim, ...]:
    """The claims, in the order of the file."""
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
    except (yaml.YAMLError, SuiteError) as error:
        raise SuiteError(f"{path.name}: not YAML: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SuiteError(f"{path.name} is not a list of claims")
    claims = [checked(Claim, entry, f"{path.name}, claim {entry.get('id', f'number {number}')}", "key")
              for number, entry in enumerate(entries, 1)]
    if twice := [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]:
        raise SuiteError(f"{path.name}: two claims have the id {twice[0]}: give one another")
    return tuple(claims)
