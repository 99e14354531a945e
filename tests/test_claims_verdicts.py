"""The ledger's own claims, on results that a test chooses: a verdict turns when the numbers turn."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from claim_results import ClaimDatabase, judged, one, series

from lib.errors import SuiteError
from suite.claims.ledger import Call, load
from suite.claims.measures import known
from suite.experiments import experiment
from suite.settings import profiles
from suite.study.frames import Study

CLAIMS = {claim.id: claim for claim in load()}


def small(**changes) -> profiles.Profile:
    """The profile `small`, its notebooks' parameters changed: `n01={...}`."""
    profile = profiles.load("small")
    full = {name[:2]: name for name in profile.notebooks}
    own = {full[key[1:]]: {**profile.notebooks[full[key[1:]]], **values} for key, values in changes.items()}
    return dataclasses.replace(profile, notebooks={**profile.notebooks, **own})


def test_when_results_are_made_up_then_no_measure_fails_at_any_profile():
    tested = set()
    for profile in ("smoke", "small", "overnight"):
        for name, own in judged(ClaimDatabase(unpaired=0.05), profile).items():
            assert own.verdict != "failed", (profile, own.sentence)
            tested |= {name} if own.verdict != "not tested" else set()
    assert tested == set(CLAIMS) - {"audit-14"}, "the whole matrix tests everything but what only the paper's machines know"


def test_when_no_notebook_is_finished_then_only_what_needs_no_run_is_judged():
    for own in judged(None, finished=()).values():
        assert own.exact or own.verdict == "not tested", own.claim.id
        assert own.claim.document == "audit" or own.runs == ()
    done = judged(ClaimDatabase(unpaired=0.05), finished=["03_extrapolation"])
    assert done["fib-dense-degrades"].runs and done["fib-ramp-beats-fixed"].verdict == "not tested"


RAMP, LOCAL, WORD = "Fibonacci, linear ramp", "Local window, equal edges", "Christoffel 31/256"


def loss_of(name: str, value: float, beyond: float | None = None):
    """3 nats for all but one model; `beyond`: its loss beyond the training length."""
    return lambda job, length, variant: 3.0 if series(job) != name else (
        value if length == job.run.train.length or beyond is None else beyond)


@pytest.mark.parametrize("name, lower, higher, low, high", [
    ("fib-ramp-beats-fixed", loss_of(RAMP, 2.9), loss_of(RAMP, 3.1), "supported", "contradicted"),
    ("fib-ramp-beats-fixed-w6", loss_of(RAMP, 2.9), loss_of(RAMP, 3.1), "supported", "contradicted"),
    ("fib-ramp-beats-learned", loss_of(RAMP, 2.9), loss_of(RAMP, 3.1), "supported", "contradicted"),
    ("fib-learned-gains-nothing", loss_of("Fibonacci, learned", 2.9), loss_of("Fibonacci, learned", 2.995), "contradicted",
     "supported"),
    ("fib-coprime-is-no-better", loss_of("Fibonacci, coprime ramp", 2.9), loss_of("Fibonacci, coprime ramp", 3.1),
     "contradicted", "supported"),
    ("fib-coprime-extrapolates-worse", loss_of("Fibonacci, coprime ramp", 3.0, 2.9),
     loss_of("Fibonacci, coprime ramp", 3.0, 3.1), "contradicted", "supported"),
    ("fib-beats-fixed-powers-of-two", loss_of("Powers of two, fixed", 2.9), loss_of("Powers of two, fixed", 3.1),
     "contradicted", "supported"),
    ("fib-dense-degrades", loss_of("Dense", 3.0, 3.01), loss_of("Dense", 3.0, 3.2), "contradicted", "supported"),
    ("fib-ramp-extrapolates", loss_of(RAMP, 3.0, 3.01), loss_of(RAMP, 3.0, 3.2), "supported", "contradicted"),
    ("fib-sparse-extrapolate", loss_of("Powers of two, fixed", 3.0, 3.01), loss_of("Powers of two, fixed", 3.0, 3.2),
     "supported", "contradicted"),
    ("fib-ramp-beats-dense-beyond", loss_of(RAMP, 3.0, 2.9), loss_of(RAMP, 3.0, 3.1), "supported", "contradicted"),
    ("fib-dense-is-better-within", loss_of("Dense", 2.9), loss_of("Dense", 3.1), "supported", "contradicted"),
    ("pl-beats-local", loss_of("Power law", 2.9), loss_of("Power law", 3.1), "supported", "contradicted"),
    ("pl-matches-dense-at-equal-tokens", loss_of("Power law", 2.9), loss_of("Power law", 3.1), "supported", "contradicted"),
    ("pl-draws-approximate-the-law", loss_of("Power law, draws", 3.005), loss_of("Power law, draws", 3.1), "supported",
     "contradicted"),
    ("ch-matches-dense", loss_of(WORD, 3.01), loss_of(WORD, 3.1), "supported", "contradicted"),
    ("ch-descends-faster", loss_of(WORD, 2.9), loss_of(WORD, 3.1), "supported", "contradicted"),
    ("ch-beats-random", loss_of(WORD, 2.9), loss_of(WORD, 3.1), "supported", "contradicted"),
    ("audit-04", loss_of(RAMP, 3.0, 2.9), loss_of(RAMP, 3.0, 3.1), "supported", "contradicted"),
    ("suite-ramp-beats-local", loss_of(RAMP, 2.9), loss_of(RAMP, 3.1), "supported", "contradicted"),
    ("suite-local-extrapolates", loss_of(LOCAL, 3.0, 3.01), loss_of(LOCAL, 3.0, 3.2), "supported", "contradicted")])
