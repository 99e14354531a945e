"""Where text comes from: of libraries, without licences, docstrings (from code) and copies; and the generators' stories
and worksheets, read as a reader would: from the text alone, is what returns late what was said early?"""

import ast
import hashlib
import itertools
import math
import re
import statistics
from collections import Counter
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from data_prep import clean, sources
from data_prep.clean import Duplicates, jaccard, shingles, signatures
from data_prep.mathematics import worksheet
from data_prep.stories import Story

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau phi".split()
SAMPLES = Path(__file__).parent / "data"
WITH, WITHOUT = ((SAMPLES / f"{name}_docstrings.txt").read_text("utf-8") for name in ("with", "without"))


def prose(seed: int, count: int = 120) -> list[str]:
    return list(np.random.default_rng(seed).choice(WORDS, count))


def fresh(*texts: str) -> list[bool]:
    return Duplicates(Counter(), "texts").fresh(texts)


def test_when_modules_are_listed_then_only_of_the_libraries_of_the_list():
    listed = [line for line in sources.LIBRARIES.read_text().splitlines() if not line.startswith("#")]
    assert len(listed) == len(set(listed)) and not {"transformers", "ray", "msgpack", "protobuf", "pip"} & set(listed)
    assert metadata.version("pip") and set(sources.versions()) < set(listed)         # some are for other platforms
    assert {"torch", "numpy", "pandas", "tokenizers"} <= {module.distribution for module in sources.modules(0)}
    assert sources.versions()["numpy"] == np.__version__


def test_when_modules_are_listed_then_in_the_seed_s_order_whatever_the_machine_s_and_libraries_are_mixed(monkeypatch):
    first = [(m.distribution, m.path) for m in sources.modules(0)]
    every, begin = (Counter(name for name, _ in part) for part in (first, first[:2000]))
    for name, count in every.most_common(4):
        share = count / every.total()
        assert abs(begin[name] / 2000 - share) < 4 * (share / 2000) ** 0.5, name
    files = metadata.PathDistribution.files.fget
    monkeypatch.setattr(metadata.PathDistribution, "files", property(lambda own: list(reversed(files(own) or []))))
    sources.modules.cache_clear()
    assert [(m.distribution, m.path) for m in sources.modules(0)] == first
    assert [(m.distribution, m.path) for m in sources.modules(1)] != first
    sources.modules.cache_clear()


def test_when_docs_and_code_are_read_then_docstrings_are_the_interpreter_s_own_and_code_has_none_and_no_licence():
    docs, code = (list(itertools.islice(read(0, Counter()), 25)) for read in (sources.docs, sources.code))
    files, code = {f"{m.distribution}/{m.path}": m.file for m in sources.modules(0)}, dict(code)
    for document in docs:
        tree = ast.parse(files[document.name].read_text("utf-8"))
        known = ["".join((ast.get_docstring(node) or "").split()) for node in ast.walk(tree)
                 if isinstance(node, sources.Scope)]
        entries = [entry.partition("\n\n") for entry in document.text.split("\n\n\n")]
        for heading, _, docstring in entries[:3]:
            assert re.match(r"(module|class) [\w.]+$|[\w.]+\(.*\)$", heading), heading
            assert any("".join(docstring[:200].split()) in text for text in known), document.name
        assert not [text for *_, text in entries if len(text) > 40 and text in code.get(document.name, "")]
    assert {document.name for document in docs} & set(code)
    for name, text in code.items():
        top = itertools.takewhile(lambda line: line.startswith("#"), text.split("\n"))
        assert not clean.LICENCE.search("\n".join(top)), name
        if len(text) < 0.9 * sources.LONGEST:
            assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, sources.Scope)
                        and ast.get_docstring(node)], name


def test_when_docstrings_are_removed_then_nothing_else_is_and_each_scope_has_the_name_that_its_reader_knows():
    tree = ast.parse(WITH)
    assert sources.without_docstrings(WITH, tree) == WITHOUT
    assert [name for _, name in sources.scopes(tree, "package.module")] == [
        "package.module", "A", "A.f", "A.é", "g", "h"]


