"""What the report and the battery make of a corpus from the hub."""

from __future__ import annotations

import copy
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from eval_fakes import only, run_of, uniform
from hub_fakes import make_hub, pretend_llama, write

from data_prep import hub_build, tokenizer
from data_prep.tokenizer import end_of
from lib.config import DataConfig, Evaluation
from lib.data import Corpus
from lib.errors import SuiteError
from suite.evals import build as evaluator
from suite.evals.zero_shot import Item, called
from suite.evals.battery import requests
from suite.experiments import experiment
from suite.experiments.base import Job
from suite.experiments.common import Recipe
from suite.report.facts import Text
from suite.settings.profiles import load
from suite.study.frames import Study


def asked(corpus: Corpus, task: str):
    run = run_of(length=128, vocab=400)
    return evaluator("battery", tasks=(task,), count=50).measure(uniform(400), run, corpus, torch.device("cpu"))


def test_when_the_corpus_has_the_hub_s_sets_then_the_battery_asks_these(hub_corpus):
    blimp = asked(hub_corpus, "blimp")
    assert only(blimp, "count", split="blimp") == 10
    assert only(blimp, "accuracy", split="blimp") == 0      # `runs` is a piece more than `run`: less likely if uniform
    assert only(blimp, "count", split="blimp/wh_island") == 5
    lambada = asked(hub_corpus, "lambada")
    assert only(lambada, "count", split="lambada") == 12
    facts = asked(hub_corpus, "cloze")
    assert only(facts, "count", split="factual_cloze") == 8 and only(facts, "count", split="factual_cloze/P36") == 4
    assert only(facts, "chance", split="factual_cloze/P36") == pytest.approx(1 / 3)      # Rome, Oslo, Bern
    assert only(facts, "chance", split="factual_cloze") == pytest.approx((1 / 3 + 1 / 2) / 2)
    pieces = len(hub_corpus.tokenizer().encode(" Rome").ids)
    assert facts.arrays["target_nll.factual_cloze"][0] == pytest.approx(pieces * np.log(400), rel=1e-5)


def test_when_the_corpus_came_without_then_tasks_have_their_offline_names(hub_corpus):
    without = SimpleNamespace(evaluation=lambda task: None)
    assert [called(task, without) for task in ("blimp", "lambada", "cloze", "mqar")] == [
        "blimp-offline", "lambada-offline", "cloze", "mqar"]
    assert [called(task, hub_corpus) for task in ("blimp", "lambada", "cloze", "mqar")] == [
        "blimp", "lambada", "factual_cloze", "mqar"]


def test_when_an_evaluation_set_lacks_a_text_then_the_error_names_the_row_and_no_text_is_tokenised(
        tmp_path, monkeypatch):
    monkeypatch.setenv("SUITE_HUB", str(make_hub(tmp_path / "hub")))
    write(tmp_path / "hub/nyu-mll/blimp/wh_island/train-00000-of-00001.parquet",
          {"sentence_good": ["A dog runs.", None], "sentence_bad": ["A dog run.", "x"]})
    with pytest.raises(SuiteError, match="wh_island/train-0.*.parquet, row 1 has no text in 'sentence_good'"):
        hub_build.fetch(tmp_path / "evaluations", print)
    assert not (tmp_path / "evaluations/blimp.json").exists()


def test_when_blimp_s_own_files_are_there_then_each_is_a_subset(tmp_path, monkeypatch):
    monkeypatch.setenv("SUITE_HUB", str(make_hub(tmp_path / "hub")))
    shutil.rmtree(tmp_path / "hub/nyu-mll/blimp")
    for subset in ("principle_A_case_1", "passive_1"):
        write(tmp_path / f"hub/nyu-mll/blimp/{subset}.jsonl", {"sentence_good": ["Good."], "sentence_bad": ["Bad."]})
    facts = hub_build.fetch(tmp_path / "evaluations", print)
    assert (facts["blimp"]["subsets"], facts["blimp"]["items"]) == (2, 2)
    found = sorted(path.stem for path in (tmp_path / "evaluations/blimp").iterdir())
    assert found == ["passive_1", "principle_A_case_1"]


def test_when_pieces_write_a_space_at_the_beginning_otherwise_then_a_continuation_is_cut_from_the_whole(tmp_path):
    pieces = tokenizer.named(str(pretend_llama(tmp_path / "pieces")))
    word = "tall"
    alone = pieces.encode(f" {word}", add_special_tokens=False).tokens
    asked = Item("the old river was", (f" {word}",), 0, 1.0, "")
    (made,) = requests(pieces, asked, end_of(pieces), 64)
    assert alone != [f"\u2581{word}"] == [pieces.id_to_token(number) for number in made.say]


