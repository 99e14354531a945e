"""The ledger: its file read strictly, published numbers computed again, regions, and verdicts from evidence."""

import ast
import copy
import json
import re
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from made_up_results import MadeUpDatabase, judged
from plans import planned
from test_house import modules, named

from lib import paths
from lib.config import Metric
from lib.errors import SuiteError
from suite.claims import Claim, judge, load
from suite.claims.ledger import DOCUMENTS, LEDGER, Call
from suite.claims.measures import Measure, Part
from suite.claims.region import KINDS, Region, decide
from suite.evals import EvalResult
from suite.notebook import Notebook, source_of
from suite.report import ledger
from suite.run.database import Database, Facts
from suite.settings import profiles
from suite.study.frames import NotTested
from suite.study.stats import Interval

CLAIMS = {claim.id: claim for claim in load()}
ENTRIES = yaml.safe_load(LEDGER.read_text(encoding="utf-8"))
RAMP, FIXED = "Fibonacci, linear ramp", "Fibonacci, fixed"


# The file

def test_when_the_ledger_is_read_then_it_has_the_documents_every_row_of_the_audit_and_rules_in_words():
    assert len(CLAIMS) >= 45 and len(ENTRIES) == len(CLAIMS)
    assert {claim.document for claim in CLAIMS.values()} == set(DOCUMENTS)
    rows = {int(number) for name in CLAIMS for number in re.findall(r"^audit-(\d\d)", name)}
    assert rows == set(range(1, 28))
    for claim in CLAIMS.values():
        assert claim.statement.endswith(".") and claim.comparison.endswith("."), claim.id
        assert claim.rule.startswith(f"Supported if {'' if claim.exact else 'the effect is '}")
        words = KINDS[claim.supported_if.kind].format(**vars(claim.supported_if))
        assert words in claim.rule and "contradicted" in claim.rule
        assert ("no interval" in claim.rule) == claim.exact


def test_when_a_claim_names_a_section_then_the_notebook_has_that_heading():
    headings = {(file.stem, line.lstrip("# ")) for file in paths.NOTEBOOKS.glob("*.ipynb")
                for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "markdown"
                for line in cell.source.splitlines() if line.startswith("#")}
    assert {(claim.notebook, claim.section) for claim in CLAIMS.values()} - headings == set()


def test_when_a_published_number_stands_in_the_ledger_then_its_table_gives_it_to_the_last_digit_that_is_written():
    published = [entry for entry in ENTRIES if "published" in entry]
    assert len(published) > 30
    for entry in published:
        recompute, value = CLAIMS[entry["id"]].published.recompute, entry["published"]["value"]
        part, = recompute.parts(None)
        assert recompute.kind.exact and round(part.estimate, len(str(value).partition(".")[2])) == value, entry["id"]


@pytest.mark.parametrize("change, words", [
    (lambda e: e.update(rule="x"), "unknown key 'rule'"), (lambda e: e.update(statement=3), "statement = 3"),
    (lambda e: e.pop("comparison"), "the key comparison is missing"),
    (lambda e: e.update(document="fibonaci"), "did you mean 'fibonacci'"),
    (lambda e: e.update(notebook="01_window"), "unknown notebook"),
    (lambda e: e.update(supported_if={"beneath": 0}), "unknown region 'beneath'"),
    (lambda e: e.update(supported_if={"below": "0"}), "one number"),
    (lambda e: e.update(supported_if={"between": [1, -1]}), "the lower one first"),
    (lambda e: e.update(supported_if={"below": 0, "above": 1}), "supported_if"),
    (lambda e: e.update(measure="loss_difference"), "a mapping with the name of a function"),
    (lambda e: e["measure"].update(name="loss_differ"), "did you mean 'loss_difference'"),
    (lambda e: e["measure"].update(other="Dense"), "unknown argument 'other'"),
    (lambda e: e["measure"].pop("others"), "the argument others is missing"),
    (lambda e: e["measure"].update(window="six"), "window = 'six'"),
    (lambda e: e["measure"].update(series="Dense"), "series = 'Dense'"),
    (lambda e: e["published"].pop("source"), "published: the key source is missing"),
    (lambda e: e["published"].update(value="-0.04"), "published: value = '-0.04'"),
    (lambda e: e["published"].update(values=1), "published: unknown key 'values'; did you mean 'value'"),
    (lambda e: e.pop("id"), "the key id is missing"), (lambda e: e.update(ENTRIES[0]), "two claims have the id")])
def test_when_an_entry_is_wrong_then_the_error_names_the_file_the_claim_and_the_key(change, words, tmp_path):
    entry = {**copy.deepcopy(ENTRIES[0]), "id": "fib-x"}
    change(entry)
    (tmp_path / "l.yaml").write_text(yaml.safe_dump(ENTRIES[:1]) + yaml.safe_dump([entry]))
    with pytest.raises(SuiteError, match=f"^l.yaml(, claim (fib-x|number 2)|:).*{re.escape(words)}"):
        load(tmp_path / "l.yaml")