def test_when_a_loss_turns_then_the_verdict_does(name, lower, higher, low, high):
    for loss, verdict in ((lower, low), (higher, high)):
        own = judged(ClaimDatabase(loss, unpaired=0.001), claims=[CLAIMS[name]])[name]
        assert own.verdict == verdict, own.sentence
    noisy = judged(ClaimDatabase(unpaired=1.0), claims=[CLAIMS[name]])[name]     # no difference, in much noise
    assert noisy.verdict == "undecided" or noisy.low is None, noisy.sentence


def one_rate(value: float, rate: float):
    """A value for learned models at one rate of theta."""
    return lambda job: value if job.run.train.theta_lr == rate else 0.0


def sigma_of(job) -> float | None:
    return dict(job.run.pattern.parameters).get("sigma") if series(job) == "Power law" else None


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
    ("fib-probe-needs-the-ramp-unblurred", {"right": one("Fibonacci, learned from the ramp", 0.9, 0.2)}, "supported", 0.7),
    ("fib-probe-fails-from-one", {"right": one("Fibonacci, learned with a blur", 0.9, 0.2)}, "contradicted", 0.9),
    ("pl-carries-influence-far", {"far": one("Power law", 0.4, 0.2)}, "supported", 0.2),
    ("pl-carries-influence-far", {"far": one("Power law", 0.1, 0.2)}, "contradicted", -0.1)])
def test_when_another_number_turns_then_the_verdict_does(name, numbers, verdict, effect):
    own = judged(ClaimDatabase(**numbers), claims=[CLAIMS[name]])[name]
    assert own.verdict == verdict, own.sentence
    assert own.effect == pytest.approx(effect, abs=0.02)


def test_when_one_sigma_is_best_then_the_recommended_range_is_or_is_not():
    for best, verdict in ((0.85, "supported"), (0.5, "contradicted")):
        database = ClaimDatabase(lambda job, *_, best=best: 2.9 if sigma_of(job) == best else 3.0, unpaired=0.001)
        found = judged(database, claims=[CLAIMS["pl-recommended-sigma-is-best"]])["pl-recommended-sigma-is-best"]
        assert found.verdict == verdict
    wide = small(n04={"sigmas": [0.5, 0.8, 0.85, 1.2], "budgets": [16, 32]})
    found = judged(database, wide, [CLAIMS["pl-beats-local"]])["pl-beats-local"]
    assert len(found.runs) == 2 * (2 + 1), "both sigmas of the range and the local window, at each budget"


