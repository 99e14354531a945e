"""Training batches: a pure function of seed and step, uniform over positions, mixed by tokens; files beyond 4 GiB."""

import json
import math
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib.config import DataConfig
from lib.data import Corpus, TextSource
from lib.errors import SuiteError
from suite.tasks import make_source


class Positions:
    """A corpus whose token at position p of domain k is 10_000 * k + p."""
    vocab = 40_000
    domains, apart = ("a", "b", "c"), ()
    lengths = {"a": 700, "b": 41, "c": 9000}

    def tokens(self, split: str, domain: str) -> np.ndarray:
        assert split == "train"
        return (np.arange(self.lengths[domain]) + 10_000 * self.domains.index(domain)).astype(np.uint16)


def test_when_a_batch_is_drawn_then_seed_and_step_decide_its_runs_of_one_domain_and_no_global_stream_moves():
    source, before = TextSource(Positions()), (torch.get_rng_state(), np.random.get_state()[1].tolist())
    first, *others = (source.batch(*at, 8, 32)[0] for at in ((3, 5), (3, 6), (5, 3)))
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]
    torch.rand(3)
    assert torch.equal(first, TextSource(Positions()).batch(3, 5, 8, 32)[0])
    assert not any(torch.equal(first, other) for other in others)
    inputs, targets = source.batch(0, 0, 64, 40)
    assert inputs.shape == (64, 40) and inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1) and torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)


def test_when_many_are_drawn_then_starts_are_equally_likely_and_tokens_come_by_the_mixture_and_not_by_size():
    inputs, targets = TextSource(Positions(), {"b": 1.0}).batch(1, 0, 42_000, 20)
    counts = np.bincount(inputs[:, 0].numpy() - 10_000, minlength=21)
    assert len(counts) == 41 - 20 and targets.max() == 10_040      # the first and the last window are there
    statistic = ((counts - 2000) ** 2 / 2000).sum()
    assert statistic < 45.3         # 99.9 % of chi-square with 20 degrees of freedom
    inputs, _ = TextSource(Positions(), {"a": 3.0, "c": 1.0, "b": 0.0}).batch(2, 0, 40_000, 20)
    shares = np.bincount(inputs[:, 0].numpy() // 10_000, minlength=3) / 40_000
    assert shares == pytest.approx([0.75, 0.0, 0.25], abs=4 * (0.75 * 0.25 / 40_000) ** 0.5)
    equal = np.bincount(TextSource(Positions()).batch(2, 0, 30_000, 20)[0][:, 0].numpy() // 10_000) / 30_000
    assert equal == pytest.approx([1 / 3] * 3, abs=0.012)
    data = DataConfig.of("text", mixture=(("a", 3.0), ("c", 1.0), ("b", 0.0)))
    assert torch.equal(make_source(data, Positions()).batch(2, 0, 40_000, 20)[0], inputs)


def drawn(mixture):
    return TextSource(Positions(), mixture)


@pytest.mark.parametrize(("message", "call"), [
    ("unknown domain of the mixture 'd'", lambda: drawn({"d": 1.0})),
    (r"mixture\['a'\] = -1.0", lambda: drawn({"a": -1.0})), ("at least one weight", lambda: drawn({"a": 0.0})),
    (r"mixture\['a'\] = nan", lambda: drawn({"a": math.nan})), (r"mixture\['a'\] = '1'", lambda: drawn({"a": "1"})),
    ("at least one weight", lambda: drawn({})), ("needs a corpus", lambda: make_source(DataConfig(), None)),
    ("length = 41 .* 41 training tokens of domain 'b'", lambda: drawn(None).batch(0, 0, 2, 41)),
    ("unknown parameter of data source 'text' 'mixtur'; did you mean 'mixture'",
     lambda: make_source(DataConfig.of("text", mixtur=(("a", 1.0),)), Positions()))])
def test_when_a_mixture_a_length_or_a_source_is_wrong_then_the_error_names_it(message, call):
    with pytest.raises(SuiteError, match=message):
        call()


# Token files beyond 4 GiB, sparse on the disk: the last windows are read where they are

TOKENS = (1 << 31) + 9_000          # two bytes each: more than 4 GiB, and more than an int32 counts
MARK = 4_000                        # tokens at the end that are not zero


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path = tmp_path_factory.mktemp("large") / "train-web.bin"
    with path.open("wb") as file:
        file.truncate(2 * TOKENS)
        file.seek(2 * (TOKENS - MARK))
        file.write(np.arange(1, MARK + 1, dtype=np.uint16).tobytes())
    if os.stat(path).st_blocks * 512 > 1 << 30:
        pytest.skip("the disk here has no sparse files")
    np.save(path.with_name("train-web.starts.npy"), np.array([0, TOKENS - MARK], np.int64))
    counts = {"documents": 2, "tokens": TOKENS, "bytes": TOKENS}
    path.with_name("manifest.json").write_text(json.dumps({
        "source": "offline", "config": {"vocab": 5000}, "token_type": "uint16",
        "files": {path.name: {"size": path.stat().st_size, "sha256": ""}}, "domains": {"web": {"train": counts}}}))
    return Corpus(path.parent)


def test_when_a_file_is_beyond_4_gib_then_documents_and_the_last_window_are_where_they_are(large, monkeypatch):
    tokens, start = large.tokens("train", "web"), large.documents("train", "web")[-1]
    assert len(tokens) == TOKENS and start > np.iinfo(np.int32).max and tokens[start:start + 3].tolist() == [1, 2, 3]
    assert tokens[start - 1] == 0 and tokens[-1] == MARK
    largest = SimpleNamespace(random=lambda size: np.full(size, 1 - 2.0 ** -53))       # that a stream can give
    monkeypatch.setattr(np.random, "default_rng", lambda seed: largest)
    inputs, targets = TextSource(large).batch(0, 0, 3, 100)
    assert inputs[0].tolist() == list(range(MARK - 100, MARK)) and (inputs[1] == inputs[0]).all()
    assert targets[0].tolist() == list(range(MARK - 99, MARK + 1))
