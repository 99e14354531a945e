"""The ledger's own claims, on results that a test chooses: a verdict turns when the numbers turn."""

from __future__ import annotations

import json

import numpy as np
import pytest
from claim_results import ClaimDatabase, judged, one, small, verdict_of
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from lib.config import TrainConfig
from lib.errors import SuiteError
from lib.patterns import build
from lib.patterns.learned import alpha_of
from suite.claims import Judgement, as_json, load
from suite.claims.measures import known
from suite.claims.measures.facts import mean_hops
from suite.experiments import experiment
from suite.experiments.all_patterns import LITERATURE
from suite.report.ledger import VERDICTS
from suite.settings import profiles
from suite.study.findings.learned_alpha import travel
from suite.study.frames import Study

CLAIMS = {claim.id: claim for claim in load()}
RAMP, LOCAL, WORD = "Fibonacci, linear ramp", "Local window, equal edges", "Christoffel 31/256"
LEARNED, COPRIME, POW2 = "Fibonacci, learned", "Fibonacci, coprime ramp", "Powers of two, fixed"


def test_when_results_are_made_up_then_no_measure_fails_at_any_profile_and_json_has_what_the_report_reads():
    tested, keys = set(), {"identifier", "document", "statement", "verdict", "effect", "interval", "unit", "p", "seeds",
                           "runs", "published", "published_source", "rule", "notebook", "section"}
    for profile in ("smoke", "overnight"):
        found = judged(ClaimDatabase(unpaired=0.05), profile)
        entries = json.loads(json.dumps(as_json(list(found.values())), allow_nan=False))
        assert [entry["identifier"] for entry in entries] == list(CLAIMS)
        for entry, own in zip(entries, found.values(), strict=True):
            assert own.verdict != "failed", (profile, own.sentence)
            assert keys <= set(entry) and entry["verdict"] in VERDICTS
            assert (entry["interval"] is None) == (own.low is None)
            if own.verdict != "not tested":
                tested.add(own.claim.id)
                assert np.isfinite(own.effect) and own.sentence.endswith(".")
                assert own.claim.exact or own.seeds >= 1 and own.runs
                assert own.low is None or own.low <= own.effect <= own.high
    assert tested == set(CLAIMS) - {"audit-14"}, "the matrix tests all but what only the paper's machines know"


def test_when_measures_and_patterns_are_listed_then_claims_ask_for_each():
    used = {claim.measure.kind for claim in CLAIMS.values()}
    used |= {claim.published.recompute.kind for claim in CLAIMS.values() if claim.published}
    assert used == set(known().values())
    asked = {claim.measure.arguments["series"] for claim in CLAIMS.values() if claim.notebook == "08_all_patterns"}
    assert {*LITERATURE.values(), "Power law", "Christoffel word", "Fibonacci, fixed"} <= asked


@pytest.fixture(scope="module")
def unfinished() -> dict[str, Judgement]:
    """The verdicts when no notebook is finished."""
    return judged(None, finished=())


def test_when_no_notebook_is_finished_then_only_what_needs_no_run_is_judged(unfinished):
    for own in unfinished.values():
        assert own.claim.exact or own.verdict == "not tested", own.claim.id
        assert own.claim.document == "audit" or own.runs == ()
    claims = [CLAIMS[name] for name in ("fib-dense-degrades", "fib-ramp-beats-fixed")]
    done, open_ = judged(ClaimDatabase(unpaired=0.05), claims=claims, finished=["03_extrapolation"]).values()
    assert done.runs and open_.verdict == "not tested"


def beyond(name: str, value: float):
    """The loss of one model beyond the training length; 3 nats otherwise."""
    return lambda job, length, variant: value if job.labels.series == name and length > job.run.train.length else 3.0


def at_sigma(best: float):
    return lambda job, *_: 2.9 if job.labels.series == "Power law" and job.labels.sigma == best else 3.0


def frozen(loss: float):
    return lambda job, length, variant: loss if variant == "rungs=frozen" else 3.0


