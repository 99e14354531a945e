"""What a notebook calls: its parameters checked, its runs trained, its table, figures and claims kept.

    from suite.notebook import Notebook
    nb = Notebook("03_extrapolation", globals())

The parameters cell above holds `name: type = literal  # meaning`; papermill's injected cell, if any, follows it.
"""

import ast
import base64
import inspect
import io
import os
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import display
from matplotlib import pyplot as plt
from pandas.io.formats.style import Styler

from data_prep import build
from lib import paths
from lib.config import fingerprint
from lib.data import Corpus
from lib.errors import SuiteError, one_of
from lib.files import write_atomically
from suite import claims as ledger
from suite.experiments import experiment, names
from suite.experiments.base import Job
from suite.run import stamps
from suite.run.database import Database
from suite.run.engine import ensure
from suite.run.evidence import there
from suite.settings.entrance import show_warnings
from suite.settings.parameters import Parameters, checked, parameters_of, parse_cell, require_known
from suite.settings.profiles import load
from suite.study.frames import Study
from suite.study.stats import ENOUGH_SEEDS

FIGURES = "SUITE_FIGURES"              # a variable: the folder where every figure is saved too, as `suite.paper` wants
KINDS = ("pdf", "svg")                 # it, numbered in their order
SOURCE_LINES = 25                      # lines of code that a reader takes in beside an equation


class Escaped(Styler):
    """A styled table whose names and cells are text: to pandas they are HTML, and a domain can be called `<script>`."""

    def format(self, *given: Any, escape: str | None = None, **more: Any) -> Styler:
        return super().format(*given, escape=escape or "html", **more)

    def _repr_html_(self) -> str | None:
        for axis in (0, 1):
            self.format_index(axis=axis, escape="html")
        return super()._repr_html_()


pd.DataFrame.style = property(Escaped)


