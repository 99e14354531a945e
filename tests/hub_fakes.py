"""A folder with small made-up data sets of the hub's schemas and file names, a process that builds from it, and a
server that answers from it what `datasets` asks of the hub, over a connection that may break off."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import numpy as np
import pyarrow
import tokenizers
from pyarrow import parquet

from data_prep.config import CorpusConfig
from data_prep.stories import Story
from data_prep.words import LEXICON
from lib import paths
from lib.data import Corpus

WORDS = LEXICON["adj"] + LEXICON["thing"] + LEXICON["trade"] + LEXICON["place"]
TINY = CorpusConfig(vocab=400, train_tokens=20_000, heldout_tokens=3_000)
CONFIG = CorpusConfig(vocab=400, train_tokens=12_000, heldout_tokens=2_000, hub=("fineweb_edu", "tinystories", "math"),
                      apart=("wikitext103",))
PROGRAM = """
import sys, datasets, hub_fakes
from data_prep import build, hub, hub_build
hub_build.CHUNK, hub_build.SAY_EVERY, hub.WAIT = 3000, 0.0, 0.02
datasets.config.STREAMING_READ_RETRY_INTERVAL = datasets.config.STREAMING_OPEN_RETRY_INTERVAL = 0.02
datasets.config.STREAMING_READ_MAX_RETRIES = 2
build.corpus(getattr(hub_fakes, sys.argv[1]), lambda line: print(line, flush=True))
"""


def start(outputs: Path, config: str = "CONFIG", **environment: str) -> subprocess.Popen:
    """Another process that builds TINY or CONFIG, a few documents at a time, and prints what it does."""
    inherited = {name: value for name, value in os.environ.items() if name != "SUITE_HUB"}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, config], cwd=paths.ROOT, stdout=subprocess.PIPE, text=True,
                            env={**inherited, "SUITE_OUTPUTS": str(outputs), **environment,
                                 "PYTHONPATH": f"{paths.ROOT}{os.pathsep}{Path(__file__).parent}"})


def sentences(seed: int, count: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(" ".join(rng.choice(WORDS, int(rng.integers(5, 15)))).capitalize() + "." for _ in range(count))


def write(path: Path, columns: dict[str, list]) -> None:
    """A file of rows, in the format that its suffix says; a .txt file has a line a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".txt":
        path.write_text("\n".join(columns["text"]), "utf-8")
    elif path.suffix == ".jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        parquet.write_table(pyarrow.table(columns), path, row_group_size=20)


def web(first: int, count: int) -> dict[str, list]:
    """Columns of FineWeb-Edu."""
    numbers = range(first, first + count)
    return {"text": [sentences(n, 6) for n in numbers], "id": [f"<urn:uuid:{n}>" for n in numbers],
            "dump": ["CC-MAIN-2024-10"] * count, "score": [3.5] * count, "token_count": [90] * count}


def articles(first: int, count: int) -> list[str]:
    """Lines of WikiText: headings of articles and sections, paragraphs, and empty lines."""
    lines = []
    for n in range(first, first + count):
        lines += ["", f" = Article {n} = \n", "", " " + sentences(1000 + n, 4) + " \n", " = = History = = \n", "",
                  " " + sentences(2000 + n, 3) + " \n"]
    return lines


def problems(count: int, solution: str, each: int = 1) -> dict[str, list]:
    return {"problem": [f"What is {n} and {n + 1}, and then {7 * n}?" for n in range(count) for _ in range(each)],
            solution: [f"{sentences(3000 + n, 3)} Way {way} gives {9 * n + 1}." for n in range(count)
                       for way in range(each)]}


