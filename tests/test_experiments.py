"""Plans: valid for every profile, within their budgets, shared where they should be, with controls of equal edges."""

from dataclasses import replace

import pytest
from made_up_results import MadeUpDatabase
from plans import planned

from lib.config import PatternSpec
from lib.errors import SuiteError
from lib.patterns import build
from suite import evals, tasks
from suite.experiments import COLUMNS, names, tidy
from suite.experiments.common import Recipe, shortened, spec_of
from suite.settings import profiles
from suite.study.frames import stack_of

pytestmark = pytest.mark.filterwarnings("ignore:christoffel")
# Most language-model runs, most training tokens in millions, most task runs
BUDGETS = {"smoke": (30, 0.5, 14), "small": (32, 31, 80), "overnight": (480, 1100, 260), "paper": (460, 175_000, 260)}


def only(jobs, series: str):
    return next(job for job in jobs if job.labels.series == series)


@pytest.mark.parametrize("profile", [
    pytest.param(name, marks=pytest.mark.slow) if name == "paper" else name for name in BUDGETS])
def test_when_a_profile_is_planned_then_everything_in_it_can_be_built_and_the_budget_holds(profile):
    runs = {}
    for name in names():
        jobs = planned(name, profile)
        assert len(jobs) == len(set(jobs))
        for job in jobs:
            runs[job.run] = stack_of(job.run)
            for evaluation in job.evaluations:
                evals.build(evaluation.name, **dict(evaluation.parameters))
            assert set(job.labels.columns) <= set(COLUMNS)
    text = [run for run in runs if run.data.source == "text"]
    for run in set(runs) - set(text):
        task = tasks.task(run.data.source, **dict(run.data.parameters))
        assert task.vocab == run.model.vocab and run.train.length >= task.shortest
    most_runs, most_tokens, most_tasks = BUDGETS[profile]
    assert len(text) <= most_runs and len(runs) - len(text) <= most_tasks
    assert sum(run.train.tokens for run in text) <= most_tokens * 1e6


def test_when_experiments_need_the_same_model_then_it_is_trained_once():
    fibonacci = ["01_window_sweep", "02_learned_alpha", "03_extrapolation", "06_capacity_battery"]
    shared = {"Dense": names(), "Fibonacci, linear ramp": fibonacci, "Local window, equal edges": fibonacci,
              "Fibonacci, learned": ["01_window_sweep", "02_learned_alpha"]}
    for series, experiments in shared.items():
        assert len({only(planned(name), series).run for name in experiments}) == 1, series
    for profile in ("smoke", "small", "overnight"):
        timed, swept = ({job.run for job in planned(name, profile)} for name in ("07_efficiency", "01_window_sweep"))
        assert timed <= swept and len(timed) >= 5, "notebook 7 trains nothing that notebook 1 does not"


def test_when_a_control_is_made_for_the_ramp_then_it_counts_the_pairs_of_the_ramp_and_has_its_window():
    jobs = planned("01_window_sweep")
    ramp, local = only(jobs, "Fibonacci, linear ramp"), only(jobs, "Local window, equal edges")
    T, L = ramp.run.train.length, ramp.run.model.layers
    assert local.labels.equal_pairs == stack_of(ramp.run).pairs(T)
    random = stack_of(only(jobs, "Random offsets, equal edges").run)
    assert all(random.mask(layer, T)[:, T - 1, T - 5:].all() for layer in range(L))                     # W = 4


def test_when_tokens_seeds_rates_or_a_model_are_given_then_whole_steps_are_trained_and_each_has_one_run():
    train = profiles.load("smoke").train
    a_step = train.batch * train.length
    short = shortened(train, 3 * a_step + 10)
    assert short.tokens == 3 * a_step and short.warmup <= short.steps
    with pytest.raises(SuiteError, match=str(a_step)):
        shortened(train, a_step - 1)
    usual, jobs = planned("01_window_sweep"), planned("01_window_sweep", seeds=(1, 2, 3), tokens=5 * a_step,
                                                         once=("pow2/linear",))
    assert len(jobs) == 3 * len(usual) - 2                      # those that `once` names have the first seed alone
    assert {(job.run.train.seed, job.run.train.tokens) for job in jobs} == {(n, 5 * a_step) for n in (1, 2, 3)}
    learned = [job for job in planned("02_learned_alpha", theta_lr=(0.0, 1.0, 100.0), starts=("one",), probe_depths=())
               if job.labels.series == "Fibonacci, learned"]
    assert {(job.run.train.theta_lr, job.labels.setting) for job in learned} == {
        (0.0, "theta rate x0"), (1.0, ""), (100.0, "theta rate x100")}
    (more,) = set(planned("01_window_sweep", extra=("pow2/fixed/8",))) - set(usual)
    assert more.labels.window == 8 and more.run.pattern == PatternSpec.of("scaled_base", base="pow2"), "its own window"


