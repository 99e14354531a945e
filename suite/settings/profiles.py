"""Profiles: the scale at which the suite runs, and what each notebook's parameters differ in. One YAML file each."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field, PositiveFloat

from data_prep.config import CorpusConfig
from lib import paths
from lib.config import Items, ModelConfig, TrainConfig, freeze
from lib.errors import SuiteError, one_of, require
from suite.settings.machine import side_by_side
from suite.settings.parameters import (STRICT, Declared, Parameters, checked, model_of, notebook_names, parameters_of,
                                       require_known)

Count = Annotated[int, Field(ge=1)]
HUB = ("hub", "apart", "tokenizer")         # keys of a corpus of the hub


def section(cls: type, required: str, without: str) -> type[BaseModel]:
    """A section of the file: fields of a configuration. `required` must be there; the rest has the paper's values."""
    fields = [f for f in dataclasses.fields(cls) if f.name != without]
    declared = (Declared(f.name, f.type, ... if f.name in required.split() else f.default) for f in fields)
    return model_of(declared, cls.__name__)


CORPUS = section(CorpusConfig, "vocab train_tokens heldout_tokens", without="folder")
MODEL = section(ModelConfig, "d_model layers heads kv_heads head_dim hidden", without="vocab")
TRAIN = section(TrainConfig, "steps batch length lr warmup precision eval_every", without="seed")


class ProfileFile(BaseModel):
    """The sections of a profile's file."""
    model_config = STRICT
    description: str
    corpus: CORPUS
    model: MODEL
    train: TRAIN
    mixture: dict[str, PositiveFloat] = {}
    rungs: Count
    evaluation_tokens: Count
    workers: Count | None = None
    notebooks: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class Profile:
    """One file of profiles/ with a corpus: everything that sets the scale of the experiments."""
    name: str
    description: str
    corpus: CorpusConfig
    model: ModelConfig                         # vocabulary: the corpus's
    train: TrainConfig                         # seed: each notebook's own parameter
    evaluation_tokens: int                     # held-out tokens a domain
    rungs: int                                 # of a scaled base
    workers: int = 1                           # runs trained at once, with one thread each; left out: one a core
    mixture: Items = ()                        # (domain, weight) of the corpus; empty: equal weights
    notebooks: dict[str, dict[str, Any]] = field(default_factory=dict)      # parameters that differ from the defaults
    file: Path = Path()

    def parameters(self, notebook: str) -> Parameters:
        """The parameters of `notebook` at this profile; a wrong name or type names this file."""
        model, own = parameters_of(notebook), self.notebooks.get(notebook, {})
        where = f"{self.file.name}, notebooks: {notebook}"
        require_known(own, model.model_fields.keys() - {"profile", "corpus"}, where)
        return checked(model, {**own, "profile": self.name, "corpus": self.corpus.folder}, where)


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
    """The profile `name`, with its own corpus or the text of the folder `corpus`."""
    return read(path_of(name), corpus)


def read(path: Path, corpus: str = "") -> Profile:
    """The profile in `path`. Unknown, missing and mistyped keys are `SuiteError`s that name file, key and remedy."""
    try:
        return interpret(checked(ProfileFile, parse(path), path.name, "section"), path, corpus)
    except SuiteError as error:
        text = str(error)
        raise SuiteError(text if text.startswith(path.name) else f"{path.name}: {text}") from None


def parse(path: Path) -> dict[str, Any]:
    """The file's sections as they stand, each there at most once."""
    try:
        sections = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
    except yaml.YAMLError as error:
        raise SuiteError(f"{path.name}: not YAML: {error}") from None
    require(isinstance(sections, dict), "the file", type(sections).__name__, "a mapping of sections")
    return {str(key): value for key, value in sections.items()}


def interpret(file: ProfileFile, path: Path, corpus: str) -> Profile:
    text = dict(file.corpus)
    if corpus:                                                # a folder has domains and pieces of its own
        text = {key: value for key, value in text.items() if key not in HUB}
    mixture = {} if corpus else file.mixture
    for domain in mixture if text.get("hub") else ():
        one_of(domain, text["hub"], "domain of the mixture")
    require_known(file.notebooks, notebook_names(), f"{path.name}, notebooks", "notebook")
    train = TrainConfig(**{**dict(file.train), "precision": resolve(file.train.precision)})
    return Profile(name=path.stem, description=file.description, corpus=CorpusConfig(folder=corpus, **text),
                   model=ModelConfig(vocab=text["vocab"], **dict(file.model)), train=train,
                   evaluation_tokens=file.evaluation_tokens, rungs=file.rungs, workers=file.workers or side_by_side(),
                   mixture=freeze(mixture), notebooks=file.notebooks, file=path)


def resolve(precision: str) -> str:
    """`auto` as bf16 where the device computes in it, else fp32."""
    if precision != "auto":
        return precision
    return "bf16" if has_bf16() else "fp32"


def has_bf16() -> bool:
    """Whether training in bf16 is quicker here. A GPU's driver is looked for first: importing torch takes a second."""
    if Path("/proc/driver/nvidia/version").exists():
        import torch
        if torch.cuda.is_available():
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.system() != "Linux":
        return False
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags
