"""Where a token is: rotary tables, their variants beyond the trained length, and ALiBi's slopes.

Frequency `n` of a head of size D is `w_n = theta ** (-2n / D)`, n = 0 to D/2 - 1; position `p` turns pair `n` by
`p * w_n` (RoPE, arxiv.org/abs/2104.09864). The variants change `w_n` by `s = length / trained_length`, and are RoPE
itself at s <= 1.
"""

import math
from functools import lru_cache

import torch

from lib.errors import one_of, require
from lib.fused import ops

VARIANTS = ("vanilla", "interpolation", "ntk", "yarn")
BETA_FAST, BETA_SLOW = 32.0, 1.0    # YaRN, rounds over the trained length: more are kept, fewer are squeezed


def frequencies(head_dim: int, theta: float = 10_000.0, variant: str = "vanilla", length: int = 1,
                trained_length: int | None = None) -> tuple[torch.Tensor, float]:
    """Angle a position, float64 `[D/2]`, and the factor on the turns (YaRN's temperature; 1 otherwise).

    vanilla        w_n, whatever the length
    interpolation  w_n / s: positions are squeezed into the trained range (arxiv.org/abs/2306.15595)
    ntk            theta * s ** (D / (D - 2)): the slowest pair is squeezed by s, the fastest stays (NTK-aware scaling,
                   arxiv.org/abs/2309.00071, section 3.1)
    yarn           by the rounds `r_n = trained_length * w_n / 2 pi` that a pair makes: squeezed where r <= 1, kept
                   where r >= 32, linear in r between; turns times `0.1 ln s + 1`, so logits its square (same, 3.2-3.4)

    Every variant but vanilla needs `trained_length`, in tokens.
    """
    one_of(variant, VARIANTS, "RoPE variant")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    plain = theta ** -exponents
    if variant == "vanilla":
        return plain, 1.0
    require(trained_length is not None and trained_length >= 1, "trained_length", trained_length,
            f"the training length in tokens, as RoPE variant {variant!r} scales by length / trained_length")
    s = max(1.0, length / trained_length)
    if variant == "interpolation":
        return plain / s, 1.0
    if variant == "ntk":
        require(head_dim > 2, "head_dim", head_dim, "above 2 for RoPE variant 'ntk'")
        return (theta * s ** (head_dim / (head_dim - 2))) ** -exponents, 1.0
    rounds = trained_length * plain / (2 * math.pi)
    keep = ((rounds - BETA_SLOW) / (BETA_FAST - BETA_SLOW)).clamp(0, 1)
    return keep * plain + (1 - keep) * plain / s, 0.1 * math.log(s) + 1.0


@lru_cache(maxsize=64)
def turns(length: int, head_dim: int, theta: float = 10_000.0, variant: str = "vanilla",
          trained_length: int | None = None, dtype: torch.dtype = torch.complex64, device: str = "cpu") -> torch.Tensor:
    """`exp(1j * p * w_n)` at positions p = 0 to `length - 1`: complex `[T, 1, D/2]`, for heads `[B, T, H, D]`."""
    angle, factor = frequencies(head_dim, theta, variant, length, trained_length)
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None, None] * angle     # (T, 1, D/2)
    with torch.inference_mode(False):       # a table first made in an evaluation must serve training too
        return torch.polar(torch.full_like(angles, factor), angles).to(dtype).to(device)


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turn queries or keys `[B, T, H, D]` by `turns`; pair n is `(x[2n], x[2n + 1])`, read as one complex number.

    Computed in float32 or wider, since an angle needs more than bf16's eight bits. One complex product is several times
    faster on a CPU than the same in halves of D, whose inner loops are only D/2 long.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.view_as_complex(x.to(wide).unflatten(-1, (-1, 2)))                        # (B, T, H, D/2)
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class _Heads(torch.autograd.Function):
    """`heads` in one pass over qkv, and one over the three gradients."""

    @staticmethod
    def forward(ctx, qkv, turn, H, G):
        B, T, D = *qkv.shape[:2], 2 * turn.shape[-1]
        qkv = qkv.contiguous().view(B * T, H + 2 * G, D)
        q, k, v = qkv.new_empty(B * T, H, D), qkv.new_empty(B * T, G, D), qkv[:, H + G:].clone()
        ctx.turns = turn.view(T, D // 2)
        for x, at in ((q, 0), (k, H)):
            ops.turn_heads(qkv, at, x, 0, x.shape[1], ctx.turns)
        return tuple(x.view(B, T, -1, D).transpose(1, 2) for x in (q, k, v))

    @staticmethod
    def backward(ctx, *grads):
        d_q, d_k, d_v = (grad.transpose(1, 2).flatten(0, 1).contiguous() for grad in grads)     # (B T, H or G, D)
        (_, H, D), G, T = d_q.shape, d_k.shape[1], grads[0].shape[2]
        d_qkv = d_q.new_empty(len(d_q), H + 2 * G, D)
        for x, at in ((d_q, 0), (d_k, H)):
            ops.turn_heads(x, 0, d_qkv, at, x.shape[1], ctx.turns.conj())
        d_qkv[:, H + G:] = d_v
        return d_qkv.view(-1, T, (H + 2 * G) * D), None, None, None


def heads(qkv: torch.Tensor, turn: torch.Tensor | None, H: int, G: int) -> tuple[torch.Tensor, ...]:
    """Queries `[B, H, T, D]`, keys and values `[B, G, T, D]` of qkv `[B, T, (H + 2G) D]`.

    turn: `turns` of the T positions, by which queries and keys are turned; None: they stay as they are.
    """
    if turn is not None and turn.dtype == torch.complex64 and ops.fused(qkv):
        q, k, v = _Heads.apply(qkv, turn, H, G)
        return ops.first_order(q), k, v         # one backward pass for all three
    qk, v = qkv.unflatten(-1, (H + 2 * G, -1)).split([H + G, G], dim=2)                     # (B, T, H + G, D)
    q, k = (qk if turn is None else rotate(qk, turn)).split([H, G], dim=2)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def alibi_slopes(heads: int) -> torch.Tensor:
    """Slopes `[H]`, float32: the logit of query `i` and key `j` gets `-slope * (i - j)` (arxiv.org/abs/2108.12409).

    `2 ** (-8h / H)` for h = 1 to H where H is a power of two; otherwise those of the power of two below, then every
    second one of the power above, as in the authors' code.
    """
    below = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    slopes += [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * below + 1, 2)][:heads - below]
    return torch.tensor(slopes, dtype=torch.float32, device="cpu")
