"""Synthetic tasks by name. Every file of this folder that defines a `Task` is found; nothing else is to be edited."""

from __future__ import annotations

from typing import Any

from lib.discovery import construct, discover
from lib.errors import one_of
from lib.tasks.base import Task

__all__ = ["Task", "names", "task", "task_class"]


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
