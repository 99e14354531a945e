"""Losses, and the tables of notebooks 1 and 3 to 6, against numbers that a test chose; published numbers."""

import io
import math
from types import SimpleNamespace

import numpy as np
import made_up_results
import pandas as pd
import pytest
from made_up_results import TOKENS, one, results
from plans import planned

from lib import paths as where
from lib.config import RunConfig
from lib.errors import SuiteError
from lib.patterns import build
from suite import published
from suite.claims.measures import facts as exact
from suite.experiments.base import Job
from suite.experiments.power_law_sigma import draws_for
from suite.notebook import Notebook
from suite.plan.cost import training_flops
from suite.study import figures
from suite.study.comparisons import task_table
from suite.study.findings import (all_patterns, capacity_battery, christoffel, extrapolation, power_law_sigma,
                                  window_sweep)
from suite.study.frames import NotTested, Study

SWEEP, RAMP, FIXED = "01_window_sweep", "Fibonacci, linear ramp", "Fibonacci, fixed"


def published_csv(name: str, rows: str) -> pd.DataFrame:
    return pd.read_csv(where.PUBLISHED / f"{name}.csv").query(rows)


def test_when_published_tables_are_read_then_all_rows_are_there_and_models_have_the_suites_names():
    rows = {"battery": 863, "cost": 30, "length_extrapolation": 132, "perplexity": 120, "position_loss": 672,
            "retrieval_probe": 2438, "training_curves": 3120}
    assert {path.stem: len(published.read(path.stem)) for path in where.PUBLISHED.glob("*.csv")} == rows
    assert set(published.read("length_extrapolation")["series"]) == {
        FIXED, RAMP, "Fibonacci, learned", "Fibonacci, coprime ramp", "Powers of two, fixed",
        "Powers of two, linear ramp", "Dense"}
    at = published.read("perplexity").query("series == 'Fibonacci, coprime ramp' and window == 6").iloc[0]
    assert (at["perplexity"], at["dataset"], at["nll"]) == (43.1038, "fineweb_edu", pytest.approx(math.log(43.1038)))


def test_when_several_windows_are_trained_then_names_tell_them_apart():
    run = planned(SWEEP)[0].run
    labels = [("A", 6, {}), ("A", 8, {}), ("B", 6, {"depth": 2}), ("C", None, {})]
    jobs = [Job.of(run, series=series, window=window, **more) for series, window, more in labels]
    assert [model.name for model in Study(jobs, None).models] == ["A, W=6", "A, W=8", "B, depth 2", "C"]


def test_when_the_plan_is_shown_then_its_controls_have_their_pairs_and_one_that_is_off_is_refused(monkeypatch, capsys):
    study = results(SWEEP)
    nb = SimpleNamespace(study=study, note=print)
    assert "Local window, equal edges" in Notebook.plan(nb).to_html() and "within 0." in capsys.readouterr().out
    monkeypatch.setattr(Study, "plan", study.plan.assign(**{"equal to": study.plan["equal to"] * 1.05}))
    with pytest.raises(SuiteError, match="off the attended pairs"):
        Notebook.plan(nb)


