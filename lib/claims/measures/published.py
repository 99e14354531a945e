"""Facts of the Fibonacci paper's published tables (lib/published): exact, no run of ours is needed."""

from __future__ import annotations

import numpy as np

from lib import published
from lib.claims.evidence import Evidence, Found
from lib.claims.measures import measure

SEED = 42


@measure("nats a token", exact=True)
def published_difference(evidence: Evidence | None, *, series: str, other: str, window: int, other_window: int = 0) -> Found:
    """Log of the ratio of published perplexities, a mean over the four datasets (seed 42); Dense has no window."""
    table = published.read("perplexity").query("seed == @SEED")

    def loss(name: str, at: int) -> float:
        rows = table[(table["series"] == name) & (table["window"].isna() if name == "Dense" else table["window"] == at)]
        return float(np.log(rows["perplexity"]).mean())
    value = loss(series, window) - loss(other, other_window or window)
    return Found.fact(f"Published loss of {series} minus {other} at W = {window}", value)
