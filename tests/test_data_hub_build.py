"""A corpus of hub text as a whole: counts, the held-out split, a kill in the middle, and what is refused before it starts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hub_fakes import CONFIG, decoded, make_hub, sentences, start, web, write

from data_prep import build, hub, hub_build, hub_reader
from data_prep.hub import DOMAINS
from data_prep.hub_reader import Reader
from lib import paths
from lib.data import SPLITS, Corpus, load_tokenizer
from lib.errors import SuiteError

MORE = dataclasses.replace(CONFIG, train_tokens=15_000, hub=("fineweb_edu", "math"), apart=())


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def built(copies: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_HUB", str(copies))
        patch.setenv("SUITE_OUTPUTS", str(tmp_path_factory.mktemp("outputs")))
        return build.corpus(CONFIG)


@pytest.fixture
def place(copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUITE_HUB", str(copies))
    monkeypatch.setenv("SUITE_OUTPUTS", str(tmp_path))
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_when_built_then_every_domain_has_exactly_the_tokens_asked_for_and_the_manifest_says_whence(built: Corpus) -> None:
    assert (built.domains, built.apart) == (("fineweb_edu", "tinystories", "math"), ("wikitext103",))
    for domain in (*built.domains, *built.apart):
        facts = built.manifest["domains"][domain]
        assert {split: facts[split]["tokens"] for split in SPLITS} == {"train": 12_000, "heldout": 2_000}
        for split in SPLITS:
            assert len(built.tokens(split, domain)) == facts[split]["tokens"]
            assert len(built.documents(split, domain)) == len(built.names(split, domain)) == facts[split]["documents"]
    assert [source["dataset"] for source in built.manifest["domains"]["math"]["sources"]] == [
        "DigitalLearningGmbH/MATH-lighteval", "nvidia/OpenMathInstruct-2"]
    assert built.manifest["source"] == "hub" and built.manifest["config"]["hub"] == list(CONFIG.hub)
    assert str(paths.ROOT) not in json.dumps(built.manifest)
    assert not list(built.path.glob(".*"))


def test_when_checksums_are_computed_again_then_they_are_the_manifest_s(built: Corpus) -> None:
    files = contents(built.path)
    files.pop("manifest.json")
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == {
        name: facts["sha256"] for name, facts in built.manifest["files"].items()}


def test_when_documents_are_decoded_then_each_is_the_row_that_its_name_says(built: Corpus) -> None:
    rows = {f"HuggingFaceFW/fineweb-edu/sample/10BT/00{file}_00000.parquet#{row}": text
            for file, first in ((0, 0), (1, 80)) for row, text in enumerate(web(first, 90)["text"])}
    for split in SPLITS:
        *whole, last = zip(built.names(split, "fineweb_edu"), decoded(built, split, "fineweb_edu"), strict=True)
        assert all(rows[name] == text for name, text in whole) and whole
        assert rows[last[0]].startswith(last[1])


def test_when_split_then_no_text_is_in_both_and_all_solutions_of_a_problem_are_on_one_side(built: Corpus) -> None:
    for domain in (*built.domains, *built.apart):
        parts = {split: set(decoded(built, split, domain)) for split in SPLITS}
        assert not parts["train"] & parts["heldout"] and all(parts.values())
    asked = {split: {text.split("\n")[0] for text in decoded(built, split, "math")[:-1]} for split in SPLITS}
    assert not asked["train"] & asked["heldout"]


def test_when_the_order_of_the_rows_is_another_then_the_same_documents_are_held_out(copies: Path, place: Path) -> None:
    columns = web(0, 90)
    turned = place / "turned"
    shutil.copytree(copies, turned)
    file = turned / "HuggingFaceFW/fineweb-edu/sample/10BT/000_00000.parquet"
    write(file, {name: values[::-1] for name, values in columns.items()})
    held = {}
    for root in (copies, turned):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SUITE_HUB", str(root))
            held[root] = {document.text for document in Reader("fineweb_edu", DOMAINS["fineweb_edu"].sets, print).documents()
                          if hub_build.held_out(document, CONFIG)}
    assert held[copies] == held[turned] and 5 < len(held[copies]) < 90
    other = dataclasses.replace(CONFIG, seed=1)
    documents = list(Reader("fineweb_edu", DOMAINS["fineweb_edu"].sets, print).documents())
    assert {d.text for d in documents if hub_build.held_out(d, other)} != held[copies]


def test_when_rows_are_copies_then_each_text_is_there_once_and_the_rest_is_counted(
        place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_build, "CHUNK", 3000)
    wanted = dataclasses.replace(MORE, hub=("fineweb_edu",), train_tokens=25_000, heldout_tokens=5_000)
    corpus = build.corpus(wanted)
    every = [text for split in SPLITS for text in decoded(corpus, split, "fineweb_edu")]
    assert len(every) == len(set(every)) > 100
    assert corpus.manifest["domains"]["fineweb_edu"]["removed"] == {"exact copies of documents": 10}


def test_when_killed_again_and_again_then_the_files_are_those_of_an_undisturbed_build(
        built: Corpus, copies: Path, place: Path) -> None:
    said, kills = [], 0
    for kill in ("math: ", "wikitext103: ", "no more"):
        process = start(place, SUITE_HUB=str(copies))
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(kill) and len([one for one in lines if one.startswith(kill)]) == 2:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        process.communicate(timeout=60)
        said.append(lines)
    assert kills == 2 and process.returncode == 0
    assert all(any(line.startswith("going on after ") for line in lines) for lines in said[1:])
    assert not any(line.startswith("fetching") for line in said[1])
    (folder,) = (path for path in (place / "data").iterdir() if path.is_dir())
    assert folder.name == built.path.name
    assert contents(folder) == contents(built.path)


def test_when_the_connection_is_lost_for_good_then_a_rerun_goes_on_and_the_files_are_the_same(
        built: Corpus, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, trained, waits, starts = hub_reader.tables, [], [], []

    def lost(source: hub.Source, file: int, row: int):
        """From row 40 on, once the tokeniser has been trained."""
        for table in real(source, file, row):
            if source.set.path == "nvidia/OpenMathInstruct-2" and trained:
                yield from [table.slice(0, 40 - row)] if row < 40 else ()
                raise ConnectionError("gone")
            yield table

    def noted(source: hub.Source, file: int, row: int):
        starts.append((source.set.path, row))
        yield from real(source, file, row)
    monkeypatch.setattr(hub.Source, "local", False)
    monkeypatch.setattr(hub.Source, "identity", lambda self: [list(self.files)])
    monkeypatch.setattr(hub_reader.time, "sleep", waits.append)
    monkeypatch.setattr(hub_reader, "tables", lost)
    monkeypatch.setattr(hub_build, "CHUNK", 3000)
    monkeypatch.setattr(hub_build, "COMMIT_EVERY", 0.0)
    pieces = hub_build.own_pieces
    monkeypatch.setattr(hub_build, "own_pieces", lambda *a: [pieces(*a), trained.append(1)][0])
    with pytest.raises(hub_reader.Disconnected, match="OpenMathInstruct-2.*row 40.*What was read is kept") as caught:
        build.corpus(CONFIG)
    assert caught and not [file for file in psutil.Process().open_files() if str(place) in file.path and "math" in file.path]
    assert len(waits) == hub_reader.ATTEMPTS - 1
    (work,) = (place / "data").glob(".building-*")
    state = json.loads((work / hub_build.JOURNAL).read_text())
    assert 0 < state["math"]["train"]["tokens"] < 12_000 and state["math"]["position"] > [0, 0]
    monkeypatch.setattr(hub_reader, "tables", noted)
    corpus = build.corpus(CONFIG)
    assert ("HuggingFaceFW/fineweb-edu", 0) in starts                       # its first rows are looked at, and no more:
    assert len([own for own in starts if own[0] == "HuggingFaceFW/fineweb-edu"]) == 1
    assert max(starts)[0] == "roneneldan/TinyStories" and any(row for _, row in starts)
    there, expected = contents(corpus.path), contents(built.path)
    assert there == expected


def test_when_a_data_set_changed_meanwhile_then_its_domain_starts_again_and_the_others_do_not(
        copies: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, work = place / "hub", place / "work"
    shutil.copytree(copies, own)
    work.mkdir()
    monkeypatch.setenv("SUITE_HUB", str(own))
    monkeypatch.setattr(hub_build, "fetch", lambda work, say: {})
    hub_build.build(MORE, work, print)
    write(own / "nvidia/OpenMathInstruct-2/data/train-00000-of-00001.parquet",
          {"problem": [f"New problem {n}: {sentences(n, 2)}" for n in range(250)],
           "generated_solution": [sentences(9000 + n, 3) for n in range(250)]})
    real, starts = hub_reader.tables, []
    monkeypatch.setattr(hub_reader, "tables", lambda source, file, row: [
        starts.append(source.set.path), real(source, file, row)][1])
    facts, _ = hub_build.build(MORE, work, print)
    assert starts.count("HuggingFaceFW/fineweb-edu") == 1 < starts.count("nvidia/OpenMathInstruct-2")
    texts = load_tokenizer(work / "tokenizer.json").decode(np.fromfile(work / "train-math.bin", np.uint16).tolist())
    assert "New problem" in texts and "Way 2 gives" not in texts
    assert facts["math"]["train"]["tokens"] == len(np.fromfile(work / "train-math.bin", np.uint16)) == MORE.train_tokens


def test_when_killed_while_checksums_are_computed_then_nothing_is_read_again(
        built: Corpus, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, real, starts = build._write_manifest, hub_reader.tables, []
    monkeypatch.setattr(build, "_write_manifest", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        build.corpus(CONFIG)
    monkeypatch.setattr(build, "_write_manifest", write)
    monkeypatch.setattr(hub_reader, "tables", lambda source, file, row: [
        starts.append(source.set.path), real(source, file, row)][1])
    assert contents(build.corpus(CONFIG).path) == contents(built.path)
    assert len(starts) == len(set(starts)) == 5                      # a first look at each set, and no more


def test_when_files_go_beyond_the_last_commit_then_that_is_cut_off_and_shorter_ones_are_an_error(
        copies: Path, place: Path) -> None:
    config = dataclasses.replace(MORE, hub=("fineweb_edu",))
    reader = Reader("fineweb_edu", DOMAINS["fineweb_edu"].sets, print)
    pieces = hub_build.own_pieces(config, {"fineweb_edu": reader}, None, place, print)
    documents = list(reader.documents())

    def filling() -> hub_build.Filling:
        opened = hub_build.Filling(config, reader, pieces, place, hub_build.Journal(place))
        opened.seen = set()
        return opened
    first = filling()
    first.add(documents[:30])
    first.journal.commit(first.files.values())
    first.add(documents[30:40])
    first.close()                                                       # what a kill would leave, and the rest of a buffer
    committed = json.loads((place / hub_build.JOURNAL).read_text())["fineweb_edu"]
    file = place / "train-fineweb_edu.bin"
    assert file.stat().st_size > 2 * committed["train"]["tokens"] > 0
    again = filling()
    assert again.state == committed and file.stat().st_size == 2 * committed["train"]["tokens"]
    again.close()
    file.write_bytes(b"cut")
    with pytest.raises(SuiteError, match="train-fineweb_edu.bin is shorter than when it was written; delete"):
        filling()


def test_when_text_is_short_then_finite_domains_give_what_they_have_and_others_are_an_error(place: Path) -> None:
    big = dataclasses.replace(CONFIG, hub=("wikitext103",), apart=(), train_tokens=60_000, heldout_tokens=6_000)
    corpus = build.corpus(big)
    facts = corpus.manifest["domains"]["wikitext103"]
    assert corpus.manifest["notes"] == [f"wikitext103 has {facts['train']['tokens']:,} training and "
                                        f"{facts['heldout']['tokens']:,} held-out tokens in all, fewer than were asked for"]
    assert 16_000 < facts["train"]["tokens"] < 40_000 and 2_049 <= facts["heldout"]["tokens"] < 6_000
    with pytest.raises(SuiteError, match=r"domain 'tinystories' has [\d,]+ train tokens at 400 pieces, 900,000 are needed.*"
                                         "complete the copy of roneneldan/TinyStories"):
        build.corpus(dataclasses.replace(big, hub=("tinystories",), train_tokens=900_000))


def test_when_the_disk_is_full_then_the_error_comes_before_any_text(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1_000_000))
    monkeypatch.setattr(hub_build, "build", lambda *a: pytest.fail("started"))
    with pytest.raises(SuiteError, match=r"has 1 MB free; the corpus needs up to 24\d\d MB"):
        build.corpus(dataclasses.replace(CONFIG, vocab=32_768, train_tokens=250_000_000, heldout_tokens=1_000_000))


def test_when_a_set_is_out_of_reach_then_nothing_was_tokenised(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "hub").mkdir()
    monkeypatch.setenv("SUITE_HUB", str(place / "hub"))
    monkeypatch.setattr("huggingface_hub.is_offline_mode", lambda: True)
    monkeypatch.setattr(hub_build.tokenizer, "train", lambda *a: pytest.fail("started"))
    with pytest.raises(SuiteError, match="HuggingFaceFW/fineweb-edu .*not in the cache"):
        build.corpus(CONFIG)


def test_when_a_copy_changes_then_the_corpus_is_another_one_and_when_it_does_not_then_it_is_opened(
        copies: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = place / "hub"
    shutil.copytree(copies, own)
    monkeypatch.setenv("SUITE_HUB", str(own))
    assert build.existing(MORE) is None
    first = build.corpus(MORE)
    monkeypatch.setattr(build, "_build_from_hub", lambda *a: pytest.fail("built twice"))
    assert build.corpus(MORE).fingerprint == build.existing(MORE).fingerprint == first.fingerprint
    write(own / "HuggingFaceFW/fineweb-edu/sample/10BT/001_00000.parquet", web(500, 90))
    assert build.existing(MORE) is None
