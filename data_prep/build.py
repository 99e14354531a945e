"""Build a corpus, or open it when it is there: `python -m suite corpus --profile small [--corpus folder]`.

Documents are read in a seeded order until there are enough, copies left out, split, and written as tokens. All of it happens
in a temporary folder that gets its name by one move at the end: a corpus is whole or not there. Text from the hub, which takes
hours, goes on where a killed build left it (`data_prep.hub_build`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from data_prep import folder, tokenizer
from data_prep.config import CorpusConfig
from data_prep.supply import (LEAST, TOKENIZER_BYTES, Domain, folder_domains,
                              offline_domains, split)
from lib import paths
from lib.config import fingerprint
from lib.data import SPLITS, Corpus
from lib.errors import SuiteError
from lib.files import write_atomically

if TYPE_CHECKING:
    from datasets import Dataset
    from tokenizers import Tokenizer

SLICE = 4096                    # documents encoded before they are written
Say = Callable[[str], None]


def corpus(config: CorpusConfig, say: Say | None = None) -> Corpus:
    """The corpus of `config`: opened if it was built before, otherwise built under a lock. `say` is told what happens.

    Raises a SuiteError when the text is unreadable or too short, or the disk too full; nothing is left behind then.
    """
    say = say or (lambda line: None)
    found, notes = folder.domains(config.folder) if config.folder else ({}, [])
    key = _key(config, found)
    path = paths.corpora() / key
    if not (path / "manifest.json").is_file():
        _build_alone(config, found, notes, path, say)
    return Corpus(path)


def existing(config: CorpusConfig) -> Corpus | None:
    """The corpus of `config` if it was built before, else None; nothing is built."""
    path = paths.corpora() / _key(config, folder.domains(config.folder)[0] if config.folder else {})
    return Corpus(path) if (path / "manifest.json").is_file() else None


def _key(config: CorpusConfig, found: dict[str, list[Path]]) -> str:
    """Of all that the corpus is made from: configuration, text (by version, or by name, size and time), and this code; of text
    from the hub, which takes hours, only the code that decides what is in it."""
    import tokenizers
    own = [Path(__file__).parent / f"{name}.py" for name in ("hub", "hub_reader", "hub_build", "hub_evals", "tokenizer")]
    program = [hashlib.sha256(file.read_bytes()).hexdigest()
               for file in (own if config.hub else sorted(Path(__file__).parent.glob("*.py")))]
    if config.hub:
        from data_prep import hub
        text = [config.domains, config.tokenizer, hub.copies(config.domains)]
    elif found:
        text = [[domain, str(file), (stat := file.stat()).st_size, stat.st_mtime_ns]
                for domain, files in found.items() for file in files]
    else:
        from data_prep import sources
        text = sorted(sources.versions().items())
    numbers = [config.vocab, config.train_tokens, config.heldout_tokens, config.seed]
    return fingerprint(numbers, text, program, tokenizers.__version__, sys.version_info[:2])


def _build_alone(config: CorpusConfig, found: dict[str, list[Path]], notes: list[str], path: Path, say: Say) -> None:
    """Hold the lock of this corpus; build it unless somebody else did so meanwhile. The kernel frees a dead owner's lock."""
    from filelock import FileLock, Timeout
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.parent / f".{path.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another process builds this corpus; waiting for it")
        lock.acquire()
    try:
        if (path / "manifest.json").is_file():
            return
        work = path.parent / f".building-{path.name}"
        if not config.hub:
            shutil.rmtree(work, ignore_errors=True)     # what a killed build left
        _require_space(config, len(config.domains) or max(len(found), 4), path.parent, work)
        work.mkdir(exist_ok=True)
        try:
            with _no_bars():
                (_build_from_hub if config.hub else _build)(config, found, notes, work, say)
            os.replace(work, path)
        finally:
            if not config.hub:                          # the next try goes on with it
                shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()


