"""Build a corpus, or open it if it exists: `python -m suite corpus --profile small [--corpus folder]`.

Documents are read in a seeded order until there are enough, copies are left out, and the rest is split and written as
tokens, into a temporary folder that is renamed at the end: a corpus is complete or absent. Reading the hub takes hours,
so a build from the hub that was killed resumes (`data_prep.hub_build`).
"""

import dataclasses
import hashlib
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import compress, count
from pathlib import Path

import numpy as np
import tokenizers

from data_prep import folder, hub, mathematics, sources, stories, tokenizer
from data_prep.clean import Duplicates
from data_prep.config import CorpusConfig, Say
from data_prep.sources import Document
from lib import paths
from lib.config import fingerprint
from lib.data import SPLITS, Corpus, load_tokenizer
from lib.errors import SuiteError
from lib.files import FULL, unwritable, write_atomically

BATCH = 128             # documents compared at once
HELDOUT = 0.1           # held-out share, by bytes, of a folder that has less text than was asked for
RUN = 8                 # neighbouring documents that are held out together, so that long windows stay in one place
SLICE = 256             # documents encoded before they are written
SUFFIXES = (".py", ".yaml", ".txt")      # of the files here that decide what is in offline and folder text
HUB_CODE = ("hub.py", "hub.yaml", "hub_build.py", "tokenizer.py")     # and hub text
Files = dict[str, list[Path]]   # of a person's folder, by domain


@contextmanager
def in_one_line() -> Iterator[None]:
    """An error of the file system as a SuiteError: a file that is gone, unreadable or damaged, a full disk."""
    try:
        yield
    except OSError as error:
        raise SuiteError(f"{error.filename or paths.corpora()}: {error.strerror or error}; the corpus needs it, mend "
                         "that and run again") from error


@in_one_line()
def corpus(config: CorpusConfig, say: Say | None = None) -> Corpus:
    """The corpus of `config`: opened if it exists and is whole, otherwise built under a lock.

    Raises a SuiteError when the text is unreadable or too short, or the disk too full; nothing is left behind then.
    """
    files, unread = folder.domains(config.folder) if config.folder else ({}, [])
    path, say = paths.corpora() / _key(config, files), say or (lambda line: None)
    built = _found(path, config, say) or _build_alone(config, files, path, say)
    notes = [note for note in built.manifest["notes"] if not note.startswith(folder.UNREAD)] + unread
    if notes != built.manifest["notes"]:                # what is not read changes without the text
        built.manifest["notes"] = notes
        _save(built.manifest, path)
    return built


@in_one_line()
def existing(config: CorpusConfig) -> Corpus | None:
    """The corpus of `config` if it was built before and is whole, else None; nothing is built."""
    path = paths.corpora() / _key(config, folder.domains(config.folder)[0] if config.folder else {})
    return _found(path, config, lambda line: None)


def _found(path: Path, config: CorpusConfig, say: Say) -> Corpus | None:
    """The corpus in `path`, None if it is absent or damaged. Hub text takes hours to read: if that is damaged, a
    SuiteError leaves it to the person to delete it."""
    try:
        return whole(path) if (path / "manifest.json").is_file() else None
    except SuiteError as damage:
        if config.hub:
            raise
        say(f"{str(damage).partition(';')[0]}; building it again")
        return None


def whole(path: Path) -> Corpus:
    """The corpus of a folder; a SuiteError if a file is missing or damaged (of tokens: if it has another size)."""
    file = path / "manifest.json"
    try:
        corpus = Corpus(path)
        for name, facts in corpus.manifest["files"].items():
            file = path / name
            if file.suffix != ".bin" and _checksum(file) != facts["sha256"]:
                raise LookupError(name)
    except SuiteError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise SuiteError(f"{file} is missing or damaged; delete {path}, it will be built again") from None
    return corpus


