"""A person's own text: a folder whose subfolders are domains, of .txt, .md, .tokens, .jsonl, .csv and .parquet files.

A row of a .jsonl, .csv or .parquet file is a document. Its text is the column `text` if there is one; otherwise all
columns of prose, joined by line breaks in the file's order: strings of at least three words on average over the file's
first rows, in a column whose name is not an identifier's (id, uid, key, hash, url, path, or ending in one of these).
A row without a text is left out and counted. Plain text is cut into documents at blank lines.
"""

import io
import itertools
import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_prep.sources import Document
from lib.config import fingerprint
from lib.errors import SuiteError

PLAIN = (".txt", ".md", ".tokens")
SUFFIXES = (*PLAIN, ".jsonl", ".csv", ".parquet")
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}       # what may follow these, but .parquet, which compresses itself
READABLE = f"{', '.join(SUFFIXES)}, and {' or '.join(COMPRESSED)} of them"
UNREAD = "not read: "  # begins every note about files that are left out
LONGEST_NAME = 200     # bytes of a domain's name: those of its files are longer, and file systems end at 255
DOCUMENT = 3000        # characters that a document cut from plain text aims at
LONGEST_PARAGRAPH = 4000
SAMPLE = 100           # rows that decide which columns are text
LEFT_OUT = 0.1         # most of a domain's rows that may lack a text
READ = 1 << 20         # bytes
_IDENTIFIER = re.compile(r"(?:^|_|(?<=[a-z]))(?:id|uid|uuid|key|hash|sha\d*|url|path)$", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")        # half a character, which JSON can hold and UTF-8 cannot


def domains(folder: str | Path) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of each domain by name, and notes about files that are not read.

    A subfolder is a domain, with all that is below it; files beside the subfolders form one named after `folder`. Names
    that start with a dot are passed over. A file that is empty or no text is an error before any other is read.
    """
    root = root_of(folder)
    if not os.path.isdir(root) or _SURROGATE.search(str(root)):
        raise SuiteError(f"CORPUS = {str(folder)!r} is not a folder with a name in UTF-8; give one whose subfolders "
                         f"(domains) have files that are read ({READABLE})")
    files: dict[str, list[Path]] = {}
    others: dict[tuple[str, str, str], list[Path]] = {}
    for path in below(root):
        inside = path.relative_to(root).parts
        domain = named(inside[0] if len(inside) > 1 else root.name or "text")
        if path.is_file() and kind(path):
            files.setdefault(domain, []).append(path)
        else:
            why = "it is no file, or a link to none" if kind(path) else f"read are {READABLE}"
            others.setdefault((domain, path.suffix, why), []).append(path)
    notes = []
    for (domain, _, why), paths in others.items():
        more = f" and {len(paths) - 1:,} more like it" if len(paths) > 1 else ""
        gone = "" if domain in files or paths[0].parent == root else f"; the domain {domain} is left out"
        notes.append(f"{UNREAD}{printable(paths[0].relative_to(root))}{more}{gone} ({why})")
    if not files:
        raise SuiteError(f"CORPUS = {str(folder)!r} has no file that is read ({READABLE}), in itself or its subfolders")
    for path in itertools.chain(*files.values()):
        if path.stat().st_size == 0:
            raise SuiteError(f"{path} is empty; remove it or fill it")
        next(_table_rows(path) if kind(path) == ".parquet" else _decoded(path), None)
    return files, notes


def root_of(folder: str | Path) -> Path:
    """The folder as an absolute path without links; whether it is there is not asked."""
    return Path(os.path.realpath(os.path.expanduser(folder)))


def below(root: Path) -> list[Path]:
    """All that is no folder at any depth, sorted, through links but not round a loop of links; no hidden names."""
    found, folders = [], [(root, ())]
    while folders:
        folder, above = folders.pop()
        real = os.path.realpath(folder)
        for path in folder.iterdir() if real not in above else ():
            if path.name.startswith("."):
                continue
            if path.is_dir():
                folders.append((path, (*above, real)))
            else:
                found.append(path)
    return sorted(found)


def kind(path: Path) -> str:
    """The one of SUFFIXES that says how a file is read: `.jsonl` of `a.jsonl.gz`; empty if it is not read."""
    *_, before, last = "", "", *(suffix.lower() for suffix in path.suffixes)
    ending = before if last in COMPRESSED and before != ".parquet" else last
    return ending if ending in SUFFIXES and path.name.lower() != "readme.md" else ""


def printable(name: str | Path) -> str:
    """A name as tables, pages and databases can hold it: control characters and bytes that are not UTF-8 escaped."""
    return str(name) if str(name).isprintable() else repr(str(name))[1:-1]


def named(folder: str) -> str:
    """The domain of a subfolder: its name, `printable`; of a very long one the beginning, and a hash of all of it."""
    name = printable(folder)
    return name if len(name.encode()) <= LONGEST_NAME else f"{name[:40]}… {fingerprint(name)[:8]}"


class Rows:
    """Counts the rows of a domain's files, in `removed` those that are left out because they have no text."""

    def __init__(self, removed: Counter[str]) -> None:
        self.removed, self.read, self.lacking = removed, 0, 0
        self.examples: list[str] = []

    def add(self, text: str, lacking: str = "") -> str:
        """Count a row, and return its text; `lacking` says where and why it has none at all, not even an empty one."""
        self.read += 1
        if not text.strip():
            self.removed["rows without text"] += 1
        if lacking:
            self.lacking += 1
            self.examples = [*self.examples, lacking][:3]
        return text

    def require_few(self) -> None:
        """Raise a SuiteError that shows three rows, if more than LEFT_OUT of all lack a text."""
        if self.lacking > LEFT_OUT * self.read:
            raise SuiteError(f"{'; '.join(self.examples)}: so it is in {self.lacking:,} of {self.read:,} rows; at most "
                             f"{LEFT_OUT:.0%} may be left out, mend or remove the others")


def documents(root: Path, paths: Iterable[Path], notes: list[str], seen: Rows) -> Iterator[Document]:
    """The documents of the files in order; `notes` gains a line for each file that says which of its columns are text.

    Raises a SuiteError that names the file, and the byte, line or row, where it cannot be read.
    """
    for path in paths:
        name = printable(path.relative_to(root).as_posix())
        if kind(path) in PLAIN:
            texts = cut(_decoded(path))
        else:
            rows = _json_rows(path) if kind(path) == ".jsonl" else _table_rows(path)
            texts = _rows(path, rows, name, notes, seen)
        number = None
        for number, text in ((number, text) for number, text in enumerate(texts) if text.strip()):
            yield Document(f"{name}#{number}", text)
        if number is None:
            seen.require_few()
            raise SuiteError(f"{path} has no text in it; remove it or fill it")


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """The file as text in UTF-8 without a byte order mark, decompressed if its name says so."""
    with path.open("rb") as file:
        if codec := COMPRESSED.get(path.suffix.lower()):
            import pyarrow
            file = pyarrow.CompressedInputStream(file, codec)
        yield io.TextIOWrapper(file, "utf-8-sig")


def _decoded(path: Path, lines: bool = False) -> Iterator[str]:
    """The file's text in blocks or lines; an error names the offset of what is not UTF-8, unless it is compressed."""
    with _opened(path) as file:
        try:
            while block := file.readline() if lines else file.read(READ):
                if "\0" in block:
                    raise SuiteError(f"{path} is binary (it has zero bytes), not text in UTF-8")
                yield block
        except UnicodeDecodeError as error:
            at = file.buffer.tell() - len(error.object) + error.start if file.seekable() else None
            offset = "" if at is None else f" at offset {at}"
            raise SuiteError(f"{path} is not UTF-8: byte {error.object[error.start]:#04x}{offset}; save it as "
                             "UTF-8") from error
        except OSError as error:
            raise SuiteError(f"{path} cannot be read ({error}); it may be damaged or cut off") from error


def cut(blocks: Iterable[str]) -> Iterator[str]:
    """Documents of about `DOCUMENT` characters: whole paragraphs (blank-line separated), the longest ones cut.

    Joined by blank lines they are the text again, but for white space at the cuts.
    """
    document, size = [], 0
    for paragraph in _paragraphs(blocks):
        if document and size + len(paragraph) > DOCUMENT:
            yield "\n\n".join(document)
            document, size = [], 0
        document.append(paragraph)
        size += len(paragraph)
    if document:
        yield "\n\n".join(document)


def _paragraphs(blocks: Iterable[str]) -> Iterator[str]:
    rest = ""
    for block in blocks:
        *whole, rest = re.split(r"\n(?:[ \t]*\n)+", rest + block)
        for paragraph in whole:
            yield from _pieces(paragraph.rstrip())
        *long, rest = list(_pieces(rest)) or [""]      # a paragraph that never ends must not be held whole
        yield from long
    yield from _pieces(rest.rstrip())


def _pieces(paragraph: str) -> Iterator[str]:
    """`paragraph` in pieces of at most LONGEST_PARAGRAPH characters, cut at a line's end or a space if there is one."""
    paragraph = paragraph.lstrip("\n")
    while len(paragraph) > LONGEST_PARAGRAPH:
        ends = [paragraph.rfind(mark, 1, LONGEST_PARAGRAPH) for mark in "\n "]
        end = next((end for end in ends if end > 0), LONGEST_PARAGRAPH)
        yield paragraph[:end]
        paragraph = paragraph[end:].lstrip("\n")
    if paragraph:
        yield paragraph


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_decoded(path, lines=True), 1):
        if line.strip():
            try:
                row = json.loads(line, parse_int=float)         # Python refuses integers of many digits
            except (json.JSONDecodeError, RecursionError) as error:
                what = f"{error.msg} at column {error.colno}" if isinstance(error, ValueError) else "nested too deep"
                raise SuiteError(f"{path}, line {number} is not JSON: {what}; write one object a line") from error
            if not isinstance(row, dict):
                raise SuiteError(f"{path}, line {number} is JSON, but no object: {line.rstrip()[:60]!r}")
            yield f"line {number}", row


