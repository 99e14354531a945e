"""The Transformer that all patterns share: RMSNorm, grouped-query attention, SwiGLU, tied embeddings, no biases.

With the defaults of `ModelConfig` (Fibonacci paper, Section 3) it has 60,850,688 parameters: 16,777,216 in the embedding,
16 x (655,360 attention + 2,098,176 SwiGLU + 1,024 norms), 512 in the last norm. A learned alpha adds one a layer.
Letters: B batch, H heads, G key/value heads, T length, D head size, L layers, C = d_model, F = hidden, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lib import patterns, rope
from lib.attention import sparse_attention
from lib.config import ModelConfig, RunConfig
from lib.errors import SuiteError, require
from lib.fused.ops import cross_entropy, rms_norm, swiglu, token_losses
from lib.patterns import Pattern, SoftWindow


def weight(*shape: int) -> nn.Parameter:
    """Parameters without values: `Transformer.initialise` draws them, so that building a model draws nothing elsewhere."""
    return nn.Parameter(torch.empty(shape))


class Norm(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.eps = config.norm_eps
        self.gain = weight(config.d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.gain, self.eps)


class Attention(nn.Module):
    """Grouped-query attention over the keys of a pattern; the learned part of a pattern lives here, one a layer."""

    def __init__(self, config: ModelConfig, pattern: Pattern, layer: int):
        super().__init__()
        self.H, self.G, self.D = config.heads, config.kv_heads, config.head_dim
        self.layer, self.kind = layer, pattern.learned
        self.qkv = weight((self.H + 2 * self.G) * self.D, config.d_model)
        self.out = weight(config.d_model, self.H * self.D)
        if pattern.learned == "alpha":
            self.theta = weight()                       # alpha = 0.5 + sigmoid(theta)
        if pattern.learned == "span":
            self.theta = weight(self.H)                 # span = window * sigmoid(theta)

    @property
    def alpha(self) -> torch.Tensor:
        """Factor on the base rungs, in (0.5, 1.5); a scalar."""
        return 0.5 + torch.sigmoid(self.theta)

    @property
    def share(self) -> torch.Tensor:
        """Span of each head as a share of the window, `[H]`, in (0, 1).

        The sigmoid takes the place of the clamp of arxiv.org/abs/1905.07799, outside which nothing pulls a span back. That
        paper's penalty, 2e-6 nats a token of span, is left out: it would be 1e-4 nats at the windows used here.
        """
        return torch.sigmoid(self.theta)

    def learned(self, pattern: Pattern, length: int) -> dict[str, torch.Tensor]:
        """What `sparse_attention` needs beside the pattern: alpha, or the heads' spans in tokens."""
        if pattern.learned is None:
            return {}
        if pattern.learned != self.kind:
            raise SuiteError(f"pattern {pattern.name!r} needs a learned {pattern.learned}; the model's: {self.kind}")
        if self.kind == "alpha":
            return {"alpha": self.alpha}
        keys = pattern.plan(self.layer, length)
        assert isinstance(keys, SoftWindow), f"{pattern.name} learns a span and gives {type(keys).__name__}"
        return {"span": keys.window * self.share}

    def forward(self, x: torch.Tensor, pattern: Pattern, turn: torch.Tensor | None, slopes: torch.Tensor | None,
                backend: str) -> torch.Tensor:
        B, T, _ = x.shape
        q, k, v = rope.heads(F.linear(x, self.qkv), turn, self.H, self.G)              # (B, H, T, D), (B, G, T, D) twice
        y = sparse_attention(q, k, v, pattern, self.layer, slopes=slopes, backend=backend, **self.learned(pattern, T))
        return F.linear(y.transpose(1, 2).reshape(B, T, self.H * self.D), self.out)    # (B, T, C)