class Notebook:
    """One notebook at its parameters, with its `profile`, `experiment`, `corpus`, `jobs` and `database`."""

    def __init__(self, name: str, namespace: Mapping[str, Any]) -> None:
        """Check the parameters in `namespace` (a notebook passes `globals()`): a wrong one is a `SuiteError`."""
        show_warnings(print)
        self.name, self.shown = name, 0
        self.experiment = experiment(name)
        given = read_parameters(name, namespace)
        self.profile = load(given.profile, given.corpus)
        self.parameters = given.model_copy(update={"corpus": self.profile.corpus.folder})

    @cached_property
    def corpus(self) -> Corpus:
        """Text and tokeniser, built first if they are not there."""
        return build.corpus(self.profile.corpus, print)

    @cached_property
    def jobs(self) -> list[Job]:
        """What the experiment trains and measures at these parameters; of runs that ship, those that do."""
        return there(self.profile.name, self.parameters.corpus, self.experiment.plan(self.parameters, self.profile))

    @cached_property
    def database(self) -> Database:
        return Database(self.profile.name, self.corpus)

    @cached_property
    def study(self) -> Study:
        """The models by their labels, and what compares them (`suite.study.frames`)."""
        return Study(self.jobs, self.database, self.name, self.parameters, self.profile)

    def run(self) -> pd.DataFrame:
        """Train and evaluate what is missing, with a progress display; the tidy table of all (columns: `COLUMNS`)."""
        ensure(self.jobs, self.profile.name, self.corpus, self.profile.workers)
        return self.study.table

    def plan(self) -> Any:
        """The runs that this notebook needs, as a table to look at. A note says how exactly the controls have their
        attended pairs; a `SuiteError` names one that is more than 1 % off."""
        table = self.study.plan
        controls = table.dropna(subset="equal to").drop_duplicates("model")
        off = (controls["pairs"] / controls["equal to"] - 1).abs()
        if off.max() > 0.01:
            worst = controls.loc[off.idxmax(), "model"]
            raise SuiteError(f"{worst} is {off.max():.1%} off the attended pairs that it should have")
        self.note(f"Controls have their attended pairs within {100 * off.max():.2f} %: {'; '.join(controls['model'])}."
                  if len(controls) else "No control of equal pairs is trained.")
        return table.style.hide(axis="index").format({"pairs": "{:,}", "tokens": "{:,}", "keys a query": "{:.2f}",
                                                      "equal to": "{:,.0f}"}, na_rep="")

    def save(self, table: pd.DataFrame) -> Path:
        """Write the table as CSV, whole or not at all, and return its path: `results/<notebook>.csv`, or below
        `results/variants` where the parameters are not the profile's: a trial replaces nothing that the report has."""
        path = paths.results(self.profile.name) / f"{self.name}.csv"
        given = self.parameters.model_dump()
        if given != self.profile.parameters(self.name).model_dump():
            path = path.parent / "variants" / f"{self.name}-{fingerprint(given)}.csv"
        write_atomically(path, table.to_csv(index=False, lineterminator="\n").encode())
        return path

    def show(self, figure: plt.Figure, alt: str, caption: str = "") -> None:
        """Embed a figure as PNG, with the text that stands for it where it cannot be seen; its metadata keeps both."""
        if not alt.strip():
            raise SuiteError("alt = '' is not valid: say in words what the figure shows")
        content = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")       # a domain's name may be in any script
            figure.savefig(content, format="png", bbox_inches="tight", metadata={"Software": None})
            if folder := os.environ.get(FIGURES):
                self.shown += 1
                for kind in KINDS:
                    date = {"pdf": "CreationDate", "svg": "Date"}[kind]              # without one, the same file twice
                    figure.savefig(f"{folder}/{self.shown}.{kind}", bbox_inches="tight", metadata={date: None})
        plt.close(figure)
        texts = {"alt": alt, **({"caption": caption} if caption else {})}
        display({"image/png": base64.b64encode(content.getvalue()).decode(), "text/plain": alt}, raw=True,
                metadata={"image/png": texts})
        if caption:                             # JupyterLab shows no metadata; the report has it below the figure
            markdown(caption, caption_line=True)

    def note(self, sentence: str) -> None:
        """A computed sentence that stays where it is: a fact beside a table or figure, not a result."""
        markdown(sentence)

    # Claims of the ledger

    @cached_property
    def finished(self) -> list[str]:
        return [name for name in names() if name != self.name and stamps.record(self.profile.name, name).is_file()]

    @cached_property
    def judgements(self) -> dict[str, ledger.Judgement]:
        """The ledger's verdicts by identifier, from this notebook at its parameters and from those that are finished;
        of the latter only what Holm's correction counts."""
        asked = [claim for claim in ledger.load() if claim.notebook == self.name
                 or claim.notebook in self.finished and not claim.exact]

        def study(name: str) -> Study:
            own = name == self.name
            return self.study if own else ledger.Evidence(self.profile, name, self.finished, lambda: self.database)
        return {own.claim.id: own for own in ledger.judge_from(asked, study)}

    def claim(self, *identifiers: str) -> None:
        """Statement, verdict and number of claims that this notebook decides, as the ledger has them; those without a
        number at these parameters are named together. The report puts the ledger's final row in the place of each."""
        known = {name: found for name, found in self.judgements.items() if found.claim.notebook == self.name}
        chosen = [known[one_of(name, known, f"claim of {self.name}")] for name in identifiers]
        shown = [found for found in chosen if found.effect is not None or len(chosen) == 1]
        for found in shown:
            seeds = f" {found.seeds} seeds." if found.seeds >= ENOUGH_SEEDS else ""
            text = f"**{found.claim.statement}** *{found.verdict.capitalize()}*: {found.sentence}{seeds}"
            markdown(text + (self.correction(shown) if found is shown[-1] else ""), claim=found.claim.id)
        if len(shown) < len(chosen):
            others = ", ".join(f"`{found.claim.id}`" for found in chosen if found not in shown)
            self.note(f"No number at these parameters: {others}.")

    def claims(self, section: str) -> None:
        """`claim` of all whose evidence the ledger places below this heading."""
        sections = {claim.id: claim.section for claim in ledger.load() if claim.notebook == self.name}
        one_of(section, sections.values(), f"section of {self.name} with claims")
        self.claim(*(name for name, its in sections.items() if its == section))

    def correction(self, chosen: Sequence[ledger.Judgement]) -> str:
        """What Holm's correction counts here, where a number has one."""
        documents = {own.family for own in chosen} - {""}
        if not documents:
            return ""
        count = sum(own.family in documents for own in self.judgements.values())
        waiting = sorted(set(names()) - {self.name, *self.finished})
        later = f"; not counted yet: {', '.join(waiting)}" if waiting else ""
        named = " and ".join(sorted(documents))
        return f"\n\n*Holm's correction counts the {count} claims of {named} that can be judged now{later}.*"

    def source(self, *objects: Any, start: str = "", end: str = "") -> None:
        """The code of functions or classes, without docstring, as it stands in its file: from the first line that holds
        `start` to the next that holds `end`, both shown. At most 25 lines, else a `SuiteError`."""
        for item in objects:
            path, code = source_of(item, start, end)
            markdown(f"`{path}`\n\n```python\n{code}\n```", source=path)


