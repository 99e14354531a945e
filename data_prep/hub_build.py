"""A corpus of hub domains: read, tokenised and written as it arrives, so that a killed build resumes where it was.

A hash of a document decides whether it is held out: the choice does not depend on the order of the documents, and no
text is on both sides.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from data_prep import tokenizer
from data_prep.config import LEAST, CorpusConfig, Say
from data_prep.hub import DOMAINS, EVALUATIONS, HubSet, remedy, subsets
from data_prep.hub_reader import HubDocument, Reader, patiently
from lib.data import SPLITS, load_tokenizer
from lib.errors import SuiteError
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
EVALUATIONS_FOLDER = "evaluations"      # in the corpus: a folder a task, with a .jsonl file a subset
Facts = dict[str, Any]


def build(config: CorpusConfig, work: Path, say: Say) -> tuple[Facts, Facts]:
    """Write everything but the manifest into the folder `work`, resuming what a killed build left there.

    Returns the manifest's facts by domain, and its further entries. Nothing is written before every data set, its
    columns and the tokeniser have been seen.
    """
    import datasets
    datasets.disable_progress_bars()        # `say` reports instead
    readers = {}
    for name in config.domains:
        say(f"looking up {name}")
        readers[name] = Reader(name, DOMAINS[name].sets, say)
    named = patiently(f"tokeniser {config.tokenizer}", lambda: tokenizer.named(config.tokenizer),
                      "name a local tokenizer.json", say) if config.tokenizer else None
    if named and named.get_vocab_size() > config.vocab:
        raise SuiteError(f"vocab = {config.vocab} is not valid: the tokeniser {config.tokenizer} has "
                         f"{named.get_vocab_size()} pieces; the model needs a row for each")
    evaluations = fetch(work, say)
    pieces = own_pieces(config, readers, named, work, say)
    journal, facts = Journal(work), {}
    progress = Progress(config, journal, say)
    for name, reader in readers.items():
        with closing(Filling(config, reader, pieces, work, journal)) as filling:
            filling.run(progress)
            facts[name] = filling.finish()
    return facts, {"tokenizer": config.tokenizer or "the suite's own", "apart": list(config.apart),
                   "evaluations": evaluations}


def shortages(config: CorpusConfig, facts: Facts) -> list[str]:
    """A sentence for each finite domain that has less than was asked for."""
    there = {name: (counts["train"]["tokens"], counts["heldout"]["tokens"]) for name, counts in facts.items()}
    return [f"{name} has {train:,} training and {heldout:,} held-out tokens in all, fewer than were asked for"
            for name, (train, heldout) in there.items()
            if train < config.train_tokens or heldout < config.heldout_tokens]


def own_pieces(config: CorpusConfig, readers: dict[str, Reader], named: Tokenizer | None, work: Path,
               say: Say) -> Tokenizer:
    """The tokeniser, kept in `work`: the named one, or one trained on the first training documents of each domain."""
    file = work / "tokenizer.json"
    if not file.is_file():
        if named is None:
            say(f"training the tokeniser ({config.vocab} pieces)")
            named = tokenizer.train((text for reader in readers.values() for text in tokenizer.beginning(
                document.text for document in reader.documents() if not held_out(document, config))), config.vocab)
        write_atomically(file, named.to_str(pretty=True).encode())
    return load_tokenizer(file)


def hashed(text: str, key: str = "") -> int:
    """64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key.encode()).digest(), "little")


def held_out(document: HubDocument, config: CorpusConfig) -> bool:
    share = min(0.5, MARGIN * config.heldout_tokens / (config.train_tokens + config.heldout_tokens))
    return hashed(document.together, f"held out {config.seed}") < share * 2 ** 64


def fetch(work: Path, say: Say) -> dict[str, Any]:
    """Put every set of the table that is missing there into `work`; returns the manifest's entries, by task."""
    facts = {}
    for task, wanted in EVALUATIONS.items():
        about = work / EVALUATIONS_FOLDER / f"{task}.json"          # written last
        if not about.is_file():
            say(f"fetching {task} ({wanted.path})")
            write_atomically(about, json.dumps(fetch_one(task, wanted, work / EVALUATIONS_FOLDER / task, say)).encode())
        facts[task] = json.loads(about.read_text("utf-8"))
    return facts


