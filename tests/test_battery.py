"""The battery: items whose answers a person can work out, and models whose likelihoods are known."""

import json
import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from eval_fakes import CORPUS, TEXTS, Fake, FakeCorpus, V, bigram, only, real, run_of, uniform, values
from torch.nn import functional as F

from data_prep import tokenizer as bpe
from lib.config import Evaluation
from lib.errors import SuiteError
from suite.evals import build, evaluate
from suite.evals.zero_shot import Item, passages
from suite.evals.battery import requests


def ask(task_name, model, length=256, count=30, corpus=CORPUS, run=None):
    evaluation = Evaluation.of("battery", tasks=(task_name,), count=count)
    return evaluate(evaluation, model, run or run_of(length=length), corpus)


def items_of(task_name, count=60, limit=256):
    return build("battery", tasks=(task_name,), count=count).items(task_name, CORPUS, limit)


def likelihood(log_p, tokens):
    return sum(float(log_p[a, b]) for a, b in zip(tokens, tokens[1:]))


def ids(text):
    return CORPUS.tokenizer().encode(text).ids


# Items

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


def test_when_a_cloze_is_asked_then_candidates_are_of_one_kind_and_stood_before():
    items = items_of("cloze", limit=128)
    assert {item.split for item in items} == {"math", "stories"} and len(items) == 60
    for item in items:
        assert all(c.strip() in re.findall(r"[A-Za-z]+|[0-9]+", item.prompt) for c in item.candidates)
        assert len({c.strip().isdigit() for c in item.candidates}) == 1
        assert 2 <= len(item.candidates) == len(set(item.candidates)) and item.chance == 1 / len(item.candidates)
        assert any(item.prompt + item.candidates[item.answer] in text for text in TEXTS)
    assert len({item.answer for item in items}) > 1, "the answer's place is drawn"


def test_when_one_domain_has_nothing_to_ask_then_the_others_share_the_cloze():
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


# Answers

@pytest.mark.parametrize("task_name", ["variable_tracking", "lego", "mqar"])
def test_when_a_model_is_uniform_then_ties_share_the_credit_and_accuracy_is_chance(task_name):
    # Digits are one piece each; True and False must be as well, or the shorter answer would win.
    tokenizer, corpus = bpe.train([" True False " + " ".join(" 0123456789")] * 50, V), FakeCorpus()
    corpus.tokenizer = lambda: tokenizer
    result = ask(task_name, uniform(), corpus=corpus)
    assert only(result, "accuracy", split=task_name) == pytest.approx(only(result, "chance", split=task_name))
    assert only(result, "count", split=task_name) == 30


def test_when_a_bigram_model_answers_then_likelihoods_are_those_by_hand():
    model, log_p = bigram(seed=2)
    result, credit, nll = ask("cloze", model, length=60), [], []
    for item in items_of("cloze", count=30, limit=60):
        by_hand = [likelihood(log_p, [*ids(item.prompt)[-1:], *ids(candidate)]) for candidate in item.candidates]
        credit.append(by_hand[item.answer] == max(by_hand))
        nll.append(-by_hand[item.answer])
    assert only(result, "accuracy", split="cloze") == np.mean(credit)
    assert only(result, "target_nll", split="cloze") == pytest.approx(np.mean(nll), rel=1e-5)
    assert result.arrays["correct.cloze"].tolist() == credit
    assert {m.split for m in result.metrics} == {"cloze", "cloze/math", "cloze/stories"}
    assert max(call["shape"][1] for call in model.calls) <= 60


def test_when_a_model_says_the_last_word_then_it_is_right():
    river = ids(" river")

    def knowing(tokens):
        logits = 9 * F.one_hot(torch.full_like(tokens, river[0]), V).float()
        for a, b in zip(river, river[1:]):
            logits[tokens == a] = 9 * F.one_hot(torch.tensor(b), V).float()
        return logits
    for model, accuracy in ((Fake(knowing), 1), (uniform(), 0)):
        result = ask("lambada", model, length=128)
        assert only(result, "accuracy", split="lambada-offline") == accuracy
        assert only(result, "count", split="lambada-offline") == 30


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
    right = [likelihood(log_p, [0, *ids(good)]) > likelihood(log_p, [0, *ids(bad)]) for good, bad in pairs]
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


def test_when_items_are_padded_then_their_likelihood_is_that_without_padding():
    model, run = real(length=200)
    result, by_hand = ask("variable_tracking", model, count=9, run=run), []
    for item in items_of("variable_tracking", count=9):
        prompt, say = ids(item.prompt), ids(item.candidates[item.answer])
        with torch.no_grad():
            log_p = model(torch.tensor([prompt + say]))[0].double().log_softmax(-1)
        by_hand.append(-float(log_p[range(len(prompt) - 1, len(prompt) + len(say) - 1), say].sum()))
    assert result.arrays["target_nll.variable_tracking"] == pytest.approx(by_hand, rel=1e-5)
