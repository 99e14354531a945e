"""What must not be learned by heart or leak into the held-out split: licence notices, copies and near-copies."""

import hashlib
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

LICENCE = re.compile(r"copyright|\(c\) *[12]\d\d\d|licen[cs]ed? (?:under|v\d)|spdx-|all rights reserved"
                     r"|permission is hereby|redistribution and use|without warranty|warranties or conditions",
                     re.IGNORECASE)

SHINGLE = 5        # words
NEAR = 0.7         # Jaccard similarity of two sets of shingles from which one text is a copy of the other
BANDS, ROWS = 10, 3     # a pair at 0.7 meets in a band with probability 1 - (1 - 0.7^3)^10 = 0.985

_RANDOM = np.random.default_rng(20_606)
_WORD_FACTORS = _RANDOM.integers(1 << 62, size=SHINGLE, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_HASH_FACTORS = _RANDOM.integers(1 << 62, size=BANDS * ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def without_licence_paragraphs(text: str) -> str:
    """Prose without the paragraphs that state a licence or a copyright."""
    return "\n\n".join(p for p in re.split(r"\n\s*\n", text) if not LICENCE.search(p)).strip()


def without_licence_header(source: str) -> str:
    """Python source without the leading comments, when these state a licence; an interpreter line goes with them."""
    lines = source.split("\n")
    top = next((i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), len(lines))
    return "\n".join(lines[top:] if LICENCE.search("\n".join(lines[:top])) else lines)


def shingles(texts: Sequence[str]) -> list[np.ndarray]:
    """The sorted, distinct 64-bit hashes of each text's runs of five words (letters and digits, any case).

    A text of fewer words is padded: every text has at least one run.
    """
    result = []
    for text in texts:
        words = np.fromiter(map(zlib.crc32, re.findall(rb"\w+", text.lower().encode())), np.uint64)
        words = np.pad(words, (0, max(0, SHINGLE - len(words))))
        count = len(words) - SHINGLE + 1
        mixed = sum((words[k:k + count] * _WORD_FACTORS[k] for k in range(SHINGLE)), np.zeros(count, np.uint64))
        result.append(np.unique(mixed ^ (mixed >> np.uint64(29))))
    return result


def signatures(sets: Sequence[np.ndarray]) -> np.ndarray:
    """MinHash: uint64 `[texts, BANDS * ROWS]`. Entries of two texts are equal with the probability of their Jaccard
    similarity."""
    joined = np.concatenate(sets)
    starts = np.cumsum([0, *map(len, sets[:-1])])
    least = [np.minimum.reduceat((joined * factor) >> np.uint64(20), starts) for factor in _HASH_FACTORS]
    return np.stack(least, axis=1)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


class Duplicates:
    """Remembers texts and finds those that copy an earlier one, exactly or nearly.

    Exact copies are equal when case and white space are ignored. Near copies have a Jaccard similarity of shingles of
    at least `NEAR`; MinHash bands find candidates (Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4).
    `removed` counts the copies, by kind and by what they are copies `of`. The search is written out because with
    datasketch the draw of its permutations decides about one text in four thousand, and it takes three times as long.
    """

    def __init__(self, removed: Counter[str], of: str) -> None:
        self._removed, self._of = removed, of
        self._exact: set[bytes] = set()
        self._kept: list[np.ndarray] = []
        self._bands: list[dict[bytes, list[int]]] = [defaultdict(list) for _ in range(BANDS)]

    def fresh(self, texts: Sequence[str]) -> list[bool]:
        """For each text in order: False when it copies one seen before, in this call or an earlier one."""
        if not texts:
            return []
        sets = shingles(texts)
        return [self._add(*each) for each in zip(texts, sets, signatures(sets), strict=True)]

    def _add(self, text: str, shingled: np.ndarray, signature: np.ndarray) -> bool:
        digest = hashlib.blake2b(" ".join(text.lower().split()).encode(), digest_size=16).digest()
        if digest in self._exact:
            self._removed[f"exact copies of {self._of}"] += 1
            return False
        bands = [(band, row.tobytes()) for band, row in zip(self._bands, signature.reshape(BANDS, ROWS), strict=True)]
        candidates = {i for band, key in bands for i in band.get(key, ())}
        if any(jaccard(shingled, self._kept[i]) >= NEAR for i in candidates):
            self._removed[f"near copies of {self._of}"] += 1
            return False
        self._exact.add(digest)
        for band, key in bands:
            band[key].append(len(self._kept))
        self._kept.append(shingled)
        return True
