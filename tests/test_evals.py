"""Evaluations against models whose answers are known, and the battery's items, whose answers a person can work out."""

import json
import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from eval_fakes import CORPUS, TEXTS, Fake, FakeCorpus, V, bigram, only, real, run_of, uniform, values
from torch import nn
from torch.nn import functional as F

from data_prep import tokenizer as bpe
from lib import patterns
from lib.config import DataConfig, Evaluation
from lib.data import heldout_windows
from lib.errors import SuiteError
from suite.evals import build, evaluate
from suite.evals.battery import requests
from suite.evals.recurrence import evidence
from suite.evals.task import HELD_OUT
from suite.evals.zero_shot import Item, passages
from suite.tasks import task


def perplexity(**parameters):
    return Evaluation.of("perplexity", **{"lengths": (100,), "tokens": 1000, **parameters})


def test_when_a_model_is_uniform_then_perplexity_is_the_vocabulary_and_the_bins_are_those_of_the_design():
    edges = {5: [0, 5], 8: [0, 8], 100: [0, 8, 16, 32, 64, 100], 128: [0, 8, 16, 32, 64, 128],
             300: [0, 8, 16, 32, 64, 128, 256, 300], 512: [0, 8, 16, 32, 64, 128, 256, 384, 512]}
    result = evaluate(perplexity(lengths=tuple(edges)), uniform(), run_of(), CORPUS)
    assert values(result, "perplexity") == pytest.approx([V] * 12, rel=1e-6)
    assert set(np.round(values(result, "position_nll"), 5)) == {round(math.log(V), 5)}
    assert {length: result.arrays[f"edges.{length}"].tolist() for length in edges} == edges


def test_when_a_model_is_a_bigram_table_then_its_loss_is_the_sum_by_hand():
    model, log_p = bigram()
    result = evaluate(perplexity(lengths=(300,), tokens=2000), model, run_of(), CORPUS)
    for domain in CORPUS.domains:
        tokens = CORPUS.tokens("heldout", domain).astype(int)[:1801]             # six windows, and the last target
        by_hand = [-float(log_p[a, b]) for a, b in zip(tokens, tokens[1:])]
        assert only(result, "nll", split=domain, length=300) == pytest.approx(np.mean(by_hand), rel=1e-6)
        assert only(result, "perplexity", split=domain) == pytest.approx(math.exp(np.mean(by_hand)), rel=1e-5)
        assert only(result, "count", split=domain) == 1800
        inside = [by_hand[300 * w + t] for w in range(6) for t in range(32, 64)]
        assert only(result, "position_nll", split=domain, position=32) == pytest.approx(np.mean(inside), rel=1e-6)
        by_bin, edges = values(result, "position_nll", split=domain), result.arrays["edges.300"]
        assert np.dot(by_bin, np.diff(edges)) / 300 == pytest.approx(np.mean(by_hand), rel=1e-6)
        sums, counts = result.arrays[f"nll.{domain}.300"], result.arrays[f"count.{domain}.300"]
        assert sums.shape == counts.shape == (6, 7)
        assert sums[2].sum() == pytest.approx(sum(by_hand[600:900]), rel=1e-6)
        assert sums[4, 6] == pytest.approx(sum(by_hand[1200 + 256:1500]), rel=1e-6)


