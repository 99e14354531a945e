"""Files that appear whole or not at all."""

import errno
import os
import threading
from pathlib import Path

from lib.errors import SuiteError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)       # disk, share of it, limit of a file's size


def unwritable(path: Path, error: OSError) -> SuiteError:
    """What a person reads where `path` cannot be written: why, and the remedy."""
    remedy = "make room on its disk" if error.errno in FULL else "is the folder writable?"
    return SuiteError(f"{path} cannot be written ({error.strerror or error}): {remedy}; what was there is kept")


def write_atomically(path: Path, content: bytes | memoryview, *, durable: bool = False) -> None:
    """Write beside `path`, then rename: a reader finds the old file or the new one, whole.

    durable: the bytes are on the disk before they take the place of the old file, so that a power cut loses neither;
    what a kill leaves has a fixed name, which the next write replaces. Raises `SuiteError` if the disk is full.
    """
    partial = path.with_name(f"{path.name}.partial" if durable
                             else f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise unwritable(path, error) from error
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force renames in `folder` to the disk, so that a power cut does not undo them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
