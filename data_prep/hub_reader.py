"""Documents of a hub domain from any position on, across files and through connections that drop."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from data_prep.config import Say
from data_prep.hub import SUFFIXES, HubSet, Source, find, remedy
from lib.errors import SuiteError

if TYPE_CHECKING:
    import pyarrow

ATTEMPTS = 6        # that fail in a row end the reading; `datasets` repeats a request itself before an attempt fails
WAIT = 5.0          # seconds before the second attempt; twice as long before each further one
ROWS = 512          # of a batch
CLIENTS = ("httpx", "httpx2", "aiohttp", "requests", "urllib3", "http")     # whose errors need not be OSErrors
REFUSED = (400, 401, 403, 404, 410, 416, 451)       # a status that waiting does not mend

Position = tuple[int, int]      # file (counted over all sets of a domain) and row
Row = tuple[str | None, str, int, int]      # text or None, the text of `together`, file, row
T = TypeVar("T")


class HubDocument(NamedTuple):
    text: str
    together: str               # documents with the same one are held out together
    file: int
    row: int                    # its first
    after: Position             # where reading continues after it
    passed_over: int            # rows without text since the document before


class Disconnected(SuiteError):
    """The hub was out of reach for too long."""


def passing(error: BaseException) -> bool:
    """Whether an error is temporary: one of the network, but not the hub's refusal of a name or a person."""
    import huggingface_hub.errors as hub
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    if status in REFUSED or isinstance(error, (FileNotFoundError, PermissionError, hub.RepositoryNotFoundError,
                                               hub.OfflineModeIsEnabled, hub.EntryNotFoundError)):
        return False
    kinds = type(error).__mro__
    return any(kind.__module__.split(".")[0] in CLIENTS or kind in (OSError, getattr(hub, "XetDownloadError", None))
               for kind in kinds)


def patiently(what: str, attempt: Callable[[], T], instead: str, say: Say) -> T:
    """The result of `attempt`, repeated while the network fails; in the end a SuiteError that says what to do."""
    for number in itertools.count(1):
        try:
            return attempt()
        except SuiteError:
            raise
        except Exception as error:
            wait_or_raise(what, error, instead, number, say)


def wait_or_raise(what: str, error: Exception, instead: str, number: int, say: Say) -> None:
    """Wait after the failed attempt `number`, or raise an error that says what to do; `instead` is an alternative."""
    told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if not passing(error):
        raise SuiteError(f"{what} cannot be read ({told}). It may be gone, gated or renamed: with a token of an "
                         f"account that may read it (hf auth login) run again; or {instead}") from error
    if number >= ATTEMPTS:
        raise Disconnected(f"{what}: the hub did not answer {ATTEMPTS} times in a row ({told}). What was read is kept; "
                           f"run again to go on from there, or {instead}") from error
    wait = WAIT * 2 ** (number - 1)
    say(f"{what}: {told}; trying again in {wait:.0f} s")
    time.sleep(wait)


def tables(source: Source, file: int, row: int) -> Iterator[pyarrow.Table]:
    """The rows of a file from `row` on, in order, at most ROWS at a time."""
    import datasets
    name = source.files[file]
    kind = next((kind for suffix, kind in SUFFIXES.items() if suffix in name.lower()[-len(".jsonl.gz"):]), "parquet")
    options = {"batch_size": ROWS} if kind == "parquet" else {}     # the default, a row group, fails where it is empty
    rows = datasets.load_dataset(kind, data_files={"train": [name]}, split="train", streaming=True, **options)
    yield from (rows.skip(row) if row else rows).with_format("arrow").iter(batch_size=ROWS)


class Reader:
    """A domain's documents. Its `sources` are found, and the first rows of each read, before anything is built."""

    def __init__(self, name: str, sets: tuple[HubSet, ...], say: Say) -> None:
        self.name, self._say = name, say
        self.sources = [patiently(one.name, lambda one=one: find(one), remedy(one), say) for one in sets]
        self.files = [(source, number) for source in self.sources for number in range(len(source.files))]
        for file, (source, number) in enumerate(self.files):
            if number == 0 and next(self.columns(file), None) is None:
                raise SuiteError(f"{self.where(file)} has no rows; fetch it again, or {remedy(source.set)}")

    def where(self, file: int) -> str:
        source, number = self.files[file]
        return source.files[number] if source.local else source.name(number)

    def columns(self, file: int, row: int = 0) -> Iterator[tuple[int, list[list[str | None]], list[str | None]]]:
        """Batches of rows through connections that drop: first row, columns of text, column `together`."""
        source, number = self.files[file]
        wanted, failed = source.set, 0
        while True:
            try:
                for table in tables(source, number, row):
                    yield row, [self._strings(table, column, file, row) for column in wanted.columns], (
                        self._strings(table, wanted.together, file, row) if wanted.together else [])
                    row, failed = row + len(table), 0
                return
            except SuiteError:
                raise
            except Exception as error:
                if source.local:
                    raise SuiteError(f"{self.where(file)} cannot be read after row {row} ({type(error).__name__}: "
                                     f"{error}); it may be damaged or cut off: fetch it again") from error
                failed += 1
                wait_or_raise(f"{self.where(file)}, row {row}", error, remedy(wanted), failed, self._say)

    def _strings(self, table: pyarrow.Table, column: str, file: int, row: int) -> list[str | None]:
        import pyarrow
        where = f"{self.where(file)}, rows from {row}"
        if column not in table.column_names:
            known = ", ".join(table.column_names)
            raise SuiteError(f"{where}: no column {column!r} (there are {known}); the data set has changed, or the "
                             f"copy is of another one: {remedy(self.files[file][0].set)}")
        kind = table.schema.field(column).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_null(kind)):
            raise SuiteError(f"{where}: column {column!r} is {kind}, not text")
        return table.column(column).to_pylist()

    def documents(self, position: Position = (0, 0)) -> Iterator[HubDocument]:
        """The documents from `position` on, the `after` of a document: those that an undisturbed reader reads next."""
        file, row = position
        for source in dict.fromkeys(source for source, _ in self.files[file:]):
            last = max(number for number, (other, _) in enumerate(self.files) if other is source)
            rows = self._rows(file, row, last)
            if source.set.begins:
                yield from self._grouped(rows, source.set, (last + 1, 0))
            else:
                yield from self._single(rows)
            file, row = last + 1, 0

    def _rows(self, file: int, row: int, last: int) -> Iterator[Row]:
        """All rows up to the end of file `last`."""
        for number in range(file, last + 1):
            for first, columns, together in self.columns(number, row):
                for at, values in enumerate(zip(*columns, strict=True)):
                    there = [value for value in values if value is not None]
                    text = "\n".join(there) if len(there) == len(values) else None
                    yield text, (together[at] if together else None) or text or "", number, first + at
            row = 0

    @staticmethod
    def _single(rows: Iterator[Row]) -> Iterator[HubDocument]:
        """Each row with a text is a document."""
        passed_over = 0
        for text, together, file, row in rows:
            if text is None or not text.strip():
                passed_over += 1
                continue
            yield HubDocument(text, together, file, row, (file, row + 1), passed_over)
            passed_over = 0

    @staticmethod
    def _grouped(rows: Iterator[Row], wanted: HubSet, end: Position) -> Iterator[HubDocument]:
        """Lines put together to documents; the lines before the first beginning are one too."""
        begins, lines, start, passed_over = re.compile(wanted.begins), [], None, 0

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