def test_when_rope_and_mask_are_changed_then_the_model_is_asked_so_and_the_table_says_so():
    model = uniform()
    changed = perplexity(rope="yarn", pattern=("local", (("window", 5),)), variant="mine")
    result, call = evaluate(changed, model, run_of(length=50), CORPUS), model.calls[0]
    assert (call["rope"], call["trained_length"], {m.variant for m in result.metrics}) == ("yarn", 50, {"mine"})
    assert call["pattern"] == patterns.build("local", window=5, layers=2, heads=2)
    plain = evaluate(perplexity(), model, run_of(), CORPUS)
    assert {m.variant for m in plain.metrics} == {""} and model.calls[-1]["pattern"] is None
    with pytest.raises(SuiteError, match="not finite"):
        evaluate(perplexity(), Fake(lambda tokens: torch.full((*tokens.shape, V), -torch.inf)), run_of(), CORPUS)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_when_a_run_was_trained_in_a_precision_then_it_is_evaluated_in_it_4096_tokens_at_once(precision):
    model, before = uniform().train(), torch.random.get_rng_state()
    evaluate(perplexity(lengths=(10,), tokens=5500), model, run_of(precision=precision), CORPUS)
    assert max(math.prod(call["shape"]) for call in model.calls) <= 4096 and len(model.calls) == 4
    evaluate(Evaluation.of("battery", tasks=("blimp",), count=3), model, run_of(precision=precision), CORPUS)
    for call in model.calls:
        assert call["bf16"] == (precision == "bf16") and not call["graph"] and not call["training"]
    assert model.training, "the mode is given back"
    assert torch.equal(before, torch.random.get_rng_state())


EDGES = (0, 4, 8, 16, 32)


def looked_back(tokens: list[int], t: int, n: int) -> int | None:
    """Distance from t to the token after the latest earlier place of the n tokens that end at t, by definition."""
    return next((t - (s + 1) for s in range(t - 1, n - 2, -1) if t >= n - 1 and
                 tokens[s - n + 1:s + 1] == tokens[t - n + 1:t + 1]), None)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 20])
def test_when_tokens_are_random_then_the_evidence_is_what_a_search_finds(n, alphabet):
    inputs = np.random.default_rng(n).integers(0, alphabet, (4, 41))
    targets = np.random.default_rng(9).integers(0, alphabet, inputs.shape)
    place, right = evidence(inputs, targets, n)
    for window, tokens in enumerate(inputs.tolist()):
        for t in range(len(tokens)):
            distance = looked_back(tokens, t, n)
            assert place[window, t] == (-1 if distance is None else t - distance)
            assert right[window, t] == (distance is not None and tokens[t - distance] == targets[window, t])
    assert not (place[:, :n] >= 0).any(), "a context and an earlier place of it need n + 1 tokens"
    assert (place >= 0).any() or alphabet ** n > 1000


def test_when_losses_are_told_by_recurrence_then_each_bin_is_the_sum_by_hand():
    model, log_p = bigram()
    result = evaluate(Evaluation.of("recurrence", tokens=1000, edges=EDGES, n=1), model, run_of(length=60), CORPUS)
    for domain in CORPUS.domains:
        tokens = CORPUS.tokens("heldout", domain).astype(int)[:961].tolist()
        found, first_ones = {"recurrence": defaultdict(list), "copy": defaultdict(list)}, set()    # of nll and window
        for window, t in product(range(16), range(60)):
            own = tokens[60 * window:60 * window + 61]
            distance = looked_back(own[:60], t, 1)
            first = 60 if distance is None else max(edge for edge in EDGES if edge <= distance)
            first_ones |= {distance} & {*EDGES}
            right = distance is not None and own[t - distance] == own[t + 1]
            for kind in ("recurrence", "copy") if right else ("recurrence",):
                found[kind][first].append((-float(log_p[own[t], own[t + 1]]), window))
        assert len(first_ones) > 2 and found["copy"], "some distances are the first of a bin"
        for kind, (at, first) in product(found, enumerate((*EDGES, 60))):
            losses, windows = np.reshape(found[kind][first], (-1, 2)).T
            assert only(result, f"{kind}_count", split=domain, position=first) == len(losses)
            mean = [losses.mean()] if len(losses) else []
            assert values(result, f"{kind}_nll", split=domain, position=first) == pytest.approx(mean, rel=1e-5)
            by_window = np.bincount(windows.astype(int), losses, minlength=16)
            assert result.arrays[f"{kind}.{domain}"][:, at] == pytest.approx(by_window, rel=1e-5)
        assert result.arrays[f"recurrence_count.{domain}"].sum() == 960
        assert result.arrays[f"copy_count.{domain}"][:, -1].sum() == 0, "what has no earlier place has nothing to copy"


def marked_run(**more):
    data = DataConfig.of("marked_copy", distances=(5, 11), marks=8, symbols=18)
    return run_of(length=64, vocab=20, data=data, **more)


