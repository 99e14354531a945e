"""Reading text of the hub: which files, which documents, from any position, through connections that drop."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import datasets
import huggingface_hub
import pytest
from hub_fakes import articles, problems, web, write
from pyarrow import parquet

from data_prep import hub
from data_prep.hub import ATTEMPTS, DOMAINS, EVALUATIONS, Reader
from lib.errors import SuiteError

pytestmark = pytest.mark.usefixtures("hub_outputs")


def reader(name: str) -> Reader:
    return Reader(name, DOMAINS[name], print)


def texts(name: str) -> list[str]:
    return [document.text for document in reader(name).documents()]


WEB = web(0, 30)["text"] + web(20, 150)["text"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the copies."""
    monkeypatch.setenv("SUITE_HUB", str(tmp_path))
    return tmp_path


def test_when_a_set_has_other_splits_configurations_and_columns_then_only_its_own_are_read():
    assert texts("fineweb_edu") == WEB
    assert len(texts("tinystories")) == 60
    first, *_ = found = list(reader("math").documents())
    columns = problems(40, "solution")
    assert first.text == f"{columns['problem'][0]}\n{columns['solution'][0]}" and len(found) == 40 + 240
    assert found[40].together == found[41].together == first.together == columns["problem"][0]
    assert found[40].text != found[41].text


def test_when_rows_are_lines_then_documents_are_articles_also_over_the_end_of_a_file():
    found = list(reader("wikitext103").documents())
    lines = [line.rstrip("\n") for line in articles(0, 90)]
    assert "".join(document.text for document in found).replace("\n", "") == "".join(lines)
    heads = [number for number, line in enumerate(lines) if line.startswith(" = Article")]
    assert [document.text.split("\n")[0] for document in found] == [f" = Article {n} = " for n in range(90)]
    assert [document.row + 301 * document.file for document in found] == heads
    assert any(document.file == 0 and document.after[0] == 1 and document.row + 7 > 301 for document in found)


def test_when_lines_are_pages_then_what_stands_before_the_first_is_a_document_too_and_empty_ones_are_none():
    lines = ["", "<mediawiki>", "  <page>", "    <title>A</title>", "  </page>", "  <page>", None, "  </page>"]
    rows = ((0, number, (line,)) for number, line in enumerate(lines))
    found = list(hub.grouped(rows, DOMAINS["enwik8"][0], (1, 0)))
    assert [d.text.split("\n")[0] for d in found] == ["<mediawiki>", "  <page>", "  <page>"]
    assert [(d.row, d.after, d.passed_over) for d in found] == [(0, (0, 2), 0), (2, (0, 5), 0), (5, (1, 0), 1)]
    assert list(hub.grouped(iter([(0, 0, ("",))]), DOMAINS["enwik8"][0], (1, 0))) == []


@pytest.mark.parametrize("name", ["math", "wikitext103"])
def test_when_reading_starts_at_any_position_then_it_goes_on_as_if_it_had_never_stopped(name):
    own = reader(name)
    whole = list(own.documents())
    for at in (*range(0, len(whole), 41), len(whole) - 1):
        assert list(own.documents(whole[at].after)) == whole[at + 1:]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".txt"])
def test_when_a_copy_is_of_another_format_then_the_documents_are_the_same(suffix, tmp_path, monkeypatch):
    expected, lines, place = texts("wikitext103"), articles(0, 90), tmp_path / "Salesforce/wikitext/any/depth"
    monkeypatch.setenv("SUITE_HUB", str(tmp_path))
    write(place / f"train{suffix}", {"text": [line.rstrip("\n") for line in lines] if suffix == ".txt" else lines})
    assert texts("wikitext103") == expected


def test_when_rows_have_no_text_then_they_are_passed_over_and_counted(own):
    write(own / "roneneldan/TinyStories/train.parquet", {"text": ["one", None, " \n", "two", None]})
    assert [(d.text, d.row, d.passed_over) for d in reader("tinystories").documents()] == [("one", 0, 0), ("two", 3, 2)]


