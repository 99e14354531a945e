"""The battery: auxiliary tasks asked of a language model without training, each beside its chance level.

Source: the Fibonacci paper's battery, arxiv.org/abs/2606.28560, Section 4.6; what differs is said where an item is
made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from data_prep.tokenizer import end_of
from lib.config import RunConfig
from lib.data import Corpus, domains_of, heldout_windows
from lib.errors import one_of, require
from lib.registry import Positive
from suite.evals.base import EvalResult, Evaluator, Metric
from suite.evals.scoring import need, running, token_nll
from suite.evals.zero_shot import minimal_pairs, passages, prompts
from suite.evals.zero_shot.items import Item, answer, grade, requests
from suite.evals.zero_shot.names import called

if TYPE_CHECKING:
    import torch

    from lib.model import Transformer

TASKS = ("variable_tracking", "lego", "mqar", "lambada", "cloze", "blimp", "in_context")
OF_FOLDER = {"blimp": minimal_pairs.from_folder, "lambada": passages.lambada, "cloze": passages.facts}
SYNTHETIC = {"variable_tracking": prompts.variable_tracking, "lego": prompts.lego, "mqar": prompts.mqar}


@dataclass(frozen=True, kw_only=True)
class Battery(Evaluator):
    """`count` items of each task (fewer where the held-out documents have fewer; of each subset of a BLiMP folder).

    variable_tracking, lego, mqar   text prompts, answer among the values of the prompt lambada       last word of
    held-out stories or of LAMBADA's files, right when greedy decoding says it cloze         name or number that a
    held-out passage has given before, among others of its kind; with a corpus of the
                  hub the object of a fact (`factual_cloze`), right when greedy decoding says it
    blimp         minimal pairs, of BLiMP or made from templates
    in_context    loss late in the context minus loss early (negative: context helps)

    Measures, split = task and `task/subgroup`: `accuracy`, `chance`, `count` and, except for minimal pairs,
    `target_nll` (nats per answer). The texts are those of a folder, or of a corpus of the hub; without either the
    splits are `lambada-offline` and `blimp-offline`. Of in_context: `in_context_score`, `nll_early`, `nll_late` and
    `count` (windows). Arrays: `correct.<task>` and `target_nll.<task>` by item; `in_context` by window.
    """
    name = "battery"

    tasks: tuple[str, ...] = TASKS
    count: Positive = 200
    seed: Annotated[int, Field(ge=0, lt=2 ** 32)] = 0
    blimp_folder: str = ""          # subsets as .jsonl with sentence_good and sentence_bad
    lambada_folder: str = ""        # .jsonl with text

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.tasks) >= 1, "tasks", self.tasks, f"one or more of {', '.join(TASKS)}")
        for task in self.tasks:
            one_of(task, TASKS, "battery task")
        for name in ("blimp_folder", "lambada_folder"):
            folder = getattr(self, name)
            require(not folder or Path(folder).is_dir(), name, folder, "an existing folder, or empty")

    def measure(self, model, run, corpus, device):
        corpus = need(corpus, self.name, run)
        metrics, arrays = [], {}
        for task in self.tasks:
            with running(run, device):
                if task == "in_context":
                    result = self.in_context(model, run, corpus, device)
                else:
                    result = self.asked(task, model, run, corpus, device)
            metrics += result.metrics
            arrays |= result.arrays
        return EvalResult(metrics, arrays)

    def items(self, task: str, corpus: Corpus, limit: int) -> tuple[str, list[Item]]:
        """The name of the task in tables, and its items for a model of `limit` tokens."""
        if task in SYNTHETIC:
            return task, SYNTHETIC[task](self.count, self.seed)
        name, given = called(task, corpus), {"blimp": self.blimp_folder, "lambada": self.lambada_folder}.get(task, "")
        folder = Path(given) if given else corpus.evaluation(task)
        if folder is not None:
            return task if given else name, OF_FOLDER[task](folder, self.count)
        if task == "blimp":
            return name, minimal_pairs.offline(self.count, self.seed)
        tokenizer = corpus.tokenizer()
        if task == "lambada":
            return name, passages.last_words(corpus, tokenizer, self.count, limit)
        return name, passages.cloze(corpus, tokenizer, self.count, limit, self.seed)

    def asked(self, task: str, model: Transformer, run: RunConfig, corpus: Corpus, device: torch.device) -> EvalResult:
        limit, tokenizer = run.train.length, corpus.tokenizer()
        end = end_of(tokenizer)             # the token before a sentence without a context: it ends every document
        name, items = self.items(task, corpus, limit)
        asked = [request for item in items for request in requests(tokenizer, item, end, limit)]
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

    def in_context(self, model: Transformer, run: RunConfig, corpus: Corpus, device: torch.device) -> EvalResult:
        """In-context learning score of arxiv.org/abs/2209.11895 (Olsson et al.): there token 500 minus token 50.

        Here the last eighth of the training length minus its second sixteenth, for `count` windows over all domains.
        """
        T = run.train.length
        require(T >= 16, "train.length", T, "at least 16 tokens for the battery task in_context")
        domains = domains_of(run.data, corpus)
        each = max(1, self.count // len(domains))
        metrics, gaps, losses = [], [], []
        for domain in domains:
            nll = token_nll(model, *heldout_windows(corpus, domain, T, each * T), device)            # (N, T)
            early, late = nll[:, T // 16:T // 8].mean(axis=1), nll[:, T - T // 8:].mean(axis=1)
            gaps.append(late - early)
            losses.append((early, late))
            metrics += self.score(f"in_context/{domain}", early, late)
        early, late = (np.concatenate(kind) for kind in zip(*losses, strict=True))
        return EvalResult(self.score("in_context", early, late) + metrics, {"in_context": np.concatenate(gaps)})

    @staticmethod
    def score(split: str, early: np.ndarray, late: np.ndarray) -> list[Metric]:
        measured = {"in_context_score": (late - early).mean(), "nll_early": early.mean(), "nll_late": late.mean(),
                    "count": len(early)}
        return [Metric(measure, float(value), split) for measure, value in measured.items()]
