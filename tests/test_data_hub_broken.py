"""Broken copies of the hub's data sets: each error names file, place and remedy, and nobody waits."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from hub_fakes import web, write
from pyarrow import parquet

from data_prep import hub_reader
from data_prep.hub import DOMAINS
from data_prep.hub_reader import Reader
from lib.errors import SuiteError


def reader(name: str) -> Reader:
    return Reader(name, DOMAINS[name].sets, print)


def texts(name: str) -> list[str]:
    return [document.text for document in reader(name).documents()]


def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUITE_HUB", str(tmp_path))
    return tmp_path / "roneneldan/TinyStories/train-00000-of-00001.parquet"


def test_when_a_column_is_missing_or_no_text_then_the_error_names_file_and_columns(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = only(tmp_path, monkeypatch)
    write(file, {"story": ["x"], "id": [1]})
    with pytest.raises(SuiteError, match=r"train-00000-of-00001.parquet.*no column 'text' \(there are story, id\)"):
        reader("tinystories")
    write(file, {"text": [1, 2]})
    with pytest.raises(SuiteError, match=r"column 'text' is int64, not text"):
        reader("tinystories")


def test_when_a_later_file_lacks_the_column_then_the_error_names_that_file(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(only(tmp_path, monkeypatch), {"text": ["x"]})
    write(tmp_path / "roneneldan/TinyStories/train-00001-of-00002.parquet", {"story": ["y"]})
    with pytest.raises(SuiteError, match="train-00001-of-00002.parquet, rows from 0: no column 'text'"):
        texts("tinystories")


def test_when_there_are_no_rows_or_no_files_then_the_error_names_the_place(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = only(tmp_path, monkeypatch)
    file.parent.mkdir(parents=True)
    with pytest.raises(SuiteError, match=r"TinyStories has no file of roneneldan/TinyStories \(default, train\)"):
        reader("tinystories")
    write(tmp_path / "roneneldan/TinyStories/validation.parquet", {"text": ["x"]})
    with pytest.raises(SuiteError, match="has no file of"):
        reader("tinystories")
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), file)
    with pytest.raises(SuiteError, match="train-00000-of-00001.parquet has no rows"):
        reader("tinystories")


@pytest.mark.parametrize("damage", ["cut", "garbled", "no parquet"])
def test_when_a_parquet_file_is_damaged_then_the_error_names_it_and_nobody_waits(
        damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = only(tmp_path, monkeypatch)
    write(file, web(0, 60))
    content = bytearray(file.read_bytes())
    if damage == "garbled":
        content[2000:9000] = bytes(7000)
    file.write_bytes(b"text" if damage == "no parquet" else content[:-30] if damage == "cut" else content)
    monkeypatch.setattr(hub_reader.time, "sleep", lambda seconds: pytest.fail("waited"))
    with pytest.raises(SuiteError, match=r"train-00000-of-00001.parquet cannot be read after row 0 .*damaged or cut off"):
        texts("tinystories")


def test_when_a_line_is_no_json_then_the_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = only(tmp_path, monkeypatch).with_suffix(".jsonl")
    file.parent.mkdir(parents=True)
    file.write_text('{"text": "good"}\n{"text": \n')
    with pytest.raises(SuiteError, match=r"train-00000-of-00001.jsonl cannot be read after row 0"):
        texts("tinystories")
