"""One optimiser step over several processes and in several parts: the same windows, mean and gradient however it is split.

Every process draws the whole batch of a step, a function of seed and step, and takes its rows of it. Each part's mean loss is
weighed by its share of the batch's scored tokens, so that the sum of all is the batch's mean. One process that takes the
batch at once computes what the plain loop does, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lib import compiled as compiler
from lib.config import RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.fit import rows_at_once
from lib.fused.ops import IGNORED, cross_entropy

if TYPE_CHECKING:
    from lib.clock import Clock
    from lib.model import Transformer

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes that train a run together; by default this one alone.

    A `SuiteError` in training is raised by all of them, since it comes from what all compute or from `of_first`. Any other
    error belongs to one process, and ends the work of all.
    """
    rank: int = 0
    size: int = 1
    control: Any = None             # a gloo group without a limit of time, for what the first does while others wait

    @property
    def first(self) -> bool:
        """Whether this process writes, evaluates and reports."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """This process's part of a batch; parts differ by at most one row."""
        return slice(batch * self.rank // self.size, batch * (self.rank + 1) // self.size)

    def of_first(self, make: Callable[[], T]) -> T:
        """What `make` gives in the first process, or its `SuiteError`, in all of them."""
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
        """Sums over the processes."""
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
            return hidden.sum() * 0.0                   # a gradient of zeros, which the other processes wait for
        return cross_entropy(hidden, self.model.embedding.weight, targets)


class Step:
    """Loss and gradients of a batch: this process's rows of it, in parts that fit into memory."""

    def __init__(self, model: Transformer, run: RunConfig, ranks: Ranks, device: str) -> None:
        self.model, self.run, self.ranks, self.device = model, run, ranks, device
        self.loss = Loss(model)
        self.joint = self.loss
        if ranks.size > 1:
            self.joint = DistributedDataParallel(self.loss)
        self.at_once = 0                                # rows of a part
        self.shared = False                             # gradients of this step are on their way to the other processes

    def prepare(self, inputs: torch.Tensor, targets: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Before the first step, on its batch: how many rows fit, and whether the compiled program works. Changes nothing.

        Where other processes wait for gradients, a part that does not fit cannot be tried again: so it is tried here.
        """
        mine = self.ranks.rows(len(inputs))
        inputs, targets = inputs[mine], targets[mine]
        held = sum(x.nbytes for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor))
        self.at_once = rows_at_once(lambda rows: self.forward(inputs[:rows], targets[:rows]), len(inputs), self.model, held,
                                    self.device, copies=3 if self.ranks.size == 1 else 4)      # and what is sent
        program = compiler.compiled(self.model, self.run, self.device)
        if program is not None:
            self.loss.hidden = program
            try:
                self.trial(inputs, targets)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:                  # whatever the compiler does not like
                compiler.failed(error)
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
        """Gradients of the batch's mean loss, over all processes, into the parameters; this process's share of that loss.

        inputs and targets `[batch, T]` of the whole batch, on the CPU.
        """
        total, mine = scored(targets), self.ranks.rows(len(inputs))
        inputs, targets = inputs[mine], targets[mine]

        def attempt() -> float:
            self.shared, value = False, None
            parts = -(-len(inputs) // self.at_once)
            for number, (x, y) in enumerate(zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True), 1):
                self.shared = number == parts and self.ranks.size > 1
                with nullcontext() if self.shared else self.apart():
                    loss, share = self.forward(x, y), scored(y) / total
                    loss = loss if share == 1 else loss * share
                    clock.lap("forward")
                    (loss if self.ranks.size == 1 else loss * self.ranks.size).backward()      # DDP takes the mean
                    clock.lap("backward")
                value = loss.detach() if value is None else value + loss.detach()
            return value.item()
        return self.fitting(attempt, len(inputs))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with autocast(self.run.train, self.device):
            return self.joint(inputs.to(self.device), targets.to(self.device), scored(targets))

    def apart(self) -> Any:
        """Gradients stay in this process."""
        return self.joint.no_sync() if self.ranks.size > 1 else nullcontext()

    def fitting(self, attempt: Callable[[], T], rows: int) -> T:
        """The attempt; where the GPU's memory is too small, again with half as many rows at once."""
        while True:
            try:
                return attempt()
            except torch.OutOfMemoryError as error:
                if self.at_once == 1 or self.shared:
                    what = f"{self.at_once} of the {rows} windows of {self.run.train.length} tokens at once"
                    remedy = ("start again: the run goes on from its checkpoint and measures anew" if self.at_once > 1
                              else "a GPU with more memory, or a shorter length")
                    raise torch.OutOfMemoryError(f"memory ends with {what}; {remedy} ({error})") from error
            # Here the exception is gone, and with it what its frames held.
            self.at_once = -(-self.at_once // 2)
            self.model.zero_grad(set_to_none=True)
            if self.device != "cpu":
                torch.cuda.empty_cache()


def scored(targets: torch.Tensor) -> int:
    return int((targets != IGNORED).sum())


def autocast(recipe: TrainConfig, device: str) -> torch.autocast:
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=recipe.precision == "bf16")
