"""Build a corpus, or open it if it exists: `python -m suite corpus --profile small [--corpus folder]`.

Documents are read in a seeded order until there are enough, copies are left out, and the rest is split and written as
tokens, into a temporary folder that is renamed at the end: a corpus is complete or absent. Reading the hub takes hours,
so a build from the hub that was killed resumes (`data_prep.hub_build`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep import folder, mathematics, sources, stories, tokenizer
from data_prep.clean import Duplicates
from data_prep.config import LEAST, CorpusConfig, Say
from data_prep.sources import Document
from lib import paths
from lib.config import fingerprint
from lib.data import SPLITS, Corpus, load_tokenizer
from lib.errors import SuiteError
from lib.files import write_atomically

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH = 128             # documents compared at once
HELDOUT = 0.1           # held-out share, by bytes, of a folder that has less text than was asked for
RUN = 8                 # neighbouring documents that are held out together, so that long windows stay in one place
SLICE = 256                     # documents encoded before they are written
SUFFIXES = (".py", ".yaml", ".txt")      # of the files here that decide what is in offline and folder text
HUB_CODE = ("hub.py", "hub.yaml", "hub_build.py", "hub_reader.py", "tokenizer.py")     # and hub text
Files = dict[str, list[Path]]   # of a person's folder, by domain


def corpus(config: CorpusConfig, say: Say | None = None) -> Corpus:
    """The corpus of `config`: opened if it exists, otherwise built under a lock.

    Raises a SuiteError when the text is unreadable or too short, or the disk too full; nothing is left behind then.
    """
    say = say or (lambda line: None)
    files, notes = folder.domains(config.folder) if config.folder else ({}, [])
    path = paths.corpora() / _key(config, files)
    if not (path / "manifest.json").is_file():
        _build_alone(config, files, notes, path, say)
    return Corpus(path)


def existing(config: CorpusConfig) -> Corpus | None:
    """The corpus of `config` if it was built before, else None; nothing is built."""
    path = paths.corpora() / _key(config, folder.domains(config.folder)[0] if config.folder else {})
    return Corpus(path) if (path / "manifest.json").is_file() else None


def _key(config: CorpusConfig, files: Files) -> str:
    """Hash of what a corpus is made from: configuration, text (by version, or by name, size and time), and this folder.

    Hub text takes hours to read, so only the code that decides what is in it counts.
    """
    import tokenizers
    here = Path(__file__).parent
    code = [file for file in sorted(here.iterdir())
            if (file.name in HUB_CODE if config.hub else file.suffix in SUFFIXES)]
    if config.hub:
        from data_prep import hub
        text = [config.domains, config.tokenizer, hub.copies(config.domains)]
    elif files:
        text = [[domain, str(file), (stat := file.stat()).st_size, stat.st_mtime_ns]
                for domain, paths in files.items() for file in paths]
    else:
        text = sorted(sources.versions().items())
    numbers = [config.vocab, config.train_tokens, config.heldout_tokens, config.seed]
    return fingerprint(numbers, text, list(map(_checksum, code)), tokenizers.__version__, sys.version_info[:2])


def _build_alone(config: CorpusConfig, files: Files, notes: list[str], path: Path, say: Say) -> None:
    """Build under the lock of this corpus, unless another process built it meanwhile.

    The kernel frees the lock of a dead owner.
    """
    from filelock import FileLock, Timeout
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.parent / f".{path.name}.lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        say("another process builds this corpus; waiting for it")
        held = lock.acquire()
    with held:
        if (path / "manifest.json").is_file():
            return
        work = path.parent / f".building-{path.name}"
        if not config.hub:
            shutil.rmtree(work, ignore_errors=True)     # left by a killed build
        _require_space(config, len(config.domains) or max(len(files), 4), path.parent, work)
        work.mkdir(exist_ok=True)
        try:
            if config.hub:
                _build_from_hub(config, work, say)
            else:
                _build(config, files, notes, work, say)
            os.replace(work, path)
        finally:
            if not config.hub:                          # a later build resumes from it
                shutil.rmtree(work, ignore_errors=True)


def _require_space(config: CorpusConfig, domains: int, place: Path, work: Path) -> None:
    """Raise a SuiteError unless the disk has room for the tokens and, for hub text, a record of 40 bytes a document of
    100 tokens or more; what `work` holds already is subtracted."""
    width = np.dtype(tokenizer.token_type(config.vocab)).itemsize + (0.4 if config.hub else 0)
    there = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    needed = domains * (config.train_tokens + config.heldout_tokens) * width + 50_000_000 - there
    free = shutil.disk_usage(place).free
    if free < needed:
        raise SuiteError(f"{place} has {free / 1e6:.0f} MB free; the corpus needs up to {needed / 1e6:.0f} MB. "
                         "Free some, or set SUITE_OUTPUTS to a folder on another disk")


def _build(config: CorpusConfig, files: Files, notes: list[str], work: Path, say: Say) -> None:
    domains = folder_domains(config, files, notes) if files else offline_domains(config)
    parts = {}
    for domain in domains:
        say(f"reading {domain.name}")
        parts[domain.name] = split(domain, config)
    say(f"training the tokeniser ({config.vocab} pieces)")
    pieces = tokenizer.train((text for training, _ in parts.values()
                              for text in tokenizer.beginning(document.text for document in training)), config.vocab)
    pieces.save(str(work / "tokenizer.json"))
    facts = {}
    for domain in domains:
        say(f"encoding {domain.name}")
        training, heldout = parts.pop(domain.name)
        writers = {"heldout": Part(work, domain, "heldout", config.heldout_tokens, pieces, config.vocab),
                   "train": Part(work, domain, "train", config.train_tokens, pieces, config.vocab)}
        writers["heldout"].add(heldout)
        writers["train"].add(training)
        while writers["train"].missing and (more := domain.take(writers["train"].missing, config.vocab)):
            writers["train"].add(more)
        facts[domain.name] = {name: writer.finish() for name, writer in writers.items()}
        facts[domain.name]["removed"] = dict(sorted(domain.removed.items()))
        _require_counts(config, domain, {name: facts[domain.name][name]["tokens"] for name in SPLITS})
    _write_manifest(config, facts, pieces.get_vocab_size(), notes, work)


def _build_from_hub(config: CorpusConfig, work: Path, say: Say) -> None:
    from data_prep import hub_build
    if not (work / "manifest.json").is_file():
        facts, more = hub_build.build(config, work, say)
        say("computing checksums")
        pieces = load_tokenizer(work / "tokenizer.json").get_vocab_size()
        _write_manifest(config, facts, pieces, hub_build.shortages(config, facts), work, more)
    for hidden in work.rglob(".*"):
        hidden.unlink()


class Domain:
    """Hands out a domain's documents in order, each once, until it is `exhausted`; `removed` counts those left out.

    `files` are those of a person's folder; the offline corpus has none.
    """

    def __init__(self, name: str, documents: Iterator[Document], removed: Counter[str] | None = None,
                 files: Sequence[Path] = ()) -> None:
        self.name, self.files, self.exhausted = name, files, False
        self.removed: Counter[str] = Counter() if removed is None else removed
        self._documents, self._duplicates = documents, Duplicates(self.removed, "documents")

    def take(self, tokens: int, vocab: int) -> list[Document]:
        """The next documents: as many as make up `tokens`, or rather more; fewer where the domain ends."""
        missing, taken = tokens * bytes_a_token(vocab), []
        while missing > 0 and (batch := self._batch(missing)):
            fresh = list(itertools.compress(batch, self._duplicates.fresh([document.text for document in batch])))
            taken += fresh
            missing -= size(fresh)
        return taken

    def _batch(self, characters: float) -> list[Document]:
        batch = []
        for document in self._documents:
            batch.append(document)
            characters -= len(document.text)
            if len(batch) == BATCH or characters <= 0:
                return batch
        self.exhausted = True
        return batch


def size(documents: Sequence[Document]) -> int:
    """Bytes of the texts in UTF-8."""
    return sum(len(document.text.encode()) for document in documents)


def bytes_a_token(vocab: int) -> float:
    """Bytes a token that no domain exceeds by much: 2.0 at 512 pieces, 2.8 at 2048, 4.4 at 32,768."""
    return 0.4 * math.log2(vocab) - 1.6


def offline_domains(config: CorpusConfig) -> list[Domain]:
    """The domains of the offline corpus: two of installed libraries, two of generators."""
    result = []
    for name, read in (("docs", sources.docs), ("code", sources.code)):
        removed: Counter[str] = Counter()
        result.append(Domain(name, read(config.seed, removed), removed))
    return [*result, Domain("stories", stories.stories(config.seed)),
            Domain("math", mathematics.worksheets(config.seed))]


def folder_domains(config: CorpusConfig, files: dict[str, list[Path]], notes: list[str]) -> list[Domain]:
    """The domains of a person's folder; the order of their files is random, given the seed."""
    root = Path(config.folder).expanduser().resolve()

    def order(path: Path) -> bytes:
        return hashlib.sha256(f"{config.seed}/{path.relative_to(root).as_posix()}".encode()).digest()
    return [Domain(name, folder.documents(root, sorted(paths, key=order), notes), files=paths)
            for name, paths in sorted(files.items())]


