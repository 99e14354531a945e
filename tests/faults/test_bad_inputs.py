"""Bad inputs over all entrances of the suite: each is answered by one line that names the thing and the remedy.

The rows lie in the files beside this one that define `ROWS`, one a part of the suite. A new row is one more line there:

    from frame import Row, tiny

    ROWS = [
        Row("a profile that is not there", "plan --profile smal", "unknown profile 'smal'; did you mean 'small'"),
        Row("a step count in quotes", "plan --profile tiny", r"tiny.yaml, train: steps = '10' .* without quotes",
            profile=tiny("steps: 10", "steps: '10'")),
        Row("a corpus without text", "corpus --profile tiny --corpus mine", "empty.txt is empty; remove it or fill it",
            files={"mine/docs/empty.txt": b""}),
        Row("a command in a variable of make", "make plan PROFILE='$$(touch pwned)'", r"unknown profile '.*touch"),
    ]

The command runs in a fresh copy of the repository (`frame.Row` says which fields a row has). Asserted are the exit
status, the line, that there is no traceback, and that no process and no temporary file is left.
"""

import re
from importlib import import_module
from pathlib import Path

import pytest
from frame import TRACEBACK, Row, place

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

ROWS = [(path.stem, row) for path in sorted(Path(__file__).parent.glob("[!_]*.py")) if not path.stem.startswith("test_")
        for row in getattr(import_module(path.stem), "ROWS", [])]


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{file}: {row.name}") for file, row in ROWS])
def test_when_an_input_is_bad_then_one_line_names_it_and_nothing_is_left_behind(row: Row, tmp_path):
    with place(tmp_path / "place") as here:
        here.write({"profiles/tiny.yaml": row.profile, **row.files})
        row.prepare(here.root)
        if row.stdout:
            with open(row.stdout, "w") as stdout:
                said = here.run(row.command, row.env, stdout=stdout)
        else:
            said = here.run(row.command, row.env)
        whole = said.stdout + said.stderr
        assert TRACEBACK not in whole, whole
        assert said.status == row.status, whole
        lines = said.stderr.splitlines() + (said.stdout.splitlines() if row.status == 0 else [])
        assert any(re.search(row.line, line) for line in lines), whole
        if row.status == 2:
            assert sum("error: " in line for line in lines) == 1 or row.command.startswith("make"), whole
        assert here.remains() == []

