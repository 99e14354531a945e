"""A person's own text (`--corpus`): what its files, rows and names may hold, and corpora that were damaged later."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

from frame import Row

from data_prep.stories import Story

TEXTS = [Story(7, number).text for number in range(30)]
GOOD = "\n\n".join(TEXTS)
ROWS_OF_TEXT = [json.dumps({"text": text}) for text in TEXTS]
CORPUS = "corpus --profile tiny --corpus mine"
DEEP = '{"text": "a", "more": ' + "[" * 10 ** 5 + "]" * 10 ** 5 + "}"


def rows(*more: str) -> str:
    """A .jsonl file of stories, and lines before them."""
    return "\n".join([*more, *ROWS_OF_TEXT])


def linked(name: str, target: str):
    """Prepares a link in the folder of text."""
    return lambda root: (root / "mine" / name).symlink_to(target)


def moved(name: str):
    """Prepares another name of the domain `good`."""
    return lambda root: (root / "mine" / "good").rename(root / "mine" / name)


def damaged(name: str, content: bytes | None):
    """Prepares a corpus, and then another content of one of its files; None: one bit is flipped."""
    def prepare(root: Path) -> None:
        subprocess.run([sys.executable, "-m", "suite", *CORPUS.split()], cwd=root, check=True, capture_output=True,
                       env={**os.environ, "SUITE_OUTPUTS": str(root / "outputs")})
        file, = (root / "outputs" / "data").glob(f"*/{name}")
        whole = file.read_bytes()
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:] if content is None else content)
    return prepare


def of(name: str, line: str, content: bytes | str, file: str, status: int = 2) -> Row:
    """A row about one file beside a domain of stories."""
    return Row(name, CORPUS, line, status, files={"mine/good/all.txt": GOOD, f"mine/{file}": content})


def broken(name: str, file: str, content: bytes | None) -> Row:
    """A row about a corpus that was damaged after it was built: it is built again."""
    return Row(name, CORPUS, f"{file} is missing or damaged; building it again", 0,
               files={"mine/good/all.txt": GOOD}, prepare=damaged(file, content))


def renamed(name: str, domain: str, line: str) -> Row:
    """A row about a domain's name: it works, and the table of the corpus shows it."""
    return Row(name, CORPUS, line, 0, files={"mine/good/all.txt": GOOD}, prepare=moved(domain))


ROWS = [
    # Rows and files
    of("a row nested 100,000 deep", "other/a.jsonl, line 1 is not JSON: nested too deep", rows(DEEP), "other/a.jsonl"),
    of("a number of 5,000 digits", "^other +train", rows('{"text": "x", "n": %s}' % ("9" * 5000)), "other/a.jsonl", 0),
    of("half a character", "^other +train", rows(r'{"text": "half \ud800 a character"}'), "other/a.jsonl", 0),
    of("rows without text", "left out: 2 rows without text", rows('{"text": null}', "{}"), "other/a.jsonl", 0),
    of("too many rows without text", "line 1 .*; .*line 2 .*; .*line 3 .* in 120 of 1.. rows; at most 10% may be",
       rows(*['{"text": null}'] * 120), "other/a.jsonl"),
    of("compressed rows", "^other +train", gzip.compress(rows().encode()), "other/a.jsonl.gz", 0),
    of("a compressed file that is cut off", "a.jsonl.gz cannot be read .* it may be damaged or cut off",
       gzip.compress(rows().encode())[:-9], "other/a.jsonl.gz"),
    of("a table that is none", "a.csv cannot be read as csv .* it may be damaged", "text\na\nb,c,d\n", "other/a.csv"),
    of("a damaged parquet file", "a.parquet cannot be read as parquet", b"PAR1" * 9, "other/a.parquet"),
    of("text in UTF-16", "a.md is (binary|not UTF-8)", GOOD.encode("utf-16"), "other/a.md"),
    of("a domain of files that are not read", "^not read: scans/a.pdf; the domain scans is left out", b"%PDF",
       "scans/a.pdf", 0),
    Row("nothing but a README", CORPUS, "mine' has no file that is read", files={"mine/README.md": GOOD}),
    # What is no file or folder
    Row("a pipe", CORPUS, "^not read: good/pipe.txt .it is no file", 0, files={"mine/good/all.txt": GOOD},
        prepare=lambda root: os.mkfifo(root / "mine" / "good" / "pipe.txt")),
    Row("a device", CORPUS, "^not read: good/zero.txt .it is no file", 0, files={"mine/good/all.txt": GOOD},
        prepare=linked("good/zero.txt", "/dev/zero")),
    Row("a link to nothing", CORPUS, "^not read: good/gone.txt .it is no file, or a link to none", 0,
        files={"mine/good/all.txt": GOOD}, prepare=linked("good/gone.txt", "nowhere.txt")),
    Row("a loop of links inside", CORPUS, "^good +train", 0, files={"mine/good/all.txt": GOOD},
        prepare=linked("good/up", "..")),
    Row("a loop of links", f"{CORPUS}/round", "round' is not a folder", files={"mine/good/all.txt": GOOD},
        prepare=linked("round", "round")),
    Row("a home that is not there", "corpus --profile tiny --corpus ~nouser/x", "~nouser/x' is not a folder"),
    Row("a path longer than the system allows", f"report --profile tiny --corpus {'a/' * 3000}",
        "a/a' is not a folder"),
    Row("a folder whose name is not UTF-8", f"{CORPUS}/{os.fsdecode(bytes([255]))}", "a text in UTF-8",
        files={"mine/good/all.txt": GOOD}, prepare=moved(os.fsdecode(b"\xff"))),
    # Names of domains
    renamed("a name of 255 bytes", "n" * 255, "^n{40}… [0-9a-f]{8} +train"),
    renamed("a name that is not UTF-8", os.fsdecode(b"\xff\xfe"), r"^\\udcff\\udcfe +train"),
    renamed("a name of two lines", "two\nlines", r"^two\\nlines +train"),
    renamed("a name of one space", " ", "^ +train"),
    renamed("a name that is a number", "1e5", "^1e5 +train"),
    renamed("a name of markup", "<img src=x onerror=alert(1)>", "^<img src=x onerror=alert.1.> +train"),
    # Corpora that were damaged
    broken("a manifest that is cut off", "manifest.json", b'{"source": "folder", "con'),
    broken("a manifest of another kind", "manifest.json", b"[1, 2, 3]"),
    broken("tokens that are cut off", "train-good.bin", b"xy"),
    broken("a tokeniser with a flipped bit", "tokenizer.json", None),
]
