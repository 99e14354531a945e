"""An executed notebook as an HTML fragment: nbconvert with a template of our own, then one pass over the tree (`markup`)."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.ansi import strip_ansi

from lib.errors import SuiteError
from suite.report import markup, mathml

_TEMPLATE = Path(__file__).with_name("notebook.html.j2")
_PRIORITY = ["text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg", "text/plain"]
_LIVE = ("application/vnd.jupyter.widget-view+json", "application/javascript")     # their text says only that they are there
_NOT_FOR_THE_PAGE = ("progress", "caption_line")     # metadata that suite.settings.progress and suite.notebook set
_PROGRESS = re.compile(r"\d+%\|.*\||\d+/\d+ \[\d+:\d+")                    # a bar of tqdm, or its counts and times
_TITLE = re.compile(r"\A\s*#[ \t]+(?P<title>[^\n]+?)[ \t#]*(?:\n|\Z)")


@dataclass(frozen=True)
class Section:
    """One notebook on the page; texts are HTML. `main` conclusions are shown first; `headings` as in `markup.Tidied`."""
    name: str
    title: str
    html: str = ""
    question: str = ""
    main: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    headings: tuple[tuple[str, str, int], ...] = field(default=())

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Identifier and text of the headings that divide it."""
        return [(identifier, text) for identifier, text, level in self.headings if level == 3]


class _Exporter(HTMLExporter):
    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        return mathml.markdown(source, context.get("cell", {}).get("attachments"))

    def default_filters(self):
        yield from super().default_filters()
        yield "base64", lambda text: base64.b64encode(text.encode()).decode()
        yield "tex", mathml.replace_in_text
        yield "is_conclusion", is_conclusion
        yield "figure_text", figure_text


def is_conclusion(output: nbformat.NotebookNode) -> bool:
    """Whether `suite.notebook.Notebook.conclude` wrote this output."""
    return bool(output.get("metadata", {}).get("conclusion"))


def figure_text(output: nbformat.NotebookNode, mime: str) -> dict[str, str]:
    """Alternative text and caption that `Notebook.show` left with the picture."""
    metadata = output.get("metadata", {})
    own = metadata.get(mime, {})
    return {key: str(own.get(key) or metadata.get(key) or "") for key in ("alt", "caption")}


def render(path: Path, name: str, runs: Collection[str] = (), notebooks: Collection[str] = ()) -> Section:
    """The section of the executed notebook at `path`. Fingerprints in `runs` become links to the appendix.

    Raises `SuiteError` if the file is not a notebook.
    """
    notebook = read(path)
    title = _prepare(notebook) or name
    fragment, _ = _exporter().from_notebook_node(notebook)
    tidied = markup.tidy(mathml.in_html(fragment), prefix=name, runs=runs, notebooks=notebooks)
    return Section(name, title, tidied.html, tidied.question, tidied.main, tidied.more, tidied.headings)


def title_of(notebook: nbformat.NotebookNode) -> str:
    """Text of the heading that begins a notebook's Markdown; empty if there is none."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (found := _TITLE.match(cell.source)):
            return plain(found["title"])
    return ""


def plain(title: str) -> str:
    """A Markdown heading as text for a table of contents."""
    return re.sub(r"[`*_$]|\\(?=\W)", "", title).strip()


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook at `path`; a `SuiteError` if it is none."""
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise SuiteError(f"{path} is missing, though the notebook is done; run the report again") from None
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, UnicodeDecodeError, AttributeError) as error:
        raise SuiteError(f"{path} is not a notebook: {error}; delete it and run the report again") from error


def _exporter() -> _Exporter:
    return _Exporter(template_file=str(_TEMPLATE), exclude_output_prompt=True, exclude_input_prompt=True)


def _prepare(notebook: nbformat.NotebookNode) -> str:
    """Take the title out, drop what is not for a page; returns the title (empty: there is none)."""
    title, trained = title_of(notebook), False
    notebook.cells = [c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]
    for cell in notebook.cells:
        found = _TITLE.match(cell.source) if cell.cell_type == "markdown" else None
        if found and plain(found["title"]) == title:
            cell.source = cell.source[found.end():]
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := _kept(output)) is not None]
            trained = trained or "nb.run(" in cell.source
            for output in filter(is_conclusion, cell.outputs):
                output.metadata["from_runs"] = trained
    _merge_parameters(notebook)
    notebook.cells = [c for c in notebook.cells if c.source.strip() or c.get("outputs")]
    return title


def _merge_parameters(notebook: nbformat.NotebookNode) -> None:
    """One cell of parameters: the declarations with their meanings, and the values that this execution was given."""
    declared, given = (next((c for c in notebook.cells if tag in c.metadata.get("tags", [])), None)
                       for tag in ("parameters", "injected-parameters"))
    if declared is None or given is None:
        return
    try:
        values = {node.targets[0].id: ast.get_source_segment(given.source, node.value)
                  for node in ast.parse(given.source).body}
        lines = declared.source.splitlines()
        for node in ast.parse(declared.source).body:
            if node.target.id in values:
                line = lines[node.lineno - 1].encode()
                value = values.pop(node.target.id).encode()
                lines[node.lineno - 1] = (line[:node.value.col_offset] + value + line[node.value.end_col_offset:]).decode()
    except (SyntaxError, AttributeError):       # not the cells that the suite writes: both are shown as they are
        return
    if not values:
        declared.source = "\n".join(lines)
        declared.metadata["given"] = True
        notebook.cells.remove(given)


def _kept(output: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """The output as the page shows it; None for widgets, progress displays and scripts, which say nothing on paper."""
    if output.output_type == "stream":
        output.text = _settled(output.text)
        return output if output.text.strip() else None
    if output.output_type in ("display_data", "execute_result"):
        best = next((mime for mime in _PRIORITY if mime in output.data), None)
        if best is None or any(mime in output.data for mime in _LIVE) or any(map(output.metadata.get, _NOT_FOR_THE_PAGE)):
            return None
        output.data = {best: output.data[best]}
    return output


def _settled(text: str) -> str:
    """What a terminal would show in the end: after a carriage return the line is written anew; progress bars are gone."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return "\n".join(line for line in lines if not _PROGRESS.search(strip_ansi(line)))
