"""Byte-level byte-pair encoding: any text goes in, and comes out again byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"     # ends every document; number 0


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A tokeniser of at most `vocab` pieces (END, the 256 bytes, merges); fewer when the text has no more pairs to merge."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    return _literal(tokenizer)


def load(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer
    return _literal(Tokenizer.from_file(str(path)))


def _literal(tokenizer: Tokenizer) -> Tokenizer:
    """Source files quote END; a document that does must not end there."""
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Each text's pieces followed by END."""
    end = tokenizer.token_to_id(END)
    encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array([*e.ids, end], token_type(tokenizer.get_vocab_size())) for e in encoded]


def token_type(vocab: int) -> type[np.unsignedinteger]:
    """The smallest of uint16 and uint32 that holds the numbers 0 to `vocab - 1`."""
    return np.uint16 if vocab <= 1 << 16 else np.uint32
