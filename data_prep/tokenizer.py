"""Text to pieces: the suite's own byte-level byte-pair encoding, or any tokeniser of the Hugging Face hub."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lib.data import load_tokenizer
from lib.errors import SuiteError
from lib.paths import ROOT, named_by

SAMPLE = 2_000_000        # bytes of each domain's training split; more changes the pieces of a small vocabulary little
END = "<|endoftext|>"     # ends every document; number 0 of the suite's own pieces
ENDS = (END, "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "<|eot_id|>", "[SEP]")     # what others call it


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A tokeniser of at most `vocab` pieces: END, 256 bytes, merges. Fewer if the text has no more pairs to merge."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True      # a document that quotes END must not end there
    return tokenizer


def beginning(texts: Iterable[str]) -> Iterator[str]:
    """The first texts, as many as make up SAMPLE bytes: what a domain gives to train a tokeniser on."""
    size = 0
    for text in texts:
        yield text
        size += len(text.encode())
        if size >= SAMPLE:
            return


def named(name: str) -> Tokenizer:
    """The tokeniser of a name on the hub (or in the folder `SUITE_HUB`), or of a file or folder with tokenizer.json.

    Raises what the hub and the network raise, and a SuiteError where a file is no tokeniser or has no end of a text.
    """
    places = [Path(os.path.expanduser(name)), (named_by("SUITE_HUB") or ROOT) / name]
    file = next((path for place in places for path in (place, place / "tokenizer.json") if path.is_file()), None)
    if file is None:
        import huggingface_hub
        file = Path(huggingface_hub.hf_hub_download(name, "tokenizer.json"))
    try:
        tokenizer = load_tokenizer(file)
    except Exception as error:          # the library has no error of its own
        raise SuiteError(f"{file} is no tokeniser ({error}); tokenizer.json of the Hugging Face library is") from error
    end_of(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_of(tokenizer: Tokenizer) -> int:
    """The number of the piece that ends a document."""
    if (numbers := [number for name in ENDS if (number := tokenizer.token_to_id(name)) is not None]):
        return numbers[0]
    raise SuiteError(f"the tokeniser has no piece that ends a text (none of {', '.join(ENDS)}); name another one")


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Each text's pieces followed by the one that ends a document."""
    end = end_of(tokenizer)
    encoded = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array([*e.ids, end], token_type(tokenizer.get_vocab_size())) for e in encoded]


def token_type(vocab: int) -> type[np.unsignedinteger]:
    """The smallest of uint16 and uint32 that holds the numbers 0 to `vocab - 1`."""
    return np.uint16 if vocab <= 1 << 16 else np.uint32
