"""What a story says early and needs again later: each kind of fact with the ways to tell it, to recall it and to ask for it.

`<hero>` and `<friend>` are the story's people; every other slot belongs to the fact, and each recall repeats some of them
exactly. A slot from the lexicon (`<adj>`, `<time>`, …) is drawn anew each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from data_prep.words import LEXICON, Writer, listed

Slots = dict[str, str]


@dataclass(frozen=True)
class Kind:
    slots: Callable[[Writer], Slots]
    tell: tuple[str, ...]
    recall: tuple[str, ...]
    ask: tuple[tuple[str, str], ...]      # question, answer


def item(w: Writer) -> str:
    return w.write(w.pick(("<adj> <material> <thing>", "<colour> <thing>", "<material> <thing>", "<adj> <colour> <thing>")))


def spot(w: Writer) -> str:
    nth = w.pick(("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "ninth", "tenth", "last"))
    return w.write(w.pick((f"under the {nth} [stair|step|plank] of the <adj> <landmark>",
                           f"behind the {nth} [stone|brick|board] of the <landmark>",
                           "in the <adj> [chest|cupboard|barrel|drawer] of the <material> <landmark>",
                           "beneath the <adj> [doorstep|floor|hearth] of the <landmark>")))


def turns(w: Writer) -> tuple[str, str]:
    """A way there, and the same way back."""
    marks = [w.write("<adj> <landmark>") for _ in range(w.number(3, 5))]
    sides = [w.pick(("left", "right")) for _ in marks]
    other = {"left": "right", "right": "left"}
    there = [f"{side} at the {mark}" for side, mark in zip(sides, marks, strict=True)]
    back = [f"{other[side]} at the {mark}" for side, mark in zip(sides[::-1], marks[::-1], strict=True)]
    return ", ".join(there), ", ".join(back)


def verse(w: Writer) -> str:
    lines = ("The <adj> <animal> sleeps by the <colour> <landmark>", "The <colour> <thing> turns and the <animal> cries",
             "O <adj> <place>, o <adj> <place>", "Who lost a <thing> shall find a <thing>",
             "<number> <goods> for the <trade>", "No <trade> knows the <adj> <place>", "Give the <animal> <food> and <food>",
             "The <landmark> is <adj>, the <landmark> is <adj>")
    number = w.pick(("three", "seven", "nine", "twelve", "forty"))
    return ", ".join(w.write(line, number=number).lower() for line in w.some(lines, 2))


def _inn(w: Writer) -> Slots:
    inn = w.write("[<colour>|<adj>] <animal>").title()
    return {"inn": inn, "keeper": w.name(), "room": str(w.number(2, 98))}


def _path(w: Writer) -> Slots:
    there, back = turns(w)
    return {"village": w.name(), "there": there, "back": back, "guide": w.name()}


def _recipe(w: Writer) -> Slots:
    foods = w.some(LEXICON["food"], 3)
    amounts = [f"{w.number(2, 19)} {measure} of {food}" for measure, food in
               zip(w.some(("cups", "spoons", "pounds", "bowls", "handfuls", "jars"), 3), foods, strict=True)]
    return {"cook": w.name(), "dish": w.write(f"{w.name()} [pie|soup|cake|stew|bread]"), "amounts": listed(amounts)}


def _numbers(w: Writer) -> Slots:
    numbers = listed([str(w.number(1, 99)) for _ in range(w.number(3, 5))])
    return {"numbers": numbers, "chest": w.write("<adj> <material> chest"), "sender": w.name()}


def _letter(w: Writer) -> Slots:
    month = w.pick(("January", "March", "April", "June", "August", "October", "December"))
    wanted = listed([f"a {item(w)}" for _ in range(3)])
    return {"sender": w.name(), "day": str(w.number(1, 30)), "month": month, "list": wanted}


def _with(*names: str, **makers: Callable[[Writer], str]) -> Callable[[Writer], Slots]:
    return lambda w: {**{name: w.name() for name in names}, **{key: make(w) for key, make in makers.items()}}


def _drawn(template: str) -> Callable[[Writer], str]:
    return lambda w: w.write(template)


def _between(low: int, high: int) -> Callable[[Writer], str]:
    return lambda w: str(w.number(low, high))


KINDS: dict[str, Kind] = {
    "inn": Kind(
        _inn,
        ("[They slept|They took shelter|There was a bed] in room <room> of the <inn>, a <adj> inn that <keeper> kept.",
         "<keeper>, who kept the <inn>, gave them room <room> and a <adj> supper of <food>.",
         "At the <inn> [a <adj> host|the host], <keeper> by name, handed over the key of room <room>."),
        ("[<hero> thought of|Nobody had forgotten|They talked about] room <room> of the <inn>, and <keeper>, who kept it.",
         "\"Do you remember the <inn>?\" asked <friend>. \"<keeper> kept it, and we had room <room>,\" said <hero>.",
         "A letter came from <keeper> of the <inn>: in room <room> somebody had left a <adj> <thing>."),
        (("Who kept the <inn>?", "<keeper>"), ("Which room did they have at the <inn>?", "room <room>"))),
    "hidden": Kind(
        _with("owner", item=item, spot=spot),
        ("Long ago <owner> had hidden the <item> <spot>, [and few knew of it|for fear of thieves|and never came back].",
         "\"Listen well,\" said the old <trade>. \"The <item> lies <spot>. It was <owner> who put it there.\"",
         "On the last page stood: I, <owner>, have laid the <item> <spot>."),
        ("<hero> knew where to look for the <item>: <spot>. [There <owner> had put it|<owner> had said so].",
         "\"Where did <owner> put the <item>?\" \"It is <spot>,\" [said|whispered|answered] <hero>.",
         "They searched <spot>, and there, as they had heard, lay the <item> of <owner>."),
        (("Where was the <item> hidden?", "<spot>"), ("Who hid the <item>?", "<owner>"))),
    "password": Kind(
        _with("guard", word=lambda w: w.name(3).lower(), door=_drawn("<adj> [door|gate] of the <adj> <landmark>")),
        ("The <door> opened only to the word \"<word>\", which <guard> the [guard|watchman|porter] had taught them.",
         "\"Whoever stands before the <door> must say <word>,\" said <guard>. \"<word>, and nothing else.\"",
         "<guard> whispered the word for the <door>. It was \"<word>\"."),
        ("Before the <door> <hero> [took a breath|stood still|waited] and said \"<word>\". It opened.",
         "\"What was the word for the <door>?\" asked <friend>. \"<word>,\" said <hero>, \"as <guard> told us.\"",
         "Nobody but <guard> and <hero> knew that \"<word>\" opens the <door>."),
        (("Which word opens the <door>?", "<word>"), ("Who taught them the word <word>?", "<guard>"))),
    "debt": Kind(
        _with("lender", "village", count=_between(3, 89), lent=_drawn("<adj> <goods>")),
        ("<hero> borrowed <count> <lent> from <lender> of <village> and promised to [give them back|return them all].",
         "In <village> a <trade> named <lender> lent them <count> <lent>, to be returned before winter.",
         "\"Take my <count> <lent>,\" said <lender>, \"but bring them back to <village>.\""),
        ("<hero> had not forgotten the <count> <lent> that <lender> of <village> had lent them.",
         "<time> they sent <count> <lent> to <village>, so that <lender> had them back.",
         "\"What do we owe <lender>?\" \"<count> <lent>, and a visit to <village>,\" said <friend>."),
        (("How many <lent> did <lender> lend?", "<count>"), ("In which village does <lender> live?", "<village>"))),
    "verse": Kind(
        _with("singer", verse=verse),
        ("<singer> the <trade> sang [a song|an old rhyme]: \"<verse>.\"",
         "There was a rhyme that <singer> had from the grandmothers: \"<verse>.\"",
         "On the wall <singer> had painted these words: \"<verse>.\""),
        ("<hero> [hummed|sang <how>|began] the song of <singer>: \"<verse>.\"",
         "\"How did it go?\" asked <friend>. Then they remembered what <singer> sang: \"<verse>.\"",
         "And from the <landmark> they heard it again, as if <singer> were there: \"<verse>.\""),
        (("What was the song of <singer>?", "<verse>"),)),
    "path": Kind(
        _path,
        ("<guide> [told them|showed them|drew in the sand] the way to <village>: <there>.",
         "\"To <village>?\" said <guide>. \"You go <there>. You cannot miss it.\"",
         "The way to <village> was long. It went <there>, said <guide>."),
        ("They remembered the way to <village>: <there>. [So <guide> had said|<guide> had been right].",
         "On the way back from <village> they went <back>.",
         "\"And from <village> home again?\" \"We go <back>,\" said <hero>, who had listened to <guide>."),
        (("What is the way to <village>?", "<there>"), ("What is the way back from <village>?", "<back>"),
         ("Who showed the way to <village>?", "<guide>"))),
    "mark": Kind(
        _with("person", "village", job=_drawn("<trade>"), mark=_drawn("[scar|burn|tattoo|birthmark|wart] on the <part>")),
        ("[They met|<friend> knew|There came] <person>, a <job> from <village> with a <mark>.",
         "<person> the <job> was known in all <village> by the <mark>.",
         "\"You will know <person> by the <mark>,\" they were told; \"a <job>, from <village>.\""),
        ("A stranger with a <mark> stood there. \"You must be <person> of <village>, the <job>,\" said <hero>.",
         "Who else had a <mark>? It was <person>, the <job> from <village>.",
         "<person> came, still a <job>, still with the <mark>, and had news from <village>."),
        (("Who had a <mark>?", "<person>"), ("What was the trade of <person>?", "<job>"),
         ("Where did <person> come from?", "<village>"))),
    "birth": Kind(
        _with("person", "village", year=_between(1103, 1899)),
        ("<person> was born in <village> in the year <year>.",
         "Over the door was cut: <person>, <village>, <year>.",
         "In <year> a child was born in <village> and called <person>; [that is how it began|the bells rang all day]."),
        ("In the church book of <village> they found the line: <person>, born <year>.",
         "\"How old is <person>?\" \"Count from <year>, and ask in <village>,\" said <friend>.",
         "The stone said <person>, and <year>, and below it <village>."),
        (("In which year was <person> born?", "<year>"), ("Where was <person> born?", "<village>"))),
    "bell": Kind(
        _with("village", "ringer", count=_between(3, 41), event=_drawn("[a fire|a wedding|a flood|a lost child|a death]")),
        ("In <village> the bell rings <count> times for <event>; <ringer> pulls the rope.",
         "<ringer> of <village> had one rule: <count> strokes of the bell mean <event>.",
         "\"If you hear our bell <count> times,\" said <ringer>, \"there is <event> in <village>.\""),
        ("A bell rang. They counted <count>. \"That is <event> in <village>,\" said <hero>; \"<ringer> is at the rope.\"",
         "\"What do <count> strokes mean in <village>?\" \"They mean <event>. <ringer> told us.\"",
         "There was <event> in <village>, so <ringer> rang <count> times."),
        (("How often does the bell of <village> ring for <event>?", "<count> times"),
         ("Who rings the bell of <village>?", "<ringer>"))),
    "letter": Kind(
        _letter,
        ("A letter from <sender> asked them to come on the <day> of <month> and to bring <list>.",
         "<sender> had written: on the <day> of <month>, bring <list>.",
         "\"Bring me <list>,\" said <sender>, \"before the <day> of <month>.\""),
        ("On the <day> of <month> they laid on the table what <sender> had asked for: <list>.",
         "<hero> read the letter of <sender> again: <list>, and the <day> of <month>.",
         "\"Did we forget anything?\" \"<sender> wants <list>,\" said <friend>, \"on the <day> of <month>.\""),
        (("What were they to bring to <sender>?", "<list>"),
         ("When were they to come to <sender>?", "on the <day> of <month>"))),
    "animal": Kind(
        _with("pet", "owner", beast=_drawn("<adj> <colour> <animal>"), food=_drawn("<food>")),
        ("<owner> had a <beast> called <pet> that ate nothing but <food>.",
         "A <beast> followed them. \"That is <pet>,\" said <owner>, \"and it wants <food>.\"",
         "With <owner> lived <pet>, a <beast>, and <pet> loved <food>."),
        ("Something moved in the grass. It was <pet>, the <beast> of <owner>, so they gave it <food>.",
         "\"Here, <pet>!\" called <hero>, and held out <food>. The <beast> of <owner> came <how>.",
         "<owner> was looking for <pet> everywhere. They found the <beast> where there was <food>."),
        (("What was the name of the <beast>?", "<pet>"), ("What did <pet> eat?", "<food>"),
         ("Whose was <pet>?", "<owner>"))),
    "recipe": Kind(
        _recipe,
        ("<cook> taught them to make <dish>: take <amounts>.",
         "For <dish>, said <cook>, one needs <amounts>.",
         "<cook> was famous for <dish>, made of <amounts>."),
        ("They made <dish> as <cook> had taught them, of <amounts>.",
         "\"What goes into <dish>?\" \"<amounts>,\" said <hero>, \"if <cook> told the truth.\"",
         "<friend> mixed <amounts>, and it smelled like the <dish> of <cook>."),
        (("What goes into <dish>?", "<amounts>"), ("Who taught them to make <dish>?", "<cook>"))),
    "numbers": Kind(
        _numbers,
        ("The lock of the <chest> needs the numbers <numbers>, as <sender> had told them.",
         "<sender> had scratched numbers into the <chest>: <numbers>.",
         "\"Remember these,\" said <sender>, \"<numbers>. Without them the <chest> stays shut.\""),
        ("<hero> turned the lock of the <chest> to <numbers>. [Thanks to <sender>, it opened|<sender> had not lied].",
         "\"The numbers of the <chest>?\" \"<numbers>,\" said <friend>. \"I have them from <sender>.\"",
         "They said the numbers of <sender> aloud, <numbers>, and the <chest> sprang open."),
        (("Which numbers open the <chest>?", "<numbers>"), ("Who knew the numbers of the <chest>?", "<sender>"))),
    "kin": Kind(
        _with("first", "second", "village", kin=_drawn("[brother|sister|uncle|aunt|cousin|nephew|niece|daughter|son]")),
        ("<first> was the <kin> of <second> and lived in <village>.",
         "In <village> lived <first>, <kin> of <second>, [a <trade>|who never slept|alone with a <animal>].",
         "\"My <kin> <first> lives in <village>,\" said <second>."),
        ("They asked in <village> for the <kin> of <second>, and <first> opened the door.",
         "\"<first>?\" said <hero>. \"That is the <kin> of <second>, from <village>.\"",
         "<second> sent greetings to <village>, to <first>, the <kin>."),
        (("Who was the <kin> of <second>?", "<first>"), ("Where did <first> live?", "<village>"))),
    "boat": Kind(
        _with("boat", "captain", sail=_drawn("<colour>"), load=lambda w: w.write("<n> <box> of <goods>", n=w.number(3, 95),
              box=w.pick(("crates", "barrels", "boxes", "bundles")))),
        ("At the quay lay the <boat>, a boat with <sail> sails; <captain> was her captain and she carried <load>.",
         "<captain> sailed the <boat>, which had <sail> sails and <load> aboard.",
         "They watched the <boat> come in under <sail> sails. <captain> called down that she had <load>."),
        ("There were <sail> sails on the water: the <boat>, with <captain> at the helm and <load> below.",
         "\"The <boat> is late,\" they heard, \"with <load>, and so is <captain>.\"",
         "<captain> still sailed the <boat>. She still had <sail> sails, and they had to unload <load>."),
        (("Who was the captain of the <boat>?", "<captain>"), ("What colour were the sails of the <boat>?", "<sail>"),
         ("What did the <boat> carry?", "<load>"))),
    "race": Kind(
        _with("one", "two", "three", game=_drawn("[race|swimming match|archery|wrestling|spelling match|rowing race]")),
        ("The <game> that day was won by <one>; <two> came second and <three> third.",
         "<one> won the <game>, before <two> and <three>.",
         "In the <game> <three> was third and <two> second, but nobody beat <one>."),
        ("They talked about the <game>: first <one>, then <two>, then <three>.",
         "\"Who won the <game>?\" \"<one>. And after that came <two>, and then <three>.\"",
         "<three>, who had been third in the <game>, asked after <one> and <two>, first and second."),
        (("Who won the <game>?", "<one>"), ("Who was second in the <game>?", "<two>"),
         ("Who was third in the <game>?", "<three>"))),
}