def dropping(batch: int, failures: int, error: Exception):
    """`hub.tables` of a hub whose connection drops after each batch of rows, and at times does not come back."""
    calls = itertools.count(1)

    def tables(file: str, row: int):
        if next(calls) % (failures + 1):
            raise error
        table = parquet.read_table(file)
        if row < len(table):
            yield table.slice(row, batch)
            raise error
    return tables


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the waits, which are noted and not waited."""
    noted: list[float] = []
    monkeypatch.setattr(hub.time, "sleep", noted.append)
    return noted


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """The hub's answer about a data set, without copies."""
    monkeypatch.delenv("SUITE_HUB")
    monkeypatch.setattr(datasets, "load_dataset_builder", mock.Mock())
    return datasets.load_dataset_builder


OF_THE_CLIENT = next(kind for kind in huggingface_hub.errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")


@pytest.mark.parametrize("error", [ConnectionError("reset"), TimeoutError("slow"), OSError(5, "broken pipe"),
                                   OF_THE_CLIENT("peer closed connection without sending complete message body")])
def test_when_the_connection_drops_again_and_again_then_no_document_is_lost_or_read_twice(
        error, waits, monkeypatch):
    whole = list(reader("math").documents())
    monkeypatch.setattr(hub.Source, "local", False)
    monkeypatch.setattr(hub, "tables", dropping(37, ATTEMPTS - 2, error))
    assert list(reader("math").documents()) == whole
    assert waits[:4] == [hub.WAIT * 2 ** n for n in range(4)]


def test_when_the_hub_stays_away_then_the_error_says_that_a_rerun_goes_on(waits, monkeypatch):
    own = reader("fineweb_edu")
    monkeypatch.setattr(hub.Source, "local", False)
    monkeypatch.setattr(hub, "tables", dropping(37, 10 ** 6, ConnectionError("no route to host")))
    with pytest.raises(SuiteError, match=rf"row 0: the hub did not answer {ATTEMPTS} times .*no route to .*run again"):
        next(own.documents())
    assert len(waits) == ATTEMPTS - 1


def refusal(kind: type[Exception], status: int) -> Exception:
    return kind("401 Client Error", response=SimpleNamespace(status_code=status, headers={}, request=None, text=""))


@pytest.mark.parametrize("error", [
    datasets.exceptions.DatasetNotFoundError("Dataset 'x' is a gated dataset on the Hub. Visit the page for access."),
    refusal(huggingface_hub.errors.GatedRepoError, 403), refusal(huggingface_hub.errors.RepositoryNotFoundError, 404),
    refusal(huggingface_hub.errors.HfHubHTTPError, 401), ValueError("BuilderConfig 'sample-10BT' not found."),
    RuntimeError("Dataset scripts are no longer supported")])
def test_when_a_set_is_gone_gated_or_changed_then_the_error_says_at_once_what_to_do(error, asked, waits):
    asked.side_effect = error
    with pytest.raises(SuiteError) as told:
        reader("fineweb_edu")
    for words in ("HuggingFaceFW/fineweb-edu (sample-10BT, train)", str(error)[:30], "hf auth login",
                  "a copy into HuggingFaceFW/fineweb-edu of the folder that SUITE_HUB names"):
        assert words in str(told.value)
    assert not waits


def test_when_the_hub_is_busy_then_looking_up_is_tried_again(hub_copies, asked, waits):
    found = SimpleNamespace(config=SimpleNamespace(data_files={"train": sorted(
        map(str, (hub_copies / "HuggingFaceFW/fineweb-edu/sample/10BT").iterdir()))}))
    asked.side_effect = [*(refusal(huggingface_hub.errors.HfHubHTTPError, status) for status in (429, 503)), found]
    assert texts("fineweb_edu") == WEB and waits == [5, 10]
    asked.assert_called_with("HuggingFaceFW/fineweb-edu", "sample-10BT", revision="main")


def test_when_files_are_the_hub_s_own_then_names_do_not_have_their_commit(asked):
    commit = "0123456789abcdef" * 2 + "01234567"
    url = f"hf://datasets/LTCB/enwik8@{commit}/enwik8/train/0000.parquet"
    asked.return_value.config.data_files = {"train": [url]}
    found = hub.find(DOMAINS["enwik8"][0])
    asked.assert_called_once_with("LTCB/enwik8", "enwik8", revision="refs/convert/parquet")
    assert (found.files, found.revision, found.local) == ((url,), commit, False)
    assert found.name(url) == "LTCB/enwik8/enwik8/train/0000.parquet"
    asked.return_value.config.data_files = {"test": [url]}
    with pytest.raises(SuiteError, match=r"no split 'train' \(known: test\)"):
        hub.find(DOMAINS["enwik8"][0])


def test_when_the_hub_may_not_be_asked_then_its_cache_is_read_or_the_error_names_the_download(tmp_path, monkeypatch):
    monkeypatch.delenv("SUITE_HUB")
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    real, cache, commit = huggingface_hub.snapshot_download, tmp_path / "hub", "a" * 40
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: real(*a, cache_dir=cache, **k))
    with pytest.raises(SuiteError, match="not in the cache of HF_HOME.*hf download --repo-type dataset roneneldan/"):
        hub.find(DOMAINS["tinystories"][0])
    own = cache / "datasets--roneneldan--TinyStories"
    write(own / "snapshots" / commit / "data/train-00000-of-00001.parquet", {"text": ["from the cache"]})
    (own / "refs").mkdir()
    (own / "refs/main").write_text(commit)
    assert texts("tinystories") == ["from the cache"]
    assert hub.find(DOMAINS["tinystories"][0]).revision == commit