def with_context(sign: int):
    return lambda job, *_: 3 + sign * job.run.train.length / 5000 * (job.labels.series == RAMP)


# Claims, and the series whose loss decides each: supported at 2.9 nats, contradicted at 3.1, with 3 for all others.
LOWER = {"fib-ramp-beats-fixed": RAMP, "fib-ramp-beats-fixed-w6": RAMP, "fib-ramp-beats-learned": RAMP,
         "fib-dense-is-better-within": "Dense", "pl-beats-local": "Power law", "ch-descends-faster": WORD,
         "pl-matches-dense-at-equal-tokens": "Power law", "ch-beats-random": WORD, "suite-ramp-beats-local": RAMP,
         "suite-bigbird-beats-local": "BigBird, equal edges"}
# As above; first the loss at which the claim is supported, then the one at which it is contradicted.
OTHERS = {"fib-learned-gains-nothing": (LEARNED, 2.995, 2.9), "fib-coprime-is-no-better": (COPRIME, 3.1, 2.9),
          "fib-beats-fixed-powers-of-two": (POW2, 3.1, 2.9), "ch-matches-dense": (WORD, 3.01, 3.1),
          "pl-draws-approximate-the-law": ("Power law, draws", 3.005, 3.1)}
# The same of the loss beyond the training length; within it all models have 3 nats.
BEYOND = {"fib-coprime-extrapolates-worse": (COPRIME, 3.1, 2.9), "fib-dense-degrades": ("Dense", 3.2, 3.01),
          "fib-ramp-extrapolates": (RAMP, 3.01, 3.2), "fib-sparse-extrapolate": (POW2, 3.01, 3.2),
          "audit-04": (RAMP, 2.9, 3.1), "fib-ramp-beats-dense-beyond": (RAMP, 2.9, 3.1),
          "suite-local-extrapolates": (LOCAL, 3.01, 3.2)}
CASES = [*((name, one(model, 2.9), one(model, 3.1)) for name, model in LOWER.items()),
         *((name, one(model, good), one(model, bad)) for name, (model, good, bad) in OTHERS.items()),
         *((name, beyond(model, good), beyond(model, bad)) for name, (model, good, bad) in BEYOND.items()),
         ("pl-recommended-sigma-is-best", at_sigma(0.85), at_sigma(0.5)),
         ("fib-untrained-distances-hurt", frozen(2.9), frozen(3.1)),
         ("suite-rungs-gain-with-context", with_context(-1), with_context(1))]


@pytest.mark.parametrize("name, good, bad", CASES, ids=[case[0] for case in CASES])
def test_when_a_loss_turns_then_the_verdict_does(name, good, bad):
    for loss, verdict in ((good, "supported"), (bad, "contradicted")):
        own = verdict_of(name, ClaimDatabase(loss, unpaired=0.001))
        assert own.verdict == verdict, own.sentence
        if name == "suite-rungs-gain-with-context":
            assert abs(own.effect) == pytest.approx((512 - 128) / 5000, abs=1e-3)
    noisy = verdict_of(name, ClaimDatabase(unpaired=1.0))                        # no difference, in much noise
    assert noisy.verdict == "undecided" or noisy.low is None, noisy.sentence


def one_rate(value: float, rate: float):
    """A value for learned models at one rate of theta."""
    return lambda job: value if job.run.train.theta_lr == rate else 0.0


FAR = {"at": one(RAMP, lambda bin_: -0.3 if bin_ >= 4 else 0.3 if bin_ == 0 else 0.0, lambda bin_: 0.0)}
COPIES = {"right": one(RAMP, 0.9, 0.1)}


