"""The model's element-wise parts with hand-written backward passes: on a CPU they are bound by passes over memory.

Each equals the formula in its docstring, value and gradient (tests/test_model.py). With autocast they return its type and
compute what needs more in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lib.errors import require

IGNORED = -100      # a target that is not scored


def working_dtype(x: torch.Tensor) -> torch.dtype:
    """The type matrix products have here: autocast's where it is on, else that of `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, eps, dtype):
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)                       # (..., 1)
        scale = (norm.square() / x.shape[-1] + eps).rsqrt()
        unit = x * scale
        ctx.save_for_backward(unit, scale, gain)
        return (unit * gain).to(dtype)

    @staticmethod
    def backward(ctx, grad):
        unit, scale, gain = ctx.saved_tensors
        grad = grad.to(unit.dtype)
        product = grad * unit
        along = (product @ gain).unsqueeze(-1) / unit.shape[-1]                        # (..., 1)
        d_x = (grad * gain).addcmul_(unit, along, value=-1).mul_(scale)
        return d_x, product.flatten(0, -2).sum(0), None, None


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """`gain * x / sqrt(mean(x ** 2) + eps)` over the last dimension, in the type of `x` (arxiv.org/abs/1910.07467)."""
    return _RMSNorm.apply(x, gain, eps, working_dtype(x))


def _slices(tokens: int, vocab: int, device: torch.device) -> list[slice]:
    """Slices of tokens whose logits stay in a CPU's second cache (2 MiB of float32), or fill a GPU (512 MiB)."""
    rows = max(1, (2 ** 19 if device.type == "cpu" else 2 ** 27) // vocab)
    return [slice(at, at + rows) for at in range(0, tokens, rows)]


class _CrossEntropy(torch.autograd.Function):
    """Logits exist for one slice of tokens at a time, so their gradient is taken while they are there."""

    @staticmethod
    def forward(ctx, hidden, table, targets, dtype):
        low, weights, exact = hidden.to(dtype), table.to(dtype), torch.promote_types(dtype, torch.float32)
        d_hidden, d_table = torch.empty_like(low), torch.zeros_like(table)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        for part in _slices(len(hidden), len(table), hidden.device):
            logits, target = low[part] @ weights.T, targets[part, None]                # (n, V), (n, 1)
            share = logits.softmax(-1, dtype=exact)
            gap = logits.amax(-1, keepdim=True).to(exact) - logits.gather(-1, target).to(exact)
            total += (gap - share.amax(-1, keepdim=True).log()).sum()                  # the largest share cannot underflow
            share.scatter_add_(-1, target, share.new_full(target.shape, -1.0))
            share = share.to(dtype)                                                    # d total / d logits
            torch.mm(share, weights, out=d_hidden[part])
            d_table += share.T @ low[part]
        ctx.save_for_backward(d_hidden, d_table)
        ctx.dtype = hidden.dtype
        return total / len(hidden)

    @staticmethod
    def backward(ctx, grad):
        d_hidden, d_table = ctx.saved_tensors
        grad = grad / len(d_hidden)
        return (d_hidden * grad).to(ctx.dtype), d_table * grad, None, None


def cross_entropy(hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean `-log softmax(hidden @ table.T)[target]` in nats over the targets that are not -100.

    hidden `[..., d]`, table `[V, d]`, targets `[...]`. Only scored tokens meet the table, and never all at once: the logits
    of 32,768 tokens over a vocabulary of 32,768 are 4 GiB.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    scored = targets != IGNORED
    if not scored.all():
        hidden, targets = hidden[scored], targets[scored]
    require(len(targets) > 0, "targets", "all -100", "at least one scored target a batch")
    return _CrossEntropy.apply(hidden, table, targets, working_dtype(hidden))


@torch.no_grad()
def token_losses(hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """`-log softmax(hidden @ table.T)[target]` of each token, float32, shaped as `targets`; NaN where a target is -100."""
    shape, hidden, targets = targets.shape, hidden.flatten(0, -2), targets.flatten()
    losses = [F.cross_entropy(F.linear(hidden[part], table).float(), targets[part], ignore_index=IGNORED, reduction="none")
              for part in _slices(len(hidden), len(table), hidden.device)]
    return torch.cat(losses).masked_fill(targets == IGNORED, torch.nan).view(shape)
