"""The Transformer that all patterns share: RMSNorm, grouped-query attention, SwiGLU, tied embeddings, no biases.

With the defaults of `ModelConfig` (Fibonacci paper, Section 3) it has 60,850,688 parameters: 16,777,216 in the
embedding, 16 x (655,360 attention + 2,098,176 SwiGLU + 1,024 norms), 512 in the last norm. A learned alpha adds one per
layer. Letters: B batch, H heads, G key/value heads, T length, D head size, L layers, C = d_model, F = hidden,
V vocabulary. `lib.training` trains it.
"""

import torch
import torch.nn.functional as F
from torch import nn

from lib import patterns
from lib.attention import sparse_attention
from lib.attention.blurred import blurred_attention
from lib.config import ModelConfig, RunConfig
from lib.errors import SuiteError, require
from lib.fused.ops import cross_entropy, rms_norm, swiglu, token_losses
from lib.patterns import Pattern
from lib.rope import alibi_slopes, heads, turns


class Norm(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.eps = config.norm_eps
        self.gain = nn.Parameter(torch.ones(config.d_model))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.gain, self.eps)


class Attention(nn.Module):
    """Grouped-query attention over the keys of a pattern; what a pattern learns in this layer is a parameter here."""

    def __init__(self, config: ModelConfig, pattern: Pattern, layer: int):
        super().__init__()
        self.H, self.G, self.D = config.heads, config.kv_heads, config.head_dim
        self.layer, self.kind = layer, pattern.learned
        self.qkv = nn.Parameter(torch.empty((self.H + 2 * self.G) * self.D, config.d_model))
        self.out = nn.Parameter(torch.empty(config.d_model, self.H * self.D))
        self.theta = nn.Parameter(torch.tensor(pattern.thetas[layer])) if pattern.learned else None

    def forward(self, x: torch.Tensor, pattern: Pattern, turn: torch.Tensor | None, slopes: torch.Tensor | None,
                backend: str, half_width: float | None = None) -> torch.Tensor:
        B, T, _ = x.shape
        q, k, v = heads(F.linear(x, self.qkv), turn, self.H, self.G)              # (B, H, T, D), 2 (B, G, T, D)
        if pattern.learned not in (None, self.kind):
            raise SuiteError(f"pattern {pattern.name!r} needs a learned {pattern.learned}; the model's: {self.kind}")
        learned = pattern.arguments(self.theta, self.layer)
        if half_width is not None and torch.is_grad_enabled():
            y = blurred_attention(q, k, v, pattern.plan(self.layer, T), learned["alpha"], half_width)
        else:
            y = sparse_attention(q, k, v, pattern, self.layer, slopes=slopes, backend=backend, **learned)
        return F.linear(y.transpose(1, 2).reshape(B, T, self.H * self.D), self.out)    # (B, T, C)


