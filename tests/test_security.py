"""Nothing that was made elsewhere is executed, what is text stays text, and nothing tells where a report was made."""

import ast
import base64
import hashlib
import html
import json
import os
import pickle
import socket
import stat
import sysconfig
from collections import Counter
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook, new_output
from pyarrow import parquet
from report_site import ALL_PATTERNS, DONE, FAILED, PROFILE, STATUS
from small_run import RUN

from data_prep import folder, hub, hub_build, tokenizer
from lib import checkpoint, paths
from lib.config import fingerprint
from lib.data import Corpus
from lib.errors import SuiteError
from suite import cli
from suite.claims import ledger
from suite.report import NotebookStatus, pages, summary
from suite.run import database, evidence, execute, ray_hosts, seals, stamps
from suite.settings import privacy, profiles
from suite.settings.privacy import require_private, shareable, visible

# Calls that execute what they read, and the word that makes some of them harmless.
EXECUTING = {"eval": None, "exec": None, "compile": None, "pickle.load": None, "pickle.loads": None, "dill.load": None,
             "cloudpickle.load": None, "cloudpickle.loads": None, "joblib.load": None, "marshal.loads": None,
             "shelve.open": None, "pd.read_pickle": None, "os.system": None, "yaml.unsafe_load": None,
             "torch.load": "weights_only=True", "yaml.load": "Loader=StrictLoader"}
WORDS = ("allow_pickle", "shell", "trust_remote_code")         # names of arguments that no call may have


# Nothing is executed (the document says what cannot be helped)

def test_when_the_code_is_read_then_no_call_in_it_executes_what_it_reads():
    wrong, seen = [], set()
    for package in ("lib", "data_prep", "suite"):
        for file in (paths.ROOT / package).rglob("*.py"):
            for call in (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)):
                name, given = ast.unparse(call.func), [ast.unparse(keyword) for keyword in call.keywords]
                seen.add(name)
                if name in EXECUTING and EXECUTING[name] not in given or any(own.startswith(WORDS) for own in given):
                    wrong.append(f"{file.relative_to(paths.ROOT)}:{call.lineno}: {name}")
    assert wrong == [] and {"torch.load", "yaml.load", "yaml.safe_load", "np.load"} <= seen


class Planted:
    """What makes the folder `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def table_with(evil: bytes) -> pyarrow.Table:
    """A column that says of itself that Python's own type for it is in this pickle."""
    extension = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": evil}
    return pyarrow.table([pyarrow.array(["some words of text"])],
                         schema=pyarrow.schema([pyarrow.field("text", pyarrow.string(), metadata=extension)]))


def objects(mark: Path) -> np.ndarray:
    return np.array([Planted(mark)], object)


def checkpoints(root: Path, evil: bytes, mark: Path) -> None:
    torch.save({"run": checkpoint.canonical(RUN), "state": Planted(mark)}, root / checkpoint.NEWEST)
    (root / checkpoint.PREVIOUS).write_bytes(evil)
    assert checkpoint.load_checkpoint(root, RUN) is None


def weights(root: Path, evil: bytes, mark: Path) -> None:
    (root / checkpoint.WEIGHTS).write_bytes(evil)
    (root / checkpoint.RESULT).write_text(json.dumps({"weights_sha256": hashlib.sha256(evil).hexdigest()}))
    with pytest.raises(Exception, match="(?i)header|damaged"):
        checkpoint.load_finished(root, RUN, SimpleNamespace())


def arrays_of_a_corpus(root: Path, evil: bytes, mark: Path) -> None:
    manifest = {"config": {"vocab": 9}, "domains": {"a": {"sources": [{"files": ["b"]}]}}, "files": {}, "source": "hub"}
    (root / "manifest.json").write_text(json.dumps(manifest))
    text = Corpus(root)
    for name, read in (("starts", text.documents), ("places", text.names)):
        for content in (objects(mark), evil):
            file = root / f"train-a.{name}.npy"
            file.write_bytes(evil) if content is evil else np.save(file, content, allow_pickle=True)
            with pytest.raises((ValueError, EOFError)):
                read("train", "a")


