"""Words, invented names, and a writer that fills templates: what the generators of stories and mathematics share."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

_LEXICON = """
adj: old small tall narrow quiet bright heavy crooked gentle rough pale dusty hollow broken careful proud strange simple worn
 smooth bitter sweet damp cold warm lonely busy cheerful silent steep flat rusty polished crumbling painted plain sturdy
 faded clean muddy frozen golden tired lazy clever stubborn patient greedy honest weary famous forgotten sunken slender
 round square tangled windy shady sleepy noisy swift slow lame brave timid solemn merry
colour: red blue green yellow white black grey brown purple orange pink silver crimson scarlet violet amber ivory turquoise
material: copper iron silver brass tin oak pine walnut cedar clay glass stone leather wool linen silk bone horn wax paper
 straw marble bronze pewter
thing: lantern key ring cup knife flute drum mirror comb basket box bell book map compass candle kettle spoon needle hammer
 saw rope net sack jar bottle plate bowl bracelet brooch coat cloak hat belt glove boot chair stool cradle wheel anchor
 whistle lute harp telescope lens clock statue mask crown medal seal quill inkwell ladder lock chain hook shovel pitchfork
goods: apples pears plums eggs loaves candles nails buttons beads ribbons bricks tiles bottles barrels sacks baskets lemons
 onions turnips carrots cabbages fish herrings pies cakes cheeses needles ropes planks stones feathers shells seeds bulbs
 horseshoes blankets
landmark: well oak chapel bridge mill gate tower barn fountain wall orchard quarry stable bakery forge harbour lighthouse
 ferry cave waterfall windmill graveyard market granary dovecote cellar attic chimney stairway signpost milestone beehive
 boathouse ruin shrine courtyard hedge pond
animal: dog cat goat donkey horse fox owl crow goose hen duck otter badger hare hedgehog pony ox calf lamb ram falcon raven
 heron stork swallow pigeon weasel squirrel mule turtle
food: bread soup porridge stew cheese honey apples nuts mushrooms dumplings pancakes pickles sausage fish plums berries
 pudding barley beans leeks butter cream
trade: miller smith weaver baker potter fisher tailor cooper carpenter shepherd ferryman clerk teacher gardener hunter
 mason tanner glazier printer brewer saddler cobbler barber sailor beekeeper roofer fiddler clockmaker
part: left hand;right hand;left ear;right ear;chin;forehead;left cheek;right cheek;neck;left thumb;right wrist;left shoulder
feeling: afraid glad angry curious hungry thirsty lonely hopeful ashamed proud puzzled sleepy relieved worried surprised
 grateful restless content
how: slowly quickly quietly carefully loudly gladly sadly at once;without a word;in the end;with a sigh;with a smile;softly
 again;after a while;in silence;all the same
weather: rain fell;snow was falling;fog lay on the fields;the wind blew from the north;the sun was hot;it was cold and clear
 clouds hung low;it thundered far away;frost covered the grass;a warm wind came up;hail beat on the roofs;the sky was red
time: in the morning;at noon;towards evening;late at night;before sunrise;after supper;on the next day;two days later
 a week later;the same evening;at first light;after the rain;when the bells rang;one afternoon
place: road river hill forest valley field meadow moor marsh shore lake village island pass canyon heath wood stream
sound: a creak;a whisper;a long whistle;footsteps;a splash;a distant bell;singing;a low growl;the crack of a branch
 laughter;a door that closed;hooves;the call of an owl;a cough
moral: patience;a good memory;an honest word;a warm coat;courage;a friend;a full purse;a sharp eye;luck;a promise;silence
"""


def _lexicon() -> dict[str, list[str]]:
    """An entry's words are separated by spaces, those with a space inside by semicolons or line ends."""
    result = {}
    for name, words in re.findall(r"^(\w+): (.*(?:\n .*)*)", _LEXICON, re.MULTILINE):
        phrases = ";" in words
        result[name] = [w.strip() for w in (re.split(r";|\n", words) if phrases else words.split())]
    return result


LEXICON = _lexicon()
_STARTS = "b br d dr f fl g gr h j k kl l m n p pr r s sk st t tr v w z th sh".split()
_VOWELS = "a e i o u a e i o ai au ea oo".split()
_ENDS = ["", "", "", "l", "n", "r", "s", "m", "k", "t", "nd", "rn", "st", "lt", "sk", "x"]
_SLOT = re.compile(r"\[([^\]]*)\]|<(\w+)>")


@lru_cache(maxsize=None)
def _parts(template: str) -> tuple[str | tuple[str, ...], ...]:
    """Literal text, a tuple of alternatives, or a tuple of one name that starts with `<`."""
    parts: list[str | tuple[str, ...]] = []
    end = 0
    for match in _SLOT.finditer(template):
        parts += [template[end:match.start()], ("<" + match[2],) if match[2] else tuple(match[1].split("|"))]
        end = match.end()
    return tuple(p for p in (*parts, template[end:]) if p)


class Writer:
    """Seeded choices. A template has `[one|another]` alternatives and `<slots>`, filled by arguments or from the lexicon."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed).random    # the only call used, as its values do not change between Pythons
        self._names: set[str] = set()

    def number(self, low: int, high: int) -> int:
        """An integer, low <= n <= high."""
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
        return "".join(self._part(part, slots) for part in _parts(template))

    def _part(self, part: str | tuple[str, ...], slots: dict[str, object]) -> str:
        if isinstance(part, str):
            return part
        if part[0].startswith("<") and len(part) == 1 and ">" not in part[0]:
            name = part[0][1:]
            return str(slots[name]) if name in slots else self.pick(LEXICON[name])
        return self.write(self.pick(part), **slots)

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
