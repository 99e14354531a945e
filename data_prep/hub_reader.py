"""Documents of a hub domain from any position on, across files and through connections that drop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from data_prep.hub import SUFFIXES, HubSet, Source, find, remedy
from lib.errors import SuiteError

if TYPE_CHECKING:
    import pyarrow

ATTEMPTS = 6        # in a row without a row read; `datasets` tries some of its own before each of them fails
WAIT = 5.0          # seconds before the second attempt; twice as long before each further one
ROWS = 512          # of a batch
CLIENTS = ("httpx", "httpx2", "aiohttp", "requests", "urllib3", "http")     # whose errors need not be OSErrors
REFUSED = (400, 401, 403, 404, 410, 416, 451)       # a status that waiting does not mend

Say = Callable[[str], None]
Position = tuple[int, int]      # file (counted over all sets of a domain) and row
T = TypeVar("T")


class HubDocument(NamedTuple):
    text: str
    together: str               # documents with the same one are held out together
    file: int
    row: int                    # its first
    after: Position             # where reading goes on after it
    passed_over: int            # rows without text since the document before it


class Disconnected(SuiteError):
    """The hub was out of reach for too long."""


def passing(error: BaseException) -> bool:
    """Whether an error may go away by itself: the network's, but not the hub's refusal of a name or a person."""
    import huggingface_hub.errors as hub
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    if status in REFUSED or isinstance(error, (FileNotFoundError, PermissionError, hub.RepositoryNotFoundError,
                                               hub.OfflineModeIsEnabled, hub.EntryNotFoundError)):
        return False
    kinds = type(error).__mro__
    return any(kind.__module__.split(".")[0] in CLIENTS or kind in (OSError, getattr(hub, "XetDownloadError", None))
               for kind in kinds)


def patiently(what: str, attempt: Callable[[], T], instead: str, say: Say) -> T:
    """`attempt`, again after a while where the network fails; a SuiteError that says what to do in the end."""
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except SuiteError:
            raise
        except Exception as error:
            wait_or_raise(what, error, instead, number, say)
    raise AssertionError("wait_or_raise raises after the last attempt")


def wait_or_raise(what: str, error: Exception, instead: str, number: int, say: Say) -> None:
    """After attempt `number` failed: wait, or raise what a person can act on; `instead` is what else they can do."""
    told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not passing(error):
        raise SuiteError(f"{what} cannot be read ({told}). It may be gone, gated or renamed: with a token of an account that "
                         f"may read it (hf auth login) run again; or {instead}") from error
    if number >= ATTEMPTS:
        raise Disconnected(f"{what}: the hub did not answer {ATTEMPTS} times in a row ({told}). What was read is kept; run "
                           f"again to go on from there, or {instead}") from error
    wait = WAIT * 2 ** (number - 1)
    say(f"{what}: {told}; trying again in {wait:.0f} s")
    time.sleep(wait)


def tables(source: Source, file: int, row: int) -> Iterator[pyarrow.Table]:
    """The rows of a file from `row` on, some hundred at a time, in order."""
    import datasets
    name = source.files[file]
    kind = next((kind for suffix, kind in SUFFIXES.items() if suffix in name.lower()[-len(".jsonl.gz"):]), "parquet")
    own = {"batch_size": ROWS} if kind == "parquet" else {}         # its default, a row group, fails where that is empty
    rows = datasets.load_dataset(kind, data_files={"train": [name]}, split="train", streaming=True, **own)
    yield from (rows.skip(row) if row else rows).with_format("arrow").iter(batch_size=ROWS)


class Reader:
    """A domain's documents. `sources` are found, and their first rows looked at, before anything is built of them."""

    def __init__(self, name: str, sets: tuple[HubSet, ...], say: Say) -> None:
        self.name, self._say = name, say
        self.sources = [patiently(own.name, lambda own=own: find(own), remedy(own), say) for own in sets]
        self.files = [(source, number) for source in self.sources for number in range(len(source.files))]
        for first in [sum(len(s.files) for s in self.sources[:n]) for n in range(len(self.sources))]:
            if next(self.columns(first, 0), None) is None:
                raise SuiteError(f"{self.where(first)} has no rows; fetch it again, or {remedy(self.files[first][0].set)}")

    def where(self, file: int) -> str:
        source, number = self.files[file]
        return source.files[number] if source.local else source.name(number)

    def file_names(self) -> list[str]:
        return [source.name(number) for source, number in self.files]

    def columns(self, file: int, row: int = 0) -> Iterator[tuple[int, list[list[str | None]], list[str | None]]]:
        """First row, then the columns of text and that of `together`, a batch at a time, whatever happens to the network."""
        source, number = self.files[file]
        own, failed = source.set, 0
        while True:
            try:
                for table in tables(source, number, row):
                    yield row, [self._strings(table, column, file, row) for column in own.columns], (
                        self._strings(table, own.together, file, row) if own.together else [])
                    row, failed = row + len(table), 0
                return
            except SuiteError:
                raise
            except Exception as error:
                if source.local:
                    raise SuiteError(f"{self.where(file)} cannot be read after row {row} ({type(error).__name__}: {error}); it "
                                     "may be damaged or cut off: fetch it again") from error
                failed += 1
                wait_or_raise(f"{self.where(file)}, row {row}", error, remedy(own), failed, self._say)

    def _strings(self, table: pyarrow.Table, column: str, file: int, row: int) -> list[str | None]:
        import pyarrow
        where = f"{self.where(file)}, rows from {row}"
        if column not in table.column_names:
            raise SuiteError(f"{where}: no column {column!r} (there are {', '.join(table.column_names)}); the data set has "
                             f"changed, or the copy is of another one: {remedy(self.files[file][0].set)}")
        kind = table.schema.field(column).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_null(kind)):
            raise SuiteError(f"{where}: column {column!r} is {kind}, not text")
        return table.column(column).to_pylist()

    def documents(self, position: Position = (0, 0)) -> Iterator[HubDocument]:
        """Each document once, from `position` on (the `after` of one): what a run without interruption would read next."""
        file, row = position
        for source in dict.fromkeys(own for own, _ in self.files[file:]):
            last = max(number for number, (own, _) in enumerate(self.files) if own is source)
            rows = self._rows(file, row, last)
            yield from self._grouped(rows, source.set, (last + 1, 0)) if source.set.begins else self._single(rows, source.set)
            file, row = last + 1, 0

    def _rows(self, file: int, row: int, last: int) -> Iterator[tuple[str | None, str, int, int]]:
        """Text (None: there is none), `together`, file and row of all rows up to the end of file `last`."""
        for number in range(file, last + 1):
            for first, columns, together in self.columns(number, row):
                for at, values in enumerate(zip(*columns, strict=True)):
                    there = [value for value in values if value is not None]
                    text = "\n".join(there) if len(there) == len(values) else None
                    yield text, (together[at] if together else None) or text or "", number, first + at
            row = 0

    @staticmethod
    def _single(rows: Iterator[tuple[str | None, str, int, int]], own: HubSet) -> Iterator[HubDocument]:
        passed_over = 0
        for text, together, file, row in rows:
            if text is None or not text.strip():
                passed_over += 1
                continue
            yield HubDocument(text, together, file, row, (file, row + 1), passed_over)
            passed_over = 0

    @staticmethod
    def _grouped(rows: Iterator[tuple[str | None, str, int, int]], own: HubSet, end: Position) -> Iterator[HubDocument]:
        """Lines put together to documents; what stands before the first beginning is one too."""
        begins, lines, start, passed_over = re.compile(own.begins), [], None, 0

        def document(after: Position) -> Iterator[HubDocument]:
            text = "\n".join(lines).strip("\n")
            if text.strip():
                yield HubDocument(text, text, *start, after, passed_over)
        for text, _, file, row in rows:
            line = (text or "").rstrip("\n")
            if start is None or begins.search(line):
                if start is not None:
                    yield from document((file, row))
                lines, start, passed_over = [], (file, row), 0
            lines.append(line)
            passed_over += text is None
        if start is not None:
            yield from document(end)