@contextmanager
def _no_bars() -> Iterator[None]:
    """Those of `datasets` would come by the hundred; `say` reports instead."""
    import datasets
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _require_space(config: CorpusConfig, domains: int, place: Path, work: Path) -> None:
    """For the tokens, and of hub text for a record of some 40 bytes a document, 100 tokens at least; less what is there."""
    width = np.dtype(tokenizer.token_type(config.vocab)).itemsize + (0.4 if config.hub else 0)
    there = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    needed = domains * (config.train_tokens + config.heldout_tokens) * width + 50_000_000 - there
    free = shutil.disk_usage(place).free
    if free < needed:
        raise SuiteError(f"{place} has {free / 1e6:.0f} MB free; the corpus needs up to {needed / 1e6:.0f} MB. Free some, "
                         "or set SUITE_OUTPUTS to a folder on another disk")


def _build(config: CorpusConfig, found: dict[str, list[Path]], notes: list[str], work: Path, say: Say) -> None:
    domains = folder_domains(config, found, notes) if found else offline_domains(config)
    parts = {}
    for domain in domains:
        say(f"reading {domain.name}")
        parts[domain.name] = split(domain, config)
    say(f"training the tokeniser ({config.vocab} pieces)")
    pieces = tokenizer.train((text for training, _ in parts.values() for text in _first(training["text"])), config.vocab)
    pieces.save(str(work / "tokenizer.json"))
    facts = {}
    for domain in domains:
        say(f"encoding {domain.name}")
        training, heldout = parts.pop(domain.name)
        writers = {"heldout": Part(work, domain, "heldout", config.heldout_tokens, pieces, config.vocab),
                   "train": Part(work, domain, "train", config.train_tokens, pieces, config.vocab)}
        writers["heldout"].add(heldout)
        writers["train"].add(training)
        while writers["train"].missing and len(more := domain.take(writers["train"].missing, config.vocab)):
            writers["train"].add(more)
        facts[domain.name] = {name: writer.finish() for name, writer in writers.items()}
        facts[domain.name]["removed"] = dict(sorted(domain.removed.items()))
        _require_counts(config, domain, {name: facts[domain.name][name]["tokens"] for name in SPLITS})
    _write_manifest(config, facts, pieces.get_vocab_size(), notes, work)


def _build_from_hub(config: CorpusConfig, found: dict[str, list[Path]], notes: list[str], work: Path, say: Say) -> None:
    from data_prep import hub_build
    if not (work / "manifest.json").is_file():
        facts, more = hub_build.build(config, work, say)
        notes += hub_build.shortages(config, facts)
        pieces = tokenizer.load(work / "tokenizer.json").get_vocab_size()
        say("computing checksums")
        _write_manifest(config, facts, pieces, notes, work, more)
    for hidden in work.rglob(".*"):
        hidden.unlink()


def _first(texts: list[str]) -> list[str]:
    """As many of the texts as make up TOKENIZER_BYTES."""
    ends = np.cumsum([len(text.encode()) for text in texts])
    return texts[:int(np.searchsorted(ends, TOKENIZER_BYTES)) + 1]


class Part:
    """The files of one split of one domain, written as documents come, up to `most` tokens; the last document may be cut."""

    def __init__(self, work: Path, domain: Domain, split: str, most: int, pieces: Tokenizer, vocab: int) -> None:
        self.missing = most
        self._stem = work / f"{split}-{domain.name}"
        self._pieces, self._type = pieces, tokenizer.token_type(vocab)
        self._names: list[str] = []
        self._lengths: list[int] = []
        self._bytes = 0
        self._name(".bin").unlink(missing_ok=True)

    def _name(self, suffix: str) -> Path:
        return self._stem.with_name(self._stem.name + suffix)       # the domain's own name may have dots

    def add(self, documents: Dataset) -> None:
        """Encode and append as many as are still missing, a slice at a time."""
        for start in range(0, len(documents), SLICE):
            if not self.missing:
                return
            rows = documents.select(range(start, min(start + SLICE, len(documents))))
            encoded = rows.map(lambda texts: {"tokens": tokenizer.encode(self._pieces, texts)}, input_columns="text",
                               batched=True, batch_size=256, keep_in_memory=True, new_fingerprint=f"{start}")
            with self._name(".bin").open("ab") as file:
                for row in encoded.with_format("numpy"):
                    self._append(file, str(row["name"]), str(row["text"]), row["tokens"])

    def _append(self, file: BinaryIO, name: str, text: str, tokens: np.ndarray) -> None:
        if self.missing:
            kept = tokens[:self.missing].astype(self._type)
            file.write(kept.tobytes())
            self._names.append(name)
            self._lengths.append(len(kept))
            self._bytes += len(text.encode()) * len(kept) // len(tokens)
            self.missing -= len(kept)

    def finish(self) -> dict[str, int]:
        """Write where the documents start and what they are called; returns counts."""
        lengths = np.array(self._lengths, np.int64)
        np.save(self._name(".starts.npy"), np.cumsum(lengths) - lengths)
        self._name(".names.json").write_text(json.dumps(self._names, ensure_ascii=False), "utf-8")
        self._name(".bin").touch()
        return {"documents": len(lengths), "tokens": int(lengths.sum()), "bytes": self._bytes}