def test_when_a_model_knows_one_distance_then_accuracy_says_so_by_distance():
    made = task("marked_copy", distances=(5, 11), marks=8, symbols=18)
    known = {}
    for step, size in ((0, 64), (1, 36)):
        inputs, targets, labels = made.labelled(HELD_OUT + 3, step, size, 64)
        right = np.where(labels == 11, (targets + 1) % 18, targets)          # wrong at distance 11
        known |= {tuple(i): torch.from_numpy(t) for i, t in zip(inputs.tolist(), right, strict=True)}

    def solver(tokens):
        """Says what is known at every scored position, and the token 0 elsewhere."""
        targets = torch.stack([known[tuple(row.tolist())] for row in tokens])
        return 9 * F.one_hot(targets.clamp(min=0), 20).float()
    result = evaluate(Evaluation.of("task", count=100, seed=3), Fake(solver, 20), marked_run())
    assert only(result, "accuracy", split="distance=5") == 1 and only(result, "accuracy", split="distance=11") == 0
    near, far = only(result, "count", split="distance=5"), only(result, "count", split="distance=11")
    assert only(result, "count", split="marked_copy") == near + far > 600
    assert only(result, "accuracy", split="marked_copy") == pytest.approx(near / (near + far))
    assert set(values(result, "chance")) == {1 / 18}
    near_nll = math.log1p(19 * math.exp(-9))
    assert only(result, "target_nll", split="distance=5") == pytest.approx(near_nll, rel=1e-3)
    assert only(result, "target_nll", split="distance=11") == pytest.approx(9 + near_nll, rel=1e-5)
    assert result.arrays["correct.marked_copy.64"].sum() == near
    assert result.arrays["count.distance=11.64"].shape == (100,)
    unsure = evaluate(Evaluation.of("task", count=20), uniform(20), marked_run())
    assert only(unsure, "target_nll", split="marked_copy") == pytest.approx(math.log(20), rel=1e-6)


def test_when_sequences_are_held_out_then_no_training_seed_draws_them():
    made = task("lego", chain=2)
    held_out = made.batch(HELD_OUT, 0, 4, 16)[0]
    # numpy pads a short seed with zeros: a seed above one 32-bit word would be some (seed, step) of the training
    assert HELD_OUT < 2 ** 32
    assert not any(torch.equal(held_out, made.batch(seed, step, 4, 16)[0])
                   for seed in (0, 1, 2 ** 31 - 1) for step in (0, 1, HELD_OUT))
    with pytest.raises(SuiteError, match="train.seed"):
        evaluate(Evaluation.of("task", count=4), uniform(20), marked_run(seed=HELD_OUT))


LEARNED = {"pattern": "learned", "rungs": 8, "window": 2}


def test_when_one_alpha_is_changed_then_the_loss_is_that_of_a_model_with_that_alpha():
    model, run = real(**LEARNED)
    result = evaluate(Evaluation.of("alpha_landscape", alphas=(0.7, 1.0, 1.3), tokens=240), model, run, CORPUS)

    def mean_loss(model):
        windows = [heldout_windows(CORPUS, domain, 48, 240) for domain in CORPUS.domains]
        return float(torch.stack([model.token_losses(*pair).double().mean() for pair in windows]).mean())
    before = mean_loss(model)
    for layer, alpha in product((0, 1), (0.7, 1.3)):
        other, _ = real(**LEARNED)
        with torch.no_grad():
            other.blocks[layer].attention.theta.fill_(float(torch.logit(torch.tensor(alpha - 0.5))))
        assert other.alphas()[layer] == pytest.approx(alpha)
        change = only(result, "alpha_nll_change", layer=layer, variant=f"alpha={alpha:g}")
        assert change == pytest.approx(mean_loss(other) - before, abs=2e-6)
    changes = result.arrays["change"]
    assert changes.shape == (2, 3, 10) and len(np.unique(changes.mean(axis=2).round(9))) == 5
    assert np.allclose(changes.mean(axis=2).ravel(), values(result, "alpha_nll_change"))
    assert values(result, "alpha_nll_change", variant="alpha=1") == [0.0, 0.0]


