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

from lib import rope, train_run as plain
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
    T, W = q.shape[2], min(keys.window, q.shape[2] - 1)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    found = fractional_rungs(keys.base, keys.window, float(alpha.detach()), T)
    distance = torch.arange(T, device=q.device)                                                 # (T), as i too
    f, lo = (torch.tensor([rung[at] for rung in found], device=q.device) for at in (2, 0))      # (R)
    kernel = hat(distance, alpha * f[:, None], lo[:, None], half_width)                         # (R, T)
    total = kernel.cumsum(1).t()                                                                # (T, R): over c <= i
    exists = distance[:, None] >= lo                                                            # (T, R)
    total = total.masked_fill(~exists, 1.0)

    scores = by_distance(q @ k.transpose(2, 3) * q.shape[3] ** -0.5)                            # (B, H, T, T): i, i - j
    near = scores[..., :W + 1].masked_fill(distance[:W + 1] > distance[:, None], float("-inf"))
    far = (scores @ kernel.t() / total).masked_fill(~exists, float("-inf"))                     # (B, H, T, R)
    weights = torch.softmax(torch.cat([near, far], -1), -1)
    spread = (weights[..., W + 1:] / total) @ kernel                                            # (B, H, T, T)
    spread = spread + F.pad(weights[..., :W + 1], (0, T - W - 1))
    return by_distance(spread) @ v


def hat(distance: torch.Tensor, centre: torch.Tensor, lo: torch.Tensor, half_width: float) -> torch.Tensor:
    """`max(0, 1 - |distance - centre| / half_width)`, with the derivative to the right where it has two, as `learned` has
    at whole distances; `lo` is the floor of `centre`."""
    rising, falling = (1 - (centre - distance) / half_width).relu(), (1 - (distance - centre) / half_width).clamp(min=0)
    return torch.where(distance <= lo, rising, falling)     # relu has the derivative 0 where it begins, clamp 1


def by_distance(x: torch.Tensor) -> torch.Tensor:
    """`y[i, c] = x[i, i - c]` where `c <= i`, else 0, of the last two dimensions `[T, T]`; twice is what was, below the
    diagonal. A row turned round and moved to the left: one row of `2T - 1` in a flat array of rows of `2T`."""
    T = x.shape[-1]
    flat = F.pad(x.flip(-1), (0, T)).flatten(-2)
    return flat[..., T - 1:T - 1 + T * (2 * T - 1)].unflatten(-1, (T, 2 * T - 1))[..., :T]
