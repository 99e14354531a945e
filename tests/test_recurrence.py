"""Losses by recurrence distance: against a search that looks back token by token, and a model whose loss is known."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from eval_fakes import CORPUS, bigram, only, run_of

from lib.config import Evaluation
from suite.evals import evaluate
from suite.evals.recurrence import evidence

EDGES = (0, 4, 8, 16, 32)


def looked_back(tokens: list[int], t: int, n: int) -> int | None:
    """Distance from t to the token after the latest earlier place of the n tokens that end at t, by definition."""
    if t < n - 1:
        return None
    for s in range(t - 1, n - 2, -1):
        if all(tokens[s - back] == tokens[t - back] for back in range(n)):
            return t - (s + 1)
    return None


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 20])
def test_when_tokens_are_random_then_the_evidence_is_what_a_search_finds(n, alphabet):
    inputs = np.random.default_rng(n).integers(0, alphabet, (4, 41))
    targets = np.random.default_rng(9).integers(0, alphabet, inputs.shape)
    place, right = evidence(inputs, targets, n)
    for window, tokens in enumerate(inputs.tolist()):
        for t in range(len(tokens)):
            distance = looked_back(tokens, t, n)
            assert place[window, t] == (-1 if distance is None else t - distance)
            expected = distance is not None and tokens[t - distance] == targets[window, t]
            assert right[window, t] == expected
    assert not (place[:, :n] >= 0).any(), "a context and an earlier place of it need n + 1 tokens"
    assert (place >= 0).any() or alphabet ** n > 1000


def test_when_a_model_is_a_bigram_table_then_each_bin_is_the_sum_by_hand():
    model, log_p = bigram()
    result = evaluate(Evaluation.of("recurrence", tokens=1000, edges=EDGES, n=1), model, run_of(length=60), CORPUS)
    for domain in CORPUS.domains:
        tokens = CORPUS.tokens("heldout", domain).astype(int)[:961].tolist()
        sums, counts, copied, first_ones = defaultdict(float), defaultdict(int), defaultdict(list), set()
        for window in range(16):
            own = tokens[60 * window:60 * window + 61]
            for t in range(60):
                distance = looked_back(own[:60], t, 1)
                first = 60 if distance is None else max(edge for edge in EDGES if edge <= distance)
                first_ones |= {distance} & {*EDGES}
                nll = -float(log_p[own[t], own[t + 1]])
                sums[first, window] += nll
                counts[first] += 1
                if distance is not None and own[t - distance] == own[t + 1]:
                    copied[first].append(nll)
        assert len(first_ones) > 2 and copied, "some distances are the first of a bin"
        for at, first in enumerate((*EDGES, 60)):
            assert only(result, "recurrence_count", split=domain, position=first) == counts[first]
            assert only(result, "copy_count", split=domain, position=first) == len(copied[first])
            if copied[first]:
                copy = only(result, "copy_nll", split=domain, position=first)
                assert copy == pytest.approx(np.mean(copied[first]), rel=1e-5)
            by_hand = [sums[first, window] for window in range(16)]
            assert result.arrays[f"recurrence.{domain}"][:, at] == pytest.approx(by_hand, rel=1e-5)
            mean = sum(by_hand) / counts[first]
            assert only(result, "recurrence_nll", split=domain, position=first) == pytest.approx(mean, rel=1e-5)
        assert sum(counts.values()) == result.arrays[f"recurrence_count.{domain}"].sum() == 960
        assert result.arrays[f"copy_count.{domain}"][:, -1].sum() == 0, "what has no earlier place has nothing to copy"
