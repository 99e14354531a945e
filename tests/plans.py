"""What each notebook would train at each profile, planned once a process; the fixture `plans` gives `planned`."""

import warnings
from functools import cache
from pathlib import Path
from unittest import mock

from lib import paths
from suite.experiments import experiment
from suite.experiments.base import Job
from suite.settings import profiles


@cache
def loaded(name: str) -> profiles.Profile:
    """A profile of the suite, or `wide` of tests/data, which has every pattern, setting and task."""
    with mock.patch.object(paths, "PROFILES", Path(__file__).parent / "data" if name == "wide" else paths.PROFILES):
        return profiles.load(name)


@cache
def planned(name: str, profile: str = "smoke", **changes) -> list[Job]:
    """The jobs of the notebook `name`, with `changes` to the parameters that it has at `profile`.

    The list is shared by all tests of the process: copy it before you change it.
    """
    parameters = loaded(profile).parameters(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="christoffel")
        changed = type(parameters)(**{**dict(parameters), **changes})
        return experiment(name).plan(changed, loaded(profile))