def _key(config: CorpusConfig, files: Files) -> str:
    """Hash of what a corpus is made from: configuration, text (by version, or by name, size and time), and this folder.

    Hub text takes hours to read, so only the code that decides what is in it counts.
    """
    code = [file for file in sorted(Path(__file__).parent.iterdir())
            if (file.name in HUB_CODE if config.hub else file.suffix in SUFFIXES)]
    if config.hub:
        text = [config.domains, config.tokenizer, hub.copies(config.domains)]
    elif files:
        text = [[domain, str(file), *hub.size_and_time(file)] for domain, paths in files.items() for file in paths]
    else:
        text = sorted(sources.versions().items())
    numbers = [config.vocab, config.train_tokens, config.heldout_tokens, config.seed]
    return fingerprint(numbers, text, list(map(_checksum, code)), tokenizers.__version__, sys.version_info[:2])


def _build_alone(config: CorpusConfig, files: Files, path: Path, say: Say) -> Corpus:
    """Build under the lock of this corpus, unless another process built it meanwhile.

    The kernel frees the lock of a dead owner.
    """
    from filelock import FileLock, Timeout
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, work = FileLock(path.parent / f".{path.name}.lock"), path.parent / f".building-{path.name}"
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        say("another process builds this corpus; waiting for it")
        held = lock.acquire()
    with held, ExitStack() as cleaning:
        if built := _found(path, config, lambda line: None):
            return built
        if not config.hub:                              # a later build from the hub resumes from what is there
            shutil.rmtree(work, ignore_errors=True)     # left by a killed build
            cleaning.callback(shutil.rmtree, work, ignore_errors=True)
        _require_space(config, len(config.domains) or max(len(files), 4), work)
        work.mkdir(exist_ok=True)
        try:
            if config.hub:
                _build_from_hub(config, work, say)
            else:
                _build(config, files, work, say)
            shutil.rmtree(path, ignore_errors=True)     # a damaged one
            os.replace(work, path)
        except OSError as error:                        # numpy and Python say that the disk is full, not which file is
            raise unwritable(path, error) if error.errno in FULL else error from None
        return whole(path)


def _require_space(config: CorpusConfig, domains: int, work: Path) -> None:
    """Raise a SuiteError unless the disk has room for the tokens; for hub text twice, as chunks and joined, and for 80
    bytes a document of 100 tokens or more. What `work` holds already is subtracted."""
    width = np.dtype(tokenizer.token_type(config.vocab)).itemsize
    there = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    needed = domains * sum(config.asked.values()) * (2 * width + 0.8 if config.hub else width) + 50_000_000 - there
    free = shutil.disk_usage(work.parent).free
    if free < needed:
        raise SuiteError(f"{work.parent} has {free / 1e6:.0f} MB free; the corpus needs up to {needed / 1e6:.0f} MB. "
                         "Free some, or set SUITE_OUTPUTS to a folder on another disk")


def _build(config: CorpusConfig, files: Files, work: Path, say: Say) -> None:
    notes: list[str] = []
    domains, parts, facts = domains_of(config, files, notes), {}, {}
    for domain in domains:
        say(f"reading {domain.name}")
        parts[domain.name] = split(domain, config)
    say(f"training the tokeniser ({config.vocab} pieces)")
    pieces = tokenizer.train((text for training, _ in parts.values()
                              for text in tokenizer.beginning(document.text for document in training)), config.vocab)
    write_atomically(work / "tokenizer.json", pieces.to_str(pretty=True).encode())
    for domain in domains:
        say(f"encoding {domain.name}")
        training, heldout = parts.pop(domain.name)
        facts[domain.name] = {"heldout": write(work, domain, "heldout", heldout, pieces, config),
                              "train": write(work, domain, "train", training, pieces, config),
                              "removed": dict(sorted(domain.removed.items()))}
        some = ", ".join(map(str, domain.files[:3])) + (" and others" if len(domain.files) > 3 else "")
        remedy = f"add text to {some}" if files else "ask for less, or give CORPUS=folder"
        config.require_enough(domain.name, facts[domain.name], bool(files), remedy)
    _write_manifest(config, facts, notes, work)


