"""Profiles are read strictly: every slip is an error that names file, key and remedy."""

import re
from types import SimpleNamespace

import pytest
from fake_suite import GOOD

from lib import paths
from lib.errors import SuiteError
from suite.settings import profiles
from suite.settings.parameters import parameters_of


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load GOOD, as the profile `tiny`, with one text after another replaced."""
    def loader(*changes: tuple[str, str], corpus: str = ""):
        text = GOOD
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / "tiny.yaml").write_text(text)
        monkeypatch.setattr(paths, "PROFILES", tmp_path)
        return profiles.load("tiny", corpus)
    return loader


def refused(call, *words: str) -> None:
    with pytest.raises(SuiteError) as error:
        call()
    assert all(word in str(error.value) for word in words), error.value


def test_when_the_file_is_right_then_its_values_are_there_and_a_profile_of_another_name_is_not(load):
    profile = load()
    assert (profile.name, profile.description, profile.rungs, profile.workers) == ("tiny", "for tests", 5, 1)
    assert profile.model.vocab == profile.corpus.vocab == 300
    assert (profile.train.lr, profile.train.steps, profile.train.precision) == (2e-3, 10, "fp32")
    assert profile.evaluation_tokens == 1000 and dict(profile.mixture) == {"docs": 0.75, "code": 0.25}
    parameters = profile.parameters("01_window_sweep")
    assert (parameters.profile, parameters.windows, parameters.seeds) == ("tiny", (4, 6), (42,))
    refused(lambda: profiles.load("tinny"), "unknown profile 'tinny'; did you mean 'tiny'")


@pytest.mark.parametrize("cores, gib, workers", [(1, 64, 1), (4, 64, 4), (32, 64, 8), (8, 7, 3), (4, 1, 1)])
def test_when_workers_are_left_out_then_every_core_has_one_if_memory_allows(load, monkeypatch, cores, gib, workers):
    monkeypatch.setattr("suite.settings.machine.cores", lambda: cores)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=gib * 2 ** 30))
    assert load(("workers: 1\n", "")).workers == workers


@pytest.mark.parametrize("there, expected", [(True, "bf16"), (False, "fp32")])
def test_when_precision_is_auto_then_it_is_what_the_device_has(load, monkeypatch, there, expected):
    monkeypatch.setattr(profiles, "has_bf16", lambda: there)
    assert load(("precision: fp32", "precision: auto")).train.precision == expected


def test_when_a_persons_own_text_is_used_then_mixture_domains_and_tokeniser_do_not_apply(load, tmp_path, monkeypatch):
    hub = [("2000}", "2000, hub: [math, wikipedia], apart: [enwik8], tokenizer: owner/name}"),
           ("{docs: 0.75, code: 0.25}", "{math: 0.75, wikipedia: 0.25}")]
    corpus = load(*hub).corpus
    assert (corpus.hub, corpus.apart, corpus.tokenizer) == (("math", "wikipedia"), ("enwik8",), "owner/name")
    monkeypatch.chdir(tmp_path)
    for changes in ([], hub):
        profile = load(*changes, corpus="own")
        assert (profile.corpus.hub, profile.corpus.apart, profile.corpus.tokenizer, profile.mixture) == ((), (), "", ())
        assert profile.corpus.folder == profile.parameters("01_window_sweep").corpus == str(tmp_path / "own")


@pytest.mark.parametrize("old, new, words", [
    ("steps: 10", "steps: '10'", ["tiny.yaml, train", "steps = '10'", "int", "without quotes"]),
    ("steps: 10", "step: 10", ["unknown key 'step'", "did you mean 'steps'"]),
    ("kv_heads: 1", "kv_heads: 3", ["kv_heads = 3", "divisor"]),
    ("model: {", "modle: {", ["unknown section 'modle'", "did you mean 'model'"]),
    ("rungs: 5", "", ["tiny.yaml: the section rungs is missing"]),
    ("model: {d_model: 16", "model: 3 #", ["model = 3", "ModelConfig"]),
    ("rungs: 5", "rungs: 0", ["rungs = 0", "greater than 0"]),
    ("heads: 2,", "heads: 2, heads: 4,", ["'heads' stands twice"]),
    ("docs: 0.75", "docs: -1", ["mixture: docs = -1", "greater than 0"]),
    ("precision: fp32", "precision: fp16", ["precision = 'fp16'", "bf16 or fp32"]),
    ("01_window_sweep", "01_windowsweep", ["notebooks", "'01_windowsweep'", "did you mean '01_window_sweep'"]),
    ("{windows: [4, 6]}", "[4, 6]", ["01_window_sweep = [4, 6]", "dictionary"]),
    ("description: for tests", "description: [", ["not YAML"]),
    ("2000}", "2000, hub: [maths]}", ["unknown domain of the mixture", "known: maths"]),
    ("2000}", "2000, hub: math}", ["hub = 'math'", "list[str]"]),
    ("2000}", "2000, tokenizer: a/b}", ["hub = ()", "apart"]),
    ("{windows: [4, 6]}", "{profile: small}", ["notebooks: 01_window_sweep", "unknown parameter 'profile'"]),
])
def test_when_something_is_wrong_then_the_error_names_file_key_and_remedy(load, old, new, words):
    refused(lambda: load((old, new)).parameters("01_window_sweep"), "tiny.yaml", *words)


def test_when_a_key_that_every_profile_must_say_is_missing_then_it_is_named(load):
    for section, keys in (("corpus", "vocab train_tokens heldout_tokens"),
                          ("model", "d_model layers heads kv_heads head_dim hidden"),
                          ("train", "steps batch length lr warmup precision eval_every")):
        for key in keys.split():
            line = re.search(rf"\b{key}: [^,}}]*(, )?", GOOD)[0]
            refused(lambda: load((line, "")), f"tiny.yaml, {section}: the key {key} is missing")


@pytest.mark.parametrize("name", sorted(path.stem for path in paths.PROFILES.glob("*.yaml")))
def test_when_a_committed_profile_is_loaded_then_it_is_valid_and_says_only_what_differs_from_the_defaults(name):
    profile = profiles.load(name)
    assert profile.name == name and profile.description and (name != "small" or not profile.notebooks)
    for notebook, own in profile.notebooks.items():
        parameters, defaults = profile.parameters(notebook), parameters_of(notebook)()
        assert parameters.profile == name and own, f"{notebook} has nothing of its own"
        repeated = [key for key in own if getattr(parameters, key) == getattr(defaults, key)]
        assert not repeated, f"{notebook} repeats defaults"
