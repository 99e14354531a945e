"""Training of the pattern `blurred`: `lib.train_run` with the rungs of every layer blurred, less from step to step.

A forward hook of torch puts the blurred attention in the place of each layer's while the run trains; what the layer itself
computes is thrown away, which costs little at the size of a probe. Held-out losses are those of the unblurred rungs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.modules.module import register_module_forward_hook

from lib import rope
from lib import train_run as plain
from lib.config import RunConfig
from lib.errors import SuiteError
from lib.model import Attention, build_pattern
from lib.patterns.base import LearnedOffsets
from lib.patterns.learned import fractional_rungs

if TYPE_CHECKING:
    from lib.data import Corpus, Source


def train_run(run: RunConfig, source: Source, corpus: Corpus | None, folder: Path, *options: Any,
              **more: Any) -> plain.TrainResult:
    """As `lib.train_run.train_run`, for runs whose pattern is `blurred`."""
    blur = Blur(run, source)
    hook = register_module_forward_hook(blur.attend)
    try:
        return plain.train_run(run, blur, corpus, folder, *options, **more)
    finally:
        hook.remove()


class Blur:
    """A source of batches that knows from them how far the training is, and what attention is at that step."""

    def __init__(self, run: RunConfig, source: Source) -> None:
        if run.model.position != "rope":
            raise SuiteError(f"model.position = {run.model.position!r} is not valid for the pattern 'blurred': rope")
        self.source, self.steps, self.pattern = source, run.train.steps, build_pattern(run)
        self.vocab, self.half_width = source.vocab, self.pattern.blur

    def batch(self, seed: int, step: int, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.half_width = self.pattern.half_width(step, self.steps)
        return self.source.batch(seed, step, size, length)

    def attend(self, module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor | None:
        """What takes the place of `output` in an attention layer of the model that is trained; None leaves it."""
        if not isinstance(module, Attention) or not torch.is_grad_enabled():
            return None
        x, _, turn, _, _ = inputs
        q, k, v = rope.heads(F.linear(x, module.qkv), turn, module.H, module.G)
        keys = self.pattern.plan(module.layer, x.shape[1])
        y = blurred_attention(q, k, v, keys, module.alpha, self.half_width)
        return F.linear(y.transpose(1, 2).flatten(2), module.out)


def blurred_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: LearnedOffsets, alpha: torch.Tensor,
                      half_width: float) -> torch.Tensor:
    """Attention `[B, H, T, D]` over the window and the blurred rungs of `keys`; k and v `[B, G, T, D]`.

    The rungs are those that `learned` has at this alpha, for queries `i >= floor(d)`; a kernel ends at the query and at the
    start of the text, and its weights sum to 1.
    """
    B, H, T, D = q.shape
    G, W = k.shape[1], keys.window
    q = q.unflatten(1, (G, H // G)) * D ** -0.5                                                 # (B, G, H/G, T, D)
    found = fractional_rungs(keys.base, W, float(alpha.detach()), T)
    at = torch.arange(T, device=q.device)
    f, lo = (torch.tensor([rung[part] for rung in found], device=q.device) for part in (2, 0))  # (R)
    kernel = hat(at, alpha * f[:, None], lo[:, None], half_width)                               # (R, T): by distance
    exists = at >= lo[:, None]                                                                  # (R, T): by query
    kernel_sum = kernel.cumsum(1).masked_fill(~exists, 1.0)                                     # of the distances that exist

    near_k, near_v = (F.pad(x, (0, 0, W, 0)).unfold(2, W + 1, 1) for x in (k, v))               # (B, G, T, D, W + 1)
    far_k, far_v = (mixed(x, kernel) / kernel_sum[:, None] for x in (k, v))                     # (B, G, R, D, T)
    outside = at[:, None] < torch.arange(W, -1, -1, device=q.device)                            # (T, W + 1): furthest first
    near = torch.einsum("bghtd,bgtdw->bghtw", q, near_k).masked_fill(outside, float("-inf"))
    far = torch.einsum("bghtd,bgrdt->bghtr", q, far_k).masked_fill(~exists.t(), float("-inf"))
    weights = torch.softmax(torch.cat([near, far], -1), -1)
    y = torch.einsum("bghtw,bgtdw->bghtd", weights[..., :W + 1], near_v)
    return (y + torch.einsum("bghtr,bgrdt->bghtd", weights[..., W + 1:], far_v)).flatten(1, 2)


def mixed(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """`y[b, g, r, :, i] = sum_c kernel[r, c] x[b, g, i - c]` over `0 <= c <= i`: `[B, G, R, D, T]`, by Fourier transform."""
    T = x.shape[2]
    spectrum = torch.fft.rfft(x.transpose(2, 3), 2 * T)[:, :, None] * torch.fft.rfft(kernel, 2 * T)[:, None]
    return torch.fft.irfft(spectrum, 2 * T)[..., :T]


def hat(distance: torch.Tensor, centre: torch.Tensor, lo: torch.Tensor, half_width: float) -> torch.Tensor:
    """`max(0, 1 - |distance - centre| / half_width)`, with the derivative to the right where it has two, as `learned` has
    at whole distances; `lo` is the floor of `centre`."""
    rising, falling = (1 - (centre - distance) / half_width).relu(), (1 - (distance - centre) / half_width).clamp(min=0)
    return torch.where(distance <= lo, rising, falling)     # relu has the derivative 0 where it begins, clamp 1