def _build_from_hub(config: CorpusConfig, work: Path, say: Say) -> None:
    from data_prep import hub_build
    if not (work / "manifest.json").is_file():
        facts, more = hub_build.build(config, work, say)
        say("computing checksums")
        notes = [f"{name} has {train:,} training and {heldout:,} held-out tokens in all, fewer than were asked for"
                 for name, counts in facts.items() for train, heldout in [[counts[split]["tokens"] for split in SPLITS]]
                 if (train, heldout) != (config.train_tokens, config.heldout_tokens)]
        _write_manifest(config, facts, notes, work, more)
    for hidden in work.rglob(".*"):
        hidden.unlink()


class Domain:
    """Hands out a domain's documents in order, each once, until it is `exhausted`; `removed` counts those left out.

    `files` are those of a person's folder, and `rows` counts what was read of them; the offline corpus has neither.
    """

    def __init__(self, name: str, documents: Iterator[Document], removed: Counter[str] | None = None,
                 files: Sequence[Path] = (), rows: folder.Rows | None = None) -> None:
        self.name, self.files, self.rows, self.exhausted = name, files, rows, False
        self.removed: Counter[str] = Counter() if removed is None else removed
        self._documents, self._duplicates = documents, Duplicates(self.removed, "documents")

    def take(self, tokens: int, vocab: int) -> list[Document]:
        """The next documents: as many as make up `tokens`, or rather more; fewer where the domain ends."""
        missing, taken = tokens * bytes_a_token(vocab), []
        while missing > 0 and not self.exhausted:
            batch, characters = [], missing
            while len(batch) < BATCH and characters > 0 and not self.exhausted:
                if document := next(self._documents, None):
                    batch.append(document)
                    characters -= len(document.text)
                self.exhausted = document is None
            fresh = list(compress(batch, self._duplicates.fresh([document.text for document in batch])))
            taken += fresh
            missing -= size(fresh)
        if self.rows and (self.exhausted or self.rows.read >= folder.SAMPLE):       # fewer say little of the others
            self.rows.require_few()
        return taken


def size(documents: Sequence[Document]) -> int:
    return sum(len(document.text.encode()) for document in documents)


def bytes_a_token(vocab: int) -> float:
    """Bytes a token that no domain exceeds by much: 2.0 at 512 pieces, 2.8 at 2048, 4.4 at 32,768."""
    return 0.4 * math.log2(vocab) - 1.6


def domains_of(config: CorpusConfig, files: Files, notes: list[str]) -> list[Domain]:
    """The domains of a person's folder, with their files in an order that is random given the seed; without files those
    of the offline corpus: two of installed libraries, two of generators."""
    if not files:
        docs, code = Counter(), Counter()
        return [Domain("docs", sources.docs(config.seed, docs), docs),
                Domain("code", sources.code(config.seed, code), code),
                Domain("stories", (Document(f"story {n}", stories.Story(config.seed, n).text) for n in count())),
                Domain("math", (Document(f"worksheet {n}", mathematics.worksheet(config.seed, n)) for n in count()))]
    root = folder.root_of(config.folder)

    def order(path: Path) -> bytes:
        inside = f"{config.seed}/{path.relative_to(root).as_posix()}"
        return hashlib.sha256(inside.encode("utf-8", "surrogateescape")).digest()

    def domain(name: str, paths: list[Path]) -> Domain:
        rows = folder.Rows(Counter())
        return Domain(name, folder.documents(root, sorted(paths, key=order), notes, rows), rows.removed, paths, rows)
    return [domain(*each) for each in sorted(files.items())]


