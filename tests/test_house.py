"""The order of the house: which room may import which, no cycles, at most 14 modules a room, and budgets of lines."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from lib.paths import ROOT

# A module imports modules of its own line and of the lines above it. Every folder and module of `suite` is in one line.
ORDER = (
    ("lib",), ("data_prep",), ("suite.settings",), ("suite.tasks", "suite.evals", "suite.bench"),
    ("suite.experiments",), ("suite.published",), ("suite.run", "suite.plan"), ("suite.study",), ("suite.claims",),
    ("suite.report", "suite.lab"),
    ("suite", "suite.pipeline", "suite.notebook", "suite.paper", "suite.cli", "suite.__main__"),
)
PACKAGES = ("lib", "data_prep", "suite")
MOST_MODULES, MOST_COLUMNS = 14, 120
# Most lines of Python. Since the house was built, 2,200 came for what goes wrong (surroundings, damage, names and
# privacy), the report's pages, files for a paper and the lab, and 2,800 of their tests; `lib` stays as it is.
BUDGETS = {"lib": 6_500, "patterns, model and training": 3_600, "all but tests": 22_700, "tests": 14_300}


@cache
def modules() -> dict[str, Path]:
    """Every module of the three packages by its dotted name; a package by the name of its folder."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements in `node`, in functions too, without those that only a type checker executes."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in node.orelse if for_types else ast.iter_child_nodes(node):
        yield from statements(child)


def named(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that a statement imports; a name that is no module stands for the module that has it."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    assert not statement.level, "imports are absolute"
    return [whole if (whole := f"{statement.module}.{alias.name}") in modules() else str(statement.module)
            for alias in statement.names]


def imports_of(source: str) -> set[str]:
    """The modules of the house that the source imports."""
    found = {name for statement in statements(ast.parse(source)) for name in named(statement)}
    return {name for name in found if name.split(".")[0] in PACKAGES}


@cache
def imported() -> dict[str, set[str]]:
    """For each module, the modules of the house that it imports."""
    return {name: imports_of(file.read_text("utf-8")) - {name} for name, file in modules().items()}


def line_of(module: str) -> int:
    """The line of ORDER that a module belongs to."""
    room = ".".join(module.split(".")[:2]) if module.startswith("suite.") else module.split(".")[0]
    lines = [number for number, rooms in enumerate(ORDER) if room in rooms]
    assert len(lines) == 1, f"{module} is in no room of ORDER"
    return lines[0]


def sources(*names: str) -> list[Path]:
    """Files by name below the root, and those of folders."""
    found = [file for name in names for file in ROOT.glob(name if name.endswith(".py") else f"{name}/**/*.py")]
    assert len(found) >= len(names), names
    return found


def test_when_modules_are_imported_then_their_rooms_are_not_above_and_none_comes_back_to_itself():
    assert [f"{name} imports {other}" for name, others in imported().items() for other in others
            if line_of(other) > line_of(name)] == []
    TopologicalSorter(imported()).prepare()             # names a cycle


def test_when_imports_are_lazy_then_they_count_and_those_for_types_do_not():
    for source, names in {
            "import suite.cli": {"suite.cli"}, "def f():\n    from suite import cli": {"suite.cli"},
            "from lib.errors import SuiteError\nimport numpy": {"lib.errors"},
            "from suite.report import build": {"suite.report"},
            "if TYPE_CHECKING:\n    import suite.cli\nelse:\n    import lib.files": {"lib.files"},
            "try:\n    import lib.model\nexcept ImportError:\n    import lib.data": {"lib.model", "lib.data"}}.items():
        assert imports_of(source) == names
    assert line_of("lib.data") < line_of("suite.tasks.lego") < line_of("suite.cli")


def test_when_a_room_is_opened_then_it_has_at_most_14_modules():
    rooms = Counter(file.parent for file in modules().values() if file.name != "__init__.py")
    del rooms[ROOT / "lib" / "patterns"]       # one file a pattern, and a new pattern is a new file
    assert {folder: count for folder, count in rooms.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize(("folders", "most"), [
    (["lib"], BUDGETS["lib"]),
    (["lib/patterns", *(f"lib/{name}.py" for name in ("model", "rope", "training", "step"))],
     BUDGETS["patterns, model and training"]),
    ([*PACKAGES, "tools"], BUDGETS["all but tests"]), (["tests"], BUDGETS["tests"])])
def test_when_lines_are_counted_then_the_budgets_hold(folders, most):
    assert sum(len(file.read_text("utf-8").splitlines()) for file in sources(*folders)) <= most


def test_when_a_line_is_read_then_it_ends_within_120_columns():
    long = [f"{file.relative_to(ROOT)}:{number}" for file in sources(*PACKAGES, "tests", "tools")
            for number, line in enumerate(file.read_text("utf-8").splitlines(), 1) if len(line) > MOST_COLUMNS]
    assert long == []


def test_when_a_row_of_the_audit_is_named_then_the_page_of_the_audit_has_it():
    page = (ROOT / "docs" / "audit.md").read_text("utf-8")
    anchors = [int(number) for number in re.findall(r'<a id="row-(\d+)"></a>\1 \|', page)]
    assert sorted(anchors) == list(range(1, 28))
    texts = [*modules().values(), *(ROOT / "notebooks").glob("*.ipynb"), ROOT / "suite" / "claims" / "ledger.yaml"]
    text = re.sub(r"\s+", " ", " ".join(file.read_text("utf-8") for file in texts))
    named_rows = re.findall(r"[Aa]udit(?:'s|,)? rows?((?:[ ,]|\d|to|and)+)", text)       # "audit rows 6, 7 and 8"
    assert len(named_rows) > 9 and {int(row) for rows in named_rows for row in re.findall(r"\d+", rows)} <= set(anchors)


def test_when_a_report_is_made_then_no_module_needs_what_only_the_tests_or_ray_bring():
    apart = {"ray", "transformers", "triton", "pytest", "hypothesis"}
    needing = {name for name, file in modules().items() for node in ast.parse(file.read_text("utf-8")).body
               if isinstance(node, (ast.Import, ast.ImportFrom))
               if apart & {imported_name.split(".")[0] for imported_name in named(node)}}
    assert {name.rpartition(".")[0] for name in needing} == {"lib.attention.gpu"}, "kernels for a GPU"