def texts_of_a_corpus(root: Path, evil: bytes, mark: Path) -> None:
    for name in ("manifest.json", "tokenizer.json"):
        (root / name).write_bytes(evil)
    with suppress(ValueError):
        Corpus(root)
    (root / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": "own.Own"}}))
    (root / "own.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    with pytest.raises(SuiteError, match="no tokeniser"):
        tokenizer.named(str(root))


def half_of_a_build(root: Path, evil: bytes, mark: Path) -> None:
    reader = SimpleNamespace(name="a", files=[])
    for content in (objects(mark), evil):
        file = root / ".a-000000.npz"
        file.write_bytes(evil) if content is evil else np.savez(file, state=content)
        with pytest.raises((ValueError, EOFError)):
            hub_build.Filling(None, reader, None, root)


def texts_of_a_person(root: Path, evil: bytes, mark: Path) -> None:
    def texts(name: str) -> list[str]:
        return [own.text for own in folder.documents(root, [root / name], [], folder.Rows(Counter()))]
    parquet.write_table(table_with(evil), root / "a.parquet")
    assert texts("a.parquet") == ["some words of text"]
    for name in ("b.parquet", "b.jsonl", "b.csv", "b.txt", "b.md", "b.jsonl.gz", "b.txt.zst"):
        (root / name).write_bytes(evil)
        with pytest.raises(SuiteError):
            texts(name)


def copies_of_the_hub(root: Path, evil: bytes, mark: Path) -> None:
    wanted = hub.DOMAINS["tinystories"][0]
    copy = root / wanted.path
    (copy / "data").mkdir(parents=True)
    for name in (f"{copy.name}.py", "dataset.py", "data/load.py"):
        (copy / name).write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    parquet.write_table(table_with(evil), copy / "data" / f"{wanted.split}-00000-of-00001.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_HUB", str(root))
        reader = hub.Reader("tinystories", [wanted], print)
        assert [own.text for own in reader.documents()] == ["some words of text"]


def shipped_runs(root: Path, evil: bytes, mark: Path) -> None:
    known = next(iter(paths.EVIDENCE.glob("*.parquet")))
    table = evidence.read(known)
    rows = table.to_pylist()
    array = next(array for row in rows for array in row["arrays"])
    array.update(stored="|O", data=evil)
    changed, columns = pyarrow.Table.from_pylist(rows, table.schema), {"x) values (1) --": 1}
    facts = {**json.loads(table.schema.metadata[b"facts"]), **columns}
    others = table.replace_schema_metadata({**table.schema.metadata, b"facts": json.dumps(facts).encode()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "EVIDENCE", root)
        for content in (changed, others, table_with(evil), None):
            file = root / known.name
            parquet.write_table(content, file) if content else file.write_bytes(evil)
            with pytest.raises(SuiteError) if content is not changed else nullcontext():
                assert evidence.read(file).num_rows == len(rows)
    with pytest.raises(ValueError, match="(?i)object"):
        np.frombuffer(array["data"], array["stored"])


def arrays_of_the_database(root: Path, evil: bytes, mark: Path) -> None:
    for row in ({"data": evil, "dtype": "|O", "shape": "[1]"}, {"data": evil, "dtype": "O8", "shape": "[1]"}):
        with pytest.raises((ValueError, TypeError)):
            database.array_of(row)
    file = root / "runs.sqlite"
    with closing(database.connect(file)) as connection:
        assert connection.execute("pragma trusted_schema").fetchone()[0] == 0
        with pytest.raises(database.sqlite3.OperationalError, match="not authorized"):
            connection.execute("select load_extension('a.so')")


def records_of_a_machine(root: Path, evil: bytes, mark: Path) -> None:
    packed = {"__array__": {"data": evil.hex(), "dtype": "|O", "shape": "[1]"}}
    with pytest.raises(ValueError):
        json.loads(json.dumps([packed]), object_hook=database.unpacked)
    assert not {"rows", "close", "connection", "insert"} & {*ray_hosts.RECORDS}


def settings(root: Path, evil: bytes, mark: Path) -> None:
    text = f"description: !!python/object/apply:os.mkdir [{mark}]\n"
    for content in (text.encode(), evil):
        (root / "a.yaml").write_bytes(content)
        with pytest.MonkeyPatch.context() as patch, suppress(UnicodeDecodeError):
            patch.setattr(paths, "PROFILES", root)
            with pytest.raises(SuiteError, match="not YAML|mapping"):
                profiles.sections_of("a")
    (root / "ledger.yaml").write_text(f"- {text}")
    with pytest.raises(SuiteError, match="not YAML"):
        ledger.load(root / "ledger.yaml")


def what_a_report_left(root: Path, evil: bytes, mark: Path) -> None:
    output = new_output("display_data", {"application/x-python-pickle": evil.hex(), "text/plain": "only words"})
    code = f"import os; os.mkdir({str(mark)!r})"
    nbformat.write(new_notebook(cells=[new_code_cell(code, outputs=[output])]), root / "a.ipynb")
    assert "only words" in pages.render(root / "a.ipynb", "a").html
    for name, read in (("b.ipynb", pages.read), ("c.csv", lambda path: summary.read_tables(root, ["c"]))):
        (root / name).write_bytes(evil)
        with pytest.raises(SuiteError):
            read(root / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_OUTPUTS", str(root))
        stamps.record("p", "a").parent.mkdir(parents=True)
        stamps.record("p", "a").write_bytes(evil)
        assert stamps.read("p", "a") == {}


@pytest.mark.parametrize("read", [
    checkpoints, weights, arrays_of_a_corpus, texts_of_a_corpus, half_of_a_build, texts_of_a_person, copies_of_the_hub,
    shipped_runs, arrays_of_the_database, records_of_a_machine, settings, what_a_report_left])
def test_when_a_pickle_or_a_program_lies_where_a_file_is_read_then_it_does_not_run(read, tmp_path):
    mark, root = tmp_path / "it ran", tmp_path / "root"
    root.mkdir()
    evil = pickle.dumps(Planted(mark))
    pickle.loads(evil)
    mark.rmdir()                                           # so it would run
    read(root, evil, mark)
    assert not mark.exists()


def test_when_others_can_write_into_a_folder_of_programs_then_it_is_refused_before_anything_starts(
        tmp_path, monkeypatch, capsys):
    for variable in privacy.CACHES:
        monkeypatch.setenv(variable, str(tmp_path / variable))
    assert cli.main(["runs", "list", "--status", "running", "--profile", "nobody"]) == 2
    assert "no runs yet" in capsys.readouterr().err        # folders that are not there yet are made by their library
    for variable in privacy.CACHES:
        (tmp_path / variable).mkdir()
        for mode in (0o777, 0o720, 0o1777):
            (tmp_path / variable).chmod(mode)
            assert cli.main(["plan"]) == 2
            assert f"error: {variable} = {str(tmp_path / variable)!r} is not valid: others" in capsys.readouterr().err
        (tmp_path / variable).chmod(0o755)
    privacy.require_private_caches()
    monkeypatch.setattr(os, "getuid", lambda: -1)
    with pytest.raises(SuiteError, match="TMPDIR"):
        require_private("TMPDIR", tmp_path)


def test_when_the_suite_writes_then_not_everybody_can_change_it_and_a_machine_s_folder_is_its_own(tmp_path):
    before = os.umask(0)
    try:
        cli.main(["--help"])
        assert os.umask(0o022) == 0o002
    finally:
        os.umask(before)
    home, _ = ray_hosts.own_folder(tmp_path / "scratch" / "places")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home.parent.parent, home.parent, home)}
    assert set(modes.values()) == {0o700} and len(modes) == 3
    (tmp_path / "scratch").chmod(0o777)
    with pytest.raises(SuiteError, match="TMPDIR.*others can write"):
        ray_hosts.own_folder(tmp_path / "scratch" / "places")


# Nothing tells where it was made

@pytest.mark.parametrize(("text", "expected"), [
    ("{home}/notes/a b.txt is empty", "~/notes/a b.txt is empty"), ("~/x", "~/x"),
    ("({root}/lib/model.py:3)", "(lib/model.py:3)"),
    ('File "{out}/small/runs/12/log.txt", line 3', 'File "outputs/small/runs/12/log.txt", line 3'),
    ("{out}: no room", "outputs: no room"), ("in {root}.", "in .."), ("{corpus}/docs/a.txt", "corpus/docs/a.txt"),
    ("File \x1b[32m{site}/torch/nn/x.py\x1b[39m", "File \x1b[32mtorch/nn/x.py\x1b[39m"),
    ("File \x1b[38;5;241m/opt/own/x.py\x1b[39m", "File \x1b[38;5;241m\u2026/x.py\x1b[39m"),
    ("{root}-old/a and /home/someone/b", "\u2026/a and \u2026/b"), ("file:///home/someone/b.html", "\u2026/b.html"),
    ("corpus=/data/b, '/data/c/d'", "corpus=\u2026/b, '\u2026/d'"), ("/tmp/12.py:1: x", "\u2026/12.py:1: x"),
    ("{mine}/x", "corpus/x"), ("on gpu-17 port 1, gpu-170", "on this machine port 1, gpu-170")])
def test_when_a_text_names_files_or_the_machine_then_it_does_not_say_where_they_are(
        text, expected, monkeypatch, tmp_path):
    home, out, corpus = tmp_path / "wo'mbat", tmp_path / "out & in", "/data/my texts & more"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SUITE_OUTPUTS", str(out))
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-17")
    given = text.format(home=home, out=out, corpus=corpus, mine=html.escape(corpus), root=paths.ROOT,
                        site=sysconfig.get_path("purelib"))
    assert shareable(given, corpus) == expected == shareable(shareable(given, corpus), corpus)


@pytest.mark.parametrize("text", [
    "a/b/c", "https://arxiv.org/abs/1/2", "<td>1</td></tr>", "&lt;/td&gt;&lt;/tr&gt;", "tokens / s / run", "$a$/b/c",
    "(x)/y/z", "src=\"data:image/jpeg;base64,/9j/4AAQ+/a3m/b/c=\"", "ends in 3m/a/b", "../results/01_x.csv", "x / 2",
    "{{ /a }}"])
def test_when_a_slash_begins_no_path_then_the_text_stays(text):
    assert shareable(text) == text


def test_when_a_notebook_is_kept_then_pictures_stay_and_parameters_outputs_and_errors_name_no_folder():
    picture = "/9j/4AAQ\n/ab/cd"
    node = {"metadata": {"papermill": {"parameters": {"corpus": "/data/x y"}}},
            "cells": [{"source": 'corpus = "/data/x y"',
                       "outputs": [{"data": {"image/png": picture, "text/html": "a /b/c"}}]}]}
    kept = execute.shared(node, "/data/x y")
    assert kept["cells"][0] == {"source": 'corpus = "corpus"',
                                "outputs": [{"data": {"image/png": picture, "text/html": "a \u2026/c"}}]}
    assert kept["metadata"]["papermill"]["parameters"] == {"corpus": "corpus"}


def test_when_characters_are_unseen_then_they_are_shown_and_languages_and_emoji_stay():
    assert visible("a\u202eb\x07\x1b[1m\ud800\u2066\x85") == "a\ufffdb\ufffd\ufffd[1m\ufffd\ufffd\ufffd"
    for text in ("שלום, عالم", "👩\u200d💻 किताब", "a\tb\r\n"):
        assert visible(text) == text


# What is text stays text, in a browser

NAMES = ("<img src=x onerror=alert(1)>", "\"><script>alert(2)<", "a\u202eb'c\x1b[31m", "{{ 7 * 7 }}",
         "$\\text{<script>alert(3)<}$", "javascript:alert(4)", "x.y", "$\\frac{$$ & $\\href{javascript:alert(5)}{x}$")
WORDS_OF_TEXT = ("</script><script>alert(6)</script> {{ cell }} $\\text{<script>alert(7)</script>}$ "
                 "[a](javascript:alert(8)) \u202e")


def silent(tab, folder: Path) -> str:
    """The text of all pages in a folder, which opened without a dialog, a request, a message or another title."""
    text = ""
    for page in sorted(folder.glob("*.html")):
        if page.name == "progress.html":                       # leads on to the first page
            continue
        tab.open(page, 1100)
        tab.evaluate("new Promise(done => setTimeout(done, 200))")
        assert tab.heard("Page.javascriptDialogOpening") == [] and tab.complaints() == []
        assert f"<title>{html.escape(tab.evaluate('document.title'))}</title>" in page.read_text("utf-8")
        assert tab.evaluate("document.querySelectorAll('script').length") <= 1
        assert [address for address in tab.requests() if not address.startswith(("file:", "data:"))] == []
        assert tab.evaluate("[...document.links].every(link => /^(https?:|mailto:|file:)/.test(link.href))")
        text += tab.evaluate("document.body.textContent")
    return text


@pytest.fixture
def tab():
    pytest.importorskip("websocket")
    import browser
    if browser.chromium() is None:
        pytest.skip("no Chromium on this machine")
    with browser.browser() as opened:
        yield opened


def hostile_outputs() -> list:
    """Every kind of output, with names and words from outside in it."""
    from suite.notebook import Escaped
    frame = pd.DataFrame([[WORDS_OF_TEXT, 1.5]] * len(NAMES), columns=[NAMES[4], NAMES[0]], index=[*NAMES])
    ansi = (f"\x1b[31m{WORDS_OF_TEXT}\x1b[0m \x1b]0;another title\x07 "
            "\x1b]8;;https://evil.example\x07link\x1b]8;;\x07\ud800")
    page = "".join(f"<p>{name}</p>" for name in NAMES) + WORDS_OF_TEXT
    return [new_output("display_data", {"text/html": frame.to_html()}),
            new_output("display_data", {"text/html": Escaped(frame).format(precision=2)._repr_html_()}),
            new_output("display_data", {"text/html": page}), new_output("display_data", {"text/markdown": page}),
            new_output("display_data", {"text/latex": f"$${WORDS_OF_TEXT}$$"}),
            new_output("display_data", {"image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(9)'>"
                                                         f"<script>alert(10)</script></svg>"}),
            new_output("display_data", {"text/plain": ansi, "application/javascript": "alert(11)"}),
            new_output("stream", name="stdout", text=ansi), new_output("stream", name="stderr", text=ansi),
            new_output("error", ename=NAMES[0], evalue=WORDS_OF_TEXT, traceback=[ansi, WORDS_OF_TEXT])]


def test_when_a_page_is_opened_then_it_allows_its_own_script_alone(rendered):
    for file in (rendered / PROFILE / "report").glob("*.html"):
        page = BeautifulSoup(file.read_text("utf-8"), "html.parser")
        policy = dict(rule.split(" ", 1) for rule in page.find("meta", {"http-equiv": "Content-Security-Policy"})[
            "content"].split("; "))
        digest = base64.b64encode(hashlib.sha256(page.script.string.encode()).digest()).decode()
        assert policy["script-src"] == f"'sha256-{digest}'" and policy["default-src"] == policy["base-uri"] == "'none'"


@pytest.mark.slow
def test_when_names_outputs_and_errors_hold_markup_then_the_page_shows_them_as_text(site, tab):
    domains = dict(zip(("docs", "code", "stories", "math"), NAMES, strict=False))
    for name in (DONE, ALL_PATTERNS):
        path = paths.results(PROFILE) / f"{name}.csv"
        table = pd.read_csv(path, dtype={"run": str})
        table.assign(split=table["split"].replace(domains), series=table["series"].replace("Christoffel", NAMES[5]),
                     setting=table["setting"].fillna("") + WORDS_OF_TEXT).to_csv(path, index=False)
    manifest, = paths.corpora().glob("*/manifest.json")
    told = json.loads(manifest.read_text())
    told["domains"] = {domains[name]: own for name, own in told["domains"].items()}
    told["config"]["tokenizer"], told["notes"] = NAMES[1], [*NAMES, WORDS_OF_TEXT]
    known = fingerprint({key: value for key, value in told.items() if key != "notes"})
    manifest.write_text(json.dumps(told))
    with closing(database.connect(paths.database(PROFILE))) as connection:
        connection.execute("update runs set data = ?, machine = ?, device = ? where data is not null and data != ''",
                           (known, NAMES[0], NAMES[2]))
        seals.seal_all(connection)
    for name in (DONE, FAILED):
        path = paths.executed(PROFILE) / f"{name}.ipynb"
        node = nbformat.read(path, as_version=4)
        node.cells.append(new_code_cell("\n".join(NAMES), outputs=hostile_outputs()))
        path.write_text(json.dumps(node))
    error = "\n".join(["\x1b[31mTraceback (most recent call last):", *NAMES, WORDS_OF_TEXT])
    judgements = [replace(own, sentence=f"{WORDS_OF_TEXT} {NAMES[number % len(NAMES)]}")
                  for number, own in enumerate(site.claims)]
    node = nbformat.read(paths.executed(PROFILE) / f"{FAILED}.ipynb", as_version=4)
    node.metadata["suite"]["error"] = error
    (paths.executed(PROFILE) / f"{FAILED}.ipynb").write_text(json.dumps(node))
    status = {**STATUS, FAILED: NotebookStatus("failed", error, 1.0), ALL_PATTERNS: NotebookStatus("done")}
    site.build(status, judgements)
    shown = silent(tab, paths.report(PROFILE))
    for name in NAMES:
        assert shown.count(visible(name)) > 3, name
    assert "\u202e" not in shown and "7 * 7" in shown and "evil.example" in shown
    assert json.loads((paths.report(PROFILE) / "ledger.json").read_text())[0]["sentence"].startswith("</script>")


MARKS = {"HOME": "quokka", "USER": "wombat", "LOGNAME": "wombat", "SUITE_OUTPUTS": "numbat & co", "A_SECRET": "narwhal",
         "PYTHONPATH": "okapi"}
LAST_CELL = """
import json, os, socket, warnings
from lib import paths
places = [os.path.expanduser("~"), paths.outputs(), nb.parameters.corpus, paths.ROOT]
warnings.warn(", ".join([*(f"{place}/{name}" for place, name in zip(places, "abcd")), socket.gethostname()]))
print(nb.profile.corpus.folder, nb.database.path, nb.corpus.path, os.getcwd())
json.loads(open(f"{nb.corpus.path}/manifest.json").read()[:20])
"""


@pytest.mark.slow
def test_when_folders_user_and_machine_have_names_then_no_file_of_a_report_tells_them(tmp_path, tab):
    from faults.frame import place, tiny
    mine = tmp_path / "tapir texts"
    for number, name in enumerate(NAMES):
        (mine / name).mkdir(parents=True)
        random = np.random.default_rng(number)
        lines = [" ".join([WORDS_OF_TEXT, *(f"word{n}" for n in random.integers(0, 500, 120))]) for _ in range(60)]
        (mine / name / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    env = {name: str(tmp_path / word) for name, word in MARKS.items()}
    (tmp_path / "okapi").mkdir()
    (tmp_path / "okapi" / "sitecustomize.py").write_text(
        "import os, platform, socket\nsocket.gethostname = platform.node = lambda: 'capybara-7'\n")
    words = {*MARKS.values(), "numbat", "tapir", "zebra", "capybara", str(tmp_path)}
    with place(tmp_path / "zebra") as here:
        few = "{windows: [4], seeds: [42], once: [], models: [fibonacci/fixed, fibonacci/linear], controls: [local]}"
        deep = tiny("{windows: [4, 6]}", few)
        for few_of, enough in {"layers: 2": "layers: 5", "length: 16": "length: 64"}.items():
            deep = deep.replace(few_of, enough)                       # for the notebook's pictures
        here.write({"profiles/tiny.yaml": deep})
        notebook = here.root / "notebooks" / "01_window_sweep.ipynb"
        for status in (0, 1):
            said = here.run(f"notebook 01_window_sweep --profile tiny --corpus '{mine}'", env, seconds=280)
            assert said.status == status, said.stderr[-3000:]
            written = tmp_path / MARKS["SUITE_OUTPUTS"] / "tiny"
            files = [file for name in ("report", "results", "executed") for file in (written / name).rglob("*.*")
                     if file.suffix != ".zip"]                        # the tables again
            assert {"index.html", "ledger.json", "claims.csv", "README.md", "01_window_sweep.csv",
                    "01_window_sweep.ipynb"} <= {file.name for file in files}
            told = {(file.name, word) for file in files for word in words if word in file.read_text("utf-8")}
            assert told == set()
            page = silent(tab, written / "report")
            # The last name is taken apart, as it holds formulas.
            assert [name for name in NAMES[:-1] if folder.named(name) not in page] == [] and "CORPUS=FOLDER" in page
            node = nbformat.read(notebook, as_version=4)
            node.cells.append(new_code_cell(LAST_CELL))
            nbformat.write(node, notebook)
        assert "JSONDecodeError" in page and "~/a, outputs/b, corpus/c, d, this machine" in page
