"""A corpus of hub domains: read, tokenised and written as it arrives, so that a killed build resumes where it was.

A hash of a document decides whether it is held out: the choice does not depend on the order of the documents, and no
text is on both sides.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from data_prep import tokenizer
from data_prep.config import CorpusConfig, Say
from data_prep.hub import DOMAINS, EVALUATIONS, HubSet, subsets
from data_prep.hub_reader import HubDocument, Reader, patiently
from lib.data import SPLITS, load_tokenizer
from lib.errors import SuiteError, require
from lib.files import write_atomically
from lib.text import duration

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHUNK = 1 << 21         # characters that are tokenised together, on all cores
MARGIN = 1.5            # documents held out, over those asked for; the surplus is left out
SAY_EVERY = 10.0        # seconds between two messages of progress
COMMIT_EVERY = 20.0     # seconds between commits: the most work that a kill costs
JOURNAL = ".journal.json"       # hidden, like everything that is no part of the result
RECORD = np.dtype([("start", "<i8"), ("file", "<i4"), ("row", "<i8"), ("digest", "<u8")])    # of a document
Facts = dict[str, Any]


def build(config: CorpusConfig, work: Path, say: Say) -> tuple[Facts, Facts]:
    """Write everything but the manifest into the folder `work`, resuming what a killed build left there.

    Returns the manifest's facts by domain, and its further entries. Nothing is written before every data set, its
    columns and the tokeniser have been seen.
    """
    import datasets
    datasets.disable_progress_bars()        # `say` reports instead
    readers = []
    for name in config.domains:
        say(f"looking up {name}")
        readers.append(Reader(name, DOMAINS[name], say))
    named = patiently(f"tokeniser {config.tokenizer}", lambda: tokenizer.named(config.tokenizer),
                      "name a local tokenizer.json", say) if config.tokenizer else None
    if named:
        require(named.get_vocab_size() <= config.vocab, "vocab", config.vocab,
                f"the tokeniser {config.tokenizer} has {named.get_vocab_size()} pieces; the model needs a row for each")
    evaluations = fetch(work / "evaluations", say)
    pieces = own_pieces(config, readers, named, work, say)
    journal, facts = Journal(config, work, say), {}
    for reader in readers:
        with closing(Filling(config, reader, pieces, journal)) as filling:
            filling.run()
            facts[reader.name] = filling.finish()
    return facts, {"tokenizer": config.tokenizer or "the suite's own", "apart": list(config.apart),
                   "evaluations": evaluations}


def shortages(config: CorpusConfig, facts: Facts) -> list[str]:
    """A sentence for each finite domain that has less than was asked for."""
    there = {name: [counts[split]["tokens"] for split in SPLITS] for name, counts in facts.items()}
    return [f"{name} has {train:,} training and {heldout:,} held-out tokens in all, fewer than were asked for"
            for name, (train, heldout) in there.items() if [train, heldout] != list(config.asked.values())]


def own_pieces(config: CorpusConfig, readers: Iterable[Reader], named: Tokenizer | None, work: Path,
               say: Say) -> Tokenizer:
    """The tokeniser, kept in `work`: the named one, or one trained on the first training documents of each domain."""
    file = work / "tokenizer.json"
    if not file.is_file():
        if named is None:
            say(f"training the tokeniser ({config.vocab} pieces)")
            named = tokenizer.train((text for reader in readers for text in tokenizer.beginning(
                document.text for document in reader.documents() if not held_out(document, config))), config.vocab)
        write_atomically(file, named.to_str(pretty=True).encode())
    return load_tokenizer(file)


def hashed(text: str, key: str = "") -> int:
    """64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key.encode()).digest(), "little")


def held_out(document: HubDocument, config: CorpusConfig) -> bool:
    share = min(0.5, MARGIN * config.heldout_tokens / (config.train_tokens + config.heldout_tokens))
    return hashed(document.together, f"held out {config.seed}") < share * 2 ** 64


def fetch(folder: Path, say: Say) -> Facts:
    """Put every evaluation set that is missing there into `folder`; returns the manifest's entries, by task."""
    for task, wanted in EVALUATIONS.items():
        if not (folder / f"{task}.json").is_file():
            say(f"fetching {task} ({wanted.path})")
            facts = fetch_one(task, wanted, folder / task, say)         # a .jsonl file a subset
            write_atomically(folder / f"{task}.json", json.dumps(facts).encode())
    return {task: json.loads((folder / f"{task}.json").read_text("utf-8")) for task in EVALUATIONS}


