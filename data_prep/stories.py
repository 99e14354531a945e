"""`stories`: tales that have to be remembered. What is told early (who, where, how many, which words) returns hundreds of
tokens later and is repeated exactly; a purse and an object that changes hands are kept track of throughout.

Names are invented anew for every story, so that only the story itself tells them. Number `n` of seed `s` is always the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.sources import Document
from data_prep.story_facts import KINDS, Slots, item
from data_prep.words import Writer, finished, sentence

OPENINGS = (
    "[Once|Long ago|In the old days|Many winters ago] there lived in <home> a young <trade> whose name was <hero>.",
    "<hero> was a <trade> in <home>, and <adj> for that.",
    "In <home>, between the <adj> <place> and the <adj> <place>, everyone knew <hero>, the <trade>.",
    "This is the story of <hero>, a <trade> who left <home> with a <adj> <animal> and came back with none.",
    "When <hero> was a child in <home>, <weather> for a whole month, and nobody wondered.",
    "<hero> had never left <home> before the year in which <weather> until summer.",
)
FRIENDS = (
    "<friend>, <hero>'s friend, was <feeling> as always and came along.",
    "With <hero> went <friend>, who carried <food> and a <adj> <thing>.",
    "<friend> the <trade> asked no questions, took a <material> <thing> and went too.",
    "Nobody wanted to go, but <friend> did, for the sake of <moral>.",
)
TRAVEL = (
    "[They walked|They rode|They went on] along the <adj> <place> to <town>, where <weather>.",
    "<time> they came to <town>, [a <adj> village|a <adj> town|three houses and a <landmark>].",
    "The road to <town> crossed a <adj> <place> and a <place> that was <adj> and <adj>.",
    "Behind the <adj> <landmark> lay <town>. [It smelled of <food>.|A <animal> looked at them.|Nobody was about.]",
    "It took <days> days to <town>, [for <weather>|uphill all the way|and <friend> had lost a boot].",
    "<friend> pointed at the <landmark> of <town>. \"[There it is|At last|Not one step more],\" <friend> said <how>.",
)
FILLERS = (
    "<time> <weather>, and <hero> was <feeling>.",
    "A <adj> <animal> sat on the <landmark> and did not move.",
    "\"[Are you|Why are you so|Who would not be] <feeling>?\" asked <friend> <how>.",
    "They heard <sound> from the <landmark>, and then <sound>.",
    "<friend> ate <food> and <food> and was <feeling>.",
    "<hero> found a <adj> <thing> beside the <landmark>, [and left it there|broken in two|but it was of no use].",
    "The <trade> of <town> sold <goods> and <goods>, [all of them <adj>|some <adj>, some <adj>|none of them good].",
    "\"What one needs is <moral>,\" said a <adj> <trade>, \"and perhaps <food>.\"",
    "There was no <trade> in <town>, only a <adj> <animal> and a <landmark> of <material>.",
    "<weather>. <friend> put on a <colour> <thing> and said nothing.",
    "A <trade> and a <trade> were [quarrelling|laughing|talking] about a <adj> <animal>.",
    "The <place> was <adj>, the <place> behind it <adj>, [and the nights were <adj>|and so were the people].",
    "<hero> dreamed of a <colour> <animal> that carried a <thing> in its mouth.",
    "[Somebody|A child|An old <trade>] had left a <material> <thing> at the <landmark>.",
    "They asked for <food>, but there was only <food>, and that was <adj>.",
    "\"In my <place>,\" said <friend>, \"[a <animal> is worth ten <goods>|nobody counts <goods>|they fear the <animal>].\"",
    "The <animal> and the <animal> are <adj> neighbours, as people say in <town>.",
    "<hero> mended a <thing> for the <trade> and got <food> for it.",
    "All the <goods> of <town> were <adj> that year, [for <weather>|and nobody knew why|so they ate <food>].",
    "\"<moral>!\" cried the <trade>. \"[That is all|What else|I have none], <friend>!\"",
)
SPEND = (
    "<hero> [paid|gave] <amount> coins for a <adj> <thing> and had <purse> coins left.",
    "A <thing> of <material> cost <hero> <amount> coins, so that <purse> coins were left.",
    "\"That makes <amount> coins,\" said the <trade>. <hero> paid; now the purse held <purse> coins.",
    "They lost <amount> coins [at dice|in the <place>|to a thief]. <hero> counted: <purse> coins.",
)
EARN = (
    "For a day's work <hero> got <amount> coins and had <purse> coins now.",
    "<hero> sold the <adj> <thing> for <amount> coins, which made <purse> coins in all.",
    "In a <adj> <thing> they found <amount> coins. Now the purse held <purse> coins.",
)
HAND_ON = (
    "<giver> gave the <treasure> to <taker>, [to be safe|for the night|and was <feeling>].",
    "\"You carry it now,\" said <giver>, and <taker> took the <treasure>.",
    "<taker> asked <giver> for the <treasure> and got it.",
)
HELD = (
    "<giver> still had the <treasure>, [wrapped in <material>|and looked at it every evening|and told nobody].",
    "Where was the <treasure>? <giver> had it.",
)
ENDINGS = (
    "So <hero> came home to <home> with <purse> coins, and <holder> had the <treasure>.",
    "<time> they saw the roofs of <home>. There were <purse> coins in the purse, and <holder> carried the <treasure>.",
    "In <home> nobody believed it. But <holder> had the <treasure> to show, and <hero> had <purse> coins.",
)
QUIZ = (("Question: <q>\nAnswer: <a>.", "\n"), ("\"<q>\" they asked. \"<a>,\" said <hero>.", " "),
        ("- <q> <a>.", "\n"), ("\"<q>\" asked the children of <home>. And <friend> answered: \"<a>.\"", "\n"))


@dataclass
class Told:
    """A fact, the number of the scene that told it, and how often later ones recalled it."""
    kind: str
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
        kinds = itertools.cycle(w.some(list(KINDS), len(KINDS)))
        scenes = w.number(7, 15)
        paragraphs = [self._opening(other)]
        for scene in range(scenes):
            paragraphs.append(self._scene(scene, next(kinds) if scene < 2 * scenes // 3 else None))
        self.text = finished("\n\n".join([*paragraphs, self._ending()]))

    def _write(self, template: str, **slots: object) -> str:
        names = {"hero": self.hero, "friend": self.friend, "home": self.home, "purse": self.purse, "treasure": self.treasure}
        return sentence(self.w.write(template, **{**names, **slots}))

    def _opening(self, other: str) -> str:
        lines = [self.w.pick(OPENINGS), "<hero> had <purse> coins.", self.w.pick(FRIENDS),
                 "A third one came too, <other>, [a <trade>|for <moral>|with a <adj> <animal>].",
                 "They took with them a <treasure>, and <holder> carried it."]
        return " ".join(self._write(line, other=other, holder=self.holder) for line in lines)

    def _scene(self, scene: int, kind: str | None) -> str:
        """A place, what happens there, a new fact if `kind` is given, and an older one that returns."""
        w, town = self.w, self.w.name()
        lines = [self._write(w.pick(TRAVEL), town=town, days=w.number(2, 9))]
        body = [self._write(filler, town=town) for filler in w.some(FILLERS, w.number(1, 3))]
        if kind:
            body.append(self._tell(kind, scene))
        if w.chance(0.6):
            body.append(self._trade())
        if w.chance(0.4):
            body.append(self._hand_on())
        gap = w.pick((1, 2, 3, 5))      # scenes of about 150 tokens: some recalls fit a short window, most do not
        if old := [fact for fact in self.told if fact.scene <= scene - gap]:
            least = min(fact.recalls for fact in old)
            body.append(self._recall(w.pick([fact for fact in old if fact.recalls == least])))
        return " ".join([*lines, *w.some(body, len(body))])

    def _tell(self, kind: str, scene: int) -> str:
        slots = KINDS[kind].slots(self.w)
        self.told.append(Told(kind, slots, scene))
        return self._write(self.w.pick(KINDS[kind].tell), **slots)

    def _recall(self, fact: Told) -> str:
        fact.recalls += 1
        return self._write(self.w.pick(KINDS[fact.kind].recall), **fact.slots)

    def _trade(self) -> str:
        spend = self.purse > 20 and self.w.chance(0.6)
        amount = self.w.number(2, self.purse - 5 if spend else 60)
        self.purse += -amount if spend else amount
        return self._write(self.w.pick(SPEND if spend else EARN), amount=amount)

    def _hand_on(self) -> str:
        giver = self.holder
        if self.w.chance(0.3):
            return self._write(self.w.pick(HELD), giver=giver)
        self.holder = self.w.pick([person for person in self.people if person != giver])
        return self._write(self.w.pick(HAND_ON), giver=giver, taker=self.holder)

    def _ending(self) -> str:
        """The end, and questions about what was told, each with its answer."""
        w = self.w
        layout, joint = w.pick(QUIZ)
        about = w.some(self.told, min(len(self.told), w.number(3, 6)))
        questions = [(w.pick(KINDS[fact.kind].ask), fact.slots) for fact in about]
        questions.append((("Who had the <treasure> in the end?", self.holder), {}))
        asked = [self._write(layout, q=self._write(question, **slots), a=self._write(answer, **slots))
                 for (question, answer), slots in questions]
        return self._write(w.pick(ENDINGS), holder=self.holder) + "\n\n" + joint.join(asked)


def stories(seed: int) -> Iterator[Document]:
    """Without end."""
    for number in itertools.count():
        yield Document(f"story {number}", Story(seed, number).text)
