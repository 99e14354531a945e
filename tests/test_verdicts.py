"""The ledger's own claims, on results that a test chooses: a verdict turns when the numbers turn."""

import json

import numpy as np
import pytest
from made_up_results import MadeUpDatabase, judged, one, verdict_of, wide
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from lib.config import TrainConfig
from lib.errors import SuiteError
from lib.patterns import build
from lib.patterns.learned import alpha_of
from suite.bench.rows import Row
from suite.claims import Judgement, as_json, load
from suite.claims.measures import known, runs
from suite.claims.measures.facts import mean_hops
from suite.experiments.all_patterns import LITERATURE
from suite.report import ledger
from suite.study.comparisons import LOCAL
from suite.study.findings.learned_alpha import travel
from suite.study.frames import Study, plan_of

CLAIMS = {claim.id: claim for claim in load()}
RAMP, WORD, POW2 = "Fibonacci, linear ramp", "Christoffel 31/256", "Powers of two, fixed"
COPRIME, LEARNED = "Fibonacci, coprime ramp", "Fibonacci, learned"


def test_when_results_are_made_up_then_no_measure_fails_at_any_profile_and_json_has_what_the_report_reads():
    tested, keys = set(), {"identifier", "document", "statement", "verdict", "effect", "interval", "unit", "p", "seeds",
                           "runs", "published", "published_source", "rule", "notebook", "section"}
    for profile in ("smoke", "overnight"):
        found = judged(MadeUpDatabase(unpaired=0.05), profile)
        entries = json.loads(json.dumps(as_json(list(found.values())), allow_nan=False))
        assert [entry["identifier"] for entry in entries] == list(CLAIMS)
        for entry, own in zip(entries, found.values(), strict=True):
            assert own.verdict != "failed", (profile, own.sentence)
            assert keys <= set(entry) and entry["verdict"] in ledger.VERDICTS
            assert (entry["interval"] is None) == (own.low is None)
            if own.verdict != "not tested":
                tested.add(own.claim.id)
                assert np.isfinite(own.effect) and own.sentence.endswith(".")
                assert own.claim.exact or own.seeds >= 1 and own.runs
                assert own.low is None or own.low <= own.effect <= own.high
    untested = {"audit-14", "audit-10", "fib-learned-costs-five-times"}      # what notebook 07 measures is not made up
    assert tested == set(CLAIMS) - untested, "the matrix tests all but what only the paper's machines know"


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
    done, open_ = judged(MadeUpDatabase(unpaired=0.05), claims=claims, finished=["03_extrapolation"]).values()
    assert done.runs and open_.verdict == "not tested"


def beyond(name: str):
    return lambda job, length, variant: job.labels.series == name and length > job.run.train.length


# The series, or where else, whose loss decides each claim: supported at the first loss, contradicted at the second,
# with 3 nats everywhere else.
CASES = [
    ("fib-ramp-beats-fixed", RAMP, 2.9, 3.1), ("fib-ramp-beats-fixed-w6", RAMP, 2.9, 3.1),
    ("fib-ramp-beats-learned", RAMP, 2.9, 3.1), ("fib-dense-is-better-within", "Dense", 2.9, 3.1),
    ("pl-beats-local", "Power law", 2.9, 3.1), ("pl-matches-dense-at-equal-tokens", "Power law", 2.9, 3.1),
    ("ch-descends-faster", WORD, 2.9, 3.1), ("ch-beats-random", WORD, 2.9, 3.1),
    ("suite-ramp-beats-local", RAMP, 2.9, 3.1), ("suite-bigbird-beats-local", "BigBird, equal edges", 2.9, 3.1),
    ("fib-learned-gains-nothing", LEARNED, 2.995, 2.9), ("fib-coprime-is-no-better", COPRIME, 3.1, 2.9),
    ("fib-beats-fixed-powers-of-two", POW2, 3.1, 2.9), ("ch-matches-dense", WORD, 3.01, 3.1),
    ("pl-draws-approximate-the-law", "Power law, draws", 3.005, 3.1),
    ("fib-coprime-extrapolates-worse", beyond(COPRIME), 3.1, 2.9), ("fib-dense-degrades", beyond("Dense"), 3.2, 3.01),
    ("fib-ramp-extrapolates", beyond(RAMP), 3.01, 3.2), ("fib-sparse-extrapolate", beyond(POW2), 3.01, 3.2),
    ("audit-04", beyond(RAMP), 2.9, 3.1), ("fib-ramp-beats-dense-beyond", beyond(RAMP), 2.9, 3.1),
    ("suite-local-extrapolates", beyond(LOCAL), 3.01, 3.2),
    ("pl-recommended-sigma-is-best", lambda job, *_: job.labels.sigma == 0.85, 2.9, 3.1),
    ("fib-untrained-distances-hurt", lambda job, length, variant: variant == "rungs=frozen", 2.9, 3.1)]