def fetch_one(task: str, wanted: HubSet, folder: Path, say: Say) -> Facts:
    names = [wanted.config] if wanted.config else patiently(wanted.path, lambda: subsets(wanted), wanted.remedy, say)
    items, facts = 0, {}
    for name in names:
        reader = Reader(task, [dataclasses.replace(wanted, config=name)], say)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in complete(reader)]
        write_atomically(folder / f"{task if wanted.config else name}.jsonl", "".join(lines).encode())
        items, facts = items + len(lines), reader.sources[0].facts()
    return {**facts, "config": wanted.config, "subsets": len(names), "items": items}


def complete(reader: Reader) -> Iterator[dict[str, str]]:
    """The rows by the names of the set's columns; a SuiteError names a row that lacks a text."""
    wanted = reader.sources[0].set
    for number in range(len(reader.files)):
        for row, texts in reader.rows(number):
            if None in texts:
                raise SuiteError(f"{reader.where(number)}, row {row} has no text in "
                                 f"{wanted.columns[texts.index(None)]!r}; fetch it again, or {wanted.remedy}")
            yield dict(zip(wanted.columns, texts, strict=True))


class Journal:
    """`state` of each domain by name, as JSON: counts of what its files hold, and the position up to which it was read.

    A killed build resumes from its last commit: its files are cut to what the state counts. `tell` reports tokens of
    all domains, tokens a second, and the time left.
    """

    def __init__(self, config: CorpusConfig, work: Path, say: Say) -> None:
        self.work, self.path, self.say = work, work / JOURNAL, say
        self.state: dict[str, Any] = json.loads(self.path.read_text("utf-8")) if self.path.is_file() else {}
        self.total, self.start = len(config.domains) * sum(config.asked.values()), self.done
        self.begun, self.committed, self.told = time.monotonic(), time.monotonic(), -math.inf
        if self.start:
            say(f"going on after {self.start:,} tokens that are there")

    @property
    def done(self) -> int:
        return sum(state[split]["tokens"] for state in self.state.values() for split in SPLITS)

    def commit(self, files: Iterable[BinaryIO] = (), every: float = 0.0) -> None:
        """Force `files` and then the state to the disk, if the last time was `every` seconds ago."""
        if time.monotonic() - self.committed >= every:
            for file in files:
                file.flush()
                os.fsync(file.fileno())
            write_atomically(self.path, json.dumps(self.state).encode(), durable=True)
            self.committed = time.monotonic()

    def tell(self, name: str, every: float = 0.0) -> None:
        now = time.monotonic()
        if now - self.told >= every:
            self.told, done = now, self.done
            rate = (done - self.start) / max(now - self.begun, 1e-9)
            left = f", about {duration((self.total - done) / rate)} left" if rate else ""
            share = done / max(self.total, 1)
            self.say(f"{name}: {done:,} of {self.total:,} tokens in all ({share:.0%}), {rate:,.0f} a second{left}")


