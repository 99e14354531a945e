"""Items that the suite makes: the synthetic tasks as text, as documentation and code have them, and minimal pairs."""

import string
from itertools import product

import numpy as np

from lib.errors import require
from suite.evals.zero_shot import Item, shares, stream

LENGTHS = (2, 3, 4)         # variable-to-variable assignments, or clauses of a LEGO chain; as the published battery
CHAINS = 3
PAIRS = 8
KEYS = ("apple bell book box cat chair cup desk dog door fish flag fork hat key lamp leaf map moon nut pen ring rope "
        "ship shoe star table tree wall wheel").split()
# (singular, plural); verbs likewise: (third person singular, plural)
NOUNS = [(noun, f"{noun}s") for noun in "boy girl dog cat bird horse teacher friend king farmer".split()]
THINGS = [("box", "boxes"), *((thing, f"{thing}s") for thing in "tree house book road river".split())]
VERBS = [(f"{verb}s", verb) for verb in "run sleep walk sing play wait".split()]
ACTIONS = ("saw", "found", "helped", "liked", "asked", "moved")
PLACES = ("near", "behind", "under", "beside")
DETERMINERS = (("this", "these"), ("that", "those"))
PRONOUNS = ("himself", "herself")
PERSONS = (("boy", "girl"), ("king", "queen"), ("man", "woman"), ("father", "mother"))      # as PRONOUNS


# Synthetic tasks

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


# Minimal pairs, easier than BLiMP (arxiv.org/abs/1912.00582): beginning, good end and bad end of a sentence. Neighbours
# in a list are one sentence in both forms.

TEMPLATES = {
    # with another noun of the other number between subject and verb
    "subject_verb_agreement": [
        (f"The {noun[n]} {place} the {thing[1 - n]}", verb[n], verb[1 - n])
        for noun, place, thing, verb in product(NOUNS, PLACES, THINGS, VERBS) for n in (0, 1)],
    "determiner_noun_agreement": [
        (f"The {noun[0]} {action} {det[n]}", thing[n], thing[1 - n])
        for noun, action, det, thing in product(NOUNS, ACTIONS, DETERMINERS, THINGS) for n in (0, 1)],
    "anaphor_gender_agreement": [
        (f"The {persons[m]} {place} the {thing[n]} {action}", PRONOUNS[m], PRONOUNS[1 - m])
        for persons, m, place, thing, action, n in product(PERSONS, (0, 1), PLACES, THINGS, ACTIONS, (0, 1))]}


def minimal_pairs(count: int) -> list[Item]:
    """`count` pairs of sentences, as many from each template: does the model find the right one likelier?

    A sentence follows the token that ends a text.
    """
    items = []
    for (subset, pairs), share in zip(TEMPLATES.items(), shares(count, len(TEMPLATES)), strict=True):
        require(share <= len(pairs), "count", count, f"at most {len(TEMPLATES) * len(pairs)} offline pairs")
        sentences = stream(subset).permutation(len(pairs) // 2)[:(share + 1) // 2]
        for beginning, *ends in [pairs[2 * at + n] for at in sentences for n in (0, 1)][:share]:
            items.append(Item("", tuple(f"{beginning} {end}." for end in ends), 0, 0.5, subset, True))
    return items
