"""Text of the hub: reading it from any position, through connections that drop; and a corpus of it as a whole: counts,
the held-out split, builds that resume, what is refused at the start, and what the report and the battery make of it."""

import copy
import dataclasses
import hashlib
import itertools
import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import datasets
import huggingface_hub
import numpy as np
import pytest
import tokenizers
import torch
from eval_fakes import only, run_of, uniform
from hub_fakes import (COMMIT, CONFIG, Hub, articles, decoded, make_hub, pretend_llama, problems, sentences, start, web,
                       write)
from pyarrow import parquet

from data_prep import build, hub, hub_build, tokenizer
from data_prep.hub import ATTEMPTS, DOMAINS, EVALUATIONS, HubDocument, Reader
from lib import paths
from lib.config import DataConfig, Evaluation
from lib.data import SPLITS, Corpus, domains_of, load_tokenizer
from lib.errors import SuiteError
from suite.evals import build as evaluator
from suite.evals.battery import requests
from suite.evals.zero_shot import Item, called
from suite.experiments import experiment
from suite.experiments.base import Job
from suite.experiments.common import Recipe
from suite.report.facts import origins
from suite.settings.profiles import load
from suite.study.frames import Study
from suite.tasks import make_source

pytestmark = pytest.mark.usefixtures("hub_outputs")
MORE = dataclasses.replace(CONFIG, train_tokens=15_000, hub=("fineweb_edu", "math"), apart=())


def reader(name: str) -> Reader:
    return Reader(name, DOMAINS[name], print)


def texts(name: str) -> list[str]:
    return [document.text for document in reader(name).documents()]


WEB = web(0, 30)["text"] + web(20, 150)["text"]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the copies."""
    monkeypatch.setenv("SUITE_HUB", str(tmp_path))
    return tmp_path


def test_when_a_set_has_other_splits_configurations_and_columns_then_only_its_own_are_read():
    assert texts("fineweb_edu") == WEB
    assert len(texts("tinystories")) == 60
    first, *_ = found = list(reader("math").documents())
    columns = problems(40, "solution")
    assert first.text == f"{columns['problem'][0]}\n{columns['solution'][0]}" and len(found) == 40 + 240
    assert found[40].together == found[41].together == first.together == columns["problem"][0]
    assert found[40].text != found[41].text


def test_when_rows_are_lines_then_documents_are_articles_also_over_the_end_of_a_file():
    found = list(reader("wikitext103").documents())
    lines = [line.rstrip("\n") for line in articles(0, 90)]
    assert "".join(document.text for document in found).replace("\n", "") == "".join(lines)
    heads = [number for number, line in enumerate(lines) if line.startswith(" = Article")]
    assert [document.text.split("\n")[0] for document in found] == [f" = Article {n} = " for n in range(90)]
    assert [document.row + 301 * document.file for document in found] == heads
    assert any(document.file == 0 and document.after[0] == 1 and document.row + 7 > 301 for document in found)


def test_when_lines_are_pages_then_what_stands_before_the_first_is_a_document_too_and_empty_ones_are_none():
    lines = ["", "<mediawiki>", "  <page>", "    <title>A</title>", "  </page>", "  <page>", None, "  </page>"]
    rows = ((0, number, (line,)) for number, line in enumerate(lines))
    found = list(hub.grouped(rows, DOMAINS["enwik8"][0], (1, 0)))
    assert [d.text.split("\n")[0] for d in found] == ["<mediawiki>", "  <page>", "  <page>"]
    assert [(d.row, d.after, d.passed_over) for d in found] == [(0, (0, 2), 0), (2, (0, 5), 0), (5, (1, 0), 1)]
    assert list(hub.grouped(iter([(0, 0, ("",))]), DOMAINS["enwik8"][0], (1, 0))) == []


@pytest.mark.parametrize("name", ["math", "wikitext103"])
def test_when_reading_starts_at_any_position_then_it_goes_on_as_if_it_had_never_stopped(name):
    source = reader(name)
    whole = list(source.documents())
    for at in (*range(0, len(whole), 41), len(whole) - 1):
        assert list(source.documents(whole[at].after)) == whole[at + 1:]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".txt"])
def test_when_a_copy_is_of_another_format_then_the_documents_are_the_same(suffix, tmp_path, monkeypatch):
    expected, lines, place = texts("wikitext103"), articles(0, 90), tmp_path / "Salesforce/wikitext/any/depth"
    monkeypatch.setenv("SUITE_HUB", str(tmp_path))
    write(place / f"train{suffix}", {"text": [line.rstrip("\n") for line in lines] if suffix == ".txt" else lines})
    assert texts("wikitext103") == expected


def test_when_rows_have_no_text_then_they_are_passed_over_and_counted(bare):
    write(bare / "roneneldan/TinyStories/train.parquet", {"text": ["one", None, " \n", "two", None]})
    assert [(d.text, d.row, d.passed_over) for d in reader("tinystories").documents()] == [("one", 0, 0), ("two", 3, 2)]


def dropping(batch: int, failures: int, error: Exception):
    """`hub.tables` of a hub whose connection drops after each batch of rows, and at times does not come back."""
    calls = itertools.count(1)

    def tables(file: str, row: int):
        if next(calls) % (failures + 1):
            raise error
        table = parquet.read_table(file)
        if row < len(table):
            yield table.slice(row, batch)
            raise error
    return tables


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the waits, which are noted and not waited."""
    noted: list[float] = []
    monkeypatch.setattr(hub.time, "sleep", noted.append)
    return noted


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """The hub's answer about a data set, without copies."""
    monkeypatch.delenv("SUITE_HUB")
    monkeypatch.setattr(datasets, "load_dataset_builder", mock.Mock())
    return datasets.load_dataset_builder


