"""Committed notebooks: parameters as declared, no outputs, short cells, no logic, no picture without words."""

import ast
import re
from types import SimpleNamespace

import nbformat
import pytest

from lib import paths
from suite.experiments import names
from suite.notebook import source_of
from suite.settings.parameters import Parameters, declared_in, notebook_names, parse_cell

LONGEST = 14        # lines of a cell; parameters and imports have as many as they need
PARTS = ("nb.source(", "nb.plan()", "nb.run()", "nb.save(runs)", "assert ", "nb.show(", "figures.")


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.fixture(params=names())
def name(request) -> str:
    return request.param


@pytest.fixture
def code(name) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def test_when_a_notebook_is_committed_then_it_is_valid_without_outputs_and_its_parameters_are_declared(name, code):
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.metadata.kernelspec.name, notebook.metadata.kernelspec.language) == ("python3", "python")
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    ids = [cell.id for cell in notebook.cells]
    assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[a-z][a-z-]*", each) for each in ids), "words, no digits"

    declared = declared_in(paths.NOTEBOOKS / f"{name}.ipynb").model_fields
    assert list(parse_cell(code[0].source, name).model_fields) == list(declared)
    assert list(declared)[:4] == list(Parameters.model_fields) and declared["profile"].default == "small"
    assert [key for key, own in declared.items() if not own.description] == []


def test_when_cells_are_read_then_they_are_short_and_hold_no_logic(code):
    for cell in code:
        lines, tree = cell.source.splitlines(), ast.parse(cell.source)
        assert len(lines) <= {"parameters": 30, "setup": 20}.get(cell.id, LONGEST), cell.id
        assert all(len(line) <= 175 for line in lines), cell.id
        kinds = {type(node) for node in ast.walk(tree)}
        statistic = cell.id.startswith("statistic")            # the one thing that a notebook computes itself, in sight
        assert not kinds & ({ast.ClassDef, ast.Try, ast.While} | (set() if statistic else {ast.FunctionDef})), cell.id
        printing = cell.id.startswith(("check", "balance", "statistic", "published"))
        assert printing or "print(" not in cell.source, cell.id
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "nb.note":
                computed = [inner for inner in ast.walk(node.args[0]) if isinstance(inner, (ast.Call, ast.Name))]
                assert computed, f"a conclusion is computed and not typed: {ast.unparse(node)}"


def test_when_a_notebook_is_read_then_it_has_the_parts_of_a_section_and_words_go_with_its_figures(name, code):
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    assert text.startswith("# ") and "$$" in text, "title and equation"
    assert re.search(r"\*\*[^*]+\?\*\*", text), "the question"
    assert f'Notebook("{name}", globals())' in code[1].source
    assert text.rstrip().split("\n## ")[-1].startswith("Try next") and text.count("\n- `") >= 3, "what to try next"
    for call in (*PARTS, *(() if name == "07_efficiency" else ("nb.claims(",))):         # the ledger asks nothing of 07
        assert any(call in cell.source for cell in code), call
    assert any(cell.id.startswith("statistic") and "np." in cell.source for cell in code), "the statistic"
    if name not in ("04_power_law_sigma", "05_christoffel"):
        assert "published" in text.lower(), "published numbers, where there are some"
    for at, cell in enumerate(code):
        for shown in re.findall(r"nb\.show\((.*?)\n(?=\S|\Z)", cell.source + "\n", flags=re.S):
            assert 'alt="' in shown or "alt=f\"" in shown, cell.id
        if "nb.show(" in cell.source:
            following = "".join(cell.source for cell in code[at:at + 2])
            assert "caption=" in cell.source or "nb.claims(" in following or "nb.note(" in following, cell.id


def test_when_code_is_shown_then_its_lines_are_where_the_notebook_looks_for_them(code):
    def source(*objects, start="", end=""):
        for item in objects:
            shown.append(source_of(item, start, end))
    shown, namespace = [], {"nb": SimpleNamespace(source=source)}
    for statement in [statement for cell in code for statement in ast.parse(cell.source).body]:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) or ast.unparse(statement).startswith("nb.source("):
            exec(ast.unparse(statement), namespace)
    assert shown and all(path.startswith(("lib/", "suite/")) for path, _ in shown)


def test_when_all_notebooks_are_read_then_each_experiment_has_one_and_every_row_of_the_audit_is_shown_somewhere():
    assert notebook_names() == names()
    sources = "\n".join(cell.source for name in names() for cell in read(name).cells)
    shown = {int(row) for row in re.findall(r"\]\(\.\./docs/audit\.md#row-(\d+)\)", sources)}
    assert shown >= set(range(1, 26))
