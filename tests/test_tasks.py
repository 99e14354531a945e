"""Synthetic tasks against solvers that read the tokens as a person would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lib.errors import SuiteError
from suite.tasks import IGNORED, NOISE, names, scatter, task

# A solver gets one context and the position to answer at, and nothing else.


def copying(tokens, at, given):
    mark = tokens.index(1)
    return tokens[at - mark]


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
EACH = pytest.mark.parametrize(("name", "given", "solve", "length"), CASES)
SIZE = 40


def drawn(name, given, length, seed=3, step=5, size=SIZE):
    return task(name, **given).labelled(seed, step, size, length)


def test_when_a_file_defines_a_task_then_it_is_found_by_name():
    assert set(names()) >= {"copying", "retrieval", "mqar", "variable_tracking", "lego", "marked_copy"}
    assert {case[0] for case in CASES} == set(names()), "every task needs a solver here"


@EACH
def test_when_a_solver_reads_the_context_then_every_answer_is_determined(name, given, solve, length):
    inputs, targets, _ = drawn(name, given, length)
    scored = np.argwhere(targets != IGNORED)
    assert len(scored) >= SIZE
    for row, at in scored:
        # Only the tokens up to the question may be read: the answer never lies in the future.
        assert solve(inputs[row, :at + 1].tolist(), at, given) == targets[row, at]


@EACH
def test_when_one_guesses_then_accuracy_is_chance(name, given, solve, length):
    made = task(name, **given)
    rng = np.random.default_rng(0)
    right = total = 0
    for step in range(60):
        inputs, targets, _ = made.labelled(11, step, SIZE, length)
        # One scored token of each context: answers of one context are not independent draws.
        for row, aims in enumerate(targets):
            at = rng.choice(np.flatnonzero(aims != IGNORED))
            right += guess(name, given, inputs[row, :at + 1], rng) == aims[at]
            total += 1
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


@EACH
def test_when_seed_and_step_are_given_then_the_batch_is_a_function_of_them(name, given, solve, length):
    made = task(name, **given)
    first = made.batch(3, 5, 8, length)
    torch.rand(3), np.random.rand(3)
    again = task(name, **given).batch(3, 5, 8, length)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (made.batch(4, 5, 8, length), made.batch(3, 6, 8, length)):
        assert not torch.equal(first[0], other[0])


@EACH
def test_when_a_batch_is_drawn_then_shapes_types_and_vocabulary_fit(name, given, solve, length):
    made = task(name, **given)
    inputs, targets = made.batch(0, 0, 7, length)
    labels = made.labelled(0, 0, 7, length)[2]
    assert inputs.shape == targets.shape == labels.shape == (7, length)
    assert inputs.dtype == targets.dtype == torch.int64
    scored = targets != IGNORED
    assert 0 <= inputs.min() and inputs.max() < made.vocab
    assert 0 <= targets[scored].min() and targets[scored].max() < made.vocab
    assert np.array_equal(labels >= 0, scored.numpy())
    assert 0 < scored.float().mean() < 1


@EACH
def test_when_the_length_is_too_short_then_the_error_names_it(name, given, solve, length):
    made = task(name, **given)
    made.batch(0, 0, 2, made.shortest)
    with pytest.raises(SuiteError, match=f"length of task {name} = {made.shortest - 1} .*at least {made.shortest}"):
        made.batch(0, 0, 2, made.shortest - 1)


def test_when_a_string_is_copied_then_the_delay_fills_the_context():
    inputs, targets, labels = drawn("copying", {"string": 6}, 50)
    assert np.array_equal(targets[:, 44:], inputs[:, :6]) and (inputs[:, 6:44] == 0).all()
    assert (inputs[:, 44] == 1).all()
    assert set(labels[labels >= 0]) == {44}


@pytest.mark.parametrize(("name", "given"), [("retrieval", {"distance": 100}), ("retrieval", {}), ("mqar", {})])
def test_when_a_key_is_asked_then_its_label_is_the_octave_of_the_real_distance(name, given):
    inputs, targets, labels = drawn(name, given, 256, size=200)
    rows, at = np.nonzero(labels >= 0)
    values = [np.flatnonzero(inputs[row] == targets[row, a]) for row, a in zip(rows, at, strict=True)]
    assert all(len(where) == 1 for where in values), "a value stands once in its context"
    distances = at - np.array(values)[:, 0]
    assert ((labels[rows, at] <= distances) & (distances < 2 * labels[rows, at])).all()
    if name == "retrieval":
        least = given.get("distance", 120)
        assert distances.min() == least and distances.max() > 1.5 * least
    else:
        assert distances.min() < 8 and np.median(distances) < 64, "most questions come soon"


def test_when_retrieval_has_one_query_then_the_context_ends_with_it():
    inputs, targets, _ = drawn("retrieval", {"queries": 1}, 128)
    assert (targets[:, :-1] == IGNORED).all() and (targets[:, -1] != IGNORED).all()


def test_when_power_is_one_then_questions_of_mqar_are_spread_evenly():
    labels = drawn("mqar", {"power": 1.0, "pairs": 4}, 264, size=500)[2]
    _, at = np.nonzero(labels >= 0)
    assert abs(np.mean(at) - (8 + 262) / 2) < 8 and set(at % 2) == {0}


def test_when_mqar_asks_then_every_key_comes_back_once_in_random_order():
    inputs, targets, _ = drawn("mqar", {}, 96, size=2000)
    first = 0
    for row in range(2000):
        asked = np.flatnonzero(targets[row] != IGNORED)
        assert sorted(inputs[row, asked]) == sorted(inputs[row, :16:2])
        first += inputs[row, asked[0]] == inputs[row, 0]
    low, high = binom.interval(0.9999, 2000, 1 / 8)
    assert low <= first <= high, "any of the eight keys may be the first to be asked"


def test_when_keys_of_mqar_return_then_each_does_as_often():
    inputs, targets, _ = drawn("mqar", {"pairs": 3, "returns": 4}, 40)
    for row in range(SIZE):
        asked = inputs[row, targets[row] != IGNORED]
        assert sorted(asked) == sorted(np.repeat(inputs[row, :6:2], 4))


def test_when_variables_are_tracked_then_labels_count_the_hops():
    inputs, targets, labels = drawn("variable_tracking", {"queries": 16}, 128)
    for row in range(SIZE):
        source = {inputs[row, n - 1]: inputs[row, n + 1] for n in np.flatnonzero(inputs[row] == NOISE + 1)}
        for at in np.flatnonzero(labels[row] >= 0):
            name, hops = source[inputs[row, at]], 0
            while name in source:
                name, hops = source[name], hops + 1
            assert (name, hops) == (targets[row, at], labels[row, at])
    assert np.bincount(labels[labels >= 0]).tolist() == [4 * SIZE] * 4


def test_when_chains_are_tracked_then_their_statements_are_interleaved():
    inputs, *_ = drawn("variable_tracking", {}, 200, size=100)
    adjacent = 0
    for row in inputs:
        signs = np.flatnonzero(row == NOISE + 1)
        adjacent += sum(row[b + 1] == row[a - 1] for a, b in zip(signs, signs[1:]))
    assert adjacent / 100 < 6, "of 12 links of four chains, most join statements that do not follow each other"


def test_when_lego_is_drawn_then_answers_are_balanced_at_every_number_of_steps():
    _, targets, labels = drawn("lego", {}, 64, size=2000)
    for steps in range(1, 7):
        share = np.mean(targets[labels == steps] == NOISE + 3)
        assert binom.cdf(share * 2000, 2000, 0.5) == pytest.approx(0.5, abs=0.4999)


def test_when_lego_is_drawn_then_clauses_are_out_of_order():
    inputs, *_ = drawn("lego", {"chain": 2}, 64, size=200)
    root_first = np.mean([np.flatnonzero(row == NOISE + 2)[0] < np.flatnonzero(row == NOISE + 1)[-1] for row in inputs])
    assert 0.3 < root_first < 0.7


def test_when_marks_are_set_then_both_kinds_are_as_likely_and_none_asks_for_a_mark():
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
    ("copyng", {}, "did you mean 'copying'"),
    ("copying", {"strng": 3}, "did you mean 'string'"),
    ("copying", {"string": 0}, "string = 0"),
    ("copying", {"string": "3"}, "string = '3' .*a valid integer"),
    ("copying", {"string": True}, "string = True .*a valid integer"),
    ("retrieval", {"pairs": 1}, "pairs = 1"),
    ("retrieval", {"queries": 0}, "queries = 0"),
    ("mqar", {"returns": 0}, "returns = 0"),
    ("retrieval", {"distance": 0}, "distance = 0"),
    ("retrieval", {"values": 7}, "values = 7 .*at least pairs = 8"),
    ("mqar", {"power": 0.0}, "power = 0.0"),
    ("variable_tracking", {"chains": 1}, "chains = 1"),
    ("variable_tracking", {"variables": 15}, "variables = 15 .*= 16"),
    ("lego", {"chain": 33}, "variables = 32 .*at least chain = 33"),
    ("marked_copy", {"distances": (200, 200)}, "distances = .200, 200."),
    ("marked_copy", {"distances": ()}, "distances = ..,? is not|distances = \\(\\)"),
    ("marked_copy", {"distances": (0.5,)}, "distances = .*a valid integer")])
def test_when_a_parameter_is_wrong_then_the_error_names_it(name, given, says):
    with pytest.raises(SuiteError, match=says):
        task(name, **given)
