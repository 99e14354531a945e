"""Sums over listed rows: the two operations that sparse attention is made of, fused in torch already.

`dots` is a sampled matrix product (`torch.sparse.sampled_addmm`), `pull` a weighted bag of rows (`embedding_bag`). Both read
each listed row where it lies: neither a `[T, T]` nor a `[T, C, D]` tensor is made. With 23 keys of 64 numbers they take a
third and a quarter of the time of elementwise products over shifted views (measured: one thread, float32, T = 1024).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from lib.errors import SuiteError

with warnings.catch_warnings():     # torch says once a process that its CSR tensors are in beta
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0, 1], [0], [1.0], size=(1, 1))


def dots(starts: torch.Tensor, index: torch.Tensor, a: torch.Tensor, b: torch.Tensor, into: torch.Tensor,
         scale: float = 1.0) -> torch.Tensor:
    """`into[n, c] += scale * a[n] . b[index[n, c]]` in place; index `[N, C]` int32, starts `[N + 1]` = 0, C, 2C, …"""
    if a.device.type == "cpu":
        pairs = torch.sparse_csr_tensor(starts, index.view(-1), into.view(-1), size=(len(a), len(b)), check_invariants=False)
        torch.sparse.sampled_addmm(pairs, a, b.t(), beta=1.0, alpha=scale, out=pairs)
        return into
    return dots_by_column(index, a, b, into, scale)


def dots_by_column(index: torch.Tensor, a: torch.Tensor, b: torch.Tensor, into: torch.Tensor, scale: float) -> torch.Tensor:
    """`dots` for accelerators, whose sampled product wants rows in order; slower on a CPU."""
    for c in range(index.shape[1]):
        into[:, c].add_((a * b.index_select(0, index[:, c])).sum(-1), alpha=scale)
    return into


def pull(starts: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`out[n] = sum_e weights[e] * x[index[e]]` over the entries `starts[n] <= e < starts[n + 1]`."""
    return F.embedding_bag(index.view(-1), x, starts, mode="sum", per_sample_weights=weights.view(-1),
                           include_last_offset=True)


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Softmax of every row. Below 16 columns torch's kernel for the last dimension is scalar, 6 times slower: turned."""
    return torch.softmax(logits, -1) if logits.shape[1] >= 16 else torch.softmax(logits.t(), 0).t().contiguous()


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that refuses `create_graph=True`: torch would take its gradients for constants, without a word."""
    @functools.wraps(backward)
    def checked(ctx, *grads):
        if torch.is_grad_enabled():
            raise SuiteError("create_graph = True is not valid: this attention has first derivatives only; "
                             "use backend='reference' for gradients of gradients")
        return backward(ctx, *grads)
    return checked


def slab(x: torch.Tensor, part: tuple[slice, slice], dtype: torch.dtype) -> torch.Tensor:
    """The rows `[N, D]` of a slice of `[B, H, T, D]`, in the dtype of the arithmetic."""
    return x[part].to(dtype).reshape(-1, x.shape[-1])


def store(target: torch.Tensor, part: tuple[slice, slice], value: torch.Tensor) -> None:
    """Put rows `[N, D]` into a slice of `[B, H, T, D]`, in its dtype."""
    target[part].copy_(value.view(target[part].shape))


def arithmetic(x: torch.Tensor) -> torch.dtype:
    """float64 for float64, float32 for all else: softmax in half precision loses the logits, and the sums are slower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
