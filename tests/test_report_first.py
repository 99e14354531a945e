"""The first page: its answer says what the claims came to, its table what each source says of them."""

import pytest
from report_site import PROFILE, joined, judgement, text

from suite.claims.ledger import Published, load
from suite.report import first, ledger
from suite.report.ledger import agreement

LOCAL = "suite-ramp-beats-local"


def entry(verdict: str, effect: float | None = None, low: float | None = None, high: float | None = None) -> dict:
    return {"verdict": verdict, "effect": effect, "interval": None if low is None else [low, high], "unit": "nats"}


def test_when_first_yaml_names_a_claim_then_the_ledger_has_it_and_every_verdict_has_its_sentence():
    known, words = {claim.id: claim.document for claim in load()}, first.words()
    for sentence in words["answer"]:
        assert sentence["claim"] in known and {"supported", "contradicted", "undecided"} < set(sentence)
        assert all("{size}" in sentence[name] or "{effect}" in sentence[name] for name in first.DECIDED)
    assert set(words["unknown"]) <= set(known) and len(words["answer"]) == 4
    assert all(known[name] == document for document, names in words["main"].items() for name in names)


def test_when_claims_were_judged_then_the_answer_says_what_came_out_by_the_shipped_runs_where_they_tested_it():
    here, shipped = {LOCAL: entry("supported", -0.03, -0.04, -0.02)}, {LOCAL: entry("contradicted", 0.05, 0.04, 0.06)}
    said, unknown = first.answer({"Shipped evidence": shipped, "This machine": here})
    assert (said["where"], said["claims"]) == ("shipped evidence", [LOCAL])
    assert said["text"].startswith("The nearest ones") and "0.050 nats (0.040 to 0.060) below" in said["text"]
    assert unknown["text"].startswith("We do not know whether")
    assert set(unknown["claims"]) == set(first.words()["unknown"])
    said, _ = first.answer({"Shipped evidence": {LOCAL: entry("not tested")}, "This machine": here})
    assert said["where"] == "this machine" and "0.030 nats (0.020 to 0.040) below" in said["text"]
    said, _ = first.answer({"This machine": {LOCAL: entry("undecided", -0.03, -0.1, 0.04)}})
    assert "is open" in said["text"] and "\u22120.03 nats (\u22120.10 to 0.04)" in said["text"]
    assert first.answer({"This machine": {}}) == []


@pytest.mark.parametrize(("verdicts", "expected"), [
    ([], "undecided"), (["undecided", None], "undecided"), (["supported", "undecided"], "one source"),
    (["supported", "supported", "not tested"], "2 agree"), (["contradicted"] * 3, "3 agree"),
    (["supported", "contradicted", "supported"], "they disagree")])
def test_when_sources_are_compared_then_only_those_that_decided_count(verdicts, expected):
    assert agreement([verdict and {"verdict": verdict} for verdict in verdicts]) == expected


def test_when_the_report_is_built_then_the_first_page_has_the_three_sources_and_what_turned_out_otherwise(
        site, tmp_path, monkeypatch):
    main = first.words()["main"]["fibonacci"][0]
    published = Published(value=-0.0442, unit="nats a token", source="a table", recompute=judgement(
        "x", "suite", "supported").claim.measure)
    claims = [judgement(main, "fibonacci", "contradicted", effect=0.05, low=0.04, high=0.06, published=published),
              judgement(LOCAL, "suite", "supported")]
    path = tmp_path / "shipped.json"
    monkeypatch.setattr(ledger, "SHIPPED", path)
    site.build(claims=claims)
    path.write_bytes((site.index.parent / "ledger.json").read_bytes().replace(b'"contradicted"', b'"supported"'))
    index = site.build(claims=claims).find("section", id="index")
    row = [text(cell) for cell in index.select(".main-claims tbody tr")[1].find_all(["th", "td"])]
    assert row == [claims[0].claim.statement, "\u2713 supported \u22120.0442 nats a token",
                   "\u2713 supported 0.050 nats a token (0.040 to 0.060)",
                   "\u2717 contradicted 0.050 nats a token (0.040 to 0.060)", "they disagree"]
    assert "Published: \u22120.0442 nats a token; here: 0.050 (0.040 to 0.060)" in text(index.find(id="surprises"))
    assert "shipped evidence" in text(index.find(id="answer").li) and joined(site.index.parent).find(id=f"claim-{main}")
    assert PROFILE in text(index.find("header"))
