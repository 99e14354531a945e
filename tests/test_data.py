"""The corpus as a whole: a tiny one of installed libraries and generators, small ones of a folder (CORPUS=folder).

Training batches: a pure function of seed and step, uniform over positions, mixed by tokens; files beyond 4 GiB.
"""

import dataclasses
import gzip
import json
import math
import os
import re
import shutil
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
import torch
from hub_fakes import CONFIG, TINY, decoded, start, write

from data_prep import build, folder, tokenizer
from data_prep.config import CorpusConfig
from data_prep.mathematics import worksheet
from data_prep.sources import Document
from data_prep.stories import Story
from lib import paths
from lib.config import DataConfig
from lib.data import Corpus, TextSource, heldout_windows
from lib.errors import SuiteError
from suite.cli import main
from suite.report.facts import whole_corpora
from suite.tasks import make_source


def stories(count: int) -> str:
    return "\n\n".join(Story(7, n).text for n in range(count))


@pytest.fixture
def root(outputs: Path) -> Path:
    """A person's folder with one domain, which is empty."""
    (outputs / "text" / "good").mkdir(parents=True)
    return outputs / "text"


@pytest.fixture
def own(root: Path) -> Path:
    """A person's folder with one domain of 30 stories."""
    (root / "good" / "all.txt").write_text(stories(30))
    return root


def of(folder: Path, **changes: int) -> CorpusConfig:
    return dataclasses.replace(TINY, folder=str(folder), **changes)


def built(root: Path, **changes: int) -> Corpus:
    return build.corpus(of(root, **changes))


def test_when_built_then_every_domain_has_the_tokens_asked_for_in_whole_documents_each_in_one_split(tiny_corpus):
    assert tiny_corpus.domains == ("docs", "code", "stories", "math")
    assert tiny_corpus.vocab == TINY.vocab == tiny_corpus.manifest["pieces"]
    for domain in tiny_corpus.domains:
        names, texts = {}, {}
        for split, asked in TINY.asked.items():
            tokens, counts = tiny_corpus.tokens(split, domain), tiny_corpus.manifest["domains"][domain][split]
            assert len(tokens) == asked == counts["tokens"]
            assert tokens.dtype == np.uint16 and tokens.max() < TINY.vocab
            *whole, last = np.split(tokens, tiny_corpus.documents(split, domain)[1:])
            assert all(document[-1] == 0 for document in whole)
            assert all((document[:-1] != 0).all() for document in (*whole, last))
            names[split] = tiny_corpus.names(split, domain)
            texts[split] = {document[:400].tobytes() for document in (*whole, last)}
            assert len(whole) + 1 == counts["documents"] == len(names[split]) == len(set(names[split]))
        assert not set(names["train"]) & set(names["heldout"]) and not texts["train"] & texts["heldout"]


def test_when_a_story_is_decoded_then_it_is_the_generator_s_to_the_byte(tiny_corpus):
    *whole, _ = zip(tiny_corpus.names("train", "stories"), decoded(tiny_corpus, "train", "stories"), strict=True)
    assert whole and all(text == Story(TINY.seed, int(name.split()[1])).text for name, text in whole)


def test_when_text_is_strange_then_the_tokeniser_returns_it_and_never_the_end(tiny_corpus):
    tok = tiny_corpus.tokenizer()
    for text in ("<|endoftext|> quoted <|endoftext|>", "naïve 東京 \U0001f600\t\r\n\x01 end ", " ", "a\n\n\n  b"):
        ids = tok.encode(text, add_special_tokens=False).ids
        assert 0 not in ids
        assert tok.decode(ids) == text
    assert tokenizer.encode(tok, ["x"])[0].tolist() == [*tok.encode("x").ids, 0]
    assert (tokenizer.encode(tokenizer.train(["abc"], 300), ["<|endoftext|> x"])[0][:-1] != 0).all()


def test_when_the_tokeniser_is_trained_then_only_on_training_documents(own, monkeypatch):
    given, parts = [], []
    train, split = tokenizer.train, build.split
    monkeypatch.setattr(tokenizer, "train", lambda texts, vocab: train((given.append(t) or t for t in texts), vocab))
    monkeypatch.setattr(build, "split", lambda *a: parts.append(split(*a)) or parts[-1])
    built(own)
    training, heldout = ({document.text for document in part} for part in parts[0])
    assert given and heldout and set(given) <= training and not set(given) & heldout


