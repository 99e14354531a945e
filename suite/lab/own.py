"""A pattern of one's own, from its class in a notebook's cell to a file of `lib/patterns`: checked, compared, saved.

Until it is saved it is a draft: a file in a folder of this kernel, which the workers that train find by SUITE_PATTERNS.
"""

import ast
import importlib
import linecache
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib import patterns
from lib.attention import BACKENDS
from lib.errors import SuiteError, require
from lib.patterns import Pattern, build, expand
from lib.registry import subclasses
from suite.bench import cases
from suite.experiments.common import spec_of
from suite.lab.controls import Screen
from suite.lab.sketch import picture
from suite.run import compare as comparison
from suite.settings import fingerprints, profiles
from suite.study import figures

LENGTHS = (1, 2, 3, 7, 33, 100)          # of the checks: no multiples of a block
CLOSE = 1e-4                             # of the reference: a backend's values and gradients in float32
PACKAGE = Path(patterns.__file__).parent


@cache
def drafts() -> tempfile.TemporaryDirectory:
    """The folder of this kernel's drafts, which goes with it."""
    folder = tempfile.TemporaryDirectory(prefix="suite-patterns-")
    os.environ["SUITE_PATTERNS"] = folder.name
    patterns.__path__.append(folder.name)
    return folder


def source(cls: type) -> str:
    """The text of a file with a class: imports and definitions of its cell, without the calls of the lab."""
    codes = [own.__code__ for own in vars(cls).values()
             if hasattr(own, "__code__") and own.__module__ == cls.__module__]
    require(bool(codes), "class", cls.__name__, "one with methods: attends, and keys or what its kind asks for")
    lines, parts = linecache.getlines(codes[0].co_filename), []
    for statement in ast.parse("".join(lines)).body:
        named = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        if not isinstance(statement, ast.Expr) and "lab" not in named:
            parts.append("".join(lines[statement.lineno - 1:statement.end_lineno]).rstrip())
    return f'"""{cls.__name__}, from a notebook. Source: {cls.source}."""\n\n' + "\n\n\n".join(parts) + "\n"


def same(text: str, path: Path) -> bool:
    return path.is_file() and ast.dump(ast.parse(path.read_text("utf-8"))) == ast.dump(ast.parse(text))


def imported(name: str, text: str) -> type[Pattern]:
    """The class of this text, from its draft or the same file of lib/patterns; an earlier draft is forgotten."""
    draft = Path(drafts().name) / f"{name}.py"
    for cls in subclasses(Pattern):                     # a class without a name of its own is no pattern any more
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if vars(cls).get("name") == name and (file is None or Path(file).parent != PACKAGE):
            del cls.name
            sys.modules.pop(cls.__module__ if cls.__module__.startswith("lib.") else "", None)
    shutil.rmtree(draft.parent / "__pycache__", ignore_errors=True)
    draft.unlink(missing_ok=True)
    if not same(text, PACKAGE / draft.name):
        require(name not in patterns.names(), "name", name, "a name that no file of lib/patterns has")
        draft.write_text(text, "utf-8")
    for cached in (importlib.invalidate_caches, fingerprints.digest.cache_clear, fingerprints.defined_in.cache_clear):
        cached()
    try:
        return patterns.pattern_class(name)
    except Exception as error:
        draft.unlink(missing_ok=True)
        raise SuiteError(f"{name} does not stand alone ({type(error).__name__}: {error}): write what it needs, imports "
                         "too, into its cell") from None


# Checks

def wrong(pattern: Pattern, layer: int, length: int) -> str:
    """What is wrong with a layer at a length; empty: nothing."""
    mask, keys = pattern.mask(layer, length), expand(pattern.plan(layer, length), length, pattern.heads)
    for head, query, key in np.argwhere(keys != mask)[:1]:
        by = ("attends", "its keys") if mask[head, query, key] else ("its keys", "attends")
        return f"query {query} attends key {key} by {by[0]}, not by {by[1]} (head {head})"
    if not mask.any(axis=-1).all():
        return f"query {np.argwhere(~mask.any(axis=-1))[0][1]} attends no key, not even itself"
    counted, there = pattern.pairs(length, layer), mask.sum() / pattern.heads
    return "" if np.isclose(counted, there) else f"{there:g} pairs, but it counts {counted:g}"


