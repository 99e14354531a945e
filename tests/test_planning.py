"""A plan: operations, memory and hours on a GPU, against numbers by hand, the published times, and what torch keeps."""

import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from eval_fakes import CORPUS, run_of
from fake_jobs import job, train

from lib import paths, patterns
from lib.attention.call import Call
from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.fused import ops
from lib.model import Transformer, build_model
from suite import evals
from suite.plan import cost, estimate, gpus
from suite.plan import outlook as planning
from suite.settings import profiles

SMALL = ModelConfig(vocab=50, d_model=24, layers=2, heads=4, kv_heads=2, head_dim=6, hidden=40)
LOCAL = PatternSpec.of("local", window=3)
PAPER_TOKENS = 425_984_000

pytestmark = pytest.mark.usefixtures("outputs")


def test_when_a_person_or_a_driver_names_a_gpu_then_it_is_that_one_or_none(monkeypatch, tmp_path):
    assert [gpus.key(name) for name in ("H100", "rtx 3090", "RTX4090", "A100-80GB", "a100", "A100 40GB")] == [
        "h100", "rtx-3090", "rtx-4090", "a100", "a100", "a100-40gb"]
    with pytest.raises(SuiteError, match="unknown GPU 'h300'; did you mean 'h[12]00'"):
        gpus.key("H300")
    for device, gib, known in [
            ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40gb"), ("NVIDIA A100-SXM4-80GB", 79.1, "a100"),
            ("NVIDIA H200", 139.8, "h200"), ("NVIDIA H100 80GB HBM3", 79.1, "h100"), ("NVIDIA L40S", 44.4, "l40s"),
            ("NVIDIA GeForce RTX 3090", 23.7, "rtx-3090"), ("NVIDIA GeForce RTX 3090 Ti", 23.7, None),
            ("NVIDIA H100 PCIe", 79.1, None), ("NVIDIA A10G", 22.0, None), ("CPU, interpreted", 0.0, None)]:
        assert gpus.of_device(device, gib) == known, device
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "none")
    assert gpus.seen() is None


def test_when_drawn_keys_are_counted_then_the_mean_is_that_of_many_drawn_graphs_and_others_are_exact():
    for more in ({}, {"reach": 40}):
        drawn = patterns.build("power_law", layers=60, heads=2, mode="draws", draws=25, sigma=0.7, window=3, **more)
        assert drawn.expected_pairs(90) == pytest.approx(drawn.pairs(90), rel=0.01)
        found = 0.0                        # by the law itself, query by query and distance by distance
        for i in range(90):
            law = {d: d ** -1.7 for d in range(1, min(i, more.get("reach", 90)) + 1)}
            found += min(i, 3) + 1 + sum(1 - (1 - q / sum(law.values())) ** 25 for d, q in law.items() if d > 3)
        assert drawn.expected_pairs(90) == pytest.approx(60 * found, rel=1e-9)
    certain = patterns.build("power_law", layers=1, mode="draws", draws=3, sigma=0.7, window=0)
    assert certain.expected_pairs(2) == 3.0                       # the second query draws the first token for certain
    for name, own in (("power_law", {"budget": 9, "window": 2}), ("scaled_base", {}), ("dense", {})):
        pattern = patterns.build(name, layers=2, heads=2, **own)
        assert pattern.expected_pairs(50) == pattern.pairs(50)
    assert cost.attended_pairs.cache_info().maxsize is None       # a plan asks for one pattern again and again


@pytest.mark.parametrize("evaluation", [
    Evaluation.of("perplexity", tokens=96), Evaluation.of("perplexity", lengths=(8, 32), tokens=64),
    Evaluation.of("recurrence", tokens=64, edges=(0, 4)),
    Evaluation.of("alpha_landscape", alphas=(0.8, 1.2), tokens=32)], ids=str)
def test_when_evaluations_are_counted_then_they_are_the_tokens_that_the_model_sees(evaluation, monkeypatch):
    run, seen, states = run_of(length=16, pattern="learned", window=2, rungs=4), Counter(), Transformer.states

    def counting(self: Transformer, x: torch.Tensor, **how: object) -> torch.Tensor:
        seen[x.shape[1]] += x.shape[:2].numel()
        return states(self, x, **how)
    monkeypatch.setattr(Transformer, "states", counting)
    monkeypatch.setattr(ops, "kernels", None)                       # nothing is to be compiled
    evals.evaluate(evaluation, build_model(run, "torch"), run, CORPUS)
    told = Counter()
    for _, length, tokens in cost.forward_passes(run, evaluation, len(CORPUS.domains)):
        told[length] += tokens
    assert told == seen