def test_when_a_licence_stands_at_the_top_then_it_goes_and_other_comments_stay():
    header = "#!/bin/x\n# Copyright 2020 A\n\n# Licensed under B\n"
    assert clean.without_licence_header(header + "x = 1\n# (c) 2001 stays") == "x = 1\n# (c) 2001 stays"
    assert clean.without_licence_header("# about this file\nx = 1") == "# about this file\nx = 1"
    assert clean.without_licence_header("# Copyright 2020 A") == ""
    text = "What it does.\n\nCopyright (c) 2001 A.\nAll of it.\n\nMore."
    assert clean.without_licence_paragraphs(text) == "What it does.\n\nMore."
    text = "\n".join(f"line {n}" for n in range(4000))          # a long text is cut at a line
    assert len(sources.cut(text)) <= sources.LONGEST and text.startswith(sources.cut(text) + "\n")
    assert sources.cut("short") == "short"


def test_when_a_text_is_repeated_or_changed_a_little_then_it_is_a_copy_and_when_much_it_is_not():
    words = prose(1)
    text, little, much = " ".join(words), [*words[:60], "other", *words[61:]], list(words)
    much[::4] = ["other"] * len(much[::4])
    assert fresh(text, text.upper().replace(" ", "\n  ")) == [True, False]
    assert fresh("a b", "a c", "A  b") == [True, True, False]
    assert fresh(text, " ".join(little), " ".join(much)) == [True, False, True]
    for seed in range(10, 20):                  # two texts that share half
        one, two = prose(seed), prose(seed + 100)
        assert fresh(" ".join(one), " ".join(one[:80] + two[80:])) == [True, True]
    removed: Counter[str] = Counter()           # copies in another call
    seen = Duplicates(removed, "pages")
    assert seen.fresh([text, " ".join(prose(3))]) == [True, True]
    assert seen.fresh([text, f"{text} more", " ".join(prose(4))]) == [False, False, True]
    assert removed == {"exact copies of pages": 1, "near copies of pages": 1} and seen.fresh([]) == []


def test_when_sets_overlap_then_jaccard_is_that_of_the_words_and_minhash_estimates_it():
    one, two = prose(5, 4000), prose(6, 4000)
    mixed = one[:2600] + two[2600:]
    texts = [" ".join(one), " ".join(mixed)]
    runs = [{tuple(words[k:k + 5]) for k in range(len(words) - 4)} for words in (one, mixed)]
    truth = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
    a, b = shingles(texts)
    assert jaccard(a, b) == pytest.approx(truth, abs=1e-12)
    agreement = (signatures([a, b])[0] == signatures([a, b])[1]).mean()
    assert agreement == pytest.approx(truth, abs=4 * (truth * (1 - truth) / (clean.BANDS * clean.ROWS)) ** 0.5)


