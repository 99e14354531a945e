"""The ledger: its file read strictly, published numbers computed again, regions, and verdicts from evidence."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from claim_results import ClaimDatabase, judged
from plans import planned

from lib import paths
from lib.config import Metric
from lib.errors import SuiteError
from suite.claims import as_json, judge
from suite.claims.evidence import Measured, Part
from suite.claims.judge import VERDICTS
from suite.claims.ledger import DOCUMENTS, LEDGER, Call, Claim, load, read
from suite.claims.measures import Measure
from suite.claims.region import Region, decide
from suite.evals import EvalResult
from suite.notebook import Notebook, source_of
from suite.report import ledger
from suite.run.database import Database, Facts
from suite.settings import profiles
from suite.study.frames import NotTested
from suite.study.stats import Interval

CLAIMS = {claim.id: claim for claim in load()}
ENTRIES = yaml.safe_load(LEDGER.read_text(encoding="utf-8"))


# The file

def test_when_the_ledger_is_read_then_it_has_the_documents_and_every_row_of_the_audit():
    assert len(CLAIMS) >= 45 and len(ENTRIES) == len(CLAIMS)
    assert {claim.document for claim in CLAIMS.values()} == set(DOCUMENTS)
    rows = {int(number) for name in CLAIMS for number in re.findall(r"^audit-(\d\d)", name)}
    assert rows == set(range(1, 26))
    for claim in CLAIMS.values():
        assert claim.statement.endswith(".") and claim.comparison.endswith("."), claim.id
        assert claim.rule.startswith(f"Supported if {'' if claim.call.measure.exact else 'the effect is '}")
        assert claim.region.words() in claim.rule and "contradicted" in claim.rule
        assert ("no interval" in claim.rule) == (claim.call.measure.exact or claim.call.measure.by_run)


@pytest.mark.parametrize("name", sorted({claim.notebook for claim in CLAIMS.values()}))
def test_when_a_claim_names_a_section_then_the_notebook_has_that_heading(name):
    notebook = nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    lines = [line for cell in notebook.cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    headings = {line.lstrip("# ") for line in lines if line.startswith("#")}
    wanted = {claim.section for claim in CLAIMS.values() if claim.notebook == name}
    assert wanted <= headings, wanted - headings


@pytest.mark.parametrize("name", [claim.id for claim in CLAIMS.values() if claim.published])
def test_when_a_published_number_stands_in_the_ledger_then_its_table_gives_it(name):
    """To the last digit that is written."""
    own = next(entry for entry in ENTRIES if entry["id"] == name)["published"]["value"]
    recompute = CLAIMS[name].published.recompute
    digits = len(str(own).partition(".")[2])
    found = recompute.measure.function(None, **dict(recompute.arguments)).parts
    assert len(found) == 1 and round(found[0].estimate, digits) == own
    assert recompute.measure.exact


def broken(change) -> dict:
    entry = copy.deepcopy(ENTRIES[0])
    change(entry)
    return entry


@pytest.mark.parametrize("change, words", [
    (lambda e: e.update(rule="x"), "unknown key 'rule'"),
    (lambda e: e.pop("comparison"), "the key comparison is missing"),
    (lambda e: e.update(statement=3), "statement = 3"),
    (lambda e: e.update(document="fibonaci"), "did you mean 'fibonacci'"),
    (lambda e: e.update(notebook="01_window"), "unknown notebook"),
    (lambda e: e.update(supported_if={"beneath": 0}), "unknown region 'beneath'"),
    (lambda e: e.update(supported_if={"below": "0"}), "one number"),
    (lambda e: e.update(supported_if={"between": [1, -1]}), "the lower one first"),
    (lambda e: e.update(supported_if={"below": 0, "above": 1}), "supported_if"),
    (lambda e: e.update(measure="loss_difference"), "a mapping with the name of a function"),
    (lambda e: e["measure"].update(name="loss_differ"), "did you mean 'loss_difference'"),
    (lambda e: e["measure"].update(other="Dense"), "unknown argument 'other'"),
    (lambda e: e["measure"].pop("others"), "the argument others"),
    (lambda e: e["measure"].update(window="six"), "window"),
    (lambda e: e["measure"].update(series="Dense"), "series"),
    (lambda e: e["published"].pop("source"), "the key published.source is missing"),
    (lambda e: e["published"].update(value="-0.04"), "published.value = '-0.04' is not valid")])
def test_when_an_entry_is_wrong_then_the_error_names_the_claim_and_the_key(change, words):
    with pytest.raises(SuiteError, match=re.escape(words)) as error:
        read(broken(change), "claim fib-x")
    assert str(error.value).startswith("claim fib-x: ")


def test_when_the_file_is_wrong_then_the_error_names_it(tmp_path):
    for text, words in ((yaml.safe_dump(ENTRIES[:1] * 2), "two claims have the id"),
                        ("- {id: a, id: b}", "stands twice"), ("{}", "not a list of claims"), ("- [", "not YAML"),
                        ("- 3", "claim number 1"),
                        ("- {id: a, document: suite}", "claim a: the key")):
        path = tmp_path / f"{abs(hash(text))}.yaml"
        path.write_text(text)
        with pytest.raises(SuiteError, match=re.escape(words)) as error:
            load(path)
        assert path.name in str(error.value)


def test_when_the_ledger_is_read_then_torch_is_not():
    """The process that writes the report needs no torch."""
    code = "import sys; from suite import claims; claims.load(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=paths.ROOT)


# Regions and several comparisons

@pytest.mark.parametrize("region, low, high, side", [
    ({"below": 0}, -2, -1, True), ({"below": 0}, 1, 2, False), ({"below": 0}, -1, 1, None), ({"below": 0}, 0, 0, False),
    ({"above": 0.02}, 0.03, 1, True), ({"above": 0.02}, 0, 0.01, False), ({"above": 0.02}, 0.01, 0.03, None),
    ({"at_most": 0}, -1, 0, True), ({"at_most": 0}, 0.1, 1, False), ({"at_least": 2}, 2, 3, True),
    ({"at_least": 2}, 1, 1.9, False), ({"between": [-1, 1]}, -1, 1, True), ({"between": [-1, 1]}, 2, 3, False),
    ({"between": [-1, 1]}, -3, -2, False), ({"between": [-1, 1]}, -3, 3, None), ({"equals": 0}, 0, 0, True),
    ({"equals": 0}, 1, 1, False)])
def test_when_an_interval_lies_in_a_region_beside_it_or_across_then_the_side_says_so(region, low, high, side):
    found = Interval((low + high) / 2, low, high, 9)
    assert Region.read(region).side(found) is side
    if low == high:
        assert Region.read(region).contains(low) is side


def test_when_an_interval_decides_then_its_p_is_small_and_else_it_is_not():
    region = Region.read({"between": [-1, 1]})
    for low, high in ((-0.9, 0.9), (1.1, 3), (-4, -1.05), (0.2, 0.99)):
        assert region.p(Interval((low + high) / 2, low, high, 9)) < 0.05
    for low, high in ((-1.1, 0.9), (0.9, 3), (-3, 3)):
        assert region.p(Interval((low + high) / 2, low, high, 9)) > 0.05


def test_when_several_are_compared_then_all_must_hold_and_one_contradicts_at_its_number_of_tries():
    below = Region.read({"below": 0})
    good, better, bad, unsure = (Interval(m, m - h, m + h, 9) for m, h in ((-2, 1), (-9, 1), (2, 1), (-0.5, 1)))
    held = decide(below, [better, good])
    assert (held.side, held.at) == (True, 1) and held.p == pytest.approx(good.p())      # the weakest one decides
    assert decide(below, [good, unsure]).side is None
    broke = decide(below, [good, bad, unsure])
    assert (broke.side, broke.at) == (False, 1) and broke.p == pytest.approx(3 * bad.p())


# Verdicts

def made(value, region=None, name="c", exact=False) -> Claim:
    """A claim whose measure gives `value`: an interval, a number, or an error that it raises."""
    def function(evidence):
        if isinstance(value, Exception):
            raise value
        return Measured((Part("A minus B", value),), getattr(value, "seeds", 0))
    return Claim(name, "suite", "S.", "C.", Region.read(region or {"below": 0}), "01_window_sweep", "The experiment",
                 Call(Measure("made", function, "nats", exact)))


def verdicts(*claims: Claim) -> list[str]:
    return [own.verdict for own in judged(ClaimDatabase(), claims=claims).values()]


def test_when_evidence_differs_then_so_does_the_verdict():
    cases = [(Interval(-1, -1.1, -0.9, 9, 3), "supported"), (Interval(1, 0.9, 1.1, 9, 3), "contradicted"),
             (Interval(0, -1, 1, 9, 3), "undecided"), (-1.0, "supported"), (1.0, "contradicted"),
             (NotTested("no W = 8"), "not tested"), (ValueError("the array is gone"), "failed")]
    claims = [made(value, name=str(at)) for at, (value, _) in enumerate(cases)]
    found = list(judged(ClaimDatabase(), claims=claims).values())
    assert [own.verdict for own in found] == [verdict for _, verdict in cases]
    assert set(VERDICTS) == {own.verdict for own in found}
    assert "no W = 8" in found[5].sentence and "the array is gone" in found[6].sentence
    assert all(own.effect is None and own.p is None for own in found[5:])


def test_when_many_are_judged_then_holm_leaves_undecided_what_one_interval_would_decide():
    near, null = Interval(-1.0, -1.9, -0.1, 9, 3), Interval(0.0, -1.0, 1.0, 9, 3)
    assert verdicts(made(near)) == ["supported"]
    assert verdicts(made(near), *(made(null, name=str(n)) for n in range(5)))[0] == "undecided"
    exact = [made(1.0, name=str(n), exact=True) for n in range(50)]
    assert verdicts(made(near), *exact)[0] == "supported"            # exact numbers are no tries


def test_when_seeds_are_few_then_the_sentence_says_so_and_a_plain_number_has_no_interval():
    one_seed, three = (judged(ClaimDatabase(), claims=[made(Interval(-1, -2, -0.5, 9, n))])["c"] for n in (1, 3))
    assert ", one seed." in one_seed.sentence and "seed" not in three.sentence
    assert (one_seed.seeds, three.seeds) == (1, 3)
    plain = judged(ClaimDatabase(), claims=[made(-1.0)])["c"]
    assert plain.low is None and "without an interval" in plain.sentence
    exact = judged(ClaimDatabase(), claims=[made(-1.0, exact=True)])["c"]
    assert exact.exact and "interval" not in exact.sentence


def test_when_judgements_are_written_then_json_has_the_fields_that_the_report_reads():
    found = list(judged(ClaimDatabase(unpaired=0.05)).values())
    entries = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert len(entries) == len(CLAIMS)
    keys = {"identifier", "document", "statement", "verdict", "effect", "interval", "unit", "p", "seeds", "runs",
            "published", "published_source", "rule", "notebook", "section"}
    for entry, own in zip(entries, found, strict=True):
        assert keys <= set(entry) and entry["verdict"] in VERDICTS
        assert (entry["interval"] is None) == (own.low is None)
        if own.verdict in ("supported", "contradicted", "undecided"):
            assert np.isfinite(own.effect) and own.sentence.endswith(".")
            assert own.exact or own.seeds >= 1 and own.runs
            assert own.low is None or own.low <= own.effect <= own.high


# One number in four places

NOTEBOOK, CLAIM, FIXED, RAMP = "01_window_sweep", "fib-ramp-beats-fixed", "Fibonacci, fixed", "Fibonacci, linear ramp"


@pytest.fixture
def trained(outputs, tiny_corpus) -> Database:
    """A database in which all runs of the notebook at `smoke` are trained, with losses that nobody measured."""
    database, facts = Database("smoke", tiny_corpus), Facts({}, "machine", "cpu", 1)
    result = SimpleNamespace(seconds=1.0, tokens_per_s=1.0, peak_memory_mib=1.0, spent={},
                             metrics=[Metric("train_loss", 3.0, step=1)])
    for job in planned(NOTEBOOK):
        database.record_training(job.run, facts, result, 1000, "")
        record(database, job, 3.0)
    return database


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
    monkeypatch.setattr("IPython.display.display",
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
    table = pd.read_csv(paths.results("smoke") / "claims.csv").set_index("identifier")
    row = table.loc[CLAIM]
    assert entry["interval"] == [row["low"], row["high"]] and entry["verdict"] == row["verdict"]
    said = re.search(r": (-?[0-9]+\.([0-9]+)) \(95 % interval", text)
    assert f"*{entry['verdict'].capitalize()}*" in text and said[1] == f"{entry['effect']:.{len(said[2])}f}"
    return {"notebook": nb.judgements[CLAIM].effect, "ledger": entry["effect"], "table": row["effect"],
            "figure": nb.study.against(FIXED).loc[RAMP, "estimate"]}


def test_when_a_stored_array_changes_then_notebook_ledger_table_and_figure_move_alike(trained, monkeypatch):
    before = everywhere(trained, monkeypatch)
    assert len(set(before.values())) == 1
    record(trained, next(job for job in planned(NOTEBOOK) if job.labels.series == RAMP), 3.25)
    after = everywhere(trained, monkeypatch)
    assert len(set(after.values())) == 1 and after["figure"] == pytest.approx(before["figure"] + 0.25)


# Source in a notebook

def shown_function(x: int) -> int:
    """Not shown."""
    if x > 1:
        x -= 1
    return x


def test_when_source_is_shown_then_it_is_the_files_own_lines_and_a_cut_must_hold_some(monkeypatch):
    path, code = source_of(shown_function, "", "")
    assert path == "tests/test_claims.py" and code.startswith("def shown_function") and "Not shown" not in code
    assert source_of(shown_function, "if x", "-=")[1] == "if x > 1:\n    x -= 1"
    for start, end in (("while", ""), ("if x", "while")):
        with pytest.raises(SuiteError, match="source of shown_function.*0 lines"):
            source_of(shown_function, start, end)
    with pytest.raises(SuiteError, match="not 1 to 25"):
        source_of(Notebook, "", "")
