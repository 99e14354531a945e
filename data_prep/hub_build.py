"""A corpus of hub domains: read, tokenised and kept as it arrives, so that a killed build resumes where it was.

A hash of a document decides whether it is held out: the choice does not depend on the order of the documents, and no
text is on both sides.
"""

import dataclasses
import hashlib
import io
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from tokenizers import Tokenizer

from data_prep import tokenizer
from data_prep.config import CorpusConfig, Say
from data_prep.hub import DOMAINS, EVALUATIONS, HubDocument, HubSet, Reader, patiently, size_and_time, subsets
from lib.data import SPLITS, load_tokenizer
from lib.errors import SuiteError, require
from lib.files import write_atomically
from lib.text import duration

CHUNK = 1 << 21         # characters that are tokenised together, on all cores: the most work that a kill costs
MARGIN = 1.5            # documents held out, over those asked for; the surplus is left out
SAY_EVERY = 10.0        # seconds between two messages of progress
RECORD = np.dtype([("tokens", "<i8"), ("file", "<i4"), ("row", "<i8"), ("digest", "<u8")])   # of a document
Facts = dict[str, Any]


def build(config: CorpusConfig, work: Path, say: Say) -> tuple[Facts, Facts]:
    """Write everything but the manifest into the folder `work`, resuming what a killed build left there.

    Returns the manifest's facts by domain, and its further entries. Nothing is written before every data set, its
    columns and the tokeniser have been seen.
    """
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
    fillings = [Filling(config, reader, pieces, work) for reader in readers]
    progress, facts = Progress(config, fillings, say), {}
    for filling in fillings:
        filling.run(progress)
        facts[filling.name] = filling.finish()
    return facts, {"tokenizer": config.tokenizer or "the suite's own", "apart": list(config.apart),
                   "evaluations": evaluations}


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
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key.encode()).digest(), "little")


def held_out(document: HubDocument, config: CorpusConfig) -> bool:
    share = min(0.5, MARGIN * config.heldout_tokens / (config.train_tokens + config.heldout_tokens))
    return hashed(document.together, f"held out {config.seed}") < share * 2 ** 64


def fetch(folder: Path, say: Say) -> Facts:
    """Put every evaluation set that is missing there into `folder`; returns the manifest's entries, by task."""
    for task, wanted in EVALUATIONS.items():
        if not (folder / f"{task}.json").is_file():
            say(f"fetching {task} ({wanted.path})")
            facts = fetch_one(task, wanted, folder / task, say)
            write_atomically(folder / f"{task}.json", json.dumps(facts).encode())
    return {task: json.loads((folder / f"{task}.json").read_text("utf-8")) for task in EVALUATIONS}


def fetch_one(task: str, wanted: HubSet, folder: Path, say: Say) -> Facts:
    """Write a .jsonl file a subset, rows by the names of the set's columns; a SuiteError names a row without a text."""
    names = [wanted.config] if wanted.config else patiently(wanted.path, lambda: subsets(wanted), wanted.remedy, say)
    items, facts = 0, {}
    for name in names:
        reader, lines = Reader(task, [dataclasses.replace(wanted, config=name)], say), []
        for number, row, texts in chain.from_iterable(map(reader.rows, range(len(reader.files)))):
            if None in texts:
                raise SuiteError(f"{reader.where(number)}, row {row} has no text in "
                                 f"{wanted.columns[texts.index(None)]!r}; fetch it again, or {wanted.remedy}")
            lines.append(json.dumps(dict(zip(wanted.columns, texts, strict=True)), ensure_ascii=False) + "\n")
        write_atomically(folder / f"{task if wanted.config else name}.jsonl", "".join(lines).encode())
        items, facts = items + len(lines), reader.sources[0].facts()
    return {**facts, "config": wanted.config, "subsets": len(names), "items": items}