def _require_counts(config: CorpusConfig, domain: Domain, there: dict[str, int]) -> None:
    """Offline: exactly what was asked for. A person's own text: enough to train and to evaluate on."""
    asked = {"train": config.train_tokens, "heldout": config.heldout_tokens}
    if domain.files:
        least = {part: min(LEAST[part], asked[part]) for part in SPLITS}
        if any(there[part] < least[part] for part in SPLITS):
            files = ", ".join(map(str, domain.files[:3])) + (" and others" if len(domain.files) > 3 else "")
            raise SuiteError(f"domain {domain.name!r} is too short: {there['train']} training and {there['heldout']} "
                             f"held-out tokens without copies; at least {least['train']} and {least['heldout']} are "
                             f"needed. Add text to {files}")
        return
    for part in SPLITS:
        if there[part] < asked[part]:
            raise SuiteError(f"{part}_tokens = {asked[part]} is not valid: domain {domain.name!r} of the offline corpus has "
                             f"{there[part]} at vocab = {config.vocab}; ask for at most that, or give CORPUS=folder")
    assert there == asked, (domain.name, there, asked)


def _write_manifest(config: CorpusConfig, facts: dict, pieces: int, notes: list[str], work: Path,
                    more: dict[str, Any] | None = None) -> None:
    """Last of the files: its presence says that the others are whole."""
    import tokenizers

    from data_prep import sources
    of_hub = () if config.hub else ("hub", "apart", "tokenizer")
    manifest = {
        "source": "folder" if config.folder else "hub" if config.hub else "offline",
        "config": {name: value for name, value in dataclasses.asdict(config).items() if name not in ("folder", *of_hub)},
        "pieces": pieces,
        "token_type": np.dtype(tokenizer.token_type(config.vocab)).name,
        "domains": facts,
        "files": {file.relative_to(work).as_posix(): {"size": file.stat().st_size, "sha256": _checksum(file)}
                  for file in sorted(work.rglob("[!.]*")) if file.is_file()},
        "versions": {"tokenizers": tokenizers.__version__, **({} if config.folder or config.hub else sources.versions())},
        "notes": sorted(notes),
        **(more or {}),
    }
    write_atomically(work / "manifest.json", (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def table(built: Corpus) -> str:
    """Documents, tokens and bytes a token of each domain, and what was left out."""
    lines = [f"{'domain':<16}{'split':<9}{'documents':>10}{'tokens':>12}{'bytes/token':>13}"]
    for name, facts in built.manifest["domains"].items():
        for part in SPLITS:
            counts = facts[part]
            ratio = counts["bytes"] / counts["tokens"]
            lines.append(f"{name:<16}{part:<9}{counts['documents']:>10,}{counts['tokens']:>12,}{ratio:>13.2f}")
        if facts["removed"]:
            left_out = ", ".join(f"{count:,} {kind}" for kind, count in facts["removed"].items())
            lines.append(f"{'':<16}left out: {left_out}")
    return "\n".join(lines)