@pytest.mark.parametrize("name, numbers, verdict, effect", [
    ("fib-alpha-is-inert", {"alpha": one_rate(0.2, 1.0)}, "contradicted", 0.2),
    ("fib-alpha-is-inert", {"alpha": one_rate(-0.03, 1.0)}, "supported", 0.03),
    ("suite-fast-alpha-moves", {"alpha": one_rate(-0.2, 100.0)}, "supported", 0.2),
    ("suite-fast-alpha-moves", {"alpha": one_rate(0.2, 1.0)}, "contradicted", 0.0),
    ("fib-landscape-is-flat", {"slope": lambda job: 0.001}, "supported", 0.004),
    ("fib-landscape-is-flat", {"slope": lambda job: 0.1}, "contradicted", 0.4),
    ("fib-learned-costs-five-times", {"speed": one(LEARNED, 200.0, 1000.0)}, "supported", 5.0),
    ("audit-10", {"speed": one(LEARNED, 800.0, 1000.0)}, "contradicted", 1.25),
    ("fib-parameter-matched", {}, "supported", 0.0),
    ("fib-parameter-matched", {"size": one(RAMP, 1007, 1000)}, "contradicted", -8.0),
    ("fib-battery-is-near-chance", {"right": lambda job: 0.9}, "contradicted", 0.65),
    ("fib-battery-is-near-chance", {"right": lambda job: 0.0}, "supported", -0.25),
    ("fib-battery-does-not-separate", {"right": one(RAMP, 0.9, 0.2)}, "contradicted", 0.7),
    ("suite-recall-separates", {"right": one("Dense", 0.9, 0.2)}, "supported", 0.7),
    ("suite-recall-separates", {"right": one("Dense", 0.2, 0.9)}, "contradicted", -0.7),
    ("ch-copies-better", {"right": one(WORD, 0.9, 0.2)}, "supported", 0.7),
    ("fib-probe-needs-the-ramp-unblurred", {"right": one(f"{LEARNED} from the ramp", 0.9, 0.2)}, "supported", 0.7),
    ("fib-probe-fails-from-one", {"right": one(f"{LEARNED} with a blur", 0.9, 0.2)}, "contradicted", 0.9),
    ("pl-carries-influence-far", {"far": one("Power law", 0.4, 0.2)}, "supported", 0.2),
    ("pl-carries-influence-far", {"far": one("Power law", 0.1, 0.2)}, "contradicted", -0.1),
    ("suite-ramp-copies-further-than-local", COPIES, "supported", 0.8),
    ("suite-power-law-copies-further-than-local", COPIES, "undecided", 0.0),
    # bins of recurrence: 0-12, 13-24, 25-48, 49-96, 97-192, 193-255, first time
    ("suite-rungs-pay-beyond-the-stack", FAR, "supported", -0.3),
    ("suite-rungs-pay-beyond-the-window", FAR, "supported", -0.3 * 2 / 5),
    ("suite-rungs-pay-beyond-the-stack", {}, "undecided", 0.0)])
def test_when_another_number_turns_then_the_verdict_does(name, numbers, verdict, effect):
    own = verdict_of(name, ClaimDatabase(**numbers))
    assert own.verdict == verdict, own.sentence
    assert own.effect == pytest.approx(effect, abs=0.02)
    assert not name.endswith("stack") or own.seeds == 3 and "97 or more" in own.sentence


@pytest.mark.parametrize("slope, verdict", [(-0.01, "supported"), (0.01, "contradicted"), (0.0, "undecided")])
def test_when_the_difference_moves_with_tokens_then_the_slope_is_found(slope, verdict):
    whole = profiles.load("small").train.tokens
    def loss(job, *_):
        chance = np.random.default_rng([job.run.train.seed, job.run.train.tokens]).normal(0, 1e-4)
        return 3 + (chance + slope * np.log2(job.run.train.tokens / whole)) * (job.labels.series == RAMP)
    own = verdict_of("suite-rungs-gain-with-tokens", ClaimDatabase(loss))
    assert own.verdict == verdict and own.effect == pytest.approx(slope, abs=1e-3) and own.seeds == 1


def test_when_a_profile_trains_less_then_the_claim_is_not_tested_and_says_why():
    without = small(n09={"lengths": [], "copy_distances": [], "fractions": [1.0], "length_fraction": 1.0,
                         "seeds": [42]}, n03={"masks": []})
    for name, said in (("rungs-gain-with-tokens", "trains too few"), ("rungs-gain-with-context", "profile small"),
                       ("ramp-copies-further-than-local", "profile small"), ("window-rescues-dense", "mask=window")):
        own = verdict_of(f"suite-{name}", ClaimDatabase(), without)
        assert own.verdict == "not tested" and said in own.sentence, own