@pytest.mark.parametrize(("name", "changes", "says"), [
    ("01_window_sweep", {"models": ("fibonaci/linear",)}, "'fibonacci'"),
    ("01_window_sweep", {"models": ("fibonacci/linaer",)}, "'linear'"),
    ("03_extrapolation", {"once": ("alibbi",)}, "did you mean 'alibi'"),
    ("01_window_sweep", {"extra": ("pow2/fixed",)}, "extra"), ("01_window_sweep", {"controls": ("locl",)}, "'local'"),
    ("02_learned_alpha", {"probe_blurred": ("fibonacci/learned",)}, "probe_blurred"),
    ("05_christoffel", {"words": ("64:512",)}, "words"), ("05_christoffel", {"task_masks": ("wrd",)}, "'word'"),
    ("08_all_patterns", {"patterns": ("bigbrd",)}, "'bigbird'"),
    ("08_all_patterns", {"patterns": ("fibonacci/liner",)}, "'linear'"),
    ("08_all_patterns", {"factors": (2, 4)}, "factors"), ("09_long_rungs", {"fractions": (0.5,)}, "fractions"),
    ("09_long_rungs", {"fractions": (1.0, 0.0)}, "fractions"), ("09_long_rungs", {"copy_masks": ("dens",)}, "'dense'")])
def test_when_a_parameter_of_a_notebook_is_wrong_then_the_error_names_it_or_the_nearest(name, changes, says):
    with pytest.raises(SuiteError, match=says):
        planned(name, **changes)


def test_when_longer_texts_are_evaluated_then_growing_rungs_are_frozen_too_and_dense_is_changed_and_masked():
    def variants(job) -> set[str]:
        return {dict(evaluation.parameters).get("variant", "") for evaluation in job.evaluations}
    jobs = planned("03_extrapolation")
    found = {job.labels.series: variants(job) for job in jobs}
    for series in ("Fibonacci, linear ramp", "Powers of two, linear ramp"):
        assert "rungs=frozen" in found[series]
    assert found["Fibonacci, fixed"] == {""} and found["Local window, equal edges"] == {""}
    assert {"rope=yarn", "mask=window", "mask=sinks"} <= found["Dense"]
    assert all("rungs=frozen" not in variants(job) for job in planned("03_extrapolation", frozen=False))
    dense, furthest = only(jobs, "Dense"), {}
    T = dense.run.train.length
    for own in (dict(evaluation.parameters) for evaluation in dense.evaluations):
        if own.get("variant", "").startswith("mask="):
            mask = build(own["pattern"][0], **dict(own["pattern"][1])).mask(0, 2 * T)[0]
            furthest[own["variant"]] = max(i - j for i, j in zip(*mask.nonzero(), strict=True) if j >= 4)
    assert furthest == {"mask=window": T - 1, "mask=sinks": T - 1 - 4}, "no distance that was not trained"


@pytest.mark.parametrize("profile", BUDGETS)
def test_when_the_probe_asks_between_rungs_then_some_alpha_reaches_it_but_not_alpha_1_nor_a_sum_of_two(profile):
    parameters = profiles.load(profile).parameters("02_learned_alpha")
    rungs = [rung for rung in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
             if rung < parameters.probe_length]
    keys = {*range(parameters.window + 1), *rungs}
    assert set(parameters.probe_rungs) <= keys
    for distance in parameters.probe_distances:
        assert any(0.5 < distance / rung < 1.5 for rung in rungs) and distance not in keys
        assert distance not in {a + b for a in keys for b in keys}                          # two layers, alpha 1
    for job in planned("02_learned_alpha", profile):
        if job.run.data.source == "marked_copy" and job.run.pattern.name == "learned":
            assert set(stack_of(job.run).plan(0, parameters.probe_length).base) == set(rungs)


def test_when_width_and_length_are_set_then_ratios_and_tokens_a_step_are_kept_and_patterns_are_named_by_parameters():
    profile = profiles.load("paper")
    recipe = Recipe(profile.parameters("05_christoffel"), profile, layers=12, width=256, tokens_a_window=2048)
    model, train = recipe.model, recipe.train(42)
    assert (model.layers, model.d_model, model.heads, model.kv_heads, model.hidden) == (12, 256, 4, 1, 683)
    assert (train.length, train.batch * train.length) == (2048, profile.train.batch * profile.train.length)
    with pytest.raises(SuiteError, match="width"):
        _ = replace(recipe, width=100).model
    spec = PatternSpec.of("scaled_base", schedule="linear", window=6, rungs=12)
    assert spec_of(recipe.pattern(spec)) == spec


@pytest.mark.parametrize("name", names())
def test_when_runs_are_finished_then_the_table_has_the_documented_columns_and_controls_have_their_pairs(name):
    jobs, database = planned(name), MadeUpDatabase()
    assert planned.__wrapped__(name) == jobs, "a plan is a function of its parameters"
    table, again = (tidy(name, order, database) for order in (jobs, jobs[::-1]))
    assert list(table.columns) == list(COLUMNS) and len(table) and table.equals(again)
    assert table["series"].notna().all() and table["value"].notna().all()
    assert set(table["role"]) <= {"model", "control", "baseline", "neighbour"}
    controls = [job for job in jobs if job.labels.equal_pairs is not None]
    assert controls
    for job in controls:
        pattern, T = stack_of(job.run), job.run.train.length
        by_mask = sum(pattern.mask(layer, T).sum() / pattern.heads for layer in range(pattern.layers))
        assert by_mask == pytest.approx(job.labels.equal_pairs, rel=0.01), job.labels