def test_when_an_alpha_was_tried_then_the_model_is_left_as_it_was_even_if_the_evaluation_failed():
    model, run = real(**LEARNED)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    left = iter([model.token_losses] * 4)
    model.token_losses = lambda *args, **how: next(left)(*args, **how)          # the fifth call fails
    with pytest.raises(RuntimeError):
        evaluate(Evaluation.of("alpha_landscape", alphas=(0.7, 1.3), tokens=96), model, run, CORPUS)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())
    alphas = evaluate(Evaluation.of("alphas"), model, run).metrics
    assert [(m.measure, m.layer, m.value) for m in alphas] == [("alpha", 0, 1.0), ("alpha", 1, 1.0)]


def test_when_pairs_are_counted_then_memory_follows_the_formula():
    run = run_of(pattern="local", window=3)
    result = evaluate(Evaluation.of("attention_memory", lengths=(10, 20)), uniform(), run, None)
    pairs = sum(min(i, 3) + 1 for i in range(20))
    assert only(result, "attention_bytes", length=20) == pairs * 2 * 2 * 4
    assert only(result, "dense_attention_bytes", length=20) == 210 * 2 * 2 * 4
    assert only(result, "attention_memory_ratio", length=20) == pytest.approx(210 / pairs)
    half = evaluate(Evaluation.of("attention_memory"), uniform(), run_of(length=10, precision="bf16"), None)
    assert only(half, "attention_bytes", length=10) == 55 * 2 * 2 * 2 and only(half, "attention_memory_ratio") == 1


class Linear(nn.Module):
    """The state at i is the sum of decay^(i - j) times the embedding of j: its derivative is known."""

    def __init__(self, decay, length, vocab=V, d=6):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding.from_pretrained(torch.randn(vocab, d, generator=draws))
        self.blocks = nn.ModuleList([nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)])
        distance = torch.arange(length)[:, None] - torch.arange(length)
        self.register_buffer("mix", torch.where(distance >= 0, decay ** distance.clamp(min=0).double(), 0.0).float())

    def states(self, x, **how):
        return self.mix @ x

    def loss(self, tokens, targets):
        x = self.embedding(tokens)
        return (self.blocks[0](x).sum() * 3 + self.blocks[1](x).square().sum() / 2) / tokens.numel()