def test_when_the_range_holds_two_sigmas_then_both_are_compared_at_each_budget():
    wide = small(n04={"sigmas": [0.5, 0.8, 0.85, 1.2], "budgets": [16, 32]})
    assert len(verdict_of("pl-beats-local", ClaimDatabase(unpaired=0.001), wide).runs) == 2 * (2 + 1)


def test_when_dense_is_stopped_at_equal_compute_then_its_loss_there_counts():
    """The made-up curve falls from 3.1 at step 10 to 3.05 at step 20, its end; the mask needs fewer operations."""
    tokens, compute = (verdict_of(f"pl-matches-dense-at-equal-{what}", ClaimDatabase(unpaired=0.001))
                       for what in ("tokens", "compute"))
    assert 0.0 < tokens.effect - compute.effect < 0.05


class Shifted(ClaimDatabase):
    """The ramp's loss is `gain` lower at positions from `first` on, at evaluation length `at` (or every length)."""
    def array(self, job, evaluation, name):
        found, (first, at, gain) = super().array(job, evaluation, name), self.numbers["shift"]
        if name.startswith("nll") and job.labels.series == RAMP and at in (None, int(name.rpartition(".")[2])):
            edges = self.edges(int(name.rpartition(".")[2]))
            found = found - gain * np.diff(edges) * (edges[:-1] >= first)
        return found


@pytest.mark.parametrize("name, first, at, gain, verdict", [
    ("fib-gain-is-flat-over-positions", 128, None, 0.1, "contradicted"), ("audit-05", 128, None, 0.1, "contradicted"),
    ("fib-gain-is-flat-over-positions", 128, None, 0.0, "supported"), ("audit-05", 128, None, 0.0, "supported"),
    ("suite-context-beyond-helps-the-ramp", 256, 1024, 0.1, "supported"),
    ("suite-context-beyond-helps-the-ramp", 256, 1024, -0.1, "contradicted")])
def test_when_the_gain_lies_at_late_positions_then_claims_on_positions_see_it(name, first, at, gain, verdict):
    own = verdict_of(name, Shifted(shift=(first, at, gain), unpaired=0.001 if at is None else 0.0))
    assert own.verdict == verdict and abs(own.effect) == pytest.approx(abs(gain), abs=1e-3)
    assert own.effect * gain >= 0 if at is None else own.effect * gain < 0


def test_when_a_mask_rescues_dense_then_it_is_the_changed_model_that_is_compared():
    def loss(job, length, variant):
        far = length > job.run.train.length and job.labels.series == "Dense"
        return 3.0 + 0.5 * (far and variant == "") - 0.1 * (far and variant == "mask=window")
    names = ("suite-window-rescues-dense", "suite-rescued-dense-beats-the-ramp", "fib-dense-degrades")
    found = judged(ClaimDatabase(loss, unpaired=0.001), claims=[CLAIMS[name] for name in names])
    assert {own.verdict for own in found.values()} == {"supported"}


def test_when_three_seeds_are_trained_then_claims_count_them_and_hear_seeds_that_disagree():
    def found(spread, seeds):
        loss = one(RAMP, lambda job: 2.95 + spread * (job.run.train.seed - 43), lambda job: 3.0)
        database = ClaimDatabase(lambda job, *_: loss(job)(job), unpaired=0.001)
        return verdict_of("fib-ramp-beats-fixed", database, small(n01={"seeds": seeds}))
    agreeing, disagreeing, two = found(0.0, [42, 43, 44]), found(0.1, [42, 43, 44]), found(0.1, [42, 43])
    assert (agreeing.verdict, agreeing.seeds, len(agreeing.runs)) == ("supported", 3, 6)
    assert disagreeing.verdict == "undecided" and disagreeing.high - disagreeing.low > 0.2
    assert two.verdict == "supported" and ", two seeds." in two.sentence
    moved = {42: 0.01, 43: 0.02, 44: 0.03}
    database = ClaimDatabase(alpha=lambda job: moved.get(job.run.train.seed, 0.0))
    own = verdict_of("fib-alpha-is-inert", database, small(n02={"seeds": list(moved)}))
    assert own.effect == pytest.approx(0.02) and own.low < 0.01 < 0.03 < own.high and own.seeds == 3


