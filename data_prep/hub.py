"""Text from the Hugging Face hub: the files of a data set, and its documents from any position on, across files and
through connections that drop. hub.yaml is the table of data sets.

Rows are read in a data set's own order. A copy on the disk is read in place of the hub: `SUITE_HUB=folder` has the
files of `owner/name` in `folder/owner/name`, as `hf download --repo-type dataset` puts them, or at any depth, as
.parquet, .jsonl or .txt; with `HF_HUB_OFFLINE=1` the cache of `HF_HOME` must have them.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from lib.errors import SuiteError
from lib.paths import named_by

if TYPE_CHECKING:
    import pyarrow

    from data_prep.config import Say

ATTEMPTS = 6        # that fail in a row end the reading; `datasets` repeats a request itself before an attempt fails
WAIT = 5.0          # seconds before the second attempt; twice as long before each further one
ROWS = 512          # of a batch
CLIENTS = ("httpx", "httpx2", "aiohttp", "requests", "urllib3", "http")     # whose errors need not be OSErrors
REFUSED = (400, 401, 403, 404, 410, 416, 451)       # a status that waiting does not mend
SUFFIXES = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".txt": "text"}     # the reader of `datasets`
SPLITS = ("train", "validation", "valid", "test")

Position = tuple[int, int]      # file (counted over all sets of a domain) and row
Rows = Iterator[tuple[int, int, tuple[str | None, ...]]]        # file, row, and the texts of the columns
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HubSet:
    """A configuration and split of a data set. A row is a document: its `columns`, joined by line breaks."""
    path: str                       # owner/name on the hub
    licence: str
    instead: str                    # what to do when it is gone or gated
    config: str = "default"
    split: str = "train"
    columns: Sequence[str] = ("text",)
    folder: str = ""                # of the configuration's files, where it is not named after the configuration
    revision: str = "main"
    begins: str = ""                # rows are lines: a document begins with one that this regular expression finds
    together: str = ""              # documents with the same text in this one of the columns are held out together
    finite: bool = False            # may have fewer tokens than were asked for

    @property
    def name(self) -> str:
        return f"{self.path} ({self.config}, {self.split})"

    @property
    def remedy(self) -> str:
        return (f"put a copy into {self.path} of the folder that SUITE_HUB names ({self.instead}), or leave it out of "
                "the profile")


_TABLE = yaml.safe_load(Path(__file__).with_name("hub.yaml").read_text("utf-8"))
DOMAINS = {name: [HubSet(**fields) for fields in sets] for name, sets in _TABLE["domains"].items()}
EVALUATIONS = {name: HubSet(**fields) for name, fields in _TABLE["evaluations"].items()}


@dataclass(frozen=True)
class Source:
    """The files of a set in order, on the hub (`hf://`) or on this disk."""
    set: HubSet
    files: tuple[str, ...]
    revision: str                   # commit of the hub; `copy` for files that a person has put there
    root: Path | None = None        # of a copy on this disk

    @property
    def local(self) -> bool:
        return self.root is not None

    def name(self, file: str) -> str:
        """A file's name without machine or commit: the same wherever the file was read."""
        inside = Path(file).relative_to(self.root).as_posix() if self.root else re.sub(r"^hf://.*?@[^/]*/", "", file)
        return f"{self.set.path}/{inside}"

    def facts(self) -> dict[str, Any]:
        return {"dataset": self.set.path, "config": self.set.config, "split": self.set.split, "revision": self.revision,
                "licence": self.set.licence}