def test_when_text_or_mask_are_others_at_evaluation_then_they_count_and_every_evaluation_is_known():
    own, dense = (Evaluation.of("perplexity", tokens=64, **more) for more in ({}, {"pattern": ("dense", ())}))
    run = replace(run_of(length=16), pattern=LOCAL)
    named = replace(run, data=DataConfig.of("text", domains=("stories",)))
    assert cost.evaluation_flops(run, own, 4) == 4 * cost.evaluation_flops(named, own, 4)
    size, layers = run.model.heads * run.model.head_dim, run.model.layers
    more = cost.evaluation_flops(run, dense, 2) - cost.evaluation_flops(run, own, 2)
    assert more == pytest.approx(2 * 4 * 4 * size * layers * (16 * 17 / 2 - (1 + 2 + 3 + 13 * 4)))
    needed = {"perplexity": {"tokens": 64}, "recurrence": {"tokens": 64, "edges": (0, 4)}}
    for name in evals.names():
        assert cost.forward_passes(run, Evaluation.of(name, **needed.get(name, {})), 2) is not None, name
    assert cost.evaluation_flops(run, Evaluation.of("made_up"), 2) == cost.UNKNOWN_SHARE * cost.run_flops(run)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_when_activations_are_counted_then_they_are_what_torch_keeps(precision, monkeypatch):
    monkeypatch.setattr(ops, "kernels", None)                       # by the formulas that a GPU computes
    monkeypatch.setattr(Call, "out_dtype", torch.float32)           # on a CPU SDPA computes bfloat16 in float32
    model, B, T = Transformer(SMALL, patterns.build("local", layers=2, heads=4, window=3), 0, "masked"), 7, 37
    tokens = torch.randint(50, (B, T), generator=torch.Generator().manual_seed(0))
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), \
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        model.loss(tokens, tokens)
    by_token = sum(each.nbytes() for each in kept.values() if each.nbytes() % (B * T) == 0)   # weights are not
    on_a_cpu = 4 * 24 * (2 * 2 + 1)                                 # there torch's norm keeps its float32 output too
    assert cost.activation_bytes(SMALL, precision, B * T) == pytest.approx(by_token - B * T * on_a_cpu, rel=0.03)


def test_when_a_training_is_at_its_peak_then_memory_is_as_by_hand_and_a_batch_is_split_until_it_fits(monkeypatch):
    assert cost.parameters(ModelConfig()) == 60_850_688
    kept = cost.activation_bytes(ModelConfig(), "bf16", 32_768)
    assert cost.peak_bytes(ModelConfig(), "bf16", 32_768) == 18 * 60_850_688 + kept + kept // 8      # two of 16 layers
    few = replace(SMALL, vocab=5000)
    kept = cost.activation_bytes(few, "fp32", 10)
    assert cost.peak_bytes(few, "fp32", 10) == 16 * cost.parameters(few) + 12 * 10 * 5000 + kept
    run = gpus.paper_run(LOCAL)
    whole, third, half = (cost.peak_bytes(run.model, "bf16", n * 1024) / 2 ** 30 for n in (32, 11, 16))
    assert whole == pytest.approx(12.67, abs=0.01)
    assert planning.memory_of(run, None) == planning.memory_of(run, gpus.speed("a100")) == (whole, 1)
    # A tenth of the memory is not for tensors; in the end a window at once, whatever it needs.
    assert third <= 0.9 * 6.5 < half
    for gib, parts in ((6.5, 3), (whole + 0.5, 2), (0.1, 32)):
        monkeypatch.setitem(gpus.GPUS, "h100", replace(gpus.GPUS["h100"], memory_gib=gib))
        memory, found = planning.memory_of(run, gpus.speed("h100"))
        assert found == parts and (parts != 3 or memory == third)


