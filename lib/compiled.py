"""`torch.compile` of the model's layers, where it is worth its time; `SUITE_COMPILE=1` or `0` decides instead.

The compiled program computes what the model computes, in another order of rounding. What is compiled is a function beside
the model: weights, their names and evaluations stay as they are. Attention stays outside, in kernels of its own, and so does
the loss, which is cut into slices by hand.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import torch

from lib.config import RunConfig
from lib.errors import one_of
from lib.patterns import pattern_class
from lib.patterns.base import TRAINER

VARIABLE = "SUITE_COMPILE"
WORTH = 3e16                    # operations of a training from which on it pays: minutes of a GPU, as compiling takes one

log = logging.getLogger(__name__)
Hidden = Callable[[torch.Tensor], torch.Tensor]


def compiled(model: torch.nn.Module, run: RunConfig, device: str) -> Hidden | None:
    """`model.hidden` as a compiled program, made at its first call, which must be tried; None: the model as it is."""
    reason = why_not(run, device, os.environ.get(VARIABLE, ""))
    if reason:
        log.info("run without torch.compile: %s", reason)
        return None
    from torch._dynamo import config
    torch.compiler.reset()                              # programs of the run before this one
    config.recompile_limit = max(config.recompile_limit, 4 * run.model.layers)          # a layer's number is a constant there
    return torch.compile(model.hidden, dynamic=False)


def why_not(run: RunConfig, device: str, asked: str) -> str:
    """Why this run is not compiled; empty: it is."""
    one_of(asked, ("", "0", "1"), f"value of {VARIABLE}")
    if asked == "0":
        return f"{VARIABLE}=0"
    if pattern_class(run.pattern.name).trainer != TRAINER:
        return f"the attention of pattern {run.pattern.name!r} changes from step to step"
    if asked == "1":
        return ""
    if torch.device(device).type != "cuda":
        return f"on a {device} the suite has kernels of its own; {VARIABLE}=1 compiles all the same"
    operations = 6.0 * run.model.matrix_weights * run.train.tokens
    if operations < WORTH:
        return f"a training of {operations:.1e} operations is too short for it; {VARIABLE}=1 compiles all the same"
    return ""


def failed(error: Exception) -> None:
    """One line: the run goes on without the compiler."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    log.warning("torch.compile does not work here (%s: %s): the run goes on without it; %s=0 does not try",
                type(error).__name__, first[:200], VARIABLE)
