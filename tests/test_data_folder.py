"""CORPUS=folder: what is read, how it is cut into documents, and the error that names a bad file of any kind."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hub_fakes import write

from data_prep import build, folder
from data_prep.config import CorpusConfig
from data_prep.mathematics import worksheet
from data_prep.stories import Story
from lib.data import Corpus
from lib.errors import SuiteError


@pytest.fixture
def root(outputs: Path) -> Path:
    (outputs / "text" / "good").mkdir(parents=True)
    return outputs / "text"


def read(root: Path) -> tuple[dict[str, list[folder.Document]], list[str]]:
    found, notes = folder.domains(root)
    return {name: list(folder.documents(root, files, notes)) for name, files in found.items()}, notes


def built(root: Path, **changes: int) -> Corpus:
    numbers = {"vocab": 400, "train_tokens": 20_000, "heldout_tokens": 3_000, **changes}
    return build.corpus(CorpusConfig(str(root), **numbers))


def stories(count: int) -> str:
    return "\n\n".join(Story(0, n).text for n in range(count))


def test_when_files_are_of_every_kind_then_each_subfolder_is_a_domain_and_rows_are_documents(root):
    for name, text in (("lone.txt", "A lone file beside the folders."), ("README.md", "Not text for a model."),
                       (".hidden/x.txt", "never read"), ("good/deep/a.tokens", "One.\n\nTwo."),
                       ("good/b.jsonl", '{"text": "row one"}\n\n{"text": "row two", "id": "7"}\n')):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    write(root / "good/c.parquet", {"text": ["first", "second"], "title": ["not this one at all", "nor this"]})
    documents, notes = read(root)
    assert {name: [d.text for d in domain] for name, domain in documents.items()} == {
        "text": ["A lone file beside the folders."], "good": ["row one", "row two", "first", "second", "One.\n\nTwo."]}
    assert [d.name for d in documents["good"]][0::4] == ["good/b.jsonl#0", "good/deep/a.tokens#0"]
    assert set(notes) == {"README.md is not read (only .txt, .tokens, .jsonl, .parquet are)",
                          "good/b.jsonl: text is text", "good/c.parquet: text is text"}


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
    ("bad.jsonl", b'{"id": "a b c d", "n": 3}\n', "has no column of text: .* among id, n"),
    ("bad.jsonl", b"\n\n", "has no rows"), ("bad.parquet", b"PAR2" + b"x" * 100, "cannot be read as parquet"))


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_when_a_file_is_bad_then_the_error_names_it_and_nothing_is_built(name, content, message, root):
    (root / "good" / "fine.txt").write_text(stories(30))
    (root / "other").mkdir()
    (root / "other" / name).write_bytes(content)
    with pytest.raises(SuiteError, match=f"other/{re.escape(name)}.*({message})"):
        built(root)
    assert not [path for path in (root.parent / "data").glob("[!.]*") if path.is_dir()]


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
    for name, message in (("a.pdf", "has no .txt, .tokens, .jsonl, .parquet file"),
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


def test_when_a_document_is_copied_within_a_domain_then_one_is_left(root):
    texts = [Story(0, n).text for n in range(25)]
    rows = [json.dumps({"text": text}) for text in [*texts, texts[3], texts[4].replace("coins", "crowns")]]
    (root / "good" / "a.jsonl").write_text("\n".join(rows))
    corpus = built(root, train_tokens=200_000)
    removed = {"exact copies of documents": 1, "near copies of documents": 1}
    assert corpus.manifest["domains"]["good"]["removed"] == removed
    names = corpus.names("train", "good") + corpus.names("heldout", "good")
    assert set(names) == {f"good/a.jsonl#{n}" for n in range(25)}


def test_when_the_folder_lies_elsewhere_then_the_fingerprint_is_the_same(root):
    (root / "good" / "a.txt").write_text(stories(25))
    moved = shutil.copytree(root, root.parent / "moved")
    (moved / "NOTES.md").write_text("a note changes no text")
    one, two = built(root), built(moved)
    assert one.path != two.path and one.fingerprint == two.fingerprint