def fetch_one(task: str, wanted: HubSet, folder: Path, say: Say) -> dict[str, Any]:
    names = [wanted.config] if wanted.config else patiently(wanted.path, lambda: subsets(wanted), remedy(wanted), say)
    items, revision = 0, ""
    for name in names:
        reader = Reader(task, (dataclasses.replace(wanted, config=name),), say)
        rows = list(read(reader))
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomically(folder / f"{task if wanted.config else name}.jsonl", content.encode())
        items, revision = items + len(rows), reader.sources[0].revision
    return {"dataset": wanted.path, "config": wanted.config, "split": wanted.split, "revision": revision,
            "licence": wanted.licence, "subsets": len(names), "items": items}


def read(reader: Reader) -> Iterator[dict[str, str]]:
    """The rows by the names of the set's columns; a SuiteError names a row that lacks a text."""
    wanted = reader.sources[0].set
    for file in range(len(reader.files)):
        for first, columns, _ in reader.columns(file):
            for at, values in enumerate(zip(*columns, strict=True)):
                if None in values:
                    raise SuiteError(f"{reader.where(file)}, row {first + at} has no text in "
                                     f"{wanted.columns[values.index(None)]!r}; fetch it again, or {remedy(wanted)}")
                yield dict(zip(wanted.columns, values, strict=True))


class Journal:
    """`state` of each domain by name, as JSON: counts of what its files hold, and the position up to which it was read.

    A killed build resumes from its last commit: its files are cut to what the state counts.
    """

    def __init__(self, work: Path) -> None:
        self._path, self._last = work / JOURNAL, time.monotonic()
        self.state: dict[str, Any] = json.loads(self._path.read_text("utf-8")) if self._path.is_file() else {}

    def due(self) -> bool:
        return time.monotonic() - self._last >= COMMIT_EVERY

    def commit(self, files: Iterable[BinaryIO] = ()) -> None:
        """Force `files` to the disk, then replace the state there."""
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        partial = self._path.with_name(f"{JOURNAL}.new")
        with partial.open("w", encoding="utf-8") as out:
            json.dump(self.state, out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, self._path)
        self._last = time.monotonic()


class Progress:
    """Messages of progress: tokens of all domains, tokens a second, and the time left."""

    def __init__(self, config: CorpusConfig, journal: Journal, say: Say) -> None:
        self.total = len(config.domains) * (config.train_tokens + config.heldout_tokens)
        self.done = sum(state[split]["tokens"] for state in journal.state.values() for split in SPLITS)
        self.start, self.begun, self.last, self.say = self.done, time.monotonic(), 0.0, say
        if self.done:
            say(f"going on after {self.done:,} tokens that are there")

    def tell(self, name: str, tokens: int, at_once: bool = False) -> None:
        self.done += tokens
        now = time.monotonic()
        if not at_once and now - self.last < SAY_EVERY:
            return
        self.last = now
        rate = (self.done - self.start) / max(now - self.begun, 1e-9)
        left = f", about {duration((self.total - self.done) / rate)} left" if rate else ""
        share = self.done / max(self.total, 1)
        self.say(f"{name}: {self.done:,} of {self.total:,} tokens in all ({share:.0%}), {rate:,.0f} a second{left}")


