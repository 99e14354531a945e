"""Further seeds of a run: trained after all first seeds, and first where a claim is still undecided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lib.config import RunConfig
from suite.settings.parameters import notebook_names

if TYPE_CHECKING:
    from suite.experiments.base import Job
    from suite.settings.profiles import Profile

UNDECIDED, ONE_SEED, DECIDED, UNCLAIMED = range(4)           # what needs a further seed most comes first
Further = Callable[[int], Callable[["Job"], int]]            # number of trained seeds -> order of the next seeds


def apart_from_seed(run: RunConfig) -> RunConfig:
    """The run with seed 0: equal for runs that differ in their seed only."""
    return replace(run, train=replace(run.train, seed=0))


def numbered(runs: Iterable[RunConfig]) -> list[int]:
    """For each run, how many seeds of the same run stand before it: 0 for a first seed."""
    seen: dict[RunConfig, dict[int, int]] = {}
    numbers = []
    for run in runs:
        seeds = seen.setdefault(apart_from_seed(run), {})
        numbers.append(seeds.setdefault(run.train.seed, len(seeds)))
    return numbers


def with_seeds(profile: Profile, count: int) -> Profile:
    """The profile with the first `count` seeds of each list of seeds."""
    def cut(notebook: str) -> dict[str, Any]:
        lists = {name: value[:count] for name, value in profile.parameters(notebook) if name.endswith("seeds")}
        return {**profile.notebooks.get(notebook, {}), **lists}
    return replace(profile, notebooks={name: cut(name) for name in notebook_names()})


def by_need(judgements: Sequence[Any], configurations: Mapping[str, RunConfig]) -> Callable[[Job], int]:
    """The order of further seeds: runs behind an undecided claim, then behind a verdict of one seed, then the others.

    configurations: each run of the plan by its fingerprint.
    """
    need: dict[RunConfig, int] = {}
    for judgement in judgements:
        level = UNDECIDED if judgement.verdict == "undecided" else ONE_SEED if judgement.seeds == 1 else DECIDED
        for run in judgement.runs:
            if run in configurations:
                key = apart_from_seed(configurations[run])
                need[key] = min(level, need.get(key, UNCLAIMED))
    return lambda job: need.get(apart_from_seed(job.run), UNCLAIMED)
