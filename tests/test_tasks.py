"""Synthetic tasks against solvers that read the tokens as a person would."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lib.errors import SuiteError
from suite.tasks import IGNORED, NOISE, names, scatter, task

SIZE = 40


# A solver gets one context and the position to answer at, and nothing else.

def copying(tokens, at, given):
    return tokens[at - tokens.index(1)]


def pairs(tokens, at, given):
    key, first_value = tokens[at], NOISE + given.get("keys", 64)
    return next(b for a, b in zip(tokens, tokens[1:]) if a == key and b >= first_value)


def variables(tokens, at, given):
    first_name = NOISE + 2 + given.get("values", 32)
    held = {}
    for left, sign, right in zip(tokens, tokens[1:], tokens[2:]):
        if sign == NOISE + 1:
            held[left] = held[right] if right >= first_name else right
    return held[tokens[at]]


def chain(tokens, at, given):
    clauses = {tokens[n - 1]: (1 if tokens[n + 1] == NOISE + 3 else -1, tokens[n + 2])
               for n in range(len(tokens)) if tokens[n] == NOISE + 1}
    sign, name = 1, tokens[at]
    while name != NOISE + 2:
        factor, name = clauses[name]
        sign *= factor
    return NOISE + 3 if sign == 1 else NOISE + 4


def marked(tokens, at, given):
    return tokens[at - given.get("distances", (200, 350))[tokens[at] - given.get("symbols", 256)]]


CASES = [("copying", {}, copying, 200), ("copying", {"string": 5, "symbols": 3}, copying, 10),
         ("retrieval", {}, pairs, 200),
         ("retrieval", {"pairs": 4, "queries": 1, "distance": 90, "keys": 5, "values": 4}, pairs, 99),
         ("retrieval", {"pairs": 3, "queries": 11}, pairs, 120),
         ("mqar", {}, pairs, 131), ("mqar", {"pairs": 3, "keys": 3, "values": 7, "power": 1.0}, pairs, 12),
         ("mqar", {"pairs": 4, "returns": 5}, pairs, 60),
         ("variable_tracking", {}, variables, 128),
         ("variable_tracking", {"chains": 2, "hops": 5, "values": 9}, variables, 52),
         ("lego", {}, chain, 101), ("lego", {"chain": 10, "variables": 10}, chain, 60),
         ("marked_copy", {}, marked, 512),
         ("marked_copy", {"distances": (3, 17, 4), "symbols": 9, "marks": 20}, marked, 40)]


def drawn(name, given, length, seed=3, step=5, size=SIZE):
    return task(name, **given).labelled(seed, step, size, length)


@pytest.mark.parametrize(("name", "given", "solve", "length"), CASES)
def test_when_drawn_then_seed_and_step_decide_a_solver_is_right_and_a_guess_by_chance(name, given, solve, length):
    made, (inputs, targets, labels) = task(name, **given), drawn(name, given, length)
    torch.rand(3), np.random.rand(3)
    again = task(name, **given).batch(3, 5, SIZE, length)
    assert torch.equal(torch.from_numpy(inputs), again[0]) and torch.equal(torch.from_numpy(targets), again[1])
    assert not any(np.array_equal(inputs, drawn(name, given, length, *other)[0]) for other in ((4, 5), (3, 6)))
    assert inputs.shape == targets.shape == (SIZE, length) and inputs.dtype == targets.dtype == np.int64
    scored = np.argwhere(targets != IGNORED)
    assert SIZE <= len(scored) < targets.size and np.array_equal(scored, np.argwhere(labels >= 0))
    for row, at in scored:
        # Only the tokens up to the question may be read: the answer never lies in the future.
        assert solve(inputs[row, :at + 1].tolist(), at, given) == targets[row, at]
    assert 0 <= inputs.min() and max(inputs.max(), targets.max()) < made.vocab and targets[labels >= 0].min() >= 0
    made.batch(0, 0, 2, made.shortest)
    with pytest.raises(SuiteError, match=f"length of task {name} = {made.shortest - 1} .*at least {made.shortest}"):
        made.batch(0, 0, 2, made.shortest - 1)
    rng, right, total = np.random.default_rng(0), 0, 60 * SIZE
    for step in range(60):
        # One scored token of each context: answers of one context are not independent draws.
        for seen, aims in zip(*drawn(name, given, length, 11, step)[:2]):
            at = rng.choice(np.flatnonzero(aims != IGNORED))
            right += guess(name, given, seen[:at + 1], rng) == aims[at]
    low, high = binom.interval(0.9999, total, made.chance)
    assert low <= right <= high, f"{right} of {total}, chance {made.chance}"


def guess(name, given, seen, rng):
    """An answer of the right kind that ignores which one belongs to the question."""
    if name in ("retrieval", "mqar"):
        return rng.choice(np.unique(seen[seen >= NOISE + given.get("keys", 64)]))
    if name == "variable_tracking":
        return rng.choice(np.unique(seen[(seen >= NOISE + 2) & (seen < NOISE + 2 + given.get("values", 32))]))
    if name == "lego":
        return NOISE + 3                                    # a constant, as the published models answer
    first = 2 if name == "copying" else 0
    return rng.integers(first, first + given.get("symbols", 32 if name == "copying" else 256))


@pytest.mark.parametrize("name, given", [("retrieval", {"distance": 100}), ("retrieval", {}), ("mqar", {})])
def test_when_values_are_asked_for_then_labels_are_octaves_and_distances_those_of_the_task(name, given):
    inputs, targets, labels = drawn(name, given, 256, size=200)
    rows, at = np.nonzero(labels >= 0)
    found = inputs[rows] == targets[rows, at][:, None]
    assert (found.sum(axis=1) == 1).all(), "a value stands once in its context"
    labels, distances = labels[rows, at], at - found.argmax(axis=1)
    assert ((labels <= distances) & (distances < 2 * labels)).all()
    if name == "mqar":
        assert distances.min() < 8 and np.median(distances) < 64, "most questions come soon, and with power 1 evenly"
        _, at = np.nonzero(drawn("mqar", {"power": 1.0, "pairs": 4}, 264, size=500)[2] >= 0)
        assert abs(np.mean(at) - (8 + 262) / 2) < 8 and set(at % 2) == {0}
    else:
        least = given.get("distance", 120)
        assert distances.min() == least and distances.max() > 1.5 * least
        scored = drawn(name, {"queries": 1}, 128)[1] != IGNORED
        assert not scored[:, :-1].any() and scored[:, -1].all(), "one question is the last token"


def test_when_mqar_asks_then_every_key_comes_back_as_often_in_random_order():
    for given, length, size in (({"pairs": 8}, 96, 2000), ({"pairs": 3, "returns": 4}, 40, SIZE)):
        inputs, targets, _ = drawn("mqar", given, length, size=size)
        keys, asked = inputs[:, :2 * given["pairs"]:2], inputs[targets != IGNORED].reshape(size, -1)
        assert np.array_equal(np.sort(asked), np.sort(np.repeat(keys, given.get("returns", 1), axis=1)))
        low, high = binom.interval(0.9999, size, 1 / given["pairs"])
        assert low <= (asked[:, 0] == keys[:, 0]).sum() <= high, "any of the keys may be the first to be asked"


def test_when_variables_are_tracked_then_labels_count_the_hops_and_chains_are_interleaved():
    inputs, targets, labels = drawn("variable_tracking", {"queries": 16}, 128)
    adjacent = 0
    for row in range(SIZE):
        signs = np.flatnonzero(inputs[row] == NOISE + 1)
        source = {inputs[row, n - 1]: inputs[row, n + 1] for n in signs}
        for at in np.flatnonzero(labels[row] >= 0):
            name, hops = source[inputs[row, at]], 0
            while name in source:
                name, hops = source[name], hops + 1
            assert (name, hops) == (targets[row, at], labels[row, at])
        adjacent += sum(inputs[row, b + 1] == inputs[row, a - 1] for a, b in zip(signs, signs[1:]))
    assert np.bincount(labels[labels >= 0]).tolist() == [4 * SIZE] * 4
    assert adjacent / SIZE < 6, "of 12 links of four chains, most join statements that do not follow each other"


def test_when_lego_is_drawn_then_answers_are_balanced_and_clauses_out_of_order():
    _, targets, labels = drawn("lego", {}, 64, size=2000)
    low, high = binom.interval(0.9998, 2000, 0.5)
    for steps in range(1, 7):
        assert low <= np.sum(targets[labels == steps] == NOISE + 3) <= high
    inputs, *_ = drawn("lego", {"chain": 2}, 64, size=200)
    root_first = np.mean([np.flatnonzero(row == NOISE + 2)[0] < np.flatnonzero(row == NOISE + 1)[-1] for row in inputs])
    assert 0.3 < root_first < 0.7


def test_when_tokens_are_copied_then_the_delay_fills_the_context_and_marks_are_as_likely_and_ask_for_no_mark():
    inputs, targets, labels = drawn("copying", {"string": 6}, 50)
    assert np.array_equal(targets[:, 44:], inputs[:, :6]) and (inputs[:, 6:44] == 0).all()
    assert (inputs[:, 44] == 1).all() and np.array_equal(inputs[:, 45:], inputs[:, :5])
    assert set(labels[labels >= 0]) == {44}
    inputs, targets, labels = drawn("marked_copy", {"distances": (2, 9), "marks": 30, "symbols": 50}, 80, size=300)
    counts = [np.sum(labels == d) for d in (2, 9)]
    assert 0.9 < counts[0] / counts[1] < 1.2
    assert (inputs[labels >= 0] >= 50).all() and (inputs[labels < 0] < 50).all() and targets.max() < 50
    assert np.flatnonzero((labels >= 0).any(axis=0))[0] == 9, "no mark where the longest distance does not reach"


def test_when_places_are_scattered_then_all_are_equally_likely_and_none_overlap():
    at = scatter(np.random.default_rng(0), 20_000, 2, 3, 8)
    found, counts = np.unique(at, axis=0, return_counts=True)
    assert found.tolist() == [[0, 3], [0, 4], [0, 5], [1, 4], [1, 5], [2, 5]]
    assert counts.min() > 3100 and counts.max() < 3570


@pytest.mark.parametrize(("name", "given", "says"), [
    ("copyng", {}, "did you mean 'copying'"), ("copying", {"strng": 3}, "did you mean 'string'"),
    *(("copying", {"string": wrong}, f"string = {wrong!r}") for wrong in (0, True, "3")),
    ("retrieval", {"pairs": 1}, "pairs = 1"), ("retrieval", {"queries": 0}, "queries = 0"),
    ("retrieval", {"distance": 0}, "distance = 0"), ("retrieval", {"values": 7}, "values = 7 .*at least pairs = 8"),
    ("mqar", {"returns": 0}, "returns = 0"), ("mqar", {"power": 0.0}, "power = 0.0"),
    ("variable_tracking", {"chains": 1}, "chains = 1"),
    ("variable_tracking", {"variables": 15}, "variables = 15 .*= 16"),
    ("lego", {"chain": 33}, "variables = 32 .*at least chain = 33"),
    *(("marked_copy", {"distances": wrong}, "distances = ") for wrong in ((200, 200), (), (0.5,)))])
def test_when_a_parameter_is_wrong_then_the_error_names_it(name, given, says):
    assert {case[0] for case in CASES} == set(names()), "a new task needs a solver here"
    with pytest.raises(SuiteError, match=says):
        task(name, **given)
