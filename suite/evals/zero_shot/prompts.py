"""The synthetic tasks as text: assignments and pairs, as documentation and code have them."""

from __future__ import annotations

import string

import numpy as np

from suite.evals.zero_shot.items import Item, stream

HOPS = (2, 3, 4)            # variable-to-variable assignments; the published battery asks for these
CLAUSES = (2, 3, 4)         # clauses of a LEGO chain; likewise
CHAINS = 3
PAIRS = 8
KEYS = ("apple", "bell", "book", "box", "cat", "chair", "cup", "desk", "dog", "door", "fish", "flag", "fork", "hat",
        "key", "lamp", "leaf", "map", "moon", "nut", "pen", "ring", "rope", "ship", "shoe", "star", "table", "tree",
        "wall", "wheel")


def variable_tracking(count: int, seed: int) -> list[Item]:
    """`K = 7`, `M = K`, ...: three interleaved chains; what is the last variable of one? (RULER, arXiv 2404.06654)"""
    rng = stream(seed, "variable_tracking")
    return [tracking(rng, HOPS[number % len(HOPS)]) for number in range(count)]


def tracking(rng: np.random.Generator, hops: int) -> Item:
    names = rng.permutation(list(string.ascii_uppercase))[:CHAINS * (hops + 1)].reshape(CHAINS, hops + 1)
    values = rng.permutation(10)[:CHAINS]
    told, lines = [0] * CHAINS, []
    for chain in rng.permutation(np.repeat(np.arange(CHAINS), hops + 1)):       # whose next statement comes
        hop = told[chain]
        lines.append(f"{names[chain, hop]} = {names[chain, hop - 1] if hop else values[chain]}\n")
        told[chain] += 1
    asked = int(rng.integers(CHAINS))
    prompt = "".join(lines) + f"{names[asked, -1]} ="
    return Item(prompt, tuple(f" {v}" for v in values), asked, 1 / CHAINS, f"hops={hops}", True)


def lego(count: int, seed: int) -> list[Item]:
    """`a = True`, `b = not a`, ... in random order; what is the last variable? (arXiv 2206.04301, truth as signs)

    The answers of each chain length alternate between True and False, so that a constant answer scores 1/2.
    """
    rng = stream(seed, "lego")
    return [clauses(rng, CLAUSES[number % len(CLAUSES)], number // len(CLAUSES) % 2) for number in range(count)]


def clauses(rng: np.random.Generator, length: int, wanted: int) -> Item:
    """A chain whose last variable is True where `wanted` is 0, False where it is 1."""
    names = rng.permutation(list(string.ascii_lowercase))[:length]
    flips = rng.integers(0, 2, length)
    flips[0] = (wanted + flips[1:].sum()) % 2
    right = [("not " if flip else "") + source for flip, source in zip(flips, ["True", *names], strict=False)]
    lines = [f"{names[n]} = {right[n]}\n" for n in rng.permutation(length)]
    return Item("".join(lines) + f"{names[-1]} =", (" True", " False"), wanted, 0.5, f"steps={length}", True)


def mqar(count: int, seed: int) -> list[Item]:
    """`lamp: 7`, `cup: 3`, ...; then one of the keys again (arXiv 2312.04927, one question an item)."""
    rng = stream(seed, "mqar")
    items = []
    for _ in range(count):
        keys, values = rng.permutation(KEYS)[:PAIRS], rng.permutation(10)[:PAIRS]
        asked = int(rng.integers(PAIRS))
        text = "".join(f"{key}: {value}\n" for key, value in zip(keys, values, strict=True))
        items.append(Item(f"{text}{keys[asked]}:", tuple(f" {v}" for v in values), asked, 1 / PAIRS, "", True))
    return items
