"""Executing one notebook: refused before it starts, failing with its partial output, dying, side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from lib import paths
from lib.errors import SuiteError
from suite.run import execute

CELL = "count: int = 1  # how many\nrate: float = 0.5\nnames: list[str] = ['a']"


@pytest.fixture
def make(tmp_path):
    """Write a notebook whose parameters cell is CELL, followed by `cells`."""
    def maker(*cells: str, name: str = "trial", tags=("parameters",), kernel: str = "python3"):
        first = new_code_cell(CELL, metadata={"tags": list(tags)})
        metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=[first, *map(new_code_cell, cells)], metadata=metadata), path)
        return path
    return maker


def refused(path, values) -> str:
    """The message, once nothing was started and nothing written."""
    output = path.parent / "out" / path.name
    with pytest.raises(SuiteError) as error:
        execute.NotebookProcess(path, output, values)
    assert not output.parent.exists()
    return str(error.value)


@pytest.mark.parametrize("values, words", [
    ({"cuont": 2}, ["trial.ipynb", "unknown parameter 'cuont'", "did you mean 'count'"]),
    ({"rate": "1e-4"}, ["rate = '1e-4' is a str", "its type is float", "1.0e-4"]),
    ({"count": True}, ["count = True is a bool"]),
    ({"names": "a"}, ["names = 'a'", "list[str]"]),
])
def test_when_a_parameter_is_wrong_then_nothing_starts(make, values, words):
    text = refused(make("print(1)"), values)
    assert all(word in text for word in words)


def test_when_the_notebook_itself_is_wrong_then_nothing_starts(make, tmp_path):
    assert "0 cells are tagged 'parameters'" in refused(make(tags=()), {})
    assert "kernel is 'julia', it must be 'python3'" in refused(make(kernel="julia"), {})
    assert "does not exist" in refused(tmp_path / "none.ipynb", {})
    (tmp_path / "text.ipynb").write_text("no notebook")
    assert "not a notebook" in refused(tmp_path / "text.ipynb", {})


def cells_of(path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_when_every_cell_runs_then_the_output_appears_whole_with_the_parameters(make, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://on_another_machine")      # a user's setting that does not work here
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    # A user's kernel of the same name, which is broken.
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "mine", "language": "python"}))
    path = make("import json, sys, matplotlib.pyplot as plt\nfrom lib import paths\nplt.close(plt.figure())\n"
                "print(json.dumps([count, rate, names, sys.executable, str(paths.ROOT)]))",
                name="with {braces} and space")
    output = tmp_path / "out" / "trial.ipynb"
    ended = execute.NotebookProcess(path, output, {"count": 3, "names": "['x', 'y']"}).wait()
    assert ended.error == "" and ended.seconds > 0
    shown = json.loads(cells_of(output)[-1].outputs[0].text)
    assert shown == [3, 0.5, ["x", "y"], sys.executable, str(paths.ROOT)]
    metadata = nbformat.read(output, as_version=4).metadata
    assert metadata.suite == {"state": "done", "error": ""} and str(tmp_path) not in json.dumps(metadata)
    assert [p.name for p in output.parent.iterdir()] == ["trial.ipynb"]


def test_when_a_cell_fails_then_the_output_goes_as_far_and_is_marked(make, tmp_path):
    output = tmp_path / "trial.out.ipynb"
    output.write_text("what was there before")
    wrong = "from lib.errors import SuiteError\nraise SuiteError('lr = 3 is not valid')"
    ended = execute.NotebookProcess(make("print('so far')", wrong, "print('never')"), output, {}).wait()
    assert ended.error == "SuiteError: lr = 3 is not valid"             # the message alone, no traceback
    first, second, third = cells_of(output)[-3:]
    assert first.outputs[0].text == "so far\n" and second.outputs[0].traceback == [ended.error] and third.outputs == []
    assert nbformat.read(output, as_version=4).metadata.suite.state == "failed"


def test_when_executions_run_side_by_side_and_one_kernel_dies_then_each_ends_as_it_must(make, tmp_path):
    good = "import time; time.sleep(1); print(count)"
    bad = "import os\nprint('alive', flush=True)\nos.kill(os.getpid(), 9)"
    ended: dict[int, execute.Execution] = {}

    def one(number: int, path) -> None:
        ended[number] = execute.NotebookProcess(path, tmp_path / f"out{number}.ipynb", {"count": number}).wait()
    begin = time.monotonic()
    threads = [threading.Thread(target=one, args=(i, make(bad if i == 2 else good, name=f"n{i}"))) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begin < 60
    assert "the kernel died in cell 3 of 3" in ended[2].error and "memory" in ended[2].error
    assert ended[0].error == ended[1].error == ""
    assert [cells_of(tmp_path / f"out{i}.ipynb")[-1].outputs[0].text for i in (0, 1)] == ["0\n", "1\n"]


def test_when_the_suite_is_killed_then_execution_and_kernel_end(make, tmp_path):
    path = make("import time\nopen('started', 'w').close()\ntime.sleep(100)")
    script = ("import sys, pathlib, suite.run.execute as e\n"
              "e.NotebookProcess(*map(pathlib.Path, sys.argv[1:]), {}).wait()")
    suite = subprocess.Popen([sys.executable, "-c", script, str(path), str(tmp_path / "out.ipynb")], cwd=paths.ROOT,
                             env={**os.environ, "PYTHONPATH": str(paths.ROOT)})
    deadline = time.monotonic() + 40
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline and suite.poll() is None
        time.sleep(0.1)
    below = psutil.Process(suite.pid).children(recursive=True)
    assert len(below) >= 2                                             # the process that executes, and its kernel
    suite.kill()
    suite.wait()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive and not (tmp_path / "out.ipynb").exists()