class SwiGLU(nn.Module):
    """`(silu(x gate) * (x up)) down` (arxiv.org/abs/2002.05202)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = weight(2 * config.hidden, config.d_model)                       # gate above up
        self.out = weight(config.d_model, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(swiglu(F.linear(x, self.gate_up)), self.out)                   # (B, T, 2F), (B, T, F) inside


class Block(nn.Module):
    def __init__(self, config: ModelConfig, pattern: Pattern, layer: int):
        super().__init__()
        self.attention_norm, self.attention = Norm(config), Attention(config, pattern, layer)
        self.mlp_norm, self.mlp = Norm(config), SwiGLU(config)

    def forward(self, x: torch.Tensor, *how) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), *how)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A language model whose layers attend the keys of `pattern`, made for `config.layers` layers of `config.heads` heads.

    Initialised from `seed`; the global random stream is untouched. `backend` is that of `lib.attention`.
    """

    def __init__(self, config: ModelConfig, pattern: Pattern, seed: int = 0, backend: str = "auto"):
        super().__init__()
        self.config, self.backend = config, backend
        self.pattern = self.checked(pattern)
        table = weight(config.vocab, config.d_model)                                   # the output matrix too
        self.embedding = nn.Embedding.from_pretrained(table, freeze=False)
        self.blocks = nn.ModuleList(Block(config, pattern, layer) for layer in range(config.layers))
        self.norm = Norm(config)
        self.initialise(seed)

    def checked(self, pattern: Pattern) -> Pattern:
        for name in ("layers", "heads"):
            made, own = getattr(pattern, name), getattr(self.config, name)
            require(made == own, f"{name} of pattern {pattern.name!r}", made, f"the model's {own}")
        return pattern

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Normal with std d_model^-0.5, over sqrt(2L) into the residual stream; gains 1; what a pattern learns at its start.

        The same seed draws the same matrices whatever the pattern: two patterns are compared from one start.
        """
        draws = torch.Generator().manual_seed(seed)
        std = self.config.d_model ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.is_meta or parameter.ndim < 2:
                continue
            into_residual = name.endswith(".out")
            parameter.normal_(0, std / (2 * self.config.layers) ** 0.5 if into_residual else std, generator=draws)
        for norm in (m for m in self.modules() if isinstance(m, Norm)):
            norm.gain.fill_(1)
        for layer, block in enumerate(self.blocks):
            if self.pattern.learned == "alpha":
                block.attention.theta.fill_(self.pattern.thetas[layer])
            if self.pattern.learned == "span":
                block.attention.theta.zero_()           # half the window: a head can learn to see more or less

    def hidden(self, tokens: torch.Tensor, *, pattern: Pattern | None = None, rope: str = "vanilla",
               trained_length: int | None = None) -> torch.Tensor:
        """States after the last norm, `[B, T, d_model]`, of tokens `[B, T]`; the options are those of `forward`."""
        return self.states(self.embedding(tokens), pattern=pattern, rope=rope, trained_length=trained_length)

    def states(self, x: torch.Tensor, *, pattern: Pattern | None = None, rope: str = "vanilla",
               trained_length: int | None = None) -> torch.Tensor:
        """As `hidden`, from embedded tokens `[B, T, d_model]`: for gradients by position (`suite.evals.gradient_flow`)."""
        pattern = self.pattern if pattern is None else self.checked(pattern)
        turn, slopes = self.position(x, rope, trained_length)
        for block in self.blocks:
            x = block(x, pattern, turn, slopes, self.backend)
        return self.norm(x)

    def position(self, x: torch.Tensor, variant: str, trained_length: int | None) -> tuple[torch.Tensor | None, ...]:
        """RoPE's turns and ALiBi's slopes, of which a model has at most one."""
        c = self.config
        require(c.position == "rope" or variant == "vanilla", "rope", variant, f"vanilla where the position is {c.position}")
        if c.position == "rope":
            dtype = torch.promote_types(x.dtype, torch.complex64)
            return rope.turns(x.shape[1], c.head_dim, c.rope_theta, variant, trained_length, dtype, str(x.device)), None
        return None, rope.alibi_slopes(c.heads).to(x.device) if c.position == "alibi" else None

    def forward(self, tokens: torch.Tensor, *, pattern: Pattern | None = None, rope: str = "vanilla",
                trained_length: int | None = None) -> torch.Tensor:
        """Logits `[B, T, V]` of tokens `[B, T]`.

        pattern: attend its keys instead of the trained pattern's (sliding window, sinks, frozen rungs).
        rope: vanilla, interpolation, ntk or yarn (`lib.rope`); all but vanilla need trained_length, in tokens.
        """
        hidden = self.hidden(tokens, pattern=pattern, rope=rope, trained_length=trained_length)
        return F.linear(hidden, self.embedding.weight)

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy, nats a scored token; targets `[B, T]`, -100 is not scored. Never holds all logits."""
        return cross_entropy(self.hidden(tokens), self.embedding.weight, targets)

    @torch.no_grad()
    def token_losses(self, tokens: torch.Tensor, targets: torch.Tensor, **how) -> torch.Tensor:
        """Cross-entropy of each token, `[B, T]` float32, NaN where the target is -100; options of `forward`."""
        return token_losses(self.hidden(tokens, **how), self.embedding.weight, targets)

    def parameter_count(self, embedding: bool = True) -> int:
        return sum(p.numel() for p in self.parameters()) - (0 if embedding else self.embedding.weight.numel())

    def alphas(self) -> list[float]:
        """Learned alpha of each layer; empty for any other pattern."""
        return [block.attention.alpha.item() for block in self.blocks] if self.pattern.learned == "alpha" else []

    def spans(self) -> list[float]:
        """Learned span of each layer, mean over its heads, as a share of the window; empty for any other pattern."""
        return [block.attention.share.mean().item() for block in self.blocks] if self.pattern.learned == "span" else []


def build_pattern(run: RunConfig) -> Pattern:
    return patterns.build(run.pattern.name, layers=run.model.layers, heads=run.model.heads, **dict(run.pattern.parameters))


def build_model(run: RunConfig, backend: str = "auto") -> Transformer:
    """The model of a run at its start: a function of `run.train.seed`; the global random stream is not touched."""
    return Transformer(run.model, build_pattern(run), run.train.seed, backend)