def test_when_a_loss_is_read_then_it_is_what_the_windows_say_and_positions_select_bins():
    study = results(SWEEP, noise=0.0)
    dense = study["Dense"]
    windows = np.array(study.windows(dense))
    assert windows.shape == (2, 1, TOKENS // 64) and np.allclose(windows, 3.0)
    assert np.allclose(study.windows(dense, positions=(8, 32))[0], 3.0)
    assert study.losses()["Dense"] == pytest.approx(3)
    assert study.summary().loc["Dense", "mean"] == pytest.approx(math.e**3)
    for wrong, words in ((lambda: study.windows(dense, positions=(8, 33)), "edges"),
                         (lambda: study["Dens"], "'Dense'"), (lambda: study.rows("nll", length=999), "no nll")):
        with pytest.raises(SuiteError, match=words):
            wrong()
    with pytest.raises(NotTested, match="Power law"):
        study.find("Power law")


@pytest.mark.parametrize("names", [("pairs", "mean"), ("role", "$x"), ("estimate", "group"), ("name", "$\\frac$"),
                                   ("1", "nan"), ("keys_per_query", "parameters")])
def test_when_domains_are_called_as_columns_or_formulas_then_tables_and_figures_keep_them_apart(names, monkeypatch):
    monkeypatch.setattr(made_up_results, "DOMAINS", names)
    study = results(SWEEP, noise=0.0)
    table = study.summary()
    for name in names:
        assert table[f"on {name}"].to_numpy() == pytest.approx(math.e**3) and table["pairs"].gt(100).all()
    assert table["mean"].to_numpy() == pytest.approx(math.e**3)
    cells = all_patterns.by_domain(study, study["Dense"])
    assert list(cells) == list(names)
    by_domain = table[[f"on {name}" for name in names]].melt(ignore_index=False, var_name="group",
                                                           value_name="estimate")
    for figure in (figures.intervals(by_domain, x="perplexity"), figures.difference_cells(cells)):
        figure.savefig(io.BytesIO())
    assert [axes.get_title() for axes in figures.intervals(by_domain, x="").axes] == [
        figures.literal(f"on {name}") for name in names]


def test_when_lengths_are_compared_then_the_same_tokens_are():
    study = results("03_extrapolation", lambda job, length, variant: 3.0 + (length > 64) * 0.5, noise=1.0)
    grew = study.growth(study["Dense"], 256)
    assert grew.estimate == pytest.approx(0.5) and grew.high - grew.low < 1e-9      # the windows' noise cancels
    with pytest.raises(SuiteError, match="multiple"):
        study.growth(study["Dense"], 100)


def test_when_operations_are_counted_then_they_are_those_of_the_matrices_and_pairs():
    run = RunConfig(planned("04_power_law_sigma")[0].run.pattern)
    embedding_and_norms = 32_768 * 512 + 512 + 16 * 1024
    matrices = 60_850_688 - embedding_and_norms + 32_768 * 512
    assert training_flops(run, pairs=0) == 6 * matrices * run.train.tokens
    one_pair = training_flops(run, pairs=1) - training_flops(run, pairs=0)
    assert one_pair == pytest.approx(3 * 4 * 8 * 64 * run.train.steps * run.train.batch)


def test_when_ours_is_beside_the_published_then_both_are_against_fixed_rungs_in_per_cent_and_by_tokens():
    study = results(SWEEP, one(RAMP, 2.9))
    table = window_sweep.beside_published(study, 4)
    assert table.loc[RAMP, "ours, %"] == pytest.approx(100 * math.expm1(-0.1))
    assert table.loc[FIXED].isna().sum() == 4 and table.loc[FIXED, "published, %"] == 0
    gain = study.by_position(study[RAMP], study[FIXED])
    assert list(gain.index) == [0, 8, 16, 32] and np.allclose(gain["estimate"], -0.1)
    theirs, ours = window_sweep.relative_curves(study, 4).values()
    a_step = study[FIXED].run.train.batch * 64
    assert list(ours.index) == [10 * a_step, 20 * a_step] and ours[RAMP].tolist() == pytest.approx([math.exp(-0.1)] * 2)
    assert theirs.index[0] == 500 * 32768 and theirs.index[-1] == 13000 * 32768
    own = published_csv("training_curves", "base == 'fibonacci' and window == 8 and seed == 42 and step == 13000")
    ends = own.groupby("schedule")["perplexity"].apply(lambda values: float(np.exp(np.log(values).mean())))
    assert theirs[RAMP].iloc[-1] == pytest.approx(ends["staggered"] / ends["fixed"])


def test_when_the_published_gain_is_read_then_it_is_smaller_in_the_first_bin():
    gain = published.ramp_gain("position")
    second = published_csv("position_loss", "window == 8 and bin == 1 and base == 'fibonacci'")
    nll = second.groupby(["schedule", "dataset"])["nll"].first()
    assert gain.loc[128].to_dict() == pytest.approx((nll["fixed"] - nll["staggered"]).to_dict())
    mean = gain.mean(axis=1)
    assert len(mean) == 8 and mean.iloc[0] < mean.iloc[1:].min()    # row 5


def test_when_seeds_or_stacks_differ_then_the_tables_of_the_sweep_have_the_samples_spread_and_count_distances():
    study = results(SWEEP, lambda job, *_: 3.0 + 0.01 * job.run.train.seed, changes={"seeds": (1, 2, 3)})
    table = window_sweep.seed_spread(study)
    assert table.loc["Dense", "ours, %"] == pytest.approx(1.0) and table["published, %"].notna().sum() >= 3
    patterns = {"local": build("local", window=3, layers=2), "power": build("power_law", window=2, budget=6, layers=2)}
    table = window_sweep.stack_table(patterns, 16)
    assert table.loc["local"].tolist() == [4, 4, 7] and table.loc["power", "stack"] > 6


def test_when_a_model_keeps_or_loses_its_perplexity_then_it_is_beside_the_published_change():
    theirs = published_csv("length_extrapolation", "base == 'dense'")
    mean = {length: float(np.exp(np.log(own).mean())) for length, own in theirs.groupby("eval_length")["perplexity"]}
    for rises in ("Dense", RAMP):
        more = one(rises, 1, 0)
        study = results("03_extrapolation", lambda job, length, _, more=more: 3 + (length > 64) * more(job))
        dense = extrapolation.beside_published(study, (1, 2, 4), 4).loc[("Dense", 4)]
        assert dense["published, %"] == pytest.approx(100 * (mean[4096] / mean[1024] - 1))
        assert dense["ours, %"] == pytest.approx(100 * math.expm1(rises == "Dense"), abs=1e-6)
        theirs_by_length, ours = extrapolation.relative(study, {"Dense": (study["Dense"], "")}).values()
        assert theirs_by_length.loc[1.0, "Dense"] == ours.loc[1.0, "Dense"] == 1


def test_when_a_change_at_evaluation_helps_or_hurts_then_the_tables_of_variants_show_it():
    changed = {"rope=ntk": 0.1, extrapolation.FROZEN: 0.6}
    study = results("03_extrapolation", lambda job, length, variant: 3.0 + (length > 64) * changed.get(variant, 0.5))
    helped = extrapolation.variants(study, "Dense")
    assert len(helped) == 6 and all(model == study["Dense"] for model, _ in helped.values())
    growth = extrapolation.growth_table(study, helped, 256)
    assert growth["estimate"].to_dict() == pytest.approx({**dict.fromkeys(helped, 0.5), "Dense, rope=ntk": 0.1})
    curves = extrapolation.curves(study, helped).loc[256]
    assert curves["Dense"] / curves["Dense, rope=ntk"] == pytest.approx(math.exp(0.4))
    frozen = extrapolation.frozen_against_rebuilt(study, 256)
    assert set(frozen.index) == {RAMP, "Powers of two, linear ramp"}
    assert frozen["estimate"].to_numpy() == pytest.approx([0.1, 0.1])
    context = extrapolation.context_table(study, helped, study["Local window, equal edges"], 256)
    assert context["estimate"].abs().max() < 1e-9                      # a loss that does not change with the position


def test_when_published_tables_and_the_documents_sizes_are_looked_at_then_the_audits_numbers_follow():
    grows = {schedule: exact.paper_pattern(schedule=schedule) for schedule in ("linear", "fixed")}
    table = extrapolation.rungs_added(grows | {"pow2": exact.paper_pattern("pow2", "linear")}, 1024, 4096)
    assert table["layers with untrained distances"].to_dict() == {"linear": 7, "fixed": 0, "pow2": 16}    # row 2
    assert table["untrained distances"].drop("pow2").to_dict() == {"linear": "1086 to 1480", "fixed": "none"}
    change = extrapolation.published_table()["change, %"]
    assert change["Powers of two, fixed, W=8"].round(1) == 11.3
    assert change["Fibonacci, coprime ramp, W=6"].round(1) == 4.2    # row 3
    ramps = change[change.index.str.startswith("Powers of two, linear")]
    assert ramps.round(1).between(-0.4, 0).all() and len(ramps) == 4    # row 2
    assert change["Dense"].round() == 201 and (change.drop("Dense") > 2).sum() == 4
    table = capacity_battery.lambada_table()
    assert [round(value) for value in table["estimate"]] == [300, 309, 347, 364, 387]    # row 17
    assert list(table.index)[0] == RAMP and list(table.index)[-1] == FIXED
    assert capacity_battery.published_battery().loc[("blimp", "accuracy")].notna().sum() >= 4
    table = christoffel.residue_table({"64/512": (64, 512), "63/512": (63, 512)})
    assert table["gaps"].to_dict() == {"64/512": "8", "63/512": "8, 9"}    # row 22
    assert table["residues mod 8"].to_dict() == {"64/512": 1, "63/512": 8}
    reach = (100 * christoffel.document_reach().iloc[-1]).round()
    assert reach.iloc[:4].tolist() == [31, 41, 45, 85]    # row 24: 64/512, 63/512, 61/512, and 55/512 with W = 8
    assert reach["Random offsets, 64 of 512"] >= 96


def test_when_draws_are_counted_out_for_a_budget_then_the_drawn_graphs_have_its_pairs():
    for sigma, budget, radius, length in ((0.85, 32, 8, 256), (0.5, 16, 8, 200), (1.2, 20, 4, 128)):
        m, wanted = draws_for(sigma, budget, radius, length), np.minimum(budget, np.arange(length) + 1).sum()
        laws = (build("power_law", mode="draws", sigma=sigma, draws=n, window=radius) for n in (m - 1, m, m + 1))
        fewer, pairs, more = (law.expected_pairs(length) for law in laws)
        assert pairs == pytest.approx(wanted, rel=0.01) and (fewer < wanted or more > wanted)


def test_when_draws_differ_from_budgets_then_the_tables_of_sigma_say_so_by_typed_labels():
    study = results("04_power_law_sigma", one("Power law, draws", 2.9))
    modes = power_law_sigma.modes_table(study)
    assert list(modes["draws"]) == [draws_for(0.85, 12, 4, 64)] and modes["estimate"].iloc[0] == pytest.approx(-0.1)
    table = power_law_sigma.by_sigma(study)
    assert list(table) == ["Power law, B=12", "Power law, draws, B=12"] and table.iloc[:, 1].count() == 1
    assert set(power_law_sigma.levels(study)) == {"Dense", "Local window, equal edges, B=12"}
    shares = power_law_sigma.shares_of_dense(study)
    assert (shares["pairs, %"] < 50).all() and (shares["operations, %"] > shares["pairs, %"]).all()
    curves = power_law_sigma.curves_over(study, lambda model: model.pairs)
    assert curves["Dense"].dropna().index[0] == 10 * study["Dense"].pairs


def test_when_the_law_is_sampled_then_counts_follow_it():
    pattern = build("power_law", mode="draws", sigma=0.8, draws=64, window=0, reach=256)
    once = 1 - (1 - power_law_sigma.law(0.8, 0, 256)) ** 64
    expected = 256 * np.histogram(np.arange(1, 257), power_law_sigma.octaves(256), weights=once)[0]
    counted = power_law_sigma.distance_counts(pattern, 512)
    assert np.all(np.abs(counted - expected) < 5 * np.sqrt(expected) + 1) and counted.sum() > 1000


def test_when_tasks_are_trained_with_and_without_a_window_then_each_is_a_row_of_its_own():
    study = results("05_christoffel", right=lambda job: 0.25 + (job.labels.window or 0) / 10, changes={
        "task_windows": (0, 4), "task_masks": ("dense", "words", "local")})
    table = task_table(study)
    assert set(table["group"]) == {"copying"} and len(table) == 7 and table.loc["Christoffel 8/64", "chance"] == 0.1
    assert {"Dense", "Christoffel 7/64", "Christoffel 7/64, W=4", "Local window, equal edges, W=4"} <= set(table.index)
    assert table.loc["Christoffel 8/64, W=4", "estimate"] == pytest.approx(0.65, abs=0.1)
    assert list(study.means("layer", "gradient_norm").index) == [0, 1, 2, 3, 4]
    assert all(name.startswith("W = ") for name in christoffel.by_window(study, (0,)))
    assert list(christoffel.cost_table(study)) == ["score memory, dense / mask", "keys a query"]


def test_when_one_model_answers_better_then_battery_context_and_ladder_show_it_beside_the_published_sign():
    study = results("06_capacity_battery", right=one(RAMP, 0.9, 0.5), changes={
        "models": ("fibonacci/fixed", "fibonacci/linear"), "widths": (16,)})
    table = capacity_battery.battery_table(study)
    ramp = table.loc[RAMP]
    assert set(table["group"]) == {"lambada", "blimp"} and (ramp["low"] > 0.5).all() and (ramp["chance"] == 0.25).all()
    assert capacity_battery.in_context(study).index[0].startswith(RAMP)
    sized = table.assign(parameters=np.where(table.index.str.contains("d_model 16"), 500, 1000))
    assert set(capacity_battery.ladder(sized).index.get_level_values("series")) == {"Dense", RAMP}
    assert capacity_battery.ladder(table).empty                                 # one size: no ladder
    theirs = published_csv("battery", "task == 'blimp' and metric == 'accuracy' and window == 12")
    mean = theirs[theirs["base"] == "fibonacci"].groupby("schedule")["value"].mean()
    beside = capacity_battery.ramp_against_fixed(study)
    assert beside.loc["blimp", "published"] == pytest.approx(mean["staggered"] - mean["fixed"])
    assert (beside["low"] > 0).all() and set(beside.index) == {"blimp", "lambada"}
    distances = capacity_battery.by_distance(study)
    assert {"Dense", RAMP} <= set(distances.index) and set(distances["bin"]) == {8}
