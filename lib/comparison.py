"""A pattern beside dense, local and one of each family at equal attended pairs: where a new idea stands, in one table."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lib.engine import ensure
from lib.errors import SuiteError
from lib.experiments.base import Job, Parameters
from lib.experiments.common import Recipe, spec_of
from lib.patterns import Pattern, build
from lib.patterns.matching import match_edges
from lib.runs import Database, settings

if TYPE_CHECKING:
    from lib.data import Corpus
    from lib.profiles import Profile


@dataclass(frozen=True)
class Entry:
    """One row of the table."""
    name: str
    pattern: Pattern
    job: Job


def compare(name: str, given: Mapping[str, str], profile: Profile, corpus: Corpus) -> str:
    """Train `name` with the parameters `given` and its rivals at the profile's scale; the ranked table as text.

    Every rival but dense attends as many pairs as the pattern at the training length, within 1 %; one that cannot is left
    out, and the text says why.
    """
    own = {parameter: value_of(text) for parameter, text in given.items()}
    candidate = build(name, layers=profile.model.layers, heads=profile.model.heads, **own)
    parameters = Parameters(profile=profile.name, corpus=profile.corpus.folder)
    recipe = Recipe(parameters, profile)
    patterns, left_out = rivals(candidate, profile)
    entries = [Entry(title, pattern, Job.of(recipe.run(spec_of(pattern), seed), *recipe.perplexity(), series=title))
               for title, pattern in [(name, candidate), *patterns] for seed in parameters.seeds]
    ensure([entry.job for entry in entries], profile.name, corpus, profile.workers)
    database = Database(profile.name, corpus)
    return "\n".join([table(entries, database, profile.train.length), *left_out])


def value_of(text: str) -> Any:
    """A parameter from the command line: a Python literal, or text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def rivals(candidate: Pattern, profile: Profile) -> tuple[list[tuple[str, Pattern]], list[str]]:
    """Dense, the comparators and the representative of each family, and why some are missing."""
    length = profile.train.length
    near = round(candidate.pairs(length) / (length * candidate.layers) / 3)      # a third of the keys next to the query
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("local", "local", {}),
        ("random offsets", "random_offsets", {"window": near}),
        ("scaled base, linear", "scaled_base", {"base": "fibonacci", "schedule": "linear", "rungs": profile.rungs}),
        ("power law", "power_law", {"window": near}),
        ("christoffel, coprime", "christoffel", {"k": prime_below(length), "m": 1, "repeat": True}),
        ("power-of-two reach", "power_attention", {}),
    ]
    found: list[tuple[str, Pattern]] = [("dense", build("dense", layers=candidate.layers, heads=candidate.heads))]
    left_out = []
    for title, name, own in wanted:
        try:
            found.append((title, match_edges(name, candidate, length, **own)))
        except SuiteError as error:
            left_out.append(f"left out: {title}: {error}")
    return [(title, pattern) for title, pattern in found if pattern != candidate], left_out


def prime_below(length: int) -> int:
    """The largest prime of at most `length`: with it as k every slope m/k is coprime, whatever m equal pairs ask for."""
    return next((k for k in range(length, 1, -1) if all(k % d for d in range(2, math.isqrt(k) + 1))), 2)


def table(entries: list[Entry], database: Database, length: int) -> str:
    """Ranked by perplexity: the geometric mean over held-out domains at the training length."""
    rows = []
    for number, entry in enumerate(entries):
        metrics = database.metrics(entry.job)
        nll = metrics[(metrics["measure"] == "nll") & metrics["step"].isna() & metrics["position"].isna()]
        rows.append((math.exp(nll["value"].mean()), number, entry, float(metrics["run_tokens_per_s"].iloc[0])))
    own = rows[0][0]
    cells = [("", "pattern", "perplexity", "against it", "pairs", "keys/query", "tokens/s", "settings")]
    for rank, (perplexity, number, entry, rate) in enumerate(sorted(rows, key=lambda row: row[:2]), start=1):
        pairs = entry.pattern.pairs(length)
        cells.append((str(rank), f"{'> ' if number == 0 else '  '}{entry.name}", f"{perplexity:.2f}",
                      f"{100 * (perplexity / own - 1):+.1f} %" if number else "", f"{pairs / 1e3:.0f}k",
                      f"{pairs / (length * entry.pattern.layers):.1f}", f"{rate:,.0f}", settings(entry.job.run.pattern)))
    return "\n".join(f"{rank:>2} {name:<24}" + "".join(f"{text:>12}" for text in numbers) + f"  {text}"
                     for rank, name, *numbers, text in cells)
