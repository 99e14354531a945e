"""What is fresh: a notebook's stamp is the hash of all that determines its execution, kept beside the result.

The stamp covers the notebook's source without outputs, its parameters, the profile, all of `lib` and `suite` (but not
the report, which has its own stamp), the text and, for one notebook, the last benchmark. Nothing heavy is imported
here, since most of the time there is nothing to do.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.config import fingerprint
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.run.evidence import shipped
from suite.settings import profiles

REPORT, LAB = paths.ROOT / "suite" / "report", paths.ROOT / "suite" / "lab"
BENCHED = "07_efficiency"               # the notebook that shows what `make bench` measured, if it did
PAGE = "page"


def digest(path: Path) -> str:
    """Hash of a file's content; empty if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def contents(files: Iterable[Path]) -> str:
    """Hash of sources, templates and tables by their path."""
    return fingerprint(*([str(path.relative_to(paths.ROOT)), digest(path)] for path in sorted(files)
                         if path.is_file() and "__pycache__" not in path.parts))


@lru_cache(maxsize=1)
def library() -> str:
    """Hash of `lib` and `suite` without the report and the lab."""
    return contents(path for package in ("lib", "suite") for path in (paths.ROOT / package).rglob("*")
                    if not {REPORT, LAB} & {*path.parents})


@lru_cache(maxsize=1)
def page_code() -> str:
    """Hash of what makes the page from executed notebooks and tables; the page shows the audit too."""
    return contents([*REPORT.rglob("*"), paths.ROOT / "docs" / "audit.md"])


def source(path: Path) -> list[Any]:
    """A notebook's cells without outputs and counts: looking at it in JupyterLab changes nothing."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [[c["cell_type"], "".join(c["source"]), sorted(c["metadata"].get("tags", []))] for c in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{path} is not a notebook: {error}") from None


def stamp(profile: str, notebook: str, corpus: str) -> str:
    """The stamp that the result of `notebook` has if nothing changed; `corpus` is the text's fingerprint."""
    sections = profiles.sections_of(profile)
    own = (sections.pop("notebooks", None) or {}).get(notebook)
    ships = sorted(path.name for path in paths.EVIDENCE.glob("*.parquet")) if shipped(profile) else []
    bench = [digest(paths.outputs() / "bench" / "bench.json")] if notebook == BENCHED else []
    return fingerprint(source(paths.NOTEBOOKS / f"{notebook}.ipynb"), sections, own, library(), corpus, *bench,
                       *ships)


# Beside the results

def record(profile: str, name: str) -> Path:
    """The file that keeps the stamp of a notebook, or of the page."""
    return paths.executed(profile) / f"{name}.json"


def products(profile: str, name: str) -> dict[str, str]:
    """Hashes of what an execution left: the executed notebook and its table (empty: it wrote none); or of the page."""
    if name == PAGE:
        return {file: digest(paths.report(profile) / file) for file in ("index.html", "ledger.json")}
    return {"notebook": digest(paths.executed(profile) / f"{name}.ipynb"),
            "table": digest(paths.results(profile) / f"{name}.csv")}


def whole(profile: str, name: str, stamp: str | None = None) -> bool:
    """Whether what belongs to a notebook (or `PAGE`) is as it was made, by this stamp or by any."""
    known = read(profile, name)
    return known.get("products") == products(profile, name) and stamp in (None, known.get("stamp"))


def page_stamp(profile: str, values: Mapping[str, str], *text: str) -> str:
    """The stamp of the page when all notebooks are fresh; the page shows the verdicts of other profiles too. text: the
    corpus's folder, if any, and notes."""
    made = {name: products(profile, name) for name in values}
    ledgers = {path.parent.parent.name: digest(path) for path in sorted(paths.outputs().glob("*/report/ledger.json"))
               if path.parent != paths.report(profile)}
    return fingerprint(dict(values), made, page_code(), text, ledgers)



def write(profile: str, name: str, stamp: str, **more: Any) -> None:
    """Keep the stamp, with hashes of what it stands for."""
    kept = {"stamp": stamp, "products": products(profile, name), **more}
    write_atomically(record(profile, name), (json.dumps(kept, indent=1) + "\n").encode())


def read(profile: str, name: str) -> dict[str, Any]:
    """What is kept of a notebook or the page; empty if the file is missing or damaged."""
    try:
        return dict(json.loads(record(profile, name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
