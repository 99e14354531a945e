"""A finished corpus, and batches from it. `data_prep.build.corpus` builds or opens one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lib.config import DataConfig, fingerprint
from lib.errors import SuiteError, one_of, require

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

SPLITS = ("train", "heldout")


class Corpus:
    """Token files of one folder, read from the disk as they are needed.

    `manifest` holds counts, checksums and versions; `fingerprint` is of its content without the notes, so that it is
    the same for equal text wherever it lies.
    """

    def __init__(self, path: Path) -> None:
        """Open; a SuiteError if a file is missing or has another size than the manifest says."""
        self.path = Path(path)
        try:
            self.manifest: dict[str, Any] = json.loads((self.path / "manifest.json").read_text("utf-8"))
        except FileNotFoundError:
            raise SuiteError(f"{self.path} holds no finished corpus (no manifest.json)") from None
        self.vocab: int = self.manifest["config"]["vocab"]
        self.apart: tuple[str, ...] = tuple(self.manifest.get("apart", ()))     # `CorpusConfig.apart`
        self.domains: tuple[str, ...] = tuple(name for name in self.manifest["domains"] if name not in self.apart)
        for name, facts in self.manifest["files"].items():
            file = self.path / name
            if not file.is_file() or file.stat().st_size != facts["size"]:
                raise SuiteError(f"{file} is missing or damaged; delete {self.path}, it will be built again")

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint({key: value for key, value in self.manifest.items() if key != "notes"})

    def tokens(self, split: str, domain: str) -> np.ndarray:
        """uint16 or uint32 `[N]`, mapped from the disk: the documents in order, each with an end token.

        The end token is the tokeniser's (token 0 of the suite's own tokeniser).
        """
        return np.memmap(self.path / self._name(split, domain, "bin"), np.dtype(self.manifest["token_type"]), "r")

    def documents(self, split: str, domain: str) -> np.ndarray:
        """int64 `[documents]`: where each document starts in `tokens`."""
        return np.load(self.path / self._name(split, domain, "starts.npy"))

    def names(self, split: str, domain: str) -> list[str]:
        """Where each document comes from: module, file and row, or generator and number."""
        if self.manifest["source"] == "hub":
            files = [file for source in self.manifest["domains"][domain]["sources"] for file in source["files"]]
            places = np.load(self.path / self._name(split, domain, "places.npy"))
            return [f"{files[file]}#{row}" for file, row in places]
        return json.loads((self.path / self._name(split, domain, "names.json")).read_text("utf-8"))

    def evaluation(self, task: str) -> Path | None:
        """The folder of an evaluation set of the hub, with .jsonl files; None where the corpus came without."""
        return self.path / "evaluations" / task if task in self.manifest.get("evaluations", ()) else None

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.path / "tokenizer.json")

    def _name(self, split: str, domain: str, kind: str) -> str:
        return f"{one_of(split, SPLITS, 'split')}-{one_of(domain, (*self.domains, *self.apart), 'domain')}.{kind}"


class Source(Protocol):
    """Where training batches come from.

    A source has no state: a batch is a pure function of `(seed, step)`, so that a resumed run sees the same batches.
    """
    vocab: int

    def batch(self, seed: int, step: int, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int64 `[size, length]`; a target of -100 is not scored."""
        ...


class TextSource:
    """Windows of training tokens drawn uniformly with replacement; targets are the inputs one token later.

    The domain of each window is drawn by the weights of the mixture, which are therefore shares of tokens; without a
    mixture they are equal. Raises `SuiteError` for an unknown domain and for weights that are no weights.
    """

    def __init__(self, corpus: Corpus, mixture: Mapping[str, float] | None = None) -> None:
        mixture = dict.fromkeys(corpus.domains, 1.0) if mixture is None else mixture
        for domain, weight in mixture.items():
            if domain not in corpus.domains:
                one_of(domain, (*corpus.domains, *corpus.apart), "domain of the mixture")
            require(isinstance(weight, (int, float)) and 0 <= weight < float("inf"), f"mixture[{domain!r}]", weight,
                    "a number of at least 0")
        require(sum(mixture.values()) > 0, "mixture", dict(mixture), "at least one weight above 0")
        self.vocab = corpus.vocab
        self.domains = tuple(domain for domain, weight in mixture.items() if weight)
        self._shares = np.cumsum([mixture[domain] for domain in self.domains]) / sum(mixture.values())
        self._shares[-1] = 1        # rounding may leave it just below, and a draw above it
        self._tokens = [np.asarray(corpus.tokens("train", domain)) for domain in self.domains]

    def batch(self, seed: int, step: int, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch
        for domain, tokens in zip(self.domains, self._tokens, strict=True):
            if len(tokens) <= length:
                raise SuiteError(f"length = {length} is not valid: the {len(tokens)} training tokens of domain "
                                 f"{domain!r} hold no window of that length and the token after it")
        random = np.random.default_rng([seed, step])
        chosen = np.searchsorted(self._shares, random.random(size), side="right")
        at = random.random(size)
        windows = np.empty((size, length + 1), np.int64)
        for number, tokens in enumerate(self._tokens):
            rows = chosen == number
            starts = (at[rows] * (len(tokens) - length)).astype(np.int64)
            windows[rows] = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[starts]
        drawn = torch.from_numpy(windows)
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def domains_of(data: DataConfig, corpus: Corpus) -> tuple[str, ...]:
    """The domains that a run on text is evaluated on: the run's own `domains`, or all of the corpus."""
    return tuple(dict(data.parameters).get("domains", corpus.domains))


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokeniser in the file `path`; no piece is read as special, since documents may quote special pieces."""
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def heldout_windows(corpus: Corpus, domain: str, length: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int64 `[N, length]`: the held-out tokens in order, in windows that do not overlap.

    N is `tokens // length`, or fewer where the domain ends before. Raises `SuiteError` if no window fits.
    """
    import torch
    require(length >= 1, "length", length, "an integer of at least 1")
    heldout = corpus.tokens("heldout", domain)
    count = min(tokens, len(heldout) - 1) // length
    if count < 1:
        raise SuiteError(f"length = {length} is not valid: no window of that length fits tokens = {tokens} and the "
                         f"{len(heldout)} held-out tokens of domain {domain!r}")
    part = torch.from_numpy(heldout[:count * length + 1].astype(np.int64))
    return part[:-1].view(count, length), part[1:].clone().view(count, length)