def test_when_there_then_opened_and_when_text_or_seed_change_another_one(own, monkeypatch):
    """The same text elsewhere has the same fingerprint."""
    config, said, moved = of(own), [], shutil.copytree(own, own.parent / "moved")
    (moved / "README.md").write_text("a note changes no text")
    assert build.existing(config) is None
    first, other, same = build.corpus(config, said.append), built(own, seed=1), built(moved)
    assert said and first.fingerprint == same.fingerprint != other.fingerprint and first.path != same.path
    assert first.names("heldout", "good") != other.names("heldout", "good")
    monkeypatch.setattr(build, "_build", lambda *a: pytest.fail("built twice"))
    assert build.corpus(config).fingerprint == first.fingerprint == build.existing(config).fingerprint
    with (own / "good" / "all.txt").open("a") as text:
        text.write("\n\nAnd one more.\n")
    assert build.existing(config) is None


@pytest.mark.slow
def test_when_killed_then_nothing_is_found_and_the_next_build_elsewhere_is_identical_to_the_byte(tiny_corpus, tmp_path):
    """The other build is another process, with another hash seed and number of threads."""
    victim = start(tmp_path, "TINY")
    for line in victim.stdout:
        if line.startswith("encoding code"):
            victim.send_signal(signal.SIGKILL)
            break
    victim.communicate(timeout=30)
    assert victim.returncode == -signal.SIGKILL
    folders = [folder.name for folder in (tmp_path / "data").iterdir() if folder.is_dir()]
    assert folders == [f".building-{tiny_corpus.path.name}"]
    again = start(tmp_path, "TINY", PYTHONHASHSEED="77", RAYON_NUM_THREADS="1")
    again.communicate(timeout=120)
    assert again.returncode == 0
    (folder,) = (folder for folder in (tmp_path / "data").iterdir() if folder.is_dir())
    assert folder.name == tiny_corpus.path.name
    contents = [{file.name: file.read_bytes() for file in path.iterdir()} for path in (folder, tiny_corpus.path)]
    assert contents[0] == contents[1]
    assert str(paths.ROOT) not in (folder / "manifest.json").read_text()


def test_when_two_build_at_once_then_one_does_and_the_other_waits(own, monkeypatch):
    times, said, go_on, original = [], [], threading.Event(), build._build

    def slow(*arguments: object) -> None:
        times.append(1)
        assert go_on.wait(60)
        original(*arguments)
    monkeypatch.setattr(build, "_build", slow)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(build.corpus, of(own), lambda line: said.append(line) or go_on.set()) for _ in range(2)]
        assert len({one.result(60).fingerprint for one in both}) == 1
    assert times == [1] and said[0] == "another process builds this corpus; waiting for it"


def test_when_more_tokens_are_asked_than_there_are_then_the_error_says_how_many(outputs, monkeypatch):
    for kind in ("docs", "code"):
        documents = [Document(f"d{n}", Story(3, n).text) for n in range(12)]
        monkeypatch.setattr(build.sources, kind, lambda seed, removed, documents=documents: iter(documents))
    with pytest.raises(SuiteError, match=r"'docs' has [12]\d,\d{3} train tokens .*40,000 are needed: ask"):
        build.corpus(CorpusConfig(vocab=400, train_tokens=40_000, heldout_tokens=3_000))


@pytest.mark.parametrize(("config", "needed"), [
    (TINY, "50 MB"), (dataclasses.replace(CONFIG, vocab=32_768, train_tokens=250_000_000), r"48\d\d MB")])
def test_when_the_disk_is_full_then_the_error_comes_before_any_text(config, needed, outputs, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1_000_000))
    for step in ("_build", "_build_from_hub"):
        monkeypatch.setattr(build, step, lambda *a: pytest.fail("started"))
    with pytest.raises(SuiteError, match=f"has 1 MB free; the corpus needs up to {needed}"):
        build.corpus(config)


