"""A corpus of hub text as a whole: counts, the held-out split, builds that resume, and what is refused at the start."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import signal
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tokenizers
from hub_fakes import COMMIT, CONFIG, Hub, decoded, make_hub, pretend_llama, sentences, start, web, write

from data_prep import build, hub, hub_build
from data_prep.hub import DOMAINS, EVALUATIONS, HubDocument
from lib import paths
from lib.config import DataConfig
from lib.data import SPLITS, Corpus, load_tokenizer
from lib.errors import SuiteError
from suite.tasks import make_source

MORE = dataclasses.replace(CONFIG, train_tokens=15_000, hub=("fineweb_edu", "math"), apart=())


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*"))
            if file.is_file()}


@pytest.fixture
def own(hub_copies: Path, hub_outputs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies that a test may change."""
    monkeypatch.setenv("SUITE_HUB", str(hub_outputs / "hub"))
    return Path(shutil.copytree(hub_copies, hub_outputs / "hub"))


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The name of the data set and the row of every beginning to read a file."""
    real, starts = hub.tables, []
    names = [one.path for sets in (*DOMAINS.values(), EVALUATIONS.values()) for one in sets]
    monkeypatch.setattr(hub, "tables", lambda file, row: [
        starts.append((next(name for name in names if name in file), row)), real(file, row)][1])
    return starts


def test_when_built_then_every_domain_has_exactly_the_tokens_asked_for_and_the_manifest_says_whence(hub_corpus):
    assert (hub_corpus.domains, hub_corpus.apart) == (("fineweb_edu", "tinystories", "math"), ("wikitext103",))
    for domain in (*hub_corpus.domains, *hub_corpus.apart):
        for split, asked in CONFIG.asked.items():
            counts = hub_corpus.manifest["domains"][domain][split]
            assert len(hub_corpus.tokens(split, domain)) == counts["tokens"] == asked
            starts, names = hub_corpus.documents(split, domain), hub_corpus.names(split, domain)
            assert len(starts) == len(names) == counts["documents"]
    assert [source["dataset"] for source in hub_corpus.manifest["domains"]["math"]["sources"]] == [
        "DigitalLearningGmbH/MATH-lighteval", "nvidia/OpenMathInstruct-2"]
    assert hub_corpus.manifest["source"] == "hub" and hub_corpus.manifest["config"]["hub"] == list(CONFIG.hub)
    assert str(paths.ROOT) not in json.dumps(hub_corpus.manifest)
    files = contents(hub_corpus.path)
    del files["manifest.json"]
    assert not [name for name in files if name.startswith(".")]
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == {
        name: facts["sha256"] for name, facts in hub_corpus.manifest["files"].items()}


def test_when_documents_are_decoded_then_each_is_the_row_that_its_name_says_and_no_text_is_in_both_splits(hub_corpus):
    rows = {f"HuggingFaceFW/fineweb-edu/sample/10BT/00{file}_00000.parquet#{row}": text
            for file, first in ((0, 0), (1, 80)) for row, text in enumerate(web(first, 90)["text"])}
    for domain in (*hub_corpus.domains, *hub_corpus.apart):
        parts = {split: decoded(hub_corpus, split, domain) for split in SPLITS}
        assert not set(parts["train"]) & set(parts["heldout"]) and all(parts.values())
        for split in SPLITS if domain == "fineweb_edu" else ():
            *whole, last = zip(hub_corpus.names(split, domain), parts[split], strict=True)
            assert all(rows[name] == text for name, text in whole) and whole
            assert rows[last[0]].startswith(last[1])
        if domain == "math":                    # all solutions of a problem are on one side
            asked = [{text.split("\n")[0] for text in part[:-1]} for part in parts.values()]
            assert not asked[0] & asked[1]


def test_when_documents_are_held_out_then_by_their_text_and_the_seed_and_not_by_their_place():
    documents = [HubDocument(text, text, 0, row, (0, row + 1), 0) for row, text in enumerate(web(0, 90)["text"])]
    held = [document for document in documents if hub_build.held_out(document, CONFIG)]
    assert 5 < len(held) < 40
    assert all(hub_build.held_out(document._replace(file=3, row=7, text="x"), CONFIG) for document in held)
    assert held != [one for one in documents if hub_build.held_out(one, dataclasses.replace(CONFIG, seed=1))]


def test_when_rows_are_copies_then_each_text_is_there_once_and_the_rest_is_counted(hub_outputs, monkeypatch):
    monkeypatch.setattr(hub_build, "CHUNK", 3000)
    corpus = build.corpus(dataclasses.replace(MORE, hub=("fineweb_edu",), train_tokens=25_000, heldout_tokens=5_000))
    every = [text for split in SPLITS for text in decoded(corpus, split, "fineweb_edu")]
    assert len(every) == len(set(every)) > 100
    assert corpus.manifest["domains"]["fineweb_edu"]["removed"] == {"exact copies of documents": 10}


def test_when_the_connection_is_lost_and_a_rerun_killed_then_reruns_go_on_and_the_files_are_the_same(
        hub_corpus, hub_outputs, monkeypatch):
    real, trained, waits, pieces = hub.tables, [], [], hub_build.own_pieces

    def lost(file: str, row: int):
        """From row 40 on, once the tokeniser has been trained."""
        for table in real(file, row):
            if "nvidia/OpenMathInstruct-2" in file and trained:
                yield from [table.slice(0, 40 - row)] if row < 40 else ()
                raise ConnectionError("gone")
            yield table
    monkeypatch.setattr(hub.Source, "local", False)
    monkeypatch.setattr(hub.Source, "identity", lambda self: [list(self.files)])
    monkeypatch.setattr(hub.time, "sleep", waits.append)
    monkeypatch.setattr(hub_build, "CHUNK", 3000)
    monkeypatch.setattr(hub_build, "own_pieces", lambda *a: [pieces(*a), trained.append(1)][0])
    with monkeypatch.context() as patch:
        patch.setattr(hub, "tables", lost)
        with pytest.raises(SuiteError, match="OpenMathInstruct-2.*row 40.*read is kept"):
            build.corpus(CONFIG)
    (work,) = (hub_outputs / "data").glob(".building-*")
    assert len(waits) == hub.ATTEMPTS - 1 and list(work.glob(".math-*.npz"))
    for left in (work / ".math-999999.npz.partial", work / "train-math.bin"):       # of a kill while writing
        left.write_bytes(b"half")
    starts = noted(monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build, "_write_manifest", mock.Mock(side_effect=KeyboardInterrupt))
        build.corpus(CONFIG)
    assert [row for name, row in starts if name == "HuggingFaceFW/fineweb-edu"] == [0]      # a first look, and no more
    assert max(starts)[0] == "roneneldan/TinyStories" and any(row for _, row in starts)
    starts.clear()
    assert contents(build.corpus(CONFIG).path) == contents(hub_corpus.path)
    assert len(starts) == len(set(starts)) == 5 and not any(row for _, row in starts)


def test_when_a_data_set_changed_meanwhile_then_its_domain_starts_again_and_the_others_do_not(
        own, hub_outputs, monkeypatch):
    work = hub_outputs / "work"
    work.mkdir()
    monkeypatch.setattr(hub_build, "fetch", lambda folder, say: {})
    hub_build.build(MORE, work, print)
    write(own / "nvidia/OpenMathInstruct-2/data/train-00000-of-00001.parquet",
          {"problem": [f"New problem {n}: {sentences(n, 2)}" for n in range(250)],
           "generated_solution": [sentences(9000 + n, 3) for n in range(250)]})
    starts = noted(monkeypatch)
    facts, _ = hub_build.build(MORE, work, print)
    read = [name for name, _ in starts]
    assert read.count("HuggingFaceFW/fineweb-edu") == 1 < read.count("nvidia/OpenMathInstruct-2")
    tokens = np.fromfile(work / "train-math.bin", np.uint16)
    texts = load_tokenizer(work / "tokenizer.json").decode(tokens.tolist())
    assert "New problem" in texts and "Way 2 gives" not in texts
    assert facts["math"]["train"]["tokens"] == len(tokens) == MORE.train_tokens


def test_when_text_is_short_then_finite_domains_give_what_they_have_and_others_are_an_error(hub_outputs):
    big = dataclasses.replace(CONFIG, hub=("wikitext103",), apart=(), train_tokens=60_000, heldout_tokens=6_000)
    manifest = build.corpus(big).manifest
    train, heldout = (manifest["domains"]["wikitext103"][split]["tokens"] for split in SPLITS)
    assert manifest["notes"] == [f"wikitext103 has {train:,} training and {heldout:,} held-out tokens in all, "
                                 "fewer than were asked for"]
    assert 16_000 < train < 40_000 and 2_049 <= heldout < 6_000
    with pytest.raises(SuiteError, match=r"'tinystories' has [\d,]+ train .* 900,000 are needed.* copy of roneneldan/"):
        build.corpus(dataclasses.replace(big, hub=("tinystories",), train_tokens=900_000))


def test_when_a_set_is_out_of_reach_then_nothing_was_tokenised(outputs, monkeypatch):
    monkeypatch.setenv("SUITE_HUB", str(outputs))
    monkeypatch.setattr("huggingface_hub.is_offline_mode", lambda: True)
    monkeypatch.setattr(hub_build.tokenizer, "train", lambda *a: pytest.fail("started"))
    with pytest.raises(SuiteError, match="HuggingFaceFW/fineweb-edu .*not in the cache"):
        build.corpus(CONFIG)


def test_when_a_copy_changes_then_the_corpus_is_another_one_and_when_it_does_not_then_it_is_opened(own, monkeypatch):
    assert build.existing(MORE) is None
    first = build.corpus(MORE)
    monkeypatch.setattr(build, "_build_from_hub", lambda *a: pytest.fail("built twice"))
    assert build.corpus(MORE).fingerprint == build.existing(MORE).fingerprint == first.fingerprint
    write(own / "HuggingFaceFW/fineweb-edu/sample/10BT/001_00000.parquet", web(500, 90))
    assert build.existing(MORE) is None


# The library's own way to the hub, against a small hub whose connections break off

@pytest.mark.slow
def test_when_connections_break_and_the_build_is_killed_then_the_corpus_is_that_of_a_copy_on_the_disk(
        hub_corpus, tmp_path):
    server = Hub(make_hub(tmp_path / "served"), breaks=9)
    to_hub = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        first = start(tmp_path / "streamed", **to_hub)
        for line in first.stdout:
            if line.startswith("math: "):
                first.send_signal(signal.SIGKILL)
                break
        first.communicate(timeout=60)
        again = start(tmp_path / "streamed", **to_hub)
        said, _ = again.communicate(timeout=120)
    finally:
        server.shutdown()
        server.server_close()
    assert again.returncode == 0 and "going on after " in said and server.broken >= 3
    (folder,) = (path for path in (tmp_path / "streamed/data").iterdir() if path.is_dir())
    streamed = Corpus(folder)
    for domain in CONFIG.domains:
        assert all(streamed.names(split, domain) == hub_corpus.names(split, domain) for split in SPLITS)
        assert {source["revision"] for source in streamed.manifest["domains"][domain]["sources"]} == {COMMIT}
    for task in ("lambada", "blimp", "cloze"):
        expected = {**hub_corpus.manifest["evaluations"][task], "revision": COMMIT}
        assert streamed.manifest["evaluations"][task] == expected
    same = [name for name in hub_corpus.manifest["files"] if not name.startswith("evaluations/") or name.endswith("l")]
    assert all(streamed.manifest["files"][name] == hub_corpus.manifest["files"][name] for name in same)


# Tokenisers

def test_when_a_tokeniser_is_named_then_documents_end_with_its_own_end_and_the_model_s_rows_may_be_more(own):
    pretend_llama(own / "NousResearch/Llama-2-7b-hf")
    config = dataclasses.replace(MORE, hub=("fineweb_edu",), vocab=32_768, train_tokens=5_000,
                                 tokenizer="NousResearch/Llama-2-7b-hf")
    corpus = build.corpus(config)
    assert (corpus.vocab, corpus.manifest["pieces"]) == (32_768, 32_000)
    assert corpus.manifest["tokenizer"] == config.tokenizer
    tokens, starts = np.asarray(corpus.tokens("train", "fineweb_edu")), corpus.documents("train", "fineweb_edu")
    assert (tokens[starts[1:] - 1] == 2).all() and (tokens == 2).sum() in (len(starts) - 1, len(starts))
    row = int(corpus.names("train", "fineweb_edu")[0].split("#")[1])        # a capital is a byte; nothing is cut at 16
    assert decoded(corpus, "train", "fineweb_edu")[0] == web(0, 90)["text"][row]
    inputs, _ = make_source(DataConfig.of("text"), corpus).batch(0, 0, 2, 64)
    assert int(inputs.max()) < 32_000


def test_when_a_tokeniser_has_too_many_pieces_no_end_or_is_none_then_the_error_says_so(hub_outputs):
    folder = pretend_llama(hub_outputs / "pieces")
    endless = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()
    for content, message in ((None, r"vocab = 400 is not valid: the tokeniser .*pieces has 32000 pieces"),
                             ("{}", "tokenizer.json is no tokeniser"), (endless, "no piece that ends a text")):
        if content:
            (folder / "tokenizer.json").write_text(content)
        with pytest.raises(SuiteError, match=message):
            build.corpus(dataclasses.replace(MORE, tokenizer=str(folder)))