def markdown(text: str, **metadata: Any) -> None:
    """An output of the cell that is Markdown, and the same text where that is not rendered."""
    display({"text/markdown": text, "text/plain": text}, raw=True, metadata=metadata)


def source_of(item: Any, start: str, end: str) -> tuple[str, str]:
    """The file of a function or class, relative to the repository, and its lines from `start` to `end`."""
    lines = textwrap.dedent(inspect.getsource(item)).splitlines()
    body = ast.parse("\n".join(lines)).body[0].body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1:
        del lines[body[0].lineno - 1:body[0].end_lineno]
    first = next((at for at, line in enumerate(lines) if start in line), len(lines))
    after = next((at + 1 for at in range(first + 1, len(lines)) if end in lines[at]), first) if end else len(lines)
    cut = lines[first:after]
    if not 1 <= len(cut) <= SOURCE_LINES:
        raise SuiteError(f"source of {item.__qualname__} from {start!r} to {end!r}: {len(cut)} lines, not 1 to "
                         f"{SOURCE_LINES}; name other lines as start and end")
    path = Path(inspect.getsourcefile(item)).resolve().relative_to(paths.ROOT)
    return str(path), textwrap.dedent("\n".join(cut))


def read_parameters(name: str, namespace: Mapping[str, Any]) -> Parameters:
    """The parameters as their cells left them in `namespace`, held to what the saved notebook declares: its parameters
    cell, and below it papermill's, which adds names without a look at them."""
    model, cells = parameters_of(name), [str(source) for source in namespace.get("In", [])]
    last = max((at for at, source in enumerate(cells) if re.search("^profile:", source, re.MULTILINE)), default=-1)
    injected = max((at for at, source in enumerate(cells) if source.startswith("# Parameters")), default=-1)
    if last >= 0:
        ran, where = parse_cell(cells[last], name).model_fields, f"{name}, parameters cell"
        require_known(ran, model.model_fields, where)
        for parameter, field in model.model_fields.items():
            if parameter not in ran or ran[parameter].annotation != field.annotation:
                raise SuiteError(f"{where}: {parameter} is missing, or has another type than saved: save it first")
    if injected > last:
        given = [target.id for statement in ast.parse(cells[injected]).body if isinstance(statement, ast.Assign)
                 for target in statement.targets if isinstance(target, ast.Name)]
        require_known(given, model.model_fields, f"{name}, parameters given to papermill")
    if absent := model.model_fields.keys() - namespace.keys():
        raise SuiteError(f"{name}: {', '.join(sorted(absent))} not set: run the parameters cell first")
    return checked(model, {parameter: namespace[parameter] for parameter in model.model_fields}, name)
