"""What a run leaves on the disk: checkpoints while it trains, its weights when it is done. A kill damages neither.

    checkpoint.pt            the newest state, checkpoint.previous.pt the one before: loaded with `weights_only`
    model.safetensors        final weights, the tied matrix once; the same bytes however often the run was interrupted
    result.json              metrics, times and the weights' SHA-256; written last: a run with it is finished
"""

import dataclasses
import hashlib
import io
import json
import logging
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors import torch as safetensors

from lib.config import RunConfig
from lib.errors import SuiteError
from lib.files import sync_folder, write_atomically

CHECKPOINTS = NEWEST, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
WEIGHTS, RESULT = "model.safetensors", "result.json"

log = logging.getLogger(__name__)


def canonical(run: RunConfig) -> str:
    return json.dumps(run.to_dict(), sort_keys=True)


def save_checkpoint(folder: Path, run: RunConfig, state: Mapping[str, Any]) -> None:
    """Write `state` (tensors, numbers, strings, containers of them) as the newest checkpoint; keep the one before it.
    Raises `SuiteError` if it cannot be written; the checkpoints on the disk are kept."""
    buffer = io.BytesIO()
    torch.save({"run": canonical(run), **state}, buffer)
    waiting = folder / "checkpoint.new.pt"
    write_atomically(waiting, buffer.getbuffer(), durable=True)
    if (folder / NEWEST).exists():
        os.replace(folder / NEWEST, folder / PREVIOUS)
    os.replace(waiting, folder / NEWEST)
    sync_folder(folder)


def load_checkpoint(folder: Path, run: RunConfig) -> dict[str, Any] | None:
    """The newest whole checkpoint, on the CPU; None if there is none. Damaged ones are renamed and logged. Raises
    `SuiteError` if it belongs to a run with another configuration."""
    for path in (folder / name for name in CHECKPOINTS):
        if path.exists() and (state := read_checkpoint(path)) is not None:
            require_same(state["run"], run, path)
            return state
    return None


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """The content of a checkpoint; None if it is cut off or a byte has changed (torch checks no checksums)."""
    try:
        with zipfile.ZipFile(path) as archive:
            if (member := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of {member} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {name: state[name] for name in ("run", "model", "optimizer", "state")}     # one of the suite has all
    except Exception as damage:                         # whatever zipfile and torch make of foreign bytes
        set_aside(path, damage)
        return None


def require_same(with_run: str, run: RunConfig, path: Path) -> None:
    if with_run != canonical(run):
        raise SuiteError(f"{path} belongs to a run with another configuration: a folder holds one run; move it away")


def set_aside(path: Path, damage: Exception) -> None:
    aside, why = path.with_name(path.name + ".damaged"), str(damage).partition("\n")[0]
    os.replace(path, aside)
    log.warning("%s is damaged (%s): kept as %s, and the run goes on without it", path, why, aside.name)


def save_finished(folder: Path, run: RunConfig, model: torch.nn.Module, result: Mapping[str, Any]) -> None:
    """Final weights with the run's configuration, and `result` as JSON; then the checkpoints are no longer needed."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    weights = safetensors.save(tensors, {"run": canonical(run)})       # one key: the order of several is not fixed
    write_atomically(folder / WEIGHTS, weights, durable=True)
    result = {"weights_sha256": hashlib.sha256(weights).hexdigest(), **result}
    text = json.dumps(result, indent=1, default=dataclasses.asdict)
    write_atomically(folder / RESULT, text.encode(), durable=True)
    for name in (NEWEST, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def load_finished(folder: Path, run: RunConfig, model: torch.nn.Module) -> dict[str, Any] | None:
    """Put the final weights into `model` and return the result; None if the run is not finished or a file is damaged.
    Raises `SuiteError` if the weights belong to a run with another configuration."""
    if not (folder / RESULT).exists():
        return None
    try:
        result, weights = json.loads((folder / RESULT).read_bytes()), (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(weights).hexdigest() != result.pop("weights_sha256"):
            raise ValueError(f"{WEIGHTS} is not the file that was written with it")
    except Exception as damage:                         # whatever json makes of them, and Python of what that is
        set_aside(folder / RESULT, damage)
        return None
    with safe_open(folder / WEIGHTS, "pt") as file:
        require_same(file.metadata()["run"], run, folder / WEIGHTS)
    model.load_state_dict(safetensors.load(weights))
    return result