def answers(pattern: Pattern, backend: str, length: int = 100) -> list[torch.Tensor]:
    """Attention over random inputs in the last layer, and its gradients; `SuiteError` if the backend cannot do it."""
    setting = cases.Setting(heads=pattern.heads, kv_heads=pattern.heads)
    way = cases.by_backend(backend, pattern, setting, pattern.layers - 1, True)
    x = cases.Tensors.random(setting, length, grad=True)
    y = way.attend(x)
    return [y.detach(), *torch.autograd.grad(y, [x.q, x.k, x.v, *way.learned], x.d_out)]


def checks(examples: list[Pattern]) -> pd.DataFrame:
    """A row a check, with what was found and whether that is right."""
    rows = []
    for pattern in examples:
        try:
            found = next((f"layer {layer}, T = {length}: {fault}" for layer in range(pattern.layers)
                          for length in LENGTHS if (fault := wrong(pattern, layer, length))), "")
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        rows.append((f"keys are the rule's, causal, counted: {comparison.settings(spec_of(pattern)) or 'defaults'}",
                     found or f"at T = {', '.join(map(str, LENGTHS))}", not found))
    for backend in [name for name in BACKENDS if name != "reference" and all(right for *_, right in rows)]:
        errors = []
        for pattern in examples:
            with suppress(SuiteError):
                pairs = zip(answers(pattern, "reference"), answers(pattern, backend), strict=True)
                errors.append(max((a - b).abs().nan_to_num(torch.inf).max().item() for a, b in pairs))
        if errors:
            rows.append((f"backend {backend} is the reference", f"largest difference {max(errors):.1e}",
                         max(errors) <= CLOSE))
    return pd.DataFrame(rows, columns=["check", "found", "right"])


# What a notebook calls

@dataclass
class Own:
    """A pattern that was brought: the text of its file, its parameters, and whether it keeps its rule."""
    name: str
    text: str
    given: dict[str, Any]
    right: bool

    def compare(self, profile: str = "smoke", train: bool = False) -> pd.DataFrame | None:
        """Beside dense, local and the best of each family at equal pairs: a picture, and its table. Nothing is trained
        without `train`."""
        self.require_right()
        screen, loaded = Screen(), profiles.load(profile)
        if not train:
            return screen.show(f"`train=True` trains {self.name} and its rivals at {profile}, where they are missing.")
        candidate = build(self.name, layers=loaded.model.layers, heads=loaded.model.heads, **self.given)
        table, left_out = comparison.compared(candidate, *profiles.opened(profile))
        mine, pairs = f"▶ {self.name}", candidate.pairs(loaded.train.length)
        table = table.rename(index={self.name: mine})
        screen.figure(figures.intervals(table.assign(estimate=table["mean"]), x="perplexity"),
                      f"Perplexity of {len(table)} patterns at equal pairs; the best is {table.index[0]}.")
        rank = f"**{self.name} is number {list(table.index).index(mine) + 1} of {len(table)}** at {pairs:,.0f} pairs."
        Screen().show("\n\n".join([f"{rank} One seed: small differences decide nothing.", *left_out]))
        return table

    def save(self) -> Path:
        """Write it as a file of lib/patterns, unless one of that name is there; its path."""
        self.require_right()
        path = PACKAGE / f"{self.name}.py"
        if not same(self.text, path):
            require(not path.exists(), "name", self.name, f"free: {path} has another content")
            with path.open("x", encoding="utf-8") as file:
                file.write(self.text)
            imported(self.name, self.text)
        return path

    def require_right(self) -> None:
        require(self.right, "pattern", self.name, "one that keeps its rule: see the checks below its cell")


def bring(cls: type, length: int = 1024, layers: int = 8, heads: int = 4, **given: Any) -> Own:
    """Check a class of this notebook against its rule, and show its picture; `given` are parameters of the pattern."""
    require(isinstance(cls, type) and issubclass(cls, Pattern), "cls", cls, "a class that derives from a Pattern")
    name, text = vars(cls).get("name", ""), source(cls)
    require(fingerprints.NAME.findall(text) == [name], "name", name, 'a line of the class: name = "every_third"')
    examples = imported(name, text).examples()
    found = checks([build(name, layers=2, heads=2, **given), *examples])
    Screen().show(found.to_string(), "text/html", found.style.hide(axis="index").to_html())
    if found["right"].all():
        picture(build(name, layers=layers, heads=heads, **given), length, 0, 0, length - 1, Screen(), Screen())
    return Own(name, text, given, found["right"].all())
