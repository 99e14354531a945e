"""A pattern beside dense, local and the best of each family at equal attended pairs: where a new idea stands.

The best of a family is the model with the lowest held-out loss in the profile's result tables. A family without results
is represented by the proposal of its document.
"""

import ast
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lib import paths
from lib.config import PatternSpec, RunConfig
from lib.data import Corpus
from lib.errors import SuiteError, require
from lib.patterns import Pattern, build
from lib.patterns.matching import match_edges
from suite.experiments.base import Job, Parameters
from suite.experiments.common import Recipe, spec_of
from suite.run import stamps
from suite.run.browse import settings
from suite.run.database import Database
from suite.run.engine import ensure
from suite.run.worker import Hosts
from suite.settings.parameters import notebook_names
from suite.settings.profiles import Profile
from suite.settings.progress import text_table

SEED = 42
LARGEST = 10 ** 7           # number of a pattern's parameter
Champion = tuple[str, PatternSpec]     # what the tables call it, and its pattern


def compare(name: str, given: Mapping[str, str], profile: Profile, corpus: Corpus, hosts: Hosts | None = None) -> str:
    """`compared` for the pattern `name` with the parameters `given`, as text; it says which rivals cannot, and why."""
    rows, left_out = compared(candidate_of(name, given, profile), profile, corpus, hosts)
    return "\n".join([table(rows, name), *left_out])


def compared(candidate: Pattern, profile: Profile, corpus: Corpus,
             hosts: Hosts | None = None) -> tuple[pd.DataFrame, list[str]]:
    """Train the pattern and its rivals at the profile's scale; `ranked`, and why some rivals are missing. Every rival
    but dense attends as many pairs as the pattern at the training length, within 1 %."""
    parameters = Parameters(profile=profile.name, corpus=profile.corpus.folder, seeds=(SEED,), tokens=0)
    recipe, database = Recipe(parameters, profile), Database(profile.name, corpus)
    patterns, left_out = rivals(candidate, profile, champions(profile, database))
    entries = [(pattern, Job.of(recipe.run(spec_of(pattern), SEED), *recipe.perplexity(), series=title))
               for title, pattern in [(candidate.name, candidate), *patterns]]
    ensure([job for _, job in entries], profile.name, corpus, profile.workers, hosts=hosts)
    return ranked(entries, database, profile.train.length), left_out


def candidate_of(name: str, given: Mapping[str, str], profile: Profile) -> Pattern:
    """The pattern `name` with the parameters `given` at the profile's depth; `SuiteError` if they are wrong."""
    values = {parameter: value_of(text) for parameter, text in given.items()}
    for parameter, value in values.items():
        require(not isinstance(value, int) or abs(value) <= LARGEST, parameter, value, f"at most {LARGEST:,}")
    return build(name, layers=profile.model.layers, heads=profile.model.heads, **values)


def value_of(text: str) -> Any:
    """A parameter from the command line: a Python literal, or text."""
    try:
        value = ast.literal_eval(text)
        str(value)                                  # Python writes no number of thousands of digits
        return value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def champions(profile: Profile, database: Database) -> dict[str, Champion]:
    """The best model of each family in the result tables, among models of the profile's size and training length."""
    done = [name for name in notebook_names()
            if stamps.whole(profile.name, name) and stamps.products(profile.name, name)["table"]]
    tables = [pd.read_csv(paths.results(profile.name) / f"{name}.csv", dtype={"split": str}) for name in done]
    if not tables:
        return {}
    rows = pd.concat(tables)
    rows = rows[(rows["measure"] == "nll") & (rows["length"] == rows["train_length"])
                & rows[["step", "position", "variant"]].isna().all(axis=1)]
    best: dict[str, Champion] = {}
    for (family, series, run), _ in rows.groupby(["family", "series", "run"])["value"].mean().sort_values().items():
        facts = database.facts(run)
        config = RunConfig.from_dict(json.loads(facts["config"])) if facts is not None else None
        if config is not None and (config.model, config.train.length) == (profile.model, profile.train.length):
            best.setdefault(family, (series, config.pattern))
    return best


def rivals(candidate: Pattern, profile: Profile,
           best: Mapping[str, Champion]) -> tuple[list[tuple[str, Pattern]], list[str]]:
    """Dense, the comparators and one of each family at the candidate's pairs, and why some are missing."""
    length = profile.train.length
    near = round(candidate.pairs(length) / (length * candidate.layers) / 3)      # a third of the keys next to the query
    wanted = [                                                       # family, title and pattern of its proposal
        ("", "Local window", PatternSpec.of("local")),
        ("", "Random offsets", PatternSpec.of("random_offsets", window=near)),
        ("scaled-base", "Fibonacci, linear ramp",
         PatternSpec.of("scaled_base", schedule="linear", rungs=profile.rungs)),
        ("power-law", "Power law", PatternSpec.of("power_law", window=near)),
        ("christoffel", "Christoffel, coprime", PatternSpec.of("christoffel", k=prime_below(length), m=1, repeat=True)),
        ("literature", "Power-of-two reach", PatternSpec.of("power_attention"))]
    patterns: list[tuple[str, Pattern]] = [("Dense", build("dense", layers=candidate.layers, heads=candidate.heads))]
    left_out = []
    for family, *proposal in wanted:
        title, spec = best.get(family, proposal)
        try:
            patterns.append((title, match_edges(spec.name, candidate, length, **dict(spec.parameters))))
        except SuiteError as error:
            left_out.append(f"left out: {title}: {error}")
    return [(title, pattern) for title, pattern in patterns if pattern != candidate], left_out


def prime_below(length: int) -> int:
    """The largest prime of at most `length`: as k it makes every slope m/k coprime, whatever m equal pairs ask for."""
    return next((k for k in range(length, 1, -1) if all(k % d for d in range(2, math.isqrt(k) + 1))), 2)


def ranked(entries: Sequence[tuple[Pattern, Job]], database: Database, length: int) -> pd.DataFrame:
    """A row a pattern, best first: `mean` (perplexity at the training length, geometric mean over held-out domains),
    `pairs`, `keys` a query, `tokens/s` and `settings`."""
    rows = {}
    for pattern, job in entries:
        metrics, pairs = database.metrics(job), pattern.pairs(length)
        nll = metrics[(metrics["measure"] == "nll") & metrics["step"].isna() & metrics["position"].isna()]
        rows[job.labels.series] = {
            "mean": math.exp(nll["value"].mean()), "pairs": pairs, "keys": pairs / (length * pattern.layers),
            "tokens/s": float(metrics["run_tokens_per_s"].iloc[0]), "settings": settings(job.run.pattern)}
    return pd.DataFrame.from_dict(rows, orient="index").sort_values("mean", kind="stable")


def table(rows: pd.DataFrame, mine: str) -> str:
    """`ranked` as text; `>` marks `mine`."""
    cells = []
    for rank, (name, row) in enumerate(rows.iterrows(), start=1):
        against = "" if name == mine else f"{100 * (row['mean'] / rows.loc[mine, 'mean'] - 1):+.1f} %"
        cells.append([rank, f"{'> ' if name == mine else '  '}{name}", f"{row['mean']:.2f}", against,
                      f"{row['pairs'] / 1e3:.0f}k", f"{row['keys']:.1f}", f"{row['tokens/s']:,.0f}", row["settings"]])
    return text_table(["", "pattern", "perplexity", "against it", "pairs", "keys/query", "tokens/s", "settings"], cells)