def test_when_nothing_was_measured_then_the_published_runs_take_what_was_published():
    published = pd.read_csv(paths.PUBLISHED / "cost.csv")
    seconds = published.groupby(published.schedule == "learned").wall_seconds.sum()
    speed, mine = gpus.speed("RTX 3090"), defaultdict(float)
    for run in gpus.published_runs():
        mine[run.pattern.name == "learned"] += speed.seconds(run, cost.run_flops(run))
    assert mine == pytest.approx(seconds.to_dict())
    a_token = 6 * (60_850_688 - 33 * 512) + 12 * 512 * 16 * 21     # attention: about 21 keys a query
    assert speed.shares["fixed"] == pytest.approx(PAPER_TOKENS * a_token * 25 / seconds[False] / 71e12, rel=0.01)
    # Dense was not timed: its speed is that of fixed keys by the published inference.
    dense, fixed = (gpus.paper_run(PatternSpec.of(name)) for name in ("dense", "scaled_base"))
    ratio = speed.seconds(fixed, cost.run_flops(fixed)) / speed.seconds(dense, cost.run_flops(dense))
    assert ratio == pytest.approx(201195 / 189_500, rel=0.01)
    # Another GPU by its peak; kinds keep their share.
    fast, exact = gpus.speed("h100"), replace(fixed, train=replace(fixed.train, precision="fp32"))
    assert speed.seconds(fixed, 1e18) / fast.seconds(fixed, 1e18) == pytest.approx(989.5 / 71)
    assert fast.seconds(exact, 1e18) == pytest.approx(1e18 / (fast.shares["fixed"] * 67e12))
    assert [gpus.kind(PatternSpec.of(name)) for name in ("dense", "local", "adaptive_span", "learned", "blurred")] == [
        "dense", "fixed", "fixed", "learned", "learned"]


def test_when_gpu_check_measured_this_gpu_then_its_rates_are_used_and_said():
    paths.gpu_check().parent.mkdir(parents=True)

    def checked(**rates: float) -> gpus.GpuSpeed:
        """The speed of an H100 where gpu-check measured these training steps."""
        rows = [{"measure": "training_step", "pattern": name, "tokens_per_s": rate} for name, rate in rates.items()]
        paths.gpu_check().write_text(json.dumps({
            "machine": {"device": "NVIDIA H100 80GB HBM3", "memory_mib": 81_000},
            "rows": [{"measure": "time", "pattern": "fixed", "ms": 1.0}, *rows]}))
        return gpus.speed("h100")
    before, speed, run = gpus.speed("h100"), checked(fixed=3e5, dense=2.5e5), gpus.paper_run(PatternSpec("scaled_base"))
    assert speed.seconds(run, cost.run_flops(run)) == pytest.approx(PAPER_TOKENS / 3e5)
    assert speed.measured == {"fixed", "dense"} and speed.shares["learned"] == before.shares["learned"]
    assert "(measured), learned keys" in speed.text() and "as in the published runs" in speed.text()
    assert gpus.speed("h200").measured == frozenset()           # another GPU
    assert "published" not in checked(fixed=3e5, dense=2e5, learned=1e5).text()
    paths.gpu_check().write_text('{"machine": {}}')
    with pytest.raises(SuiteError, match="gpu-check.json cannot be read.*run make gpu-check again"):
        gpus.speed("h100")


def test_when_the_paper_is_planned_then_its_matrix_stands_beside_the_published_hours(monkeypatch):
    profile, sweep = profiles.load("paper"), planning.planned(profiles.load("paper"), "01_window_sweep")
    monkeypatch.setattr(estimate, "measure", lambda precision: 1e9)
    monkeypatch.setattr(gpus, "seen", lambda: None)
    view = planning.outlook([sweep, sweep], profile, None, planning.default_gpu([sweep]))      # each run counts once
    found, runs = {row.part: row for row in view.matrix}, {job.run for job in sweep.jobs}
    assert {name: row.runs for name, row in found.items()} == {
        gpus.MODELS: 21, gpus.REPLICATES: 9, gpus.TIMED: 30, gpus.DENSE: 1, gpus.SEEDS: 21 * 2 - 9 + 2,
        gpus.CONTROLS: len(runs) - 21 * 3 - 3}
    both = found[gpus.TIMED]
    assert both.published_hours == pytest.approx(117.41, abs=0.01) and both.hours == pytest.approx(117.41, abs=0.01)
    assert found[gpus.DENSE].published_hours is None and found[gpus.DENSE].tokens == PAPER_TOKENS
    assert both.flops == pytest.approx(sum(found[name].flops for name in (gpus.MODELS, gpus.REPLICATES)))
    text = view.text()
    assert "RTX 3090, h" in text and "RTX 3090: hours of one GPU" in text      # the paper's, if none is named
    assert "published matrix, 30 runs: 117.4 hours on one RTX 3090; published: 117.4 GPU-hours" in text
    assert re.search("^the paper's models +21 .*^its replicates +9 ", text, re.DOTALL | re.MULTILINE)
    monkeypatch.setitem(gpus.GPUS, "h100", replace(gpus.GPUS["h100"], memory_gib=8))
    faster = planning.outlook([sweep], profile, None, "h100").text()
    assert "30 runs: 8.4 hours on one H100" in faster and max(map(len, faster.splitlines()[1:])) <= 128
    assert "01_window_sweep: batches are split in up to 2 to fit" in faster


