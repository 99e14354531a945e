"""What to build: the corpus that a profile or a folder of text asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lib.errors import SuiteError, one_of, require

Say = Callable[[str], None]     # receives messages of progress
LEAST_HELDOUT = 2 * 1024 + 1    # tokens of a domain with less text than was asked for: two windows of 1024
LEAST = {"train": 8 * LEAST_HELDOUT, "heldout": LEAST_HELDOUT}


@dataclass(frozen=True)
class CorpusConfig:
    """What to build. Numbers of tokens are exact, but upper bounds of a folder and of finite domains of the hub."""
    folder: str = ""                  # a person's own text (`data_prep.folder`); empty: the offline corpus
    vocab: int = 2048                 # pieces of the tokeniser
    train_tokens: int = 3_500_000     # a domain
    heldout_tokens: int = 150_000     # a domain
    seed: int = 0                     # which documents, in which order; the generators' text
    hub: tuple[str, ...] = ()         # domains of the Hugging Face hub (hub.yaml) in place of the offline corpus
    apart: tuple[str, ...] = ()       # further ones, for the runs that name them; no other run is evaluated on them
    tokenizer: str = ""               # of hub text: a name on the hub or a path; empty: one trained on the text

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains of the hub, `apart` or not."""
        return (*self.hub, *self.apart)

    @property
    def asked(self) -> dict[str, int]:
        return {"train": self.train_tokens, "heldout": self.heldout_tokens}

    def __post_init__(self) -> None:
        require(not (self.folder and self.hub), "hub", self.hub, "empty where there is a folder")
        require(bool(self.hub) or not (self.apart or self.tokenizer), "hub", self.hub,
                "domains, for `apart` and `tokenizer`")
        if self.hub:
            from data_prep.hub import DOMAINS
            for name in self.domains:
                one_of(name, DOMAINS, "domain of the hub")
                require(self.domains.count(name) == 1, "hub", self.domains, "each domain once")
        require(257 <= self.vocab < 1 << 32, "vocab", self.vocab,
                "at least 257: the 256 bytes and the end of a document")
        for split, tokens in self.asked.items():
            require(tokens >= 1000, f"{split}_tokens", tokens, "an integer of at least 1000")
        require(self.seed >= 0, "seed", self.seed, "0 or more")

    def require_enough(self, domain: str, counts: dict[str, Any], finite: bool, remedy: str) -> None:
        """Raise a SuiteError where a domain has fewer tokens than were asked for; if `finite`, than a model needs.

        `counts` has the documents, tokens and bytes of each split.
        """
        for split, asked in self.asked.items():
            least = min(LEAST[split], asked) if finite else asked
            if (there := counts[split]["tokens"]) < least:
                raise SuiteError(f"domain {domain!r} has {there:,} {split} tokens without copies, at vocab = "
                                 f"{self.vocab}; {least:,} are needed: {remedy}")
