"""The ledger's own claims, on results that a test chooses: a verdict turns when the numbers turn."""

from __future__ import annotations


import numpy as np
import pytest
from claim_results import (ClaimDatabase, judged, one, series, small,
                           verdict_of)

from lib.errors import SuiteError
from suite.claims import Judgement, load
from suite.claims.ledger import Call
from suite.claims.measures import known
from suite.experiments import experiment
from suite.study.frames import Study

CLAIMS = {claim.id: claim for claim in load()}


def test_when_results_are_made_up_then_no_measure_fails_at_any_profile():
    tested = set()
    for profile in ("smoke", "overnight"):
        for name, own in judged(ClaimDatabase(unpaired=0.05), profile).items():
            assert own.verdict != "failed", (profile, own.sentence)
            tested |= {name} if own.verdict != "not tested" else set()
    assert tested == set(CLAIMS) - {"audit-14"}, "the matrix tests all but what only the paper's machines know"


@pytest.fixture(scope="module")
def unfinished() -> dict[str, Judgement]:
    """The verdicts when no notebook is finished."""
    return judged(None, finished=())


def test_when_no_notebook_is_finished_then_only_what_needs_no_run_is_judged(unfinished):
    for own in unfinished.values():
        assert own.exact or own.verdict == "not tested", own.claim.id
        assert own.claim.document == "audit" or own.runs == ()
    claims = [CLAIMS[name] for name in ("fib-dense-degrades", "fib-ramp-beats-fixed")]
    done, open_ = judged(ClaimDatabase(unpaired=0.05), claims=claims, finished=["03_extrapolation"]).values()
    assert done.runs and open_.verdict == "not tested"


RAMP, LOCAL, WORD = "Fibonacci, linear ramp", "Local window, equal edges", "Christoffel 31/256"


def loss_of(name: str, value: float, beyond: float | None = None):
    """3 nats for all but one model; `beyond`: its loss beyond the training length."""
    return lambda job, length, variant: 3.0 if series(job) != name else (
        value if length == job.run.train.length or beyond is None else beyond)


def at_sigma(best: float):
    return lambda job, *_: 2.9 if series(job) == "Power law" and job.labels.sigma == best else 3.0


def frozen(loss: float):
    return lambda job, length, variant: loss if variant == "rungs=frozen" else 3.0


LEARNED, COPRIME, POW2 = "Fibonacci, learned", "Fibonacci, coprime ramp", "Powers of two, fixed"
# Claims, and the series whose loss decides each: supported at 2.9 nats, contradicted at 3.1, with 3 for all others.
LOWER = {"fib-ramp-beats-fixed": RAMP, "fib-ramp-beats-fixed-w6": RAMP, "fib-ramp-beats-learned": RAMP,
         "fib-dense-is-better-within": "Dense", "pl-beats-local": "Power law", "ch-descends-faster": WORD,
         "pl-matches-dense-at-equal-tokens": "Power law", "ch-beats-random": WORD, "suite-ramp-beats-local": RAMP}
# As above; first the loss at which the claim is supported, then the one at which it is contradicted.
OTHERS = {"fib-learned-gains-nothing": (LEARNED, 2.995, 2.9), "fib-coprime-is-no-better": (COPRIME, 3.1, 2.9),
          "fib-beats-fixed-powers-of-two": (POW2, 3.1, 2.9), "ch-matches-dense": (WORD, 3.01, 3.1),
          "pl-draws-approximate-the-law": ("Power law, draws", 3.005, 3.1)}
# The same of the loss beyond the training length; within it all models have 3 nats.
BEYOND = {"fib-coprime-extrapolates-worse": (COPRIME, 3.1, 2.9), "fib-dense-degrades": ("Dense", 3.2, 3.01),
          "fib-ramp-extrapolates": (RAMP, 3.01, 3.2), "fib-sparse-extrapolate": (POW2, 3.01, 3.2),
          "audit-04": (RAMP, 2.9, 3.1), "fib-ramp-beats-dense-beyond": (RAMP, 2.9, 3.1),
          "suite-local-extrapolates": (LOCAL, 3.01, 3.2)}