class SwiGLU(nn.Module):
    """`(silu(x gate) * (x up)) down` (arxiv.org/abs/2002.05202)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(2 * config.hidden, config.d_model))    # gate above up
        self.out = nn.Parameter(torch.empty(config.d_model, config.hidden))

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
    """A language model whose layers attend the keys of `pattern`, made for the layers and heads of `config`.

    Initialised from `seed`; the global random stream is untouched. backend: as of `lib.attention.sparse_attention`.
    half_width: of blurred rungs, in tokens, while the pattern `blurred` trains and gradients are taken; None otherwise.
    Raises `SuiteError` where pattern and config do not fit.
    """
    half_width: float | None = None

    def __init__(self, config: ModelConfig, pattern: Pattern, seed: int = 0, backend: str = "auto"):
        super().__init__()
        self.config, self.backend = config, backend
        self.pattern = self.checked(pattern)
        self.embedding = nn.Embedding.from_pretrained(torch.empty(config.vocab, config.d_model), freeze=False)
        self.blocks = nn.ModuleList(Block(config, pattern, layer) for layer in range(config.layers))
        self.norm = Norm(config)
        self.initialise(seed)

    def checked(self, pattern: Pattern) -> Pattern:
        for name in ("layers", "heads"):
            made, here = getattr(pattern, name), getattr(self.config, name)
            require(made == here, f"{name} of pattern {pattern.name!r}", made, f"the model's {here}")
        require(not pattern.blurs or self.config.position == "rope", "position", self.config.position,
                f"rope with the pattern {pattern.name!r}")
        return pattern

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Matrices normal with std d_model^-0.5, divided by sqrt(2L) into the residual stream.

        Nothing else draws while a model is built: a seed draws the same matrices for every pattern.
        """
        draws = torch.Generator().manual_seed(seed)
        std = self.config.d_model ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.is_meta or parameter.ndim < 2:
                continue
            into_residual = name.endswith(".out")
            parameter.normal_(0, std / (2 * self.config.layers) ** 0.5 if into_residual else std, generator=draws)

    def hidden(self, tokens: torch.Tensor, **how) -> torch.Tensor:
        """States after the last norm, `[B, T, d_model]`, of tokens `[B, T]`; options of `states`."""
        return self.states(self.embedding(tokens), **how)

    def states(self, x: torch.Tensor, *, pattern: Pattern | None = None, rope: str = "vanilla",
               trained_length: int | None = None) -> torch.Tensor:
        """As `hidden`, from embedded tokens `[B, T, d_model]`, so that gradients by position can be taken.

        pattern: attend its keys instead of the trained pattern's (sliding window, sinks, frozen rungs).
        rope: vanilla, interpolation, ntk or yarn (`lib.rope`); all but vanilla need trained_length, in tokens.
        Raises `SuiteError` where the pattern needs something learned that the model has not, and for a bad option.
        """
        pattern = self.pattern if pattern is None else self.checked(pattern)
        turn, slopes, c = None, None, self.config
        require(c.position == "rope" or rope == "vanilla", "rope", rope, f"vanilla where the position is {c.position}")
        if c.position == "rope":
            dtype = torch.promote_types(x.dtype, torch.complex64)
            turn = turns(x.shape[1], c.head_dim, c.rope_theta, rope, trained_length, dtype, str(x.device))
        elif c.position == "alibi":
            slopes = alibi_slopes(c.heads).to(x.device)
        for block in self.blocks:
            x = block(x, pattern, turn, slopes, self.backend, self.half_width)
        return self.norm(x)

    def forward(self, tokens: torch.Tensor, **how) -> torch.Tensor:
        """Logits `[B, T, V]` of tokens `[B, T]`; options of `states`."""
        return F.linear(self.hidden(tokens, **how), self.embedding.weight)

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of tokens `[B, T]`, nats per scored token; targets `[B, T]`, -100 is not scored.

        The logits are never held all at once. Raises `SuiteError` where no target is scored.
        """
        return cross_entropy(self.hidden(tokens), self.embedding.weight, targets)

    @torch.no_grad()
    def token_losses(self, tokens: torch.Tensor, targets: torch.Tensor, **how) -> torch.Tensor:
        """Cross-entropy of each token, `[B, T]` float32, NaN where the target is -100; options of `states`."""
        return token_losses(self.hidden(tokens, **how), self.embedding.weight, targets)

    def alphas(self) -> list[float]:
        """Learned alpha of each layer; empty where the pattern learns none."""
        return [self.pattern.arguments(theta, 0)["alpha"].item() for theta in self.thetas("alpha")]

    def spans(self) -> list[float]:
        """Learned span of each layer, mean over its heads, as a share of the window; empty where there is none."""
        return [torch.sigmoid(theta).mean().item() for theta in self.thetas("span")]

    def thetas(self, kind: str) -> list[torch.Tensor]:
        return [block.attention.theta for block in self.blocks if self.pattern.learned == kind]


def build_pattern(run: RunConfig) -> Pattern:
    """The pattern of a run, for the layers and heads of its model."""
    return patterns.build(run.pattern.name, layers=run.model.layers, heads=run.model.heads,
                          **dict(run.pattern.parameters))


def build_model(run: RunConfig, backend: str = "auto") -> Transformer:
    """The model of a run before training: a function of `run.train.seed`; the global random stream is not touched."""
    return Transformer(run.model, build_pattern(run), run.train.seed, backend)
