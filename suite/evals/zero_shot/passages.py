"""Items from held-out documents: the last word of a passage, and a name or a number that it has given before.

The answer stands earlier in the passage, as most of LAMBADA's target words do (arxiv.org/abs/1606.06031, Paperno et
al.). A passage is a piece of a document no longer than the model's training windows, so that a model can see all of it.
With a corpus of the hub: LAMBADA itself, facts of CounterFact, and BLiMP's minimal pairs.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lib.data import Corpus
from suite.evals.zero_shot import Item, rows, shares, stream

WORD = re.compile(r"[A-Za-z]+")
END_OF_SENTENCE = re.compile(r"[.!?]")
LAST_OF_SENTENCE = re.compile(r" ([A-Za-z]{4,})(?=[.!?])")
LAST_OF_TEXT = re.compile(r" ([A-Za-z]+)\W*\Z")
MENTIONS = (re.compile(r"(?<=[a-z,;] )[A-Z][a-z]+\b"), re.compile(r"(?<= )\d+\b"))     # names in a sentence; numbers
OTHERS = 3                  # wrong candidates of a cloze, where the passage has as many
FROM = 0.5                  # only the second half of a passage is asked for


def domains(corpus: Corpus, preferred: Sequence[str]) -> list[str]:
    """The domains of `preferred` that the corpus has, as the offline corpus does; if it has none, every domain."""
    return [d for d in preferred if d in corpus.domains] or list(corpus.domains)


def passages(corpus: Corpus, domain: str, limit: int) -> Iterator[str]:
    """Held-out documents, cut into pieces of at most `limit` and at least `limit / 4` tokens that begin with a word."""
    tokens, tokenizer = corpus.tokens("heldout", domain), corpus.tokenizer()
    starts = [*(int(s) for s in corpus.documents("heldout", domain)), len(tokens)]
    for first, end in itertools.pairwise(starts):
        for at in range(first, end, limit):
            piece = tokens[at:min(at + limit, end)]
            if 4 * len(piece) >= limit:
                text = tokenizer.decode(piece.tolist(), skip_special_tokens=True)
                yield text if at == first else text[text.find(" ") + 1:]


def spread(items: list[Item], count: int) -> list[Item]:
    """At most `count` of the items, evenly spaced, so that they come from as many documents as they can."""
    return [items[at] for at in np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int))]


def last_words(corpus: Corpus, count: int, limit: int) -> list[Item]:
    """The last word of a sentence, if it stands in the passage before that sentence. Domain: stories, if it exists."""
    texts = (text for domain in domains(corpus, ("stories",)) for text in passages(corpus, domain, limit))
    return spread([item for item in map(last_word, texts) if item is not None], count)


def last_word(text: str) -> Item | None:
    """The last sentence of the passage's second half whose last word can be asked for."""
    for match in reversed(list(LAST_OF_SENTENCE.finditer(text, int(FROM * len(text))))):
        ends = [end.end() for end in END_OF_SENTENCE.finditer(text, 0, match.start())]
        before = {word.lower() for word in WORD.findall(text[:ends[-1]])} if ends else set()
        if match[1].lower() in before:
            return said(text[:match.start()], match[1])
    return None


def said(passage: str, word: str) -> Item:
    """The word must be what the model says; a guess is one of the different words of the passage."""
    return Item(passage, (" " + word,), 0, 1 / len({w.lower() for w in WORD.findall(passage)}), "")


def lambada(folder: Path, count: int) -> list[Item]:
    """The first `count` passages of LAMBADA's JSON-lines files (field `text`) in order of their names."""
    texts = ((LAST_OF_TEXT.search(text), text) for _, text in rows(folder, "text"))
    items = (said(text[:match.start()], match[1])
             for match, text in texts if match and WORD.search(text[:match.start()]))
    return list(itertools.islice(items, count))


def facts(folder: Path, count: int) -> list[Item]:
    """`count` facts of CounterFact's JSON-lines files, evenly spaced: the prompt's object must be what the model says.

    A guess is one of the objects that the prompt's relation has.
    """
    known, objects = list(rows(folder, "relation_id", "prompt", "target_true")), defaultdict(set)
    for _, relation, _, target in known:
        objects[relation].add(target)
    return spread([Item(prompt, (" " + target,), 0, 1 / len(objects[relation]), relation)
                   for _, relation, prompt, target in known], count)


def blimp(folder: Path, count: int) -> list[Item]:
    """The first `count` pairs of every JSON-lines file of BLiMP, arxiv.org/abs/1912.00582 (Warstadt et al.)."""
    by_file = itertools.groupby(rows(folder, "sentence_good", "sentence_bad"), lambda row: row[0])
    return [Item("", tuple(pair), 0, 0.5, file, True)
            for file, pairs in by_file for _, *pair in itertools.islice(pairs, count)]


def cloze(corpus: Corpus, count: int, limit: int) -> list[Item]:
    """A name or number that the passage has given before, among others of its kind that it has given.

    Domains: stories and math of the offline corpus, else every domain; as many items from each that has some.
    """
    by_domain = []
    for domain in domains(corpus, ("stories", "math")):
        rng = stream(f"cloze {domain}")
        candidates = [blank_out(text, rng, domain) for text in passages(corpus, domain, limit)]
        if items := [item for item in candidates if item is not None]:
            by_domain.append(items)
    return [item for items, share in zip(by_domain, shares(count, len(by_domain)), strict=True)
            for item in spread(items, share)]


def blank_out(text: str, rng: np.random.Generator, domain: str) -> Item | None:
    """One mention of the passage's second half that can be asked for; None if there is none."""
    possible = []
    for kind in MENTIONS:
        mentions = [(m[0], m.start()) for m in kind.finditer(text)]
        for at, (word, start) in enumerate(mentions):
            before = list(dict.fromkeys(w for w, _ in mentions[:at]))
            if start >= FROM * len(text) and word in before and len(before) > 1:
                possible.append((word, start, [w for w in before if w != word]))
    if not possible:
        return None
    word, start, others = possible[int(rng.integers(len(possible)))]
    wrong = [others[i] for i in rng.permutation(len(others))[:OTHERS]]
    at = int(rng.integers(len(wrong) + 1))
    candidates = tuple(" " + w for w in (*wrong[:at], word, *wrong[at:]))
    return Item(text[:start - 1], candidates, at, 1 / len(candidates), domain)
