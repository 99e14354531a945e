"""A quiet machine: nothing of this suite trains while times are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from lib import paths
from suite.settings.machine import cores

WATCHED = 1.0          # seconds
BUSY = 0.1             # share of the cores in other hands above which times say less


@contextmanager
def quiet(say: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Every slot that a training worker needs (`suite.run.worker.slot`), so that workers of all suites with these outputs wait.

    A run in hand is waited for. Slots are taken in one order, so that two that want all of them cannot block each other.
    """
    from filelock import FileLock, Timeout
    folder = paths.outputs() / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    known = {int(path.stem) for path in folder.glob("*.lock") if path.stem.isdigit()}
    with ExitStack() as held:
        for number in sorted(known | set(range(cores()))):
            lock = FileLock(folder / f"{number}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                say("waiting until what trains now is done: times are measured alone")
                lock.acquire()
            held.callback(lock.release)
        yield


def busy() -> float:
    """Share of the machine's cores that is in use while this process rests."""
    import psutil
    return psutil.cpu_percent(interval=WATCHED) / 100
