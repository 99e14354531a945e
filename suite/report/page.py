"""The page: gather what the notebooks, tables and database hold, fill the template, replace the file in one step."""

from __future__ import annotations

import datetime
import html
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from nbconvert.filters.ansi import strip_ansi

from lib import paths
from lib.errors import one_of
from lib.files import write_atomically
from lib.text import duration
from suite.experiments.base import COLUMNS
from suite.report import NotebookStatus, facts, ledger, overview, summary
from suite.report.chart import chart, recipe
from suite.report.render import Section, read, render, title_of

if TYPE_CHECKING:
    from suite.claims import Judgement

HERE = Path(__file__).parent
TITLE = "Sparse attention: three proposals, one report"
WORDS = {"waiting": "not run yet", "running": "running", "done": "done", "fresh": "done", "failed": "failed"}


@dataclass(frozen=True)
class Entry:
    """A notebook as the template sees it."""
    name: str
    state: str
    section: Section
    seconds: float | None
    command: str
    error: str
    series: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = ()     # of its table: name, and (seed, run) of each run
    claims: tuple[str, ...] = ()                                         # that are judged from it

    @property
    def runs(self) -> int:
        return len({run for _, traced in self.series for _, run in traced})

    @property
    def error_line(self) -> str:
        """The message alone: the last line of a traceback says what happened, and a first line with a colon what follows."""
        lines = [line.strip() for line in self.error.splitlines() if line.strip()] or ["It gave no message."]
        introduced = len(lines) > 1 and lines[0].endswith(":") and not lines[0].startswith("Traceback")
        return f"{lines[0]} {lines[-1]}" if introduced else lines[-1]

    @property
    def error_more(self) -> str:
        return self.error.strip() if len(self.error.strip().splitlines()) > 1 else ""


def write(profile: str, status: Mapping[str, NotebookStatus], corpus: str = "") -> Path:
    """See `suite.report.build`."""
    for name, own in status.items():
        one_of(own.state, WORDS, f"state of notebook {name}")
    finished = [name for name, own in status.items() if own.state in ("done", "fresh")]
    table = summary.read_tables(paths.results(profile), finished)
    judgements = ledger.judged(profile, corpus, finished)
    content = page(profile, status, corpus, table, judgements)
    write_atomically(paths.results(profile) / "README.md", results_readme(profile).encode())
    ledger.write(profile, judgements)
    path = paths.report(profile) / "index.html"
    write_atomically(path, content.encode())
    return path


def page(profile: str, status: Mapping[str, NotebookStatus], corpus: str, table: pd.DataFrame,
         judgements: Sequence[Judgement]) -> str:
    """The page's HTML."""
    shown: dict[str, list[str]] = {}
    for run, experiment in table.loc[table["run"] != "", ["run", "experiment"]].drop_duplicates().itertuples(index=False):
        shown.setdefault(str(run), []).append(experiment)
    runs = facts.runs_of(profile, shown)
    commands = {name: command("notebook", profile, corpus, NAME=name) for name in status}
    entries = [_entry(profile, name, own, commands[name], set(shown), list(status)) for name, own in status.items()]
    entries = [replace(entry, series=_runs_behind(table, entry.name),
                       claims=tuple(own.claim.id for own in judgements if own.claim.notebook == entry.name))
               for entry in entries]
    texts = facts.texts(runs)
    return _environment().get_template("page.html.j2").render(
        title=TITLE, profile=profile, description=facts.description(profile), words=WORDS,
        css="".join((HERE / f"{name}.css").read_text("utf-8") for name in ("page", "claims")),
        notebooks=entries, texts=texts, runs=runs,
        finished=sum(e.state in ("done", "fresh") for e in entries), failed=sum(e.state == "failed" for e in entries),
        train_seconds=sum(run.seconds or 0.0 for run in runs), command=command("report", profile, corpus), commands=commands,
        verify={run.fingerprint: command("verify", profile, corpus, RUN=run.fingerprint) for run in runs},
        when=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        versions=facts.distinct(run.versions for run in runs), machines=facts.distinct(facts.machine(run) for run in runs),
        started=min((run.started for run in runs), default=""), ended=max((run.started for run in runs), default=""),
        tables=list(dict.fromkeys(table["experiment"])), other_runs=summary.without_perplexity(table),
        **_claims(profile, judgements, entries, set(shown)), **_summary(table), **_overview(table))


