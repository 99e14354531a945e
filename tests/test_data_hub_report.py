"""What the report and the battery make of a corpus from the hub."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from eval_fakes import only, run_of, uniform
from hub_fakes import make_hub, pretend_llama, write

from data_prep import hub_build, tokenizer
from data_prep.tokenizer import end_of
from lib.config import DataConfig, Evaluation
from lib.data import domains_of
from lib.errors import SuiteError
from suite.evals import build as evaluator
from suite.evals.battery import requests
from suite.evals.zero_shot import Item, called
from suite.experiments import experiment
from suite.experiments.base import Job
from suite.experiments.common import Recipe
from suite.report.facts import Text
from suite.settings.profiles import load
from suite.study.frames import Study
from suite.tasks import make_source


def test_when_the_corpus_has_the_hub_s_sets_then_the_battery_asks_these(hub_corpus):
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


def test_when_the_corpus_came_without_then_tasks_have_their_offline_names(hub_corpus):
    names = {"blimp": ("blimp", "blimp-offline"), "lambada": ("lambada", "lambada-offline"),
             "cloze": ("factual_cloze", "cloze"), "mqar": ("mqar", "mqar")}
    without = SimpleNamespace(evaluation=lambda task: None)
    assert {task: (called(task, hub_corpus), called(task, without)) for task in names} == names


@pytest.fixture
def blimp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """BLiMP's folder in copies that a test may change."""
    monkeypatch.setenv("SUITE_HUB", str(make_hub(tmp_path / "hub")))
    return tmp_path / "hub/nyu-mll/blimp"


def test_when_an_evaluation_set_lacks_a_text_then_the_error_names_the_row_and_it_is_not_kept(blimp, tmp_path):
    write(blimp / "wh_island/train-00000-of-00001.parquet",
          {"sentence_good": ["A dog runs.", None], "sentence_bad": ["A dog run.", "x"]})
    with pytest.raises(SuiteError, match="wh_island/train-0.*.parquet, row 1 has no text in 'sentence_good'"):
        hub_build.fetch(tmp_path / "evaluations", print)
    assert not (tmp_path / "evaluations/blimp.json").exists()


def test_when_blimp_s_own_files_are_there_then_each_is_a_subset(blimp, tmp_path):
    shutil.rmtree(blimp)
    for subset in ("principle_A_case_1", "passive_1"):
        write(blimp / f"{subset}.jsonl", {"sentence_good": ["Good."], "sentence_bad": ["Bad."]})
    facts = hub_build.fetch(tmp_path / "evaluations", print)
    assert (facts["blimp"]["subsets"], facts["blimp"]["items"]) == (2, 2)
    assert {path.stem for path in (tmp_path / "evaluations/blimp").iterdir()} == {"passive_1", "principle_A_case_1"}


def test_when_pieces_write_a_space_at_the_beginning_otherwise_then_a_continuation_is_cut_from_the_whole(tmp_path):
    pieces = tokenizer.named(str(pretend_llama(tmp_path / "pieces")))
    (made,) = requests(pieces, Item("the old river was", (" tall",), 0, 1.0, ""), end_of(pieces), 64)
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
    text = Text(hub_corpus.fingerprint, manifest)
    assert text.source == "Text of the Hugging Face hub" and text.pieces == "byte-level pieces"
    assert {f"fineweb_edu: HuggingFaceFW/fineweb-edu (sample-10BT, train), {place}, ODC-By 1.0",
            f"wikitext103: Salesforce/wikitext (wikitext-103-raw-v1, train), {place}, CC BY-SA 3.0 and GFDL",
            f"blimp, 10 items: nyu-mll/blimp (train), {place}, CC BY 4.0"} <= set(text.origins)
    manifest["domains"]["math"]["sources"][0]["revision"] = "f" * 40
    manifest["config"]["tokenizer"] = "a/b"
    text = Text(hub_corpus.fingerprint, manifest)
    assert "math: DigitalLearningGmbH/MATH-lighteval (default, train), commit ffffffffffff, MIT" in text.origins
    assert text.pieces == "pieces of a/b"


def test_when_the_paper_s_profile_is_loaded_then_it_has_the_mixture_and_wikitext_is_of_two_notebooks_alone():
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
    with pytest.raises(SuiteError, match="unknown domain of the corpus 'wikitext'; did you mean 'wikitext103'"):
        _ = Recipe(parameters, profile, domains=("wikitext",)).data


@pytest.mark.parametrize("notebook", ["04_power_law_sigma", "05_christoffel"])
def test_when_a_notebook_has_domains_then_all_its_language_models_are_trained_on_them(notebook):
    profile = load("smoke")
    parameters = profile.parameters(notebook).model_copy(update={"domains": ("docs",)})
    texts = {job.run.data for job in experiment(notebook).plan(parameters, profile) if job.run.data.source == "text"}
    assert texts == {DataConfig.of("text", domains=("docs",))}
