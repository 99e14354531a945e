"""What stays with this machine and its user: the names in texts that others may read, and folders of programs."""

import html
import os
import re
import socket
import sysconfig
import tempfile
from functools import lru_cache
from pathlib import Path

from markupsafe import escape

from lib import paths
from lib.errors import require

CACHES = ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")     # of programs that libraries made here
# A path does not begin within a word, an address, a tag, a formula or base64, but may behind the code of a colour.
START = r"(?=[/~f])(?:(?<![\w./~+<,$)\]}-])|(?<=[\[;]\dm)|(?<=[\[;]\d\dm)|(?<=[\[;]\d{3}m))(?:file://)?"
PART = r"[^\s\x00-\x1f/<>:;,'\"()\[\]{}|\\`*&$=?]+"
# Controls, but line breaks and tabs; what reverses the text after it; halves of characters, which no file can hold.
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shareable(text: str, corpus: str = "") -> str:
    """The text without absolute paths, and with "this machine" in place of the host's name.

    Files are named relative to the repository, `outputs`, `corpus`, Python's packages or `~`; of any other path the
    last part is left. corpus: the folder that `CORPUS` names. A host whose name is a plain word is not recognised.
    """
    names, path = places(corpus, str(paths.outputs()), os.path.expanduser("~"))

    def named(found: re.Match[str]) -> str:
        if found["last"]:
            return f"\u2026/{found['last']}"
        name, inside = names[found["folder"]], found["inside"]
        return name + inside if name else "" if inside else "."
    text, host = path.sub(named, text), socket.gethostname()
    return text if host.isalpha() else re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "this machine", text)


@lru_cache(maxsize=8)
def places(corpus: str, outputs: str, home: str) -> tuple[dict[str, str], re.Pattern[str]]:
    """What folders are called, however they are written, and what finds them and other absolute paths."""
    names = {home: "~", corpus: "corpus", sysconfig.get_path("stdlib"): "", sysconfig.get_path("purelib"): "",
             str(paths.ROOT): "", outputs: "outputs"}
    names |= {os.path.realpath(folder): name for folder, name in names.items() if folder}
    names |= {f"~{folder.removeprefix(home)}": name for folder, name in names.items() if folder.startswith(f"{home}/")}
    names |= {written: name for folder, name in names.items()
              for written in (html.escape(folder, quote=False), str(escape(folder)))}
    known = "|".join(map(re.escape, sorted(names.keys() - {"", "/"}, key=len, reverse=True)))
    return names, re.compile(rf"{START}(?:(?P<folder>{known})(?![\w-]|\.\w)(?P<inside>/?)|"
                             rf"(?:/{PART})+/(?P<last>{PART}))")


def visible(text: str) -> str:
    """The text with U+FFFD in place of each character that is not seen but changes what is."""
    return UNSEEN.sub("\ufffd", text)


def require_private(variable: str, folder: Path) -> None:
    """A `SuiteError` if others can write into a folder that libraries execute programs from."""
    if folder.exists():
        facts = folder.stat()
        require(facts.st_uid == os.getuid() and not facts.st_mode & 0o022, variable, str(folder),
                "others can write there, and what is in it is executed; name a folder that only you write (chmod go-w)")


def require_private_caches() -> None:
    """`require_private` of the folders where Numba, Triton and torch.compile keep their programs."""
    os.environ.setdefault(CACHES[-1], f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
    for variable in CACHES:
        if os.environ.get(variable):
            require_private(variable, Path(os.environ[variable]))
