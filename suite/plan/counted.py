"""Operations of whole runs and of their evaluations, counted from their configurations alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from lib.config import Evaluation, PatternSpec, RunConfig
from lib.errors import SuiteError
from lib.patterns import build, expected
from suite.plan.flops import forward_flops, training_flops

FREE = ("alphas", "attention_memory")       # evaluations that read weights, or one call of attention
SHARE = 0.05                                # of the training's operations, for an evaluation that is not known here

Pass = tuple[PatternSpec, int, float]       # pattern, tokens a window, tokens


@lru_cache(maxsize=None)
def attended(spec: PatternSpec, layers: int, heads: int, length: int) -> float:
    """Attended pairs of a window; a plan asks for those of one pattern again and again."""
    return expected.pairs(build(spec.name, layers=layers, heads=heads, **dict(spec.parameters)), length)


def training(run: RunConfig, tokens: float | None = None) -> float:
    """Forward and backward over `tokens` (all of the run's)."""
    return training_flops(run, attended(run.pattern, run.model.layers, run.model.heads, run.train.length), tokens)


@lru_cache(maxsize=None)
def evaluation(run: RunConfig, asked: Evaluation, domains: int) -> float:
    """An evaluation on text of `domains` domains, or of those that the run names itself."""
    found = passes(run, asked, len(dict(run.data.parameters).get("domains", ())) or domains)
    if found is None:
        return SHARE * training(run)
    return sum(forward_flops(run.model, attended(spec, run.model.layers, run.model.heads, length), length, tokens)
               for spec, length, tokens in found)


def passes(run: RunConfig, asked: Evaluation, domains: int) -> list[Pass] | None:
    """The forward passes of an evaluation, a backward one as two of them; None for one that is not known here."""
    if asked.name in FREE:
        return []
    try:
        own, T = defaults(asked), run.train.length
    except SuiteError:                                      # it cannot be made: the run that asks for it will say so
        return None
    match asked.name:
        case "perplexity":
            spec = PatternSpec(*own.pattern) if own.pattern else run.pattern
            return [(spec, length, own.tokens * domains) for length in own.lengths or (T,)]
        case "recurrence":
            return [(run.pattern, T, own.tokens * domains)]
        case "task":
            return [(run.pattern, length, own.count * length) for length in own.lengths or (T,)]
        case "battery":                                     # no item is longer than a window; most are shorter
            return [(run.pattern, T, own.count * T * len(own.tasks))]
        case "alpha_landscape":
            return [(run.pattern, T, max(own.tokens, T) * domains * (1 + run.model.layers * len(own.alphas)))]
        case "gradient_flow":                               # one pass back a query, then one of the loss
            return [(run.pattern, T, own.windows * T * (1 + 2 * own.queries + 3))]
    return None


@lru_cache(maxsize=None)
def defaults(asked: Evaluation) -> Any:
    """The evaluation with all its parameters."""
    from suite import evals
    return evals.build(asked.name, **dict(asked.parameters))
