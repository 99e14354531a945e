"""A ledger that nobody judged, and the table of all patterns: what the report's first page is made from, made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from suite.claims import Claim, Judgement
from suite.claims.ledger import Call, Published
from suite.claims.measures import Measure
from suite.experiments.base import COLUMNS

ALL_PATTERNS, DONE, WAITING = "08_all_patterns", "01_window_sweep", "03_extrapolation"
DOMAINS = ("docs", "code", "stories", "math")
MEASURED = ("supported", "contradicted", "undecided")
LONG = "suite-a-name-as-long-as-the-longest-are"
EVIDENCE = "Loss over training"            # a heading of the notebook that is done


def judgement(identifier: str, document: str, verdict: str, *, notebook: str = DONE, section: str = EVIDENCE,
              region: Mapping[str, float] | None = None, published: Published | None = None, **own: Any) -> Judgement:
    """A verdict on a claim that holds below 0, say, by default with an effect that was measured with three seeds."""
    exact = own.pop("exact", False)
    call = Call(kind=Measure(lambda: None, own.pop("unit", "nats a token"), exact))
    claim = Claim(id=identifier, document=document, statement=f"What {identifier} says: a < b & c",
                  comparison=f"comparison of {identifier}", supported_if=region or {"below": 0}, notebook=notebook,
                  section=section, measure=call, published=published)
    measured = {"effect": -0.042, "low": -0.051, "high": -0.033, "p": 0.012, "seeds": 3} if verdict in MEASURED else {}
    return Judgement(claim, verdict, **{"sentence": f"found of {identifier}", **measured, **own})


def judgements(runs: list[str]) -> list[Judgement]:
    """Every verdict, every document, with and without what a claim may lack."""
    published = Published(value=-0.0273, unit="nats a token", source="table 2, W = 12",
                          recompute=Call(kind=Measure(lambda: None, "")))
    return [
        judgement("F1", "fibonacci", "supported", runs=tuple(runs[:2]), published=published),
        judgement("F2", "fibonacci", "contradicted", runs=tuple(runs[:1]), seeds=1, effect=1.5, low=1.1, high=1.9,
                  unit="%", region={"below": 1}),
        judgement("F3", "fibonacci", "undecided", low=-0.1, high=0.05, p=0.0004),
        judgement("P1", "powerlaw", "not tested", notebook=WAITING, section="Any",
                  sentence="Not tested: its notebook has not run yet."),
        judgement("C1", "christoffel", "failed", sentence="KeyError: 'no such <series>'"),
        judgement("A1", "audit", "supported", effect=133.0, low=None, high=None, p=None, exact=True, seeds=0,
                  unit="distances",
                  region={"equals": 133}, section="A heading that is not there"),
        judgement(LONG, "suite", "supported", runs=("f" * 16,)),
        judgement("S2", "suite", "contradicted", effect=0.3293, low=None, high=None, p=None, seeds=1, unit="times"),
    ]


PLACES = {"Dense": ("comparator", "dense"), "Local window, equal edges": ("comparator", "local"),
          "Fibonacci, linear ramp": ("scaled-base", "scaled_base"), "Power law": ("power-law", "power_law"),
          "Christoffel": ("christoffel", "christoffel"), "BigBird, equal edges": ("literature", "bigbird"),
          "Fixed stride, equal edges": ("comparator", "strided")}
NEAR = {"Dense": 22.1, "Local window, equal edges": 20.9, "Fibonacci, linear ramp": 21.3, "Power law": 21.4,
        "Christoffel": 21.6, "BigBird, equal edges": 21.1, "Fixed stride, equal edges": 39.6}
FAR = {**NEAR, "Dense": 118.0, "Fibonacci, linear ramp": 20.7, "Fixed stride, equal edges": 55.0}
SPEED = {**dict.fromkeys(NEAR, 9900.0), "Dense": 9000.0}
SPREAD = (0.99, 1.0, 1.01)                 # factors of the seeds' perplexities


def all_patterns(runs: list[str], seeds: int = 1) -> pd.DataFrame:
    """The tidy table of 08_all_patterns; `runs` are fingerprints that the database has, one a series and seed."""
    rows, free = [], iter(runs)
    for name, (family, pattern) in PLACES.items():
        for seed, factor in zip((42, 43, 44), SPREAD if seeds > 1 else (1.0,), strict=False):
            own = {"experiment": ALL_PATTERNS, "series": name, "role": "model", "pattern": pattern, "family": family,
                   "window": 6, "seed": seed, "train_length": 256, "train_tokens": 2_000_000, "parameters": 1_836_416,
                   "run": next(free), "pairs": 262_144 if name == "Dense" else 25_400 + 10 * len(name),
                   "measure": "perplexity", "keys_per_query": 128.5 if name == "Dense" else 12.4,
                   "run_tokens_per_s": SPEED[name]}
            for domain, share in zip(DOMAINS, (0.5, 2.0, 0.8, 1.25), strict=True):       # their product is 1
                rows += [{**own, "split": domain, "length": length, "value": value * factor * share}
                         for length, value in ((256, NEAR[name]), (1024, FAR[name]))]
                rows += [{**own, "split": domain, "length": 1024, "variant": "rope=yarn", "value": 3.0},
                         {**own, "split": domain, "step": 100, "value": 3.0},
                         {**own, "measure": "nll", "value": np.log(3.0)}]
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def replace_judging(patch: pytest.MonkeyPatch, found: list[Judgement]) -> list[tuple]:
    """Let `suite.claims` answer with `found`; returns the list of its calls."""
    calls: list[tuple] = []

    def judge(profile: Any, corpus: Any, notebooks: Any) -> list[Judgement]:
        calls.append((profile.name, corpus, tuple(notebooks)))
        return found
    patch.setattr("suite.report.page.existing", lambda config: "the corpus")
    patch.setattr("suite.claims.judge", judge)
    return calls
