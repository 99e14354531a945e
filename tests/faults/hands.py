"""Hands off: programs where data belongs, code in the place of a name, folders of programs that others can write."""

import pickle
from pathlib import Path

from frame import Row, tiny


class Program:
    def __reduce__(self):
        return exec, ("open('it_ran', 'w')",)


PICKLE = pickle.dumps(Program())
TAG = "!!python/object/apply:os.system ['touch it_ran']"


def open_to_all(name: str):
    """Makes a folder that everybody can write."""
    def prepare(root: Path) -> None:
        (root / name).mkdir()
        (root / name).chmod(0o777)
    return prepare


ROWS = [
    *(Row(f"{variable} is everybody's", "plan --profile tiny", f"{variable} = .*others can write there",
          env={variable: "{root}/programs"}, prepare=open_to_all("programs"))
      for variable in ("NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")),
    Row("a program in a profile", "plan --profile tiny", "tiny.yaml: not YAML: .*python/object/apply",
        profile=tiny("description: for tests", f"description: {TAG}")),
    Row("a pickle for a profile", "plan --profile tiny", "tiny.yaml", profile=PICKLE),
    Row("a pickle of JSON lines", "corpus --profile tiny --corpus mine", r"a.jsonl is (not UTF-8|binary)",
        files={"mine/docs/a.jsonl": PICKLE}),
    Row("a pickle of text", "corpus --profile tiny --corpus mine", r"a.txt is (not UTF-8|binary)",
        files={"mine/docs/a.txt": PICKLE}),
    Row("a pickle of Parquet", "corpus --profile tiny --corpus mine", "a.parquet cannot be read as parquet",
        files={"mine/docs/a.parquet": PICKLE}),
    Row("a pickle for the database", "runs list --profile tiny", "runs.sqlite is not a readable database",
        files={"outputs/tiny/runs.sqlite": PICKLE}),
    Row("code for a pattern", "compare \"__import__('os')\" --profile tiny", "unknown pattern \"__import__"),
    Row("code for a parameter", "compare local -p \"window=__import__('os').mkdir('x')\" --profile tiny", "window"),
    Row("SQL for a run", "runs show \"' or 1; drop table runs; --\" --profile tiny", "no runs yet in profile 'tiny'"),
    Row("a command for a corpus", "corpus --profile tiny --corpus '$(touch it_ran)'", r"CORPUS = .* is not a folder"),
    Row("a path for a notebook", "notebook ../../etc/passwd --profile tiny", "unknown notebook '../../etc/passwd'"),
    Row("a path for a profile", "plan --profile ../../etc/passwd", "unknown profile '../../etc/passwd'"),
    Row("markup and colours for a profile", "plan --profile '<b>\x1b[31m'", r"unknown profile '<b>\\x1b\[31m'"),
]
