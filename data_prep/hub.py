"""Text from the Hugging Face hub: which data sets, and how a row of them becomes text.

Everything that is known of a data set stands in one of the two tables below; rows are read in the data set's own order. A
copy on the disk is read instead of the hub's own: `SUITE_HUB=folder` has the files of `owner/name` in `folder/owner/name`, as
`hf download --repo-type dataset` puts them or in any depth and as .parquet, .jsonl or .txt; with `HF_HUB_OFFLINE=1` it is the
cache of `HF_HOME` that must have them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.errors import SuiteError

SUFFIXES = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}     # the reader of `datasets`
SPLITS = ("train", "validation", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class HubSet:
    """A configuration and split of a data set. Its text is the columns, joined by line breaks; a row is a document."""
    path: str                       # owner/name on the hub
    config: str = "default"
    split: str = "train"
    columns: tuple[str, ...] = ("text",)
    folder: str = ""                # of the configuration's files inside the data set, where it is not named after it
    revision: str = "main"
    begins: str = ""                # rows are lines: a document begins with one that this regular expression finds
    together: str = ""              # documents with the same text in this column are held out together
    licence: str = ""
    instead: str = ""               # what to do when it is gone or gated

    @property
    def name(self) -> str:
        return f"{self.path} ({self.config}, {self.split})"


@dataclass(frozen=True)
class HubDomain:
    """Data sets read one after the other. `finite`: all of it is taken where it has fewer tokens than were asked for."""
    sets: tuple[HubSet, ...]
    finite: bool = False


DOMAINS = {
    "fineweb_edu": HubDomain((HubSet(
        path="HuggingFaceFW/fineweb-edu", config="sample-10BT", folder="sample/10BT", licence="ODC-By 1.0",
        instead="any other sample of FineWeb-Edu in its folder (columns: text)"),)),
    "wikipedia": HubDomain((HubSet(
        path="wikimedia/wikipedia", config="20231101.en", licence="CC BY-SA 3.0 and GFDL",
        instead="a copy of that dump; a later one is other text, and comparable with no published number"),)),
    "tinystories": HubDomain((HubSet(
        path="roneneldan/TinyStories", licence="CDLA-Sharing 1.0", instead="the .txt files of the paper as .jsonl"),)),
    # The problems of both come from one training set, and one problem has many solutions.
    "math": HubDomain((
        HubSet(path="DigitalLearningGmbH/MATH-lighteval", columns=("problem", "solution"), together="problem", licence="MIT",
               instead="MATH's first place on the hub, hendrycks/competition_math, was taken down in January 2025; any copy "
                       "of its training split with the columns problem and solution will do"),
        HubSet(path="nvidia/OpenMathInstruct-2", columns=("problem", "generated_solution"), together="problem",
               licence="CC BY 4.0", instead="its splits train_1M to train_5M hold parts of the same rows"))),
    # Lines, with a heading ` = Title = ` for each article. Validation and test are left alone, for comparisons elsewhere.
    "wikitext103": HubDomain((HubSet(
        path="Salesforce/wikitext", config="wikitext-103-raw-v1", begins=r"^ = (?!= )[^\n]* = $",
        licence="CC BY-SA 3.0 and GFDL", instead="the file wiki.train.raw of WikiText-103 as train.txt"),), finite=True),
    # A program that `datasets` no longer runs; the hub keeps what it once made in a branch of its own.
    "enwik8": HubDomain((HubSet(
        path="LTCB/enwik8", config="enwik8", revision="refs/convert/parquet", begins=r"^\s*<page>", licence="CC BY-SA 3.0",
        instead="the file enwik8 of the Large Text Compression Benchmark as train.txt"),), finite=True),
}

EVALUATIONS = {
    "lambada": HubSet(path="EleutherAI/lambada_openai", split="test", licence="MIT",
                      instead="craffel/openai_lambada has the same 5,153 passages (column text)"),
    # Every configuration is a subset (a paradigm).
    "blimp": HubSet(path="nyu-mll/blimp", config="", columns=("sentence_good", "sentence_bad"), licence="CC BY 4.0",
                    instead="the .jsonl files of BLiMP's own repository"),
    # CounterFact (arxiv.org/abs/2202.05262): facts of ParaRel as a prompt that its object completes.
    "cloze": HubSet(path="NeelNanda/counterfact-tracing", columns=("relation_id", "prompt", "target_true"),
                    licence="of CounterFact: MIT", instead="CounterFact as .jsonl with these columns"),
}


@dataclass(frozen=True)
class Source:
    """A set as it is found: its files in order, on the hub (`hf://`) or on this disk."""
    set: HubSet
    files: tuple[str, ...]
    revision: str                   # commit of the hub; `copy` for files that a person has put there
    root: Path | None = None        # of a copy on this disk

    @property
    def local(self) -> bool:
        return self.root is not None

    def name(self, number: int) -> str:
        """A file's name without machine or commit: the same wherever it was read."""
        file = self.files[number]
        inside = Path(file).relative_to(self.root).as_posix() if self.root else re.sub(r"^hf://.*?@[^/]*/", "", file)
        return f"{self.set.path}/{inside}"

    def facts(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"dataset": self.set.path, "config": self.set.config, "split": self.set.split, "revision": self.revision,
                "licence": self.set.licence, "files": [self.name(number) for number in range(len(self.files))]}

    def identity(self) -> list[list[Any]]:
        """What must not change between a killed build and its continuation."""
        return [[file, *((stat := os.stat(file)).st_size, stat.st_mtime_ns)] if self.local else [file] for file in self.files]


