"""A corpus of hub domains: read, tokenised and written as it comes, so that a killed build goes on where it was.

A document is held out if a hash of it says so: the same ones are whatever the order, and no text is on both sides.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_prep import tokenizer
from data_prep.config import CorpusConfig
from data_prep.hub import DOMAINS
from data_prep.hub_evals import fetch
from data_prep.hub_reader import HubDocument, Reader, Say, patiently
from data_prep.journal import Journal
from data_prep.supply import LEAST, TOKENIZER_BYTES
from lib.data import SPLITS
from lib.errors import SuiteError
from lib.files import write_atomically
from lib.text import duration

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHUNK = 1 << 21         # characters that are tokenised together, on all cores
MARGIN = 1.5            # documents held out, over those asked for: what is too much is left out
SAY_EVERY = 10.0        # seconds between two lines of progress
RECORD = np.dtype([("start", "<i8"), ("file", "<i4"), ("row", "<i8"), ("digest", "<u8")])    # of a document
Facts = dict[str, Any]


def build(config: CorpusConfig, work: Path, say: Say) -> tuple[Facts, Facts]:
    """Write all but the manifest into the folder `work`, from where a killed build left it; the manifest's facts by domain,
    and those beyond. Nothing is written before every data set, its columns and the tokeniser have been seen. Hidden files are
    of the building alone."""
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
    facts = {}
    with closing(Journal(work)) as journal:
        progress = Progress(config, journal, say)
        for name, reader in readers.items():
            filling = Filling(config, reader, pieces, work, journal)
            filling.run(progress)
            facts[name] = filling.finish()
    return facts, {"tokenizer": config.tokenizer or "the suite's own", "apart": list(config.apart),
                   "evaluations": evaluations}


def shortages(config: CorpusConfig, facts: Facts) -> list[str]:
    """A sentence for each finite domain that has less than was asked for."""
    return [f"{name} has {own['train']['tokens']:,} training and {own['heldout']['tokens']:,} held-out tokens in all, "
            "fewer than were asked for" for name, own in facts.items()
            if own["train"]["tokens"] < config.train_tokens or own["heldout"]["tokens"] < config.heldout_tokens]


def own_pieces(config: CorpusConfig, readers: dict[str, Reader], named: Tokenizer | None, work: Path, say: Say) -> Tokenizer:
    """The tokeniser, kept in `work`: that of a name, or one trained on the first training documents of each domain."""
    file = work / "tokenizer.json"
    if not file.is_file():
        if named is None:
            say(f"training the tokeniser ({config.vocab} pieces)")
            texts = (text for reader in readers.values() for text in first_texts(config, reader))
            named = tokenizer.train(texts, config.vocab)
        write_atomically(file, named.to_str(pretty=True).encode())
    return tokenizer.load(file)


def first_texts(config: CorpusConfig, reader: Reader) -> Iterator[str]:
    size = 0
    for document in reader.documents():
        if not held_out(document, config):
            yield document.text
            size += len(document.text.encode())
            if size >= TOKENIZER_BYTES:
                return


def hashed(text: str, key: str = "") -> int:
    """64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key.encode()).digest(), "little")


def held_out(document: HubDocument, config: CorpusConfig) -> bool:
    share = min(0.5, MARGIN * config.heldout_tokens / (config.train_tokens + config.heldout_tokens))
    return hashed(document.together, f"held out {config.seed}") < share * 2 ** 64


class Seen:
    """Hashes of documents, 8 bytes each: a few sorted arrays, each at least twice as long as the next."""

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> None:
        self._sorted.append(np.sort(hashes))
        while len(self._sorted) > 1 and len(self._sorted[-2]) < 2 * len(self._sorted[-1]):
            last = self._sorted.pop()
            self._sorted[-1] = np.sort(np.concatenate([self._sorted[-1], last]))

    def has(self, hashes: np.ndarray) -> np.ndarray:
        """Bool `[len(hashes)]`."""
        found = np.zeros(len(hashes), bool)
        for known in self._sorted:
            at = np.searchsorted(known, hashes)
            found |= known[np.minimum(at, len(known) - 1)] == hashes if len(known) else False
        return found


class Progress:
    """What is said meanwhile: tokens of all domains, a second, and the time that is left."""

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

    def finished(self, name: str, missing: int) -> None:
        """A finite domain that has fewer tokens than were asked for."""
        self.total -= missing
        self.tell(name, 0, at_once=True)


