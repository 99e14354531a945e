"""The synthetic tasks as text: assignments and pairs, as documentation and code have them."""

from __future__ import annotations

import string

import numpy as np

from suite.evals.zero_shot import Item, stream

LENGTHS = (2, 3, 4)         # variable-to-variable assignments, or clauses of a LEGO chain; as the published battery
CHAINS = 3
PAIRS = 8
KEYS = ("apple", "bell", "book", "box", "cat", "chair", "cup", "desk", "dog", "door", "fish", "flag", "fork", "hat",
        "key", "lamp", "leaf", "map", "moon", "nut", "pen", "ring", "rope", "ship", "shoe", "star", "table", "tree",
        "wall", "wheel")


def variable_tracking(count: int) -> list[Item]:
    """`K = 7`, `M = K`, ...: three interleaved chains; what is the last variable of one? (RULER, arXiv 2404.06654)"""
    rng, items = stream("variable_tracking"), []
    for number in range(count):
        hops = LENGTHS[number % len(LENGTHS)]
        names = rng.permutation(list(string.ascii_uppercase))[:CHAINS * (hops + 1)].reshape(CHAINS, hops + 1)
        values = rng.permutation(10)[:CHAINS]
        told, lines = [0] * CHAINS, []
        for chain in rng.permutation(np.repeat(np.arange(CHAINS), hops + 1)):       # whose next statement comes
            hop = told[chain]
            lines.append(f"{names[chain, hop]} = {names[chain, hop - 1] if hop else values[chain]}\n")
            told[chain] += 1
        asked = int(rng.integers(CHAINS))
        items.append(chosen("".join(lines) + f"{names[asked, -1]} =", values, asked, f"hops={hops}"))
    return items


def lego(count: int) -> list[Item]:
    """`a = True`, `b = not a`, ... in random order; what is the last variable? (arXiv 2206.04301, truth as signs)

    The answers of each chain length alternate between True and False, so that a constant answer scores 1/2.
    """
    rng, items = stream("lego"), []
    for number in range(count):
        length, wanted = LENGTHS[number % len(LENGTHS)], number // len(LENGTHS) % 2        # 0: the answer is True
        names = rng.permutation(list(string.ascii_lowercase))[:length]
        flips = rng.integers(0, 2, length)
        flips[0] = (wanted + flips[1:].sum()) % 2
        right = [("not " if flip else "") + source for flip, source in zip(flips, ["True", *names], strict=False)]
        lines = [f"{names[n]} = {right[n]}\n" for n in rng.permutation(length)]
        items.append(chosen("".join(lines) + f"{names[-1]} =", ("True", "False"), wanted, f"steps={length}"))
    return items


def mqar(count: int) -> list[Item]:
    """`lamp: 7`, `cup: 3`, ...; then one of the keys again (arXiv 2312.04927, one question an item)."""
    rng, items = stream("mqar"), []
    for _ in range(count):
        keys, values = rng.permutation(KEYS)[:PAIRS], rng.permutation(10)[:PAIRS]
        asked = int(rng.integers(PAIRS))
        text = "".join(f"{key}: {value}\n" for key, value in zip(keys, values, strict=True))
        items.append(chosen(f"{text}{keys[asked]}:", values, asked, ""))
    return items


def chosen(prompt: str, values: np.ndarray | tuple[str, ...], answer: int, split: str) -> Item:
    """A question whose candidates are all `values` of the prompt."""
    return Item(prompt, tuple(f" {value}" for value in values), answer, 1 / len(values), split, True)