@pytest.mark.parametrize("text, words", [("- {id: a, id: b}", "stands twice"), ("{}", "not a list of claims"),
                                         ("- [", "not YAML"), ("- 3", "not a list of claims")])
def test_when_the_file_is_wrong_then_the_error_names_it(text, words, tmp_path):
    (tmp_path / "l.yaml").write_text(text)
    with pytest.raises(SuiteError, match=f"l.yaml.*{words}"):
        load(tmp_path / "l.yaml")


def test_when_the_ledger_is_read_then_torch_is_not():
    """The process that writes the report needs no torch: no module on the way imports it at its top."""
    seen, waiting = set(), [name for name in modules() if name.startswith("suite.claims")]
    while waiting:
        name = waiting.pop()
        seen.add(name)
        statements = ast.parse(modules()[name].read_text("utf-8")).body if name in modules() else []
        found = {other for own in statements if isinstance(own, (ast.Import, ast.ImportFrom)) for other in named(own)}
        packages = {other[:at] for other in found for at, letter in enumerate(other) if letter == "."}
        waiting += (found | packages) - seen
    assert "suite.study.frames" in seen and "pandas" in seen and "torch" not in seen


# Regions and several comparisons

@pytest.mark.parametrize("region, inside, outside, across", [
    ({"below": 0}, [(-2, -1)], [(1, 2), (0, 0), (0, 1)], [(-1, 1), (-1, 0)]),
    ({"above": 0.02}, [(0.03, 1)], [(0, 0.01), (0, 0.02)], [(0.01, 0.03)]),
    ({"at_most": 0}, [(-1, 0)], [(0.1, 1)], [(-1, 1), (0, 1)]), ({"at_least": 2}, [(2, 3)], [(1, 1.9)], [(1, 2)]),
    ({"between": [-1, 1]}, [(-1, 1), (0.2, 0.9)], [(2, 3), (-3, -1.1)], [(-3, 3), (0, 2)]),
    ({"equals": 0}, [(0, 0)], [(1, 1)], [])])
def test_when_an_interval_lies_in_a_region_beside_it_or_across_then_the_side_says_so(region, inside, outside, across):
    for side, intervals in ((True, inside), (False, outside), (None, across)):
        for low, high in intervals:
            own, there = Interval((low + high) / 2, low, high, 9), Region.read(region)
            assert there.side(own) is side, (low, high)
            if low == high:
                assert there.contains(low) is side
            else:                               # its p is small where it decides; 5 % where it ends at a boundary
                assert there.p(own) < 0.05 + 1e-9 if side is not None else there.p(own) > 0.05 - 1e-9


def test_when_several_are_compared_then_all_must_hold_and_one_contradicts_at_its_number_of_tries():
    below = Region.read({"below": 0})
    good, better, bad, unsure = (Interval(m, m - h, m + h, 9) for m, h in ((-2, 1), (-9, 1), (2, 1), (-0.5, 1)))
    assert decide(below, [better, good]) == (True, pytest.approx(good.p()), 1)        # the weakest one decides
    assert decide(below, [good, unsure])[0] is None
    assert decide(below, [good, bad, unsure]) == (False, pytest.approx(3 * bad.p()), 1)


# Verdicts

def verdicts(*values, exact=()):
    """The judgements on claims that hold below 0, whose measures give these values: an interval, a number, several, or
    an error that is raised; and on as many exact claims."""
    def claim(name, value, exact):
        def function(evidence):
            if isinstance(value, Exception):
                raise value
            return [Part("A minus B", own) for own in (value if isinstance(value, list) else [value])]
        return Claim(id=name, document="suite", statement="S.", comparison="C.", supported_if={"below": 0},
                     notebook="01_window_sweep", section="The experiment",
                     measure=Call(kind=Measure(function, "nats", exact)))
    claims = [claim(str(at), value, at >= len(values)) for at, value in enumerate([*values, *exact])]
    return list(judged(MadeUpDatabase(), claims=claims).values())


def test_when_evidence_differs_then_so_does_the_verdict():
    expected = {"supported": [Interval(-1, -1.1, -0.9, 9, 3), -1.0], "undecided": [Interval(0, -1, 1, 9, 3)],
                "contradicted": [Interval(1, 0.9, 1.1, 9, 3), 1.0, [-2.0, 1.0]], "not tested": [NotTested("no W = 8")],
                "failed": [ValueError("the array is gone"), float("nan"), []]}
    found = iter(verdicts(*(value for values in expected.values() for value in values)))
    sentences = {verdict: [next(found) for _ in values] for verdict, values in expected.items()}
    assert set(sentences) == set(ledger.VERDICTS)
    for verdict, judgements in sentences.items():
        assert {own.verdict for own in judgements} == {verdict}
        assert {own.effect is None for own in judgements} == {verdict in ("not tested", "failed")}
    assert "no W = 8" in sentences["not tested"][0].sentence
    assert all(re.search("array is gone|nan|no number", own.sentence) for own in sentences["failed"])
    assert sentences["contradicted"][2].sentence.startswith("A minus B (decides among 2): 1 nats")


