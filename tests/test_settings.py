"""Settings: profiles, read strictly, and what the fingerprints of runs and evaluations depend on."""

import ast
import json
import re
import shutil
from types import SimpleNamespace

import pytest
from fake_suite import GOOD
from test_house import imported, modules

from lib import paths
from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from suite.settings import fingerprints, profiles
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
    assert (parameters.profile, parameters.windows, parameters.seeds) == ("tiny", (4, 6), (42, 43, 44))
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
    ("rungs: 5", "rungs: 0", ["rungs = 0", "greater than or equal to 1"]),
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
    ("docs: 0.75", "nowhere: 0.75", ["unknown domain of the mixture 'nowhere'"]),
    ("{windows: [4, 6]}", "{seeds: []}", ["01_window_sweep: seeds = []", "one seed or more"]),
    ("{windows: [4, 6]}", "{seeds: [1, 1]}", ["seeds = [1, 1]", "each once"]),
    ("[4, 6]", str(list(range(500))), ["windows = [0, 1,", "at most 100 entries"]),
    # What no memory and no patience holds
    ("steps: 10", f"steps: {10 ** 30}", [f"train: steps = {10 ** 30}", "at most 1,000,000,000,000"]),
    ("length: 16", "length: 131073", ["length = 131073", "at most 131,072"]),
    ("layers: 2", f"layers: {10 ** 6}", ["model: layers = 1000000", "at most 512"]),
    ("rungs: 5", "rungs: 3000", ["rungs = 3000", "less than or equal to 64"]),
    ("steps: 10, batch: 2", f"steps: {10 ** 12}, batch: 4096", ["steps * batch * length = 65536000000000000 is"]),
    # What YAML makes of it
    ("lr: 2.0e-3", "lr: .inf", ["lr = inf", "finite"]),
    ("lr: 2.0e-3", "lr: true", ["lr = True is a bool, but its type is float"]),
    ("steps: 10", "steps: " + 5000 * "9", ["line 4: '9999", "cannot be read as int"]),
    ("steps: 10", "steps: 0x" + 5000 * "f", ["line 4: '0xffff", "cannot be read as int"]),
    ("steps: 10", "steps: !!timestamp x", ["line 4: 'x' cannot be read as timestamp"]),
    ("steps: 10", "steps: !!python/name:os.system x", ["not YAML", "python/name"]),
    ("description: for tests", "description: &a [x, *a]", ["line 1: an alias"]),
    ("description: for tests", r'description: "\ud800"', [r"description = '\ud800'", "surrogates"]),
])
def test_when_something_is_wrong_then_the_error_names_file_key_and_remedy(load, old, new, words):
    refused(lambda: load((old, new)).parameters("01_window_sweep"), "tiny.yaml", *words)


@pytest.mark.parametrize("content, words", [
    (b"", "a mapping of sections"), ("description: für".encode("latin-1"), "not YAML"), (b"\0", "not YAML"),
    (b"[" * 3000, "not YAML"), (b"#" * 2 ** 17, "at most 65,536 bytes"), (None, "a link to nothing")])
def test_when_the_file_is_no_profile_then_that_is_said_and_its_encoding_may_be_any_of_yaml(
        load, tmp_path, content, words):
    load()
    path = tmp_path / "tiny.yaml"
    path.write_bytes(GOOD.encode("utf-16"))
    assert profiles.load("tiny").rungs == 5
    path.unlink()
    path.write_bytes(content) if content is not None else path.symlink_to("nowhere")
    refused(lambda: profiles.load("tiny"), "tiny.yaml", words)


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


# Fingerprints: what they depend on, by the imports that `test_house` reads on its own

CACHED = (fingerprints.digest, fingerprints.defined_in, fingerprints.evaluation_fingerprint)
EVALUATIONS = fingerprints.defined_in("suite.evals")
PERPLEXITY = Evaluation.of("perplexity", tokens=64, pattern=("strided", (("stride", 2),)))
TRAINING = ("lib.training", "suite.tasks")
# What each key depends on, with all that this imports.
ROOTS = {"local": (*TRAINING, "lib.patterns.local", "suite.tasks.copying"),
         "dense": (*TRAINING, "lib.patterns.dense", "suite.tasks.copying"),
         "lego": (*TRAINING, "lib.patterns.local", "suite.tasks.chains"),
         **{name: (module, "suite.evals", *["lib.patterns.strided"] * (name == "perplexity"))
            for name, module in EVALUATIONS.items()}}


def run(seed: int = 0, **changes) -> RunConfig:
    model = ModelConfig(vocab=16, d_model=8, layers=2, heads=2, kv_heads=1, head_dim=4, hidden=8)
    return RunConfig(**{"pattern": PatternSpec.of("local", window=3), "model": model, "data": DataConfig.of("copying"),
                        "train": TrainConfig(steps=2, warmup=0, seed=seed), **changes})


def keys() -> dict[str, str]:
    """Fingerprints of runs and evaluations by the code that is below `paths.ROOT` now."""
    for cached in CACHED:
        cached.cache_clear()
    runs = {"local": run(), "dense": run(pattern=PatternSpec("dense")), "lego": run(data=DataConfig("lego"))}
    evaluations = {name: Evaluation(name) for name in EVALUATIONS} | {"perplexity": PERPLEXITY}
    return ({name: fingerprints.run_fingerprint(config, None) for name, config in runs.items()}
            | {name: fingerprints.evaluation_fingerprint(evaluation) for name, evaluation in evaluations.items()})


