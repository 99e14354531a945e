"""Minimal pairs: of two sentences that differ in one grammatical point, does the model find the right one likelier?

With a folder: BLiMP, arxiv.org/abs/1912.00582 (Warstadt et al.), one JSON-lines file for each subset. Without one:
pairs made from templates, easier than BLiMP and labelled `blimp-offline`. A sentence follows the token that ends a
text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from lib.errors import require
from suite.evals.zero_shot import Item, rows, shares, stream

# (singular, plural); verbs likewise: (third person singular, plural)
NOUNS = (("boy", "boys"), ("girl", "girls"), ("dog", "dogs"), ("cat", "cats"), ("bird", "birds"), ("horse", "horses"),
         ("teacher", "teachers"), ("friend", "friends"), ("king", "kings"), ("farmer", "farmers"))
THINGS = (("box", "boxes"), ("tree", "trees"), ("house", "houses"), ("book", "books"), ("road", "roads"),
          ("river", "rivers"))
VERBS = (("runs", "run"), ("sleeps", "sleep"), ("walks", "walk"), ("sings", "sing"), ("plays", "play"),
         ("waits", "wait"))
ACTIONS = ("saw", "found", "helped", "liked", "asked", "moved")
PLACES = ("near", "behind", "under", "beside")
DETERMINERS = (("this", "these"), ("that", "those"))
PERSONS = (("boy", "himself"), ("girl", "herself"), ("king", "himself"), ("queen", "herself"), ("man", "himself"),
           ("woman", "herself"), ("father", "himself"), ("mother", "herself"))

Pair = tuple[str, str]          # (good, bad)


def both(beginning: str, good: str, bad: str) -> Pair:
    return f"{beginning} {good}.", f"{beginning} {bad}."


def agreement() -> list[Pair]:
    """Subject and verb, with another noun of the other number between them. (The two numbers alternate.)"""
    return [both(f"The {noun[n]} {place} the {thing[1 - n]}", verb[n], verb[1 - n])
            for noun, place, thing, verb in itertools.product(NOUNS, PLACES, THINGS, VERBS) for n in (0, 1)]


def determiners() -> list[Pair]:
    """Determiner and noun."""
    return [both(f"The {noun[0]} {action} {det[n]}", thing[n], thing[1 - n])
            for noun, action, det, thing in itertools.product(NOUNS, ACTIONS, DETERMINERS, THINGS) for n in (0, 1)]


def anaphors() -> list[Pair]:
    """A reflexive pronoun and its antecedent, by gender; both genders are asked alike."""
    other = {"himself": "herself", "herself": "himself"}
    every = itertools.product(PERSONS, PLACES, THINGS, ACTIONS)
    return [both(f"The {person} {place} the {thing[n]} {action}", pronoun, other[pronoun])
            for (person, pronoun), place, thing, action in every for n in (0, 1)]


TEMPLATES = {"subject_verb_agreement": agreement, "determiner_noun_agreement": determiners,
             "anaphor_gender_agreement": anaphors}


def offline(count: int) -> list[Item]:
    """`count` pairs, as many from each template (one more from the first ones where that does not divide)."""
    items = []
    for (subset, make), share in zip(TEMPLATES.items(), shares(count, len(TEMPLATES)), strict=True):
        pairs = make()
        require(share <= len(pairs), "count", count, f"at most {len(TEMPLATES) * len(pairs)} offline pairs")
        sentences = stream(subset).permutation(len(pairs) // 2)[:(share + 1) // 2]     # each stands there in both forms
        items += [as_item(pairs[2 * at + n], subset) for at in sentences for n in (0, 1)][:share]
    return items


def from_folder(folder: Path, count: int) -> list[Item]:
    """The first `count` pairs of every `*.jsonl` file, by its fields `sentence_good` and `sentence_bad`."""
    by_file = itertools.groupby(rows(folder, "sentence_good", "sentence_bad"), lambda row: row[0])
    return [as_item(pair, file) for file, pairs in by_file for _, *pair in itertools.islice(pairs, count)]


def as_item(pair: Sequence[str], subset: str) -> Item:
    return Item("", tuple(pair), 0, 0.5, subset, True)