def split(domain: Domain, config: CorpusConfig) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents.

    Offline the first documents are held out: their order is random already. A folder's documents keep their order, and
    seeded runs of neighbours are held out: `heldout_tokens`, or a tenth where text is scarce.
    """
    documents = domain.take(sum(config.asked.values()), config.vocab)
    sizes, order = np.array([size([document]) for document in documents], np.int64), np.arange(len(documents))
    most = 1.5 * config.heldout_tokens * bytes_a_token(config.vocab)      # the held-out split is not topped up later
    if domain.files:
        run = max(1, min(RUN, len(documents) // 24))
        rank = np.random.default_rng(config.seed).permutation(len(documents) // run + 1)[order // run]
        order = np.argsort(rank, kind="stable")
        if domain.exhausted:
            most = min(most, HELDOUT * sizes.sum())
    before = np.cumsum(sizes[order]) - sizes[order]
    held = np.zeros(len(documents), bool)
    held[order[before < most]] = True
    return list(compress(documents, ~held)), list(compress(documents, held))


def write(work: Path, domain: Domain, split: str, documents: Sequence[Document], pieces: tokenizers.Tokenizer,
          config: CorpusConfig) -> dict[str, int]:
    """Write the files of one split of one domain, up to the tokens asked for; the last document may be cut. More
    training documents are taken where these are too few. Returns counts."""
    names, lengths, size, missing, stem = [], [], 0, config.asked[split], f"{work}/{split}-{domain.name}"
    with open(f"{stem}.bin", "xb") as file:         # two names may be one to a file system that ignores case
        while missing and (documents := documents or domain.take(missing * (split == "train"), config.vocab)):
            few, documents = documents[:SLICE], documents[SLICE:]
            for document, tokens in zip(few, tokenizer.encode(pieces, [one.text for one in few]), strict=True):
                kept = tokens[:missing].astype(tokenizer.token_type(config.vocab))
                file.write(kept.tobytes())
                names.append(document.name)
                lengths.append(len(kept))
                size += len(document.text.encode()) * len(kept) // len(tokens)
                missing -= len(kept)
                if not missing:
                    break
    np.save(f"{stem}.starts.npy", np.cumsum(lengths, dtype=np.int64) - np.array(lengths, np.int64))
    Path(f"{stem}.names.json").write_text(json.dumps(names, ensure_ascii=False), "utf-8")
    return {"documents": len(lengths), "tokens": sum(lengths), "bytes": size}


def _write_manifest(config: CorpusConfig, facts: dict, notes: list[str], work: Path, more: dict | None = None) -> None:
    """Write manifest.json, the last of the files: its presence says that the others are complete."""
    omitted = ("folder",) if config.hub else ("folder", "hub", "apart", "tokenizer")
    manifest = {
        "source": "folder" if config.folder else "hub" if config.hub else "offline",
        "config": {name: value for name, value in dataclasses.asdict(config).items() if name not in omitted},
        "pieces": load_tokenizer(work / "tokenizer.json").get_vocab_size(),
        "token_type": np.dtype(tokenizer.token_type(config.vocab)).name,
        "domains": facts,
        "files": {file.relative_to(work).as_posix(): {"size": file.stat().st_size, "sha256": _checksum(file)}
                  for file in sorted(work.rglob("[!.]*")) if file.is_file()},
        "versions": {"tokenizers": tokenizers.__version__,
                     **({} if config.folder or config.hub else sources.versions())},
        "notes": sorted(notes),
        **(more or {}),
    }
    _save(manifest, work)


def _save(manifest: dict, path: Path) -> None:
    write_atomically(path / "manifest.json", (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def unread(built: Corpus) -> list[str]:
    """A line for the files of each domain and ending that the corpus was built without."""
    return [note for note in built.manifest["notes"] if note.startswith(folder.UNREAD)]


def table(built: Corpus) -> str:
    """Documents, tokens and bytes a token of each domain, and what was left out, as text."""
    wide = max(16, *(len(name) + 2 for name in built.manifest["domains"]))
    lines = [f"{'domain':<{wide}}{'split':<9}{'documents':>10}{'tokens':>12}{'bytes/token':>13}"]
    for name, facts in built.manifest["domains"].items():
        for part in SPLITS:
            documents, tokens, size = (facts[part][what] for what in ("documents", "tokens", "bytes"))
            lines.append(f"{name:<{wide}}{part:<9}{documents:>10,}{tokens:>12,}{size / tokens:>13.2f}")
        if facts["removed"]:
            left_out = ", ".join(f"{count:,} {kind}" for kind, count in facts["removed"].items())
            lines.append(f"{'':<{wide}}left out: {left_out}")
    return "\n".join(lines)