def make_hub(root: Path) -> Path:
    """tests/data/hub, and what is generated here."""
    shutil.copytree(Path(__file__).parent / "data/hub", root, dirs_exist_ok=True)
    write(root / "HuggingFaceFW/fineweb-edu/sample/10BT/000_00000.parquet", web(0, 30))
    write(root / "HuggingFaceFW/fineweb-edu/sample/10BT/001_00000.parquet", web(20, 150))       # ten rows twice
    write(root / "HuggingFaceFW/fineweb-edu/data/CC-MAIN-2013-20/train-00000-of-00014.parquet",
          {"text": ["another sample"]})
    write(root / "roneneldan/TinyStories/data/train-00000-of-00001.jsonl",
          {"text": [Story(5, n).text for n in range(60)]})
    write(root / "DigitalLearningGmbH/MATH-lighteval/data/train-00000-of-00001.parquet",
          {**problems(40, "solution"), "level": ["Level 1"] * 40, "type": ["Algebra"] * 40})
    write(root / "DigitalLearningGmbH/MATH-lighteval/data/test-00000-of-00001.parquet", problems(1, "solution"))
    write(root / "nvidia/OpenMathInstruct-2/data/train-00000-of-00001.parquet",
          {**problems(60, "generated_solution", 4), "expected_answer": ["1"] * 240, "problem_source": ["math"] * 240})
    write(root / "nvidia/OpenMathInstruct-2/data/train_1M-00000-of-00001.parquet",
          {"problem": ["of another split"], "generated_solution": ["never read"]})
    lines = articles(0, 90)
    for number, part in enumerate((lines[:301], lines[301:])):              # an article goes over the end of a file
        write(root / f"Salesforce/wikitext/wikitext-103-raw-v1/train-0000{number}-of-00002.parquet", {"text": part})
    write(root / "Salesforce/wikitext/wikitext-2-raw-v1/train-00000-of-00001.parquet",
          {"text": ["another configuration"]})
    return root


def decoded(corpus: Corpus, split: str, domain: str) -> list[str]:
    tokens, decode = np.asarray(corpus.tokens(split, domain)), corpus.tokenizer().decode
    return [decode(part.tolist()) for part in np.split(tokens, corpus.documents(split, domain)[1:])]


def pretend_llama(folder: Path) -> Path:
    """32,000 pieces like Llama-2's: <unk>, <s>, </s>, the bytes, then pieces that begin with a mark for a space."""
    words = sorted({word for text in web(0, 90)["text"] for word in text.lower().replace(".", "").split()})
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581",
              *"abcdefghijklmnopqrstuvwxyz.\n", *(f"\u2581{word}" for word in words)]
    pieces += [f"unused{number}" for number in range(32_000 - len(pieces))]
    model = tokenizers.models.Unigram([(piece, -1.0 - (len(piece) < 2) * 5) for piece in pieces], unk_id=0,
                                      byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("\u2581"),
                                                       tokenizers.normalizers.Replace(" ", "\u2581")])
    made.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Replace("\u2581", " "),
                                                 tokenizers.decoders.ByteFallback(),
                                                 tokenizers.decoders.Fuse(), tokenizers.decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.enable_truncation(16)
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    return folder


COMMIT = "c0ffee" * 6 + "c0ff"
ROUTE = re.compile(r"(/api)?/datasets/(?P<set>[^/]+/[^/]+)/(?P<verb>resolve|revision|tree)/[^/]+(/(?P<path>.*))?$")


class Hub(http.server.ThreadingHTTPServer):
    """Serves `root`. Every `breaks`-th body of more than 4 kB ends half way."""
    daemon_threads = True
    handle_error = lambda *about: None          # a client that went away is no news

    def __init__(self, root: Path, breaks: int) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.breaks, self.bodies, self.broken = root, breaks, 0, 0
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    """A data set's commit (`revision`), its list of files (`tree`), or a file or part of one (`resolve`)."""
    protocol_version = "HTTP/1.1"
    server: Hub
    log_message = lambda *about: None

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        found = ROUTE.match(urllib.parse.unquote(url.path))
        root = self.server.root / found["set"]
        place = root / (found["path"] or "")
        if found["verb"] == "resolve" and place.is_file():
            self.file(place)
        elif found["verb"] == "tree" and place.is_dir():
            paths = sorted(place.rglob("*") if "recursive=true" in url.query else place.iterdir())
            self.send(200, json.dumps([
                {"path": path.relative_to(root).as_posix(), "oid": "0" * 40, "size": path.stat().st_size,
                 "type": "directory" if path.is_dir() else "file"} for path in paths]).encode())
        elif found["verb"] == "revision":
            self.send(200, json.dumps({"id": found["set"], "sha": COMMIT}).encode())
        else:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def file(self, path: Path) -> None:
        content, more = path.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{path.stat().st_size:040d}"'}
        if part := re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(part[1]), min(int(part[2]), len(content) - 1)
            more["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self.send(206, content[first:last + 1], more)
        self.send(200, content, more)

    def send(self, status: int, content: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(more or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.server.bodies += len(content) > 4096
            if len(content) > 4096 and self.server.bodies % self.server.breaks == 0:
                self.server.broken += 1
                content, self.close_connection = content[:len(content) // 2], True
            self.wfile.write(content)