def test_when_many_are_judged_then_holm_leaves_undecided_what_one_interval_would_decide():
    near, null = Interval(-1.0, -1.9, -0.1, 9, 3), Interval(0.0, -1.0, 1.0, 9, 3)
    assert verdicts(near)[0].verdict == "supported"
    assert verdicts(near, *[null] * 5)[0].verdict == "undecided"
    assert verdicts(near, exact=[1.0] * 50)[0].verdict == "supported"            # exact numbers are no tries


def test_when_seeds_are_few_then_the_sentence_says_so_and_nothing_is_decided_without_their_noise():
    one_seed, three, alone, exact = verdicts(*(Interval(-1, -2, -0.5, 9, n, replicated=n > 0) for n in (1, 3, 0)),
                                             exact=[-1.0])
    assert ", one seed" in one_seed.sentence and ", one seed" not in three.sentence
    assert (one_seed.seeds, three.seeds) == (1, 3) and one_seed.verdict == three.verdict == "supported"
    assert alone.verdict == "undecided" and "over windows only" in alone.sentence and alone.p is None
    assert exact.low is None and "interval" not in exact.sentence


# One number in four places

NOTEBOOK, CLAIM = "01_window_sweep", "fib-ramp-beats-fixed"


def record(database: Database, job, loss: float) -> None:
    """The job's perplexity on 40 windows of every domain; each model has noise of its own."""
    (evaluation,), T = job.evaluations, job.run.train.length
    noise = np.random.default_rng(int(database.fingerprint(job.run), 16)).normal(0, 0.01, 40)
    arrays = {f"edges.{T}": np.array([0, T])}
    for domain in database.corpus.domains:
        arrays |= {f"nll.{domain}.{T}": T * (loss + noise)[:, None], f"count.{domain}.{T}": np.full((40, 1), T)}
    database.record_evaluation(job.run, evaluation, EvalResult([Metric("nll", loss, length=T)], arrays), 1.0)


def everywhere(database: Database, monkeypatch) -> dict[str, float]:
    """The claim's number in the notebook, in ledger.json, in claims.csv and as the figure's point."""
    shown = []
    monkeypatch.setattr("suite.notebook.display",
                        lambda data, raw, metadata: shown.append((metadata, data["text/markdown"])))
    profile = profiles.load("smoke")
    nb = Notebook(NOTEBOOK, profile.parameters(NOTEBOOK).model_dump())
    nb.corpus = database.corpus
    nb.claim(CLAIM)
    [(metadata, text)] = shown
    assert metadata == {"claim": CLAIM} and CLAIMS[CLAIM].statement in text and "one seed" in text
    ledger.write("smoke", judge(profile, database.corpus, [NOTEBOOK]))
    entries = json.loads((paths.report("smoke") / "ledger.json").read_text())
    entry = next(own for own in entries if own["identifier"] == CLAIM)
    row = pd.read_csv(paths.results("smoke") / "claims.csv").set_index("identifier").loc[CLAIM]
    assert entry["interval"] == [row["low"], row["high"]] and entry["verdict"] == row["verdict"]
    said = re.search(r": (-?[0-9]+\.([0-9]+)) \(95 % interval", text)
    assert f"*{entry['verdict'].capitalize()}*" in text and said[1] == f"{entry['effect']:.{len(said[2])}f}"
    return {"notebook": nb.judgements[CLAIM].effect, "ledger": entry["effect"], "table": row["effect"],
            "figure": nb.study.against(nb.study[FIXED]).loc[RAMP, "estimate"]}


def test_when_a_stored_array_changes_then_notebook_ledger_table_and_figure_move(outputs, tiny_corpus, monkeypatch):
    database = Database("smoke", tiny_corpus)
    result = SimpleNamespace(seconds=1.0, tokens_per_s=1.0, peak_memory_mib=1.0, spent={},
                             metrics=[Metric("train_loss", 3.0, step=1)])
    for job in planned(NOTEBOOK):
        database.record_training(job.run, Facts({}, "machine", "cpu", 1), result, 1000, "")
        record(database, job, 3.0)
    before = everywhere(database, monkeypatch)
    assert len(set(before.values())) == 1
    record(database, next(job for job in planned(NOTEBOOK) if job.labels.series == RAMP), 3.25)
    after = everywhere(database, monkeypatch)
    assert len(set(after.values())) == 1 and after["figure"] == pytest.approx(before["figure"] + 0.25)


# Source in a notebook

def shown_function(x: int) -> int:
    """Not shown."""
    if x > 1:
        x -= 1
    return x


def test_when_source_is_shown_then_it_is_the_files_own_lines_and_a_cut_must_hold_some():
    path, code = source_of(shown_function, "", "")
    assert path == "tests/test_claims.py" and code.startswith("def shown_function") and "Not shown" not in code
    assert source_of(shown_function, "if x", "-=")[1] == "if x > 1:\n    x -= 1"
    for start, end in (("while", ""), ("if x", "while")):
        with pytest.raises(SuiteError, match="source of shown_function.*0 lines"):
            source_of(shown_function, start, end)
    with pytest.raises(SuiteError, match="not 1 to 25"):
        source_of(Notebook, "", "")
