"""A small suite of notebooks and experiments whose runs `fake_worker.py` trains: the fixture `house`."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import nbformat
from fake_jobs import FAKE
from nbformat.v4 import new_code_cell, new_notebook

import data_prep.build
import suite.experiments
import suite.report
from lib import paths
from suite import cli
from suite.experiments.base import Job
from suite.run import execute, worker

DATA = Path(__file__).parent / "data"
GOOD = (DATA / "tiny.yaml").read_text("utf-8")
CELL = 'profile: str = "small"\ncorpus: str = ""\nseeds: list[int] = [42]\ntokens: int = 0\n'
WRITE = (DATA / "results_cell.txt").read_text("utf-8")


def write(path: Path, *cells: str, tags: tuple[str, ...] = ("parameters",), kernel: str = "python3") -> Path:
    """A notebook of these cells, the first of them tagged `parameters`."""
    tagged = [new_code_cell(cells[0], metadata={"tags": list(tags)}), *map(new_code_cell, cells[1:])]
    metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    nbformat.write(new_notebook(cells=tagged, metadata=metadata), path)
    return path


@dataclass
class InProcess:
    """Executes a notebook's cells here, and writes it to its output, instead of starting a kernel."""
    notebook: Path
    output: Path
    parameters: dict

    def wait(self) -> execute.Execution:
        error = ""
        try:
            exec(nbformat.read(self.notebook, as_version=4).cells[1].source, dict(self.parameters))
        except Exception as found:
            error = f"Traceback\n{type(found).__name__}: {found}"
        self.output.write_text(f"executed, {error}")
        return execute.Execution(error, 0.5)


class House:
    """A small suite: notebooks, a profile, experiments whose runs the fake worker trains, a page of statuses."""

    def __init__(self, root, monkeypatch):
        self.root, self.pages, self.experiments = root, [], {}
        for name in ("NOTEBOOKS", "PROFILES"):
            monkeypatch.setattr(paths, name, root / name.lower())
            (root / name.lower()).mkdir()
        monkeypatch.setenv("SUITE_OUTPUTS", str(root / "outputs"))
        monkeypatch.setattr(worker, "COMMAND", FAKE)
        monkeypatch.setattr(execute, "NotebookProcess", InProcess)
        monkeypatch.setattr(suite.experiments, "experiment", self.experiments.__getitem__)
        self.text = SimpleNamespace(path=root, fingerprint="text", manifest={"notes": []})
        for name in ("corpus", "existing"):
            monkeypatch.setattr(data_prep.build, name, lambda *given: self.text)
        monkeypatch.setattr(suite.report, "build", self.page)
        (root / "profiles" / "tiny.yaml").write_text(GOOD.split("notebooks:")[0])

    def page(self, profile, status, corpus):
        self.pages.append({name: own.state for name, own in status.items()})
        paths.report(profile).mkdir(parents=True, exist_ok=True)
        for name in ("index.html", "ledger.json"):
            (paths.report(profile) / name).write_text(str(status))

    def notebook(self, name: str, *jobs: Job, code: str = "") -> None:
        self.experiments[name] = SimpleNamespace(alone=False, plan=lambda parameters, profile: list(jobs))
        write(paths.NOTEBOOKS / f"{name}.ipynb", CELL, WRITE.format(name=name) + code)

    def run(self, command: str = "report", *more: str) -> int:
        return cli.main([command, *more, "--profile", "tiny"])