class Filling:
    """One domain on its way into `train-<name>.bin` and `heldout-<name>.bin`."""

    def __init__(self, config: CorpusConfig, reader: Reader, pieces: Tokenizer, work: Path, journal: Journal) -> None:
        self.config, self.reader, self.pieces, self.work, self.journal = config, reader, pieces, work, journal
        self.name = reader.name
        self.asked = {"train": config.train_tokens, "heldout": config.heldout_tokens}
        self.type = np.dtype(tokenizer.token_type(config.vocab))
        identity = [each.identity() for each in reader.sources]
        self.state = journal.state.get(self.name)
        if self.state is None or self.state["identity"] != identity:        # new, or the data set is not what it was
            self.state = {"identity": identity, "position": [0, 0], "exhausted": False, "removed": {},
                          **{split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}}
            journal.state[self.name] = self.state
            journal.forget(*(self.file(split, kind) for split in SPLITS for kind in ("bin", "records")))
            journal.commit()
        self.files = {(split, kind): journal.open(self.file(split, kind)) for split in SPLITS for kind in ("bin", "records")}

    def file(self, split: str, kind: str) -> str:
        return f"{split}-{self.name}.bin" if kind == "bin" else f".{split}-{self.name}.records"

    def full(self, split: str) -> bool:
        return self.state[split]["tokens"] >= self.asked[split]

    @property
    def over(self) -> bool:
        return self.state["exhausted"] or all(map(self.full, SPLITS))

    def run(self, progress: Progress) -> None:
        """Read until both splits have what was asked for, or the text ends; committed every while and at the end."""
        if not self.over:
            self.seen = Seen()
            for split in SPLITS:
                self.seen.add(self.records(split)["digest"].copy())
            before = self.tokens
            for chunk in ahead(chunks(self.reader.documents(tuple(self.state["position"])))):
                self.add(chunk)
                progress.tell(self.name, self.tokens - before)
                before = self.tokens
                if self.over:
                    break
                if self.journal.due():
                    self.journal.commit()
            self.state["exhausted"] = not all(map(self.full, SPLITS))
            self.journal.commit()
        progress.finished(self.name, sum(self.asked.values()) - self.tokens)

    @property
    def tokens(self) -> int:
        return sum(self.state[split]["tokens"] for split in SPLITS)

    def records(self, split: str) -> np.ndarray:
        self.files[split, "records"].flush()
        return np.fromfile(self.work / self.file(split, "records"), RECORD)

    def add(self, chunk: list[HubDocument]) -> None:
        """Tokenise the documents on all cores, then take them one by one in order: what is taken does not depend on where
        chunks begin."""
        digests = np.array([hashed(document.text) for document in chunk], np.uint64)
        known, recent = self.seen.has(digests), set()
        splits = ["heldout" if held_out(document, self.config) else "train" for document in chunk]
        wanted = [at for at, split in enumerate(splits) if not known[at] and not self.full(split)]
        encoded = dict(zip(wanted, tokenizer.encode(self.pieces, [chunk[at].text for at in wanted]), strict=True))
        for at, (document, split, digest) in enumerate(zip(chunk, splits, digests.tolist(), strict=True)):
            if self.over:
                break
            self.left_out("rows without text", document.passed_over)
            if known[at] or digest in recent:
                self.left_out("exact copies of documents", 1)
            elif not self.full(split):
                self.write(split, document, digest, encoded[at])
                recent.add(digest)
            self.state["position"] = list(document.after)
        self.seen.add(np.fromiter(recent, np.uint64, len(recent)))

    def left_out(self, what: str, count: int) -> None:
        if count:
            self.state["removed"][what] = self.state["removed"].get(what, 0) + count

    def write(self, split: str, document: HubDocument, digest: int, tokens: np.ndarray) -> None:
        there = self.state[split]
        kept = tokens[:self.asked[split] - there["tokens"]]
        self.files[split, "bin"].write(kept.astype(self.type).tobytes())
        self.files[split, "records"].write(np.array((there["tokens"], document.file, document.row, digest), RECORD).tobytes())
        there["documents"] += 1
        there["tokens"] += len(kept)
        there["bytes"] += len(document.text.encode()) * len(kept) // len(tokens)

    def finish(self) -> Facts:
        """Where documents start and come from, for good; the domain's facts for the manifest. A SuiteError if it is short."""
        finite = DOMAINS[self.name].finite
        for split in SPLITS:
            there, asked = self.state[split]["tokens"], self.asked[split]
            least = min(LEAST[split], asked) if finite else asked
            if there < least:
                raise SuiteError(f"domain {self.name!r} has {there:,} {split} tokens at {self.pieces.get_vocab_size()} pieces, "
                                 f"{least:,} are needed: ask for fewer {split}_tokens, or complete the copy of "
                                 f"{', '.join(source.set.path for source in self.reader.sources)}")
            records = self.records(split)
            np.save(self.work / f"{split}-{self.name}.starts.npy", records["start"])
            places = np.stack([records["file"].astype(np.int64), records["row"]], axis=1)
            np.save(self.work / f"{split}-{self.name}.places.npy", places)
        return {**{split: self.state[split] for split in SPLITS}, "removed": dict(sorted(self.state["removed"].items())),
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
    """The next chunk is read while one is tokenised."""
    with ThreadPoolExecutor(1, thread_name_prefix="hub reader") as pool:
        coming = pool.submit(next, made, None)
        while (chunk := coming.result()) is not None:
            coming = pool.submit(next, made, None)
            yield chunk
