"""The battery: auxiliary tasks asked of a language model without training, each beside its chance level.

Source: the Fibonacci paper's battery, arxiv.org/abs/2606.28560, Section 4.6; what differs is said where an item is
made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from data_prep.tokenizer import end_of
from lib.config import RunConfig
from lib.data import Corpus, domains_of
from lib.errors import SuiteError
from lib.model import Transformer
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric
from suite.evals.scoring import chunks, heldout_losses, logits_at, need
from suite.evals.zero_shot import Item, called, made, passages

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TASKS = ("variable_tracking", "lego", "mqar", "lambada", "cloze", "blimp", "in_context")
OF_FOLDER = {"blimp": passages.blimp, "lambada": passages.lambada, "cloze": passages.facts}
OF_CORPUS = {"lambada": passages.last_words, "cloze": passages.cloze}
MADE = {"variable_tracking": made.variable_tracking, "lego": made.lego, "mqar": made.mqar, "blimp": made.minimal_pairs}
ROUND = 64          # sequences are padded on the right to a multiple of it: causal models do not see the padding


@dataclass(frozen=True, kw_only=True)
class Battery(Evaluator):
    """`count` items of each task (fewer where the held-out documents have fewer; of each subset of BLiMP).

    variable_tracking, lego, mqar: text prompts, the answer is among the values of the prompt. lambada: the last word of
    held-out stories or of LAMBADA, right when greedy decoding says it. cloze: a name or number that a held-out passage
    has given before, among others of its kind; with a corpus of the hub the object of a fact (`factual_cloze`), right
    when greedy decoding says it. blimp: minimal pairs, of BLiMP or made from templates. in_context: loss late in the
    context minus loss early (negative: context helps).

    Measures, split = task and `task/subgroup`: `accuracy`, `chance`, `count` and, except for minimal pairs,
    `target_nll` (nats per answer). Without a corpus of the hub the splits are `lambada-offline` and `blimp-offline`. Of
    in_context: `in_context_score`, `nll_early`, `nll_late` and `count` (windows). Arrays: `correct.<task>` and
    `target_nll.<task>` by item; `in_context` by window.
    """
    name = "battery"

    tasks: Annotated[tuple[Literal[TASKS], ...], Field(min_length=1)] = TASKS
    count: Positive = 200

    def measure(self, model, run, corpus, device):
        corpus, metrics, arrays = need(corpus, run), [], {}
        for task in self.tasks:
            measure = self.in_context if task == "in_context" else self.asked
            result = measure(task, model, run, corpus, device)
            metrics += result.metrics
            arrays |= result.arrays
        return EvalResult(metrics, arrays)

    def items(self, task: str, corpus: Corpus, limit: int) -> list[Item]:
        """The items of a task for a model of `limit` tokens."""
        folder = corpus.evaluation(task)
        if folder is not None:
            return OF_FOLDER[task](folder, self.count)
        return MADE[task](self.count) if task in MADE else OF_CORPUS[task](corpus, self.count, limit)

    def asked(self, task, model, run, corpus, device):
        name, limit, tokenizer = called(task, corpus), run.train.length, corpus.tokenizer()
        end = end_of(tokenizer)             # the token before a sentence without a context: it ends every document
        items = self.items(task, corpus, limit)
        if not items:
            raise SuiteError(f"battery task {task}: no held-out document of {corpus.path} has an item; leave it out")
        asked = [request for item in items for request in requests(tokenizer, item, end, limit)]
        correct, nll = grade(items, *answer(model, run, asked, device))
        chance = np.array([item.chance for item in items])
        groups = np.array([item.split for item in items])
        rows = {name: np.ones(len(items), bool),
                **{f"{name}/{group}": groups == group for group in sorted(set(groups)) if group}}
        metrics = []
        for split, chosen in rows.items():
            measured = {"accuracy": correct[chosen].mean(), "chance": chance[chosen].mean(), "count": chosen.sum()}
            if task != "blimp":             # a sentence's likelihood alone says nothing about grammar
                measured["target_nll"] = nll[chosen].mean()
            metrics += [Metric(measure, float(value), split) for measure, value in measured.items()]
        return EvalResult(metrics, {f"correct.{name}": correct, f"target_nll.{name}": nll})

    def in_context(self, task, model, run, corpus, device):
        """In-context learning score of arxiv.org/abs/2209.11895 (Olsson et al.): there token 500 minus token 50.

        Here the last eighth of the training length minus its second sixteenth, for `count` windows over all domains.
        """
        T = run.train.length
        each = max(1, self.count // len(domains_of(run.data, corpus)))
        losses = {f"{task}/{domain}": np.stack([nll[:, T // 16:T // 8].mean(axis=1), nll[:, T - T // 8:].mean(axis=1)])
                  for domain, *_, nll in heldout_losses(model, run, corpus, device, T, each * T)}
        metrics = []
        for split, (early, late) in {task: np.concatenate(list(losses.values()), axis=1), **losses}.items():
            measured = {"in_context_score": (late - early).mean(), "nll_early": early.mean(), "nll_late": late.mean(),
                        "count": len(early)}
            metrics += [Metric(measure, float(value), split) for measure, value in measured.items()]
        return EvalResult(metrics, {task: np.concatenate([late - early for early, late in losses.values()])})


class Request(NamedTuple):
    """Tokens to read, and the tokens that the last of them are to predict."""
    read: tuple[int, ...]
    say: tuple[int, ...]


def requests(tokenizer: "Tokenizer", item: Item, start: int, limit: int) -> list[Request]:
    """One request a candidate, of at most `limit` tokens; an empty prompt is the token `start`."""
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids
    before, made = encode(item.prompt), []
    prompt = before or [start]
    for candidate in item.candidates:
        whole = encode(item.prompt + candidate)         # a tokeniser may treat a space differently where a text begins
        say = whole[len(before):] if before and whole[:len(before)] == before else encode(candidate)
        room = limit - len(say) + 1
        if room < 1 or (item.whole and len(prompt) > room):
            raise SuiteError(f"a battery item needs {len(prompt) + len(say) - 1} tokens, the model was trained on "
                             f"{limit}: {item.prompt[:60]!r}...; leave that task out, or train on longer windows")
        made.append(Request((*prompt[-room:], *say[:-1]), tuple(say)))
    return made


def answer(model: Transformer, run: RunConfig, asked: Sequence[Request],
           device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Negative log-likelihood (nats) of every continuation, and whether greedy decoding would say it: `[len(asked)]`.

    Requests that read the same tokens (candidates of one token each) share one sequence.
    """
    by_read: dict[tuple[int, ...], list[int]] = {}
    for index, request in enumerate(asked):
        by_read.setdefault(request.read, []).append(index)

    def padded(read: tuple[int, ...]) -> int:
        return min(-(-len(read) // ROUND) * ROUND, run.train.length)
    nll, greedy = np.zeros(len(asked)), np.zeros(len(asked), bool)
    for length, group in groupby(sorted(by_read, key=padded), padded):
        reads = list(group)
        for part in chunks(len(reads), length, device):
            tokens = torch.zeros(len(reads[part]), length, dtype=torch.long)
            at = torch.zeros(tokens.shape, dtype=torch.bool)        # the last tokens read: after each a token is said
            for row, read in enumerate(reads[part]):
                tokens[row, :len(read)] = torch.tensor(read)
                at[row, len(read) - max(len(asked[index].say) for index in by_read[read]):len(read)] = True
            log_p = logits_at(model, run, tokens.to(device), at.to(device)).log_softmax(-1)
            for read, spoken in zip(reads[part], log_p.split(at.sum(dim=1).tolist()), strict=True):
                for index in by_read[read]:
                    say = torch.tensor(asked[index].say, device=device)
                    nll[index] = -float(spoken[-len(say):].gather(1, say[:, None]).double().sum())
                    greedy[index] = bool((spoken[-len(say):].argmax(-1) == say).all())
    return nll, greedy


def grade(items: Sequence[Item], nll: np.ndarray, greedy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Credit of each item (0 to 1) and negative log-likelihood of its right answer; ties share the credit."""
    credit, target = np.zeros(len(items)), np.zeros(len(items))
    ends = np.cumsum([len(item.candidates) for item in items])[:-1]
    for index, (item, losses, said) in enumerate(zip(items, np.split(nll, ends), np.split(greedy, ends), strict=True)):
        target[index], best = losses[item.answer], losses == losses.min()
        credit[index] = said[0] if len(losses) == 1 else best[item.answer] / best.sum()
    return credit, target
