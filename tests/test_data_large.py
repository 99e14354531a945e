"""Token files beyond 4 GiB, sparse on the disk: the last windows are read where they are."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from lib.data import Corpus, text_source

TOKENS = (1 << 31) + 9_000          # two bytes each: more than 4 GiB, and more than an int32 counts
MARK = 4_000                        # tokens at the end that are not zero


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("large")
    files = {}
    for split in ("train", "heldout"):
        path = folder / f"{split}-web.bin"
        with path.open("wb") as file:
            file.truncate(2 * TOKENS)
            file.seek(2 * (TOKENS - MARK))
            file.write(np.arange(1, MARK + 1, dtype=np.uint16).tobytes())
        np.save(folder / f"{split}-web.starts.npy", np.array([0, TOKENS - MARK], np.int64))
        files[path.name] = {"size": path.stat().st_size, "sha256": ""}
    if os.stat(folder / "train-web.bin").st_blocks * 512 > 1 << 30:
        pytest.skip("the disk here has no sparse files")
    counts = {"documents": 2, "tokens": TOKENS, "bytes": TOKENS}
    (folder / "manifest.json").write_text(json.dumps({
        "source": "offline", "config": {"vocab": 5000}, "token_type": "uint16", "files": files,
        "domains": {"web": {"train": counts, "heldout": counts}}}))
    return Corpus(folder)


def test_when_a_file_is_beyond_4_gib_then_its_last_document_is_where_its_start_says(large):
    assert (large.path / "train-web.bin").stat().st_size > 1 << 32
    start = large.documents("train", "web")[-1]
    tokens = large.tokens("train", "web")
    assert len(tokens) == TOKENS and start > np.iinfo(np.int32).max and tokens[start:start + 3].tolist() == [1, 2, 3]
    assert tokens[start - 1] == 0 and tokens[-1] == MARK


def test_when_windows_are_drawn_then_the_last_possible_one_is_the_end_of_the_file(large, monkeypatch):
    largest = SimpleNamespace(random=lambda size: np.full(size, 1 - 2.0 ** -53))       # that a stream can give
    monkeypatch.setattr(np.random, "default_rng", lambda seed: largest)
    inputs, targets = text_source(large).batch(0, 0, 3, 100)
    assert inputs[0].tolist() == list(range(MARK - 100, MARK)) and (inputs[1] == inputs[0]).all()
    assert targets[0].tolist() == list(range(MARK - 99, MARK + 1))
