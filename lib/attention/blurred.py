"""Attention over blurred rungs, for the training of the pattern `blurred`: a rung is a kernel of tokens.

A plain implementation in torch, which costs little at the size of a probe; `lib.model` calls it while a run trains.
"""

import torch
import torch.nn.functional as F

from lib.patterns.base import LearnedOffsets
from lib.patterns.learned import fractional_rungs


def blurred_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: LearnedOffsets, alpha: torch.Tensor,
                      half_width: float) -> torch.Tensor:
    """Attention `[B, H, T, D]` of q `[B, H, T, D]`, k and v `[B, G, T, D]` over the window and the blurred rungs.

    The rungs are those of `learned` at this alpha (a scalar), for queries `i >= floor(d)`. half_width: of a kernel, in
    tokens, at least 1; a kernel ends at the query and at the start of the text, and its weights sum to 1.
    """
    B, H, T, D = q.shape
    G, W = k.shape[1], keys.window
    q = q.unflatten(1, (G, H // G)) * D ** -0.5                                             # (B, G, H/G, T, D)
    rungs = fractional_rungs(keys.base, W, float(alpha.detach()), T)
    at = torch.arange(T, device=q.device)
    f, lo = (torch.tensor([rung[part] for rung in rungs], device=q.device) for part in (2, 0))      # (R)
    kernel = hat(at, alpha * f[:, None], lo[:, None], half_width)                           # (R, T): by distance
    exists = at >= lo[:, None]                                                              # (R, T): by query
    kernel_sum = kernel.cumsum(1).masked_fill(~exists, 1.0)                                 # of distances that exist

    near_k, near_v = (F.pad(x, (0, 0, W, 0)).unfold(2, W + 1, 1) for x in (k, v))           # (B, G, T, D, W + 1)
    spectra = (torch.fft.rfft(x.mT, 2 * T)[:, :, None] * torch.fft.rfft(kernel, 2 * T)[:, None] for x in (k, v))
    far_k, far_v = (torch.fft.irfft(x, 2 * T)[..., :T] / kernel_sum[:, None] for x in spectra)      # (B, G, R, D, T)
    outside = at[:, None] < torch.arange(W, -1, -1, device=q.device)                        # (T, W + 1), furthest first
    near = torch.einsum("bghtd,bgtdw->bghtw", q, near_k).masked_fill(outside, float("-inf"))
    far = torch.einsum("bghtd,bgrdt->bghtr", q, far_k).masked_fill(~exists.t(), float("-inf"))
    weights = torch.softmax(torch.cat([near, far], -1), -1)
    y = torch.einsum("bghtw,bgtdw->bghtd", weights[..., :W + 1], near_v)
    return (y + torch.einsum("bghtr,bgrdt->bghtd", weights[..., W + 1:], far_v)).flatten(1, 2)


def hat(distance: torch.Tensor, centre: torch.Tensor, lo: torch.Tensor, half_width: float) -> torch.Tensor:
    """`max(0, 1 - |distance - centre| / half_width)`, where `lo` is the floor of `centre`.

    Where it has two derivatives it takes the one to the right, as `learned` does at whole distances.
    """
    rising, falling = (1 - (centre - distance) / half_width).relu(), (1 - (distance - centre) / half_width).clamp(min=0)
    return torch.where(distance <= lo, rising, falling)     # at its corner relu has the derivative 0, clamp has 1
