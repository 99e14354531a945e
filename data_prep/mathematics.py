"""`math`: worksheets with worked solutions. Prices, speeds, rooms, stocks and functions are given once, at the top.
Problems hundreds of tokens later use them without repeating them, or use the answer to an earlier problem; a key at the
end repeats all answers.

Names and numbers are drawn anew for every worksheet, and every equation is true. Worksheet `n` of seed `s` is always
the same.
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

from data_prep.words import LEXICON, Writer, finished, listed, sentence


class Problem(NamedTuple):
    """`steps` are sentences; the answer is an integer with a unit, which may be empty."""
    text: str                   # a template of `words.Writer.write`
    steps: Sequence[str]
    answer: int
    unit: str = ""


class Givens:
    """What a worksheet states once, at its top."""

    def __init__(self, w: Writer) -> None:
        things = w.some(LEXICON["thing"], w.number(4, 7))
        rooms = ("room", "hall", "kitchen", "yard", "garden", "stable", "cellar")
        self.prices = [(w.write("<material> ") + thing, w.number(3, 99)) for thing in things]       # coins a piece
        self.speeds = [(w.name(), w.number(3, 60)) for _ in range(w.number(2, 4))]                  # miles an hour
        self.rooms = [(w.write("<colour> ") + room, (w.number(6, 60), w.number(4, 40)))             # feet
                      for room in w.some(rooms, w.number(2, 4))]
        self.stocks = [(goods, w.number(40, 900)) for goods in w.some(LEXICON["goods"], w.number(2, 4))]
        self.functions = [(name, (w.number(2, 12), w.number(1, 40))) for name in w.some("fghpqr", 2)]   # a * x + b
        self.people = [w.name() for _ in range(4)]

    def text(self, w: Writer) -> str:
        """In any order, so that a given is found by its name and not by its place."""
        prices = w.pick(("Prices: ", "Price list: ", "What things cost: "))
        prices += "; ".join(f"a {name} {price} coins" for name, price in self.prices)
        speeds = listed([f"{name} [goes|travels|makes] {speed} miles an hour" for name, speed in self.speeds])
        rooms = [f"The {name} is {a} feet long and {b} feet wide." for name, (a, b) in self.rooms]
        functions = [f"Let {name}(x) = {a} * x + {b}." for name, (a, b) in self.functions]
        stocks = w.pick(("The store holds ", "In the store there are "))
        stocks += listed([f"{count} {goods}" for goods, count in self.stocks])
        parts = [prices + ".", w.write(speeds) + ".", *rooms, stocks + ".", *functions]
        return "\n".join(w.some(parts, len(parts)))


def equation(sign: str, *terms: int) -> str:
    value = reduce(OPERATIONS[sign], terms)
    return f"{f' {sign} '.join(map(str, terms))} = {value}.".replace("+ -", "- ")


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
plus, minus, times, over = (partial(equation, sign) for sign in OPERATIONS)


def shopping(w: Writer, g: Givens) -> Problem:
    who, chosen = w.pick(g.people), w.some(g.prices, w.number(2, 3))
    bought = [(name, price, w.number(2, 12)) for name, price in chosen]
    costs = [price * count for _, price, count in bought]
    paid = (sum(costs) // 100 + w.number(1, 3)) * 100
    order = listed([f"{count} times a {name}" for name, _, count in bought])
    steps = [f"A {name} costs {price} coins: {times(count, price)}" for name, price, count in bought]
    steps += ["Together: " + plus(*costs), "Back: " + minus(paid, sum(costs))]
    return Problem(f"{who} [buys|orders|takes] {order} and pays with {paid} coins. What is [given back|left]?", steps,
                   paid - sum(costs), "coins")


def difference(w: Writer, g: Givens) -> Problem:
    (a, one), (b, two) = sorted(w.some(g.prices, 2), key=operator.itemgetter(1), reverse=True)
    count = w.number(3, 25)
    return Problem(f"[How much more than {count} pieces of {b} do {count} of {a} cost?|{count} pieces of {a} are "
                   f"exchanged for {count} of {b}. How many coins must be given back?]",
                   (f"A {a} costs {one} and a {b} {two}.", minus(one, two), times(count, one - two)),
                   count * (one - two), "coins")


def journey(w: Writer, g: Givens) -> Problem:
    (who, speed), hours, more = w.pick(g.speeds), w.number(2, 9), w.number(1, 40)
    way = speed * hours
    return Problem(f"{who} [travels|is on the road] for {hours} hours, [and then|rests, and then] goes {more} miles "
                   "by boat. [How far is that?|How many miles are that in all?]",
                   (f"{who} goes {speed} miles an hour.", times(hours, speed), plus(way, more)), way + more, "miles")


def meeting(w: Writer, g: Givens) -> Problem:
    ((one, v), (two, u)), hours = w.some(g.speeds, 2), w.number(2, 12)
    apart = (v + u) * hours
    return Problem(f"{one} and {two} start {apart} miles apart and go towards each other. When do they meet?",
                   (f"{one} goes {v} and {two} {u} miles an hour.", plus(v, u), over(apart, v + u)), hours, "hours")


def floor(w: Writer, g: Givens) -> Problem:
    (room, (a, b)), cost = w.pick(g.rooms), w.number(2, 9)
    size = f"The {room} is {a} by {b} feet."
    if w.chance(0.5):
        return Problem(f"A rope is laid once around the {room}. How long is it?", (size, plus(a, b), times(2, a + b)),
                       2 * (a + b), "feet")
    return Problem(f"[A floor|Paint|A carpet] costs {cost} coins a square foot. What does it cost for the {room}?",
                   (size, times(a, b), times(a * b, cost)), a * b * cost, "coins")


def stock(w: Writer, g: Givens) -> Problem:
    """Several days, each from the result of the day before."""
    goods, left = w.pick(g.stocks)
    days, steps, first = [], [f"At first there are {left} {goods}."], w.number(0, 2)
    for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")[first:first + w.number(2, 4)]:
        out = w.chance(0.6) and left > 2
        change = w.number(1, left - 1) if out else w.number(5, 200)
        verb = w.pick(("sold", "eaten", "given away") if out else ("brought", "bought"))
        days.append(f"on {day} {change} are {verb}")
        steps.append(f"{day}: {minus(left, change) if out else plus(left, change)}")
        left += -change if out else change
    return Problem(f"Of the {goods} in the store, {listed(days)}. How many are there then?", steps, left, goods)


def sharing(w: Writer, g: Givens) -> Problem:
    (goods, there), people = w.pick(g.stocks), w.number(3, 12)
    each, rest = divmod(there, people)
    return Problem(f"[All the {goods} in the store are shared equally by {people} people|{people} people share the "
                   f"{goods} of the store equally]. What does each get, and what is left over?",
                   (f"There are {there} {goods}.", times(people, each), minus(there, people * each),
                    f"So {rest} are left over."), each, goods)


def function(w: Writer, g: Givens) -> Problem:
    ((one, (a, b)), (two, (c, d))), x = w.some(g.functions, 2), w.number(2, 15)
    inner = c * x + d
    return Problem(f"[Compute|Find|Work out] {one}({two}({x}))[.|, step by step.|, from the inside out.]",
                   (f"{two}(x) is {c} * x + {d}: {c} * {x} + {d} = {inner}.",
                    f"{one}(x) is {a} * x + {b}: {a} * {inner} + {b} = {a * inner + b}."), a * inner + b)


def chain(w: Writer, g: Givens) -> Problem:
    """Variables, each defined by an earlier one, told in any order."""
    names = w.some("bcdfghkmnpqrstvwxyz", w.number(3, 7))      # not a, which is a word
    value = w.number(2, 40)
    told, steps = [f"{names[0]} is {value}"], [f"{names[0]} is {value}."]
    for before, name in itertools.pairwise(names):
        amount, sign = w.number(2, 9), w.pick("+-*")
        told.append(f"{name} is {before} {sign} {amount}")
        steps.append(f"{name}: {equation(sign, value, amount)}")
        value = OPERATIONS[sign](value, amount)
    start = w.pick(("Suppose", "It is known that", "Let us say that"))
    return Problem(f"{start} {'; '.join(w.some(told, len(told)))}. What is {names[-1]}?", steps, value)


def linear(w: Writer, g: Givens) -> Problem:
    x, a, c, b = w.number(2, 30), w.number(5, 15), w.number(1, 4), w.number(1, 60)
    letter, d = w.pick("xyztn"), (a - c) * x + b
    taken = f"Take {c}{letter} from both sides: {a - c}{letter} + {b} = {d}."
    return Problem(f"[Solve|Find {letter} from] {a}{letter} + {b} = {c}{letter} + {d}.",
                   (taken, minus(d, b), over(d - b, a - c)), x)


def euclid(w: Writer, g: Givens) -> Problem:
    common = w.number(2, 24)
    a, b = common * w.number(8, 60), common * w.number(3, 40)
    steps, high, low = [], max(a, b), min(a, b)
    while low:
        steps.append(f"{high} - {high // low} * {low} = {high % low}.")
        high, low = low, high % low
    return Problem(f"[What is the greatest common divisor of {a} and {b}?|Which greatest number divides both {a} and "
                   f"{b}?|Find the greatest common divisor of {a} and {b} by Euclid's rule.]", steps, high)


def product(w: Writer, g: Givens) -> Problem:
    a, b = w.number(12, 999), w.number(12, 99)
    tens, ones = b // 10 * 10, b % 10
    return Problem(f"[Multiply|Work out] {a} [times|by] {b}, tens first.",
                   (times(a, tens), times(a, ones), plus(a * tens, a * ones)), a * b)


def mean(w: Writer, g: Givens) -> Problem:
    count, middle = w.number(3, 6), w.number(100, 200)
    shifts = [w.number(-15, 15) for _ in range(count - 1)]
    values = [middle + shift for shift in (*shifts, -sum(shifts))]
    who, shown = w.pick(g.people), listed(list(map(str, values)))
    return Problem(f"[The marks of {who} are|{who} counted] {shown}. [What is the mean?|What is that on average?]",
                   (plus(*values), over(sum(values), count)), middle)


def sequence(w: Writer, g: Givens) -> Problem:
    first, step, n = w.number(1, 60), w.number(2, 25), w.number(8, 40)
    shown = ", ".join(str(first + k * step) for k in range(4))
    return Problem(f"[A sequence starts|It goes on like this:] {shown}. What is member number {n}?",
                   (minus(first + step, first), minus(n, 1), times(n - 1, step), plus(first, (n - 1) * step)),
                   first + (n - 1) * step)


def percent(w: Writer, g: Givens) -> Problem:
    (name, price), who, count, rate = w.pick(g.prices), w.pick(g.people), 100 * w.number(1, 9), 5 * w.number(1, 12)
    cost = price * count
    less = cost * rate // 100
    return Problem(f"{who} buys {count} pieces of {name} and pays {rate} percent less. [How much?|What is that?]",
                   (f"A {name} costs {price}: {times(count, price)}", f"{cost} * {rate} / 100 = {less}.",
                    minus(cost, less)), cost - less, "coins")


def fraction(w: Writer, g: Givens) -> Problem:
    a, c, (b, d) = w.number(1, 8), w.number(1, 8), w.some(range(2, 10), 2)
    return Problem(f"Write {a} / {b} + {c} / {d} with the bottom {b * d}. What is its top?",
                   (times(b, d), times(a, d), times(c, b), plus(a * d, c * b)), a * d + c * b)


KINDS: tuple[Callable[[Writer, Givens], Problem], ...] = (
    shopping, shopping, difference, journey, meeting, floor, floor, stock, stock, sharing, function, function, percent,
    chain, linear, euclid, product, mean, sequence, fraction)


def again(w: Writer, earlier: dict[int, Problem]) -> Problem:
    number = w.pick(list(earlier))
    old, by = earlier[number].answer, w.number(2, 12)
    said = f"The answer to problem {number} was {old}."
    if w.chance(0.5):
        return Problem(f"Multiply the answer to problem {number} by {by}.", (said, times(old, by)), old * by)
    by += w.number(0, 90)
    return Problem(f"Add {by} to the answer to problem {number}.", (said, plus(old, by)), old + by)


def worksheet(seed: int, number: int) -> str:
    w = Writer(f"math/{seed}/{number}")
    given = Givens(w)
    problems: dict[int, Problem] = {}
    for k in range(1, w.number(6, 13) + 1):
        problem = again(w, problems) if k > 3 and w.chance(0.2) else w.pick(KINDS)(w, given)
        problems[k] = problem._replace(text=w.write(problem.text))
    results = {k: f"{problem.answer} {problem.unit}".rstrip() for k, problem in problems.items()}
    mark = w.pick(("Solution. ", "Answer in steps. ", "We reckon: ", ""))
    title = w.write(f"[Worksheet|Exercises|Problems] of {given.people[0]}[, <trade>|, class {w.number(1, 9)}|]")
    parts = [title, given.text(w)]
    parts += [f"Problem {k}. {sentence(problem.text)}\n{mark}{' '.join(problem.steps)} The answer is {results[k]}."
              for k, problem in problems.items()]
    key = "; ".join(f"problem {k}: {results[k]}" for k in w.some(list(problems), len(problems)))
    parts.append(w.pick(("Key: ", "All answers: ", "Answers. ")) + key + ".")
    return finished("\n\n".join(parts))
