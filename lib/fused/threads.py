"""Tasks of a kernel over torch's number of threads.

Kernels release the interpreter's lock, so plain threads do. The pools that come with numba are not safe to call from
two threads at once, or need a library that is not there everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_pool: ThreadPoolExecutor | None = None


def over_threads(kernel: Callable[..., None], *arguments: object, tasks: int) -> None:
    """Call `kernel(*arguments, begin, end)` for parts of `range(tasks)`, at once where there are threads."""
    parts = min(torch.get_num_threads(), tasks)
    if parts == 1:
        kernel(*arguments, 0, tasks)
        return
    bounds = [tasks * part // parts for part in range(parts + 1)]
    others = [_workers(parts).submit(kernel, *arguments, *part) for part in zip(bounds[1:-1], bounds[2:], strict=True)]
    kernel(*arguments, bounds[0], bounds[1])
    for other in others:
        other.result()


def _workers(parts: int) -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool._max_workers < parts - 1:
        _pool = ThreadPoolExecutor(parts - 1, thread_name_prefix="attention")
    return _pool


def _forget() -> None:
    """A child process has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
