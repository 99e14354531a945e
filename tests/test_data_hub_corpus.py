"""Tokenisers by name, domains of a run, and real text: corpora of the hub from outside."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hub_fakes import CONFIG, decoded, make_hub, pretend_llama, web, write

from data_prep import build, tokenizer
from data_prep.config import CorpusConfig
from lib import paths
from lib.config import DataConfig
from lib.data import SPLITS, domains_of
from lib.errors import SuiteError
from suite.tasks import make_source

MORE = dataclasses.replace(CONFIG, hub=("fineweb_edu", "math"), apart=())


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hub(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def place(copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUITE_HUB", str(copies))
    monkeypatch.setenv("SUITE_OUTPUTS", str(tmp_path))
    return tmp_path


# Tokenisers

def test_when_a_tokeniser_is_named_then_documents_end_with_its_own_end_and_the_model_s_rows_may_be_more(
        copies: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = place / "hub"
    shutil.copytree(copies, own)
    monkeypatch.setenv("SUITE_HUB", str(own))
    pretend_llama(own / "NousResearch/Llama-2-7b-hf")
    config = dataclasses.replace(MORE, hub=("fineweb_edu",), vocab=32_768, train_tokens=5_000,
                                 tokenizer="NousResearch/Llama-2-7b-hf")
    corpus = build.corpus(config)
    assert (corpus.vocab, corpus.manifest["pieces"]) == (32_768, 32_000)
    assert corpus.manifest["tokenizer"] == config.tokenizer
    tokens, starts = np.asarray(corpus.tokens("train", "fineweb_edu")), corpus.documents("train", "fineweb_edu")
    assert (tokens[starts[1:] - 1] == 2).all() and (tokens == 2).sum() in (len(starts) - 1, len(starts))
    assert tokenizer.end_of(corpus.tokenizer()) == 2
    row = int(corpus.names("train", "fineweb_edu")[0].split("#")[1])
    assert decoded(corpus, "train", "fineweb_edu")[0] == web(0, 90)["text"][row]     # a capital is a byte; nothing is cut at 16
    inputs, _ = make_source(DataConfig.of("text"), corpus).batch(0, 0, 2, 64)
    assert int(inputs.max()) < 32_000


def test_when_a_tokeniser_has_too_many_pieces_no_end_or_is_none_then_the_error_says_so(place: Path) -> None:
    folder = pretend_llama(place / "pieces")
    with pytest.raises(SuiteError, match=r"vocab = 400 is not valid: the tokeniser .*pieces has 32000 pieces"):
        build.corpus(dataclasses.replace(MORE, tokenizer=str(folder)))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(SuiteError, match="tokenizer.json is no tokeniser"):
        build.corpus(dataclasses.replace(MORE, tokenizer=str(folder)))
    endless = tokenizers.Tokenizer(tokenizers.models.BPE())
    endless.save(str(folder / "tokenizer.json"))
    with pytest.raises(SuiteError, match="no piece that ends a text"):
        build.corpus(dataclasses.replace(MORE, tokenizer=str(folder)))


# Domains of a run

def test_when_a_run_names_its_domains_then_it_reads_them_alone_and_others_never_see_what_is_apart(place: Path) -> None:
    built = build.corpus(dataclasses.replace(CONFIG, hub=("fineweb_edu", "math"), train_tokens=2_000))
    own = DataConfig.of("text", domains=("wikitext103",))
    assert domains_of(own, built) == ("wikitext103",) and make_source(own, built).domains == ("wikitext103",)
    plain = DataConfig.of("text", mixture=(("math", 0.5), ("fineweb_edu", 0.5)))
    assert domains_of(plain, built) == built.domains and set(make_source(plain, built).domains) == {"math", "fineweb_edu"}
    with pytest.raises(SuiteError, match="unknown domain of the mixture 'wikitext'; did you mean 'wikitext103'"):
        make_source(DataConfig.of("text", domains=("wikitext",)), built)


@pytest.mark.parametrize(("changes", "words"), [
    ({"hub": ("fineweb",)}, "unknown domain of the hub 'fineweb'; did you mean 'fineweb_edu'"),
    ({"hub": ("math",), "apart": ("math",)}, "each domain once"), ({"apart": ("math",)}, "hub = .* is not valid"),
    ({"tokenizer": "x"}, "hub = .* is not valid"), ({"folder": "x", "hub": ("math",)}, "empty where there is a folder")])
def test_when_a_configuration_is_wrong_then_the_error_names_it(changes: dict, words: str) -> None:
    with pytest.raises(SuiteError, match=words):
        CorpusConfig(**changes)


# Real text

SHARED = paths.ROOT.parent / "shared" / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside this checkout")
def test_when_real_text_lies_as_on_the_hub_then_it_is_split_by_article_and_problem_and_comes_out_again(
        place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = make_hub(place / "hub")
    monkeypatch.setenv("SUITE_HUB", str(own))
    lines = (SHARED / "wikitext2/wiki.valid.tokens").read_text("utf-8").split("\n")
    shutil.rmtree(own / "Salesforce")
    write(own / "Salesforce/wikitext/wikitext-103-raw-v1/train-00000-of-00001.parquet",
          {"text": [line + "\n" if line.strip() else "" for line in lines]})
    asked = [json.loads(line) for line in (SHARED / "gsm8k/train.jsonl").read_text("utf-8").splitlines()]
    write(own / "DigitalLearningGmbH/MATH-lighteval/data/train-00000-of-00001.parquet",
          {"problem": [row["question"] for row in asked], "solution": [row["answer"] for row in asked]})
    shutil.copytree(SHARED / "blimp", own / "nyu-mll/blimp", dirs_exist_ok=True)
    for left in ("adjunct_island", "wh_island"):
        shutil.rmtree(own / "nyu-mll/blimp" / left)
    corpus = build.corpus(CorpusConfig(vocab=4096, train_tokens=180_000, heldout_tokens=30_000, hub=("math",),
                                       apart=("wikitext103",)))
    articles = "\n".join(line if line.strip() else "" for line in lines)
    heads = 0
    for split in SPLITS:
        *whole, _ = decoded(corpus, split, "wikitext103")
        heads += len(whole)
        assert all(text in articles and text.lstrip("\n").startswith(" = ") for text in whole)
    assert heads >= 30
    problems = {split: decoded(corpus, split, "math")[:-1] for split in SPLITS}
    known = {f"{row['question']}\n{row['answer']}" for row in asked}
    assert set(problems["train"]) <= known and set(problems["heldout"]) <= known and len(problems["heldout"]) > 100
    assert (corpus.manifest["evaluations"]["blimp"]["subsets"], corpus.manifest["evaluations"]["blimp"]["items"]) == (8, 8000)
