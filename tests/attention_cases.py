"""What the tests of attention share: keys in every form, inputs, and the comparison with the reference in float64."""

import contextlib
import os
import secrets

import numpy as np
import pytest
import torch

from lib.attention import sparse_attention
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow, names, pattern_class

torch.set_num_threads(1)
SEED = int(os.environ.get("TEST_SEED", secrets.randbelow(2 ** 31)))     # a failure names it, for TEST_SEED


EXAMPLES = [pytest.param(example, id=f"{name}-{n}")
            for name in names() for n, example in enumerate(pattern_class(name).examples())]


def random_table(H, T, C, seed=0):
    """1 to C random keys a query, past and future, and key 3: rows of every length, keys that nobody else reads."""
    random = np.random.default_rng(seed)
    table = np.full((H, T, C + 1), -1, np.int32)
    for h, i in np.ndindex(H, T):
        chosen = np.union1d(random.choice(T, random.integers(1, min(C, T) + 1), replace=False), [min(3, T - 1)])
        table[h, i, :len(chosen)] = chosen
    return table


FORMS = {
    "far": Offsets((0, 1, 2, 5, 13, 22, 400)),
    "window and far": Offsets((*range(20), 30, 50)),
    "odd leading": Offsets((0, 3, 8), leading=5),
    "leading and a window": Offsets((*range(7), 19), leading=3),
    "only leading": Offsets((), leading=3),
    "both ways": Offsets((-40, -30, -5, -1, 0, 3, 8), leading=4, causal=False),
    "windows both ways": Offsets((-21, -20, -19, -18, *range(-2, 3), 25), causal=False),
    "future only": Offsets((-2, 0)),                       # causal: the key ahead does not exist
    "by head": HeadOffsets((Offsets((0, 1)), Offsets((0, 2, 4), leading=1), Offsets((*range(5), 11)),
                            Offsets((0, 5, 6, 7), leading=3))),
    "soft": SoftWindow(6, 3),
    "learned": LearnedOffsets(2, (1, 2, 3, 5, 8, 13, 21, 34)),
    "learned, in any order": LearnedOffsets(0, (21, 3, 8)),
    "learned without rungs": LearnedOffsets(9, (1, 2, 3)),
    "table": EdgeTable(random_table(1, 35, 5)[0]),
    "table by head": EdgeTable(random_table(4, 35, 5)),
}
# Keys that are refused at T = 20 with 4 heads, and what is said of them.
FAR = Offsets((0, 1, 2, 5, 13, 50))
REFUSED = {
    "no key": (Offsets((3,)), "query 0 attends no key"),
    "none behind": (Offsets((-3, -2), causal=False), "query 18 attends no key"),
    "a head": (HeadOffsets((FAR, FAR, Offsets((1,)), FAR)), "query 0 attends no key"),
    "a row": (EdgeTable(np.where(np.arange(20)[:, None] == 7, -1, 0).astype(np.int32)), "query 7 attends no key"),
    **{str(row): (EdgeTable(np.array([row] * 20, np.int32)), message) for row, message in (
        ([0, 20], "keys 0 to 20"), ([-2, 0], "keys -2 to"), ([3, 3], "ascend"), ([-1, 3], "ascend"))},
    "a key twice": (Offsets((0, 1, 1)), "without repeats")}

LEARNED = {"soft": {"span": [0.0, 1.5, -1.25, 4.0]}, "learned": {"alpha": 1.21},
           "learned, in any order": {"alpha": 0.71}, "learned without rungs": {"alpha": 0.9}}


def alibi(H):
    return torch.tensor([2.0 ** -(1 + h) for h in range(H)])


def qkv(B=1, H=4, G=2, T=20, D=8, dtype=torch.float32):
    """q, k and v, always the same numbers, laid out as a model's are."""
    random = torch.Generator().manual_seed(0)
    return [torch.randn(B, T, heads, D, generator=random, dtype=dtype).transpose(1, 2) for heads in (H, G, G)]


def inputs(B, H, G, T, D=7, seed=0, dtype=torch.bfloat16):
    """q, k, v and the gradient of the output, float64: numbers that `dtype` holds, laid out as a model's are."""
    random = torch.Generator().manual_seed(SEED + seed)
    return [torch.randn(B, T, heads, D, generator=random).to(dtype).double().transpose(1, 2) for heads in (H, G, G, H)]


def run(data, keys, backend, dtype, layer=0, slopes=None, **learned):
    """Output and gradients: of q, k, v, and of alpha or span, which are float32 unless all is float64."""
    q, k, v, dout = (x.detach().to(dtype, copy=True) for x in data)
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    learned = {name: torch.tensor(value, dtype=torch.float32).to(kind).requires_grad_()
               for name, value in learned.items()}
    wanted = [x.requires_grad_() for x in (q, k, v)] + list(learned.values())
    out = sparse_attention(q, k, v, keys, layer, slopes=slopes, backend=backend, **learned)
    return [out.detach(), *torch.autograd.grad(out, wanted, dout, allow_unused=True, materialize_grads=True)]


def assert_close(results, expected, tolerance, of_gradients=None, of_learned=None, size_of_learned=1.0):
    """Errors as parts of the largest number, at least of 1: of the output, of gradients, of those of alpha or span."""
    of_gradients = tolerance if of_gradients is None else of_gradients
    limits = tolerance, *[of_gradients] * 3, of_gradients if of_learned is None else of_learned
    for name, a, b, limit in zip(("out", "dq", "dk", "dv", "dlearned"), results, expected, limits, strict=False):
        assert a.isfinite().all(), name
        least = size_of_learned if name == "dlearned" else 1.0
        error = float((a.double() - b).abs().max()) / max(least, float(b.abs().max()))
        assert error < limit, f"{name}: {error:.1e}, TEST_SEED={SEED}"


def true_in_a_child(statement):
    """Whether a function returns True in a fork of this process, which may spoil what it likes."""
    if not hasattr(os, "fork"):
        pytest.skip("a process cannot be forked here")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if statement() else 1)
        os._exit(2)
    return os.waitpid(child, 0)[1] == 0
