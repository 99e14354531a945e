"""Documents of a domain as far as they are needed, without copies, and their split into training and held-out."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data_prep import folder, mathematics, sources, stories
from data_prep.clean import Duplicates
from data_prep.config import CorpusConfig
from data_prep.sources import Document
from lib.errors import SuiteError

if TYPE_CHECKING:
    from datasets import Dataset

BATCH = 128             # documents compared at once
HELDOUT = 0.1           # of a person's own text, by bytes, where there is less than was asked for
TOKENIZER_BYTES = 2_000_000     # of each domain's training split; more changes the pieces of a small vocabulary little
LEAST_HELDOUT = 2 * 1024 + 1    # tokens of a domain of a person's own: two windows of the longest default evaluation
LEAST = {"train": 8 * LEAST_HELDOUT, "heldout": LEAST_HELDOUT}
RUN = 8                 # documents in sequence that are held out together, so that long windows stay in one place


class Domain:
    """Hands out a domain's documents in order, each once, until it is `exhausted`; `removed` counts what was left out."""

    def __init__(self, name: str, documents: Iterator[Document], removed: Counter[str] | None = None,
                 files: list[Path] | None = None) -> None:
        self.name = name
        self.files = files or []         # of a person's own; empty for the offline corpus
        self.name_hash = hashlib.sha256(name.encode()).hexdigest()[:16]
        self._documents = documents
        self.removed: Counter[str] = Counter() if removed is None else removed
        self._duplicates = Duplicates(self.removed, "documents")
        self.exhausted = False
        self._taken = 0

    def take(self, tokens: int, vocab: int) -> Dataset:
        """The next documents (columns name, text): as many as make up `tokens`, rather more; fewer at the end."""
        import datasets
        missing, parts = tokens * bytes_a_token(vocab), []
        while missing > 0 and (batch := self._batch(missing)):
            rows = datasets.Dataset.from_dict({"name": [d.name for d in batch], "text": [d.text for d in batch]})
            self._taken += 1
            fresh = rows.filter(self._duplicates.fresh, input_columns="text", batched=True, batch_size=None,
                                keep_in_memory=True, new_fingerprint=f"{self.name_hash}-{self._taken}")
            parts.append(fresh)
            missing -= sum(len(text.encode()) for text in fresh["text"])
        return datasets.concatenate_datasets(parts) if parts else datasets.Dataset.from_dict({"name": [], "text": []})

    def _batch(self, size: float) -> list[Document]:
        batch = []
        for document in self._documents:
            batch.append(document)
            size -= len(document.text)
            if len(batch) == BATCH or size <= 0:
                return batch
        self.exhausted = True
        return batch


def bytes_a_token(vocab: int) -> float:
    """Bytes a token that no domain exceeds by much: 2.0 at 512 pieces, 2.8 at 2048, 4.4 at 32,768."""
    return 0.4 * math.log2(vocab) - 1.6


def offline_domains(config: CorpusConfig) -> list[Domain]:
    result = []
    for name, read in (("docs", sources.docs), ("code", sources.code)):
        removed: Counter[str] = Counter()
        result.append(Domain(name, read(config.seed, removed), removed))
    return [*result, Domain("stories", stories.stories(config.seed)), Domain("math", mathematics.worksheets(config.seed))]


def folder_domains(config: CorpusConfig, found: dict[str, list[Path]], notes: list[str]) -> list[Domain]:
    root = Path(config.folder).expanduser().resolve()

    def order(path: Path) -> bytes:
        return hashlib.sha256(f"{config.seed}/{path.relative_to(root).as_posix()}".encode()).digest()
    return [Domain(name, folder.documents(root, sorted(files, key=order), notes), files=files)
            for name, files in sorted(found.items())]


def split(domain: Domain, config: CorpusConfig) -> tuple[Dataset, Dataset]:
    """Training and held-out documents. Offline: the first ones are held out, as their order is random by itself.

    A person's own: `heldout_tokens`, or a tenth where text is scarce, in seeded runs of neighbouring documents; order stays.
    """
    documents = domain.take(config.train_tokens + config.heldout_tokens, config.vocab)
    sizes = np.array([len(text.encode()) for text in documents["text"]], np.int64)
    if not domain.files and sizes.sum() < config.train_tokens + config.heldout_tokens:
        raise SuiteError(f"train_tokens = {config.train_tokens} is not valid: domain {domain.name!r} of the offline corpus "
                         f"has {sizes.sum() / 1e6:.0f} MB of text, fewer tokens than that; ask for less, or give a folder")
    most = 1.5 * config.heldout_tokens * bytes_a_token(config.vocab)      # as it cannot be topped up later
    if domain.files:
        run = max(1, min(RUN, len(documents) // 24))
        runs = np.arange(len(documents)) // run
        rank = np.random.default_rng(config.seed).permutation(len(documents) // run + 1)[runs]
        order = np.argsort(rank, kind="stable")
        if domain.exhausted:
            most = min(most, HELDOUT * sizes.sum())
    else:
        order = np.arange(len(documents))
    before = np.cumsum(sizes[order]) - sizes[order]
    held = np.sort(order[before < most])
    kept = np.setdiff1d(order, held)
    return documents.select(kept), documents.select(held)
