"""Backend `torch`: plain torch, without a `[T, T]` mask. `pairs` has the arithmetic, `plans` the lists of pairs."""

from __future__ import annotations

import torch

from lib.attention.call import Call
from lib.attention.pytorch.pairs import attend


class Torch:
    """Only the listed pairs, with a hand-written backward; any pattern, any device."""

    def missing(self) -> str:
        return ""

    def supports(self, call: Call) -> bool:
        return True

    def __call__(self, call: Call) -> torch.Tensor:
        return attend(call)