def test_when_dense_is_stopped_at_equal_compute_then_its_loss_there_counts():
    """The made-up curve falls from 3.1 at step 10 to 3.05 at step 20, its end; the mask needs a share of the operations."""
    claims = [CLAIMS["pl-matches-dense-at-equal-tokens"], CLAIMS["pl-matches-dense-at-equal-compute"]]
    tokens, compute = judged(ClaimDatabase(unpaired=0.001), claims=claims).values()
    assert 0.0 < tokens.effect - compute.effect < 0.05


def test_when_the_gain_is_at_late_positions_then_it_is_not_flat():
    class Late(ClaimDatabase):
        def array(self, job, evaluation, name):
            found = super().array(job, evaluation, name)
            if name.startswith("nll") and series(job) == RAMP:
                edges = self.edges(int(name.rpartition(".")[2]))
                found = found - 0.1 * np.diff(edges) * (edges[:-1] >= 128)
            return found
    names = ("fib-gain-is-flat-over-positions", "audit-05")
    databases = Late(unpaired=0.001), ClaimDatabase(unpaired=0.001)
    late, flat = (judged(database, claims=[CLAIMS[name] for name in names]) for database in databases)
    for name in names:
        assert late[name].verdict == "contradicted" and late[name].effect == pytest.approx(0.1, abs=1e-3)
        assert flat[name].verdict == "supported"


def test_when_late_tokens_gain_from_context_then_it_helps():
    class Beyond(ClaimDatabase):
        """At 1024 tokens the ramp's loss beyond the training length of 256 is `gain` lower."""
        def array(self, job, evaluation, name):
            found = super().array(job, evaluation, name)
            if name.startswith("nll") and name.endswith(".1024") and series(job) == RAMP:
                found = found - self.numbers["gain"](job) * np.diff(self.edges(1024)) * (self.edges(1024)[:-1] >= 256)
            return found
    name = "suite-context-beyond-helps-the-ramp"
    for gain, verdict in ((0.1, "supported"), (-0.1, "contradicted")):
        own = judged(Beyond(gain=lambda job, gain=gain: gain), claims=[CLAIMS[name]])[name]
        assert own.verdict == verdict and own.effect == pytest.approx(-gain)


def test_when_frozen_rungs_are_better_then_untrained_distances_hurt():
    for frozen, verdict in ((2.9, "supported"), (3.1, "contradicted")):
        database = ClaimDatabase(lambda job, length, variant, frozen=frozen: frozen if variant == "rungs=frozen" else 3.0,
                                 unpaired=0.001)
        name = "fib-untrained-distances-hurt"
        assert judged(database, claims=[CLAIMS[name]])[name].verdict == verdict


def test_when_a_mask_rescues_dense_then_it_is_the_changed_model_that_is_compared():
    def loss(job, length, variant):
        far = length > job.run.train.length and series(job) == "Dense"
        return 3.0 + 0.5 * (far and variant == "") - 0.1 * (far and variant == "mask=window")
    names = ("suite-window-rescues-dense", "suite-rescued-dense-beats-the-ramp", "fib-dense-degrades")
    found = judged(ClaimDatabase(loss, unpaired=0.001), claims=[CLAIMS[name] for name in names])
    assert {own.verdict for own in found.values()} == {"supported"}
    without = judged(ClaimDatabase(loss), small(n03={"masks": []}), [CLAIMS[names[0]]])[names[0]]
    assert without.verdict == "not tested" and "mask=window" in without.sentence


def test_when_three_seeds_are_trained_then_claims_count_them_and_hear_seeds_that_disagree():
    name, seeds = "fib-ramp-beats-fixed", {"seeds": [42, 43, 44]}
    def loss(spread):
        return lambda job, *_: 2.95 + spread * (job.run.train.seed - 43) if series(job) == RAMP else 3.0
    agreeing = judged(ClaimDatabase(loss(0.0), unpaired=0.001), small(n01=seeds), [CLAIMS[name]])[name]
    assert (agreeing.verdict, agreeing.seeds, len(agreeing.runs)) == ("supported", 3, 6)
    disagreeing = judged(ClaimDatabase(loss(0.1), unpaired=0.001), small(n01=seeds), [CLAIMS[name]])[name]
    assert disagreeing.verdict == "undecided" and disagreeing.high - disagreeing.low > 0.2
    two = judged(ClaimDatabase(loss(0.1), unpaired=0.001), small(n01={"seeds": [42, 43]}), [CLAIMS[name]])[name]
    assert two.verdict == "supported" and ", two seeds." in two.sentence


