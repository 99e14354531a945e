"""Experiments by name. Every file of this folder that defines an `Experiment` is found; nothing else is to be edited."""

from __future__ import annotations

import importlib
import pkgutil

from lib.errors import one_of
from suite.experiments.base import COLUMNS, Experiment, Job, Parameters, tidy

__all__ = ["COLUMNS", "Experiment", "Job", "Parameters", "experiment", "names", "tidy"]


def _all() -> dict[str, type[Experiment]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {cls.name: cls for cls in Experiment.__subclasses__() if "name" in vars(cls)}


def names() -> list[str]:
    """Names of the notebooks, in their order."""
    return sorted(_all())


def experiment(name: str) -> Experiment:
    known = _all()
    return known[one_of(name, known, "experiment")]()