def size_and_time(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def find(wanted: HubSet) -> Source:
    """Where the files of a set are. A SuiteError if a copy has none; errors of the hub and the network as they come."""
    if (root := copy_of(wanted)) is not None:
        files = files_of(root, wanted)
        if not files:
            raise SuiteError(f"{root} has no file of {wanted.name}: no {', '.join(SUFFIXES)} for the split "
                             f"{wanted.split!r}")
        commit = root.name if root.parent.name == "snapshots" else "copy"       # of the hub's cache, or a person's copy
        return Source(wanted, tuple(map(str, files)), commit, root)
    import datasets
    builder = datasets.load_dataset_builder(wanted.path, wanted.config or None, revision=wanted.revision)
    splits = builder.config.data_files or {}
    if wanted.split not in splits:
        known = ", ".join(map(str, splits))
        raise SuiteError(f"{wanted.name}: the hub has no split {wanted.split!r} (known: {known}); {wanted.remedy}")
    files = tuple(map(str, splits[wanted.split]))
    return Source(wanted, files, next(iter(re.findall(r"@([0-9a-f]{40})/", files[0])), wanted.revision))


def subsets(wanted: HubSet) -> list[str]:
    """The configurations of a data set, of which each is a subset."""
    if (root := copy_of(wanted)) is not None:
        files = [file.relative_to(root) for file in text_files(root)]
        return list(dict.fromkeys(file.parts[0] if len(file.parts) > 1 else file.stem for file in files))
    import datasets
    return datasets.get_dataset_config_names(wanted.path, revision=wanted.revision)


def put_there(wanted: HubSet) -> Path | None:
    hub = named_by("SUITE_HUB")
    return hub / wanted.path if hub and (hub / wanted.path).is_dir() else None


def copy_of(wanted: HubSet) -> Path | None:
    """The folder with a set's files on this disk: of SUITE_HUB, or of the hub's cache if the hub may not be asked."""
    import huggingface_hub
    if (folder := put_there(wanted)) or not huggingface_hub.is_offline_mode():
        return folder
    try:
        return Path(huggingface_hub.snapshot_download(wanted.path, repo_type="dataset", revision=wanted.revision,
                                                      local_files_only=True))
    except (FileNotFoundError, ValueError) as error:
        raise SuiteError(f"{wanted.name} is not in the cache of HF_HOME, and HF_HUB_OFFLINE forbids asking the hub; "
                         f"download it (hf download --repo-type dataset {wanted.path}), or {wanted.remedy}") from error


def copies(domains: Iterable[str]) -> list[list[Any]]:
    """Name, size and time of the files that SUITE_HUB has of these domains: other files make another corpus."""
    return [[file.relative_to(root).as_posix(), *size_and_time(file)] for name in domains for wanted in DOMAINS[name]
            if (root := put_there(wanted)) for file in files_of(root, wanted)]


def text_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file()
                  and not any(part.startswith(".") for part in path.relative_to(root).parts))


def files_of(root: Path, wanted: HubSet) -> list[Path]:
    """The files of a configuration and split in a copy.

    They lie in the configuration's folder, and their name or folder says the split; if no name does, all are taken.
    """
    names = (name for name in (wanted.folder, wanted.config) if name)
    base = next((root / name for name in names if (root / name).is_dir()), root)
    files = text_files(base)
    if base == root and wanted.config and (lone := [file for file in files if file.stem == wanted.config]):
        return lone

    def says(file: Path, *splits: str) -> bool:
        return bool(re.search(rf"(^|/)({'|'.join(splits)})([-.]|/|$)", file.relative_to(base).as_posix()))
    said = [file for file in files if says(file, *SPLITS)]
    return [file for file in said if says(file, wanted.split)] if said else files


class HubDocument(NamedTuple):
    text: str
    together: str               # documents with the same one are held out together
    file: int
    row: int                    # its first
    after: Position             # where reading continues after it
    passed_over: int            # rows without text since the document before


def passing(error: BaseException) -> bool:
    """Whether an error is temporary: one of the network, but not the hub's refusal of a name or a person."""
    import huggingface_hub.errors as refusals
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    if status in REFUSED or isinstance(error, (FileNotFoundError, PermissionError, refusals.EntryNotFoundError,
                                               refusals.RepositoryNotFoundError, refusals.OfflineModeIsEnabled)):
        return False
    return any(kind.__module__.split(".")[0] in CLIENTS or kind in (OSError, refusals.XetDownloadError)
               for kind in type(error).__mro__)