def test_when_two_models_have_different_seeds_then_those_of_both_are_compared():
    profile = small(n01={"seeds": [42, 43, 44]})
    jobs = experiment("01_window_sweep").plan(profile.parameters("01_window_sweep"), profile)
    some = [job for job in jobs if series(job) != RAMP or job.run.train.seed != 44]
    def loss(job, *_):
        return 9.0 if job.run.train.seed == 44 else 3.0 - 0.1 * (series(job) == RAMP)
    study = Study(some, ClaimDatabase(loss))
    assert study.difference(RAMP, "Dense").estimate == pytest.approx(-0.1) and study.difference(RAMP, "Dense").seeds == 2
    assert study.difference(LOCAL, "Dense").seeds == 3 and study.shared_seeds(RAMP, "Dense") == (42, 43)
    lone = Study([job for job in jobs if (series(job) == RAMP) == (job.run.train.seed == 44)], ClaimDatabase())
    with pytest.raises(SuiteError, match="seed in common"):
        lone.difference(RAMP, "Dense")


def test_when_alpha_moves_in_three_seeds_then_the_move_has_an_interval():
    name = "fib-alpha-is-inert"
    moved = {42: 0.01, 43: 0.02, 44: 0.03}
    database = ClaimDatabase(alpha=lambda job: moved.get(job.run.train.seed, 0.0))
    own = judged(database, small(n02={"seeds": [42, 43, 44]}), [CLAIMS[name]])[name]
    assert own.effect == pytest.approx(0.02) and own.low < 0.01 < 0.03 < own.high and own.seeds == 3


def test_when_several_windows_are_trained_then_each_is_compared_with_its_own_partner():
    claims = [CLAIMS[name] for name in ("fib-ramp-beats-fixed", "fib-larger-window-helps", "fib-dense-is-better-within")]
    def loss(job, *_):
        window = job.labels.window
        return 3.0 if window is None else 3.28 - 0.02 * window - 0.1 * (series(job) == RAMP)
    found = judged(ClaimDatabase(loss, unpaired=0.001), small(n01={"windows": [6, 8, 10]}), claims)
    assert found["fib-ramp-beats-fixed"].effect == pytest.approx(-0.1, abs=1e-3)
    assert "decides among 3" in found["fib-ramp-beats-fixed"].sentence and len(found["fib-ramp-beats-fixed"].runs) == 6
    assert found["fib-larger-window-helps"].effect == pytest.approx(-0.08, abs=1e-3)
    assert found["fib-dense-is-better-within"].verdict == "contradicted"       # at W = 10 the ramp is better


def test_when_an_exact_number_is_asked_for_then_it_is_the_audits():
    found = judged(None, finished=())
    wanted = {"audit-01": -475, "audit-02": 16, "audit-11": 10, "audit-12": 10, "audit-12-union": 133, "audit-13": 0,
              "audit-15": 0.1, "audit-16": 5, "audit-22": 1, "audit-23": 0, "audit-25": 4, "ch-selects-m-offsets": 0}
    assert {name: found[name].effect for name in wanted} == wanted
    near = {"audit-07": 0.072, "audit-08": 0.745, "audit-17": 1.29, "audit-18": 1.225, "audit-20": 5.08, "audit-21": 0.5}
    for name, value in near.items():
        assert found[name].effect == pytest.approx(value, abs=0.01), name
    rows = [own for name, own in found.items() if name.startswith("audit") and own.exact and name != "audit-14"]
    assert {own.verdict for own in rows} == {"contradicted"} and len(rows) >= 22


def test_when_the_reach_of_learning_is_computed_then_it_is_the_sum_of_the_recipes_rates():
    from lib.config import TrainConfig
    from lib.patterns.learned import alpha_of
    from suite.study.findings.learned_alpha import travel
    found = judged(None, finished=())["fib-ramp-in-reach-of-learning"]
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