def test_when_a_run_names_its_domains_then_losses_are_those_of_them(hub_corpus):
    data = DataConfig.of("text", domains=("wikitext103",))
    run = run_of(length=100, vocab=400, data=data)
    result = evaluator("perplexity", tokens=1000).measure(uniform(400), run, hub_corpus, torch.device("cpu"))
    assert {metric.split for metric in result.metrics} == {"wikitext103"}
    plain = evaluator("perplexity", tokens=1000).measure(
        uniform(400), run_of(length=100, vocab=400), hub_corpus, torch.device("cpu"))
    assert {metric.split for metric in plain.metrics} == set(hub_corpus.domains)

    asked = []
    database = SimpleNamespace(corpus=hub_corpus, array=lambda *a: asked.append(a[-1]) or result.arrays[a[-1]])
    jobs = [Job.of(run, Evaluation.of("perplexity", lengths=(100,), tokens=1000), series="Own")]
    study = Study(jobs, database)
    (windows,) = study.windows(study["Own"])
    assert windows.shape == (1, 10) and windows == pytest.approx(np.log(400), rel=1e-5)
    assert "nll.wikitext103.100" in asked and not any("math" in name for name in asked)


def test_when_the_report_describes_the_text_then_it_names_sets_configurations_and_commits(hub_corpus):
    manifest = copy.deepcopy(hub_corpus.manifest)
    text = Text(hub_corpus.fingerprint, manifest)
    assert text.source == "Text of the Hugging Face hub" and text.pieces == "byte-level pieces"
    place = "a copy on this machine"
    assert f"fineweb_edu: HuggingFaceFW/fineweb-edu (sample-10BT, train), {place}, ODC-By 1.0" in text.origins
    wikitext = f"wikitext103: Salesforce/wikitext (wikitext-103-raw-v1, train), {place}, CC BY-SA 3.0 and GFDL"
    assert wikitext in text.origins
    assert f"blimp, 10 items: nyu-mll/blimp (train), {place}, CC BY 4.0" in text.origins
    manifest["domains"]["math"]["sources"][0]["revision"] = "f" * 40
    manifest["config"]["tokenizer"] = "a/b"
    text = Text(hub_corpus.fingerprint, manifest)
    assert "math: DigitalLearningGmbH/MATH-lighteval (default, train), commit ffffffffffff, MIT" in text.origins
    assert text.pieces == "pieces of a/b"


def test_when_the_paper_s_profile_is_loaded_then_it_has_the_mixture_and_wikitext_is_of_two_notebooks_alone():
    profile = load("paper")
    assert dict(profile.mixture) == {"fineweb_edu": 0.35, "wikipedia": 0.22, "tinystories": 0.20, "math": 0.23}
    assert set(dict(profile.mixture)) == set(profile.corpus.hub) and profile.corpus.apart == ("wikitext103",)
    for notebook in ("04_power_law_sigma", "05_christoffel"):
        assert profile.parameters(notebook).domains == ("wikitext103",)
    parameters = profile.parameters("04_power_law_sigma")
    alone, mixture = DataConfig.of("text", domains=("wikitext103",)), tuple(sorted(dict(profile.mixture).items()))
    assert Recipe(parameters, profile, domains=parameters.domains).data == alone
    assert Recipe(parameters, profile).data == DataConfig.of("text", mixture=mixture)
    own = load("paper", corpus="/some/folder")
    assert (own.corpus.hub, own.corpus.apart, own.corpus.tokenizer, own.mixture) == ((), (), "", ())
    parameters = own.parameters("04_power_law_sigma")
    assert Recipe(parameters, own, domains=parameters.domains).data == DataConfig.of("text")
    with pytest.raises(SuiteError, match="unknown domain of the corpus 'wikitext'; did you mean 'wikitext103'"):
        _ = Recipe(profile.parameters("05_christoffel"), profile, domains=("wikitext",)).data


@pytest.mark.parametrize("notebook", ["04_power_law_sigma", "05_christoffel"])
def test_when_a_notebook_has_domains_then_all_its_language_models_are_trained_on_them(notebook):
    profile = load("smoke")
    parameters = profile.parameters(notebook).model_copy(update={"domains": ("docs",)})
    texts = {job.run.data for job in experiment(notebook).plan(parameters, profile) if job.run.data.source == "text"}
    assert texts == {DataConfig.of("text", domains=("docs",))}
