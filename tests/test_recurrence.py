"""Losses by recurrence distance: against a search that looks back token by token, and models whose losses are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from eval_fakes import CORPUS, Fake, V, bigram, only, run_of, uniform, values

from lib.config import DataConfig, Evaluation
from lib.errors import SuiteError
from suite.evals import build, evaluate
from suite.evals.recurrence import evidence

EDGES = (0, 4, 8, 16, 32)


def recurrence(**parameters):
    return Evaluation.of("recurrence", **{"tokens": 1000, "edges": EDGES, **parameters})


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


def test_when_a_context_returns_twice_then_its_latest_place_counts():
    place, right = evidence(np.array([[1, 2, 3, 9, 1, 2, 4, 9, 1, 2]]), np.array([[2, 3, 9, 1, 2, 4, 9, 1, 2, 4]]), 2)
    assert place[0].tolist() == [-1] * 5 + [2, -1, -1, 5, 6]
    assert right[0].tolist() == [False] * 8 + [True, True]  # 9 1 was followed by 2; 1 2 by 4, the last time


def test_when_a_distance_is_the_first_of_a_bin_then_it_is_in_that_bin():
    place = np.full((1, 60), -1)
    distances = [0, 3, 4, 7, 8, 15, 16, 31, 32, 40]
    place[0, 50:] = np.arange(50, 60) - distances
    found = build("recurrence", tokens=1000, edges=EDGES).bins(place)
    assert found[0, 50:].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and set(found[0, :50]) == {5}


def test_when_a_model_is_a_bigram_table_then_each_bin_is_the_sum_by_hand():
    model, log_p = bigram()
    result = evaluate(recurrence(n=3), model, run_of(length=60), CORPUS)
    for domain in CORPUS.domains:
        tokens = CORPUS.tokens("heldout", domain).astype(int)[:961].tolist()
        sums, counts, copied = {}, {}, {}
        for window in range(16):
            own = tokens[60 * window:60 * window + 61]
            for t in range(60):
                distance = looked_back(own[:60], t, 3)
                first = 60 if distance is None else max(edge for edge in EDGES if edge <= distance)
                nll = -float(log_p[own[t], own[t + 1]])
                sums[first, window] = sums.get((first, window), 0) + nll
                counts[first] = counts.get(first, 0) + 1
                if distance is not None and own[t - distance] == own[t + 1]:
                    copied.setdefault(first, []).append(nll)
        for at, first in enumerate((*EDGES, 60)):
            assert only(result, "recurrence_count", split=domain, position=first) == counts.get(first, 0)
            assert only(result, "copy_count", split=domain, position=first) == len(copied.get(first, []))
            if first in copied:
                copy = only(result, "copy_nll", split=domain, position=first)
                assert copy == pytest.approx(np.mean(copied[first]), rel=1e-5)
            for window in range(16):
                there = result.arrays[f"recurrence.{domain}"][window, at]
                assert there == pytest.approx(sums.get((first, window), 0), rel=1e-5)
        assert sum(counts.values()) == 960 and copied, "every token is in one bin"
        assert result.arrays[f"copy_count.{domain}"][:, -1].sum() == 0, "what has no earlier place has nothing to copy"


def test_when_all_bins_are_added_up_then_they_are_the_loss_of_the_text():
    model, _ = bigram(seed=3)
    by_bin = evaluate(recurrence(), model, run_of(length=50), CORPUS)
    whole = evaluate(Evaluation.of("perplexity", lengths=(50,), tokens=1000), model, run_of(length=50), CORPUS)
    for domain in CORPUS.domains:
        total, count = (by_bin.arrays[f"{name}.{domain}"].sum() for name in ("recurrence", "recurrence_count"))
        assert total / count == pytest.approx(only(whole, "nll", split=domain))


def test_when_a_model_copies_then_only_the_tokens_that_copying_gets_right_are_cheap():
    def copier(tokens: torch.Tensor) -> torch.Tensor:
        place, _ = evidence(tokens.numpy(), np.zeros(tokens.shape, int), 2)
        logits = torch.zeros(*tokens.shape, V)
        for window, t in zip(*(place >= 0).nonzero(), strict=True):
            logits[window, t, tokens[window, place[window, t]]] = 20.0
        return logits
    result = evaluate(recurrence(), Fake(copier), run_of(length=80), CORPUS)
    assert max(values(result, "copy_nll")) < 1e-3 < min(values(result, "recurrence_nll", position=4))
    assert values(result, "recurrence_nll", position=80) == pytest.approx([np.log(V)] * 2, rel=1e-6)


@pytest.mark.parametrize("parameters, words", [({"edges": (1, 4)}, "edges"), ({"edges": (0, 4, 4)}, "edges"),
                                               ({"n": 0}, "n = 0"), ({"edges": ()}, "edges")])
def test_when_a_parameter_is_wrong_then_the_error_names_it(parameters, words):
    with pytest.raises(SuiteError, match=words):
        evaluate(recurrence(**parameters), uniform(), run_of(), CORPUS)


def test_when_a_model_was_not_trained_on_text_then_the_error_says_so():
    with pytest.raises(SuiteError, match="for models of text"):
        evaluate(recurrence(), uniform(), run_of(data=DataConfig.of("copying")), CORPUS)