CASES = [*((name, *(loss_of(model, loss) for loss in (2.9, 3.1))) for name, model in LOWER.items()),
         *((name, *(loss_of(model, loss) for loss in losses)) for name, (model, *losses) in OTHERS.items()),
         *((name, *(loss_of(model, 3.0, loss) for loss in losses)) for name, (model, *losses) in BEYOND.items()),
         ("pl-recommended-sigma-is-best", at_sigma(0.85), at_sigma(0.5)),
         ("fib-untrained-distances-hurt", frozen(2.9), frozen(3.1))]


@pytest.mark.parametrize("name, good, bad", CASES, ids=[case[0] for case in CASES])
def test_when_a_loss_turns_then_the_verdict_does(name, good, bad):
    for loss, verdict in ((good, "supported"), (bad, "contradicted")):
        own = verdict_of(name, ClaimDatabase(loss, unpaired=0.001))
        assert own.verdict == verdict, own.sentence
    noisy = verdict_of(name, ClaimDatabase(unpaired=1.0))                        # no difference, in much noise
    assert noisy.verdict == "undecided" or noisy.low is None, noisy.sentence


def one_rate(value: float, rate: float):
    """A value for learned models at one rate of theta."""
    return lambda job: value if job.run.train.theta_lr == rate else 0.0


@pytest.mark.parametrize("name, numbers, verdict, effect", [
    ("fib-alpha-is-inert", {"alpha": one_rate(0.2, 1.0)}, "contradicted", 0.2),
    ("fib-alpha-is-inert", {"alpha": one_rate(-0.03, 1.0)}, "supported", 0.03),
    ("suite-fast-alpha-moves", {"alpha": one_rate(-0.2, 100.0)}, "supported", 0.2),
    ("suite-fast-alpha-moves", {"alpha": one_rate(0.2, 1.0)}, "contradicted", 0.0),
    ("fib-landscape-is-flat", {"slope": lambda job: 0.001}, "supported", 0.004),
    ("fib-landscape-is-flat", {"slope": lambda job: 0.1}, "contradicted", 0.4),
    ("fib-learned-costs-five-times", {"speed": one("Fibonacci, learned", 200.0, 1000.0)}, "supported", 5.0),
    ("audit-10", {"speed": one("Fibonacci, learned", 800.0, 1000.0)}, "contradicted", 1.25),
    ("fib-parameter-matched", {}, "supported", 0.0),
    ("fib-parameter-matched", {"size": one(RAMP, 1007, 1000)}, "contradicted", -8.0),
    ("fib-battery-is-near-chance", {"right": lambda job: 0.9}, "contradicted", 0.65),
    ("fib-battery-is-near-chance", {"right": lambda job: 0.0}, "supported", -0.25),
    ("fib-battery-does-not-separate", {"right": one(RAMP, 0.9, 0.2)}, "contradicted", 0.7),
    ("suite-recall-separates", {"right": one("Dense", 0.9, 0.2)}, "supported", 0.7),
    ("suite-recall-separates", {"right": one("Dense", 0.2, 0.9)}, "contradicted", -0.7),
    ("ch-copies-better", {"right": one(WORD, 0.9, 0.2)}, "supported", 0.7),
    ("fib-probe-needs-the-ramp-unblurred", {"right": one(f"{LEARNED} from the ramp", 0.9, 0.2)}, "supported", 0.7),
    ("fib-probe-fails-from-one", {"right": one("Fibonacci, learned with a blur", 0.9, 0.2)}, "contradicted", 0.9),
    ("pl-carries-influence-far", {"far": one("Power law", 0.4, 0.2)}, "supported", 0.2),
    ("pl-carries-influence-far", {"far": one("Power law", 0.1, 0.2)}, "contradicted", -0.1)])