def _table_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    number = 0
    try:
        for batch in _parquet(path) if kind(path) == ".parquet" else _csv(path):
            for number, row in enumerate(batch, number + 1):
                yield f"row {number}", row
    except (ValueError, OSError, pyarrow.ArrowException) as error:      # pandas' own errors are ValueErrors
        raise SuiteError(f"{path} cannot be read as {kind(path)[1:]} after row {number}: {str(error).strip()}; it "
                         "may be damaged") from error


def _parquet(path: Path) -> Iterator[list[dict[str, Any]]]:
    from pyarrow import parquet
    with path.open("rb") as content, parquet.ParquetFile(content) as file:
        for batch in file.iter_batches(batch_size=1024):
            yield batch.to_pylist()


def _csv(path: Path) -> Iterator[list[dict[str, Any]]]:
    import pandas as pd
    sep = max(",;\t", key=next(_decoded(path, lines=True), "").count)         # of the first line, which names columns
    with _opened(path) as file, pd.read_csv(file, sep=sep, dtype=str, keep_default_na=False, chunksize=1024) as parts:
        for part in parts:
            yield part.to_dict("records")


def _rows(path: Path, rows: Iterator[tuple[str, dict[str, Any]]], name: str, notes: list[str],
          seen: Rows) -> Iterator[str]:
    """The text of each row, empty for a row without one."""
    sample = list(itertools.islice(rows, SAMPLE))
    if not sample:
        raise SuiteError(f"{path} has no rows; remove it or fill it")
    columns = text_columns([row for _, row in sample])
    if not columns:
        raise SuiteError(f"{path} has no column of text: neither `text` nor strings of three words or more among "
                         f"{', '.join(sorted({key for _, row in sample for key in row}))}")
    shown = printable(" + ".join(columns))
    notes.append(f"{name}: text is {shown}")
    for where, row in itertools.chain(sample, rows):
        values = [row[column] for column in columns if row.get(column) is not None]
        if values and all(isinstance(value, str) for value in values):
            yield seen.add(_SURROGATE.sub("\ufffd", "\n".join(values)))
        else:
            yield seen.add("", f"{path}, {where} has no text in {shown}: {reprlib.repr(row)[:80]}")


def text_columns(rows: list[dict[str, Any]]) -> list[str]:
    """The columns that are text, by the rule at the top of this file."""
    names = dict.fromkeys(key for row in rows for key in row)
    columns = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return ["text"] if "text" in columns else [
        name for name, values in columns.items() if values and not _IDENTIFIER.search(name)
        and all(isinstance(v, str) for v in values) and sum(len(v.split()) for v in values) >= 3 * len(values)]
