"""One optimiser step over several processes and in several parts, compiled where that is worth its time.

Every process draws the whole batch of a step, a function of seed and step, and takes its own rows. The mean loss of
each part is weighted by the part's share of the scored tokens, so that the sum over all parts is the mean of the batch.
One process that takes the batch at once computes what the plain loop computes, bit for bit; any other split adds the
same numbers in another order. `lib.resources` says how many rows fit into memory; `lib.training` has the loop.
"""

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lib.config import RunConfig, TrainConfig
from lib.errors import SuiteError, one_of
from lib.fused.ops import IGNORED, cross_entropy
from lib.model import Transformer
from lib.patterns import pattern_class
from lib.resources import Clock, rows_at_once

COMPILE = "SUITE_COMPILE"       # environment variable: 1 compiles wherever it can, 0 never does
WORTH = 3e16                    # operations of a training above which compiling pays on a GPU: some minutes of work

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes that train a run together; by default this process alone.

    A `SuiteError` in training is raised in all of them, since it comes either from what all compute or from `of_first`.
    Any other error belongs to one process, and ends the work of all.
    """
    rank: int = 0
    size: int = 1
    control: Any = None             # a gloo group without a time limit, for waiting while the first process works

    @property
    def first(self) -> bool:
        """Whether this process writes, evaluates and reports."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """This process's rows of a batch of `batch` windows; the processes' shares differ by at most one row."""
        return slice(batch * self.rank // self.size, batch * (self.rank + 1) // self.size)

    def of_first(self, make: Callable[[], T]) -> T:
        """The result of `make` in the first process, or its `SuiteError`, in all processes."""
        if self.size == 1:
            return make()
        told: list[Any] = [None, None]
        if self.first:
            try:
                told[0] = make()
            except SuiteError as error:
                told[1] = str(error)
        dist.broadcast_object_list(told, src=0, group=self.control)
        if told[1] is not None:
            raise SuiteError(told[1])
        return told[0]

    def sum(self, *numbers: float, device: str = "cpu") -> tuple[float, ...]:
        """The sum of each number over the processes."""
        if self.size == 1:
            return numbers
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return tuple(total.tolist())


class Loss(torch.nn.Module):
    """The model with its loss, as DistributedDataParallel wants it; `hidden` may be a compiled program."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.hidden = model, model.hidden

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor, scored: int) -> torch.Tensor:
        hidden = self.hidden(inputs)
        if not scored:
            return hidden.sum() * 0.0                   # gradients of zero, since the other processes wait for some
        return cross_entropy(hidden, self.model.embedding.weight, targets)