@pytest.mark.parametrize("name, where, good, bad", CASES, ids=[case[0] for case in CASES])
def test_when_a_loss_turns_then_the_verdict_does(name, where, good, bad):
    there = where if callable(where) else lambda job, *_: job.labels.series == where
    for loss, verdict in ((good, "supported"), (bad, "contradicted")):
        own = verdict_of(name, MadeUpDatabase(lambda *run: loss if there(*run) else 3.0, unpaired=0.001))
        assert own.verdict == verdict, own.sentence
    noisy = verdict_of(name, MadeUpDatabase(unpaired=1.0))                        # no difference, in much noise
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
    own = verdict_of(name, MadeUpDatabase(**numbers))
    assert own.verdict == verdict, own.sentence
    assert own.effect == pytest.approx(effect, abs=0.02)
    assert not name.endswith("stack") or own.seeds == 3 and "97 or more" in own.sentence


@pytest.mark.parametrize("slope, verdict", [(-0.01, "supported"), (0.01, "contradicted"), (0.0, "undecided")])
@pytest.mark.parametrize("what, doublings", [("tokens", 1), ("context", 2)])               # context: from 128 to 512
def test_when_the_difference_moves_with_tokens_or_context_then_the_slope_is_found(what, doublings, slope, verdict):
    def loss(job, *_):
        train = job.run.train
        chance = np.random.default_rng([train.seed, train.tokens]).normal(0, 1e-4)
        size = train.tokens if what == "tokens" else train.length
        return 3 + (chance + slope * np.log2(size / 256)) * (job.labels.series == RAMP)
    own = verdict_of(f"suite-rungs-gain-with-{what}", MadeUpDatabase(loss, unpaired=0.0005))
    assert own.verdict == verdict, own.sentence
    assert own.effect == pytest.approx(doublings * slope, abs=1e-3) and own.seeds == 1


def test_when_a_profile_trains_less_then_the_claim_is_not_tested_and_says_why():
    without = wide(n09={"lengths": [], "copy_distances": [], "fractions": [1.0], "length_fraction": 1.0,
                         "seeds": [42]}, n03={"masks": []})
    for name, said in (("rungs-gain-with-tokens", "trains too few"), ("rungs-gain-with-context", "profile wide"),
                       ("ramp-copies-further-than-local", "profile wide"), ("window-rescues-dense", "mask=window")):
        own = verdict_of(f"suite-{name}", MadeUpDatabase(), without)
        assert own.verdict == "not tested" and said in own.sentence, own


def test_when_the_range_holds_two_sigmas_then_both_are_compared_at_each_budget():
    changed = wide(n04={"sigmas": [0.5, 0.8, 0.85, 1.2], "budgets": [16, 32]})
    assert len(verdict_of("pl-beats-local", MadeUpDatabase(unpaired=0.001), changed).runs) == 2 * (2 + 1)


def test_when_dense_is_stopped_at_equal_compute_then_its_loss_there_counts():
    """The made-up curve falls from 3.1 at step 10 to 3.05 at step 20, its end; the mask needs fewer operations."""
    tokens, compute = (verdict_of(f"pl-matches-dense-at-equal-{what}", MadeUpDatabase(unpaired=0.001))
                       for what in ("tokens", "compute"))
    assert 0.0 < tokens.effect - compute.effect < 0.05


class Shifted(MadeUpDatabase):
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
    found = judged(MadeUpDatabase(loss, unpaired=0.001), claims=[CLAIMS[name] for name in names])
    assert {own.verdict for own in found.values()} == {"supported"}


