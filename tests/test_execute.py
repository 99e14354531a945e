"""A notebook: wrong parameters are errors before any work, in papermill as in JupyterLab; a right one is executed."""

import json
import os
import subprocess
import sys

import nbformat
import psutil
import pytest
from fake_jobs import until
from fake_suite import DATA, write

from lib import paths
from lib.errors import SuiteError
from suite import notebook
from suite.run.execute import NotebookProcess
from suite.settings.parameters import declared_in, parameters_of, parse_cell

CELL = (DATA / "parameters_cell.txt").read_text("utf-8")
DEFAULTS = {"profile": "small", "corpus": "", "seeds": (42,), "tokens": 0, "rate": 0.5, "names": ("a", "b"),
            "deep": True}


@pytest.fixture
def read(tmp_path, monkeypatch):
    """The parameters of the notebook `07_trial`, which declares CELL, whose cells are run as a kernel does."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    write(tmp_path / "07_trial.ipynb", CELL)

    def reader(*cells: str):
        namespace: dict = {"In": [""]}
        for cell in cells:
            namespace["In"].append(cell)
            exec(cell, namespace)
        return notebook.read_parameters("07_trial", namespace)
    return reader


def test_when_cells_ran_then_the_values_of_the_last_ones_are_the_parameters_held_to_their_types(read):
    assert read(CELL).model_dump() == DEFAULTS and hash(read(CELL)) == hash(read(CELL))
    with pytest.raises(ValueError, match="frozen"):
        read(CELL).tokens = 1
    found = read(CELL, "# Parameters\nseeds = '[1,2]'\nrate = 1\nnames = ['c']\ndeep = False\n")
    assert found.model_dump() == {**DEFAULTS, "seeds": (1, 2), "rate": 1.0, "names": ("c",), "deep": False}
    assert isinstance(found.rate, float)
    wrong, mended = "# Parameters\nsede = [1]\n", CELL.replace("[42]", "[7]")
    assert read(CELL, wrong, mended).seeds == (7,)     # the injected cell was deleted, the parameters run again
    with pytest.raises(SuiteError, match="sede"):
        read(CELL, mended, wrong)


def injected(line: str) -> tuple[str, str]:
    """The parameters cell, and one that papermill adds."""
    return CELL, f"# Parameters\n{line}\n"


@pytest.mark.parametrize("cells, words", [
    (injected("sede = [1]"), ["unknown parameter 'sede'", "did you mean 'seeds'"]),
    (injected("rate = '1e-4'"), ["rate = '1e-4' is a str", "its type is float", "write 1.0e-4"]),
    (injected("tokens = '2.5e3'"), ["tokens = '2.5e3' is a str", "its type is int", "write 2.5e+3"]),
    (injected("tokens = True"), ["tokens = True is a bool", "int"]),
    (injected("seeds = 1"), ["seeds = 1", "[1]"]),
    (injected("seeds = 'one'"), ["seeds = 'one'", "'[1, 2]'"]),
    (injected("seeds = ['1']"), ["seeds = '1' is a str", "int"]),
    (injected("rate = float('inf')"), ["rate = inf", "finite"]),
    # A parameters cell that is not the saved one, or was not run
    ([CELL.replace("seeds: list", "sedes: list")], ["unknown parameter 'sedes'", "'seeds'"]),
    ([CELL.replace("rate: float = 0.5  # a number\n", "")], ["rate is missing"]),
    ([CELL.replace("tokens: int = 0", "tokens: float = 0.0")], ["tokens", "another type", "save it"]),
    ([CELL.replace("tokens: int = 0", "tokens = 0")], ["tokens = 0", "is not a parameter"]),
    ([CELL.replace("tokens: int = 0", "tokens: int = 2 * 3")], ["must be a literal"]),
    ([CELL.replace("tokens: int = 0", "tokens: int = 'no'")], ["tokens = 'no' is a str"]),
    ([CELL.replace("tokens: int = 0", "tokens: complex = 0")], ["complex is not supported"]),
    (["x = 1"], ["corpus", "not set: run the parameters cell first"]),
])
def test_when_a_value_or_the_parameters_cell_is_wrong_then_the_error_names_it(read, cells, words):
    with pytest.raises(SuiteError) as error:
        read(*cells)
    assert all(word in str(error.value) for word in ["07_trial", *words]), error.value


@pytest.mark.parametrize("value, annotation, expected", [
    (3, "float", 3.0), (None, "int | None", None), (3, "int | None", 3),
    ([[1], [2, 3]], "list[list[int]]", ((1,), (2, 3))),
    ((1, 2), "tuple[int, ...]", (1, 2)), ("[0.5, 1]", "tuple[float, ...]", (0.5, 1.0)), ([], "list[int]", ()),
])
def test_when_a_value_fits_its_type_then_it_is_taken_and_its_meaning_is_there(value, annotation, expected):
    model = parse_cell(f'x: "{annotation}" = {value!r}  # ünïcode = ✓', "here")
    assert model().x == expected and type(model().x) is type(expected)
    assert model.model_fields["x"].description == "ünïcode = ✓"


def test_when_the_saved_cell_changes_then_so_do_the_parameters_and_what_an_experiment_misses_is_named(read, tmp_path):
    before = parameters_of("07_trial")
    assert parameters_of("07_trial") is before                     # read once
    write(tmp_path / "07_trial.ipynb", CELL.replace("rate: float = 0.5", "speed: float = 0.25"))
    after = parameters_of("07_trial")()
    assert after.speed == 0.25 and after.model_fields_set == set()
    with pytest.raises(SuiteError, match="reads rate, which the parameters cell of its notebook does not declare"):
        _ = after.rate
    write(tmp_path / "07_trial.ipynb", CELL.replace("seeds: list[int] = [42]", "seed: int = 42"))
    with pytest.raises(SuiteError, match="07_trial.ipynb, parameters cell: the parameter seeds is missing"):
        parameters_of("07_trial")
    with pytest.raises(SuiteError, match="unknown notebook '07_trail'; did you mean '07_trial'"):
        parameters_of("07_trail")


def test_when_papermill_runs_in_another_folder_then_a_list_as_text_is_a_list_and_an_unknown_name_fails(tmp_path):
    name = "01_window_sweep"
    committed = nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    write(tmp_path / "trial.ipynb", next(cell.source for cell in committed if cell.cell_type == "code"),
          f"from suite.notebook import Notebook\n"            # without `In` the injected names are not looked at
          f"print(Notebook({name!r}, {{**globals(), 'In': []}}).parameters.model_dump_json())",
          f"nb = Notebook({name!r}, globals())", "print(nb)")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "../trial.ipynb", "out.ipynb",
               *"-p seeds [1,2] -p tokens 5000 -p sede [1,2] -p corpus texts".split()]
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT), "SUITE_OUTPUTS": str(tmp_path / "outputs")}
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=120, env=environment)
    cells = nbformat.read(elsewhere / "out.ipynb", as_version=4).cells
    shown, failed, after = [cell for cell in cells if cell.cell_type == "code"][-3:]
    given = json.loads(shown.outputs[0].text)
    assert (given["seeds"], given["tokens"], given["corpus"]) == ([1, 2], 5000, str(elsewhere / "texts"))
    assert given["windows"] == list(declared_in(paths.NOTEBOOKS / f"{name}.ipynb")().windows)
    [error] = failed.outputs                               # the message alone
    assert done.returncode != 0 and error.ename == "SuiteError" and len(error.traceback) == 1 and after.outputs == []
    assert "unknown parameter 'sede'; did you mean 'seeds'" in error.traceback[0]


# Executing it

def test_when_parameters_or_the_notebook_are_wrong_then_nothing_starts(tmp_path):
    (tmp_path / "text.ipynb").write_text("no notebook")
    output = tmp_path / "out" / "trial.ipynb"
    for path, values, words in [
            (write(tmp_path / "trial.ipynb", CELL), {"sede": 2},
             ["trial.ipynb", "unknown parameter 'sede'", "did you mean 'seeds'"]),
            (write(tmp_path / "bare.ipynb", CELL, tags=()), {}, ["0 cells are tagged 'parameters'"]),
            (write(tmp_path / "a.ipynb", CELL, kernel="julia"), {}, ["kernel is 'julia', it must be 'python3'"]),
            (tmp_path / "none.ipynb", {}, ["No such file"]), (tmp_path / "text.ipynb", {}, ["not a notebook"])]:
        with pytest.raises(SuiteError) as error:
            NotebookProcess(path, output, values)
        assert all(word in str(error.value) for word in words) and not output.parent.exists()


def test_when_executions_run_side_by_side_then_each_ends_as_it_must(tmp_path, monkeypatch):
    """One is good, in one a cell fails, in one the kernel dies; the user's own settings do not work here."""
    spec, out = tmp_path / "jupyter" / "kernels" / "python3", tmp_path / "out"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "mine", "language": "python"}))
    monkeypatch.setenv("MPLBACKEND", "module://on_another_machine")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    good = ("import json, sys, matplotlib.pyplot as plt\nfrom lib import paths\nplt.close(plt.figure())\n"
            f"print(json.dumps([tokens, rate, names, sys.executable == {sys.executable!r}, str(paths.ROOT)]))")
    wrong = "from lib.errors import SuiteError\nraise SuiteError('lr = 3 is not valid')"
    dying = "import os\nprint('alive', flush=True)\nos.kill(os.getpid(), 9)"
    out.mkdir()
    (out / "wrong.ipynb").write_text("what was there before")
    started = [NotebookProcess(write(tmp_path / f"{{}} {name}.ipynb", CELL, *cells), out / f"{name}.ipynb", values)
               for name, cells, values in [("good", [good], {"tokens": 3, "names": "['x', 'y']"}),
                                           ("dying", [dying], {}),
                                           ("wrong", ["print('so far')", wrong, "print('never')"], {})]]
    done, died, failed = (process.wait() for process in started)
    nodes = {path.stem: nbformat.read(path, as_version=4) for path in out.iterdir()}
    assert sorted(nodes) == ["dying", "good", "wrong"] and done.error == "" and done.seconds > 0
    assert json.loads(nodes["good"].cells[-1].outputs[0].text) == [3, 0.5, ["x", "y"], True, "."]
    assert nodes["good"].metadata.suite == {"state": "done", "error": ""}
    assert str(tmp_path) not in json.dumps(nodes["good"].metadata)
    assert "the kernel died in cell 2 of 2" in died.error and "memory" in died.error
    assert failed.error == "SuiteError: lr = 3 is not valid"            # the message alone, no traceback
    first, second, third = [cell for cell in nodes["wrong"].cells if cell.cell_type == "code"][-3:]
    assert first.outputs[0].text == "so far\n" and second.outputs[0].traceback == [failed.error] and not third.outputs
    assert nodes["wrong"].metadata.suite == {"state": "failed", "error": failed.error}


def test_when_the_suite_is_killed_then_execution_and_kernel_end(tmp_path):
    path = write(tmp_path / "trial.ipynb", CELL, "import time\nopen('started', 'w').close()\ntime.sleep(100)")
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
