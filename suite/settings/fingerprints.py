"""Which code determines a result: the part of a run's fingerprint that is neither configuration nor data.

A run depends on the modules that its training imports, its own pattern's and its own task's; an evaluation depends on
those of the evaluation. A module's digest covers its code and, instead of the names and places of the modules that it
imports, their digests. So neither a comment, a docstring nor a move of a module trains anything again; any other line
does.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from lib import paths
from lib.config import Evaluation, RunConfig, fingerprint
from lib.data import Corpus
from lib.errors import SuiteError, one_of

# Imported by the training, but no part of its numbers: messages, paths, writing files, checking parameters.
NEUTRAL = frozenset({"lib.errors", "lib.paths", "lib.files", "lib.registry"})
PACKAGES = ("lib", "data_prep", "suite")
TRAINING = ("lib.training", "suite.tasks")
NAME = re.compile(r"""^    name(?:: .*)? = ["'](.+)["']$""", re.MULTILINE)


def folders_of(package: str) -> list[Path]:
    """The folder of a package, and that of a person's own patterns (SUITE_PATTERNS)."""
    own = paths.named_by("SUITE_PATTERNS") if package == "lib.patterns" else None
    return [paths.ROOT.joinpath(*package.split(".")), *([own] if own else [])]


def file_of(module: str) -> Path | None:
    """The file of a module of this repository; None if there is none."""
    package, _, name = module.rpartition(".")
    places = [*(folder / f"{name}.py" for folder in folders_of(package)), folders_of(module)[0] / "__init__.py"]
    return next((path for path in places if path.is_file()), None)


class Bare(ast.NodeTransformer):
    """Takes docstrings, imports for type checkers and imports of the suite out of a tree; collects the latter."""

    def __init__(self) -> None:
        self.imports: set[tuple[str, str]] = set()          # module, and the name that is taken from it

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_ImportFrom(self, node: ast.Import | ast.ImportFrom) -> ast.AST | None:
        source = getattr(node, "module", "")
        imports = {(source, alias.name) if source else (alias.name, "") for alias in node.names}
        ours = {(module, name) for module, name in imports if module.split(".")[0] in PACKAGES}
        self.imports |= ours
        return None if ours else node

    visit_Import = visit_ImportFrom


@lru_cache(maxsize=None)
def bare(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The code of a file without comments, docstrings and imports of the suite, and these imports."""
    transformer = Bare()
    return ast.unparse(transformer.visit(ast.parse(text))), sorted(transformer.imports)


@lru_cache(maxsize=None)
def digest(module: str) -> str:
    """Hash of the code of a module and of everything of the suite that it imports, wherever that lies."""
    code, imports = bare(file_of(module).read_text(encoding="utf-8"))
    taken = []
    for source, name in imports:
        source = f"{source}.{name}" if file_of(f"{source}.{name}") else source
        taken.append((name, "" if source in NEUTRAL else digest(source)))
    return fingerprint(code, sorted(taken))


def code_fingerprint(modules: tuple[str, ...]) -> str:
    """Hash of the code of these modules and of everything of the suite that they import."""
    return fingerprint(*sorted(map(digest, modules)))


def package_modules(package: str) -> tuple[str, ...]:
    return tuple(sorted(f"{package}.{path.stem}".removesuffix(".__init__") for folder in folders_of(package)
                        for path in folder.glob("*.py")))


@lru_cache(maxsize=None)
def defined_in(package: str) -> dict[str, str]:
    """Module by the `name = "..."` of the classes in a package's files; nothing is imported for it."""
    texts = {module: file_of(module).read_text(encoding="utf-8") for module in package_modules(package)}
    return {name: module for module, text in texts.items() for name in NAME.findall(text)}


def training_modules(run: RunConfig) -> tuple[str, ...]:
    """The modules that the weights of `run` depend on, with all that they import."""
    patterns, tasks = defined_in("lib.patterns"), defined_in("suite.tasks")
    own = {patterns[one_of(run.pattern.name, patterns, "pattern")], tasks.get(run.data.source, "suite.tasks")}
    return tuple(sorted({*TRAINING, *own}))


def data_fingerprint(run: RunConfig, corpus: Corpus | None) -> str:
    """The corpus's content for a language model; a synthetic task is code, and its data need no corpus."""
    if run.data.source != "text":
        return ""
    if corpus is None:
        raise SuiteError("data.source = 'text' is not valid without a corpus: build one with python -m suite corpus")
    return corpus.fingerprint


def run_fingerprint(run: RunConfig, corpus: Corpus | None) -> str:
    """The key of a run in the database: 16 hexadecimal digits of configuration, data and code."""
    return fingerprint(run, data_fingerprint(run, corpus), code_fingerprint(training_modules(run)))


@lru_cache(maxsize=None)
def evaluation_fingerprint(evaluation: Evaluation) -> str:
    """The key of an evaluation within its run. Its code: its own, and of the patterns and tasks that it names."""
    evals, others = defined_in("suite.evals"), defined_in("lib.patterns") | defined_in("suite.tasks")
    own = evals[one_of(evaluation.name, evals, "evaluation")]
    named = {others[text] for text in strings(evaluation.parameters) if text in others}
    return fingerprint(evaluation, code_fingerprint(("suite.evals", own, *named)))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from strings(item)
