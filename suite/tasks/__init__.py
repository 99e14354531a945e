"""Synthetic tasks by name. Every file of this folder that defines a `Task` is found; nothing else is to be edited."""

from __future__ import annotations

from typing import Any

from lib.config import DataConfig
from lib.data import Corpus, Source, text_source
from lib.errors import SuiteError, one_of
from lib.registry import construct, discover
from suite.tasks.base import Task

__all__ = ["Task", "make_source", "names", "task", "task_class"]


def _all() -> dict[str, type[Task]]:
    return discover(__name__, __path__, Task)


def names() -> list[str]:
    return sorted(_all())


def task_class(name: str) -> type[Task]:
    known = _all()
    return known[one_of(name, known, "task")]


def task(name: str, **parameters: Any) -> Task:
    """The task `name`; an unknown name or parameter and a value of the wrong type are errors."""
    return construct(task_class(name), f"task {name}", parameters)


def make_source(data: DataConfig, corpus: Corpus | None) -> Source:
    """The source that a run's configuration names: `text` (parameter `mixture`: pairs of domain and weight, or `domains`:
    some of the corpus, alike) or a task."""
    parameters = dict(data.parameters)
    if data.source != "text":
        return task(data.source, **parameters)
    if corpus is None:
        raise SuiteError("data source 'text' needs a corpus, and none was given")
    for name in parameters:
        one_of(name, ("mixture", "domains"), "parameter of data source 'text'")
    if "domains" in parameters:
        return text_source(corpus, dict.fromkeys(parameters["domains"], 1.0))
    return text_source(corpus, dict(parameters["mixture"]) if "mixture" in parameters else None)
