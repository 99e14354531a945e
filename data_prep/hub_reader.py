"""Documents of a hub domain from any position on, across files and through connections that drop."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, groupby
from typing import NamedTuple, TypeVar

import datasets
import huggingface_hub.errors as refusals
import pyarrow

from data_prep.config import Say
from data_prep.hub import SUFFIXES, HubSet, find
from lib.errors import SuiteError

ATTEMPTS = 6        # that fail in a row end the reading; `datasets` repeats a request itself before an attempt fails
WAIT = 5.0          # seconds before the second attempt; twice as long before each further one
ROWS = 512          # of a batch
CLIENTS = ("httpx", "httpx2", "aiohttp", "requests", "urllib3", "http")     # whose errors need not be OSErrors
REFUSED = (400, 401, 403, 404, 410, 416, 451)       # a status that waiting does not mend

Position = tuple[int, int]      # file (counted over all sets of a domain) and row
Rows = Iterator[tuple[int, int, tuple[str | None, ...]]]        # file, row, and the texts of the columns
T = TypeVar("T")


class HubDocument(NamedTuple):
    text: str
    together: str               # documents with the same one are held out together
    file: int
    row: int                    # its first
    after: Position             # where reading continues after it
    passed_over: int            # rows without text since the document before


def passing(error: BaseException) -> bool:
    """Whether an error is temporary: one of the network, but not the hub's refusal of a name or a person."""
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    if status in REFUSED or isinstance(error, (FileNotFoundError, PermissionError, refusals.EntryNotFoundError,
                                               refusals.RepositoryNotFoundError, refusals.OfflineModeIsEnabled)):
        return False
    return any(kind.__module__.split(".")[0] in CLIENTS or kind in (OSError, refusals.XetDownloadError)
               for kind in type(error).__mro__)


def patiently(what: str, attempt: Callable[[], T], instead: str, say: Say) -> T:
    """The result of `attempt`, repeated while the network fails; in the end a SuiteError that says what to do."""
    for number in count(1):
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
        raise SuiteError(f"{what}: the hub did not answer {ATTEMPTS} times in a row ({told}). What was read is kept; "
                         f"run again to go on from there, or {instead}") from error
    wait = WAIT * 2 ** (number - 1)
    say(f"{what}: {told}; trying again in {wait:.0f} s")
    time.sleep(wait)


def tables(file: str, row: int) -> Iterator[pyarrow.Table]:
    """The rows of a file from `row` on, in order, at most ROWS at a time."""
    kind = next((kind for suffix, kind in SUFFIXES.items() if suffix in file.lower()[-len(".jsonl.gz"):]), "parquet")
    options = {"batch_size": ROWS} if kind == "parquet" else {}     # the default, a row group, fails where it is empty
    rows = datasets.load_dataset(kind, data_files={"train": [file]}, split="train", streaming=True, **options)
    yield from (rows.skip(row) if row else rows).with_format("arrow").iter(batch_size=ROWS)


class Reader:
    """A domain's documents. Its `sources` are found, and the first rows of each read, before anything is built."""

    def __init__(self, name: str, sets: Iterable[HubSet], say: Say) -> None:
        self.name, self._say = name, say
        self.sources = [patiently(one.name, lambda one=one: find(one), one.remedy, say) for one in sets]
        self.files = [(source, file) for source in self.sources for file in source.files]
        for number, (source, file) in enumerate(self.files):
            if file == source.files[0] and next(self.rows(number), None) is None:
                raise SuiteError(f"{self.where(number)} has no rows; fetch it again, or {source.set.remedy}")

    def where(self, number: int) -> str:
        source, file = self.files[number]
        return file if source.local else source.name(file)

    def rows(self, number: int, row: int = 0) -> Iterator[tuple[int, tuple[str | None, ...]]]:
        """The rows of a file from `row` on, through connections that drop: their number, and the texts of the columns.
        """
        (source, file), failed = self.files[number], 0
        while True:
            try:
                for table in tables(file, row):
                    columns = [self._strings(table, column, number, row) for column in source.set.columns]
                    for texts in zip(*columns, strict=True):
                        yield row, texts
                        row += 1
                    failed = 0
                return
            except SuiteError:
                raise
            except Exception as error:
                if source.local:
                    raise SuiteError(f"{self.where(number)} cannot be read after row {row} ({type(error).__name__}: "
                                     f"{error}); it may be damaged or cut off: fetch it again") from error
                failed += 1
                wait_or_raise(f"{self.where(number)}, row {row}", error, source.set.remedy, failed, self._say)

    def _strings(self, table: pyarrow.Table, column: str, number: int, row: int) -> list[str | None]:
        where = f"{self.where(number)}, rows from {row}"
        if column not in table.column_names:
            known = ", ".join(table.column_names)
            raise SuiteError(f"{where}: no column {column!r} (there are {known}); the data set has changed, or the "
                             f"copy is of another one: {self.files[number][0].set.remedy}")
        kind = table.schema.field(column).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_null(kind)):
            raise SuiteError(f"{where}: column {column!r} is {kind}, not text")
        return table.column(column).to_pylist()

    def documents(self, position: Position = (0, 0)) -> Iterator[HubDocument]:
        """The documents from `position` on, the `after` of a document: those that an undisturbed reader reads next."""
        first, row = position
        for source, group in groupby(range(first, len(self.files)), lambda number: self.files[number][0]):
            numbers = list(group)
            rows = ((number, at, texts) for number in numbers
                    for at, texts in self.rows(number, row if number == first else 0))
            if source.set.begins:
                yield from grouped(rows, source.set, (numbers[-1] + 1, 0))
            else:
                yield from single(rows, source.set)


def single(rows: Rows, wanted: HubSet) -> Iterator[HubDocument]:
    """Each row with a text is a document."""
    passed_over = 0
    for file, row, texts in rows:
        text = "" if None in texts else "\n".join(texts)
        if not text.strip():
            passed_over += 1
            continue
        together = texts[wanted.columns.index(wanted.together)] if wanted.together else ""
        yield HubDocument(text, together or text, file, row, (file, row + 1), passed_over)
        passed_over = 0


def grouped(rows: Rows, wanted: HubSet, end: Position) -> Iterator[HubDocument]:
    """Lines put together to documents; the lines before the first beginning are one too."""
    begins, lines, start, passed_over = re.compile(wanted.begins), [], end, 0
    for file, row, (found,) in chain(rows, [(*end, (None,))]):
        line = (found or "").rstrip("\n")
        if not lines or (file, row) == end or begins.search(line):
            text = "\n".join(lines).strip("\n")
            if text.strip():
                yield HubDocument(text, text, *start, (file, row), passed_over)
            lines, start, passed_over = [], (file, row), 0
        lines.append(line)
        passed_over += found is None