def test_when_another_number_turns_then_the_verdict_does(name, numbers, verdict, effect):
    own = verdict_of(name, ClaimDatabase(**numbers))
    assert own.verdict == verdict, own.sentence
    assert own.effect == pytest.approx(effect, abs=0.02)


def test_when_the_range_holds_two_sigmas_then_both_are_compared_at_each_budget():
    wide = small(n04={"sigmas": [0.5, 0.8, 0.85, 1.2], "budgets": [16, 32]})
    assert len(verdict_of("pl-beats-local", ClaimDatabase(unpaired=0.001), wide).runs) == 2 * (2 + 1)


def test_when_dense_is_stopped_at_equal_compute_then_its_loss_there_counts():
    """The made-up curve falls from 3.1 at step 10 to 3.05 at step 20, its end; the mask needs fewer operations."""
    claims = [CLAIMS["pl-matches-dense-at-equal-tokens"], CLAIMS["pl-matches-dense-at-equal-compute"]]
    tokens, compute = judged(ClaimDatabase(unpaired=0.001), claims=claims).values()
    assert 0.0 < tokens.effect - compute.effect < 0.05


class Shifted(ClaimDatabase):
    """The ramp's loss is `gain` lower at positions from `first` on, at evaluation length `at` (or every length)."""
    def array(self, job, evaluation, name):
        found, (first, at, gain) = super().array(job, evaluation, name), self.numbers["shift"]
        if name.startswith("nll") and series(job) == RAMP and at in (None, int(name.rpartition(".")[2])):
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
        far = length > job.run.train.length and series(job) == "Dense"
        return 3.0 + 0.5 * (far and variant == "") - 0.1 * (far and variant == "mask=window")
    names = ("suite-window-rescues-dense", "suite-rescued-dense-beats-the-ramp", "fib-dense-degrades")
    found = judged(ClaimDatabase(loss, unpaired=0.001), claims=[CLAIMS[name] for name in names])
    assert {own.verdict for own in found.values()} == {"supported"}
    without = verdict_of(names[0], ClaimDatabase(loss), small(n03={"masks": []}))
    assert without.verdict == "not tested" and "mask=window" in without.sentence


def test_when_three_seeds_are_trained_then_claims_count_them_and_hear_seeds_that_disagree():
    name, seeds = "fib-ramp-beats-fixed", {"seeds": [42, 43, 44]}
    def loss(spread):
        return lambda job, *_: 2.95 + spread * (job.run.train.seed - 43) if series(job) == RAMP else 3.0
    agreeing = verdict_of(name, ClaimDatabase(loss(0.0), unpaired=0.001), small(n01=seeds))
    assert (agreeing.verdict, agreeing.seeds, len(agreeing.runs)) == ("supported", 3, 6)
    disagreeing = verdict_of(name, ClaimDatabase(loss(0.1), unpaired=0.001), small(n01=seeds))
    assert disagreeing.verdict == "undecided" and disagreeing.high - disagreeing.low > 0.2
    two = verdict_of(name, ClaimDatabase(loss(0.1), unpaired=0.001), small(n01={"seeds": [42, 43]}))
    assert two.verdict == "supported" and ", two seeds." in two.sentence


def test_when_two_models_have_different_seeds_then_those_of_both_are_compared():
    profile = small(n01={"seeds": [42, 43, 44]})
    jobs = experiment("01_window_sweep").plan(profile.parameters("01_window_sweep"), profile)
    some = [job for job in jobs if series(job) != RAMP or job.run.train.seed != 44]
    def loss(job, *_):
        return 9.0 if job.run.train.seed == 44 else 3.0 - 0.1 * (series(job) == RAMP)
    study = Study(some, ClaimDatabase(loss))
    both = study.difference(RAMP, "Dense")
    assert both.estimate == pytest.approx(-0.1) and both.seeds == 2
    assert study.difference(LOCAL, "Dense").seeds == 3 and study.shared_seeds(RAMP, "Dense") == (42, 43)
    lone = Study([job for job in jobs if (series(job) == RAMP) == (job.run.train.seed == 44)], ClaimDatabase())
    with pytest.raises(SuiteError, match="seed in common"):
        lone.difference(RAMP, "Dense")


