"""The corpus as a whole: one tiny corpus of installed libraries and generators, and small ones of a folder."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hub_fakes import CONFIG, TINY, decoded, start

from data_prep import build, tokenizer
from data_prep.config import CorpusConfig
from data_prep.sources import Document
from data_prep.stories import Story
from lib import paths
from lib.data import heldout_windows
from lib.errors import SuiteError
from suite.cli import main


@pytest.fixture
def own(outputs: Path) -> Path:
    """A person's folder with one domain of 30 stories."""
    (outputs / "text" / "tales").mkdir(parents=True)
    (outputs / "text" / "tales" / "all.txt").write_text("\n\n".join(Story(7, n).text for n in range(30)), "utf-8")
    return outputs / "text"


def of(folder: Path, **changes: int) -> CorpusConfig:
    return dataclasses.replace(TINY, folder=str(folder), **changes)


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
    build.corpus(of(own))
    training, heldout = ({document.text for document in part} for part in parts[0])
    assert given and heldout and set(given) <= training and not set(given) & heldout


def test_when_there_then_opened_and_when_cut_off_an_error_and_when_text_or_seed_change_another_one(own, monkeypatch):
    config, said = of(own), []
    assert build.existing(config) is None
    first, other = build.corpus(config, said.append), build.corpus(of(own, seed=1))
    assert said and first.fingerprint != other.fingerprint
    assert first.names("heldout", "tales") != other.names("heldout", "tales")
    monkeypatch.setattr(build, "_build", lambda *a: pytest.fail("built twice"))
    assert build.corpus(config).fingerprint == first.fingerprint == build.existing(config).fingerprint
    file = first.path / "train-tales.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(SuiteError, match="train-tales.bin is missing or damaged"):
        build.corpus(config)
    with (own / "tales" / "all.txt").open("a") as text:
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


def test_when_the_build_fails_then_nothing_is_left(own, monkeypatch):
    monkeypatch.setattr(build, "_write_manifest", lambda *a: (_ for _ in ()).throw(OSError("the disk broke")))
    with pytest.raises(OSError, match="the disk broke"):
        build.corpus(of(own))
    assert not [folder for folder in paths.corpora().iterdir() if folder.is_dir()]


def test_when_two_build_at_once_then_one_does_and_the_other_waits(own, monkeypatch):
    built, said, inside, go_on, original = [], [], threading.Event(), threading.Event(), build._build

    def slow(*arguments: object) -> None:
        built.append(1)
        inside.set()
        assert go_on.wait(60)
        original(*arguments)
    monkeypatch.setattr(build, "_build", slow)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(build.corpus, of(own))
        assert inside.wait(60)
        two = pool.submit(build.corpus, of(own), lambda line: said.append(line) or go_on.set())
        assert one.result(60).fingerprint == two.result(60).fingerprint
    assert built == [1] and said == ["another process builds this corpus; waiting for it"]


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


@pytest.mark.parametrize(("changes", "words"), [
    ({"vocab": 256}, "vocab = 256 is not valid"), ({"train_tokens": 999}, "train_tokens = 999 is not valid"),
    ({"heldout_tokens": 0}, "heldout_tokens = 0 is not valid"), ({"seed": -1}, "seed = -1 is not valid"),
    ({"hub": ("fineweb",)}, "unknown domain of the hub 'fineweb'; did you mean 'fineweb_edu'"),
    ({"hub": ("math",), "apart": ("math",)}, "each domain once"), ({"apart": ("math",)}, "hub = .* is not valid"),
    ({"tokenizer": "x"}, "hub = .* is not valid"),
    ({"folder": "x", "hub": ("math",)}, "empty where there is a folder")])
def test_when_a_configuration_is_wrong_then_the_error_names_it(changes, words):
    with pytest.raises(SuiteError, match=words):
        CorpusConfig(**changes)


def test_when_a_domain_or_split_is_unknown_then_the_nearest_is_named(tiny_corpus):
    for asked, message in ((("train", "story"), "unknown domain 'story'; did you mean 'stories'"),
                           (("test", "docs"), "unknown split 'test'")):
        with pytest.raises(SuiteError, match=message):
            tiny_corpus.tokens(*asked)


def test_when_the_command_line_is_used_then_counts_are_printed_and_errors_exit_with_2(own, monkeypatch, capsys):
    monkeypatch.setattr("suite.settings.profiles.load", lambda name, corpus="": SimpleNamespace(corpus=of(corpus)))
    assert main(["corpus", "--corpus", str(own)]) == 0
    assert "tales           train" in (printed := capsys.readouterr().out) and "20,000" in printed
    assert main(["corpus", "--corpus", str(own / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_when_held_out_windows_are_cut_then_they_follow_one_another_and_targets_are_one_later(tiny_corpus):
    tokens = np.asarray(tiny_corpus.tokens("heldout", "code")).astype(np.int64)
    inputs, targets = heldout_windows(tiny_corpus, "code", 96, 1000)
    assert inputs.shape == targets.shape == (10, 96)
    assert (inputs.numpy().ravel() == tokens[:960]).all() and (targets.numpy().ravel() == tokens[1:961]).all()
    # the last target needs a token after it
    assert heldout_windows(tiny_corpus, "code", 100, 3000)[0].shape == (29, 100)
    with pytest.raises(SuiteError, match="length = 3000 .* 3000 held-out tokens of domain 'code'"):
        heldout_windows(tiny_corpus, "code", 3000, 10_000)
