"""The entrance of every command: what surrounds this process is put in order, or refused in one line.

Libraries read their variables when they are imported, and each fails in its own way: numba at NUMBA_NUM_THREADS=0 with
a traceback. So `prepare` comes before anything that computes is imported.
"""

import errno
import io
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from lib import paths
from lib.errors import SuiteError, require

FOLDERS = ("HF_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
LIBRARIES = ("CUDA", "HF_", "KMP_", "MKL_", "MPLCONF", "NUMBA_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
INLINE = "module://matplotlib_inline.backend_inline"
COUNTS = re.compile("[1-9][0-9]{0,2}(,[1-9][0-9]{0,2})*")   # of threads; OpenMP takes one for each level


def prepare(arguments: Sequence[str]) -> None:
    """Streams that print any text, warnings in one line, and variables and arguments that every library can read."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:      # the number of a closed stream would be the next file's
        pass
    os.close(handle)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")       # a character that the terminal lacks stops no report
        setattr(sys, name, stream)
    show_warnings(lambda text: print(f"note: {text}", file=sys.stderr))
    if os.environ.get("MPLBACKEND") != INLINE:                  # figures go into files, or into a notebook
        os.environ["MPLBACKEND"] = "agg"
    for name in FOLDERS:                                        # a relative one would be another in each process
        if given := os.environ.get(name):
            os.environ[name] = os.path.abspath(given)
    for argument in arguments:
        require_utf8("argument", argument)
    for name in THREADS:
        given = os.environ.get(name, "1")
        require(COUNTS.fullmatch(given) is not None, name, given, "a number from 1 to 999, or unset it")
    require_outputs(written=False)
    if not os.access(paths.ROOT / "lib", os.W_OK):              # beside its code numba keeps its programs
        os.environ.setdefault("NUMBA_CACHE_DIR", str(paths.outputs() / "numba"))
    try:
        tempfile.gettempdir()
    except OSError:
        raise SuiteError(f"TMPDIR = {os.environ.get('TMPDIR')!r} is not valid: name a folder for temporary files that "
                         "can be written, as no other one can be") from None


def require_utf8(name: str, value: str) -> None:
    require(not any("\ud800" <= character <= "\udfff" for character in value), name, value, "a text in UTF-8")


def require_outputs(written: bool = True) -> None:
    """Raise a `SuiteError` unless the folder of the outputs can be written, or without `written` read if it is there.

    Both are tried: what the system would say of rights is not what it does for its administrator.
    """
    folder = paths.outputs()
    require_utf8("SUITE_OUTPUTS", str(folder))
    require(not str(folder).startswith(f"{paths.ROOT}/~"), "SUITE_OUTPUTS", str(folder), "there is no such user")
    try:
        if written:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        else:
            os.scandir(folder).close()
    except OSError as error:
        if written or not isinstance(error, FileNotFoundError):
            raise SuiteError(f"SUITE_OUTPUTS = {str(folder)!r} is not valid ({error.strerror}): name a folder that can "
                             "be written") from None


def show_warnings(note: Callable[[str], None]) -> None:
    """From now on a warning is one line, said once, without the line of code that Python adds."""
    told: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = str(message).partition("\n")[0]
        if text not in told:
            told.add(text)
            note(text)
    warnings.showwarning = show


def outside(error: Exception) -> str:
    """What a person reads of an error that the system made, or a library that cannot be imported with its variables;
    empty for any other error, which is the suite's own."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(code.co_name == "<module>" and "site-packages" in code.co_filename for code in codes):
        given = [f"{name}={value!r}" for name, value in sorted(os.environ.items()) if name.startswith(LIBRARIES)]
        return f"a library cannot be imported ({error}): are its variables right? {', '.join(given)}"
    if not isinstance(error, OSError):
        return ""
    thing = error.filename or ("output" if error.errno == errno.ENOSPC else type(error).__name__)
    return f"{thing}: {error.strerror or error}"


def drop_output() -> None:
    """Forget what could not be printed: Python would try again when it ends, and fail with a traceback."""
    with suppress(OSError):
        sys.stdout.flush()
        return
    with suppress(OSError):                                     # a test's output has no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
