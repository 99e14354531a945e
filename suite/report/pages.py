"""An executed notebook, or a document of the repository, as a section of the page; the environment of all templates."""

import ast
import base64
import datetime
import hashlib
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import jinja2
import nbformat
from markupsafe import Markup
from nbconvert.filters import ansi2html, strip_ansi

from lib import paths
from lib.errors import SuiteError
from lib.text import duration
from suite.report import html
from suite.report.html import Section
from suite.report.ledger import VERDICTS, effect_in_words

TEMPLATES = Path(__file__).parent / "templates"
AUDIT = paths.ROOT / "docs" / "audit.md"
WORDS = {"waiting": "not run yet", "running": "running", "done": "done", "fresh": "done", "failed": "failed",
         "lacking": "runs missing"}
PRIORITY = ("text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain")
LIVE = ("application/vnd.jupyter.widget-view+json", "application/javascript")   # their text only says what they are
NOT_FOR_THE_PAGE = ("progress", "caption_line")      # metadata that suite.settings.progress and suite.notebook set
_PROGRESS = re.compile(r"\d+%\|.*\||\d+/\d+ \[\d+:\d+")                    # a bar of tqdm, or its counts and times
_TITLE = re.compile(r"\A\s*#[ \t]+(?P<title>[^\n]+?)[ \t#]*(?:\n|\Z)")


@cache
def environment() -> jinja2.Environment:
    """What the templates share: filters, names of states and of verdicts."""
    made = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True,
                              undefined=jinja2.StrictUndefined)
    made.globals.update(words=WORDS, verdicts=VERDICTS)
    made.filters.update(
        duration=duration, moment=moment, in_words=effect_in_words, figure=lambda value, digits: f"{value:,.{digits}f}",
        markdown=lambda text: Markup(html.markdown(text)), highlight=lambda source: Markup(html.highlighted(source)),
        ansi=lambda text: Markup(ansi2html(text)), base64=lambda text: base64.b64encode(text.encode()).decode(),
        digest=lambda script: f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}")
    return made


def moment(when: str) -> str:
    """A time in ISO format as one reads it, with its distance to UTC."""
    return datetime.datetime.fromisoformat(when).strftime("%Y-%m-%d %H:%M UTC%z").removesuffix("+0000")


def render(path: Path, name: str, runs: Collection[str] = (), anchors: Collection[str] = (),
           claims: Mapping[str, str] | None = None) -> Section:
    """The section of the executed notebook at `path`; `runs`, `anchors` and `claims` as in `html.tidy`."""
    cells = [cell for cell in read(path).cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    first = next((cell for cell in cells if cell.cell_type == "markdown"), None)
    title = name
    if first:
        title, first.source = titled(first.source, name)
    _merge_parameters(cells)
    for cell in cells:
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := _kept(output)) is not None]
    shown = [cell for cell in cells if cell.source.strip() or cell.get("outputs")]
    return html.tidy(environment().get_template("notebook.html.j2").render(cells=shown), name, title, runs, anchors,
                     claims)


def unfinished(name: str) -> Section:
    """The section of a notebook that has no output: its title alone."""
    source = paths.NOTEBOOKS / f"{name}.ipynb"
    cells = read(source).cells if source.exists() else []
    first = next((cell.source for cell in cells if cell.cell_type == "markdown"), "")
    return Section(name, titled(first, name)[0])


def document(path: Path, notebooks: Collection[str]) -> Section | None:
    """The section of a Markdown document; None if there is none at `path`."""
    if not path.exists():
        return None
    title, text = titled(path.read_text(encoding="utf-8"), path.stem)
    return html.tidy(html.markdown(text), path.stem, title, anchors=notebooks)


def titled(text: str, otherwise: str) -> tuple[str, str]:
    """The heading that begins a Markdown text, without its marks, and what follows it; `otherwise` if there is none."""
    found = _TITLE.match(text)
    return (re.sub(r"[`*_$]|\\(?=\W)", "", found["title"]).strip(), text[found.end():]) if found else (otherwise, text)


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path`; a `SuiteError` if it is none."""
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise SuiteError(f"{path} is missing, though the notebook is done; run the report again") from None
    except Exception as error:                  # whatever nbformat makes of what is no notebook
        raise SuiteError(f"{path} is not a notebook: {error}; delete it and run the report again") from error


def _merge_parameters(cells: list[nbformat.NotebookNode]) -> None:
    """One cell of parameters: the declarations with their meanings, and the values that this execution was given."""
    declared, given = (next((cell for cell in cells if tag in cell.metadata.get("tags", [])), None)
                       for tag in ("parameters", "injected-parameters"))
    if declared is None or given is None:
        return
    source = declared.source
    try:
        values = {node.targets[0].id: ast.get_source_segment(given.source, node.value)
                  for node in ast.parse(given.source).body}
        for node in ast.parse(source).body:
            old, default = (ast.get_source_segment(declared.source, part) for part in (node, node.value))
            source = source.replace(old, old.removesuffix(default) + values.pop(node.target.id, default), 1)
    except (SyntaxError, AttributeError):       # not the cells that the suite writes: both are shown as they are
        return
    if not values:
        declared.update(source=source, metadata={**declared.metadata, "given": True})
        cells.remove(given)


def _kept(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """The output as the page shows it; None for widgets, progress displays and scripts, which say nothing on paper."""
    if output.output_type == "stream":
        # What a terminal would show in the end: a carriage return writes the line anew; progress bars are gone.
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in output.text.split("\n")]
        output.text = "\n".join(line for line in lines if not _PROGRESS.search(strip_ansi(line)))
        return output if output.text.strip() else None
    if output.output_type in ("display_data", "execute_result"):
        best = next((mime for mime in PRIORITY if mime in output.data), None)
        if best is None or any(mime in output.data for mime in LIVE) or any(map(output.metadata.get, NOT_FOR_THE_PAGE)):
            return None
        about = {**output.metadata, **output.metadata.get(best, {})}        # alt and caption that `Notebook.show` left
        output.update(mime=best, content=output.data[best], alt=about.get("alt", ""), caption=about.get("caption", ""))
    return output
