"""Text from the Hugging Face hub: where the files of a data set are. hub.yaml is the table of data sets.

Rows are read in a data set's own order. A copy on the disk is read in place of the hub: `SUITE_HUB=folder` has the
files of `owner/name` in `folder/owner/name`, as `hf download --repo-type dataset` puts them, or at any depth, as
.parquet, .jsonl or .txt; with `HF_HUB_OFFLINE=1` the cache of `HF_HOME` must have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lib.errors import SuiteError
from lib.paths import named_by

SUFFIXES = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}     # the reader of `datasets`
SPLITS = ("train", "validation", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class HubSet:
    """A configuration and split of a data set. A row is a document: its `columns`, joined by line breaks."""
    path: str                       # owner/name on the hub
    config: str = "default"
    split: str = "train"
    columns: Sequence[str] = ("text",)
    folder: str = ""                # of the configuration's files, where it is not named after the configuration
    revision: str = "main"
    begins: str = ""                # rows are lines: a document begins with one that this regular expression finds
    together: str = ""              # documents with the same text in this one of the columns are held out together
    finite: bool = False            # may have fewer tokens than were asked for
    licence: str = ""
    instead: str = ""               # what to do when it is gone or gated

    @property
    def name(self) -> str:
        return f"{self.path} ({self.config}, {self.split})"

    @property
    def remedy(self) -> str:
        return (f"put a copy into {self.path} of the folder that SUITE_HUB names ({self.instead}), or leave it out of "
                "the profile")


_TABLE = yaml.safe_load(Path(__file__).with_name("hub.yaml").read_text("utf-8"))
DOMAINS = {name: [HubSet(**fields) for fields in sets] for name, sets in _TABLE["domains"].items()}
EVALUATIONS = {name: HubSet(**fields) for name, fields in _TABLE["evaluations"].items()}


@dataclass(frozen=True)
class Source:
    """The files of a set in order, on the hub (`hf://`) or on this disk."""
    set: HubSet
    files: tuple[str, ...]
    revision: str                   # commit of the hub; `copy` for files that a person has put there
    root: Path | None = None        # of a copy on this disk

    @property
    def local(self) -> bool:
        return self.root is not None

    def name(self, file: str) -> str:
        """A file's name without machine or commit: the same wherever the file was read."""
        inside = Path(file).relative_to(self.root).as_posix() if self.root else re.sub(r"^hf://.*?@[^/]*/", "", file)
        return f"{self.set.path}/{inside}"

    def facts(self) -> dict[str, Any]:
        return {"dataset": self.set.path, "config": self.set.config, "split": self.set.split, "revision": self.revision,
                "licence": self.set.licence}

    def identity(self) -> list[list[Any]]:
        """What must not change between a killed build and its continuation."""
        return [[file, *size_and_time(Path(file))] if self.local else [file] for file in self.files]


def size_and_time(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def find(wanted: HubSet) -> Source:
    """Where the files of a set are. A SuiteError if a copy has none; errors of the hub and the network as they come."""
    if (root := copy_of(wanted)) is not None:
        files = files_of(root, wanted)
        if not files:
            raise SuiteError(f"{root} has no file of {wanted.name}: no {', '.join(SUFFIXES)} for the split "
                             f"{wanted.split!r}")
        commit = root.name if root.parent.name == "snapshots" else "copy"       # of the hub's cache, or a person's copy
        return Source(wanted, tuple(map(str, files)), commit, root)
    import datasets
    builder = datasets.load_dataset_builder(wanted.path, wanted.config or None, revision=wanted.revision)
    splits = builder.config.data_files or {}
    if wanted.split not in splits:
        known = ", ".join(map(str, splits))
        raise SuiteError(f"{wanted.name}: the hub has no split {wanted.split!r} (known: {known}); {wanted.remedy}")
    files = tuple(map(str, splits[wanted.split]))
    return Source(wanted, files, next(iter(re.findall(r"@([0-9a-f]{40})/", files[0])), wanted.revision))


def subsets(wanted: HubSet) -> list[str]:
    """The configurations of a data set, of which each is a subset."""
    if (root := copy_of(wanted)) is not None:
        files = [file.relative_to(root) for file in text_files(root)]
        return list(dict.fromkeys(file.parts[0] if len(file.parts) > 1 else file.stem for file in files))
    import datasets
    return datasets.get_dataset_config_names(wanted.path, revision=wanted.revision)


def put_there(wanted: HubSet) -> Path | None:
    hub = named_by("SUITE_HUB")
    return hub / wanted.path if hub and (hub / wanted.path).is_dir() else None


def copy_of(wanted: HubSet) -> Path | None:
    """The folder with a set's files on this disk: of SUITE_HUB, or of the hub's cache if the hub may not be asked."""
    import huggingface_hub
    if (folder := put_there(wanted)) or not huggingface_hub.is_offline_mode():
        return folder
    try:
        return Path(huggingface_hub.snapshot_download(wanted.path, repo_type="dataset", revision=wanted.revision,
                                                      local_files_only=True))
    except (FileNotFoundError, ValueError) as error:
        raise SuiteError(f"{wanted.name} is not in the cache of HF_HOME, and HF_HUB_OFFLINE forbids asking the hub; "
                         f"download it (hf download --repo-type dataset {wanted.path}), or {wanted.remedy}") from error


def copies(domains: Iterable[str]) -> list[list[Any]]:
    """Name, size and time of the files that SUITE_HUB has of these domains: other files make another corpus."""
    return [[file.relative_to(root).as_posix(), *size_and_time(file)] for name in domains for wanted in DOMAINS[name]
            if (root := put_there(wanted)) for file in files_of(root, wanted)]


def text_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file()
                  and not any(part.startswith(".") for part in path.relative_to(root).parts))


def files_of(root: Path, wanted: HubSet) -> list[Path]:
    """The files of a configuration and split in a copy.

    They lie in the configuration's folder, and their name or folder says the split; if no name does, all are taken.
    """
    names = (name for name in (wanted.folder, wanted.config) if name)
    base = next((root / name for name in names if (root / name).is_dir()), root)
    files = text_files(base)
    if base == root and wanted.config and (lone := [file for file in files if file.stem == wanted.config]):
        return lone

    def says(file: Path, *splits: str) -> bool:
        return bool(re.search(rf"(^|/)({'|'.join(splits)})([-.]|/|$)", file.relative_to(base).as_posix()))
    said = [file for file in files if says(file, *SPLITS)]
    return [file for file in said if says(file, wanted.split)] if said else files