OF_THE_CLIENT = next(kind for kind in huggingface_hub.errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")


@pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError("slow"), OSError(5, "broken pipe"),
                                   OF_THE_CLIENT("peer closed connection without sending complete message body")])
def test_when_the_connection_drops_again_and_again_then_no_document_is_lost_or_read_twice(
        error, waits, monkeypatch):
    whole = list(reader("math").documents())
    monkeypatch.setattr(hub.Source, "local", False)
    monkeypatch.setattr(hub, "tables", dropping(37, ATTEMPTS - 2, error))
    assert list(reader("math").documents()) == whole
    assert waits[:4] == [hub.WAIT * 2 ** n for n in range(4)]


def test_when_the_hub_stays_away_then_the_error_says_that_a_rerun_goes_on(waits, monkeypatch):
    source = reader("fineweb_edu")
    monkeypatch.setattr(hub.Source, "local", False)
    monkeypatch.setattr(hub, "tables", dropping(37, 10 ** 6, ConnectionError("no route to host")))
    with pytest.raises(SuiteError, match=rf"row 0: the hub did not answer {ATTEMPTS} times .*no route to .*run again"):
        next(source.documents())
    assert len(waits) == ATTEMPTS - 1


def refusal(kind: type[Exception], status: int) -> Exception:
    return kind("401 Client Error", response=SimpleNamespace(status_code=status, headers={}, request=None, text=""))


@pytest.mark.parametrize("error", [
    datasets.exceptions.DatasetNotFoundError("Dataset 'x' is a gated dataset on the Hub. Visit the page for access."),
    refusal(huggingface_hub.errors.GatedRepoError, 403), refusal(huggingface_hub.errors.RepositoryNotFoundError, 404),
    refusal(huggingface_hub.errors.HfHubHTTPError, 401), ValueError("BuilderConfig 'sample-10BT' not found."),
    RuntimeError("Dataset scripts are no longer supported")])
def test_when_a_set_is_gone_gated_or_changed_then_the_error_says_at_once_what_to_do(error, asked, waits):
    asked.side_effect = error
    with pytest.raises(SuiteError) as told:
        reader("fineweb_edu")
    for words in ("HuggingFaceFW/fineweb-edu (sample-10BT, train)", str(error)[:30], "hf auth login",
                  "a copy into HuggingFaceFW/fineweb-edu of the folder that SUITE_HUB names"):
        assert words in str(told.value)
    assert not waits


def test_when_the_hub_is_busy_then_looking_up_is_tried_again(hub_copies, asked, waits):
    found = SimpleNamespace(config=SimpleNamespace(data_files={"train": sorted(
        map(str, (hub_copies / "HuggingFaceFW/fineweb-edu/sample/10BT").iterdir()))}))
    asked.side_effect = [*(refusal(huggingface_hub.errors.HfHubHTTPError, status) for status in (429, 503)), found]
    assert texts("fineweb_edu") == WEB and waits == [5, 10]
    asked.assert_called_with("HuggingFaceFW/fineweb-edu", "sample-10BT", revision="main")


