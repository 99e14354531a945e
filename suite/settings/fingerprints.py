"""Which code determines a result: the part of a run's fingerprint that is neither configuration nor data.

A run depends on exactly the files that its training imports, its own pattern's and its own task's; an evaluation on
those of the evaluation. Comments and docstrings do not count, so that explaining the code better trains nothing again;
nor do the names and places of modules, so that moving code trains nothing again either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.config import Evaluation, RunConfig, fingerprint
from lib.errors import SuiteError
from lib.patterns import pattern_class

if TYPE_CHECKING:
    from lib.data import Corpus

# Imported by the training, but no part of what it computes: where files lie, how errors read, what is kept, what fits into
# memory, what a compiler makes quicker.
NEUTRAL = frozenset({"lib.errors", "lib.paths", "lib.checkpoint", "lib.config", "lib.registry",
                     "lib.memory", "lib.clock", "lib.fit", "lib.compiled"})
PACKAGES = ("lib", "data_prep", "suite")
TRAINING = ("lib.train_run", "lib.training", "lib.model", "lib.data", "suite.tasks")


def file_of(module: str) -> Path | None:
    """The file of a module of this repository, None for any other module."""
    base = paths.ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file() and module.split(".")[0] in PACKAGES:
            return path
    return None


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(paths.ROOT).with_suffix("").parts).removesuffix(".__init__")


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                node.body = node.body[1:]
    return tree


@lru_cache(maxsize=None)
def parsed(path: Path) -> tuple[str, tuple[str, ...]]:
    """A file's code without comments, docstrings and places of modules, and the suite's modules that it imports when it
    runs."""
    tree = without_docstrings(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    imported = {module for node in running(tree) for module in imports(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and imports(node):
            node.module = PACKAGES[0]
    return ast.unparse(tree), tuple(sorted(imported - NEUTRAL))


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`, which never run."""
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from running(child)


def imports(node: ast.AST) -> set[str]:
    """The suite's modules that an import statement names."""
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        names = {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    else:
        return set()
    return {name for name in names if file_of(name)}


def closure(modules: Iterable[str]) -> list[str]:
    """The modules and all of the suite that they import, sorted."""
    todo, found = list(modules), set()
    while todo:
        module = todo.pop()
        path = file_of(module)
        if module not in found and path is not None:
            found.add(module)
            todo.extend(parsed(path)[1])
    return sorted(found)


@lru_cache(maxsize=None)
def code_fingerprint(modules: tuple[str, ...]) -> str:
    """Hash of the code of these modules and of everything of the suite that they import, wherever it lies."""
    contents = {parsed(path)[0] for path in map(file_of, closure(modules)) if path is not None}
    return fingerprint(*sorted(contents))


def defined_in(package: str) -> dict[str, str]:
    """Module by the `name = "..."` (or `name: ClassVar[str] = "..."`) of the classes that a package's files define."""
    folder = paths.ROOT.joinpath(*package.split("."))
    return {name: module_of(path) for path in sorted(folder.glob("*.py")) for name in names_in(path)}


@lru_cache(maxsize=None)
def names_in(path: Path) -> tuple[str, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return tuple(name for cls in classes for statement in cls.body if (name := declared_name(statement)))


def declared_name(statement: ast.stmt) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    value = getattr(statement, "value", None)
    named = isinstance(target, ast.Name) and target.id == "name"
    return value.value if named and isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def package_modules(package: str) -> tuple[str, ...]:
    return tuple(module_of(path) for path in sorted(paths.ROOT.joinpath(*package.split(".")).glob("*.py")))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)


def training_modules(run: RunConfig) -> tuple[str, ...]:
    """What the weights of `run` depend on: the training, every attention path, its pattern, its task."""
    return modules_of(run.pattern.name, run.data.source)


@lru_cache(maxsize=None)
def modules_of(pattern: str, source: str) -> tuple[str, ...]:
    patterns, tasks = defined_in("lib.patterns"), defined_in("suite.tasks")
    if pattern not in patterns:
        raise SuiteError(f"pattern {pattern!r}: no file of lib/patterns defines it")
    own = {patterns[pattern]} | ({tasks[source]} if source in tasks else set())
    return tuple(sorted({*TRAINING, *package_modules("lib.attention"), pattern_class(pattern).trainer, *own}))


def evaluation_modules(evaluation: Evaluation) -> tuple[str, ...]:
    """What an evaluation depends on beyond its run: its own file, and patterns, tasks and parts that its parameters name."""
    folders = [path.parent for path in (paths.ROOT / "suite" / "evals").glob("*/__init__.py")]
    packages = ["lib.patterns", "suite.tasks", *(module_of(folder / "__init__.py") for folder in folders)]
    named = {known[text] for known in map(defined_in, packages) for text in strings(evaluation.parameters) if text in known}
    evals = defined_in("suite.evals")
    if evaluation.name not in evals:
        raise SuiteError(f"evaluation {evaluation.name!r}: no file of suite/evals defines it")
    return tuple(sorted({evals[evaluation.name]} | named))


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
    """The key of an evaluation within its run; the run's own fingerprint covers model and data."""
    return fingerprint(evaluation, code_fingerprint(evaluation_modules(evaluation)))