def patiently(what: str, attempt: Callable[[], T], instead: str, say: "Say") -> T:
    """The result of `attempt`, repeated while the network fails; in the end a SuiteError that says what to do.

    `instead` is an alternative that the error names. A SuiteError of `attempt` is final.
    """
    for number in count(1):
        try:
            return attempt()
        except SuiteError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if not passing(error):
                raise SuiteError(f"{what} cannot be read ({told}). It may be gone, gated or renamed: with a token of "
                                 f"an account that may read it (hf auth login) run again; or {instead}") from error
            if number == ATTEMPTS:
                raise SuiteError(f"{what}: the hub did not answer {ATTEMPTS} times in a row ({told}). What was read is "
                                 f"kept; run again to go on from there, or {instead}") from error
            wait = WAIT * 2 ** (number - 1)
            say(f"{what}: {told}; trying again in {wait:.0f} s")
            time.sleep(wait)


def tables(file: str, row: int) -> "Iterator[pyarrow.Table]":
    """The rows of a file from `row` on, in order, at most ROWS at a time."""
    import datasets
    kind = next((kind for suffix, kind in SUFFIXES.items() if suffix in file.lower()[-len(".jsonl.gz"):]), "parquet")
    options = {"batch_size": ROWS} if kind == "parquet" else {}     # the default, a row group, fails where it is empty
    rows = datasets.load_dataset(kind, data_files={"train": [file]}, split="train", streaming=True, **options)
    yield from (rows.skip(row) if row else rows).with_format("arrow").iter(batch_size=ROWS)


class Reader:
    """A domain's documents. Its `sources` are found, and the first rows of each read, before anything is built."""

    def __init__(self, name: str, sets: Iterable[HubSet], say: "Say") -> None:
        self.name, self._say = name, say
        self.sources = [patiently(one.name, lambda one=one: find(one), one.remedy, say) for one in sets]
        self.files = [(source, file) for source in self.sources for file in source.files]
        for number, (source, file) in enumerate(self.files):
            if file == source.files[0] and next(self.rows(number), None) is None:
                raise SuiteError(f"{self.where(number)} has no rows; fetch it again, or {source.set.remedy}")

    def where(self, number: int) -> str:
        source, file = self.files[number]
        return file if source.local else source.name(file)

    def rows(self, number: int, row: int = 0) -> Rows:
        """The rows of a file from `row` on, through connections that drop."""
        (source, file), where, stream = self.files[number], self.where(number), None

        def following() -> "pyarrow.Table | None":
            """The table at `row`, None at the end of the file; after an error the next call opens the file anew."""
            nonlocal stream
            stream = stream or tables(file, row)
            try:
                return next(stream, None)
            except Exception as error:
                stream = None
                if source.local:
                    raise SuiteError(f"{where} cannot be read after row {row} ({type(error).__name__}: {error}); it "
                                     "may be damaged or cut off: fetch it again") from error
                raise
        while (table := patiently(f"{where}, row {row}", following, source.set.remedy, self._say)) is not None:
            columns = [strings(table, column, f"{where}, rows from {row}", source.set) for column in source.set.columns]
            for texts in zip(*columns, strict=True):
                yield number, row, texts
                row += 1

    def documents(self, position: Position = (0, 0)) -> Iterator[HubDocument]:
        """The documents from `position` on, the `after` of a document: those that an undisturbed reader reads next."""
        first, row = position
        for source, group in groupby(range(first, len(self.files)), lambda number: self.files[number][0]):
            numbers = list(group)
            rows = chain.from_iterable(self.rows(number, row if number == first else 0) for number in numbers)
            end = (numbers[-1] + 1, 0)
            yield from grouped(rows, source.set, end) if source.set.begins else single(rows, source.set)


def strings(table: "pyarrow.Table", column: str, where: str, wanted: HubSet) -> list[str | None]:
    """A column of text; a SuiteError if there is none of this name, or if it is not text."""
    if column not in table.column_names:
        raise SuiteError(f"{where}: no column {column!r} (there are {', '.join(table.column_names)}); the data set has "
                         f"changed, or the copy is of another one: {wanted.remedy}")
    if (kind := str(table.schema.field(column).type)) not in ("string", "large_string", "null"):
        raise SuiteError(f"{where}: column {column!r} is {kind}, not text")
    return table.column(column).to_pylist()


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