class Filling:
    """Writes one domain into `train-<name>.bin` and `heldout-<name>.bin`, and a record of each document.

    `seen` holds a hash of each text: about 100 bytes of memory a document.
    """

    def __init__(self, config: CorpusConfig, reader: Reader, pieces: Tokenizer, journal: Journal) -> None:
        self.config, self.reader, self.pieces, self.journal, self.name = config, reader, pieces, journal, reader.name
        self.type = np.dtype(tokenizer.token_type(config.vocab))
        identity = [source.identity() for source in reader.sources]
        if journal.state.get(self.name, {}).get("identity") != identity:        # new, or the data set has changed
            journal.state[self.name] = {"identity": identity, "position": [0, 0], "exhausted": False, "removed": {},
                                        **{split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}}
            journal.commit()
        self.state: dict[str, Any] = journal.state[self.name]
        self.files = {(split, kind): self.open(split, kind) for split in SPLITS for kind in ("bin", "records")}

    def path(self, split: str, kind: str) -> Path:
        return self.journal.work / f"{'' if kind == 'bin' else '.'}{split}-{self.name}.{kind}"

    def open(self, split: str, kind: str) -> BinaryIO:
        """The file at its committed length, for appending; a SuiteError if it is shorter."""
        path, there = self.path(split, kind), self.state[split]
        length = there["tokens"] * self.type.itemsize if kind == "bin" else there["documents"] * RECORD.itemsize
        path.touch()
        if path.stat().st_size < length:
            raise SuiteError(f"{path} is shorter than when it was written; delete {path.parent} to build it again")
        os.truncate(path, length)
        return path.open("ab")

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def missing(self, split: str) -> int:
        return self.config.asked[split] - self.state[split]["tokens"]

    @property
    def over(self) -> bool:
        return self.state["exhausted"] or not any(map(self.missing, SPLITS))

    def run(self) -> None:
        """Read until both splits have what was asked for, or the text ends; commit now and then, and at the end."""
        if not self.over:
            self.seen = {digest for split in SPLITS for digest in self.records(split)["digest"].tolist()}
            for chunk in ahead(chunks(self.reader.documents(tuple(self.state["position"])))):
                self.add(chunk)
                self.journal.tell(self.name, SAY_EVERY)
                if self.over:
                    break
                self.journal.commit(self.files.values(), COMMIT_EVERY)
            self.state["exhausted"] = any(map(self.missing, SPLITS))
            self.journal.commit(self.files.values())
        self.journal.total -= sum(map(self.missing, SPLITS))        # what a finite domain lacks
        self.journal.tell(self.name)

    def records(self, split: str) -> np.ndarray:
        self.files[split, "records"].flush()
        return np.fromfile(self.path(split, "records"), RECORD)

    def add(self, chunk: list[HubDocument]) -> None:
        """Tokenise a chunk on all cores, then take its documents one by one in order: chunks leave no trace."""
        digests = [hashed(document.text) for document in chunk]
        splits = ["heldout" if held_out(document, self.config) else "train" for document in chunk]
        wanted = [at for at, split in enumerate(splits) if digests[at] not in self.seen and self.missing(split)]
        encoded = dict(zip(wanted, tokenizer.encode(self.pieces, [chunk[at].text for at in wanted]), strict=True))
        for at, (document, split, digest) in enumerate(zip(chunk, splits, digests, strict=True)):
            if self.over:
                break
            copies, removed = int(digest in self.seen), self.state["removed"]
            for what, count in (("rows without text", document.passed_over), ("exact copies of documents", copies)):
                if count:
                    removed[what] = removed.get(what, 0) + count
            if not copies and self.missing(split):
                self.write(split, document, digest, encoded[at])
                self.seen.add(digest)
            self.state["position"] = list(document.after)

    def write(self, split: str, document: HubDocument, digest: int, tokens: np.ndarray) -> None:
        there, kept = self.state[split], tokens[:self.missing(split)]
        record = np.array((there["tokens"], document.file, document.row, digest), RECORD)
        self.files[split, "bin"].write(kept.astype(self.type).tobytes())
        self.files[split, "records"].write(record.tobytes())
        there["documents"] += 1
        there["tokens"] += len(kept)
        there["bytes"] += len(document.text.encode()) * len(kept) // len(tokens)

    def finish(self) -> Facts:
        """Write where documents start and come from; returns the domain's facts. A SuiteError if it is too short."""
        sources, counts = self.reader.sources, {split: self.state[split] for split in SPLITS}
        self.config.require_enough(
            self.name, {split: count["tokens"] for split, count in counts.items()}, sources[-1].set.finite,
            f"ask for fewer, or complete the copy of {', '.join(source.set.path for source in sources)}")
        for split in SPLITS:
            records = self.records(split)
            places = np.stack([records["file"].astype(np.int64), records["row"]], axis=1)
            np.save(self.journal.work / f"{split}-{self.name}.starts.npy", records["start"])
            np.save(self.journal.work / f"{split}-{self.name}.places.npy", places)
        return {**counts, "removed": dict(sorted(self.state["removed"].items())),
                "sources": [{**one.facts(), "files": list(map(one.name, one.files))} for one in sources]}


def chunks(documents: Iterable[HubDocument]) -> Iterator[list[HubDocument]]:
    chunk, size = [], 0
    for document in documents:
        chunk.append(document)
        size += len(document.text)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def ahead(made: Iterator[list[HubDocument]]) -> Iterator[list[HubDocument]]:
    """The same chunks; the next one is read while one is tokenised."""
    with ThreadPoolExecutor(1, thread_name_prefix="hub reader") as pool:
        coming = pool.submit(next, made, None)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(next, made, None)
            yield chunk
