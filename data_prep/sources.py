"""`docs` and `code`: what the libraries of libraries.txt say in their docstrings, and how they are written.

A document is a module. `code` has its docstrings removed, so that no sentence stands in both domains.
"""

import ast
import gc
import hashlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from data_prep.clean import Duplicates, without_licence_header, without_licence_paragraphs

LIBRARIES = Path(__file__).with_name("libraries.txt")
LONGEST = 16_000           # characters of a document; a few giant modules would otherwise fill the held-out split
SHORTEST_DOCSTRING = 60    # characters
SHORTEST_SOURCE = 400
LONGEST_LINE = 400         # a source file with a longer line is data, or generated
SHARE = 0.15               # of a module in triple quotes (LONGEST at most); with less it is not worth the time to parse
TRIPLE_QUOTED = re.compile(r'("""|\'\'\')(.*?)\1', re.DOTALL)

Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Document(NamedTuple):
    name: str
    text: str


class Module(NamedTuple):
    distribution: str
    path: str              # inside site-packages, with forward slashes: the same on every machine
    file: Path


@cache
def versions() -> dict[str, str]:
    """Versions of the libraries that libraries.txt names and this environment has, by name."""
    names = sorted(line for line in LIBRARIES.read_text("utf-8").splitlines() if not line.startswith("#"))
    return {name: installed.version for name in names if (installed := distribution(name)) is not None}


def distribution(name: str) -> metadata.Distribution | None:
    """The installed distribution of this name, or None. The copies that Ray puts on the path do not count."""
    places = [place for place in sys.path if Path(place).name != "thirdparty_files"]
    return next(iter(metadata.distributions(name=name, path=places)), None)


@lru_cache(maxsize=1)
def modules(seed: int) -> list[Module]:
    """The Python files of the libraries without tests, in the order of a seeded hash, which mixes the libraries."""
    every = [Module(name, file.as_posix(), Path(str(file.locate())))
             for name in versions() for file in distribution(name).files or ()
             if file.suffix == ".py" and not {"..", "tests", "test", "testing"} & set(file.parts)]
    return sorted(every, key=lambda m: hashlib.sha256(f"{seed}/{m.distribution}/{m.path}".encode()).digest())


def parsed(seed: int, removed: Counter[str], quoted: float = 0) -> Iterator[tuple[Module, str, ast.Module]]:
    """Each module of which at least the share `quoted` stands in triple quotes, with its source and syntax tree.

    `removed` counts the files that this Python cannot parse.
    """
    for module in modules(seed):
        gc.disable()        # looking for cycles in syntax trees takes a third of the time
        try:
            source = module.file.read_text("utf-8")
            if quoted and min(LONGEST, sum(len(m[2]) for m in TRIPLE_QUOTED.finditer(source))) < quoted * len(source):
                continue
            with warnings.catch_warnings(action="ignore"):      # other people's invalid escapes are not this suite's
                tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):
            removed["unreadable files"] += 1
            continue
        finally:
            gc.enable()
        yield module, source, tree


def docs(seed: int, removed: Counter[str]) -> Iterator[Document]:
    """A document a module: its docstrings in order, each under the name and the arguments that it documents.

    Copies of an earlier docstring, of this module or another one, are left out.
    """
    seen = Duplicates(removed, "docstrings")
    for module, _, tree in parsed(seed, removed, SHARE):
        dotted = module.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        entries = [(_heading(node, name), text) for node, name in scopes(tree, dotted)
                   if len(text := without_licence_paragraphs(ast.get_docstring(node) or "")) >= SHORTEST_DOCSTRING]
        fresh = seen.fresh([text for _, text in entries])
        text = "\n\n\n".join(f"{heading}\n\n{text}" for (heading, text), new in zip(entries, fresh, strict=True) if new)
        if text:
            yield Document(f"{module.distribution}/{module.path}", cut(text))


def code(seed: int, removed: Counter[str]) -> Iterator[Document]:
    """A document a module: its source without licence header and docstrings; no files with very long lines (data)."""
    for module, source, tree in parsed(seed, removed):
        text = without_licence_header(without_docstrings(source, tree))
        text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(line.rstrip() for line in text.split("\n"))).strip()
        if max(map(len, text.split("\n"))) > LONGEST_LINE:
            removed["files of data"] += 1
        elif len(text) >= SHORTEST_SOURCE:
            yield Document(f"{module.distribution}/{module.path}", cut(text))


def cut(text: str) -> str:
    """At most `LONGEST` characters, ending with a whole line."""
    return text if len(text) <= LONGEST else text[:text.rindex("\n", 0, LONGEST)].rstrip()


def scopes(node: ast.AST, name: str, inside: str = "") -> Iterator[tuple[Scope, str]]:
    """`node` and the classes and functions in it, also under its conditions, with names; no expression is visited."""
    if isinstance(node, Scope):
        yield node, name
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Scope):
            yield from scopes(child, inside + child.name, f"{inside}{child.name}.")
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from scopes(child, name, inside)


def _heading(node: Scope, name: str) -> str:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return f"{name}({', '.join(a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))})"
    return f"{'module' if isinstance(node, ast.Module) else 'class'} {name}"


def without_docstrings(source: str, tree: ast.Module) -> str:
    """`source` without the docstrings of its module, classes and functions; `...` where the body had nothing else."""
    lines = source.split("\n")     # as the parser counts them; it also breaks no line at a form feed
    for node, _ in scopes(tree, ""):
        if ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            alone = len(node.body) == 1 and not isinstance(node, ast.Module)
            before = lines[first][:node.body[0].col_offset]
            after = lines[last - 1].encode()[node.body[0].end_col_offset:]      # the parser's columns are bytes
            if not before.strip() and not after.split(b"#")[0].strip():
                lines[first:last] = [before + "..." if alone else None, *[None] * (last - first - 1)]
    return "\n".join(line for line in lines if line is not None)