def test_when_influence_is_known_then_its_share_by_distance_is_exact_and_gradients_are_by_layer():
    decay, T, far = 0.9, 64, 20
    model = Linear(decay, T)
    result = evaluate(Evaluation.of("gradient_flow", far=far, windows=3, queries=5), model, run_of(length=T), CORPUS)
    positions = [20, 31, 42, 52, 63]                      # evenly spaced from far to T - 1

    def mean_share(distances):
        return np.mean([sum(decay ** d for d in distances if d <= i) / sum(decay ** d for d in range(i + 1))
                        for i in positions])
    assert only(result, "far_influence_share", position=far) == pytest.approx(mean_share(range(far, T)), rel=1e-5)
    assert only(result, "influence_share", position=4) == pytest.approx(mean_share((4, 5, 6, 7)), rel=1e-5)
    assert sum(values(result, "influence_share")) == pytest.approx(1)
    assert [m.position for m in result.metrics if m.measure == "influence_share"] == [0, 1, 2, 4, 8, 16, 32]
    influence = result.arrays["influence"]
    assert influence.shape == (3, 5, 7)
    # Influence itself is decay^d times the norm of the row of the table that the model says.
    math_text, stories = (torch.from_numpy(CORPUS.tokens("heldout", name)[:2 * T].astype(int)).view(2, T)
                          for name in CORPUS.domains)
    x = model.embedding(torch.stack([math_text[0], stories[0], math_text[1]]))          # three windows of two domains
    row = model.embedding.weight[(model.states(x[0])[63] @ model.embedding.weight.T).argmax()]
    assert influence[0, 4, :2] == pytest.approx([float(row.norm()), decay * float(row.norm())], rel=1e-5)
    # Gradients of the loss, by layer.
    first = (3 * x.sum(dim=(0, 1)) / (3 * T)).norm() * 6 ** 0.5                # the same row for each of six outputs
    assert only(result, "gradient_norm", layer=0) == pytest.approx(float(first), rel=1e-5)
    second = torch.einsum("btd,bte->de", model.blocks[1](x), x) / (3 * T)
    assert only(result, "gradient_norm", layer=1) == pytest.approx(second.norm().item(), rel=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_when_layers_have_a_window_then_no_influence_comes_from_further_than_they_reach():
    model, run = real(pattern="local", window=4)
    result = evaluate(Evaluation.of("gradient_flow", far=9, windows=2), model, run, CORPUS)
    assert only(result, "far_influence_share", position=9) == 0, "two layers of window 4 reach 8 tokens back"
    near = evaluate(Evaluation.of("gradient_flow", far=8, windows=2), model, run, CORPUS)
    assert only(near, "far_influence_share", position=8) > 0
    assert len(values(near, "gradient_norm")) == 2 and min(values(near, "gradient_norm")) > 0
    trained = run_of(length=64, data=DataConfig.of("copying", string=8), vocab=34)
    task_flow = evaluate(Evaluation.of("gradient_flow", far=32), Linear(0.9, 64, vocab=34), trained)
    assert 0 < only(task_flow, "far_influence_share") < 1, "a model of a task: on its sequences"


def ask(name, model, length=256, count=30, corpus=CORPUS, run=None):
    return evaluate(Evaluation.of("battery", tasks=(name,), count=count), model, run or run_of(length=length), corpus)


def items_of(name, count=60, limit=256):
    return build("battery", tasks=(name,), count=count).items(name, CORPUS, limit)


def ids(text):
    return CORPUS.tokenizer().encode(text).ids


# The battery

def test_when_prompts_are_read_then_they_give_the_answer_and_those_of_lego_are_balanced():
    for item in items_of("variable_tracking"):
        *lines, question = item.prompt.split("\n")
        held, source = {}, dict(line.split(" = ") for line in lines)
        exec("\n".join(lines), {}, held)                    # the statements come in an order that Python can run
        name, hops = question.removesuffix(" ="), -1
        assert f" {held[name]}" == item.candidates[item.answer]
        assert len(set(item.candidates)) == 3 and item.chance == 1 / 3
        while name in source:
            name, hops = source[name], hops + 1
        assert item.split == f"hops={hops}" and len(lines) == 3 * (hops + 1)
    for item in items_of("mqar"):
        *lines, question = item.prompt.split("\n")
        pairs = dict(line.split(": ") for line in lines)
        assert f" {pairs[question.removesuffix(':')]}" == item.candidates[item.answer]
        assert len(set(item.candidates)) == 8 and item.chance == 1 / 8
    items = items_of("lego")
    for item in items:
        *lines, question = item.prompt.split("\n")
        clauses, value, name = dict(line.split(" = ") for line in lines), True, question.removesuffix(" =")
        assert len(clauses) == int(item.split.removeprefix("steps="))
        while name != "True":
            value, name = value != clauses[name].startswith("not "), clauses[name].removeprefix("not ")
        assert item.candidates[item.answer] == f" {value}"
    assert {split: np.mean([item.answer for item in items if item.split == split])
            for split in {item.split for item in items}} == {"steps=2": 0.5, "steps=3": 0.5, "steps=4": 0.5}
    assert 0.3 < np.mean(["= not True" in item.prompt for item in items]) < 0.7


def test_when_a_last_word_is_asked_then_it_stands_in_the_passage_before_its_sentence():
    found = list(passages.passages(CORPUS, "stories", 40))          # documents, cut where they are too long
    assert len(found) > 100 and all(any(text in whole for whole in TEXTS) for text in found)
    assert all(5 < len(ids(text)) <= 41 for text in found)
    assert list(passages.passages(CORPUS, "stories", 1000)) == [], "a quarter of the context at least"
    items = items_of("lambada", limit=128)
    assert len(items) == 60
    for item in items:
        before, _, sentence = item.prompt.rpartition(".")
        assert sentence and item.candidates[0].strip() in passages.WORD.findall(before)
        assert any(item.prompt + item.candidates[0] + "." in text for text in TEXTS)
        assert item.chance == pytest.approx(1 / len(set(passages.WORD.findall(item.prompt.lower()))))
    assert {item.candidates for item in items} == {(" river",)}, "the last one that can be asked"


def test_when_a_passage_lacks_what_is_asked_then_there_is_no_item():
    assert passages.last_word("Anna saw the river. Bruno saw the river.").prompt == "Anna saw the river. Bruno saw the"
    assert passages.last_word("Anna saw the river. Bruno saw the bridge.") is None
    assert passages.last_word("Anna saw it all. On that river Bruno saw the river.") is None, "it stands only there"
    draws = np.random.default_rng(0)
    item = passages.blank_out("It cost 12 coins, then 15, then 15 and 17.", draws, "")
    assert set(item.candidates) == {" 12", " 15"} and item.candidates[item.answer] == " 15"
    assert passages.blank_out("It cost 12 coins, then 15, then 16 and 17.", draws, "") is None
    assert passages.blank_out("It cost 15 coins, then all of 15.", draws, "") is None, "there is nothing to choose from"


def test_when_a_cloze_is_asked_then_candidates_are_of_one_kind_and_stood_before_in_the_domains_that_have_some():
    items = items_of("cloze", limit=128)
    assert {item.split for item in items} == {"math", "stories"} and len(items) == 60
    for item in items:
        assert all(c.strip() in re.findall(r"[A-Za-z]+|[0-9]+", item.prompt) for c in item.candidates)
        assert len({c.strip().isdigit() for c in item.candidates}) == 1
        assert 2 <= len(item.candidates) == len(set(item.candidates)) and item.chance == 1 / len(item.candidates)
        assert any(item.prompt + item.candidates[item.answer] in text for text in TEXTS)
    assert len({item.answer for item in items}) > 1, "the answer's place is drawn"
    corpus = FakeCorpus()
    corpus._tokens |= {"blank": np.zeros(300, int), "own": corpus.tokens("heldout", "stories")}
    corpus._starts |= {"blank": np.array([0]), "own": corpus.documents("heldout", "stories")}
    for domains, asked in ((("blank", "math", "own"), "math"), (("blank", "own"), "own")):
        corpus.domains = domains               # of the offline corpus, those that have facts; else all
        assert [item.split for item in passages.cloze(corpus, 9, 128)] == [asked] * 9
    corpus.domains = ("blank",)
    with pytest.raises(SuiteError, match="battery task cloze: no held-out document"):
        ask("cloze", uniform(), length=128, corpus=corpus)


def test_when_minimal_pairs_are_made_then_they_differ_in_one_word_and_both_numbers_are_right_alike():
    items, by_template = items_of("blimp", count=300), defaultdict(list)
    assert len({item.candidates for item in items}) == 300
    for item in items:
        good, bad = (sentence.rstrip(".").split() for sentence in item.candidates)
        assert sum(a != b for a, b in zip(good, bad, strict=True)) == 1
        by_template[item.split].append(good)
    agreement = [(good[1].endswith("s"), good[-1].endswith("s")) for good in by_template["subject_verb_agreement"]]
    assert agreement.count((True, False)) == agreement.count((False, True)) == 50
    assert np.mean([good[3] in ("this", "that") for good in by_template["determiner_noun_agreement"]]) == 0.5


def test_when_a_prompt_is_too_long_then_its_beginning_is_cut_unless_it_is_needed():
    prompt, say = ids(TEXTS[0]), ids(" Bruno")
    item = Item(TEXTS[0], (" Bruno",), 0, 0.5, "")
    (request,) = requests(CORPUS.tokenizer(), item, 0, 12)
    assert request.read == (*prompt[-(13 - len(say)):], *say[:-1]) and request.say == tuple(say)
    assert len(request.read) == 12
    with pytest.raises(SuiteError, match="was trained on 12"):
        requests(CORPUS.tokenizer(), replace(item, whole=True), 0, 12)
    assert requests(CORPUS.tokenizer(), replace(item, prompt=""), 7, 12)[0].read == (7, *say[:-1])


@pytest.mark.parametrize("task_name", ["variable_tracking", "lego", "mqar"])
def test_when_a_model_is_uniform_then_ties_share_the_credit_and_accuracy_is_chance(task_name):
    # Digits are one piece each; True and False must be as well, or the shorter answer would win.
    tokenizer, corpus = bpe.train([" True False " + " ".join(" 0123456789")] * 50, V), FakeCorpus()
    corpus.tokenizer = lambda: tokenizer
    result = ask(task_name, uniform(), corpus=corpus)
    assert only(result, "accuracy", split=task_name) == pytest.approx(only(result, "chance", split=task_name))
    assert only(result, "count", split=task_name) == 30


@pytest.mark.parametrize(("name", "length"), [("cloze", 60), ("variable_tracking", 120)])    # of one and two paddings
def test_when_a_model_answers_then_likelihoods_are_those_of_its_logits_without_padding(name, length):
    (model, run), items = real(length=length), items_of(name, count=30, limit=length)
    result, credit, nll = ask(name, model, run=run), [], []
    for item in items:
        by_hand = []
        for say in map(ids, item.candidates):
            tokens = torch.tensor([*ids(item.prompt), *say])[-length - 1:]     # the last candidate token is not read
            with torch.no_grad():
                log_p = model(tokens[None, :-1])[0].double().log_softmax(-1)
            by_hand.append(float(log_p[range(-len(say), 0), say].sum()))
        credit.append(by_hand[item.answer] == max(by_hand))
        nll.append(-by_hand[item.answer])
    assert only(result, "accuracy", split=name) == np.mean(credit)
    assert result.arrays[f"target_nll.{name}"] == pytest.approx(nll, rel=1e-5)
    assert only(result, "target_nll", split=name) == pytest.approx(np.mean(nll), rel=1e-5)
    assert result.arrays[f"correct.{name}"].tolist() == credit
    assert {m.split for m in result.metrics} == {name, *(f"{name}/{item.split}" for item in items)}


def test_when_a_model_says_the_last_word_then_it_is_right():
    river = ids(" river")

    def knowing(tokens):
        logits = 9 * F.one_hot(torch.full_like(tokens, river[0]), V).float()
        for a, b in zip(river, river[1:]):
            logits[tokens == a] = 9 * F.one_hot(torch.tensor(b), V).float()
        return logits
    for model, accuracy in ((Fake(knowing), 1), (uniform(), 0)):
        result = ask("lambada", model, length=100)
        assert only(result, "accuracy", split="lambada-offline") == accuracy
        assert only(result, "count", split="lambada-offline") == 30
        assert max(call["shape"][1] for call in model.calls) == 100, "no longer than it was trained on"


def test_when_the_corpus_has_folders_of_items_then_these_are_asked_and_whole_sentences_count(tmp_path):
    model, log_p = bigram(seed=3)
    pairs = [("The boy runs.", "The boy run."), ("Bruno had coins.", "Clara had coins."),
             ("It is left out.", "It are left out."), ("Anna met Bruno.", "Bruno met Anna.")]
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, "field": "x"}) + "\n" for good, bad in pairs]
    corpus = FakeCorpus()
    for task, file, text in (("blimp", "first", "".join(lines[:3])), ("blimp", "second", lines[3]),
                             ("lambada", "test", '{"text": "Anna went to the old river to see Clara"}\n')):
        corpus.folders[task] = tmp_path / task
        corpus.folders[task].mkdir(exist_ok=True)
        (corpus.folders[task] / f"{file}.jsonl").write_text(text, "utf-8")
    result = ask("blimp", model, corpus=corpus, count=2)

    def likelihood(tokens):
        return sum(float(log_p[a, b]) for a, b in zip([0, *tokens], tokens))
    right = [likelihood(ids(good)) > likelihood(ids(bad)) for good, bad in pairs]
    assert only(result, "accuracy", split="blimp") == pytest.approx(np.mean([*right[:2], right[3]]))
    assert only(result, "accuracy", split="blimp/second") == right[3]
    assert only(result, "count", split="blimp/first") == 2
    assert only(result, "chance", split="blimp") == 0.5 and not values(result, "target_nll")
    result = ask("lambada", uniform(), corpus=corpus)
    assert only(result, "count", split="lambada") == 1
    assert only(result, "chance", split="lambada") == pytest.approx(1 / 7)