class Filling:
    """Tokens of one domain: a hidden file for each chunk of documents, in the end one file a split.

    A file of a chunk is whole or absent, and has the `state` after it: counts, and the position up to which the domain
    was read. So a killed build resumes after the last one. `seen` holds a hash of each text: about 100 bytes of memory
    a document.
    """

    def __init__(self, config: CorpusConfig, reader: Reader, pieces: Tokenizer, work: Path) -> None:
        self.config, self.reader, self.pieces, self.work, self.name = config, reader, pieces, work, reader.name
        self.parts = sorted(work.glob(f".{self.name}-*.npz"))
        self.state: dict[str, Any] = json.loads(str(np.load(self.parts[-1])["state"])) if self.parts else {}
        identity = [[file, *size_and_time(Path(file))] if source.local else [file] for source, file in reader.files]
        if self.state.get("identity") != identity:              # new, or the data set has changed
            while self.parts:
                self.parts.pop().unlink()
            self.state = {"identity": identity, "position": [0, 0], "removed": {},
                          **{split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}}

    def missing(self, split: str) -> int:
        return self.config.asked[split] - self.state[split]["tokens"]

    @property
    def over(self) -> bool:
        return not any(map(self.missing, SPLITS))

    def run(self, progress: "Progress") -> None:
        """Read until both splits have what was asked for, or the text ends."""
        if not self.over:
            self.seen = {digest for split in SPLITS for digest in self.records(split)["digest"].tolist()}
            for chunk in ahead(self.reader.documents(tuple(self.state["position"]))):
                self.add(chunk)
                progress.tell(self.name, SAY_EVERY)
                if self.over:
                    break
        progress.total -= sum(map(self.missing, SPLITS))        # what a finite domain lacks
        progress.tell(self.name)

    def records(self, split: str) -> np.ndarray:
        return np.concatenate([np.empty(0, RECORD), *(np.load(part)[f"{split}-records"] for part in self.parts)])

    def add(self, chunk: list[HubDocument]) -> None:
        """Tokenise a chunk on all cores, then take its documents one by one in order: chunks leave no trace."""
        digests = [hashed(document.text) for document in chunk]
        splits = ["heldout" if held_out(document, self.config) else "train" for document in chunk]
        wanted = [at for at, split in enumerate(splits) if digests[at] not in self.seen and self.missing(split)]
        encoded = dict(zip(wanted, tokenizer.encode(self.pieces, [chunk[at].text for at in wanted]), strict=True))
        kept = {split: [np.empty(0, tokenizer.token_type(self.config.vocab))] for split in SPLITS}
        records: dict[str, list[tuple[int, ...]]] = {split: [] for split in SPLITS}
        removed = Counter(self.state["removed"])
        for at, (document, split, digest) in enumerate(zip(chunk, splits, digests, strict=True)):
            if self.over:
                break
            removed["rows without text"] += document.passed_over
            removed["exact copies of documents"] += digest in self.seen
            if digest not in self.seen and self.missing(split):
                there = self.state[split]
                tokens = encoded[at][:self.missing(split)]
                kept[split].append(tokens)
                records[split].append((len(tokens), document.file, document.row, digest))
                self.seen.add(digest)
                there["documents"] += 1
                there["tokens"] += len(tokens)
                there["bytes"] += len(document.text.encode()) * len(tokens) // len(encoded[at])
            self.state["position"] = list(document.after)
        self.state["removed"] = +removed            # without zeros
        content = io.BytesIO()
        np.savez(content, state=json.dumps(self.state), **{split: np.concatenate(kept[split]) for split in SPLITS},
                 **{f"{split}-records": np.array(records[split], RECORD) for split in SPLITS})
        self.parts.append(self.work / f".{self.name}-{len(self.parts):06}.npz")
        write_atomically(self.parts[-1], content.getvalue(), durable=True)

    def finish(self) -> Facts:
        """Write the domain's files; returns its facts. A SuiteError if it is too short."""
        sources, counts = self.reader.sources, {split: self.state[split] for split in SPLITS}
        remedy = f"ask for fewer, or complete the copy of {', '.join(source.set.path for source in sources)}"
        self.config.require_enough(self.name, counts, sources[-1].set.finite, remedy)
        for split in SPLITS:
            stem, records = f"{self.work}/{split}-{self.name}", self.records(split)
            with open(f"{stem}.bin", "wb") as file:
                for part in self.parts:
                    file.write(np.load(part)[split].tobytes())
            np.save(f"{stem}.starts.npy", np.cumsum(records["tokens"]) - records["tokens"])
            np.save(f"{stem}.places.npy", np.stack([records["file"].astype(np.int64), records["row"]], axis=1))
        return {**counts, "removed": dict(sorted(self.state["removed"].items())),
                "sources": [{**one.facts(), "files": list(map(one.name, one.files))} for one in sources]}


class Progress:
    """Messages of progress: tokens of all domains, tokens a second, and the time left."""

    def __init__(self, config: CorpusConfig, fillings: list[Filling], say: Say) -> None:
        self.fillings, self.say, self.begun, self.told = fillings, say, time.monotonic(), -math.inf
        self.total, self.start = len(fillings) * sum(config.asked.values()), self.done
        if self.start:
            say(f"going on after {self.start:,} tokens that are there")

    @property
    def done(self) -> int:
        return sum(filling.state[split]["tokens"] for filling in self.fillings for split in SPLITS)

    def tell(self, name: str, every: float = 0.0) -> None:
        if (now := time.monotonic()) - self.told >= every:
            self.told, done = now, self.done
            rate, share = (done - self.start) / max(now - self.begun, 1e-9), done / max(self.total, 1)
            left = f", about {duration((self.total - done) / rate)} left" if rate else ""
            self.say(f"{name}: {done:,} of {self.total:,} tokens in all ({share:.0%}), {rate:,.0f} a second{left}")


def ahead(documents: Iterator[HubDocument]) -> Iterator[list[HubDocument]]:
    """The documents in chunks; the next chunk is read while one is tokenised."""
    def chunk() -> list[HubDocument]:
        read, size = [], 0
        while size < CHUNK and (document := next(documents, None)) is not None:
            read.append(document)
            size += len(document.text)
        return read
    with ThreadPoolExecutor(1, thread_name_prefix="hub reader") as pool:
        coming = pool.submit(chunk)
        while found := coming.result():
            coming = pool.submit(chunk)
            yield found
