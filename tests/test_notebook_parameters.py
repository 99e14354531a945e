"""A notebook's parameters: unknown names and wrong types are errors before any work, in papermill as in JupyterLab."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from lib import paths
from lib.errors import SuiteError
from suite import notebook
from suite.experiments import base, experiment
from suite.settings.parameters import coerce, declared_by, parse_cell, plain

CELL = '''profile: str = "small"  # scale
corpus: str = ""  # own text
seeds: list[int] = [42]  # one run each
tokens: int = 0  # 0: the profile's
rate: float = 0.5  # a number
names: list[str] = ["a", "b"]  # some = texts
deep: bool = True
'''


@dataclass(frozen=True)
class Parameters(base.Parameters):
    rate: float = 0.5
    names: tuple[str, ...] = ("a", "b")
    deep: bool = True


def read(*cells: str, cls: type = Parameters):
    """The parameters of a notebook whose cells are run one after the other, as a kernel does."""
    namespace: dict = {"In": [""]}
    for cell in cells:
        namespace["In"].append(cell)
        exec(cell, namespace)
    return notebook.read_parameters("07_trial", cls, namespace)


def test_when_only_the_parameters_cell_ran_then_its_values_are_the_parameters():
    assert read(CELL) == Parameters()


def test_when_papermill_injected_a_cell_then_its_values_are_held_to_the_types():
    found = read(CELL, "# Parameters\nseeds = '[1,2]'\nrate = 1\nnames = ['c']\ndeep = False\n")
    assert found == Parameters(seeds=(1, 2), rate=1.0, names=("c",), deep=False)
    assert isinstance(found.rate, float)


@pytest.mark.parametrize("line, words", [
    ("sede = [1]", ["unknown parameter 'sede'", "did you mean 'seeds'"]),
    ("rate = '1e-4'", ["rate = '1e-4' is a str", "its type is float", "write 1.0e-4"]),
    ("tokens = 1.5", ["tokens = 1.5 is a float", "int"]),
    ("tokens = True", ["tokens = True is a bool", "int"]),
    ("deep = 1", ["deep = 1 is a int", "bool"]),
    ("seeds = 1", ["seeds = 1", "[1]"]),
    ("seeds = 'one'", ["seeds = 'one'", "'[1, 2]'"]),
    ("seeds = ['1']", ["seeds = '1' is a str", "int"]),
    ("rate = float('inf')", ["rate = inf", "finite"]),
    ("profile = 3", ["profile = 3", "str"]),
])
def test_when_an_injected_value_is_wrong_then_the_error_names_it(line, words):
    with pytest.raises(SuiteError) as error:
        read(CELL, f"# Parameters\n{line}\n")
    for word in ["07_trial", *words]:
        assert word in str(error.value)


def test_when_the_cells_are_run_again_in_jupyterlab_then_only_the_last_ones_count():
    wrong, mended = "# Parameters\nsede = [1]\n", CELL.replace("[42]", "[7]")
    with pytest.raises(SuiteError):
        read(CELL, wrong)
    assert read(CELL, wrong, mended).seeds == (7,)                 # the injected cell was deleted, the parameters run again
    with pytest.raises(SuiteError, match="sede"):
        read(CELL, mended, wrong)


@pytest.mark.parametrize("old, new, words", [
    ("seeds: list", "sedes: list", ["unknown parameter 'sedes'", "'seeds'"]),
    ("rate: float = 0.5  # a number\n", "", ["rate missing"]),
    ("tokens: int = 0", "tokens: float = 0.0", ["tokens"]),
    ("names: list[str] = [\"a\", \"b\"]", "names: list[int] = [1]", ["names"]),
    ("tokens: int = 0", "tokens = 0", ["tokens = 0", "is not a parameter"]),
    ("tokens: int = 0", "tokens: int = 2 * 3", ["must be a literal"]),
    ("tokens: int = 0", "tokens: int = 'no'", ["tokens = 'no' is a str"]),
    ("tokens: int = 0", "tokens: complex = 0", ["complex is not supported"]),
])
def test_when_the_parameters_cell_disagrees_with_the_experiment_then_the_error_names_the_parameter(old, new, words):
    assert old in CELL
    with pytest.raises(SuiteError) as error:
        read(CELL.replace(old, new))
    for word in words:
        assert word in str(error.value)


def test_when_the_parameters_cell_was_not_run_then_the_error_says_so():
    with pytest.raises(SuiteError, match="run the parameters cell first"):
        read("x = 1")


def test_when_a_folder_is_given_then_it_no_longer_depends_on_where_the_kernel_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read(CELL, "# Parameters\ncorpus = 'texts'\n").corpus == str(tmp_path / "texts")


def test_when_a_cell_is_parsed_then_types_defaults_and_meanings_are_there():
    cell = parse_cell(CELL, "x")
    names = cell["names"]
    assert (names.type, names.default, names.meaning) == ("list[str]", ("a", "b"), "some = texts")
    assert list(cell) == ["profile", "corpus", "seeds", "tokens", "rate", "names", "deep"]
    assert parse_cell('x: "int | None" = None  # ünïcode ✓', "x")["x"].meaning == "ünïcode ✓"


@pytest.mark.parametrize("value, annotation, expected", [
    (3, "float", 3.0), (None, "int | None", None), (3, "int | None", 3), ([[1], [2, 3]], "list[list[int]]", ((1,), (2, 3))),
    ((1, 2), "tuple[int, ...]", (1, 2)), ("[0.5, 1]", "tuple[float, ...]", (0.5, 1.0)), ([], "list[int]", ()),
])
def test_when_a_value_fits_its_type_then_it_is_taken(value, annotation, expected):
    found = coerce(value, annotation, "x", "here")
    assert found == expected and type(found) is type(expected)


def parameters_cell(name: str) -> str:
    """A parameters cell made from the experiment's own declaration."""
    lines = [f"{p}: {notebook.spelled(d.type)} = {plain(d.default)!r}  # {p}" for p, d in
             declared_by(experiment(name).Parameters).items()]
    return "\n".join(lines)