def _claims(profile: str, judgements: Sequence[Judgement], entries: Sequence[Entry], runs: set[str]) -> dict[str, Any]:
    """The ledger: rows by document, counts, what other profiles found."""
    others, notes = ledger.verdicts_of_others(profile, judgements)
    sections = {entry.name: entry.section for entry in entries}
    return {"claims": list(judgements), "counts": ledger.counts(judgements), "verdicts": ledger.VERDICTS,
            "documents": ledger.documents(judgements, sections, others), "other_profiles": list(others),
            "ledger_notes": notes, "appendix": runs}


def _overview(table: pd.DataFrame) -> dict[str, Any]:
    """The picture of all patterns at equal pairs, if the notebook that trains them is done."""
    found = overview.overview(table)
    return {"overview": found, "picture": None if found is None else overview.picture(found)}


def _runs_behind(table: pd.DataFrame, notebook: str) -> tuple[tuple[str, tuple[tuple[int, str], ...]], ...]:
    """The series of a notebook's table with their runs, as the table orders them."""
    rows = table[(table["experiment"] == notebook) & (table["run"] != "")]
    rows = rows.drop_duplicates(["series", "window", "setting", "run"])
    if rows.empty:
        return ()
    groups = rows.assign(settings=rows.apply(summary.settings, axis=1)).groupby(["series", "settings"], sort=False)
    return tuple((", ".join(filter(None, name)), tuple((int(row["seed"]), str(row["run"])) for _, row in own.iterrows()))
                 for name, own in groups)


def _entry(profile: str, name: str, own: NotebookStatus, command: str, runs: set[str], notebooks: Sequence[str]) -> Entry:
    executed = paths.executed(profile) / f"{name}.ipynb"
    if own.state in ("done", "fresh") or (own.state == "failed" and error_in(executed) == own.error):
        section = render(executed, name, runs, notebooks)
    else:
        source = paths.NOTEBOOKS / f"{name}.ipynb"
        section = Section(name, (title_of(read(source)) if source.exists() else "") or name)
    return Entry(name, own.state, section, own.seconds, command, strip_ansi(own.error))


def error_in(executed: Path) -> str | None:
    """The error that an execution left in its notebook; if it is not the present one, that execution was an earlier one."""
    return read(executed).metadata.get("suite", {}).get("error") if executed.exists() else None


def _summary(table: pd.DataFrame) -> dict[str, Any]:
    """Series, their groups with the best of each column, and the figure."""
    series = summary.series_of(table)
    recipes = summary.recipes(series)
    groups = [{"series": [_traced(s) for s in group], "best": _best(group),
               "caption": f"Models of {recipe(group[0])}, best first"} for group in recipes]
    return {"series": series, "groups": groups, "domains": summary.domains(series),
            "chart": chart(recipes) if series else None, "spreads": any(s.spread is not None for s in series)}


def _traced(s: summary.Series) -> dict[str, Any]:
    return {**vars(s), "traced": list(zip(s.seeds, s.runs, strict=True))}


def _best(group: Sequence[summary.Series]) -> dict[str, Any]:
    domains = {d: min(s.perplexity[d] for s in group if d in s.perplexity) for d in summary.domains(group)}
    return {"mean": min(s.mean for s in group), "domains": domains}


def command(target: str, profile: str, corpus: str = "", **more: str) -> str:
    """The command that makes this again, as one types it in the repository's folder; `more` are make's variables."""
    folder = shlex.quote(os.path.relpath(corpus, paths.ROOT)) if corpus else ""
    parts = {**more, "PROFILE": profile, "CORPUS": folder}
    return " ".join(["make", target, *(f"{key}={value}" for key, value in parts.items() if value)])


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["duration"] = duration
    environment.filters["moment"] = moment
    environment.filters["figure"] = lambda value, digits: f"{value:,.{digits}f}"
    return environment


def moment(when: str) -> str:
    """A time in ISO format as one reads it, with its distance to UTC."""
    return datetime.datetime.fromisoformat(when).strftime("%Y-%m-%d %H:%M UTC%z").removesuffix("+0000")


def results_readme(profile: str) -> str:
    """The columns of every table in outputs/<profile>/results, from `COLUMNS`."""
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in COLUMNS.items())
    return (f"# Tables of the profile `{html.escape(profile)}`\n\n"
            "One tidy table an experiment: a row a measured value, empty where a column does not apply. All have the same\n"
            "columns, so they can be put below one another. `run` is text: `pandas.read_csv(path, dtype={'run': str})`.\n"
            "`variants/` holds tables of notebooks that were executed with other parameters than the profile's.\n"
            f"They are made again by `{command('report', profile)}`.\n\n| column | meaning |\n|---|---|\n{rows}\n")
