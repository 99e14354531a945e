"""The battery: auxiliary tasks asked of a language model without training, each beside its chance level.

Source: the Fibonacci paper's battery, arxiv.org/abs/2606.28560, Section 4.6; what differs is said where an item is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_prep.tokenizer import end_of
from lib.config import RunConfig
from lib.data import Corpus, domains_of, heldout_windows
from lib.errors import one_of, require
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

    variable_tracking, lego, mqar   text prompts, answer among the values of the prompt
    lambada                         last word, right when greedy decoding says it; from held-out stories, or LAMBADA's files
    cloze                           name or number that a held-out passage has given before, among others of its kind; of
                                    the hub: the object of a fact (`factual_cloze`), right when greedy decoding says it
    blimp                           minimal pairs, of BLiMP or made from templates
    in_context                      loss late in the context minus loss early (negative: context helps)

    Measures, split = task and `task/subgroup`: `accuracy`, `chance`, `count`, and, but for minimal pairs, `target_nll` (nats
    an answer). Their texts are of a folder, or of the corpus where it has them from the hub; without, the splits are
    `lambada-offline` and `blimp-offline`. in_context: `in_context_score`,
    `nll_early`, `nll_late` and `count` (windows). Arrays: `correct.<task>` and `target_nll.<task>` by item; `in_context` by
    window.
    """
    name = "battery"

    tasks: tuple[str, ...] = TASKS
    count: int = 200
    seed: int = 0
    blimp_folder: str = ""          # subsets as .jsonl with sentence_good and sentence_bad
    lambada_folder: str = ""        # .jsonl with text

    def __post_init__(self) -> None:
        require(len(self.tasks) >= 1, "tasks", self.tasks, f"one or more of {', '.join(TASKS)}")
        for task in self.tasks:
            one_of(task, TASKS, "battery task")
        require(self.count >= 1, "count", self.count, "an integer of at least 1 (items)")
        require(0 <= self.seed < 2 ** 32, "seed", self.seed, "0 to 2^32 - 1")
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
        """What tables call the task, and its items for a model of `limit` tokens."""
        if task in SYNTHETIC:
            return task, SYNTHETIC[task](self.count, self.seed)
        name, folder = called(task, corpus), {"blimp": self.blimp_folder, "lambada": self.lambada_folder}.get(task, "")
        own = Path(folder) if folder else corpus.evaluation(task)
        if own is not None:
            return task if folder else name, OF_FOLDER[task](own, self.count)
        if task == "blimp":
            return name, minimal_pairs.offline(self.count, self.seed)
        tokenizer = corpus.tokenizer()
        if task == "lambada":
            return name, passages.last_words(corpus, tokenizer, self.count, limit)
        return name, passages.cloze(corpus, tokenizer, self.count, limit, self.seed)

    def asked(self, task: str, model: Transformer, run: RunConfig, corpus: Corpus, device: torch.device) -> EvalResult:
        limit, tokenizer = run.train.length, corpus.tokenizer()
        end = end_of(tokenizer)             # ends every document: what a sentence without a context follows
        name, items = self.items(task, corpus, limit)
        made = [request for item in items for request in requests(tokenizer, item, end, limit)]
        correct, nll = grade(items, *answer(model, made, limit, device))
        chance = np.array([item.chance for item in items])
        groups = np.array([item.split for item in items])
        rows = {name: np.ones(len(items), bool),
                **{f"{name}/{group}": groups == group for group in sorted(set(groups)) if group}}
        metrics = []
        for split, own in rows.items():
            measured = {"accuracy": correct[own].mean(), "chance": chance[own].mean(), "count": own.sum()}
            if task != "blimp":             # how likely a sentence is says nothing of grammar; only the comparison does
                measured["target_nll"] = nll[own].mean()
            metrics += [Metric(measure, float(value), split) for measure, value in measured.items()]
        return EvalResult(metrics, {f"correct.{name}": correct, f"target_nll.{name}": nll})

    def in_context(self, model: Transformer, run: RunConfig, corpus: Corpus, device: torch.device) -> EvalResult:
        """In-context learning score of arxiv.org/abs/2209.11895 (Olsson et al.): there token 500 minus token 50.

        Here the last eighth of the training length minus its second sixteenth, over `count` windows spread over the domains.
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