class Step:
    """Loss and gradients of a batch: this process's rows, in parts that fit into memory."""

    def __init__(self, model: Transformer, run: RunConfig, ranks: Ranks, device: str) -> None:
        self.model, self.run, self.ranks, self.device = model, run, ranks, device
        self.loss = Loss(model)
        self.joint = DistributedDataParallel(self.loss) if ranks.size > 1 else self.loss
        self.apart = self.joint.no_sync if ranks.size > 1 else nullcontext     # in it gradients stay in this process
        self.at_once = 0                                # rows of a part
        self.shared = False                             # whether gradients of this step are on their way to the others

    def prepare(self, inputs: torch.Tensor, targets: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Before the first step, on its batch: find how many rows fit and whether the compiled program works.

        Changes no weight. Where other processes wait for gradients, a part that does not fit cannot be tried again, so
        it is tried here.
        """
        mine = self.ranks.rows(len(inputs))
        inputs, targets = inputs[mine], targets[mine]
        held = sum(x.nbytes for state in optimizer.state.values() for x in state.values())
        copies = 3 if self.ranks.size == 1 else 4       # gradients and two moments, and what is sent
        self.at_once = rows_at_once(lambda rows: self.forward(inputs[:rows], targets[:rows]), len(inputs), self.model,
                                    held, self.device, copies)
        program = compiled(self.model, self.run, self.device)
        if program is not None:
            self.loss.hidden = program
            try:
                self.trial(inputs, targets)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:                  # whatever the compiler does not like
                first = str(error).strip().partition("\n")[0][:200] or "no message"
                log.warning("torch.compile does not work here (%s: %s): the run goes on without it; %s=0 does not try",
                            type(error).__name__, first, COMPILE)
                self.loss.hidden = self.model.hidden
        if self.ranks.size > 1:
            self.trial(inputs, targets)

    def trial(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Forward and backward of the first part, with fewer rows until they fit; the gradients are thrown away."""
        def attempt() -> None:
            with self.apart():
                self.forward(inputs[:self.at_once], targets[:self.at_once]).backward()
        try:
            self.fitting(attempt, len(inputs))
        finally:
            self.model.zero_grad(set_to_none=True)

    def gradients(self, inputs: torch.Tensor, targets: torch.Tensor, clock: Clock) -> float:
        """Add the gradients of the batch's mean loss over all processes to the parameters.

        inputs, targets: `[batch, T]` of the whole batch, on the CPU. Returns this process's share of the loss in nats:
        the shares of all processes add up to the mean loss of the batch.
        """
        total, mine = scored(targets), self.ranks.rows(len(inputs))
        inputs, targets = inputs[mine], targets[mine]

        def attempt() -> float:
            self.shared, value = False, 0.0
            parts = -(-len(inputs) // self.at_once)
            rows = zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True)
            for number, (x, y) in enumerate(rows, 1):
                self.shared = number == parts and self.ranks.size > 1
                with nullcontext() if self.shared else self.apart():
                    loss = self.forward(x, y) * (scored(y) / total)
                    clock.lap("forward")
                    (loss * self.ranks.size).backward()                     # DDP takes the mean
                    clock.lap("backward")
                value = value + loss.detach()
            return value.item()
        return self.fitting(attempt, len(inputs))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with autocast(self.run.train, self.device):
            return self.joint(inputs.to(self.device), targets.to(self.device), scored(targets))

    def fitting(self, attempt: Callable[[], T], rows: int) -> T:
        """The result of `attempt`; where the GPU runs out of memory, again with half as many rows at once."""
        while True:
            try:
                return attempt()
            except torch.OutOfMemoryError as error:
                if self.at_once == 1 or self.shared:
                    what = f"{self.at_once} of the {rows} windows of {self.run.train.length} tokens at once"
                    remedy = ("start again: the run goes on from its checkpoint and measures anew" if self.at_once > 1
                              else "a GPU with more memory, or a shorter length")
                    raise torch.OutOfMemoryError(f"memory ends with {what}; {remedy} ({error})") from error
            # Only here, after the handler, the exception is gone, and with it the tensors that its frames held.
            self.at_once = -(-self.at_once // 2)
            self.model.zero_grad(set_to_none=True)
            if self.device != "cpu":
                torch.cuda.empty_cache()


def scored(targets: torch.Tensor) -> int:
    return int((targets != IGNORED).sum())


def autocast(recipe: TrainConfig, device: str) -> torch.autocast:
    """The context of the recipe's precision: bf16 products, or plain float32."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=recipe.precision == "bf16")


def compiled(model: Transformer, run: RunConfig, device: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """`model.hidden` as a compiled program, which its first call makes, so it must be tried; None: not compiled.

    The program computes what the model computes, rounded in another order. It is a function beside the model: weights,
    their names and evaluations stay as they are. Attention has its own kernels and stays outside, and so does the loss.
    """
    reason = why_not(run, device, os.environ.get(COMPILE, ""))
    if reason:
        log.info("run without torch.compile: %s", reason)
        return None
    from torch._dynamo import config
    torch.compiler.reset()                              # forget the programs of the run before this one
    config.recompile_limit = max(config.recompile_limit, 4 * run.model.layers)      # a layer's number is a constant
    return torch.compile(model.hidden, dynamic=False)


def why_not(run: RunConfig, device: str, asked: str) -> str:
    """Why this run is not compiled, where `asked` is the value of SUITE_COMPILE; empty: it is compiled."""
    one_of(asked, ("", "0", "1"), f"value of {COMPILE}")
    if asked == "0":
        return f"{COMPILE}=0"
    if pattern_class(run.pattern.name).blurs:
        return f"the attention of pattern {run.pattern.name!r} changes from step to step"
    if asked == "1":
        return ""
    if torch.device(device).type != "cuda":
        return f"on a {device} the suite has kernels of its own; {COMPILE}=1 compiles all the same"
    operations = 6.0 * run.model.matrix_weights * run.train.tokens
    if operations < WORTH:
        return f"a training of {operations:.1e} operations is too short for it; {COMPILE}=1 compiles all the same"
    return ""
