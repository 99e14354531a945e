"""Profiles are read strictly: every slip is an error that names file, key and remedy."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from fake_suite import GOOD

from lib import paths
from lib.errors import SuiteError
from suite.settings import profiles
from suite.settings.parameters import parameters_of


@pytest.fixture
def read(tmp_path):
    """Read GOOD with one text replaced by another."""
    def reader(old: str = "", new: str = "", corpus: str = ""):
        assert old in GOOD
        path = tmp_path / "tiny.yaml"
        path.write_text(GOOD.replace(old, new, 1) if old else GOOD)
        return profiles.read(path, corpus)
    return reader


def test_when_the_file_is_right_then_the_profile_has_its_values(read):
    profile = read()
    assert (profile.name, profile.description, profile.rungs, profile.workers) == ("tiny", "for tests", 5, 1)
    assert profile.model.vocab == profile.corpus.vocab == 300
    assert (profile.train.lr, profile.train.steps, profile.train.precision) == (2e-3, 10, "fp32")
    assert profile.evaluation_tokens == 1000
    assert dict(profile.mixture) == {"docs": 0.75, "code": 0.25}


@pytest.mark.parametrize("cores, gib, workers", [(1, 64, 1), (4, 64, 4), (32, 64, 8), (8, 7, 3), (4, 1, 1)])
def test_when_workers_are_left_out_then_every_core_has_one_if_memory_allows(read, monkeypatch, cores, gib, workers):
    monkeypatch.setattr("suite.settings.machine.cores", lambda: cores)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=gib * 2 ** 30))
    assert read("workers: 1\n").workers == workers


def test_when_a_notebook_is_asked_for_then_its_parameters_are_the_files_and_the_experiments(read):
    parameters = read().parameters("01_window_sweep")
    assert parameters.profile == "tiny" and parameters.windows == (4, 6)
    assert parameters.seeds == (42,)


def test_when_a_persons_own_text_is_used_then_the_offline_mixture_does_not_apply(read, tmp_path):
    profile = read(corpus=str(tmp_path))
    assert profile.mixture == () and profile.corpus.folder == str(tmp_path)
    assert profile.parameters("01_window_sweep").corpus == str(tmp_path)


HUB = "hub: [math, wikipedia], apart: [enwik8], tokenizer: owner/name}"


def test_when_the_text_is_of_the_hub_then_the_corpus_has_its_domains_and_tokeniser_and_a_folder_replaces_them(read):
    old = "heldout_tokens: 2000}\n"
    mixed = GOOD.replace("{docs: 0.75, code: 0.25}", "{math: 0.75, wikipedia: 0.25}")
    assert old in mixed

    def with_hub(corpus=""):
        path = read().file
        path.write_text(mixed.replace(old, f"heldout_tokens: 2000, {HUB}\n"))
        return profiles.read(path, corpus)
    profile = with_hub()
    assert (profile.corpus.hub, profile.corpus.apart, profile.corpus.tokenizer) == (
        ("math", "wikipedia"), ("enwik8",), "owner/name")
    folder = with_hub("/own")
    assert (folder.corpus.hub, folder.corpus.apart, folder.corpus.tokenizer, folder.mixture) == ((), (), "", ())


def test_when_precision_is_auto_then_it_is_what_the_device_has(read, monkeypatch):
    for there, expected in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(profiles, "has_bf16", lambda there=there: there)
        assert read("precision: fp32", "precision: auto").train.precision == expected


@pytest.mark.parametrize("old, new, words", [
    ("lr: 2.0e-3", "lr: 2e-3", ["tiny.yaml, train", "lr = '2e-3'", "float", "write 2.0e-3"]),
    ("steps: 10", "steps: '10'", ["steps = '10'", "int", "without quotes"]),
    ("steps: 10", "steps: 10.0", ["steps = 10.0 is a float", "int"]),
    ("steps: 10", "steps: true", ["steps = True is a bool", "int"]),
    ("steps: 10", "step: 10", ["unknown key 'step'", "did you mean 'steps'"]),
    ("layers: 2, ", "", ["tiny.yaml, model", "layers", "missing"]),
    ("kv_heads: 1", "kv_heads: 3", ["tiny.yaml", "kv_heads = 3", "divisor"]),
    ("model: {", "modle: {", ["tiny.yaml", "unknown section 'modle'", "did you mean 'model'"]),
    ("rungs: 5", "", ["tiny.yaml: the section rungs is missing"]),
    ("model: {d_model: 16", "model: 3 #", ["model = 3", "a mapping with d_model"]),
    ("rungs: 5", "rungs: 0", ["tiny.yaml", "rungs = 0", "at least 1"]),
    ("rungs: 5", "rungs: 5\nrungs: 6", ["tiny.yaml", "'rungs' stands twice"]),
    ("heads: 2,", "heads: 2, heads: 4,", ["'heads' stands twice"]),
    ("docs: 0.75", "docs: -1", ["mixture: docs = -1", "above 0"]),
    ("precision: fp32", "precision: fp16", ["precision = 'fp16'", "bf16 or fp32"]),
    ("01_window_sweep", "01_windowsweep", ["notebooks", "'01_windowsweep'", "did you mean '01_window_sweep'"]),
    ("{windows: [4, 6]}", "[4, 6]", ["01_window_sweep = [4, 6]", "mapping"]),
    ("description: for tests", "description: [", ["tiny.yaml", "not YAML"]),
    ("vocab: 300", "vocab: 20", ["tiny.yaml", "vocab = 20"]),
    ("heldout_tokens: 2000", "heldout_tokens: 2000, hub: [maths]", ["unknown domain of the mixture", "known: maths"]),
    ("heldout_tokens: 2000", "heldout_tokens: 2000, hub: math", ["hub = 'math'", "list[str]"]),
    ("heldout_tokens: 2000", "heldout_tokens: 2000, tokenizer: a/b", ["hub = ()", "apart"]),
    ("heldout_tokens: 2000", "heldout_tokens: 2000, tokeniser: a/b",
     ["unknown key 'tokeniser'", "did you mean 'tokenizer'"]),
])
def test_when_something_is_wrong_then_the_error_names_file_key_and_remedy(read, old, new, words):
    with pytest.raises(SuiteError) as error:
        read(old, new)
    for word in ["tiny.yaml", *words]:
        assert word in str(error.value)


def test_when_a_key_that_every_profile_must_say_is_missing_then_it_is_named(read):
    for key in ("vocab train_tokens heldout_tokens d_model layers heads kv_heads head_dim hidden "
                "steps batch length lr warmup precision eval_every").split():
        with pytest.raises(SuiteError, match=f"the key {key} is missing"):
            read(re.search(rf"\b{key}: [^,}}]*(, )?", GOOD)[0], "")


@pytest.mark.parametrize("new, words", [
    ("{window: [4]}", ["unknown parameter 'window'", "did you mean 'windows'"]),
    ("{windows: 6}", ["windows = 6", "[6]"]),
    ("{profile: small}", ["unknown parameter 'profile'"]),
])
def test_when_a_notebooks_parameter_is_wrong_then_the_error_names_file_and_notebook(read, new, words):
    profile = read("{windows: [4, 6]}", new)
    with pytest.raises(SuiteError) as error:
        profile.parameters("01_window_sweep")
    for word in ["tiny.yaml, notebooks: 01_window_sweep", *words]:
        assert word in str(error.value)


def test_when_a_profile_does_not_exist_then_the_nearest_is_named(monkeypatch, tmp_path):
    (tmp_path / "small.yaml").write_text(GOOD)
    monkeypatch.setattr(paths, "PROFILES", tmp_path)
    with pytest.raises(SuiteError, match="unknown profile 'smal'; did you mean 'small'"):
        profiles.load("smal")


@pytest.mark.parametrize("name", profiles.names())
def test_when_a_committed_profile_is_loaded_then_it_is_valid_and_says_only_what_differs_from_the_defaults(name):
    profile = profiles.load(name)
    assert profile.name == name and profile.description and (name != "small" or not profile.notebooks)
    for notebook, own in profile.notebooks.items():
        parameters, fields = profile.parameters(notebook), parameters_of(notebook).model_fields
        assert parameters.profile == name
        repeated = [key for key in own if getattr(parameters, key) == fields[key].default]
        assert not repeated, f"{notebook} repeats defaults"
        assert own, f"{notebook} has nothing of its own"
