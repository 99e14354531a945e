"""What a long build has written for certain: the lengths of its files and where its reading stands, committed together.

A build that is killed goes on from its last commit: what its files have beyond it is cut off.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

from lib.errors import SuiteError

EVERY = 20.0        # seconds between commits; what a kill costs at most
NAME = ".journal.json"      # hidden, as all that is no part of the result


class Journal:
    """`state` is what was committed last, as JSON; empty at the start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._last = time.monotonic()
        try:
            found = json.loads((folder / NAME).read_text("utf-8"))
        except FileNotFoundError:
            found = {"lengths": {}, "state": {}}
        self._lengths: dict[str, int] = found["lengths"]
        self.state: dict[str, Any] = found["state"]

    def open(self, name: str) -> BinaryIO:
        """The file at its committed length, for appending; a SuiteError if it has less than that."""
        path = self._folder / name
        path.touch()
        file = path.open("r+b")
        length = self._lengths.get(name, 0)
        if path.stat().st_size < length:
            file.close()
            raise SuiteError(f"{path} is shorter than when it was written; delete {self._folder}, it will be built again")
        file.truncate(length)
        file.seek(length)
        self._files[name] = file
        return file

    def forget(self, *names: str) -> None:
        """The next `open` of these files empties them."""
        for name in names:
            self._lengths.pop(name, None)

    def due(self) -> bool:
        return time.monotonic() - self._last >= EVERY

    def commit(self) -> None:
        """All that was written to the open files, and `state`, are on the disk, or none of it counts."""
        for name, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            self._lengths[name] = file.tell()
        partial = self._folder / f"{NAME}.new"
        with partial.open("w", encoding="utf-8") as out:
            json.dump({"lengths": self._lengths, "state": self.state}, out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, self._folder / NAME)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._last = time.monotonic()

    def close(self) -> None:
        """What was not committed stays in the files until they are opened again."""
        for file in self._files.values():
            file.close()
        self._files.clear()
