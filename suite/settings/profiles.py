"""Profiles: the scale at which the suite runs, and every notebook's parameters at it. One YAML file each, read strictly."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lib import paths
from lib.config import Items, ModelConfig, TrainConfig, freeze
from lib.errors import SuiteError, one_of, require
from suite.settings.machine import side_by_side
from suite.settings.parameters import (Declared, declared_by, require_known,
                                       validated)

if TYPE_CHECKING:
    from data_prep.config import CorpusConfig
    from suite.experiments.base import Parameters

SECTIONS = {"description", "corpus", "model", "train", "mixture", "rungs", "evaluation", "workers", "notebooks"}
OPTIONAL = {"mixture", "workers", "notebooks"}
CORPUS = {name: Declared(name, "int", None) for name in ("vocab", "train_tokens", "heldout_tokens", "seed")}
HUB = {"hub": Declared("hub", "list[str]", ()), "apart": Declared("apart", "list[str]", ()),
       "tokenizer": Declared("tokenizer", "str", "")}
EVALUATION = {"tokens": Declared("tokens", "int", None), "lengths": Declared("lengths", "list[int]", None)}


@dataclass(frozen=True)
class Profile:
    """One file of profiles/ with a corpus: everything that sets the scale of the experiments."""
    name: str
    description: str
    corpus: CorpusConfig
    model: ModelConfig                         # vocabulary: the corpus's
    train: TrainConfig                         # seed: each notebook's own parameter
    evaluation: dict[str, Any]                 # tokens: held-out tokens a domain; lengths: tokens, a tuple
    rungs: int                                 # of a scaled base
    workers: int = field(default_factory=side_by_side)      # runs trained at once, with one thread each; left out: one a core
    mixture: Items = ()                        # (domain, weight) of the corpus; empty: equal weights
    notebooks: dict[str, dict[str, Any]] = field(default_factory=dict)
    file: Path = Path()

    def parameters(self, notebook: str) -> Parameters:
        """The parameters of the experiment `notebook` at this profile; a wrong name or type names this file."""
        from suite.experiments import experiment
        cls = experiment(notebook).Parameters
        where = f"{self.file.name}, notebooks: {notebook}"
        own = {name: d for name, d in declared_by(cls).items() if name not in ("profile", "corpus")}
        return cls(profile=self.name, corpus=self.corpus.folder, **validated(self.notebooks.get(notebook, {}), own, where))


class StrictLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error; plain YAML drops the first silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise SuiteError(f"line {node.start_mark.line + 1}: the key {key!r} stands twice")
        return super().construct_mapping(node, deep)


def names() -> list[str]:
    return sorted(path.stem for path in paths.PROFILES.glob("*.yaml"))


def path_of(name: str) -> Path:
    """The file of a profile; a `SuiteError` names the nearest if there is none."""
    return paths.PROFILES / f"{one_of(name, names(), 'profile')}.yaml"


def load(name: str, corpus: str = "") -> Profile:
    """The profile `name`, with the offline corpus or the text of the folder `corpus`."""
    return read(path_of(name), corpus)


def read(path: Path, corpus: str = "") -> Profile:
    """The profile in `path`. Unknown, missing and mistyped keys are `SuiteError`s that name file, key and remedy."""
    try:
        return interpret(path, parse(path), corpus)
    except SuiteError as error:
        text = str(error)
        raise SuiteError(text if text.startswith(path.name) else f"{path.name}: {text}") from None


def parse(path: Path) -> dict[str, Any]:
    """The file's sections, each there at most once."""
    try:
        sections = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
    except yaml.YAMLError as error:
        raise SuiteError(f"not YAML: {error}") from None
    require(isinstance(sections, dict), "the file", type(sections).__name__, "a mapping of sections")
    for key in sections:
        one_of(key, SECTIONS, "section")
    for key in SECTIONS - OPTIONAL:
        require(key in sections, key, None, "a section that every profile has")
    return sections


