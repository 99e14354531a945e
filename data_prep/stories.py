"""`stories`: tales that have to be remembered. What is told early (who, where, how many, which words) returns hundreds
of tokens later and is repeated exactly. A purse and an object that changes hands are tracked throughout.

The sentences are in stories.yaml. Names are invented anew for every story, so that only the story itself tells them.
Story `n` of seed `s` is always the same.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from data_prep.words import LEXICON, Writer, finished, listed, sentence

Slots = dict[str, str]
QUIZ = (("Question: <q>\nAnswer: <a>.", "\n"), ("\"<q>\" they asked. \"<a>,\" said <hero>.", " "),
        ("- <q> <a>.", "\n"), ("\"<q>\" asked the children of <home>. And <friend> answered: \"<a>.\"", "\n"))


def _templates(block: str) -> tuple[str, ...]:
    """The templates of a block of stories.yaml: one a line, where an indented line continues the one before."""
    return tuple(re.sub(r"\n +", " ", block.strip()).split("\n"))


_TEXTS = yaml.safe_load(Path(__file__).with_name("stories.yaml").read_text("utf-8"))
TEMPLATES = {name: _templates(block) for name, block in _TEXTS.items() if name != "facts"}


@dataclass(frozen=True)
class Kind:
    """A kind of fact: how each of its slots is drawn, and the templates that tell it, recall it and ask for it."""
    draws: dict[str, str | list[int]]
    tell: tuple[str, ...]
    recall: tuple[str, ...]
    ask: tuple[str, ...]            # question and answer

    def slots(self, w: Writer) -> Slots:
        slots: Slots = {}
        for name, draw in self.draws.items():
            if isinstance(draw, list):
                made = str(w.number(*draw))
            elif draw.startswith("@"):
                made = MAKERS[draw[1:]](w)
            else:
                made = w.name() if draw == "name" else w.write(draw)
            slots |= made if isinstance(made, dict) else {name: made}
        return slots


KINDS = [Kind(texts["slots"], *(_templates(texts[use]) for use in ("tell", "recall", "ask")))
         for texts in _TEXTS["facts"].values()]


def item(w: Writer) -> str:
    return w.write(w.pick(TEMPLATES["items"]))


def spot(w: Writer) -> str:
    nth = w.pick(LEXICON["nth"])
    return w.write(w.pick(TEMPLATES["spots"]), nth=nth)


def way(w: Writer) -> Slots:
    """A way there, and the same way back."""
    marks = [w.write("<adj> <landmark>") for _ in range(w.number(3, 5))]
    there = [(w.pick(("left", "right")), mark) for mark in marks]
    back = [("right" if side == "left" else "left", mark) for side, mark in there[::-1]]
    return {name: ", ".join(f"{side} at the {mark}" for side, mark in turns)
            for name, turns in (("there", there), ("back", back))}


def verse(w: Writer) -> str:
    number = w.pick(("three", "seven", "nine", "twelve", "forty"))
    return ", ".join(w.write(line, number=number).lower() for line in w.some(TEMPLATES["verses"], 2))


def amounts(w: Writer) -> str:
    foods, measures = w.some(LEXICON["food"], 3), w.some(LEXICON["measure"], 3)
    return listed([f"{w.number(2, 19)} {measure} of {food}" for measure, food in zip(measures, foods, strict=True)])


MAKERS: dict[str, Callable[[Writer], str | Slots]] = {
    "item": item, "spot": spot, "way": way, "verse": verse, "amounts": amounts,
    "inn": lambda w: w.write("[<colour>|<adj>] <animal>").title(),
    "word": lambda w: w.name(3).lower(),
    "dish": lambda w: w.write(f"{w.name()} [pie|soup|cake|stew|bread]"),
    "numbers": lambda w: listed([str(w.number(1, 99)) for _ in range(w.number(3, 5))]),
    "list": lambda w: listed([f"a {item(w)}" for _ in range(3)]),
    "load": lambda w: w.write(f"{w.number(3, 95)} [crates|barrels|boxes|bundles] of <goods>"),
}


@dataclass
class Told:
    """A fact, the number of the scene that told it, and how often later ones recalled it."""
    kind: Kind
    slots: Slots
    scene: int
    recalls: int = 0


class Story:
    """State of a story while it is written; `text` is whole after construction."""

    def __init__(self, seed: int, number: int) -> None:
        w = self.w = Writer(f"stories/{seed}/{number}")
        self.home, self.hero, self.friend, other = w.name(), w.name(), w.name(), w.name()
        self.people = [self.hero, self.friend, other]
        self.purse = w.number(20, 120)
        self.treasure, self.holder = item(w), w.pick(self.people)
        self.told: list[Told] = []
        kinds = itertools.cycle(w.some(KINDS, len(KINDS)))
        scenes = w.number(7, 15)
        paragraphs = [self._opening(other)]
        for scene in range(scenes):
            paragraphs.append(self._scene(scene, next(kinds) if scene < 2 * scenes // 3 else None))
        self.text = finished("\n\n".join([*paragraphs, self._ending()]))

    def _write(self, template: str, **slots: object) -> str:
        names = {"hero": self.hero, "friend": self.friend, "home": self.home, "purse": self.purse,
                 "treasure": self.treasure}
        return sentence(self.w.write(template, **names | slots))

    def _opening(self, other: str) -> str:
        lines = [self.w.pick(TEMPLATES["openings"]), "<hero> had <purse> coins.", self.w.pick(TEMPLATES["friends"]),
                 "A third one came too, <other>, [a <trade>|for <moral>|with a <adj> <animal>].",
                 "They took with them a <treasure>, and <holder> carried it."]
        return " ".join(self._write(line, other=other, holder=self.holder) for line in lines)

    def _scene(self, scene: int, kind: Kind | None) -> str:
        """A place, what happens there, a new fact if `kind` is given, and an older one that returns."""
        w, town = self.w, self.w.name()
        lines = [self._write(w.pick(TEMPLATES["travel"]), town=town, days=w.number(2, 9))]
        body = [self._write(filler, town=town) for filler in w.some(TEMPLATES["fillers"], w.number(1, 3))]
        if kind:
            self.told.append(Told(kind, kind.slots(w), scene))
            body.append(self._write(w.pick(kind.tell), **self.told[-1].slots))
        if w.chance(0.6):
            body.append(self._trade())
        if w.chance(0.4):
            body.append(self._hand_on())
        gap = w.pick((1, 2, 3, 5))      # scenes of about 150 tokens: some recalls fit a short window, most do not
        if old := [fact for fact in self.told if fact.scene <= scene - gap]:
            least = min(fact.recalls for fact in old)
            fact = w.pick([fact for fact in old if fact.recalls == least])
            fact.recalls += 1
            body.append(self._write(w.pick(fact.kind.recall), **fact.slots))
        return " ".join([*lines, *w.some(body, len(body))])

    def _trade(self) -> str:
        spend = self.purse > 20 and self.w.chance(0.6)
        amount = self.w.number(2, self.purse - 5 if spend else 60)
        self.purse += -amount if spend else amount
        return self._write(self.w.pick(TEMPLATES["spend" if spend else "earn"]), amount=amount)

    def _hand_on(self) -> str:
        giver = self.holder
        if self.w.chance(0.3):
            return self._write(self.w.pick(TEMPLATES["held"]), giver=giver)
        self.holder = self.w.pick([person for person in self.people if person != giver])
        return self._write(self.w.pick(TEMPLATES["hand_on"]), giver=giver, taker=self.holder)

    def _ending(self) -> str:
        """The end, and questions about what was told, each with its answer."""
        w = self.w
        layout, joint = w.pick(QUIZ)
        about = w.some(self.told, min(len(self.told), w.number(3, 6)))
        questions = [(*w.pick(fact.kind.ask).split("? "), fact.slots) for fact in about]
        questions.append(("Who had the <treasure> in the end", self.holder, {}))
        asked = [self._write(layout, q=self._write(f"{question}?", **slots), a=self._write(answer, **slots))
                 for question, answer, slots in questions]
        return self._write(w.pick(TEMPLATES["endings"]), holder=self.holder) + "\n\n" + joint.join(asked)
