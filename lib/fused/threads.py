"""Tasks of a kernel over torch's number of threads.

Kernels release the interpreter's lock, so plain threads do. The pools that come with numba are not safe to call from
two threads at once, or need a library that is not there everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch


@lru_cache(maxsize=None)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="attention")


if hasattr(os, "register_at_fork"):     # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def over_threads(kernel: Callable[..., None], *arguments: object, tasks: int) -> None:
    """Call `kernel(*arguments, begin, end)` for parts of `range(tasks)`, at once where there are threads."""
    threads = torch.get_num_threads()
    parts = min(threads, tasks)
    (begin, end), *others = ((tasks * part // parts, tasks * (part + 1) // parts) for part in range(parts))
    waiting = [_pool(threads).submit(kernel, *arguments, *other) for other in others]
    kernel(*arguments, begin, end)
    for other in waiting:
        other.result()