def interpret(path: Path, sections: dict[str, Any], corpus: str) -> Profile:
    def section(key: str, declared: dict[str, Declared], optional: set[str] = frozenset()) -> dict[str, Any]:
        return mapping(sections[key], declared, f"{path.name}, {key}", optional)

    from data_prep.config import CorpusConfig
    text = section("corpus", CORPUS | HUB, {"seed", *HUB})
    if corpus:                                                # a folder has domains and pieces of its own
        text = {key: value for key, value in text.items() if key not in HUB}
    model = section("model", {k: d for k, d in declared_by(ModelConfig).items() if k != "vocab"}, set(MODEL_OPTIONAL))
    train = section("train", {k: d for k, d in declared_by(TrainConfig).items() if k != "seed"}, set(TRAIN_OPTIONAL))
    train["precision"] = resolve(train["precision"])
    top = validated({k: sections[k] for k in ("description", "rungs", "workers") if k in sections},
                    {"description": Declared("description", "str", ""), "rungs": Declared("rungs", "int", 0),
                     "workers": Declared("workers", "int", 0)}, path.name)
    weights = () if corpus else mixture(sections.get("mixture", {}), path)
    for domain, _ in weights if text.get("hub") else ():
        one_of(domain, text["hub"], "domain of the mixture")
    for key in ("rungs", "workers"):
        require(top.get(key, 1) >= 1, key, top.get(key), "an integer of at least 1")
    return Profile(name=path.stem, file=path, corpus=CorpusConfig(folder=corpus, **text),
                   model=ModelConfig(vocab=text["vocab"], **model), train=TrainConfig(**train),
                   evaluation=section("evaluation", EVALUATION),
                   mixture=weights,
                   notebooks=notebooks(sections.get("notebooks", {}), path), **top)


# What a profile must say itself; the rest of the recipe has the paper's values unless it says otherwise.
MODEL_OPTIONAL = ("position", "rope_theta", "norm_eps")
TRAIN_OPTIONAL = ("final_lr", "weight_decay", "beta1", "beta2", "clip", "theta_lr")


def mapping(values: Any, declared: dict[str, Declared], where: str, optional: set[str] = frozenset()) -> dict[str, Any]:
    """One section: all its keys, none but its keys, each of its type."""
    if not isinstance(values, dict):
        raise SuiteError(f"{where} = {values!r} is not valid: a mapping with {', '.join(sorted(declared))}")
    found = validated(values, declared, where, "key")
    for name in declared:
        if name not in found and name not in optional:
            raise SuiteError(f"{where}: the key {name} ({declared[name].type}) is missing")
    return found


def mixture(values: Any, path: Path) -> Items:
    where = f"{path.name}, mixture"
    if not isinstance(values, dict):
        raise SuiteError(f"{where} = {values!r} is not valid: a mapping of domains to weights, for instance docs: 0.35")
    weights = validated(values, {str(k): Declared(str(k), "float", None) for k in values}, where)
    for domain, weight in weights.items():
        require(weight > 0, f"{where}, {domain}", weight, "a weight above 0")
    return freeze(weights)


def notebooks(values: Any, path: Path) -> dict[str, dict[str, Any]]:
    """Parameters by notebook. The names are checked here, the values when `Profile.parameters` meets their experiment."""
    where = f"{path.name}, notebooks"
    known = {file.stem for file in paths.NOTEBOOKS.glob("*.ipynb")}
    if not isinstance(values, dict):
        raise SuiteError(f"{where} = {values!r} is not valid: a mapping of notebooks to their parameters")
    require_known(values, known, where, "notebook")
    for name, own in values.items():
        if not isinstance(own, dict):
            raise SuiteError(f"{where}: {name} = {own!r} is not valid: a mapping of parameters, {{}} for none")
    return values


def resolve(precision: str) -> str:
    """`auto` as bf16 where the device computes in it, else fp32."""
    if precision != "auto":
        return precision
    return "bf16" if has_bf16() else "fp32"


def has_bf16() -> bool:
    """Whether training in bf16 is quicker here. A GPU's driver is looked for first, since importing torch takes a second."""
    if Path("/proc/driver/nvidia/version").exists():
        import torch
        if torch.cuda.is_available():
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.system() != "Linux":
        return False
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags
