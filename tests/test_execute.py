"""Executing one notebook: refused before it starts, failing with its partial output, dying, side by side."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from fake_jobs import until
from nbformat.v4 import new_code_cell, new_notebook

from lib import paths
from lib.errors import SuiteError
from suite.run.execute import NotebookProcess

CELL = "count: int = 1  # how many\nrate: float = 0.5\nnames: list[str] = ['a']"


@pytest.fixture
def make(tmp_path):
    """Write a notebook whose parameters cell is CELL, followed by `cells`."""
    def maker(*cells: str, name: str = "trial", tags=("parameters",), kernel: str = "python3") -> Path:
        first = new_code_cell(CELL, metadata={"tags": list(tags)})
        metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(new_notebook(cells=[first, *map(new_code_cell, cells)], metadata=metadata), path)
        return path
    return maker


def test_when_parameters_or_the_notebook_are_wrong_then_nothing_starts(make, tmp_path):
    (tmp_path / "text.ipynb").write_text("no notebook")
    output = tmp_path / "out" / "trial.ipynb"
    for path, values, words in [
            (make(), {"cuont": 2}, ["trial.ipynb", "unknown parameter 'cuont'", "did you mean 'count'"]),
            (make(name="bare", tags=()), {}, ["0 cells are tagged 'parameters'"]),
            (make(name="other", kernel="julia"), {}, ["kernel is 'julia', it must be 'python3'"]),
            (tmp_path / "none.ipynb", {}, ["No such file"]), (tmp_path / "text.ipynb", {}, ["not a notebook"])]:
        with pytest.raises(SuiteError) as error:
            NotebookProcess(path, output, values)
        assert all(word in str(error.value) for word in words) and not output.parent.exists()


def test_when_executions_run_side_by_side_then_each_ends_as_it_must(make, tmp_path, monkeypatch):
    """One is good, in one a cell fails, in one the kernel dies; the user's own settings do not work here."""
    spec, out = tmp_path / "jupyter" / "kernels" / "python3", tmp_path / "out"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "mine", "language": "python"}))
    monkeypatch.setenv("MPLBACKEND", "module://on_another_machine")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    good = ("import json, sys, matplotlib.pyplot as plt\nfrom lib import paths\nplt.close(plt.figure())\n"
            "print(json.dumps([count, rate, names, sys.executable, str(paths.ROOT)]))")
    wrong = "from lib.errors import SuiteError\nraise SuiteError('lr = 3 is not valid')"
    dying = "import os\nprint('alive', flush=True)\nos.kill(os.getpid(), 9)"
    out.mkdir()
    (out / "wrong.ipynb").write_text("what was there before")
    started = [NotebookProcess(make(*cells, name="{with} braces " + name), out / f"{name}.ipynb", values)
               for name, cells, values in [("good", [good], {"count": 3, "names": "['x', 'y']"}),
                                           ("dying", [dying], {}),
                                           ("wrong", ["print('so far')", wrong, "print('never')"], {})]]
    done, died, failed = (process.wait() for process in started)
    nodes = {path.stem: nbformat.read(path, as_version=4) for path in out.iterdir()}
    assert sorted(nodes) == ["dying", "good", "wrong"] and done.error == "" and done.seconds > 0
    assert json.loads(nodes["good"].cells[-1].outputs[0].text) == [3, 0.5, ["x", "y"], sys.executable, str(paths.ROOT)]
    assert nodes["good"].metadata.suite == {"state": "done", "error": ""}
    assert str(tmp_path) not in json.dumps(nodes["good"].metadata)
    assert "the kernel died in cell 2 of 2" in died.error and "memory" in died.error
    assert failed.error == "SuiteError: lr = 3 is not valid"            # the message alone, no traceback
    first, second, third = [cell for cell in nodes["wrong"].cells if cell.cell_type == "code"][-3:]
    assert first.outputs[0].text == "so far\n" and second.outputs[0].traceback == [failed.error] and not third.outputs
    assert nodes["wrong"].metadata.suite == {"state": "failed", "error": failed.error}


def test_when_the_suite_is_killed_then_execution_and_kernel_end(make, tmp_path):
    path = make("import time\nopen('started', 'w').close()\ntime.sleep(100)")
    script = ("import sys, pathlib, suite.run.execute as e\n"
              "e.NotebookProcess(*map(pathlib.Path, sys.argv[1:]), {}).wait()")
    suite = subprocess.Popen([sys.executable, "-c", script, str(path), str(tmp_path / "out.ipynb")], cwd=paths.ROOT,
                             env={**os.environ, "PYTHONPATH": str(paths.ROOT)})
    until((tmp_path / "started").exists, suite)
    below = psutil.Process(suite.pid).children(recursive=True)
    assert len(below) >= 2                                             # the process that executes, and its kernel
    suite.kill()
    suite.wait()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive and not (tmp_path / "out.ipynb").exists()