@pytest.fixture(scope="module")
def needs() -> dict[str, set[str]]:
    """For each key, the modules that its numbers may depend on: imported by its roots, but empty and neutral ones."""
    found = {}
    for key, roots in ROOTS.items():
        names, todo = set(), set(roots)
        while todo:
            module = todo.pop()
            names.add(module)
            package = module.rpartition(".")[0]                 # is executed before its module
            todo |= (imported()[module] | ({package} if package else set())) - names
        found[key] = {name for name in names - fingerprints.NEUTRAL
                      if fingerprints.bare(modules()[name].read_text())[0]}
    return found


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the packages, whose files may be changed."""
    for package in fingerprints.PACKAGES:
        shutil.copytree(paths.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    yield tmp_path
    for cached in CACHED:
        cached.cache_clear()


def changed(path, before: dict[str, str]) -> set[str]:
    """The keys that a further line in a file changes."""
    text = path.read_text()
    path.write_text(text + "\nSTEP = 3\n")
    differ = {name for name, key in keys().items() if key != before[name]}
    path.write_text(text)
    return differ


def test_when_one_line_of_any_module_changes_then_so_does_every_fingerprint_that_needs_it(needs, tree):
    before, everything = keys(), set().union(*needs.values())
    kernels = {name for name in modules() if name.startswith(("lib.attention.", "lib.fused."))}
    assert {"lib.step", "lib.rope", "suite.evals.scoring", "data_prep.tokenizer", *kernels} <= everything
    for module in sorted(everything):
        assert "import_module" not in modules()[module].read_text(), f"{module} imports what no fingerprint can see"
        differ, wanted = changed(fingerprints.file_of(module), before), {key for key in needs if module in needs[key]}
        assert wanted <= differ, f"{module} changed, and {wanted - differ} stayed"
        if module in EVALUATIONS.values():
            assert not differ & {"local", "dense", "lego"}, f"{module} changed, and runs are trained again"
    for file, expected in {
            "lib/patterns/local.py": "local lego", "lib/patterns/dense.py": "dense",
            "lib/patterns/strided.py": "perplexity", "suite/tasks/chains.py": "lego",
            "suite/evals/task.py": "task gradient_flow", "lib/files.py": "", "suite/run/engine.py": "",
            "suite/report/__init__.py": ""}.items():
        assert changed(tree / file, before) == set(expected.split()), file


def test_when_comments_docstrings_and_places_change_then_no_fingerprint_does(needs, tree):
    before = keys()
    for module in set().union(*needs.values()):
        path = fingerprints.file_of(module)
        path.write_text(path.read_text().replace('"""', '"""Said better. ', 1).replace("\n\n\n", "\n\n\n# a remark\n"))
    assert keys() == before
    room = tree / "data_prep" / "room"
    room.mkdir()
    for name in ("step.py", "rope.py"):
        (tree / "lib" / name).rename(room / name)
    for path in tree.rglob("*.py"):                         # other modules, in another order than before
        path.write_text(path.read_text().replace("from lib.step import", "from data_prep.room.step import").replace(
            "from lib.rope import", "from data_prep.room.rope import"))
    assert keys() == before


@pytest.mark.parametrize("module", sorted(fingerprints.NEUTRAL))
def test_when_a_module_is_neutral_then_it_has_no_means_to_change_a_number(module):
    statements = ast.walk(ast.parse(modules()[module].read_text()))
    needed = {alias.name.split(".")[0] for node in statements if isinstance(node, ast.Import) for alias in node.names}
    assert not needed & {"torch", "numpy", "numba", "random"} and imported()[module] - {"lib"} <= fingerprints.NEUTRAL


def test_when_configuration_data_or_evaluation_differ_then_the_keys_differ():
    text, other = SimpleNamespace(fingerprint="some text"), SimpleNamespace(fingerprint="other")
    of_text = run(data=DataConfig.of("text"))
    key = fingerprints.run_fingerprint
    found = [key(run(), None), key(run(1), None), key(run(data=DataConfig.of("copying", symbols=4)), None),
             key(run(pattern=PatternSpec.of("local", window=4)), None), key(of_text, text), key(of_text, other)]
    assert len(set(found)) == len(found) and key(run(), text) == found[0]       # a synthetic task reads no text
    nested = run(data=DataConfig.of("copying", mixture=(("a", 0.5), ("b", 0.5))))
    again = RunConfig.from_dict(json.loads(json.dumps(nested.to_dict())))
    assert key(again, None) == key(nested, None)
    one, two = (Evaluation.of("task", count=count) for count in (1, 2))
    assert fingerprints.evaluation_fingerprint(one) != fingerprints.evaluation_fingerprint(two)
    for call, message in ((lambda: key(of_text, None), "without a corpus"),
                          (lambda: fingerprints.evaluation_fingerprint(Evaluation("no")), "unknown evaluation 'no'"),
                          (lambda: fingerprints.training_modules(run(pattern=PatternSpec("no"))), "unknown pattern")):
        with pytest.raises(SuiteError, match=message):
            call()
