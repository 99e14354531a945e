"""Where text comes from, and what is taken out of it: licences, docstrings (from code), copies."""

import ast
import itertools
import re
from collections import Counter
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from data_prep import clean, sources
from data_prep.clean import Duplicates, jaccard, shingles, signatures

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
