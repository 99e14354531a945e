"""What is fresh: a notebook's stamp is the hash of all that determines its execution, kept beside the result.

The stamp covers the notebook's source without outputs, its parameters, the profile, all of `lib` and `suite` (but not
the report, which has its own stamp), the text and, for one notebook, the last benchmark. Nothing heavy is imported here,
since most of the time there is nothing to do.
"""

from __future__ import annotations

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
from suite.settings import profiles

REPORT = paths.ROOT / "suite" / "report"
BENCHED = "07_efficiency"               # the notebook that shows what `make bench` measured, if it did


def digest(path: Path) -> str:
    """Hash of a file's content; empty if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def files(folder: Path) -> list[Path]:
    """Sources, templates and tables below `folder`, in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def contents(sources: Iterable[Path]) -> str:
    return fingerprint(*([str(path.relative_to(paths.ROOT)), digest(path)] for path in sources))


@lru_cache(maxsize=1)
def library() -> str:
    """Hash of `lib` and `suite` without the report."""
    return contents(path for package in ("lib", "suite") for path in files(paths.ROOT / package)
                    if REPORT not in path.parents)


@lru_cache(maxsize=1)
def page_code() -> str:
    """Hash of what makes the page from executed notebooks and tables."""
    return contents(files(REPORT))


def source(path: Path) -> list[Any]:
    """A notebook's cells without outputs and counts: looking at it in JupyterLab changes nothing."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [[c["cell_type"], "".join(c["source"]), sorted(c["metadata"].get("tags", []))] for c in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{path} is not a notebook: {error}") from None


def stamp(profile: str, notebook: str, corpus: str) -> str:
    """The stamp that the result of `notebook` has if nothing changed; `corpus` is the text's fingerprint."""
    sections = profiles.parse(profiles.path_of(profile))
    own = (sections.pop("notebooks", None) or {}).get(notebook)
    bench = [digest(paths.outputs() / "bench" / "bench.json")] if notebook == BENCHED else []
    return fingerprint(source(paths.NOTEBOOKS / f"{notebook}.ipynb"), sections, own, library(), corpus, *bench)


# Beside the results

def record(profile: str, notebook: str) -> Path:
    return paths.executed(profile) / f"{notebook}.json"


def products(profile: str, notebook: str) -> dict[str, str]:
    """Hashes of what an execution left: the executed notebook and its table (empty: it wrote none)."""
    return {"notebook": digest(paths.executed(profile) / f"{notebook}.ipynb"),
            "table": digest(paths.results(profile) / f"{notebook}.csv")}


def is_fresh(profile: str, notebook: str, expected: str) -> bool:
    """Whether the last execution had this stamp, and what it left is as it left it."""
    known = read(record(profile, notebook))
    return known.get("stamp") == expected and known.get("products") == products(profile, notebook)


def write(profile: str, notebook: str, value: str, seconds: float) -> None:
    content = {"stamp": value, "seconds": seconds, "products": products(profile, notebook)}
    write_json(record(profile, notebook), content)


def page_stamp(profile: str, values: Mapping[str, str], corpus_folder: str) -> str:
    """The stamp of the page when all notebooks are fresh; the page shows the verdicts of other profiles too."""
    made = {name: products(profile, name) for name in values}
    ledgers = {path.parent.parent.name: digest(path) for path in paths.outputs().glob("*/report/ledger.json")}
    ledgers.pop(profile, None)
    return fingerprint(dict(values), made, page_code(), corpus_folder, dict(sorted(ledgers.items())))


def page_is_fresh(profile: str, expected: str) -> bool:
    there = all((paths.report(profile) / name).is_file() for name in ("index.html", "ledger.json"))
    return there and read(record(profile, "page")).get("stamp") == expected


def write_page(profile: str, value: str) -> None:
    write_json(record(profile, "page"), {"stamp": value})


def read(path: Path) -> dict[str, Any]:
    """A stamp file; one that is missing or damaged says that nothing is known."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
