"""Claims on all patterns and on long rungs: verdicts turn with the numbers that the runs give."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from claim_results import ClaimDatabase, judged, series, small
from made_up_results import DOMAINS, WINDOWS

from suite.claims import load
from suite.settings import profiles

RAMP = "Fibonacci, linear ramp"
pytestmark = pytest.mark.filterwarnings("ignore:christoffel")


class Studied(ClaimDatabase):
    """Also recurrence: ten tokens a window and bin, 3 nats each and `at` more by bin."""

    def array(self, job, evaluation, name):
        if evaluation.name != "recurrence":
            return super().array(job, evaluation, name)
        bins = len(dict(evaluation.parameters)["edges"]) + 1
        if "_count" in name:
            return np.full((WINDOWS, bins), 10)
        rng = np.random.default_rng([job.run.train.seed, series(job) == RAMP, DOMAINS.index(name.partition(".")[2])])
        extra = np.array([self.numbers["at"](job, bin_) if "at" in self.numbers else 0.0 for bin_ in range(bins)])
        return 10 * (3 + extra) + rng.normal(0, 0.01, (WINDOWS, bins))

    def windows(self, job, length, variant, domain):
        """Windows of any length; a longer one holds the tokens of several shorter ones."""
        shortest = min(128, job.run.train.length)
        noise = np.random.default_rng(DOMAINS.index(domain)).normal(0, self.noise, WINDOWS * 2)
        which = [job.run.train.seed, job.run.train.tokens, job.run.train.length, series(job) == RAMP]
        own = np.random.default_rng(which).normal(0, 1e-4, WINDOWS * 2)
        return self.loss(job, length, variant) + (noise + own).reshape(-1, length // shortest).mean(axis=1)


@lru_cache
def claims():
    return tuple(claim for claim in load() if claim.notebook in ("08_all_patterns", "09_long_rungs"))


def verdicts(**numbers):
    loss = numbers.pop("loss", lambda job, length, variant: 3.0)
    return judged(Studied(loss, **numbers), claims=claims())


def test_when_patterns_are_claimed_then_all_of_the_literature_and_all_families_are_among_them():
    wanted = [dict(claim.call.arguments)["series"] for claim in claims() if claim.notebook == "08_all_patterns"]
    from suite.experiments.all_patterns import LITERATURE
    assert {*LITERATURE.values(), "Power law", "Christoffel word", "Fibonacci, fixed"} <= set(wanted)


@pytest.mark.parametrize("loss, verdict", [(2.9, "supported"), (3.1, "contradicted"), (3.0, "undecided")])
def test_when_one_pattern_differs_from_the_local_window_then_its_claim_turns_and_no_other(loss, verdict):
    found = verdicts(loss=lambda job, *_: loss if series(job).startswith("Christoffel") else 3.0)
    own = found["suite-christoffel-beats-local"]
    assert own.verdict == verdict and own.seeds == 1 and own.effect == pytest.approx(loss - 3, abs=1e-3)
    assert found["suite-bigbird-beats-local"].verdict == "undecided"


@pytest.mark.parametrize("slope, verdict", [(-0.01, "supported"), (0.01, "contradicted"), (0.0, "undecided")])
def test_when_the_difference_moves_with_tokens_then_the_slope_is_found(slope, verdict):
    whole = profiles.load("small").train.tokens
    found = verdicts(loss=lambda job, *_: 3 + slope * np.log2(job.run.train.tokens / whole) * (series(job) == RAMP))
    own = found["suite-rungs-gain-with-tokens"]
    assert own.verdict == verdict and own.effect == pytest.approx(slope, abs=1e-3) and own.seeds == 1


@pytest.mark.parametrize("sign, verdict", [(-1, "supported"), (1, "contradicted"), (0, "undecided")])
def test_when_the_difference_moves_with_the_context_then_the_claim_turns(sign, verdict):
    found = verdicts(loss=lambda job, *_: 3 + sign * job.run.train.length / 5000 * (series(job) == RAMP))
    own = found["suite-rungs-gain-with-context"]
    assert own.verdict == verdict and own.effect == pytest.approx(sign * (512 - 128) / 5000, abs=1e-3)


def test_when_only_tokens_beyond_the_stack_gain_then_the_claims_on_far_evidence_say_so():
    def at(job, bin_):
        return (-0.3 if bin_ >= 4 else 0.3 if bin_ == 0 else 0.0) * (series(job) == RAMP)
    found = verdicts(at=at)                                # bins 0-12, 13-24, 25-48, 49-96, 97-192, 193-255, first time
    stack = found["suite-rungs-pay-beyond-the-stack"]
    assert stack.effect == pytest.approx(-0.3, abs=0.01) and stack.verdict == "supported"
    assert stack.seeds == 3 and "97 or more" in stack.sentence
    assert found["suite-rungs-pay-beyond-the-window"].effect == pytest.approx(-0.3 * 2 / 5, abs=0.01)
    assert verdicts()["suite-rungs-pay-beyond-the-stack"].verdict == "undecided"


def test_when_the_ramp_copies_and_the_window_does_not_then_the_claim_is_supported_and_else_not():
    found = verdicts(right=lambda job: 0.9 if series(job) == RAMP else 0.1)
    assert found["suite-ramp-copies-further-than-local"].verdict == "supported"
    assert found["suite-ramp-copies-further-than-local"].effect == pytest.approx(0.8, abs=0.02)
    assert found["suite-power-law-copies-further-than-local"].verdict == "undecided"


def test_when_a_profile_trains_less_then_the_claim_is_not_tested_and_says_why():
    without = small(n09={"lengths": [], "copy_distances": [], "fractions": [1.0], "length_fraction": 1.0,
                         "seeds": [42]})
    found = judged(Studied(), without, claims=claims())
    for name in ("rungs-gain-with-tokens", "rungs-gain-with-context", "ramp-copies-further-than-local"):
        name = f"suite-{name}"
        assert found[name].verdict == "not tested" and "profile small" in found[name].sentence, found[name]