def test_when_the_command_line_is_used_then_counts_are_printed_and_errors_exit_with_2(own, monkeypatch, capsys):
    monkeypatch.setattr("suite.settings.profiles.load", lambda name, corpus="": SimpleNamespace(corpus=of(corpus)))
    assert main(["corpus", "--corpus", str(own)]) == 0
    assert "good            train" in (printed := capsys.readouterr().out) and "20,000" in printed
    assert main(["corpus", "--corpus", str(own / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_when_held_out_windows_are_cut_then_they_follow_one_another_and_what_is_not_there_is_named(tiny_corpus):
    tokens = np.asarray(tiny_corpus.tokens("heldout", "code")).astype(np.int64)
    inputs, targets = heldout_windows(tiny_corpus, "code", 96, 1000)
    assert inputs.shape == targets.shape == (10, 96)
    assert (inputs.numpy().ravel() == tokens[:960]).all() and (targets.numpy().ravel() == tokens[1:961]).all()
    # the last target needs a token after it
    assert heldout_windows(tiny_corpus, "code", 100, 3000)[0].shape == (29, 100)
    with pytest.raises(SuiteError, match="length = 3000 .* 3000 held-out tokens of domain 'code'"):
        heldout_windows(tiny_corpus, "code", 3000, 10_000)
    for asked, message in ((("train", "story"), "unknown domain 'story'; did you mean 'stories'"),
                           (("test", "docs"), "unknown split 'test'")):
        with pytest.raises(SuiteError, match=message):
            tiny_corpus.tokens(*asked)


# A person's folder: what is read, how it is cut into documents, and the error that names a bad file of any kind

def read(root: Path) -> tuple[dict[str, list[folder.Document]], list[str]]:
    (found, notes), seen = folder.domains(root), folder.Rows(Counter())
    return {name: list(folder.documents(root, files, notes, seen)) for name, files in found.items()}, notes


def test_when_files_are_of_every_kind_then_each_subfolder_is_a_domain_and_rows_are_documents(root):
    rows, plain = b'{"text": "row one"}\n\n{"text": "row two", "id": "7"}\n', "Caf\u00e9.\n".encode()
    zst = pyarrow.Codec("zstd").compress(plain, asbytes=True) + pyarrow.Codec("zstd").compress(b"End.", asbytes=True)
    for name, text in (("lone.TXT", b"A lone file beside the folders."), ("README.md", b"Not text for a model."),
                       (".hidden/x.txt", b"never read"), ("good/deep/a.tokens", b"One.\n\nTwo."),
                       ("good/b.jsonl", rows), ("good/e.md", b"# Notes"), ("good/f.txt.zst", zst),
                       ("good/d.csv", b'id,text\n1,"comma, ""quote""\nand line"\n2,\n3,nan\n'),
                       ("more/g.csv", b"n;text\n1;a, b\n"),
                       ("more/b.jsonl.gz", gzip.compress(rows[:21]) + gzip.compress(rows[21:])),
                       *((f"scans/{n}.pdf", b"%PDF") for n in range(12)), ("more/c.parquet.gz", b"")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)
    write(root / "good/c.parquet", {"text": ["first", "second"], "title": ["not this one at all", "nor this"]})
    documents, notes = read(root)
    assert {name: [d.text for d in domain] for name, domain in documents.items()} == {
        "text": ["A lone file beside the folders."], "more": ["row one", "row two", "a, b"],
        "good": ["row one", "row two", "first", "second", 'comma, "quote"\nand line', "nan", "One.\n\nTwo.", "# Notes",
                 "Caf\u00e9.\nEnd."]}
    assert [d.name for d in documents["good"]][0::5] == ["good/b.jsonl#0", "good/d.csv#2"]
    assert notes == [
        *(f"not read: {name} (read are {folder.READABLE})" for name in (
            "README.md", "more/c.parquet.gz", "scans/0.pdf and 11 more like it; the domain scans is left out")),
        *(f"{name}: text is text" for name in (
            "good/b.jsonl", "good/c.parquet", "good/d.csv", "more/b.jsonl.gz", "more/g.csv"))]


def test_when_there_is_no_text_column_then_prose_is_joined_and_identifiers_labels_and_numbers_are_not(root):
    rows = [{"id": f"a b c d {n}", "pairID": "one two three", "question": f"How much is {n} and {n}?", "n": n,
             "label": "sum", "answer": f"That is {n + n}.", "source_url": "a long url here"} for n in range(150)]
    (root / "good" / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    documents, notes = read(root)
    assert len(documents["good"]) == 150
    assert documents["good"][140].text == "How much is 140 and 140?\nThat is 280."
    assert notes == ["good/qa.jsonl: text is question + answer"]


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
def test_when_plain_text_is_long_then_it_is_cut_at_paragraphs_and_nothing_is_lost(root, block, monkeypatch):
    """Whatever the size of the blocks read: characters, line ends and paragraphs that straddle them are whole."""
    monkeypatch.setattr(folder, "READ", block)
    paragraphs = [f"Paragraph {n}: " + "é東 \U0001f600 word\r\n" * (n % 9) + "end." for n in range(1200)]
    paragraphs[50] = "x" * 9000                                  # no place to cut
    paragraphs[60] = "many words " * 900
    text = "\ufeff" + "\r\n \r\n\r\n".join(paragraphs)
    (root / "good" / "a.txt").write_bytes(text.encode())
    documents = [d.text for d in read(root)[0]["good"]]
    assert re.sub(r"\s", "", "".join(documents)) == re.sub(r"\s", "", text.removeprefix("\ufeff"))
    assert not [d for d in documents if "\r" in d or "\ufeff" in d]
    assert max(map(len, documents)) <= folder.LONGEST_PARAGRAPH
    assert 2000 < np.median([len(d) for d in documents]) <= folder.DOCUMENT + 2 * 300
    assert len([d for d in documents if not d.endswith("end.")]) <= 6        # the two paragraphs that are too long


BAD = (
    ("bad.txt", b"", "is empty"), ("bad.txt", b" \n\n \t\n", "has no text in it"),
    ("bad.txt", b"word " * 5000 + b"\0", "is binary"), ("bad.txt", "text".encode("utf-16"), "is binary|is not UTF-8"),
    ("bad.txt", "caf\u00e9 au lait".encode("latin-1"), "is not UTF-8: byte 0xe9 at offset 3"),
    ("bad.txt", b"a" * ((1 << 20) + 5) + b"\xff ok", "byte 0xff at offset 1048581"),
    ("bad.txt", "東京".encode()[:-1], "is not UTF-8: byte 0xe4 at offset 3"),
    ("bad.jsonl", b'{"text": "a"}\n{"text": "b"\n{"text": "c"}\n', "line 2 is not JSON"),
    ("bad.jsonl", b'{"text": "a"}\n\n{"text": ', "line 3 is not JSON"),
    ("bad.jsonl", b'{"text": "a"}\n["b"]\n', "line 2 is JSON, but no object"),
    ("bad.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "line 2 has no text in text"),
    ("bad.jsonl", b'{"text": "a"}\n{"text": 5}\n', "line 2 has no text in text"),
    ("bad.jsonl", b'{"text": null}\n{"text": ""}\n' + b"{}\n" * 5, "line 1 .* line 3 .* line 4 .* 6 of 7 rows"),
    ("bad.jsonl", b'{"text": "a", "more": ' + b"[" * 10 ** 5 + b"]" * 10 ** 5 + b"}", "line 1 .*: nested too deep"),
    ("bad.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 9, mtime=0)[:-9], "cannot be read .* damaged or cut off"),
    ("bad.txt.gz", b"no gzip", "cannot be read .* damaged or cut off"),
    ("bad.txt.zst", gzip.compress(b"of another kind", mtime=0), "cannot be read .* damaged or cut off"),
    ("bad.md.gz", gzip.compress(b"caf\xe9 au lait", mtime=0), "is not UTF-8: byte 0xe9; save"),
    ("bad.csv", b"text,n\none,1\ntwo,2,3\n", "cannot be read as csv .* Expected 2 fields in line 3, saw 3; it may"),
    ("bad.csv", b'text\n"open', "cannot be read as csv"), ("bad.csv", b"text\n", "has no rows"),
    ("bad.jsonl", b'{"id": "a b c d", "n": 3}\n', "has no column of text: .* among id, n"),
    ("bad.jsonl", b"\n\n", "has no rows"), ("bad.parquet", b"PAR2" + b"x" * 100, "cannot be read as parquet"))


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_when_a_file_is_bad_then_the_error_names_it_and_nothing_is_built(name, content, message, own):
    (own / "other").mkdir()
    (own / "other" / name).write_bytes(content)
    with pytest.raises(SuiteError, match=f"other/{re.escape(name)}.*({message})"):
        built(own)
    assert not [path for path in paths.corpora().glob("*") if path.is_dir()]


def test_when_parquet_is_whole_then_all_rows_arrive_in_order_and_when_cut_off_or_damaged_the_error_names_it(root):
    file, texts = root / "good" / "bad.parquet", [f"a row of text, number {n}" for n in range(2500)]
    write(file, {"text": texts})
    assert [d.text for d in read(root)[0]["good"]] == texts
    whole = file.read_bytes()
    for content in (whole[:-100], whole[:200] + b"\xff" * 2000 + whole[2200:]):
        file.write_bytes(content)
        with pytest.raises(SuiteError, match="bad.parquet cannot be read as parquet after row"):
            read(root)


def test_when_a_folder_is_missing_empty_or_has_too_little_text_then_the_error_says_so_and_what_is_needed(root):
    with pytest.raises(SuiteError, match="nowhere' is not a folder"):
        built(root / "nowhere")
    for name, message in (("a.pdf", "has no file that is read .*.txt, .md, .tokens, .jsonl, .csv, .parquet"),
                          ("a.txt", r"'good' has [\d,]+ train tokens .*16,392 are needed: add text to .*a.txt")):
        (root / "good" / name).write_text(stories(1))
        with pytest.raises(SuiteError, match=message):
            built(root)


def test_when_a_domain_is_small_then_it_gives_what_it_has_and_holds_out_a_tenth_in_runs(root):
    (root / "small").mkdir()
    (root / "good" / "a.txt").write_text("\n\n".join(worksheet(0, n) for n in range(400)))
    (root / "small" / "b.txt").write_text(stories(25))
    corpus = built(root, train_tokens=100_000, heldout_tokens=20_000)
    counts = {name: [facts[split]["tokens"] for split in ("train", "heldout")]
              for name, facts in corpus.manifest["domains"].items()}
    assert list(counts) == ["good", "small"] and counts["good"] == [100_000, 20_000]
    assert counts["small"][0] < 100_000 and counts["small"][1] / sum(counts["small"]) == pytest.approx(0.1, abs=0.03)
    held, train = ([int(name.split("#")[1]) for name in corpus.names(split, "good")] for split in ("heldout", "train"))
    assert held == sorted(held) and np.mean(np.diff(held) == 1) > 0.5
    assert train == sorted(train) and not set(train) & set(held)


def test_when_a_document_is_longer_than_what_is_asked_for_then_both_splits_have_text(root):
    (root / "good" / "a.jsonl").write_text("\n".join(json.dumps({"text": Story(0, n).text}) for n in range(9)))
    corpus = built(root, train_tokens=1000, heldout_tokens=1000)
    assert len(corpus.tokens("train", "good")) == len(corpus.tokens("heldout", "good")) == 1000
    assert not {*corpus.names("train", "good")} & {*corpus.names("heldout", "good")}


def test_when_a_document_is_copied_within_a_domain_then_one_is_left(root):
    texts = [Story(0, n).text for n in range(25)]
    rows = [json.dumps({"text": text}) for text in [*texts, texts[3], texts[4].replace("coins", "crowns")]]
    (root / "good" / "a.jsonl").write_text("\n".join(rows))
    corpus = built(root, train_tokens=200_000)
    assert corpus.manifest["domains"]["good"]["removed"] == {
        "exact copies of documents": 1, "near copies of documents": 1}
    names = corpus.names("train", "good") + corpus.names("heldout", "good")
    assert set(names) == {f"good/a.jsonl#{n}" for n in range(25)}


def test_when_some_rows_have_no_text_then_they_are_left_out_and_counted_and_characters_that_are_none_replaced(root):
    rows: list = [{"text": Story(0, n).text, "n": n} for n in range(25)]
    rows[3:3] = [{"text": None}, {"n": 2}, {"text": " "}, {"text": ""}]
    lines = [*map(json.dumps, rows), '{"text": "half \\ud83d, whole \\ud83d\\ude00", "n": %s}' % ("9" * 5000)]
    (root / "good" / "a.jsonl").write_text("\n".join(lines))
    documents, corpus = read(root)[0]["good"], built(root, train_tokens=200_000)
    assert documents[-1] == ("good/a.jsonl#29", "half \ufffd, whole \U0001f600") and len(documents) == 26
    assert corpus.manifest["domains"]["good"]["removed"] == {"rows without text": 4}
    assert "left out: 4 rows without text" in build.table(corpus)


# Names of folders and files, and what lies in the way

NAMES = ["pairs", "mean", "seed", "run", "value", "name", "index", "Dense", "docs", "1", "nan", "1e5", "true", "Web",
         "web", "en.wiki", "a, \"b\"", "a\\b", "a\uff0fb", " ", " x ", "$x_1$", "_x", "<img src=x onerror=alert(1)>",
         "'", "%s {0}", "\u6771\u4eac", "two\nlines", "cr\rhere", "\u202eright", "n" * 255,
         os.fsdecode(b"\xff\xfe"), "heldout-x.bin"]


def test_when_domains_have_names_of_any_kind_then_they_are_built_and_every_name_is_one_line_of_utf_8(root):
    for name in NAMES:
        (root / name).mkdir(exist_ok=True)
        (root / name / f"{name[:40]}.txt").write_text("\n\n".join(Story(7, n).text for n in range(6)))
    shutil.rmtree(root / "good")
    corpus = built(root, train_tokens=1000, heldout_tokens=1000)
    assert len(corpus.domains) == len(NAMES) and {name for name in NAMES if name.isprintable()} <= {
        *corpus.domains, "n" * 255}
    for domain in corpus.domains:
        assert domain.isprintable() and len(domain.encode()) <= folder.LONGEST_NAME
        assert len(corpus.tokens("train", domain)) == len(corpus.tokens("heldout", domain)) == 1000
        assert all(name.isprintable() for name in corpus.names("train", domain))
    assert {"two\\nlines", "cr\\rhere", "\\u202eright", "\\udcff\\udcfe"} <= set(corpus.domains)
    assert all(f"\n{domain} " in build.table(corpus) for domain in corpus.domains)


def test_when_links_pipes_and_devices_lie_in_the_folder_then_loops_end_and_what_is_no_file_is_named(own):
    (own / "far").symlink_to(own / "good")                                 # a link to a folder is a domain
    (own / "good" / "up").symlink_to(own)
    (own / "good" / "round").symlink_to("round")
    (own / "good" / "gone.txt").symlink_to("nowhere.txt")
    (own / "good" / "zero.txt").symlink_to("/dev/zero")
    os.mkfifo(own / "good" / "pipe.txt")
    files, notes = folder.domains(own)
    assert {name: len(paths) for name, paths in files.items()} == {"far": 1, "good": 1}
    assert notes == [f"not read: {name}/{what}" for name in files for what in (
        "gone.txt and 2 more like it (it is no file, or a link to none)", f"round (read are {folder.READABLE})")]


@pytest.mark.parametrize("name", ["round", "~nouser/x", "a/" * 3000, "n" * 300, os.fsdecode(b"\xff"), "round/x"])
def test_when_the_folder_is_none_then_one_error_says_so_whatever_the_system_says_of_it(name, own):
    (own / "round").symlink_to("round")
    with pytest.raises(SuiteError, match="CORPUS = '.* is not a folder"):
        built(Path(name) if name[0] == "~" else own / name)


@pytest.mark.parametrize(("error", "words"), [
    (PermissionError(13, "Permission denied"), "all.txt: Permission denied"),
    (OSError(5, "Input/output error"), "all.txt: Input/output"),
    (FileNotFoundError(2, "No such file or directory"), "all.txt: No such file")])
def test_when_a_file_vanishes_or_cannot_be_read_then_one_error_names_it_and_nothing_is_left(error, words, own,
                                                                                         monkeypatch):
    opened, calls = Path.open, []

    def failing(path: Path, *how: object, **more: object):
        calls.append(path)
        if path.name == "all.txt" and len([one for one in calls if one == path]) == 2:         # it could be read before
            error.filename = str(path)
            raise error
        return opened(path, *how, **more)
    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(SuiteError, match=words):
        built(own)
    assert not [path for path in paths.corpora().glob("*") if path.is_dir()]


def test_when_what_is_not_read_changes_then_the_corpus_stays_and_its_notes_say_so(own, capsys, monkeypatch):
    monkeypatch.setattr("suite.settings.profiles.load", lambda name, corpus="": SimpleNamespace(corpus=of(corpus)))
    first = built(own)
    (own / "scans").mkdir()
    (own / "scans" / "a.pdf").write_bytes(b"%PDF")
    assert main(["corpus", "--corpus", str(own)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("not read: scans/a.pdf; the domain scans is left out (")
    again = Corpus(first.path)
    assert again.fingerprint == first.fingerprint and build.unread(again) and not build.unread(first)
    (own / "scans" / "a.pdf").unlink()
    assert not build.unread(built(own)) and not build.unread(Corpus(first.path))


DAMAGED = {
    "manifest.json": (b"", b"{", b"{}", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b'{"config": {}}', b"[" * 5000,
                      b'{"config": {"vocab": 300}, "domains": 3}', b'{"config": 1, "domains": {}, "files": {}}',
                      b'{"config": {"vocab": 300}, "domains": {}, "files": {"../../x": {"size": 1}}}'),
    "tokenizer.json": (b"", b"{}", None), "train-good.bin": (b"", b"xyz"), "heldout-good.starts.npy": (b"", None),
    "train-good.names.json": (b"[", None)}


@pytest.mark.parametrize("name", DAMAGED)
def test_when_a_corpus_is_damaged_then_it_is_named_and_built_again_and_pages_do_without_it(name, own):
    """None: one bit is flipped."""
    first, said = built(own), []
    before = {file.name: file.read_bytes() for file in first.path.iterdir()}
    for content in DAMAGED[name]:
        (first.path / name).write_bytes(flipped(before[name]) if content is None else content)
        assert build.existing(of(own)) is None and not list(whole_corpora())
        with pytest.raises(SuiteError, match=f"{first.path}/.* is missing or damaged; delete {first.path}, it will"):
            build.whole(first.path)
    assert build.corpus(of(own), said.append).fingerprint == first.fingerprint
    assert re.match(rf"{first.path}/\S+ is missing or damaged; building it again", said[0])
    (first.path / "manifest.json").unlink()
    built(own)
    assert {file.name: file.read_bytes() for file in first.path.iterdir()} == before


def flipped(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


# Training batches

class Positions:
    """A corpus whose token at position p of domain k is 10_000 * k + p."""
    vocab = 40_000
    domains, apart = ("a", "b", "c"), ()
    lengths = {"a": 700, "b": 41, "c": 9000}

    def tokens(self, split: str, domain: str) -> np.ndarray:
        assert split == "train"
        return (np.arange(self.lengths[domain]) + 10_000 * self.domains.index(domain)).astype(np.uint16)


def test_when_a_batch_is_drawn_then_seed_and_step_decide_its_runs_of_one_domain_and_no_global_stream_moves():
    source, before = TextSource(Positions()), (torch.get_rng_state(), np.random.get_state()[1].tolist())
    first, *others = (source.batch(*at, 8, 32)[0] for at in ((3, 5), (3, 6), (5, 3)))
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]
    torch.rand(3)
    assert torch.equal(first, TextSource(Positions()).batch(3, 5, 8, 32)[0])
    assert not any(torch.equal(first, other) for other in others)
    inputs, targets = source.batch(0, 0, 64, 40)
    assert inputs.shape == (64, 40) and inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1) and torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)


def test_when_many_are_drawn_then_starts_are_equally_likely_and_tokens_come_by_the_mixture_and_not_by_size():
    inputs, targets = TextSource(Positions(), {"b": 1.0}).batch(1, 0, 42_000, 20)
    counts = np.bincount(inputs[:, 0].numpy() - 10_000, minlength=21)
    assert len(counts) == 41 - 20 and targets.max() == 10_040      # the first and the last window are there
    statistic = ((counts - 2000) ** 2 / 2000).sum()
    assert statistic < 45.3         # 99.9 % of chi-square with 20 degrees of freedom
    inputs, _ = TextSource(Positions(), {"a": 3.0, "c": 1.0, "b": 0.0}).batch(2, 0, 40_000, 20)
    shares = np.bincount(inputs[:, 0].numpy() // 10_000, minlength=3) / 40_000
    assert shares == pytest.approx([0.75, 0.0, 0.25], abs=4 * (0.75 * 0.25 / 40_000) ** 0.5)
    equal = np.bincount(TextSource(Positions()).batch(2, 0, 30_000, 20)[0][:, 0].numpy() // 10_000) / 30_000
    assert equal == pytest.approx([1 / 3] * 3, abs=0.012)
    data = DataConfig.of("text", mixture=(("a", 3.0), ("c", 1.0), ("b", 0.0)))
    assert torch.equal(make_source(data, Positions()).batch(2, 0, 40_000, 20)[0], inputs)


def drawn(mixture):
    return TextSource(Positions(), mixture)


WRONG = (
    ("unknown domain of the hub 'fineweb'; did you mean 'fineweb_edu'", lambda: CorpusConfig(hub=("fineweb",))),
    ("vocab = 256 is not valid", lambda: CorpusConfig(vocab=256)),
    ("seed = -1 is not valid", lambda: CorpusConfig(seed=-1)),
    ("train_tokens = 999 is not valid", lambda: CorpusConfig(train_tokens=999)),
    ("heldout_tokens = 0 is not valid", lambda: CorpusConfig(heldout_tokens=0)),
    ("each domain once", lambda: CorpusConfig(hub=("math",), apart=("math",))),
    ("hub = .* is not valid", lambda: CorpusConfig(apart=("math",))),
    ("hub = .* is not valid", lambda: CorpusConfig(tokenizer="x")),
    ("empty where there is a folder", lambda: CorpusConfig(folder="x", hub=("math",))),
    ("unknown domain of the mixture 'd'", lambda: drawn({"d": 1.0})),
    (r"mixture\['a'\] = -1.0", lambda: drawn({"a": -1.0})), ("at least one weight", lambda: drawn({"a": 0.0})),
    (r"mixture\['a'\] = nan", lambda: drawn({"a": math.nan})), (r"mixture\['a'\] = '1'", lambda: drawn({"a": "1"})),
    ("at least one weight", lambda: drawn({})), ("needs a corpus", lambda: make_source(DataConfig(), None)),
    ("length = 41 .* 41 training tokens of domain 'b'", lambda: drawn(None).batch(0, 0, 2, 41)),
    ("unknown parameter of data source 'text' 'mixtur'; did you mean 'mixture'",
     lambda: make_source(DataConfig.of("text", mixtur=(("a", 1.0),)), Positions())))


@pytest.mark.parametrize(("message", "call"), WRONG)
def test_when_a_corpus_a_mixture_a_length_or_a_source_is_wrong_then_the_error_names_it(message, call):
    with pytest.raises(SuiteError, match=message):
        call()


# Token files beyond 4 GiB, sparse on the disk: the last windows are read where they are

TOKENS = (1 << 31) + 9_000          # two bytes each: more than 4 GiB, and more than an int32 counts
MARK = 4_000                        # tokens at the end that are not zero


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path = tmp_path_factory.mktemp("large") / "train-web.bin"
    with path.open("wb") as file:
        file.truncate(2 * TOKENS)
        file.seek(2 * (TOKENS - MARK))
        file.write(np.arange(1, MARK + 1, dtype=np.uint16).tobytes())
    if os.stat(path).st_blocks * 512 > 1 << 30:
        pytest.skip("the disk here has no sparse files")
    np.save(path.with_name("train-web.starts.npy"), np.array([0, TOKENS - MARK], np.int64))
    counts = {"documents": 2, "tokens": TOKENS, "bytes": TOKENS}
    path.with_name("manifest.json").write_text(json.dumps({
        "source": "offline", "config": {"vocab": 5000}, "token_type": "uint16",
        "files": {path.name: {"size": path.stat().st_size, "sha256": ""}}, "domains": {"web": {"train": counts}}}))
    return Corpus(path.parent)


def test_when_a_file_is_beyond_4_gib_then_documents_and_the_last_window_are_where_they_are(large, monkeypatch):
    tokens, start = large.tokens("train", "web"), large.documents("train", "web")[-1]
    assert len(tokens) == TOKENS and start > np.iinfo(np.int32).max and tokens[start:start + 3].tolist() == [1, 2, 3]
    assert tokens[start - 1] == 0 and tokens[-1] == MARK
    largest = SimpleNamespace(random=lambda size: np.full(size, 1 - 2.0 ** -53))       # that a stream can give
    monkeypatch.setattr(np.random, "default_rng", lambda seed: largest)
    inputs, targets = TextSource(large).batch(0, 0, 3, 100)
    assert inputs[0].tolist() == list(range(MARK - 100, MARK)) and (inputs[1] == inputs[0]).all()
    assert targets[0].tolist() == list(range(MARK - 99, MARK + 1))
