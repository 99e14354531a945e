"""Interpolated Kneser-Ney n-grams: what counting alone predicts. A model that does not pass them says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lib.data import Corpus


def baseline(corpus: Corpus, order: int, tokens: int, heldout: int, weights: dict[str, float]) -> float:
    """Loss of an n-gram (nats a token), the mean over domains, counted on as many tokens as a model is trained on.

    tokens: of training, shared by the domains as `weights` say (fractions). heldout: tokens of each domain.
    """
    train = [np.asarray(corpus.tokens("train", domain)[:round(share * tokens)]) for domain, share in weights.items()]
    return float(np.mean([kneser_ney(train, np.asarray(corpus.tokens("heldout", domain)[:heldout]), order, corpus.vocab)
                          for domain in weights]))


def kneser_ney(train: list[np.ndarray], text: np.ndarray, order: int, vocab: int) -> float:
    """Mean loss of `text` (nats a token) under an n-gram of `train`; tokens are below `vocab`, `vocab ** order < 2^63`.

    The probability is interpolated down to a uniform one; each order has the discount n1 / (n1 + 2 n2), and orders
    below the highest count the distinct tokens before them. Source: Chen and Goodman 1999, section 2.7.
    """
    keys, counts = np.unique(np.concatenate([grams(part, order, vocab) for part in train]), return_counts=True)
    levels = [(keys, counts)]                                       # from the highest order to single tokens
    for n in range(order - 1, 0, -1):
        levels.append(np.unique(levels[-1][0] % vocab ** n, return_counts=True))
    p = np.full(len(text), 1 / vocab)
    for n, (keys, counts) in enumerate(reversed(levels), 1):
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        discount = once / max(1, once + 2 * twice)
        histories, first = np.unique(keys // vocab, return_index=True)
        totals = np.add.reduceat(counts, first)
        followers = np.diff(np.append(first, len(keys)))
        wanted = grams(text, n, vocab)
        seen = found(keys, counts, wanted)
        total = found(histories, totals, wanted // vocab)
        left = discount * found(histories, followers, wanted // vocab)
        known, lower = total > 0, p[n - 1:]
        p[n - 1:] = np.where(known, (np.maximum(seen - discount, 0) + left * lower) / np.maximum(total, 1), lower)
    return float(-np.log(p[order - 1:]).mean())


def grams(text: np.ndarray, n: int, vocab: int) -> np.ndarray:
    """Every n tokens in a row as one number."""
    keys = np.zeros(len(text) - n + 1, np.int64)
    for at in range(n):
        keys = keys * vocab + text[at:len(text) - n + 1 + at]
    return keys


def found(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where there is none; `keys` ascend."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
