"""How the suite joins a Ray cluster: its settings, the code that it brings, errors that say what to do, and no noise."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import SuiteError

# Ray's own, which it reads when it is imported. The first: no warning that this will be its default some day.
SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": "0"}            # a cluster that is started here reports to nobody
CODE = ("lib", "suite", "data_prep", "pyproject.toml")          # what the machines are sent of this folder
ANSWER_SECONDS = 10.0         # for a cluster's address to answer


def connect(log: Path) -> None:
    """Join the cluster; what Ray has to say goes to the file `log`, since its bursts would tear the display."""
    import ray
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise SuiteError(f"RAY_ADDRESS = {address!r} is not valid: start the suite on a machine of the cluster (its first one, "
                         "for instance), with RAY_ADDRESS=auto")
    if ":" in address:                                 # Ray itself would try for minutes, and print its attempts
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        except (OSError, ValueError) as error:
            raise nobody(address, error) from None
    silence(log)
    others = [f"/{path.name}" for path in paths.ROOT.iterdir() if path.name not in CODE]
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR,
                 runtime_env={"working_dir": str(paths.ROOT), "excludes": [*others, "__pycache__"]})
    except Exception as error:                         # Ray raises whatever occurs to it, plain `Exception` among them
        raise nobody(address, error) from error


def nobody(address: str, error: Exception) -> SuiteError:
    what = f"no Ray cluster answers at RAY_ADDRESS = {address!r}" if address else "Ray does not start on this machine"
    return SuiteError(f"{what} ({first_line(error)}): start one with `ray start --head` and name its address, or unset "
                      "RAY_ADDRESS to use this machine alone")


def silence(log: Path) -> None:
    """What the machines' Ray reports goes into `log`: Ray prints it whatever `log_to_driver` says, and has no switch."""
    import ray._private.worker as internals
    log.parent.mkdir(parents=True, exist_ok=True)

    def keep(data: dict[str, Any], *_: Any, **__: Any) -> None:
        with open(log, "a", encoding="utf-8") as file:
            file.write("".join(f"{time.strftime('%H:%M:%S')} ({data.get('pid')}) {line}\n" for line in data.get("lines", ())))
    if hasattr(internals, "print_to_stdstream"):
        internals.print_to_stdstream = keep


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def reason(error: Exception) -> str:
    """Why a worker is lost, in a few words."""
    from ray.exceptions import RayActorError, RayError, RayTaskError
    if isinstance(error, RayTaskError):
        return first_line(error.cause) if isinstance(error.cause, Exception) else first_line(error)
    if isinstance(error, RayActorError):
        return "its machine is gone" if "node" in str(error).lower() else "its process on that machine is gone"
    return f"{type(error).__name__}: {first_line(error)}" if isinstance(error, RayError) else str(error)