def split(domain: Domain, config: CorpusConfig) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents.

    Offline the first documents are held out: their order is random already. A folder's documents keep their order, and
    seeded runs of neighbours are held out: `heldout_tokens`, or a tenth where text is scarce.
    """
    documents = domain.take(config.train_tokens + config.heldout_tokens, config.vocab)
    sizes = np.array([size([document]) for document in documents], np.int64)
    if not domain.files and sizes.sum() < config.train_tokens + config.heldout_tokens:
        raise SuiteError(f"train_tokens = {config.train_tokens} is not valid: domain {domain.name!r} of the offline "
                         f"corpus has {sizes.sum() / 1e6:.0f} MB of text, fewer tokens than that; ask for less, or "
                         "give a folder")
    order = np.arange(len(documents))
    most = 1.5 * config.heldout_tokens * bytes_a_token(config.vocab)      # the held-out split is not topped up later
    if domain.files:
        run = max(1, min(RUN, len(documents) // 24))
        rank = np.random.default_rng(config.seed).permutation(len(documents) // run + 1)[order // run]
        order = np.argsort(rank, kind="stable")
        if domain.exhausted:
            most = min(most, HELDOUT * sizes.sum())
    before = np.cumsum(sizes[order]) - sizes[order]
    held = set(order[before < most].tolist())
    return ([document for at, document in enumerate(documents) if at not in held],
            [document for at, document in enumerate(documents) if at in held])


class Part:
    """The files of one split of one domain, written as documents come, up to `most` tokens; the last one may be cut."""

    def __init__(self, work: Path, domain: Domain, split: str, most: int, pieces: Tokenizer, vocab: int) -> None:
        self.missing = most
        self._stem = f"{work}/{split}-{domain.name}"
        self._pieces, self._type = pieces, tokenizer.token_type(vocab)
        self._names: list[str] = []
        self._lengths: list[int] = []
        self._bytes = 0
        Path(f"{self._stem}.bin").write_bytes(b"")

    def add(self, documents: Sequence[Document]) -> None:
        """Encode and append documents, a slice at a time, until no tokens are missing."""
        for start in range(0, len(documents), SLICE):
            if not self.missing:
                return
            few = documents[start:start + SLICE]
            with open(f"{self._stem}.bin", "ab") as file:
                for document, tokens in zip(few, tokenizer.encode(self._pieces, [d.text for d in few]), strict=True):
                    kept = tokens[:self.missing].astype(self._type)
                    if not len(kept):
                        return
                    file.write(kept.tobytes())
                    self._names.append(document.name)
                    self._lengths.append(len(kept))
                    self._bytes += len(document.text.encode()) * len(kept) // len(tokens)
                    self.missing -= len(kept)

    def finish(self) -> dict[str, int]:
        """Write where the documents start and what they are called; returns counts."""
        lengths = np.array(self._lengths, np.int64)
        np.save(f"{self._stem}.starts.npy", np.cumsum(lengths) - lengths)
        Path(f"{self._stem}.names.json").write_text(json.dumps(self._names, ensure_ascii=False), "utf-8")
        return {"documents": len(lengths), "tokens": int(lengths.sum()), "bytes": self._bytes}


def _require_counts(config: CorpusConfig, domain: Domain, there: dict[str, int]) -> None:
    """Raise a SuiteError unless an offline domain has the tokens asked for, and a folder's domain enough to train and
    evaluate on."""
    asked = {"train": config.train_tokens, "heldout": config.heldout_tokens}
    least = {part: min(LEAST[part], asked[part]) if domain.files else asked[part] for part in SPLITS}
    short = [part for part in SPLITS if there[part] < least[part]]
    if short and domain.files:
        files = ", ".join(map(str, domain.files[:3])) + (" and others" if len(domain.files) > 3 else "")
        raise SuiteError(f"domain {domain.name!r} is too short: {there['train']} training and {there['heldout']} "
                         f"held-out tokens without copies; at least {least['train']} and {least['heldout']} are "
                         f"needed. Add text to {files}")
    for part in short:
        raise SuiteError(f"{part}_tokens = {asked[part]} is not valid: domain {domain.name!r} of the offline corpus "
                         f"has {there[part]} at vocab = {config.vocab}; ask for at most that, or give CORPUS=folder")


def _write_manifest(config: CorpusConfig, facts: dict, pieces: int, notes: list[str], work: Path,
                    more: dict[str, Any] | None = None) -> None:
    """Write manifest.json, the last of the files: its presence says that the others are complete."""
    import tokenizers
    omitted = ("folder",) if config.hub else ("folder", "hub", "apart", "tokenizer")
    libraries = {} if config.folder or config.hub else sources.versions()
    manifest = {
        "source": "folder" if config.folder else "hub" if config.hub else "offline",
        "config": {name: value for name, value in dataclasses.asdict(config).items() if name not in omitted},
        "pieces": pieces,
        "token_type": np.dtype(tokenizer.token_type(config.vocab)).name,
        "domains": facts,
        "files": {file.relative_to(work).as_posix(): {"size": file.stat().st_size, "sha256": _checksum(file)}
                  for file in sorted(work.rglob("[!.]*")) if file.is_file()},
        "versions": {"tokenizers": tokenizers.__version__, **libraries},
        "notes": sorted(notes),
        **(more or {}),
    }
    write_atomically(work / "manifest.json", (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def table(built: Corpus) -> str:
    """Documents, tokens and bytes a token of each domain, and what was left out, as text."""
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