def test_when_loss_falls_along_the_context_then_the_score_is_negative():
    def sharper(tokens):
        at = torch.arange(tokens.shape[1], dtype=torch.float32)[None, :, None]
        return torch.log1p(at / 100) * F.one_hot(tokens, V)            # likelier to say the same token again
    flat, result = (ask("in_context", model, length=160, count=10) for model in (uniform(), Fake(sharper)))
    assert only(flat, "in_context_score", split="in_context") == pytest.approx(0, abs=1e-6)
    tokens = np.stack([CORPUS.tokens("heldout", domain)[:801].astype(int) for domain in CORPUS.domains])
    same, t = (tokens[:, :-1] == tokens[:, 1:]).reshape(10, 160), np.arange(160) / 100
    losses = np.log(V + t) - same * np.log1p(t)
    early, late = losses[:, 10:20].mean(), losses[:, 140:].mean()
    assert only(result, "nll_early", split="in_context") == pytest.approx(early, rel=1e-5)
    assert only(result, "in_context_score", split="in_context") == pytest.approx(late - early, rel=1e-3)
    assert result.arrays["in_context"].shape == (10,) and only(result, "count", split="in_context/math") == 5


@pytest.mark.parametrize(("name", "parameters", "says"), [
    ("perplexty", {}, "did you mean 'perplexity'"), ("perplexity", {}, "needs a value for tokens"),
    ("perplexity", {"tokens": 100, "length": (3,)}, "did you mean 'lengths'"),
    ("perplexity", {"tokens": 100, "lengths": (200,)}, "tokens = 100"),
    ("perplexity", {"tokens": 100, "rope": "yarm"}, "did you mean 'yarn'"),
    ("task", {"count": 0}, "count = 0"), ("gradient_flow", {"queries": 0}, "queries = 0"),
    ("battery", {"tasks": ("legos",)}, r"tasks = \('legos',\) .*'lego'"), ("battery", {"tasks": ()}, r"tasks = \(\)"),
    ("alpha_landscape", {"alphas": (0.5, 1.0)}, "alphas = .*greater than 0.5"),
    *(("recurrence", {"tokens": 100, "edges": edges}, "edges") for edges in ((1, 4), (0, 4, 4), ()))])
