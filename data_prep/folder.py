"""A person's own text: a folder whose subfolders are domains, of .txt, .tokens, .jsonl and .parquet files.

A row of a .jsonl or .parquet file is a document. Its text is the column `text` if there is one; otherwise all columns
of prose, joined by line breaks in the file's order: strings of at least three words on average over the file's first
rows, in a column whose name is not an identifier's (id, uid, key, hash, url, path, or ending in one of these). Plain
text is cut into documents at blank lines.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from data_prep.sources import Document
from lib.errors import SuiteError

PLAIN = (".txt", ".tokens")
SUFFIXES = (*PLAIN, ".jsonl", ".parquet")
DOCUMENT = 3000        # characters that a document cut from plain text aims at
LONGEST_PARAGRAPH = 4000
SAMPLE = 100           # rows that decide which columns are text
READ = 1 << 20         # bytes
_IDENTIFIER = re.compile(r"(?:^|_|(?<=[a-z]))(?:id|uid|uuid|key|hash|sha\d*|url|path)$", re.IGNORECASE)


def domains(folder: str | Path) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of each domain by name, and notes about files that are not read.

    A subfolder is a domain, with all that is below it; files beside the subfolders form one named after `folder`. Names
    that start with a dot are passed over. A file that is empty or no text is an error before any other is read.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise SuiteError(f"CORPUS = {str(folder)!r} is not a folder; give one whose subfolders (domains) have .txt, "
                         ".jsonl or .parquet files")
    files: dict[str, list[Path]] = {}
    notes = []
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        inside = path.relative_to(root)
        if any(part.startswith(".") for part in inside.parts):
            continue
        if path.suffix.lower() in SUFFIXES:
            files.setdefault(inside.parts[0] if len(inside.parts) > 1 else root.name, []).append(path)
        else:
            notes.append(f"{inside.as_posix()} is not read (only {', '.join(SUFFIXES)} are)")
    if not files:
        raise SuiteError(f"CORPUS = {str(folder)!r} has no {', '.join(SUFFIXES)} file, in itself or its subfolders")
    for path in itertools.chain(*files.values()):
        if path.stat().st_size == 0:
            raise SuiteError(f"{path} is empty; remove it or fill it")
        next(_parquet_rows(path) if path.suffix.lower() == ".parquet" else _decoded(path), None)
    return files, notes


def documents(root: Path, paths: Iterable[Path], notes: list[str]) -> Iterator[Document]:
    """The documents of the files in order; `notes` gains a line for each file that says which of its columns are text.

    Raises a SuiteError that names the file, and the byte, line or row, where it cannot be read.
    """
    for path in paths:
        name = path.relative_to(root).as_posix()
        if path.suffix.lower() in PLAIN:
            texts = cut(_decoded(path))
        else:
            rows = _json_rows(path) if path.suffix.lower() == ".jsonl" else _parquet_rows(path)
            texts = _rows(path, rows, name, notes)
        number = None
        for number, text in ((number, text) for number, text in enumerate(texts) if text.strip()):
            yield Document(f"{name}#{number}", text)
        if number is None:
            raise SuiteError(f"{path} has no text in it; remove it or fill it")


def _decoded(path: Path, lines: bool = False) -> Iterator[str]:
    """The file's text in blocks or lines, without a byte order mark; an error names the offset of what is not UTF-8."""
    with path.open(encoding="utf-8-sig") as file:
        try:
            while block := file.readline() if lines else file.read(READ):
                if "\0" in block:
                    raise SuiteError(f"{path} is binary (it has zero bytes), not text in UTF-8")
                yield block
        except UnicodeDecodeError as error:
            offset = file.buffer.tell() - len(error.object) + error.start
            raise SuiteError(f"{path} is not UTF-8: byte {error.object[error.start]:#04x} at offset {offset}; save it "
                             "as UTF-8") from error


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
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise SuiteError(f"{path}, line {number} is not JSON: {error.msg} at column {error.colno}; write one "
                                 "object a line") from error
            if not isinstance(row, dict):
                raise SuiteError(f"{path}, line {number} is JSON, but no object: {line.rstrip()[:60]!r}")
            yield f"line {number}", row


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    from pyarrow import parquet
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for number, row in enumerate(batch.to_pylist(), number + 1):
                    yield f"row {number}", row
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path} cannot be read as parquet after row {number}: {error}; it may be damaged") from error


def _rows(path: Path, rows: Iterator[tuple[str, dict[str, Any]]], name: str, notes: list[str]) -> Iterator[str]:
    sample = list(itertools.islice(rows, SAMPLE))
    if not sample:
        raise SuiteError(f"{path} has no rows; remove it or fill it")
    columns = text_columns([row for _, row in sample])
    if not columns:
        raise SuiteError(f"{path} has no column of text: neither `text` nor strings of three words or more among "
                         f"{', '.join(sorted({key for _, row in sample for key in row}))}")
    notes.append(f"{name}: text is {' + '.join(columns)}")
    for where, row in itertools.chain(sample, rows):
        values = [row[column] for column in columns if row.get(column) is not None]
        if not values or not all(isinstance(value, str) for value in values):
            raise SuiteError(f"{path}, {where} has no text in {' + '.join(columns)}: {str(row)[:80]}")
        yield "\n".join(values)


def text_columns(rows: list[dict[str, Any]]) -> list[str]:
    """The columns that are text, by the rule at the top of this file."""
    names = dict.fromkeys(key for row in rows for key in row)
    columns = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return ["text"] if "text" in columns else [
        name for name, values in columns.items() if values and not _IDENTIFIER.search(name)
        and all(isinstance(v, str) for v in values) and sum(len(v.split()) for v in values) >= 3 * len(values)]