def test_when_files_are_the_hub_s_own_then_names_do_not_have_their_commit(asked):
    commit = "0123456789abcdef" * 2 + "01234567"
    url = f"hf://datasets/LTCB/enwik8@{commit}/enwik8/train/0000.parquet"
    asked.return_value.config.data_files = {"train": [url]}
    found = hub.find(DOMAINS["enwik8"][0])
    asked.assert_called_once_with("LTCB/enwik8", "enwik8", revision="refs/convert/parquet")
    assert (found.files, found.revision, found.local) == ((url,), commit, False)
    assert found.name(url) == "LTCB/enwik8/enwik8/train/0000.parquet"
    asked.return_value.config.data_files = {"test": [url]}
    with pytest.raises(SuiteError, match=r"no split 'train' \(known: test\)"):
        hub.find(DOMAINS["enwik8"][0])


def test_when_the_hub_may_not_be_asked_then_its_cache_is_read_or_the_error_names_the_download(tmp_path, monkeypatch):
    monkeypatch.delenv("SUITE_HUB")
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    real, cache, commit = huggingface_hub.snapshot_download, tmp_path / "hub", "a" * 40
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: real(*a, cache_dir=cache, **k))
    with pytest.raises(SuiteError, match="not in the cache of HF_HOME.*hf download --repo-type dataset roneneldan/"):
        hub.find(DOMAINS["tinystories"][0])
    own = cache / "datasets--roneneldan--TinyStories"
    write(own / "snapshots" / commit / "data/train-00000-of-00001.parquet", {"text": ["from the cache"]})
    (own / "refs").mkdir()
    (own / "refs/main").write_text(commit)
    assert texts("tinystories") == ["from the cache"]
    assert hub.find(DOMAINS["tinystories"][0]).revision == commit


def test_when_copies_lie_as_the_hub_has_them_then_every_set_finds_its_own_files_or_says_that_there_are_none(bare):
    for name in ("wikimedia/wikipedia/20231101.en/train-00001-of-00041.parquet",
                 "wikimedia/wikipedia/20231101.en/train-00000-of-00041.parquet",
                 "wikimedia/wikipedia/20231101.eo/train-00000-of-00001.parquet",
                 "LTCB/enwik8/enwik8/train/0000.parquet", "LTCB/enwik8/enwik8-raw/train/0000.parquet",
                 *(f"EleutherAI/lambada_openai/{folder}/test/0000.parquet"
                   for folder in ("default", "de", ".cache/default"))):
        write(bare / name, {"text": ["x"]})

    def found(wanted: hub.HubSet) -> list[str]:
        return [Path(file).relative_to(bare / wanted.path).as_posix() for file in hub.find(wanted).files]
    assert found(DOMAINS["wikipedia"][0]) == [f"20231101.en/train-0000{n}-of-00041.parquet" for n in range(2)]
    assert found(DOMAINS["enwik8"][0]) == ["enwik8/train/0000.parquet"]
    assert found(EVALUATIONS["lambada"]) == ["default/test/0000.parquet"]
    shutil.rmtree(bare / "LTCB/enwik8")
    write(bare / "LTCB/enwik8/enwik8.txt", {"text": ["  <page>", "  </page>"]})
    assert found(DOMAINS["enwik8"][0]) == ["enwik8.txt"] and texts("enwik8") == ["  <page>\n  </page>"]
    write(bare / "roneneldan/TinyStories/validation.parquet", {"text": ["x"]})
    with pytest.raises(SuiteError, match=r"TinyStories has no file of roneneldan/TinyStories \(default, train\)"):
        hub.find(DOMAINS["tinystories"][0])


# Broken copies: each error names file, place and remedy, and nobody waits