def test_when_two_models_have_different_seeds_then_those_of_both_are_compared():
    profile = small(n01={"seeds": [42, 43, 44]})
    jobs = experiment("01_window_sweep").plan(profile.parameters("01_window_sweep"), profile)
    def last(job):
        return job.run.train.seed == 44
    def ramp(job):
        return job.labels.series == RAMP
    database = ClaimDatabase(lambda job, *_: 9.0 if last(job) else 3.0 - 0.1 * ramp(job))
    study = Study([job for job in jobs if not (ramp(job) and last(job))], database)
    of_ramp, local, dense = (study.model(name) for name in (RAMP, LOCAL, "Dense"))
    both = study.difference(of_ramp, dense)
    assert both.estimate == pytest.approx(-0.1) and both.seeds == 2
    assert study.difference(local, dense).seeds == 3 and study.shared_seeds(of_ramp, dense) == (42, 43)
    with pytest.raises(SuiteError, match="seed in common"):
        study = Study([job for job in jobs if ramp(job) == last(job)], database)
        study.difference(study.model(RAMP), study.model("Dense"))


def test_when_several_windows_are_trained_then_each_is_compared_with_its_own_partner():
    names = ("fib-ramp-beats-fixed", "fib-larger-window-helps", "fib-dense-is-better-within")
    def loss(job, *_):
        window = job.labels.window
        return 3.0 if window is None else 3.28 - 0.02 * window - 0.1 * (job.labels.series == RAMP)
    ramp, larger, dense = judged(ClaimDatabase(loss, unpaired=0.001), small(n01={"windows": [6, 8, 10]}),
                                 [CLAIMS[name] for name in names]).values()
    assert ramp.effect == pytest.approx(-0.1, abs=1e-3) and "decides among 3" in ramp.sentence and len(ramp.runs) == 6
    assert larger.effect == pytest.approx(-0.08, abs=1e-3)
    assert dense.verdict == "contradicted"                                     # at W = 10 the ramp is better


def test_when_an_exact_number_is_asked_for_then_it_is_the_audits(unfinished):
    wanted = {"audit-01": -475, "audit-02": 16, "audit-11": 10, "audit-12": 10, "audit-12-union": 133, "audit-13": 0,
              "audit-15": 0.1, "audit-16": 5, "audit-22": 1, "audit-23": 0, "audit-25": 4, "ch-selects-m-offsets": 0}
    near = {"audit-07": 0.072, "audit-08": 0.745, "audit-17": 1.29, "audit-18": 1.225, "audit-20": 5.08,
            "audit-21": 0.5}
    assert {name: unfinished[name].effect for name in wanted} == wanted
    assert {name: unfinished[name].effect for name in near} == pytest.approx(near, abs=0.01)
    rows = [own for name, own in unfinished.items()
            if name.startswith("audit") and own.claim.exact and name != "audit-14"]
    assert {own.verdict for own in rows} == {"contradicted"} and len(rows) >= 22
    reach = alpha_of(travel(TrainConfig()))                            # the sum of the recipe's rates
    assert unfinished["fib-ramp-in-reach-of-learning"].effect == pytest.approx(reach, abs=1e-3)


def test_when_hops_are_averaged_then_it_is_the_mean_shortest_path():
    mask = np.asarray(build("power_law", mode="draws", sigma=0.8, draws=6, window=2, causal=False).mask(0, 64))
    hops = shortest_path(csr_array(mask.reshape(-1, 64, 64)[0].astype(float)), unweighted=True)
    assert mean_hops(0.8, 6, 2, 64) == pytest.approx(hops[~np.eye(64, dtype=bool)].mean())
