"""Words, invented names, and a writer that fills templates: what the generators of stories and mathematics share."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import yaml

T = TypeVar("T")


_TEXTS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))
LEXICON = {name: [phrase.strip() for phrase in text.split(";")] if ";" in text else text.split()
           for name, text in _TEXTS.items()}
_STARTS = "b br d dr f fl g gr h j k kl l m n p pr r s sk st t tr v w z th sh".split()
_VOWELS = "a e i o u a e i o ai au ea oo".split()
_ENDS = ["", "", "", "l", "n", "r", "s", "m", "k", "t", "nd", "rn", "st", "lt", "sk", "x"]
_SLOT = re.compile(r"\[([^\]]*)\]|<(\w+)>")


class Writer:
    """Seeded choices. A template has `[one|another]` alternatives and `<slots>`.

    An argument or a random word of the lexicon fills a slot.
    """

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed).random    # the only call used, as its values do not change between Pythons
        self._names: set[str] = set()

    def number(self, low: int, high: int) -> int:
        return low + int(self.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different ones, in random order."""
        left = list(options)
        return [left.pop(int(self.random() * len(left))) for _ in range(count)]

    def write(self, template: str, **slots: object) -> str:
        """The template with its alternatives chosen and its slots filled, from left to right."""
        def filled(match: re.Match[str]) -> str:
            alternatives, slot = match.groups()
            if slot:
                return str(slots[slot]) if slot in slots else self.pick(LEXICON[slot])
            return self.write(self.pick(alternatives.split("|")), **slots)
        return _SLOT.sub(filled, template)

    def name(self, syllables: int = 0) -> str:
        """An invented word with a capital, of two or three syllables unless told; none is the start of another."""
        while True:
            count = syllables or self.number(2, 3)
            word = "".join(self.pick(_STARTS) + self.pick(_VOWELS) for _ in range(count)) + self.pick(_ENDS)
            if not any(word.startswith(other) or other.startswith(word) for other in self._names):
                self._names.add(word)
                return word.capitalize()


def finished(text: str) -> str:
    """`a` before a vowel becomes `an`."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def sentence(text: str) -> str:
    """The first letter, also of a quotation, becomes a capital."""
    start = 1 if text.startswith('"') else 0
    return text[:start] + text[start].upper() + text[start + 1:]


def listed(items: Sequence[str]) -> str:
    """`x, y and z`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