BROKEN = [      # name, columns, what is done to the file, message
    ("train-0.parquet", {"story": ["x"], "id": [1]}, None, r", rows from 0: no column 'text' \(there are story, id\)"),
    ("train-1.parquet", {"story": ["x"]}, None, ", rows from 0: no column 'text'"),
    ("train-0.parquet", {"text": [1, 2]}, None, ".*column 'text' is int64, not text"),
    ("train-0.parquet", {"text": []}, None, " has no rows"),
    ("train-0.parquet", web(0, 60), lambda whole: whole[:-30], " cannot be read after row 0 .*damaged or cut off"),
    ("train-1.parquet", web(0, 60), lambda whole: whole[:2000] + bytes(7000) + whole[9000:], " cannot be read after"),
    ("train-0.parquet", web(0, 60), lambda whole: b"text", " cannot be read after row 0"),
    ("train-1.jsonl", {"text": ["good", "bad"]}, lambda whole: whole[:-4], " cannot be read after row 0")]


@pytest.mark.parametrize(("name", "columns", "damage", "message"), BROKEN)
def test_when_a_file_is_broken_or_of_another_set_then_the_error_names_it_and_nobody_waits(
        name, columns, damage, message, bare, waits):
    folder = bare / "roneneldan/TinyStories"
    write(folder / "train-0.parquet", {"text": ["x"]})
    write(folder / name, columns)
    if damage:
        (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(SuiteError, match=name + message):
        texts("tinystories")
    assert not waits


# A corpus as a whole

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


def test_when_built_then_domains_have_the_tokens_asked_for_and_each_document_is_the_row_of_its_name(hub_corpus):
    rows = {f"HuggingFaceFW/fineweb-edu/sample/10BT/00{file}_00000.parquet#{row}": text
            for file, part in enumerate((web(0, 30), web(20, 150))) for row, text in enumerate(part["text"])}
    assert (hub_corpus.domains, hub_corpus.apart) == (("fineweb_edu", "tinystories", "math"), ("wikitext103",))
    for domain in CONFIG.domains:
        texts = {split: decoded(hub_corpus, split, domain) for split in SPLITS}
        assert not set(texts["train"]) & set(texts["heldout"])
        for split, asked in CONFIG.asked.items():
            counts = hub_corpus.manifest["domains"][domain][split]
            assert len(hub_corpus.tokens(split, domain)) == counts["tokens"] == asked
            *whole, last = zip(hub_corpus.names(split, domain), texts[split], strict=True)
            assert len(whole) + 1 == len(set(texts[split])) == counts["documents"]
            if domain == "fineweb_edu":
                assert whole and all(rows[name] == text for name, text in whole)
                assert rows[last[0]].startswith(last[1])
        if domain == "math":                    # all solutions of a problem are on one side
            problems = [{text.split("\n")[0] for text in part[:-1]} for part in texts.values()]
            assert not problems[0] & problems[1]


def test_when_built_then_the_manifest_says_whence_and_what_was_left_out(hub_corpus):
    manifest, files = hub_corpus.manifest, contents(hub_corpus.path)
    assert [source["dataset"] for source in manifest["domains"]["math"]["sources"]] == [
        "DigitalLearningGmbH/MATH-lighteval", "nvidia/OpenMathInstruct-2"]
    assert manifest["source"] == "hub" and manifest["config"]["hub"] == list(CONFIG.hub)
    assert manifest["domains"]["fineweb_edu"]["removed"] == {"exact copies of documents": 10}
    assert str(paths.ROOT) not in json.dumps(manifest)
    del files["manifest.json"]
    assert not [name for name in files if name.startswith(".")]
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == {
        name: facts["sha256"] for name, facts in manifest["files"].items()}


def test_when_documents_are_held_out_then_by_their_text_and_the_seed_and_not_by_their_place():
    documents = [HubDocument(text, text, 0, row, (0, row + 1), 0) for row, text in enumerate(web(0, 90)["text"])]
    held = [document for document in documents if hub_build.held_out(document, CONFIG)]
    assert 5 < len(held) < 40
    assert all(hub_build.held_out(document._replace(file=3, row=7, text="x"), CONFIG) for document in held)
    assert held != [one for one in documents if hub_build.held_out(one, dataclasses.replace(CONFIG, seed=1))]


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


def test_when_a_copy_changes_then_the_corpus_is_another_one_and_when_it_does_not_then_it_is_opened(own, monkeypatch):
    assert build.existing(MORE) is None
    first = build.corpus(MORE)
    monkeypatch.setattr(build, "_build_from_hub", lambda *a: pytest.fail("built twice"))
    assert build.corpus(MORE).fingerprint == build.existing(MORE).fingerprint == first.fingerprint
    (first.path / "tokenizer.json").write_bytes(b"{}")
    for open_ in (build.corpus, build.existing):
        with pytest.raises(SuiteError, match="tokenizer.json is missing or damaged; delete"):      # hours of reading
            open_(MORE)
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


def test_when_a_tokeniser_is_none_or_does_not_fit_or_a_set_is_out_of_reach_then_nothing_is_tokenised(
        hub_outputs, monkeypatch):
    monkeypatch.setattr(hub_build.tokenizer, "train", lambda *a: pytest.fail("started"))
    folder = pretend_llama(hub_outputs / "pieces")
    endless = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()
    for content, message in ((None, r"vocab = 400 is not valid: the tokeniser .*pieces has 32000 pieces"),
                             ("{}", "tokenizer.json is no tokeniser"), (endless, "no piece that ends a text")):
        if content:
            (folder / "tokenizer.json").write_text(content)
        with pytest.raises(SuiteError, match=message):
            build.corpus(dataclasses.replace(MORE, tokenizer=str(folder)))
    monkeypatch.setenv("SUITE_HUB", str(hub_outputs))
    monkeypatch.setattr("huggingface_hub.is_offline_mode", lambda: True)
    with pytest.raises(SuiteError, match="HuggingFaceFW/fineweb-edu .*not in the cache"):
        build.corpus(CONFIG)


# The battery, the report and the profiles

def test_when_the_corpus_has_the_hub_s_sets_then_the_battery_asks_these(hub_corpus):
    assert called("mqar", hub_corpus) == "mqar"
    assert called("blimp", SimpleNamespace(evaluation=lambda task: None)) == "blimp-offline"
    for task, counts in (("blimp", {"blimp": 10, "blimp/wh_island": 5}), ("lambada", {"lambada": 12}),
                         ("cloze", {"factual_cloze": 8, "factual_cloze/P36": 4})):
        found = evaluator("battery", tasks=(task,), count=50).measure(
            uniform(400), run_of(length=128, vocab=400), hub_corpus, torch.device("cpu"))
        assert {split: only(found, "count", split=split) for split in counts} == counts
        if task == "blimp":                 # `runs` is a piece more than `run`: less likely if uniform
            assert only(found, "accuracy", split="blimp") == 0
    assert only(found, "chance", split="factual_cloze/P36") == pytest.approx(1 / 3)      # Rome, Oslo, Bern
    assert only(found, "chance", split="factual_cloze") == pytest.approx((1 / 3 + 1 / 2) / 2)
    pieces = len(hub_corpus.tokenizer().encode(" Rome").ids)
    assert found.arrays["target_nll.factual_cloze"][0] == pytest.approx(pieces * np.log(400), rel=1e-5)


def test_when_blimp_s_own_files_are_there_then_each_is_a_subset_and_a_row_without_a_text_is_an_error(own, tmp_path):
    blimp, kept = own / "nyu-mll/blimp", tmp_path / "evaluations"
    write(blimp / "wh_island/train-00000-of-00001.jsonl",
          {"sentence_good": ["A dog runs.", None], "sentence_bad": ["A dog run.", "x"]})
    with pytest.raises(SuiteError, match="wh_island/train-0.*.jsonl, row 1 has no text in 'sentence_good'"):
        hub_build.fetch(kept, print)
    assert not (kept / "blimp.json").exists()
    for folder in (blimp, kept):
        shutil.rmtree(folder)
    for subset in ("principle_A_case_1", "passive_1"):
        write(blimp / f"{subset}.jsonl", {"sentence_good": ["Good."], "sentence_bad": ["Bad."]})
    facts = hub_build.fetch(kept, print)
    assert (facts["blimp"]["subsets"], facts["blimp"]["items"]) == (2, 2)
    assert {path.stem for path in (kept / "blimp").iterdir()} == {"passive_1", "principle_A_case_1"}


def test_when_pieces_write_a_space_at_the_beginning_otherwise_then_a_continuation_is_cut_from_the_whole(tmp_path):
    pieces = tokenizer.named(str(pretend_llama(tmp_path / "pieces")))
    (made,) = requests(pieces, Item("the old river was", (" tall",), 0, 1.0, ""), tokenizer.end_of(pieces), 64)
    alone = pieces.encode(" tall", add_special_tokens=False).tokens
    assert alone != ["\u2581tall"] == [pieces.id_to_token(number) for number in made.say]


def test_when_a_run_names_its_domains_then_it_reads_them_alone_and_losses_are_those_of_them(hub_corpus):
    own, plain = DataConfig.of("text", domains=("wikitext103",)), DataConfig.of("text")
    run, results = run_of(length=100, vocab=400, data=own), {}
    for data, expected in ((own, ("wikitext103",)), (plain, hub_corpus.domains)):
        assert domains_of(data, hub_corpus) == expected == tuple(make_source(data, hub_corpus).domains)
        results[data] = evaluator("perplexity", tokens=1000).measure(
            uniform(400), run_of(length=100, vocab=400, data=data), hub_corpus, torch.device("cpu"))
        assert {metric.split for metric in results[data].metrics} == set(expected)
    for wrong in ({"domains": ("wikitext",)}, {"mixture": (("wikitext", 1.0),)}):
        with pytest.raises(SuiteError, match="unknown domain of the mixture 'wikitext'; did you mean 'wikitext103'"):
            make_source(DataConfig.of("text", **wrong), hub_corpus)
    asked = []
    database = SimpleNamespace(corpus=hub_corpus, array=lambda *a: asked.append(a[-1]) or results[own].arrays[a[-1]])
    jobs = [Job.of(run, Evaluation.of("perplexity", lengths=(100,), tokens=1000), series="Own")]
    study = Study(jobs, database)
    (windows,) = study.windows(study["Own"])
    assert windows.shape == (1, 10) and windows == pytest.approx(np.log(400), rel=1e-5)
    assert "nll.wikitext103.100" in asked and not any("math" in name for name in asked)


def test_when_the_report_describes_the_text_then_it_names_sets_configurations_and_commits(hub_corpus):
    manifest, place = copy.deepcopy(hub_corpus.manifest), "a copy on this machine"
    assert {f"fineweb_edu: HuggingFaceFW/fineweb-edu (sample-10BT, train), {place}, ODC-By 1.0",
            f"wikitext103: Salesforce/wikitext (wikitext-103-raw-v1, train), {place}, CC BY-SA 3.0 and GFDL",
            f"blimp, 10 items: nyu-mll/blimp (train), {place}, CC BY 4.0"} <= set(origins(manifest))
    manifest["domains"]["math"]["sources"][0]["revision"] = "f" * 40
    assert "math: DigitalLearningGmbH/MATH-lighteval (default, train), commit ffffffffffff, MIT" in origins(manifest)


def test_when_the_paper_s_profile_is_loaded_then_it_has_the_mixture_and_wikitext_is_of_two_notebooks_alone():
    """All language models of a notebook that has domains are trained on them."""
    profile, own = load("paper"), load("paper", corpus="/some/folder")
    assert dict(profile.mixture) == {"fineweb_edu": 0.35, "wikipedia": 0.22, "tinystories": 0.20, "math": 0.23}
    assert set(dict(profile.mixture)) == set(profile.corpus.hub) and profile.corpus.apart == ("wikitext103",)
    assert (own.corpus.hub, own.corpus.apart, own.corpus.tokenizer, own.mixture) == ((), (), "", ())
    mixture = DataConfig.of("text", mixture=tuple(sorted(dict(profile.mixture).items())))
    alone = DataConfig.of("text", domains=("wikitext103",))
    for notebook in ("04_power_law_sigma", "05_christoffel"):
        parameters, others = profile.parameters(notebook), own.parameters(notebook)
        assert Recipe(parameters, profile, domains=parameters.domains).data == alone
        assert Recipe(parameters, profile).data == mixture
        assert Recipe(others, own, domains=others.domains).data == DataConfig.of("text")
        smoke = load("smoke")
        jobs = experiment(notebook).plan(smoke.parameters(notebook).model_copy(update={"domains": ("docs",)}), smoke)
        texts = {job.run.data for job in jobs if job.run.data.source == "text"}
        assert texts == {DataConfig.of("text", domains=("docs",))}
    with pytest.raises(SuiteError, match="unknown domain of the corpus 'wikitext'; did you mean 'wikitext103'"):
        _ = Recipe(parameters, profile, domains=("wikitext",)).data
