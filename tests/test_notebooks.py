"""Committed notebooks: parameters as declared, no outputs, short cells, no logic, no picture without words."""

from __future__ import annotations

import ast
import re

import nbformat
import pytest

from lib import paths
from suite.experiments import names
from suite.settings.parameters import Parameters, declared_in, parse_cell

LONGEST = 14        # lines of a cell; parameters and imports have as many as they need


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)


def code(name: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def test_when_the_folder_is_read_then_each_experiment_has_its_notebook():
    assert sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb")) == names()


@pytest.mark.parametrize("name", names())
def test_when_a_notebook_is_committed_then_it_is_valid_without_outputs_and_has_the_plain_kernel(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.kernelspec.language == "python"
    for cell in code(name):
        assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.parametrize("name", names())
def test_when_a_notebook_is_committed_then_its_cells_have_names_that_do_not_change(name):
    ids = [cell.id for cell in read(name).cells]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z][a-z-]*", each) for each in ids), "words, not random digits"


@pytest.mark.parametrize("name", names())
def test_when_parameters_are_declared_then_the_first_code_cell_has_them_all_with_type_default_and_meaning(name):
    declared = declared_in(paths.NOTEBOOKS / f"{name}.ipynb").model_fields
    assert list(parse_cell(code(name)[0].source, name).model_fields) == list(declared)
    assert list(declared)[:4] == list(Parameters.model_fields) and declared["profile"].default == "small"
    assert [key for key, own in declared.items() if not own.description] == []


@pytest.mark.parametrize("name", names())
def test_when_cells_are_read_then_they_are_short_and_hold_no_logic(name):
    for cell in code(name):
        lines = cell.source.splitlines()
        assert len(lines) <= {"parameters": 30, "setup": 20}.get(cell.id, LONGEST), cell.id
        assert all(len(line) <= 175 for line in lines), cell.id
        kinds = {type(node) for node in ast.walk(ast.parse(cell.source))}
        statistic = cell.id.startswith("statistic")            # the one thing that a notebook computes itself, in sight
        assert not kinds & ({ast.ClassDef, ast.Try, ast.While} | (set() if statistic else {ast.FunctionDef})), cell.id
        printing = cell.id.startswith(("check", "balance", "statistic", "published"))
        assert printing or "print(" not in cell.source, cell.id


@pytest.mark.parametrize("name", names())
def test_when_a_notebook_is_read_then_it_has_the_parts_of_a_section(name):
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    sources = [cell.source for cell in code(name)]
    assert text.startswith("# ") and "$$" in text, "title and equation"
    assert re.search(r"\*\*[^*]+\?\*\*", text), "the question"
    assert f'Notebook("{name}", globals())' in sources[1]
    assert text.rstrip().split("\n## ")[-1].startswith("Try next") and text.count("\n- `") >= 3, "what to try next"
    calls = ("nb.source(", "nb.plan()", "nb.run()", "nb.save(runs)", "assert ", "nb.show(", "gallery.", "figures.")
    for call in (*calls, *(() if name == "07_efficiency" else ("nb.claims(",))):         # the ledger asks nothing of 07
        assert any(call in source for source in sources), call
    assert any(cell.id.startswith("statistic") and "np." in cell.source for cell in code(name)), "the statistic"
    if name not in ("04_power_law_sigma", "05_christoffel"):
        assert "published" in text.lower(), "published numbers, where there are some"


@pytest.mark.parametrize("name", names())
def test_when_a_figure_is_shown_then_words_go_with_it(name):
    cells = code(name)
    for at, cell in enumerate(cells):
        for shown in re.findall(r"nb\.show\((.*?)\n(?=\S|\Z)", cell.source + "\n", flags=re.S):
            assert 'alt="' in shown or "alt=f\"" in shown, cell.id
        if "nb.show(" in cell.source:
            following = cell.source + (cells[at + 1].source if at + 1 < len(cells) else "")
            assert "caption=" in cell.source or "nb.claims(" in following or "nb.note(" in following, cell.id


@pytest.mark.parametrize("name", names())
def test_when_a_conclusion_is_drawn_then_it_is_computed_and_not_typed(name):
    for cell in code(name):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "nb.note":
                computed = [inner for inner in ast.walk(node.args[0]) if isinstance(inner, (ast.Call, ast.Name))]
                assert computed, ast.unparse(node)


def test_when_the_audit_is_looked_up_then_every_row_is_shown_somewhere():
    sources = "\n".join(cell.source for name in names() for cell in read(name).cells)
    shown = set()
    for first, last in re.findall(r"rows? (\d+)(?: to (\d+))?", sources):
        shown |= set(range(int(first), int(last or first) + 1))
    shown |= {int(row) for row in re.findall(r"\]\(\.\./docs/audit\.md#row-(\d+)\)", sources)}
    for listed in re.findall(r"rows ((?:\d+, )*\d+ and \d+)", sources):
        shown |= {int(number) for number in re.findall(r"\d+", listed)}
    assert set(range(1, 26)) <= shown, sorted(set(range(1, 26)) - shown)
