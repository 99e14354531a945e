"""Every figure as PDF and SVG, every table as LaTeX (booktabs) and CSV, for a paper: named by notebook and heading.

The notebooks are executed once more, which trains nothing; a figure is saved where `Notebook.show` has it, and a table
is read from the executed notebook.
"""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd
from bs4 import BeautifulSoup, Tag

from lib import paths
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.notebook import FIGURES, KINDS
from suite.run import stamps
from suite.run.execute import NotebookProcess
from suite.settings.parameters import notebook_names
from suite.settings.profiles import load


def export(profile: str, corpus: str, say: Callable[[str], None]) -> Path:
    """Write all to outputs/<profile>/figures and return that folder. `SuiteError` if a notebook is not done."""
    loaded, into = load(profile, corpus), paths.profile_outputs(profile) / "figures"
    for name in notebook_names():
        if not stamps.record(profile, name).is_file():
            raise SuiteError(f"{name} is not done at profile {profile}: make report PROFILE={profile} first")
    for name in notebook_names():
        with tempfile.TemporaryDirectory() as work:
            output = Path(work) / "executed.ipynb"
            ended = NotebookProcess(paths.NOTEBOOKS / f"{name}.ipynb", output, loaded.parameters(name).model_dump(),
                                    {FIGURES: work}).wait()
            if ended.error:
                raise SuiteError(f"{name}: {ended.error.splitlines()[-1]}")
            say(f"{name}: {keep(nbformat.read(output, as_version=4), Path(work), into, name)} files")
    return into


def keep(notebook: nbformat.NotebookNode, work: Path, into: Path, name: str) -> int:
    """Write the figures that lie in `work`, in the order of the executed notebook, and its tables; how many files."""
    heading, used, figures, written = "start", Counter(), 0, 0

    def stem() -> Path:
        used[heading] += 1
        return into / f"{name}-{heading}{f'-{used[heading]}' if used[heading] > 1 else ''}"
    into.mkdir(parents=True, exist_ok=True)
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (found := re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE)):
            heading = re.sub(r"[^a-z0-9]+", "-", found[-1].lower()).strip("-")
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            if "image/png" in data:
                figures, at = figures + 1, stem()
                for kind in KINDS:
                    shutil.move(work / f"{figures}.{kind}", f"{at}.{kind}")
                    written += 1
            for table in BeautifulSoup(data.get("text/html", ""), "html.parser").find_all("table"):
                frame, at = frame_of(table), stem()
                write_atomically(Path(f"{at}.csv"), frame.to_csv(index=False, lineterminator="\n").encode())
                write_atomically(Path(f"{at}.tex"), frame.to_latex(index=False, escape=True).encode())
                written += 2
    return written


def frame_of(table: Tag) -> pd.DataFrame:
    """A table as it is shown; a cell over several rows or columns stands in each of them."""
    grid: dict[tuple[int, int], str] = {}
    rows = table.find_all("tr")
    for at, row in enumerate(rows):
        column = 0
        for cell in row.find_all(["th", "td"]):
            while (at, column) in grid:
                column += 1
            for down in range(int(cell.get("rowspan", 1))):
                for right in range(int(cell.get("colspan", 1))):
                    grid[at + down, column + right] = cell.get_text(" ", strip=True)
            column += int(cell.get("colspan", 1))
    width, header = 1 + max(column for _, column in grid), len(table.select("thead tr"))
    lines = [[grid.get((at, column), "") for column in range(width)] for at in range(len(rows))]
    names = [" ".join(dict.fromkeys(filter(None, column))) for column in zip(*lines[:header], strict=True)]
    return pd.DataFrame(lines[header:], columns=names or None)