class Filling:
    """Writes one domain into `train-<name>.bin` and `heldout-<name>.bin`, and a record of each document.

    `seen` holds a hash of each text: about 100 bytes of memory a document.
    """

    def __init__(self, config: CorpusConfig, reader: Reader, pieces: Tokenizer, work: Path, journal: Journal) -> None:
        self.config, self.reader, self.pieces, self.work, self.journal = config, reader, pieces, work, journal
        self.name = reader.name
        self.asked = {"train": config.train_tokens, "heldout": config.heldout_tokens}
        self.type = np.dtype(tokenizer.token_type(config.vocab))
        identity = [source.identity() for source in reader.sources]
        self.state = journal.state.get(self.name)
        if self.state is None or self.state["identity"] != identity:        # new, or the data set has changed
            self.state = {"identity": identity, "position": [0, 0], "exhausted": False, "removed": {},
                          **{split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}}
            journal.state[self.name] = self.state
            journal.commit()
        self.files = {(split, kind): self.open(split, kind) for split in SPLITS for kind in ("bin", "records")}

    def path(self, split: str, kind: str) -> Path:
        return self.work / (f"{split}-{self.name}.bin" if kind == "bin" else f".{split}-{self.name}.records")

    def open(self, split: str, kind: str) -> BinaryIO:
        """The file at its committed length, for appending; a SuiteError if it is shorter."""
        path, there = self.path(split, kind), self.state[split]
        length = there["tokens"] * self.type.itemsize if kind == "bin" else there["documents"] * RECORD.itemsize
        path.touch()
        if path.stat().st_size < length:
            raise SuiteError(f"{path} is shorter than when it was written; delete {self.work}, it will be built again")
        os.truncate(path, length)
        return path.open("ab")

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def full(self, split: str) -> bool:
        return self.state[split]["tokens"] >= self.asked[split]

    @property
    def over(self) -> bool:
        return self.state["exhausted"] or all(map(self.full, SPLITS))

    @property
    def tokens(self) -> int:
        return sum(self.state[split]["tokens"] for split in SPLITS)

    def run(self, progress: Progress) -> None:
        """Read until both splits have what was asked for, or the text ends; commit now and then, and at the end."""
        if not self.over:
            self.seen = {digest for split in SPLITS for digest in self.records(split)["digest"].tolist()}
            before = self.tokens
            for chunk in ahead(chunks(self.reader.documents(tuple(self.state["position"])))):
                self.add(chunk)
                progress.tell(self.name, self.tokens - before)
                before = self.tokens
                if self.over:
                    break
                if self.journal.due():
                    self.journal.commit(self.files.values())
            self.state["exhausted"] = not all(map(self.full, SPLITS))
            self.journal.commit(self.files.values())
        progress.total -= sum(self.asked.values()) - self.tokens        # what a finite domain lacks
        progress.tell(self.name, 0, at_once=True)

    def records(self, split: str) -> np.ndarray:
        self.files[split, "records"].flush()
        return np.fromfile(self.path(split, "records"), RECORD)

    def add(self, chunk: list[HubDocument]) -> None:
        """Tokenise a chunk on all cores, then take its documents one by one in order: chunks leave no trace.
        """
        digests = [hashed(document.text) for document in chunk]
        splits = ["heldout" if held_out(document, self.config) else "train" for document in chunk]
        wanted = [at for at, split in enumerate(splits) if digests[at] not in self.seen and not self.full(split)]
        encoded = dict(zip(wanted, tokenizer.encode(self.pieces, [chunk[at].text for at in wanted]), strict=True))
        for at, (document, split, digest) in enumerate(zip(chunk, splits, digests, strict=True)):
            if self.over:
                break
            self.left_out("rows without text", document.passed_over)
            if digest in self.seen:
                self.left_out("exact copies of documents", 1)
            elif not self.full(split):
                self.write(split, document, digest, encoded[at])
                self.seen.add(digest)
            self.state["position"] = list(document.after)

    def left_out(self, what: str, count: int) -> None:
        if count:
            self.state["removed"][what] = self.state["removed"].get(what, 0) + count

    def write(self, split: str, document: HubDocument, digest: int, tokens: np.ndarray) -> None:
        there = self.state[split]
        kept = tokens[:self.asked[split] - there["tokens"]]
        record = np.array((there["tokens"], document.file, document.row, digest), RECORD)
        self.files[split, "bin"].write(kept.astype(self.type).tobytes())
        self.files[split, "records"].write(record.tobytes())
        there["documents"] += 1
        there["tokens"] += len(kept)
        there["bytes"] += len(document.text.encode()) * len(kept) // len(tokens)

    def finish(self) -> Facts:
        """Write where documents start and come from; returns the domain's facts. A SuiteError if it is too short."""
        finite = DOMAINS[self.name].finite
        for split in SPLITS:
            there, asked = self.state[split]["tokens"], self.asked[split]
            least = min(LEAST[split], asked) if finite else asked
            if there < least:
                raise SuiteError(f"domain {self.name!r} has {there:,} {split} tokens at {self.pieces.get_vocab_size()} "
                                 f"pieces, {least:,} are needed: ask for fewer {split}_tokens, or complete the copy of "
                                 f"{', '.join(source.set.path for source in self.reader.sources)}")
            records = self.records(split)
            np.save(self.work / f"{split}-{self.name}.starts.npy", records["start"])
            places = np.stack([records["file"].astype(np.int64), records["row"]], axis=1)
            np.save(self.work / f"{split}-{self.name}.places.npy", places)
        removed = dict(sorted(self.state["removed"].items()))
        return {**{split: self.state[split] for split in SPLITS}, "removed": removed,
                "sources": [source.facts() for source in self.reader.sources]}


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