def test_when_copies_lie_as_the_hub_has_them_then_every_set_finds_its_own_files_or_says_that_there_are_none(own):
    for name in ("wikimedia/wikipedia/20231101.en/train-00001-of-00041.parquet",
                 "wikimedia/wikipedia/20231101.en/train-00000-of-00041.parquet",
                 "wikimedia/wikipedia/20231101.eo/train-00000-of-00001.parquet",
                 "LTCB/enwik8/enwik8/train/0000.parquet", "LTCB/enwik8/enwik8-raw/train/0000.parquet",
                 *(f"EleutherAI/lambada_openai/{folder}/test/0000.parquet"
                   for folder in ("default", "de", ".cache/default"))):
        write(own / name, {"text": ["x"]})

    def found(wanted: hub.HubSet) -> list[str]:
        return [Path(file).relative_to(own / wanted.path).as_posix() for file in hub.find(wanted).files]
    assert found(DOMAINS["wikipedia"][0]) == [f"20231101.en/train-0000{n}-of-00041.parquet" for n in range(2)]
    assert found(DOMAINS["enwik8"][0]) == ["enwik8/train/0000.parquet"]
    assert found(EVALUATIONS["lambada"]) == ["default/test/0000.parquet"]
    shutil.rmtree(own / "LTCB/enwik8")
    write(own / "LTCB/enwik8/enwik8.txt", {"text": ["  <page>", "  </page>"]})
    assert found(DOMAINS["enwik8"][0]) == ["enwik8.txt"] and texts("enwik8") == ["  <page>\n  </page>"]
    write(own / "roneneldan/TinyStories/validation.parquet", {"text": ["x"]})
    with pytest.raises(SuiteError, match=r"TinyStories has no file of roneneldan/TinyStories \(default, train\)"):
        hub.find(DOMAINS["tinystories"][0])


# Broken copies: each error names file, place and remedy, and nobody waits

BROKEN = [      # name, columns, what is done to the file, message
    ("train-0.parquet", {"story": ["x"], "id": [1]}, None, r", rows from 0: no column 'text' \(there are story, id\)"),
    ("train-1.parquet", {"story": ["x"]}, None, ", rows from 0: no column 'text'"),
    ("train-0.parquet", {"text": [1, 2]}, None, ".*column 'text' is int64, not text"),
    ("train-0.parquet", {"text": []}, None, " has no rows"),
    ("train-0.parquet", web(0, 60), lambda whole: whole[:-30], " cannot be read after row 0 .*damaged or cut off"),
    ("train-1.parquet", web(0, 60), lambda whole: whole[:2000] + bytes(7000) + whole[9000:], " cannot be read after"),
    ("train-0.parquet", web(0, 60), lambda whole: b"text", " cannot be read after row 0"),
    ("train-1.jsonl", {"text": ["good", "bad"]}, lambda whole: whole[:-4], " cannot be read after row 0")]


@pytest.mark.parametrize(("name", "columns", "damage", "message"), BROKEN)
def test_when_a_file_is_broken_or_of_another_set_then_the_error_names_it_and_nobody_waits(
        name, columns, damage, message, own, waits):
    folder = own / "roneneldan/TinyStories"
    write(folder / "train-0.parquet", {"text": ["x"]})
    write(folder / name, columns)
    if damage:
        (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(SuiteError, match=name + message):
        texts("tinystories")
    assert not waits
