"""How many windows of a batch fit into the memory that is free at once: measured on the model, not assumed of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

SHARE = {"cpu": 0.5, "cuda": 0.9}               # of the free memory that a training may take: a CPU's is shared with others
WORK = {"cpu": 2 ** 26, "cuda": 2 ** 31}        # bytes of one slice of logits and of what is computed from it (`lib.fused.ops`)
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def rows_at_once(loss: Callable[[int], torch.Tensor], rows: int, model: torch.nn.Module, held: int, device: str,
                 copies: int = 3) -> int:
    """How many of `rows` windows one forward and backward pass takes, at least 1; the same number in each part, or one less.

    loss: the loss of that many windows, with its graph. held: bytes of the optimiser's state that are there already.
    copies: of the weights, that training keeps beside them: gradients and two moments.
    """
    kind = torch.device(device).type
    still = copies * sum(p.nbytes for p in model.parameters()) - held
    fixed, a_row = kept_bytes(loss, model, rows)
    passing = 1.1 + 2 / max(1, len(getattr(model, "blocks", ())))          # gradients of the layer that is at work
    room = SHARE[kind] * free_memory(device) - still - fixed - WORK[kind]
    fitting = max(1, min(rows, int(room / (passing * a_row)) if a_row else rows))
    return -(-rows // -(-rows // fitting))


def kept_bytes(loss: Callable[[int], torch.Tensor], model: torch.nn.Module, rows: int) -> tuple[int, int]:
    """Bytes that a backward pass needs of the forward pass: of any batch, and for each window more."""
    one = kept_by(lambda: loss(1), model)
    if rows == 1:
        return 0, one
    a_row = max(0, kept_by(lambda: loss(2), model) - one)
    return max(0, one - a_row), a_row


def kept_by(forward: Callable[[], torch.Tensor], model: torch.nn.Module) -> int:
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        end = forward()                         # while it is there nothing that it keeps is freed, so no address comes twice
    del end
    return sum(kept.values())


def free_memory(device: str) -> int:
    """Bytes that this process can still have: of the GPU, or of the machine and of the control groups that it is in."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    import psutil
    return min([psutil.virtual_memory().available, *allowed()])


def allowed() -> list[int]:
    """What the limits of a container or of a batch system leave, one number a limit (control groups, version 2)."""
    if not OWN_CGROUP.exists():
        return []
    own = next((line[3:] for line in OWN_CGROUP.read_text().splitlines() if line.startswith("0::")), "/")
    found, folder = [], CGROUPS / own.lstrip("/")
    for each in (folder, *folder.parents):
        limit, used = each / "memory.max", each / "memory.current"
        if CGROUPS not in (each, *each.parents) or not limit.exists() or not used.exists():
            continue
        if (most := limit.read_text().strip()) != "max":
            cache = sum(int(line.split()[1]) for line in (each / "memory.stat").read_text().splitlines()
                        if line.startswith(("inactive_file ", "active_file ")))
            found.append(max(0, int(most) - int(used.read_text()) + cache))
    return found