@pytest.fixture
def trial(tmp_path):
    """Papermill's own command on a notebook that checks its parameters and shows them, run from another folder."""
    name = "01_window_sweep"
    cells = [new_code_cell(parameters_cell(name), metadata={"tags": ["parameters"]}),
             new_code_cell(f"from suite.notebook import Notebook\nnb = Notebook({name!r}, globals())"),
             new_code_cell("import dataclasses, json\nprint(json.dumps(dataclasses.asdict(nb.parameters)))")]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}),
                   tmp_path / "trial.ipynb")

    def papermill(*arguments: str):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "papermill", "--no-progress-bar", "../trial.ipynb", "out.ipynb", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(paths.ROOT), "SUITE_OUTPUTS": str(tmp_path / "outputs")}
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=120, env=environment)
        return done, nbformat.read(elsewhere / "out.ipynb", as_version=4)
    return papermill


def test_when_papermill_passes_a_list_as_text_from_another_folder_then_the_notebook_has_the_list(trial):
    done, executed = trial("-p", "seeds", "[1,2]", "-p", "tokens", "5000")
    assert done.returncode == 0, done.stderr
    shown = json.loads(executed.cells[-1].outputs[0].text)
    assert shown["seeds"] == [1, 2] and shown["tokens"] == 5000
    assert shown["windows"] == list(dataclasses.asdict(experiment("01_window_sweep").Parameters())["windows"])


def test_when_papermill_passes_an_unknown_name_then_the_cell_fails_with_the_message_alone(trial):
    done, executed = trial("-p", "sede", "[1,2]")
    assert done.returncode != 0
    error = executed.cells[-2].outputs[-1]
    assert error.output_type == "error" and error.ename == "SuiteError" and len(error.traceback) == 1
    assert "unknown parameter 'sede'; did you mean 'seeds'" in error.traceback[0]
    assert executed.cells[-1].outputs == []