def test_when_alpha_moves_in_three_seeds_then_the_move_has_an_interval():
    moved = {42: 0.01, 43: 0.02, 44: 0.03}
    database = ClaimDatabase(alpha=lambda job: moved.get(job.run.train.seed, 0.0))
    own = verdict_of("fib-alpha-is-inert", database, small(n02={"seeds": [42, 43, 44]}))
    assert own.effect == pytest.approx(0.02) and own.low < 0.01 < 0.03 < own.high and own.seeds == 3


def test_when_several_windows_are_trained_then_each_is_compared_with_its_own_partner():
    names = ("fib-ramp-beats-fixed", "fib-larger-window-helps", "fib-dense-is-better-within")
    def loss(job, *_):
        window = job.labels.window
        return 3.0 if window is None else 3.28 - 0.02 * window - 0.1 * (series(job) == RAMP)
    found = judged(ClaimDatabase(loss, unpaired=0.001), small(n01={"windows": [6, 8, 10]}),
                   [CLAIMS[name] for name in names])
    assert found["fib-ramp-beats-fixed"].effect == pytest.approx(-0.1, abs=1e-3)
    assert "decides among 3" in found["fib-ramp-beats-fixed"].sentence and len(found["fib-ramp-beats-fixed"].runs) == 6
    assert found["fib-larger-window-helps"].effect == pytest.approx(-0.08, abs=1e-3)
    assert found["fib-dense-is-better-within"].verdict == "contradicted"       # at W = 10 the ramp is better


def test_when_an_exact_number_is_asked_for_then_it_is_the_audits(unfinished):
    found = unfinished
    wanted = {"audit-01": -475, "audit-02": 16, "audit-11": 10, "audit-12": 10, "audit-12-union": 133, "audit-13": 0,
              "audit-15": 0.1, "audit-16": 5, "audit-22": 1, "audit-23": 0, "audit-25": 4, "ch-selects-m-offsets": 0}
    assert {name: found[name].effect for name in wanted} == wanted
    near = {"audit-07": 0.072, "audit-08": 0.745, "audit-17": 1.29, "audit-18": 1.225, "audit-20": 5.08,
            "audit-21": 0.5}
    for name, value in near.items():
        assert found[name].effect == pytest.approx(value, abs=0.01), name
    rows = [own for name, own in found.items() if name.startswith("audit") and own.exact and name != "audit-14"]
    assert {own.verdict for own in rows} == {"contradicted"} and len(rows) >= 22


def test_when_the_reach_of_learning_is_computed_then_it_is_the_sum_of_the_recipes_rates(unfinished):
    from lib.config import TrainConfig
    from lib.patterns.learned import alpha_of
    from suite.study.findings.learned_alpha import travel
    found = unfinished["fib-ramp-in-reach-of-learning"]
    assert found.effect == pytest.approx(alpha_of(travel(TrainConfig())), abs=1e-3)


def test_when_hops_are_averaged_then_it_is_the_mean_shortest_path():
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    from lib.patterns import build
    from suite.claims.measures.patterns import mean_hops
    mask = np.asarray(build("power_law", mode="draws", sigma=0.8, draws=6, window=2, causal=False).mask(0, 64))
    mask = mask.reshape(-1, 64, 64)[0]
    hops = shortest_path(csr_array(mask.astype(float)), unweighted=True)
    assert mean_hops(0.8, 6, 2, 64) == pytest.approx(hops[~np.eye(64, dtype=bool)].mean())


def test_when_measures_are_listed_then_each_says_what_it_gives_and_is_asked_by_some_claim():
    used = {claim.call.measure.name for claim in CLAIMS.values()}
    used |= {claim.published.recompute.measure.name for claim in CLAIMS.values() if claim.published}
    assert used == set(known())
    assert all(measure.function.__doc__ for measure in known().values())
    assert Call.read({"name": "alpha_within_reach"}).arguments == ()