def remedy(own: HubSet) -> str:
    return f"put a copy into {own.path} of the folder that SUITE_HUB names ({own.instead}), or leave it out of the profile"


def find(own: HubSet) -> Source:
    """Where the files of a set are. A SuiteError if a copy has none; errors of the hub and of the network as they come."""
    root = copy_of(own)
    if root is not None:
        files = files_of(root, own)
        if not files:
            raise SuiteError(f"{root} has no file of {own.name}: no {', '.join(SUFFIXES)} for the split {own.split!r}")
        return Source(own, tuple(map(str, files)), commit_of(root), root)
    import datasets
    builder = datasets.load_dataset_builder(own.path, own.config or None, revision=own.revision)
    found = builder.config.data_files or {}
    if own.split not in found:
        raise SuiteError(f"{own.name}: the hub has no split {own.split!r} (known: {', '.join(map(str, found))}); {remedy(own)}")
    files = tuple(str(file) for file in found[own.split])
    commits = re.findall(r"@([0-9a-f]{40})/", files[0])
    return Source(own, files, commits[0] if commits else own.revision)


def subsets(own: HubSet) -> list[str]:
    """The configurations of a data set, of which each is a subset."""
    root = copy_of(own)
    if root is not None:
        files = sorted(file.relative_to(root) for file in text_files(root))
        return list(dict.fromkeys(file.parts[0] if len(file.parts) > 1 else file.stem for file in files))
    import datasets
    return datasets.get_dataset_config_names(own.path, revision=own.revision)


def copy_of(own: HubSet) -> Path | None:
    """The folder with a set's files on this disk: of SUITE_HUB, or of the hub's cache if the hub may not be asked."""
    own_copy = Path(os.environ.get("SUITE_HUB", "")).expanduser() / own.path
    if os.environ.get("SUITE_HUB") and own_copy.is_dir():
        return own_copy
    import huggingface_hub
    if not huggingface_hub.is_offline_mode():
        return None
    try:
        return Path(huggingface_hub.snapshot_download(own.path, repo_type="dataset", revision=own.revision,
                                                      local_files_only=True))
    except (FileNotFoundError, ValueError) as error:
        raise SuiteError(f"{own.name} is not in the cache of HF_HOME, and HF_HUB_OFFLINE forbids asking the hub; download it "
                         f"(hf download --repo-type dataset {own.path}), or {remedy(own)}") from error


def commit_of(root: Path) -> str:
    """A folder of the hub's cache is named after its commit."""
    return root.name if root.parent.name == "snapshots" else "copy"


def copies(domains: Iterable[str]) -> list[list[Any]]:
    """What SUITE_HUB has of these domains: a corpus made from it is another one when its files change."""
    if not os.environ.get("SUITE_HUB"):
        return []
    roots = [(own, Path(os.environ["SUITE_HUB"]).expanduser() / own.path) for name in domains for own in DOMAINS[name].sets]
    return [[file.relative_to(root).as_posix(), (stat := file.stat()).st_size, stat.st_mtime_ns]
            for own, root in roots if root.is_dir() for file in files_of(root, own)]


def text_files(root: Path) -> Iterable[Path]:
    return (path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(root).parts))


def files_of(root: Path, own: HubSet) -> list[Path]:
    """The files of a configuration and split in a copy: those in its folder whose name or folder says the split; if no name
    says any split, all of them."""
    base = next((root / name for name in (own.folder, own.config) if name and (root / name).is_dir()), root)
    files = sorted(text_files(base))
    if base == root and own.config and (lone := [file for file in files if file.stem == own.config]):
        return lone

    def says(file: Path, splits: Iterable[str]) -> bool:
        return bool(re.search(rf"(^|/)({'|'.join(splits)})([-.]|/|$)", file.relative_to(base).as_posix()))
    said = [file for file in files if says(file, SPLITS)]
    return [file for file in said if says(file, (own.split,))] if said else files
