"""Experiments by name: every file of this folder that defines an `Experiment` is found."""

from lib.registry import Registry
from suite.experiments.base import COLUMNS, Experiment, Job, Parameters, tidy

__all__ = ["COLUMNS", "Experiment", "Job", "Parameters", "experiment", "names", "tidy"]

_experiments = Registry(__name__, Experiment, "experiment")
names = _experiments.names          # of the notebooks, in their order


def experiment(name: str) -> Experiment:
    """The experiment of the notebook `name`; a `SuiteError` that names the nearest if there is none."""
    return _experiments.find(name)()