def test_when_recipe_seed_or_model_differ_then_a_run_is_not_the_papers():
    own = next(iter(gpus.published_runs()))
    changed = {
        gpus.MODELS: [own, replace(own, model=replace(own.model, vocab=32_000))],
        gpus.SEEDS: [replace(own, train=replace(own.train, seed=45)), gpus.paper_run(PatternSpec.of("dense"), 43)],
        gpus.CONTROLS: [replace(own, train=replace(own.train, steps=6_500)), gpus.paper_run(LOCAL),
                        replace(own, model=replace(own.model, layers=8)),
                        replace(own, data=DataConfig.of("copying"))]}
    for name, runs in changed.items():
        assert [gpus.part_of_paper(run) for run in runs] == [name] * len(runs)
    assert gpus.paper_matrix([RunConfig(LOCAL, SMALL, TrainConfig(length=16))], None) == []


@pytest.mark.parametrize("gpu", [None, "rtx-3090"])
def test_when_notebooks_share_runs_then_their_operations_memory_and_hours_are_those_by_hand(house, gpu):
    house.notebook("01_a", job(1, 512), job(2, 512))
    house.notebook("02_b", job(2, 512, 256), job(3, 512, steps=8))
    profile = profiles.load("tiny")
    view = planning.outlook([planning.planned(profile, name) for name in ("01_a", "02_b")], profile, house.text, gpu)
    first, second, total = view.lines.to_dict("records")
    a_run, counts = 4 * 2 * 64, ["notebook", "runs", "shared", "done", "to_train", "tokens", "evaluations"]
    assert view.lines[counts].values.tolist() == [
        ["01_a", 2, 0, 0, 2, 2 * a_run, 2], ["02_b", 2, 1, 0, 1, 2 * a_run, 2], ["total", 3, 0, 0, 3, 4 * a_run, 4]]
    weights = 2 * (16 * 8 * 6 + 3 * 16 * 32) + 64 * 16                 # of products: two layers, and the output matrix
    a_window = 2 * weights * 64 + 4 * 2 * 8 * 2 * (1 + 2 + 3 + 61 * 4)  # local, W = 3, in two layers
    training, evaluation = 3 * 4 * 2 * a_window, 512 * a_window        # steps x windows; sequences
    assert (first["flops"], second["flops"]) == (2 * training + 2 * evaluation, 2 * training + 1.5 * evaluation)
    assert total["flops"] == first["flops"] + second["flops"]
    assert {row["micro_batches"] for row in (first, second, total)} == {1}
    assert 16 * weights < total["memory_gib"] * 2 ** 30 < 32 * weights + 2 * 64 * 5000
    assert total["hours"] == (gpu and pytest.approx(total["flops"] / view.speed.shares["fixed"] / 35.6e12 / 3600))
    assert view.matrix == [] and total["minutes"] > 0 and not view.timed                 # no run is the paper's
    assert house.run("plan") == 0 and not (house.root / "outputs").exists()


def test_when_the_corpus_is_not_built_then_runs_of_a_task_can_be_there_and_runs_of_text_cannot():
    done = job(1)
    text = replace(done, run=replace(done.run, data=DataConfig.of("text")))
    train(done)
    untrained, lacking = planning.work_left([done, text], SimpleNamespace(name="tiny"), None)
    assert untrained == {text.run} and lacking == {done.run: set(), text.run: set(text.evaluations)}