def test_when_three_seeds_are_trained_then_claims_count_them_and_hear_seeds_that_disagree():
    def found(spread, seeds):
        loss = one(RAMP, lambda job: 2.95 + spread * (job.run.train.seed - 43), lambda job: 3.0)
        database = MadeUpDatabase(lambda job, *_: loss(job)(job), unpaired=0.001)
        return verdict_of("fib-ramp-beats-fixed", database, wide(n01={"seeds": seeds}))
    agreeing, disagreeing, two = found(0.0, [42, 43, 44]), found(0.1, [42, 43, 44]), found(0.1, [42, 43])
    assert (agreeing.verdict, agreeing.seeds, len(agreeing.runs)) == ("supported", 3, 6)
    assert disagreeing.verdict == "undecided" and disagreeing.high - disagreeing.low > 0.2
    assert two.verdict == "supported" and ", two seeds, a new seed would show the opposite sign in " in two.sentence
    moved = {42: 0.01, 43: 0.02, 44: 0.03}
    database = MadeUpDatabase(alpha=lambda job: moved.get(job.run.train.seed, 0.0))
    own = verdict_of("fib-alpha-is-inert", database, wide(n02={"seeds": list(moved)}))
    assert own.effect == pytest.approx(0.02) and own.low < 0.01 < 0.03 < own.high and own.seeds == 3


def test_when_one_seed_is_trained_then_the_noise_of_the_patterns_with_three_decides():
    """Four patterns of notebook 9 have three seeds at small's recipe; the power law has one."""
    profile = wide(n09={"families": ["fibonacci/linear", "fibonacci/coprime", "dense"], "seeds": [42, 43, 44]},
                    n01={"seeds": [42, 43, 44]})

    def found(of_seed, profile=profile):
        def loss(job, *_):
            rng = np.random.default_rng([job.run.train.seed, len(job.labels.series)])
            return 3.0 - 0.1 * (job.labels.series == "Power law") + of_seed * rng.normal()
        name = "suite-power-law-beats-local"
        return judged(MadeUpDatabase(loss, unpaired=0.001), profile, [CLAIMS[name]], noise=None)[name]
    quiet, loud, alone = found(0.001), found(0.2), found(0.001, "wide")
    assert (quiet.verdict, quiet.seeds, loud.verdict) == ("supported", 1, "undecided")
    assert quiet.flip < 0.01 < 0.1 < loud.flip and loud.high - loud.low > 10 * (quiet.high - quiet.low)
    assert alone.verdict == "undecided" and "no seeds to tell its noise by" in alone.sentence


@pytest.mark.parametrize("ratio, busy, verdict", [(5.0, 0.0, "supported"), (1.25, 0.0, "contradicted"),
                                                  (5.0, 0.5, "not tested")])
def test_when_a_learned_alpha_is_measured_alone_then_its_cost_is_judged(monkeypatch, ratio, busy, verdict):
    row = Row("learned_over_fixed", "cpu", "cpu", "forward", 4096, ratio, (ratio - 0.1, ratio + 0.1), 9, busy=busy)
    shorter = Row("learned_over_fixed", "cpu", "cpu", "forward", 256, 99.0, (98.0, 99.0), 9)
    monkeypatch.setattr(runs, "read", lambda name: [shorter, row])
    own = verdict_of("fib-learned-costs-five-times", MadeUpDatabase())
    assert own.verdict == verdict and (own.effect == ratio or "50% of the cores" in own.sentence)


def test_when_two_models_have_different_seeds_then_those_of_both_are_compared():
    profile = wide(n01={"seeds": [42, 43, 44]})
    jobs = plan_of(profile, "01_window_sweep")
    def last(job):
        return job.run.train.seed == 44
    def ramp(job):
        return job.labels.series == RAMP
    database = MadeUpDatabase(lambda job, *_: 9.0 if last(job) else 3.0 - 0.1 * ramp(job))
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
    ramp, larger, dense = judged(MadeUpDatabase(loss, unpaired=0.001), wide(n01={"windows": [6, 8, 10]}),
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
