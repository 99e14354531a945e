"""Profiles: the scale at which the suite runs, and what each notebook's parameters differ in. One YAML file each."""

import dataclasses
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, create_model

from data_prep.config import CorpusConfig
from lib import paths
from lib.config import Items, ModelConfig, TrainConfig, freeze
from lib.data import Corpus
from lib.errors import SuiteError, one_of, require
from suite.settings.entrance import require_outputs
from suite.settings.machine import has_bf16, side_by_side
from suite.settings.parameters import (Parameters, Strict, checked, located, notebook_names, parameters_of,
                                       require_known, type_of)

MOST_BYTES = 2 ** 16                                    # of a profile's file; the longest of the suite's has 5,000
OFFLINE = ("docs", "code", "stories", "math")           # domains of the offline corpus
MOST_RUNGS = 64                                         # the 64th Fibonacci number has 14 digits
MOST_TOKENS = 10 ** 15                                  # of a run
MOST_PLACES = 2 ** 22                                   # layers * length: 32 layers of 131,072 tokens


def section(cls: type, required: str, without: str) -> type[Strict]:
    """A section of the file: fields of a configuration. `required` must be there; the rest has the paper's values."""
    fields = {f.name: (type_of(f.type, f.name), ... if f.name in required.split() else f.default)
              for f in dataclasses.fields(cls) if f.name != without}
    return create_model(cls.__name__, __base__=Strict, **fields)


CORPUS = section(CorpusConfig, "vocab train_tokens heldout_tokens", without="folder")
MODEL = section(ModelConfig, "d_model layers heads kv_heads head_dim hidden", without="vocab")
TRAIN = section(TrainConfig, "steps batch length lr warmup precision eval_every", without="seed")


class ProfileFile(Strict):
    description: str
    corpus: CORPUS
    model: MODEL
    train: TRAIN
    mixture: dict[str, PositiveFloat] = {}
    rungs: Annotated[int, Field(ge=1, le=MOST_RUNGS)]
    evaluation_tokens: PositiveInt
    workers: PositiveInt | None = None
    notebooks: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True, eq=False)
class Profile:
    """One file of profiles/ with a corpus: everything that sets the scale of the experiments."""
    name: str
    description: str
    corpus: CorpusConfig
    model: ModelConfig                         # vocabulary: the corpus's
    train: TrainConfig                         # seed: each notebook's own parameter
    evaluation_tokens: int                     # held-out tokens a domain
    rungs: int                                 # of a scaled base
    workers: int                               # runs trained at once, with one thread each; left out: one a core
    mixture: Items                             # (domain, weight) of the corpus; empty: equal weights
    notebooks: dict[str, dict[str, Any]]       # parameters that differ from the defaults

    def parameters(self, notebook: str) -> Parameters:
        """The parameters of `notebook` at this profile; a wrong name or type names this file."""
        model, own = parameters_of(notebook), self.notebooks.get(notebook, {})
        where = f"{self.name}.yaml, notebooks: {notebook}"
        require_known(own, model.model_fields.keys() - {"profile", "corpus"}, where)
        return checked(model, {**own, "profile": self.name, "corpus": self.corpus.folder}, where)


class StrictLoader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error; plain YAML drops the first silently. No aliases either: nine
    lines of them can stand for a billion values."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise SuiteError(f"line {line}: an alias (*name) is not read here: write the value again")
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)                          # Python writes no number of thousands of digits
            return value
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            if isinstance(error, SuiteError):
                raise
            kind = node.tag.rpartition(":")[2]
            raise SuiteError(f"line {node.start_mark.line + 1}: {node.value!r:.200} cannot be read as {kind}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise SuiteError(f"line {node.start_mark.line + 1}: the key {key!r} stands twice")
        return super().construct_mapping(node, deep)


def sections_of(name: str) -> dict[str, Any]:
    """The sections of a profile's file as they stand, each there at most once."""
    path = paths.PROFILES / f"{name}.yaml"
    one_of(name, [path.stem for path in paths.PROFILES.glob("*.yaml")], "profile")
    with located(path.name):
        require(path.is_file(), "the profile", str(path), "a file; it is a folder, a device or a link to nothing")
        try:
            with open(path, "rb") as file:
                text = file.read(MOST_BYTES + 1)
            require(len(text) <= MOST_BYTES, "size", len(text), f"at most {MOST_BYTES:,} bytes")
            sections = yaml.load(text, Loader=StrictLoader)
        except OSError as error:
            raise SuiteError(f"cannot be read: {error.strerror}") from None
        except (yaml.YAMLError, RecursionError) as error:
            raise SuiteError(f"not YAML: {' '.join(str(error).split())}") from None
        require(isinstance(sections, dict), "the file", type(sections).__name__, "a mapping of sections")
        return {str(key): value for key, value in sections.items()}


def load(name: str, corpus: str = "") -> Profile:
    """The profile `name`, with its own corpus or the text of the folder `corpus`, which becomes absolute.

    Unknown, missing and mistyped keys are `SuiteError`s that name file, key and remedy.
    """
    values = dict(checked(ProfileFile, sections_of(name), f"{name}.yaml", "section"))
    text, train = dict(values["corpus"]), dict(values["train"])
    if corpus:                                                # a folder has domains and pieces of its own
        text |= {"folder": os.path.realpath(os.path.expanduser(corpus)), "hub": (), "apart": (), "tokenizer": ""}
        values["mixture"] = {}
    if train["precision"] == "auto":
        train["precision"] = "bf16" if has_bf16() else "fp32"
    with located(f"{name}.yaml"):
        for domain in values["mixture"]:
            one_of(domain, text.get("hub") or OFFLINE, "domain of the mixture")
        require_known(values["notebooks"], notebook_names(), "notebooks", "notebook")
        values |= {"corpus": CorpusConfig(**text), "model": ModelConfig(vocab=text["vocab"], **dict(values["model"])),
                   "train": TrainConfig(**train), "workers": values["workers"] or side_by_side(),
                   "mixture": freeze(values["mixture"])}
        recipe, places = values["train"], values["model"].layers * values["train"].length
        require(recipe.tokens <= MOST_TOKENS, "steps * batch * length", recipe.tokens, f"at most {MOST_TOKENS:,}")
        require(places <= MOST_PLACES, "layers * length", places, f"at most {MOST_PLACES:,}")
        return Profile(name, **values)


def opened(name: str, folder: str = "") -> tuple[Profile, Corpus]:
    """Profile and corpus; the corpus is built if it is not there."""
    profile = load(name, folder)
    return profile, corpus_of(profile)


def corpus_of(profile: Profile) -> Corpus:
    """The profile's corpus, built if it is not there. `SuiteError` if the outputs cannot be written."""
    from data_prep.build import corpus
    require_outputs()
    return corpus(profile.corpus, lambda line: print(f"corpus: {line}", file=sys.stderr, flush=True))
