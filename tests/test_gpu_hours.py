"""Operations, memory and hours on a GPU: against numbers by hand, the published times, and what torch really keeps."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from eval_fakes import CORPUS, Fake, V, run_of

from lib import paths, patterns
from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.fused import ops
from lib.model import Transformer, build_model
from suite import evals
from suite.experiments import experiment
from suite.plan import cost, gpus
from suite.plan import outlook as planning
from suite.settings import profiles

SMALL = ModelConfig(vocab=50, d_model=24, layers=2, heads=4, kv_heads=2, head_dim=6, hidden=40)
LOCAL = PatternSpec.of("local", window=3)


pytestmark = pytest.mark.usefixtures("outputs")


# GPUs by name

def test_when_a_gpu_is_named_then_spelling_does_not_matter_and_a_wrong_name_brings_the_nearest():
    assert [gpus.key(name) for name in ("H100", "rtx 3090", "RTX4090", "A100-80GB", "a100", "A100 40GB")] == [
        "h100", "rtx-3090", "rtx-4090", "a100", "a100", "a100-40gb"]
    with pytest.raises(SuiteError, match="unknown GPU 'h300'; did you mean 'h[12]00'"):
        gpus.key("H300")


@pytest.mark.parametrize("device, gib, known", [
    ("NVIDIA A100-SXM4-40GB", 39.4, "a100-40gb"), ("NVIDIA A100-SXM4-80GB", 79.1, "a100"),
    ("NVIDIA H200", 139.8, "h200"),
    ("NVIDIA H100 80GB HBM3", 79.1, "h100"), ("NVIDIA GeForce RTX 3090", 23.7, "rtx-3090"),
    ("NVIDIA L40S", 44.4, "l40s"),
    ("NVIDIA GeForce RTX 3090 Ti", 23.7, None), ("NVIDIA H100 PCIe", 79.1, None), ("NVIDIA A10G", 22.0, None),
    ("CPU, interpreted", 0.0, None)])
def test_when_a_driver_names_a_device_then_it_is_known_only_if_it_is_that_gpu(device, gib, known):
    assert gpus.of_device(device, gib) == known


def test_when_there_is_no_driver_then_no_gpu_is_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "DRIVER", tmp_path / "none")
    assert gpus.seen() is None


# Operations

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


def test_when_a_plan_asks_twice_then_a_pattern_is_counted_once(monkeypatch):
    asked = []
    monkeypatch.setattr(patterns.Pattern, "expected_pairs", lambda pattern, length: asked.append(length) or 1.0)
    for _ in range(3):
        cost.attended_pairs(PatternSpec.of("local", window=37), 3, 5, 71)
    assert asked == [71]


def test_when_evaluations_are_counted_then_they_are_the_tokens_that_the_model_sees():
    run = run_of(length=16)
    asked = [Evaluation.of("perplexity", tokens=96), Evaluation.of("perplexity", lengths=(8, 32), tokens=64),
             Evaluation.of("recurrence", tokens=64, edges=(0, 4))]
    for evaluation in asked:
        model = Fake(lambda tokens: torch.zeros(*tokens.shape, V))
        evals.evaluate(evaluation, model, run, CORPUS)
        seen = defaultdict(int)
        for call in model.calls:
            seen[call["shape"][1]] += math.prod(call["shape"])
        told = {length: tokens for _, length, tokens in cost.forward_passes(run, evaluation, len(CORPUS.domains))}
        assert told == seen, evaluation
        weights = 2 * 2 * (run.model.d_model * run.model.head_dim * (run.model.heads + run.model.kv_heads))
        weights += 2 * 3 * run.model.d_model * run.model.hidden + V * run.model.d_model
        assert run.model.layers == 2 and cost.evaluation_flops(run, evaluation, 2) > 2 * weights * sum(seen.values())


def test_when_alphas_are_varied_then_every_value_of_every_layer_is_a_pass(monkeypatch):
    run, seen, states = run_of(length=16, pattern="learned", window=2, rungs=4), [], Transformer.states

    def counting(self: Transformer, x: torch.Tensor, **how: object) -> torch.Tensor:
        seen.append(x.shape[:2].numel())
        return states(self, x, **how)
    monkeypatch.setattr(Transformer, "states", counting)
    evaluation = Evaluation.of("alpha_landscape", alphas=(0.8, 1.2), tokens=32)
    evals.evaluate(evaluation, build_model(run), run, CORPUS)
    assert sum(seen) == sum(tokens for *_, tokens in cost.forward_passes(run, evaluation, 2))


def test_when_a_run_names_its_own_text_then_its_evaluations_are_of_that_alone():
    evaluation, run = Evaluation.of("perplexity", tokens=64), run_of(length=16)
    named = replace(run, data=DataConfig.of("text", domains=("stories",)))
    assert cost.evaluation_flops(run, evaluation, 4) == 4 * cost.evaluation_flops(named, evaluation, 4)


def test_when_the_mask_is_another_at_evaluation_then_its_pairs_count():
    run = replace(run_of(length=16), pattern=LOCAL)
    own, dense = (Evaluation.of("perplexity", tokens=64, **more) for more in ({}, {"pattern": ("dense", ())}))
    size, layers = run.model.heads * run.model.head_dim, run.model.layers
    more = cost.evaluation_flops(run, dense, 2) - cost.evaluation_flops(run, own, 2)
    assert more == pytest.approx(2 * 4 * 4 * size * layers * (16 * 17 / 2 - (1 + 2 + 3 + 13 * 4)))


def test_when_an_evaluation_is_added_then_it_is_counted():
    needed = {"perplexity": {"tokens": 64}, "recurrence": {"tokens": 64, "edges": (0, 4)}}
    for name in evals.names():
        assert cost.forward_passes(run_of(length=16), Evaluation.of(name, **needed.get(name, {})), 2) is not None, name
    made_up = cost.evaluation_flops(run_of(length=16), Evaluation.of("made_up"), 2)
    of_training = made_up / cost.run_flops(run_of(length=16))
    assert of_training == cost.UNKNOWN_SHARE


# Memory

def kept(precision: str, monkeypatch) -> tuple[int, int]:
    """Bytes that a forward pass keeps for the backward one by the formulas that a GPU computes, and its tokens."""
    monkeypatch.setattr(ops, "kernels", None)
    model, B, T = Transformer(SMALL, patterns.build("local", layers=2, heads=4, window=3), 0, "masked"), 7, 37
    tokens = torch.randint(50, (B, T), generator=torch.Generator().manual_seed(0))
    found: dict[int, torch.UntypedStorage] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        found[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), \
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        model.loss(tokens, tokens)
    by_token = [each.nbytes() for each in found.values() if each.nbytes() % (B * T) == 0]     # weights are not
    return sum(by_token), B * T


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_when_activations_are_counted_then_they_are_what_torch_keeps(precision, monkeypatch):
    measured, tokens = kept(precision, monkeypatch)
    on_a_cpu = 4 * 24 * (2 * 2 + 1)                 # there torch's norm keeps its float32 output too
    assert cost.activation_bytes(SMALL, precision, tokens) == pytest.approx(measured - tokens * on_a_cpu, rel=0.03)


def test_when_the_paper_trains_then_parameters_and_memory_are_as_by_hand():
    assert cost.parameters(ModelConfig()) == 60_850_688
    a_token = 16 * (2 * 6 * 512 + 6 * 10 * 64 + 32 + 8 * 1366) + 8 * 512
    assert cost.activation_bytes(ModelConfig(), "bf16", 32_768) == 32_768 * a_token
    peak = cost.peak_bytes(ModelConfig(), "bf16", 32_768)
    assert peak == 18 * 60_850_688 + 32_768 * a_token + 32_768 * a_token // 8          # two of 16 layers
    few = replace(SMALL, vocab=5000)
    assert cost.peak_bytes(few, "fp32", 10) == (16 * cost.parameters(few) + 12 * 10 * 5000
                                                 + cost.activation_bytes(few, "fp32", 10))


def peak(run: RunConfig, windows: int) -> float:
    return cost.peak_bytes(run.model, run.train.precision, windows * run.train.length) / 2 ** 30


def test_when_a_batch_does_not_fit_then_it_is_split_no_further_than_needed(monkeypatch):
    run = gpus.paper_run(LOCAL)
    whole = planning.memory_of(run, None)
    assert whole == (pytest.approx(12.67, abs=0.01), 1) and planning.memory_of(run, gpus.speed("a100")) == whole
    monkeypatch.setitem(gpus.GPUS, "h100", replace(gpus.GPUS["h100"], memory_gib=6.5))
    memory, parts = planning.memory_of(run, gpus.speed("h100"))
    assert parts == 3 and memory == peak(run, 11) <= 0.9 * 6.5 < peak(run, 16)
    monkeypatch.setitem(gpus.GPUS, "h100", replace(gpus.GPUS["h100"], memory_gib=whole[0] + 0.5))
    assert planning.memory_of(run, gpus.speed("h100"))[1] == 2             # a tenth of it is not for tensors
    monkeypatch.setitem(gpus.GPUS, "h100", replace(gpus.GPUS["h100"], memory_gib=0.1))
    assert planning.memory_of(run, gpus.speed("h100"))[1] == 32            # a window at once, whatever it needs


# Hours

def test_when_nothing_was_measured_then_the_published_runs_take_what_was_published():
    with open(paths.PUBLISHED / "cost.csv", encoding="utf-8") as file:
        seconds = defaultdict(float)
        for row in csv.DictReader(file):
            seconds[row["schedule"] == "learned"] += float(row["wall_seconds"])
    speed, mine = gpus.speed("RTX 3090"), defaultdict(float)
    for run in gpus.published_runs():
        mine[run.pattern.name == "learned"] += speed.seconds(run, cost.run_flops(run))
    assert mine == {kind: pytest.approx(seconds[kind]) for kind in seconds}
    assert sum(mine.values()) / 3600 == pytest.approx(117.41, abs=0.01)
    a_token = 6 * (60_850_688 - 33 * 512) + 12 * 512 * 16 * 21     # attention: about 21 keys a query
    assert speed.shares["fixed"] == pytest.approx(425_984_000 * a_token * 25 / seconds[False] / 71e12, rel=0.01)


def test_when_dense_was_not_timed_then_its_speed_is_that_of_fixed_keys_by_the_published_inference():
    speed = gpus.speed("rtx-3090")
    dense, fixed = (gpus.paper_run(PatternSpec.of(name)) for name in ("dense", "scaled_base"))
    ratio = speed.seconds(fixed, cost.run_flops(fixed)) / speed.seconds(dense, cost.run_flops(dense))
    assert ratio == pytest.approx(201195 / 189_500, rel=0.01)


def test_when_a_gpu_is_faster_then_hours_shrink_with_its_peak_and_kinds_keep_their_share():
    slow, fast = gpus.speed("rtx-3090"), gpus.speed("h100")
    run = gpus.paper_run(LOCAL)
    assert slow.seconds(run, 1e18) / fast.seconds(run, 1e18) == pytest.approx(989.5 / 71)
    exact = replace(run, train=replace(run.train, precision="fp32"))
    assert fast.seconds(exact, 1e18) == pytest.approx(1e18 / (fast.shares["fixed"] * 67e12))
    assert [gpus.kind(PatternSpec.of(name)) for name in ("dense", "local", "adaptive_span", "learned", "blurred")] == [
        "dense", "fixed", "fixed", "learned", "learned"]


def checked(**rates: float) -> None:
    """A gpu-check on an H100 that measured these training steps."""
    path = paths.gpu_check()
    path.parent.mkdir(parents=True)
    rows = [{"measure": "training_step", "pattern": name, "tokens_per_s": rate} for name, rate in rates.items()]
    path.write_text(json.dumps({"machine": {"device": "NVIDIA H100 80GB HBM3", "memory_mib": 81_000},
                                "rows": [{"measure": "time", "pattern": "fixed", "ms": 1.0}, *rows]}))


def test_when_gpu_check_measured_this_gpu_then_its_rates_are_used_and_said():
    before = gpus.speed("h100")
    checked(fixed=300_000.0, dense=250_000.0)
    speed = gpus.speed("h100")
    run = gpus.paper_run(PatternSpec.of("scaled_base"))
    assert speed.seconds(run, cost.run_flops(run)) == pytest.approx(425_984_000 / 300_000)
    assert speed.measured == {"fixed", "dense"} and speed.shares["learned"] == before.shares["learned"]
    assert "(measured), learned keys" in speed.text() and "as in the published runs" in speed.text()
    assert gpus.speed("h200").measured == frozenset()           # another GPU
    paths.gpu_check().write_text('{"machine": {}}')
    with pytest.raises(SuiteError, match="gpu-check.json cannot be read.*run make gpu-check again"):
        gpus.speed("h100")


def test_when_everything_was_measured_then_nothing_is_said_to_be_taken_over():
    checked(fixed=3e5, dense=2e5, learned=1e5)
    assert "published" not in gpus.speed("h100").text()


# The paper's matrix in a plan

def test_when_the_paper_is_planned_then_its_runs_are_told_apart_from_controls():
    profile = profiles.load("paper")
    runs = [job.run for job in experiment("01_window_sweep").plan(profile.parameters("01_window_sweep"), profile)]
    speed = gpus.speed("rtx-3090")
    found = {part.part: part for part in gpus.paper_matrix([*runs, *runs], speed)}          # each run once
    counts = {name: part.runs for name, part in found.items()}
    assert counts == {gpus.MODELS: 21, gpus.REPLICATES: 9, gpus.TIMED: 30, gpus.DENSE: 1,
                      gpus.SEEDS: 21 * 2 - 9 + 2, gpus.CONTROLS: len(set(runs)) - 21 * 3 - 3}
    both = found[gpus.TIMED]
    assert both.published_hours == pytest.approx(117.41, abs=0.01) and both.hours == pytest.approx(117.41, abs=0.01)
    assert found[gpus.DENSE].published_hours is None and found[gpus.DENSE].tokens == 425_984_000
    assert both.flops == pytest.approx(sum(found[name].flops for name in (gpus.MODELS, gpus.REPLICATES)))


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
