"""Trained models on held-out text: what a query attends, how much of that is far, and the loss of every token."""

import html
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from lib import paths
from lib.attention import sparse_attention
from lib.checkpoint import WEIGHTS
from lib.config import RunConfig
from lib.data import Corpus, domains_of, heldout_windows
from lib.errors import require
from lib.model import Transformer
from lib.patterns import names
from lib.rope import heads
from lib.training import load_run
from suite.lab.controls import Panel, Screen, choice, slider
from suite.run.browse import settings
from suite.run.database import Database
from suite.settings.fingerprints import run_fingerprint
from suite.study import figures

NONE = ("No trained model is here yet. `make notebook NAME=03_extrapolation PROFILE=smoke` trains some in a minute or "
        "two, `make report` those of the report; then run this cell again.")
WINDOWS = 4                # held-out windows of a domain: to choose from, and to average over
NEAR = 8                   # the last distance that is near, where the pattern's window is not one number
HARD, DIFFERENT = 8.0, 12  # nats that are shaded fully; tokens listed that two models differ most on
BLUE, RED = "0,114,178", "213,94,0"


@dataclass(frozen=True)
class Trained:
    """A finished run whose weights and text are on the disk, made by the code that is here."""
    profile: str
    key: str
    run: RunConfig
    corpus: Corpus = field(compare=False)

    def __str__(self) -> str:
        how = f"{self.run.pattern.name} {settings(self.run.pattern)}".strip()
        return f"{self.profile}: {how}, seed {self.run.train.seed} ({self.key[:8]})"

    @lru_cache(maxsize=8)
    def model(self) -> Transformer:
        return load_run(self.run, paths.run_folder(self.profile, self.key)).model.eval()

    @property
    def near(self) -> int:
        window = getattr(self.model().pattern, "window", None)
        return window if isinstance(window, int) else NEAR

    @property
    def domains(self) -> Sequence[str]:
        return domains_of(self.run.data, self.corpus)

    def windows(self, domain: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets `[N, T]`, at most WINDOWS of them, held out."""
        return heldout_windows(self.corpus, domain, self.run.train.length, WINDOWS * self.run.train.length)

    def pieces(self, tokens: torch.Tensor) -> list[str]:
        tokenizer = self.corpus.tokenizer()
        return [tokenizer.decode([token], skip_special_tokens=False) for token in tokens.tolist()]


def trained() -> list[Trained]:
    """The language models of all profiles that can be looked at."""
    corpora = [Corpus(path.parent) for path in sorted(paths.corpora().glob("*/manifest.json"))]
    texts, found = {corpus.fingerprint: corpus for corpus in corpora}, []
    for path in sorted(paths.outputs().glob("*/runs.sqlite")):
        with closing(Database(path.parent.name, create=False)) as database:
            for row in database.rows("select * from runs where status = 'done' order by pattern, id"):
                own = Trained(path.parent.name, row["run"], RunConfig.from_dict(json.loads(row["config"])),
                              texts.get(row["data"]))
                weights = paths.run_folder(own.profile, own.key) / WEIGHTS
                if own.corpus and weights.is_file() and own.run.pattern.name in names() \
                        and run_fingerprint(own.run, own.corpus) == own.key:
                    found.append(own)
    return found


@torch.no_grad()
def weights(model: Transformer, tokens: torch.Tensor, layer: int) -> torch.Tensor:
    """Attention weights `[B, H, T, T]` of a layer for tokens `[B, T]`, float32: row i is query i.

    They are what attention answers where the values are one-hot, so that rungs between two keys have them too.
    """
    given, module, T = [], model.blocks[layer].attention, tokens.shape[1]
    with module.register_forward_pre_hook(lambda _, arguments: given.extend(arguments)):
        model.hidden(tokens)
    x, pattern, turn, slopes = given[:4]
    q, k, v = heads(F.linear(x, module.qkv), turn, module.H, module.G)
    one_hot = torch.eye(T, -(-T // module.D) * module.D).split(module.D, dim=1)
    answers = [sparse_attention(q, k, values.expand_as(v).contiguous(), pattern, layer, slopes=slopes,
                                **pattern.arguments(module.theta, layer)) for values in one_hot]
    return torch.cat(answers, dim=-1)[..., :T]


@lru_cache(maxsize=32)
def far_shares(own: Trained) -> tuple[pd.DataFrame, float]:
    """Share of the weight on keys beyond `near` by layer and head, mean over queries and text; that of the keys."""
    tokens, rows, keys = torch.cat([own.windows(domain)[0] for domain in own.domains]), [], []
    d = torch.arange(own.run.train.length)
    far = d[:, None] - d > own.near
    for layer in range(own.run.model.layers):
        every = []
        for window in tokens:
            weight = weights(own.model(), window[None], layer)[0]
            every.append((weight * far).sum(-1).mean(-1))
        rows.append(torch.stack(every).mean(0).tolist())
        keys.append(float(((weight > 0) & far).sum() / (weight > 0).sum()))
    return pd.DataFrame(rows), float(np.mean(keys))


def shaded(texts: Sequence[str], strength: np.ndarray, color: str, titles: Sequence[str], framed: int = -1) -> str:
    """Tokens as HTML, shaded by a strength from 0 to 1."""
    spans = [f'<span title="{html.escape(title)}" style="background:rgba({color},{min(1.0, value):.2f})'
             f'{";outline:2px solid" if at == framed else ""}">{html.escape(text)}</span>'
             for at, (text, value, title) in enumerate(zip(texts, strength, titles, strict=True))]
    return f'<div style="flex:1;white-space:pre-wrap;font-family:monospace;line-height:1.5">{"".join(spans)}</div>'


def attention() -> Panel | None:
    """A query's weights on the text, and the share of far keys in every layer and head."""
    runs, text, said, table = trained(), Screen(), Screen(), Screen()
    if not runs:
        return text.show(NONE)

    def draw(run: Trained, domain: str, window: int, layer: int, head: int, query: int) -> None:
        tokens = run.windows(domain)[0][window]
        row, pieces = weights(run.model(), tokens[None], layer)[0, head, query].numpy(), run.pieces(tokens)
        most = ", ".join(f"{pieces[at]!r} ({query - at} back, {100 * row[at]:.0f} %)" for at in np.argsort(-row)[:3])
        far = 100 * row[:max(0, query - run.near)].sum()
        plain = (f"Query {query}, {pieces[query]!r}, looks most at {most}; {far:.0f} % of its weight falls on far "
                 f"keys, more than {run.near} back.")
        titles = [f"{query - at} back: {100 * share:.2f} %" for at, share in enumerate(row)]
        text.show(plain, "text/html", shaded(pieces, row / row.max(), BLUE, titles, query))
        by_head, keys = far_shares(run)
        mean = f"far keys get {100 * by_head.mean(axis=None):.0f} % of the weight"
        said.show(f"{plain} Over text, layers and heads **{mean}**; {100 * keys:.0f} % of the keys are far.")
        table.figure(figures.cells(by_head, title=f"share of the weight on keys more than {run.near} back", x="head",
                                   y="layer"), f"Table by layer and head: {mean} in the mean.")
    return Panel(draw, {"run": choice("run", [(str(own), own) for own in runs])}, lambda run: {
        "domain": choice("domain", run.domains), "window": slider("window of text", 0, 0, WINDOWS - 1),
        "layer": slider("layer", 0, 0, run.run.model.layers - 1), "head": slider("head", 0, 0, run.run.model.heads - 1),
        "query": slider("query", run.run.train.length - 1, 0, run.run.train.length - 1)})


def losses() -> Panel | None:
    """The loss of every token, of two models side by side, and the tokens on which they differ most."""
    runs, text, table = trained(), Screen(), Screen()
    if not runs:
        return text.show(NONE)

    def draw(run: Trained, beside: Trained, domain: str, window: int) -> None:
        same = run.corpus.fingerprint == beside.corpus.fingerprint and run.run.train.length == beside.run.train.length
        require(same, "beside", str(beside), "a run on the same text, of the same training length")
        inputs, targets = (own[window] for own in run.windows(domain))
        pieces, both = run.pieces(targets), [own.model().token_losses(inputs[None], targets[None])[0].double().numpy()
                                             for own in (run, beside)]
        shown = [f'<div style="flex:1"><b>{html.escape(str(own))}: {loss.mean():.3f} nats a token</b>' + shaded(
            pieces, loss / HARD, RED, [f"{nats:.2f} nats" for nats in loss]) + "</div>"
            for own, loss in zip((run, beside), both, strict=True)]
        text.show("Mean loss: {:.3f} and {:.3f} nats a token.".format(*(loss.mean() for loss in both)), "text/html",
                  f'<div style="display:flex;gap:2em">{"".join(shown)}</div>')
        order = np.argsort(-abs(both[0] - both[1]))[:DIFFERENT]
        rows = pd.DataFrame({"text before": ["".join(pieces[max(0, at - 8):at]) for at in order],
                             "token": [pieces[at] for at in order], "run": both[0][order], "beside": both[1][order],
                             "difference": (both[0] - both[1])[order]}, pd.Index(order, name="position"))
        table.show(rows.to_string(), "text/html", rows.style.format(precision=2, escape="html").to_html())
    options = [(str(own), own) for own in runs]
    chosen = {"run": choice("run", options), "beside": choice("beside", options, -1)}
    return Panel(draw, chosen, lambda run, beside: {
        "domain": choice("domain", run.domains), "window": slider("window of text", 0, 0, WINDOWS - 1)})
