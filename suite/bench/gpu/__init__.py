"""What the GPU backend is worth on this machine: `make gpu-check`, or with another Python `python3 -m suite.bench.gpu`.

Needs torch, triton and numpy only, so it runs with what a GPU machine has. Four parts, each in a process of its own
that is ended when its time is up, so that the whole takes less than eight minutes whatever happens:

verify  values and gradients of every form of keys, float32 and bfloat16, against the float64 reference on the GPU
time    attention forward and forward + backward at 32,768 tokens, T = 1k, 4k and 16k: gpu against SDPA and masked
flex    the same against compiled FlexAttention with the pattern's `mask_mod`
train   steps of the paper's configuration (60.85 M parameters, 32 windows of 1024 tokens, bfloat16) on random tokens

One JSON file is written anew after each part: `rows` (see `suite.bench.rows`), `fields` (what they mean), `parts` (how
each ended) and `machine`. The exit status is 1 if a verification or a part failed, 2 if there is no GPU. With
TRITON_INTERPRET=1 all is tiny and runs on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch


class Bench:
    """Where and how large: the GPU, or with `tiny` the interpreter on a CPU."""

    def __init__(self, tiny: bool) -> None:
        self.tiny, self.device = tiny, "cpu" if tiny else "cuda"

    def wait(self) -> None:
        if not self.tiny:
            torch.cuda.synchronize()

    def qkv(self, B: int, H: int, G: int, T: int, D: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
        """q, k, v and the gradient of the output, as a model lays them out: heads between tokens."""
        random = torch.Generator(self.device).manual_seed(seed)
        whole = torch.randn(B, T, 2 * H + 2 * G, D, generator=random, device=self.device).to(dtype)
        return [x.transpose(1, 2) for x in whole.split([H, G, G, H], dim=2)]


def about(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    B, H, G, T, D = shape
    return {"length": T, "heads": f"{B} x {H}, {G}", "head_dim": D, "dtype": str(dtype).removeprefix("torch.")}


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