def test_when_a_parameter_is_wrong_then_the_error_names_it(name, parameters, says):
    with pytest.raises(SuiteError, match=says):
        build(name, **parameters)


@pytest.mark.parametrize(("evaluation", "run", "corpus", "says"), [
    (perplexity(), run_of(), None, "needs a corpus"),
    (perplexity(), run_of(vocab=V + 1), CORPUS, f"model.vocab = {V + 1} .*fake has {V}"),
    (perplexity(), run_of(data=DataConfig.of("lego")), CORPUS, "data.source = 'lego' .*models of text"),
    (perplexity(pattern=("locl", ())), run_of(), CORPUS, "did you mean 'local'"),
    (Evaluation.of("task"), run_of(), CORPUS, "unknown task 'text'"),
    (Evaluation.of("gradient_flow", far=100), run_of(), CORPUS, "far = 100 .*below the training length 100"),
    (Evaluation.of("battery", tasks=("variable_tracking",), count=3), run_of(length=40), CORPUS, "was trained on 40"),
    *((Evaluation.of(name), run_of(pattern="local"), CORPUS, f"{name} needs a pattern that learns alpha; 'local' has")
      for name in ("alphas", "alpha_landscape"))])
def test_when_an_evaluation_does_not_fit_the_run_then_the_error_says_why(evaluation, run, corpus, says):
    with pytest.raises(SuiteError, match=says):
        evaluate(evaluation, uniform(), run, corpus)