def test_when_ray_was_imported_then_its_copies_of_libraries_do_not_count(monkeypatch, tmp_path):
    there = sources.distribution("psutil").version
    copy = tmp_path / "thirdparty_files" / "psutil-0.0.1.dist-info"
    copy.mkdir(parents=True)
    (copy / "METADATA").write_text("Name: psutil\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(copy.parent)
    assert metadata.version("psutil") == "0.0.1" != there
    assert sources.distribution("psutil").version == there
    assert sources.distribution("a-library-that-nobody-has") is None


# The generators

STORIES = [Story(0, n) for n in range(60)]
SHEETS = [worksheet(0, n) for n in range(80)]

# How a purse changes: the amount, then what it holds afterwards. Signs: -1 spent, 1 earned.
LEDGER = {r"(?:paid|gave) (\d+) coins for an? [^.]*? and had (\d+) coins left": -1,
          r"cost \w+ (\d+) coins, so that (\d+) coins were left": -1,
          r"That makes (\d+) coins,\" said the \w+\. \w+ paid; now the purse held (\d+)": -1,
          r"lost (\d+) coins [^.]*\. \w+ counted: (\d+)": -1,
          r"day's work \w+ got (\d+) coins and had (\d+)": 1,
          r"for (\d+) coins, which made (\d+) coins in all": 1,
          r"found (\d+) coins\. Now the purse held (\d+)": 1}
QUESTIONS = (r"Question: (.*\?)\nAnswer: (.*)\.$", r"^- (.*\?) (.*)\.$",
             r"\"(.*)\" asked the children[^:]*: \"(.*)\.\"$", r"\"([^?]*\?)\" they asked\. \"(.*?),\" said \w+\.")


@pytest.mark.parametrize("number", range(60))
def test_when_a_story_is_read_then_purse_treasure_and_answers_are_right_to_the_end(number):
    told, ending, questions = STORIES[number].text.rsplit("\n\n", 2)
    purse = int(re.search(r"\w+ had (\d+) coins\.", told)[1])
    events = sorted((match.start(), sign * int(match[1]), int(match[2]))
                    for pattern, sign in LEDGER.items() for match in re.finditer(pattern, told))
    for _, change, after in events:
        purse += change
        assert purse == after > 0
    assert int(re.search(r"(\d+) coins", ending)[1]) == purse
    assert len(re.findall(r"\d+ coins", told)) == 2 * len(events) + 1      # no sentence about coins went unread

    treasure, holder = re.search(r"They took with them an? ([^,]+), and (\w+) carried it", told).groups()
    moves = rf"(\w+) gave the {treasure} to (\w+)|\"You carry it now,\" said (\w+), and (\w+) took the {treasure}"
    back = rf"(\w+) asked (\w+) for the {treasure} and got it"
    held = rf"(\w+) still had the {treasure}|Where was the {treasure}\? (\w+) had it"
    for match in re.finditer(f"{moves}|{back}|{held}", told):
        a, b, c, d, taker, giver, *stays = match.groups()
        assert (giver or a or c or stays[0] or stays[1]) == holder
        holder = taker or b or d or holder
    assert re.search(rf"\b{holder}\b", ending)

    *pairs, last = next(filter(None, (re.findall(layout, questions, re.MULTILINE) for layout in QUESTIONS)))
    assert last == (f"Who had the {treasure} in the end?", holder) and len(pairs) >= 3
    for question, answer in pairs:      # one paragraph before has its names and its answer
        if "the way back" in question:      # not told: it follows from the way there
            turns = re.findall(r"(left|right) (at the [^,]+)", answer.lower())[::-1]
            answer = ", ".join(f"{'right' if side == 'left' else 'left'} {mark}" for side, mark in turns)
        names = re.findall(r"(?<!^)\b[A-Z]\w+", question)
        wanted = answer.strip('"').removesuffix(" times").lower().removeprefix("on ")
        assert any(wanted in paragraph.lower() and all(name in paragraph for name in names)
                   for paragraph in told.split("\n\n")), (question, answer)


def test_when_a_fact_is_recalled_then_hundreds_of_tokens_later_and_to_the_letter():
    """Three characters or more a token: 1500 characters are a few hundred tokens."""
    distances = []
    for story in STORIES:
        told = story.text.rsplit("\n\n", 2)[0]
        for fact in (fact for fact in story.told if fact.recalls):
            places = [[match.start() for match in re.finditer(rf"\b{re.escape(value)}\b", told)]
                      for value in fact.slots.values() if len(value) >= 4]
            distances.append(max((at[-1] - at[0] for at in places if at), default=0))
    assert len(distances) > 250 and statistics.median(distances) > 1000
    tenths = statistics.quantiles(distances, n=10)
    assert 200 < tenths[0] < 800 and tenths[-1] > 2500      # some within 256 tokens, some beyond 800


def test_when_texts_are_written_then_no_template_shows_through_and_seed_and_number_say_which():
    """The checksum: the same text on every machine and Python."""
    texts = [*(story.text for story in STORIES), *SHEETS]
    assert not re.search(r"[<>|\[\]]|\ba [aeiou]", "\n".join(texts))
    assert Story(1, 3).text != texts[3] and worksheet(1, 3) != SHEETS[3]
    words = [set(re.findall(r"\w+", text)) for text in texts[:60]]
    assert statistics.mean(len(a & b) / len(a | b) for a, b in itertools.pairwise(words)) < 0.45
    assert hashlib.sha256("".join(texts).encode()).hexdigest()[:16] == "6b764fff39e636a3"


def solved(sheet: str) -> dict[int, tuple[str, str, str]]:
    """Text, solution and answer of every problem, by number."""
    found = re.findall(r"Problem (\d+)\. (.*)\n(.*?)The answer is (.*)\.$", sheet, re.MULTILINE)
    return {int(k): (text, solution, answer) for k, text, solution, answer in found}


@pytest.mark.parametrize("number", range(80))
def test_when_a_worksheet_is_read_then_equations_are_true_and_givens_and_answers_are_those_stated(number):
    top, problems = SHEETS[number].split("\n\nProblem 1.")[0], solved(SHEETS[number])
    solutions = " ".join(solution for _, solution, _ in problems.values())
    equations = re.findall(r"(?<![\w+*/-] )(?<![\w-])(-?\d+(?: [-+*/] \d+)+) = (-?\d+)\.", solutions)
    for left, right in equations:
        assert eval(left) == int(right), (left, right)      # digits and signs alone, as the pattern says
    assert 8 <= len(equations) == len(re.findall(r"= -?\d+\.", solutions)) - solutions.count("from both sides: ")

    prices = dict(re.findall(r"\ban? ([\w ]+) (\d+) coins", top))
    for name, price in re.findall(r"\b[Aa]n? ([\w ]+?) (?:costs )?(\d+)(?: coins)?(?:: | and|\.)", solutions):
        assert prices[name] == price
    speeds = dict(re.findall(r"(\w+) (?:goes|travels|makes) (\d+) miles an hour", top))
    for name, speed in re.findall(r"(\w+) goes (\d+) (?:miles|and)", solutions):
        assert speeds[name] == speed
    for name, size in re.findall(r"The ([\w ]+) is (\d+ by \d+) feet", solutions):
        assert f"The {name} is {size.replace(' by', ' feet long and')} feet wide." in top
    for count, goods in re.findall(r"(?:At first t|T)here are (\d+) (\w+)\.", solutions):
        assert re.search(rf"\b{count} {goods}\b", top)
    for name, rule in re.findall(r"(\w)\(x\) is (\d+ \* x \+ \d+)", solutions):
        assert f"Let {name}(x) = {rule}." in top

    assert list(problems) == list(range(1, len(problems) + 1))
    key = dict(re.findall(r"problem (\d+): ([^;\n]+?)(?:;|\.$)", SHEETS[number].rsplit("\n\n", 1)[1]))
    assert key == {str(k): answer for k, (_, _, answer) in problems.items()}
    for k, (text, solution, answer) in problems.items():
        if "each get" not in text and "divi" not in text:      # there, the result is not the last line's
            assert re.findall(r"= (-?\d+)\.", solution)[-1] == answer.split()[0], text
        for earlier, value in re.findall(r"The answer to problem (\d+) was (-?\d+)", solution):
            assert int(earlier) < k and problems[int(earlier)][2].split()[0] == value
            assert f"problem {earlier}" in text


def test_when_equations_are_solved_then_the_solutions_fulfil_the_problems():
    """From the problem's text alone: linear equations, functions of functions, divisors, chains of variables, means."""
    counted = Counter()
    for sheet in SHEETS:
        rules = {f: (int(a), int(b)) for f, a, b in re.findall(r"Let (\w)\(x\) = (\d+) \* x \+ (\d+)", sheet)}
        for text, _, answer in solved(sheet).values():
            value, kind, right = int(answer.split()[0]), "", True
            if match := re.search(r"(\d+)[a-z] \+ (\d+) = (\d+)[a-z] \+ (\d+)", text):
                kind, (a, b, c, d) = "linear", map(int, match.groups())
                right = a * value + b == c * value + d
            elif match := re.search(r"(\w)\((\w)\((\d+)\)\)", text):
                kind, (a, b), (c, d) = "function", rules[match[1]], rules[match[2]]
                right = value == a * (c * int(match[3]) + d) + b
            elif match := re.search(r"(?:divisor of|divides both) (\d+) and (\d+)", text):
                kind, right = "divisor", value == math.gcd(int(match[1]), int(match[2]))
            elif match := re.search(r"(?:Suppose|known that|us say that) (.*)\. What is (\w)\?", text):
                kind, told, names = "chain", dict(entry.split(" is ") for entry in match[1].split("; ")), {}
                for _ in told:
                    names |= {name: eval(rule, {}, names) for name, rule in told.items()
                              if set(re.findall("[a-z]", rule)) <= set(names)}
                right = value == names[match[2]]
            elif match := re.search(r"(?:are|counted) ([\d, and]+)\. What is (?:the mean|that on average)", text):
                kind, right = "mean", value == statistics.mean(map(int, re.findall(r"\d+", match[1])))
            assert right, text
            counted[kind] += 1
    assert len(counted) == 6 and min(counted.values()) >= 15, counted
