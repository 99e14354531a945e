"""Models whose answers are known, and a held-out corpus in memory: what the evaluations are tested with."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from data_prep import tokenizer as bpe
from lib.config import DataConfig, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.model import build_model
from suite.tasks import IGNORED

torch.set_num_threads(1)
V = 320


class Fake(nn.Module):
    """What evaluations use of a model, over logits that a function of the tokens gives."""

    def __init__(self, logits, vocab=V):
        super().__init__()
        self.logits, self.embedding, self.calls = logits, nn.Embedding.from_pretrained(torch.eye(vocab)), []

    def hidden(self, tokens, **how):
        device = tokens.device.type
        self.calls.append({**how, "shape": tuple(tokens.shape), "bf16": torch.is_autocast_enabled(device),
                           "graph": torch.is_grad_enabled(), "training": self.training})
        return self.logits(tokens)

    def alphas(self):
        return []

    def token_losses(self, tokens, targets, **how):
        logits = self.hidden(tokens, **how).transpose(1, 2)
        losses = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
        return losses.masked_fill(targets == IGNORED, torch.nan)


def uniform(vocab=V):
    return Fake(lambda tokens: torch.zeros(*tokens.shape, vocab), vocab)


def bigram(vocab=V, seed=0):
    table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(seed))
    return Fake(lambda tokens: table[tokens], vocab), table.double().log_softmax(-1)


STORY = ("Anna met Bruno by the old river. Anna gave {n} coins to Bruno, and {m} coins to Clara. Then Bruno walked "
         "home, but Clara stayed. In the evening Bruno had {n} coins and Clara had {m} coins. At last they all went "
         "back to the river.")
TEXTS = [STORY.format(n=n, m=m) for n, m in np.random.default_rng(0).integers(10, 99, (120, 2))]


class FakeCorpus:
    """Held-out text of two domains in memory."""
    domains = ("math", "stories")
    vocab = V
    path = Path("fake")

    def __init__(self):
        texts = {"math": TEXTS[:60], "stories": TEXTS[60:]}
        self._tokenizer, self.folders = bpe.train(texts["stories"], V), {}
        encoded = {d: bpe.encode(self._tokenizer, t) for d, t in texts.items()}
        self._tokens = {d: np.concatenate(e) for d, e in encoded.items()}
        self._starts = {d: np.cumsum([0, *map(len, e)])[:-1] for d, e in encoded.items()}

    def tokens(self, split, domain):
        assert split == "heldout"
        return self._tokens[domain]

    def documents(self, split, domain):
        return self._starts[domain]

    def tokenizer(self):
        return self._tokenizer

    def evaluation(self, task):
        return self.folders.get(task)


CORPUS = FakeCorpus()


def run_of(*, length=100, pattern="dense", precision="fp32", data=None, vocab=V, seed=42, **own):
    model = ModelConfig(vocab=vocab, d_model=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=24)
    train = TrainConfig(steps=1, batch=1, length=length, warmup=0, precision=precision, seed=seed)
    return RunConfig(PatternSpec.of(pattern, **own), model, train, data or DataConfig())


def values(result, measure, **where):
    return [m.value for m in result.metrics if m.measure == measure and where.items() <= vars(m).items()]


def only(result, measure, **where):
    (value,) = values(result, measure, **where)
    return value


def real(length=48, **own):
    run = run_of(length=length, **own)
    return build_model(run), run
