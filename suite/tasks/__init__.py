"""Synthetic tasks by name. Every file of this folder that defines a `Task` is found; nothing else is to be edited."""

from __future__ import annotations

from typing import Any

from lib.config import DataConfig
from lib.data import Corpus, Source, text_source
from lib.errors import SuiteError, one_of
from lib.registry import Registry
from suite.tasks.base import Task

__all__ = ["Task", "make_source", "names", "task"]

_tasks = Registry(__name__, Task, "task")
names = _tasks.names


def task(name: str, **parameters: Any) -> Task:
    """The task `name`; unknown names and parameters and wrong values are a `SuiteError`."""
    return _tasks.build(name, parameters)


def make_source(data: DataConfig, corpus: Corpus | None) -> Source:
    """The source of training batches that a run's configuration names: `text` or a task.

    Parameters of `text`: `mixture`, pairs of domain and weight, or `domains`, some of the corpus with equal weights.
    """
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
