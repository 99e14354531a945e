"""The battery: auxiliary tasks asked of a language model without training, each beside its chance level.

Source: the Fibonacci paper's battery, arxiv.org/abs/2606.28560, Section 4.6; what differs is said where an item is
made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from data_prep.tokenizer import end_of
from lib.config import RunConfig
from lib.data import Corpus, domains_of
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric
from suite.evals.scoring import heldout_losses, need, running
from suite.evals.zero_shot import Item, called, minimal_pairs, passages, prompts
from suite.evals.zero_shot.answers import answer, grade, requests

if TYPE_CHECKING:
    import torch

    from lib.model import Transformer

TASKS = ("variable_tracking", "lego", "mqar", "lambada", "cloze", "blimp", "in_context")
OF_FOLDER = {"blimp": minimal_pairs.from_folder, "lambada": passages.lambada, "cloze": passages.facts}
OF_CORPUS = {"lambada": passages.last_words, "cloze": passages.cloze}
MADE = {"variable_tracking": prompts.variable_tracking, "lego": prompts.lego, "mqar": prompts.mqar,
        "blimp": minimal_pairs.offline}


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

    def asked(self, task: str, model: Transformer, run: RunConfig, corpus: Corpus, device: torch.device) -> EvalResult:
        name, limit, tokenizer = called(task, corpus), run.train.length, corpus.tokenizer()
        end = end_of(tokenizer)             # the token before a sentence without a context: it ends every document
        items = self.items(task, corpus, limit)
        asked = [request for item in items for request in requests(tokenizer, item, end, limit)]
        with running(run, device):
            correct, nll = grade(items, *answer(model, asked, limit, device))
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

    def in_context(self, task: str, model: Transformer, run: RunConfig, corpus: Corpus,
                   device: torch.device) -> EvalResult:
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
